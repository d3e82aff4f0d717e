//! `shardctl append`: more samples for a dataset. Its shards stay, only new ones are written.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use shardd_client::catalog::{CommitNote, Shelf};
use shardd_client::inputs;
use shardfmt::ingest::Source;
use shardfmt::version::{Base, append, appending, open_to_append, refuse_file};
use shardfmt::{ByteSize, DatasetName, Message, Operation};

use crate::connect::{Connect, find_version};
use crate::failure::Failure;
use crate::human::{duration, plural};
use crate::ingest::{Effort, links};
use crate::output;
use crate::progress::IngestProgress;

/// Add samples to a dataset, ingested as its own were
#[derive(Args)]
pub(crate) struct Append {
    /// The dataset
    name: DatasetName,

    /// Files, directories, patterns or URLs, with the columns of the dataset
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Append also what is in the dataset already, so that its samples are there twice
    #[arg(long)]
    again: bool,

    /// Size that new shards aim at [default: that of the dataset's]
    #[arg(long, value_name = "SIZE")]
    shard_size: Option<ByteSize>,

    /// The tokenizer.json that the dataset's tokens were made with, where it lies now
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,

    /// Read only this folder of PATH
    #[arg(long, value_name = "DIR")]
    under: Option<String>,

    /// Follow symbolic links that lead out of a folder given
    #[arg(long)]
    follow_symlinks: bool,

    /// What is new, and why: kept in the history
    #[arg(long, short, default_value = "")]
    message: Message,

    #[command(flatten)]
    effort: Effort,
}

impl Append {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let started = Instant::now();
        let catalog = connect.catalog()?;
        let before = find_version(&*catalog, &self.name.clone().into())?;
        let manifest = catalog.manifest(before.version)?;
        let base = Base { id: before.version, manifest: &manifest };
        if !self.again {
            self.paths.iter().try_for_each(|path| refuse_file(base, path, self.under.as_deref()))?;
        }
        let resources = self.effort.resources()?;
        let mut config = appending(base);
        config.shard_size = self.shard_size.or(config.shard_size);
        config.under = self.under;
        // On record is only what it was called.
        if let (Some(recorded), None) = (&config.tokenizer, &self.tokenizer) {
            return Err(Failure::usage(format!(
                "{} has tokens made with {}: say where that lies with --tokenizer FILE",
                self.name,
                recorded.display()
            )));
        }
        config.tokenizer = self.tokenizer;
        let (source, config) = open_to_append(base, config, |config| -> Result<Source, Failure> {
            let inputs = inputs::open(&self.paths, config.under.as_deref(), links(self.follow_symlinks))?;
            Ok(resources.install(|| Source::new(inputs, config))??)
        })?;
        let samples = source.sample_count().filter(|_| config.take.is_none());
        let progress = Arc::new(IngestProgress::new(json, samples));
        progress.end_on_signals()?;
        let appended = append(base, source, config, self.again, &resources, &Shelf(&*catalog), &*progress);
        progress.finish();
        let appended = appended?;
        let note = CommitNote { operation: Operation::APPEND, message: self.message };
        let after = catalog.commit(&self.name, Some(before.version), &appended, &note)?;
        let (samples, shards) = (after.samples - before.samples, after.shards - before.shards);
        if json {
            output::json(&json!({
                "event": "done",
                "dataset": after.name,
                "version": after.version,
                "before": before.version,
                "samples": after.samples,
                "shards": after.shards,
                "added_samples": samples,
                "added_shards": shards,
                "skipped": appended.skipped_count - manifest.skipped_count,
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
                before.version.short(),
                duration(started.elapsed()),
            ));
        }
        Ok(())
    }
}
