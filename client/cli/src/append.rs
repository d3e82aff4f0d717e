//! `shardctl append`: more samples for a dataset. Its shards stay, only new ones are written.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use shardd_ingest::version::{AppendError, Base, append, appending, made_of, open_to_append, refuse_file};
use shardd_ingest::{Ingested, Resources, Source};
use shardd_store::catalog::{Catalog, CatalogStore, CommitNote};
use shardd_store::connect::{Connect, find_version};
use shardfmt::{ByteSize, DatasetName, Manifest, Message, Operation, VersionId};

use crate::failure::Failure;
use crate::human::{duration, plural};
use crate::ingest::{ResourceArgs, links};
use crate::output;
use crate::progress::IngestProgress;

/// Add samples to a dataset, ingested with the settings of its own
#[derive(Args)]
pub(crate) struct Append {
    /// The dataset
    name: DatasetName,

    /// Files, directories, patterns or URLs, with the columns of the dataset
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Append samples that are in the dataset already, too, so that it has them twice
    #[arg(long)]
    again: bool,

    /// Target size of new shards [default: that of the dataset's]
    #[arg(long, value_name = "SIZE")]
    shard_size: Option<ByteSize>,

    /// Path of the tokenizer.json that made the dataset's tokens
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,

    /// Path of the chat template that made text of the dataset's conversations
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,

    /// Read only this folder of PATH
    #[arg(long, value_name = "DIR")]
    under: Option<String>,

    /// Follow symbolic links that lead out of a folder given
    #[arg(long)]
    follow_symlinks: bool,

    /// The change, and its reason: kept in the history
    #[arg(long, short, default_value = "")]
    message: Message,

    #[command(flatten)]
    resources: ResourceArgs,
}

/// A version made of another by appending.
struct Grown {
    before: (VersionId, Manifest),
    after: Ingested,
    /// What could not be read of the appended input.
    skipped: u64,
}

impl Append {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let started = Instant::now();
        let catalog = connect.catalog()?;
        let present = find_version(&*catalog, &self.name.clone().into())?.version;
        let resources = self.resources.clone().resources()?;
        let grown = match self.grow(&*catalog, present, &resources, json)? {
            Ok(grown) => grown,
            Err(known @ AppendError::Known { .. }) => {
                let Some(grown) = self.grown_before(&*catalog, present, &resources, json)? else {
                    return Err(known.into());
                };
                output::note(
                    json,
                    "this was appended before, by a command that may not have lived to say so",
                );
                grown
            }
            Err(error) => return Err(error.into()),
        };
        let Grown { before: (before, manifest), after: Ingested { manifest: appended, provenance }, skipped } =
            grown;
        let provenance = Some(provenance);
        let note = CommitNote { operation: Operation::APPEND, message: self.message, provenance };
        let after = catalog.commit(&self.name, Some(before), &appended, &note)?;
        let samples = after.samples - manifest.sample_count();
        let shards = after.shards - manifest.shards.len() as u64;
        if json {
            output::json(&json!({
                "event": "done",
                "dataset": after.name,
                "version": after.version,
                "before": before,
                "samples": after.samples,
                "shards": after.shards,
                "added_samples": samples,
                "added_shards": shards,
                "skipped": skipped,
                "seconds": started.elapsed().as_secs_f64(),
            }));
        } else {
            output::print(&format!(
                "{}: {} more in {}, now {} in {}, version {} in place of {}; {}\n",
                after.name,
                plural(samples, "sample"),
                plural(shards, "shard"),
                plural(after.samples, "sample"),
                plural(after.shards, "shard"),
                after.version.short(),
                before.short(),
                duration(started.elapsed()),
            ));
        }
        Ok(())
    }

    /// The version `before` with the samples after its own; the shards that are new are stored.
    fn grow(
        &self,
        catalog: &dyn Catalog,
        before: VersionId,
        resources: &Resources,
        json: bool,
    ) -> Result<Result<Grown, AppendError>, Failure> {
        let manifest = catalog.manifest(before)?;
        let provenance = catalog.provenance(before)?;
        let base = Base { id: before, manifest: &manifest, provenance: provenance.as_ref() };
        if !self.again {
            let mut paths = self.paths.iter();
            if let Err(known) = paths.try_for_each(|path| refuse_file(base, path, self.under.as_deref())) {
                return Ok(Err(known));
            }
        }
        let mut config = appending(base);
        config.shard_size = self.shard_size.or(config.shard_size);
        config.under = self.under.clone();
        // Only their names are on record.
        let files = [
            ("--tokenizer", &config.tokenizer, &self.tokenizer),
            ("--chat-template", &config.chat_template, &self.chat_template),
        ];
        for (flag, recorded, given) in files {
            if let (Some(recorded), None) = (recorded, given) {
                return Err(Failure::usage(format!(
                    "{} has tokens made with {}: give that file with {flag} FILE",
                    self.name,
                    recorded.display()
                )));
            }
        }
        config.tokenizer = self.tokenizer.clone();
        config.chat_template = self.chat_template.clone();
        let (source, config) = open_to_append(base, config, |config| -> Result<Source, Failure> {
            let inputs =
                shardd_inputs::open(&self.paths, config.under.as_deref(), links(self.follow_symlinks))?;
            Ok(resources.install(|| Source::new(inputs.within(resources), config))??)
        })?;
        let samples = source.sample_count().filter(|_| config.take.is_none());
        let progress = Arc::new(IngestProgress::new(json, samples));
        progress.end_on_signals()?;
        let appended =
            append(base, source, config, self.again, resources, &CatalogStore(catalog), &*progress);
        progress.finish();
        let known = provenance.as_ref().map_or(0, |provenance| provenance.skipped.count);
        Ok(appended.map(|after| {
            let skipped = after.provenance.skipped.count.saturating_sub(known);
            Grown { before: (before, manifest), after, skipped }
        }))
    }

    /// The base of the present version, if this very append made it: a command that was killed after its
    /// commit has done all that it was asked for.
    fn grown_before(
        &self,
        catalog: &dyn Catalog,
        present: VersionId,
        resources: &Resources,
        json: bool,
    ) -> Result<Option<Grown>, Failure> {
        let Some(before) = made_of(&catalog.manifest(present)?) else { return Ok(None) };
        match self.grow(catalog, before, resources, json) {
            Ok(Ok(grown)) => Ok(Some(grown).filter(|grown| grown.after.manifest.id() == present)),
            // It was made otherwise: that the input is known already is what there is to say.
            Ok(Err(_)) | Err(_) => Ok(None),
        }
    }
}
