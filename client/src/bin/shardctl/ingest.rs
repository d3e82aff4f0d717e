//! `shardctl ingest`: makes a dataset of a directory, an archive or a file. Nothing is visible before all of it is there.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use shardd_client::catalog::{Catalog, CommitNote};
use shardfmt::ingest::{HashRange, IngestConfig, Mix, Sink, Source};
use shardfmt::{ByteSize, DatasetName, FinishedShard, Manifest, Message, Operation, VersionId};

use crate::connect::Connect;
use crate::failure::Failure;
use crate::human::{count, duration, plural};
use crate::output;
use crate::progress::IngestProgress;

/// Make a dataset of Parquet, CSV, a folder of images, or a tar of images
#[derive(Args)]
pub(crate) struct Ingest {
    /// A Parquet or CSV file, a directory of them, a directory of images with one folder per class, or a .tar(.gz)
    path: PathBuf,

    /// Name of the dataset: a-z, 0-9, '.', '_' and '-'
    #[arg(long)]
    name: DatasetName,

    /// Lay samples into shards in random order, or as they come
    #[arg(long, value_enum, default_value = "random")]
    mix: MixArg,

    /// Key of the random order
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Size that shards aim at, such as 4MiB [default: a 64th of the data, between 1 and 64 MiB]
    #[arg(long, value_name = "SIZE")]
    shard_size: Option<ByteSize>,

    /// Read only this folder of PATH
    #[arg(long, value_name = "DIR")]
    under: Option<String>,

    /// Keep a part of the samples, chosen by their content: `0..8/10` to train, `8..10/10` to test
    #[arg(long, value_name = "FROM..TO/OF", value_parser = parse_take)]
    take: Option<HashRange>,

    /// Why, for the log of the dataset
    #[arg(long, short, value_name = "TEXT", default_value = "")]
    message: Message,

    /// Threads to work with; the result does not depend on it [default: one per processor]
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Clone, Copy, ValueEnum)]
enum MixArg {
    Random,
    Sequential,
}

impl Ingest {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let started = Instant::now();
        let mix = match self.mix {
            MixArg::Random => Mix::Random,
            MixArg::Sequential => Mix::Sequential,
        };
        let config = IngestConfig {
            mix,
            seed: self.seed,
            shard_size: self.shard_size,
            under: self.under,
            take: self.take,
        };
        let threads = self.threads.unwrap_or_else(processors).max(1);
        let source = Source::open(&self.path, &config)?;
        let catalog = connect.catalog_to_fill()?;
        let progress = IngestProgress::new(json, config.take.is_none().then(|| source.sample_count()));
        let done = into_dataset(&*catalog, &self.name, source, &config, threads, &progress, self.message)?;
        progress.finish();
        report(&self.name, &done, started.elapsed(), json);
        Ok(())
    }
}

/// A dataset as an ingest left it.
pub(crate) struct Ingested {
    pub(crate) manifest: Manifest,
    pub(crate) version: VersionId,
    /// The version that had the name before.
    pub(crate) before: Option<VersionId>,
}

/// Ingests the source and, when every shard is stored, gives the new version its name: unless somebody else changed what
/// the name stands for in the meantime.
pub(crate) fn into_dataset(
    catalog: &dyn Catalog,
    name: &DatasetName,
    source: Source,
    config: &IngestConfig,
    threads: usize,
    progress: &IngestProgress,
    message: Message,
) -> Result<Ingested, Failure> {
    let before = catalog.datasets()?.into_iter().find(|info| info.name == *name).map(|info| info.version);
    let manifest = shardfmt::ingest::ingest(source, config, threads, &Shelf(catalog), progress)?;
    let version = manifest.id();
    if before != Some(version) {
        let note = CommitNote { operation: Operation::INGEST, message };
        catalog.commit(name, before, &manifest, &note)?;
    }
    Ok(Ingested { manifest, version, before })
}

/// One thread per processor.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Puts each shard into the catalog's store as soon as it is made.
struct Shelf<'a>(&'a dyn Catalog);

impl Sink for Shelf<'_> {
    fn put_shard(&self, shard: &FinishedShard) -> io::Result<()> {
        self.0.put_shard(shard).map_err(io::Error::other)
    }
}

fn report(name: &DatasetName, done: &Ingested, took: Duration, json: bool) {
    let Ingested { manifest, version, before } = done;
    if json {
        output::json(&json!({
            "event": "done",
            "dataset": name,
            "version": version,
            "before": before,
            "samples": manifest.sample_count(),
            "shards": manifest.shards.len(),
            "bytes": manifest.bytes(),
            "row_bytes": manifest.row_bytes(),
            "digest_sum": manifest.digest_sum(),
            "seconds": took.as_secs_f64(),
        }));
        return;
    }
    let change = match before {
        Some(before) if before == version => ", unchanged".to_owned(),
        Some(before) => format!(", in place of {}", before.short()),
        None => String::new(),
    };
    output::print(&format!(
        "{name}: {} in {} ({}), version {}{change}; {} at {}/s\n",
        plural(manifest.sample_count(), "sample"),
        plural(manifest.shards.len() as u64, "shard"),
        ByteSize(manifest.bytes()),
        version.short(),
        duration(took),
        ByteSize((manifest.row_bytes() as f64 / took.as_secs_f64().max(1e-6)) as u64),
    ));
    if manifest.sample_count() == 0 {
        eprintln!("note: {name} is empty: {} samples were kept", count(0));
    }
}

/// `FROM..TO/OF`, optionally `@SEED`.
fn parse_take(text: &str) -> Result<HashRange, String> {
    let refused =
        || "use FROM..TO/OF, such as 0..8/10 to train and 8..10/10 to test, optionally with @SEED".to_owned();
    let (range, seed) = match text.split_once('@') {
        Some((range, seed)) => (range, seed.parse().map_err(|_| refused())?),
        None => (text, 0),
    };
    let (range, of) = range.split_once('/').ok_or_else(refused)?;
    let (from, to) = range.split_once("..").ok_or_else(refused)?;
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| refused());
    let (from, to, of) = (number(from)?, number(to)?, number(of)?);
    if from < to && to <= of { Ok(HashRange::parts(seed, from, to, of)) } else { Err(refused()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_a_range_of_equal_parts() {
        assert_eq!(parse_take("0..8/10"), Ok(HashRange::parts(0, 0, 8, 10)));
        assert_eq!(parse_take("8..10/10@7"), Ok(HashRange::parts(7, 8, 10, 10)));
        for odd in ["", "1..2", "2..1/3", "0..0/3", "0..4/3", "a..b/c", "0..1/2@x"] {
            assert!(parse_take(odd).is_err(), "{odd}");
        }
    }
}
