//! `shardctl reshard`: the same samples under the same numbers, in shards of another size, without their source.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use clap::Args;
use serde_json::json;
use shardd_ingest::version::{Base, reshard};
use shardd_store::catalog::{CatalogStore, CommitNote};
use shardd_store::connect::{Connect, find_version};
use shardfmt::{ByteSize, Compression, DatasetName, Message, Operation};

use crate::failure::Failure;
use crate::human::{duration, plural};
use crate::ingest::processors;
use crate::output;
use crate::work::WorkProgress;

/// Cut a dataset into shards of another size, without its source; every sample keeps its number
#[derive(Args)]
pub(crate) struct Reshard {
    /// The dataset
    name: DatasetName,

    /// Target size of shards, such as 4MiB
    #[arg(long, value_name = "SIZE")]
    shard_size: ByteSize,

    /// Compression of shards: none, lz4, zstd or zstd:LEVEL [default: as they are]
    #[arg(long)]
    compression: Option<Compression>,

    /// Message, kept in the history
    #[arg(long, short, default_value = "")]
    message: Message,

    /// Threads to work with, each of which takes memory for two shards; the result does not depend on it [default: one per
    /// processor]
    #[arg(long)]
    threads: Option<NonZeroUsize>,
}

impl Reshard {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        let before = find_version(&*catalog, &self.name.clone().into())?;
        let manifest = catalog.manifest(before.version)?;
        let provenance = catalog.provenance(before.version)?;
        let base = Base { id: before.version, manifest: &manifest, provenance: provenance.as_ref() };
        let progress = WorkProgress::new(json, "resharding", before.samples);
        let threads = self.threads.map_or_else(processors, usize::from);
        let shelf = CatalogStore(&*catalog);
        let resharded = reshard(base, self.shard_size, self.compression, &shelf, threads, &shelf, &progress);
        let took = progress.finish();
        let resharded = resharded?;
        let is_unchanged = resharded.shards == manifest.shards;
        let after = if is_unchanged {
            before.clone()
        } else {
            let note = CommitNote { operation: Operation::RESHARD, message: self.message, provenance };
            catalog.commit(&self.name, Some(before.version), &resharded, &note)?
        };
        let old: BTreeSet<_> = manifest.shards.iter().map(|shard| shard.id).collect();
        let kept = resharded.shards.iter().filter(|shard| old.contains(&shard.id)).count() as u64;
        if json {
            output::json(&json!({
                "event": "done",
                "dataset": after.name,
                "version": after.version,
                "before": before.version,
                "samples": after.samples,
                "shards": after.shards,
                "shards_before": before.shards,
                "shards_kept": kept,
                "seconds": took.as_secs_f64(),
            }));
        } else if is_unchanged {
            output::print(&format!(
                "{}: its {} are of that size already\n",
                after.name,
                plural(after.shards, "shard")
            ));
        } else {
            output::print(&format!(
                "{}: {} in {}, {kept} of them as before, instead of {}; version {} in place of {}; {}\n",
                after.name,
                plural(after.samples, "sample"),
                plural(after.shards, "shard"),
                before.shards,
                after.version.short(),
                before.version.short(),
                duration(took),
            ));
        }
        Ok(())
    }
}
