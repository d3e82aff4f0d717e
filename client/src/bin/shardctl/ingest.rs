//! `shardctl ingest`: makes a dataset of files. Nothing is visible before all of it is there.

mod auto;
mod split;

use std::env;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use shardd_client::catalog::{Catalog, CommitNote, Shelf};
use shardd_client::inputs;
use shardfmt::ingest::{HashRange, Ingest as Reading, IngestConfig, Kind, Mix, OnError, Resources, Source};
use shardfmt::shard::Compression;
use shardfmt::{ByteSize, DatasetName, Manifest, Message, Operation, VersionId};

use self::split::Split;
use crate::connect::Connect;
use crate::failure::Failure;
use crate::human::{count, duration, plural};
use crate::output;
use crate::progress::IngestProgress;

/// Make a dataset of tables, images, archives or text
#[derive(Args)]
pub(crate) struct Ingest {
    /// Files, directories, patterns such as 'data/*.parquet', or URLs: s3://, gs://, az://, http(s)://
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// Name of the dataset: a-z, 0-9, '.', '_' and '-'
    #[arg(long)]
    name: DatasetName,

    /// Why, for the log of the dataset
    #[arg(long, short, value_name = "TEXT", default_value = "")]
    message: Message,

    #[command(flatten)]
    settings: Settings,

    #[command(flatten)]
    effort: Effort,
}

/// What decides the version.
#[derive(Args)]
pub(crate) struct Settings {
    /// Lay samples into shards in random order, with each class spread evenly, or as they come
    #[arg(long, value_enum, default_value = "random", help_heading = "Order and shards")]
    mix: MixArg,

    /// Column whose classes a stratified mix spreads
    #[arg(long, value_name = "COLUMN", default_value = "label", help_heading = "Order and shards")]
    label: String,

    /// Key of the random order and of --split
    #[arg(long, default_value_t = 0, help_heading = "Order and shards")]
    seed: u64,

    /// Size that shards aim at, such as 4MiB, or `auto`: also from memory and the store [default: a 64th of the data,
    /// between 1 and 64 MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Order and shards")]
    shard_size: Option<ShardSize>,

    /// Compress the bodies of shards: `none`, `lz4`, `zstd`, or `zstd:LEVEL`
    #[arg(long, value_name = "HOW", default_value_t, help_heading = "Order and shards")]
    compression: Compression,

    /// Read the files as this kind, whatever they look like
    #[arg(long, value_name = "KIND", value_parser = parse_kind, help_heading = "What is read")]
    format: Option<Kind>,

    /// Read only this folder of PATH
    #[arg(long, value_name = "DIR", help_heading = "What is read")]
    under: Option<String>,

    /// Keep only these columns, in this order
    #[arg(long, value_name = "A,B,...", value_delimiter = ',', help_heading = "What is read")]
    columns: Option<Vec<String>>,

    /// Keep a part of the samples, chosen by their content: `0..8/10` to train, `8..10/10` to test
    #[arg(long, value_name = "FROM..TO/OF", value_parser = parse_take, help_heading = "What is read")]
    take: Option<HashRange>,

    /// Make several datasets of one reading, by content: `train:0.9,test:0.1` makes NAME-train and NAME-test
    #[arg(long, value_name = "NAME:FRACTION,...", conflicts_with = "take", help_heading = "What is read")]
    split: Option<Split>,

    /// What to do about files, members and lines that cannot be read: stop, or leave them out and list them
    #[arg(long, value_enum, default_value = "fail", help_heading = "What is read")]
    on_error: OnErrorArg,
}

/// What does not change the version.
#[derive(Args)]
pub(crate) struct Effort {
    /// Threads to work with; the result does not depend on it [default: one per processor]
    #[arg(long, help_heading = "Effort")]
    threads: Option<usize>,

    /// Memory to work with, shards in the making included; the result does not depend on it
    #[arg(long, value_name = "SIZE", default_value = "2GiB", help_heading = "Effort")]
    memory: ByteSize,

    /// Where to keep what does not fit memory, and what is done so far: run again after an interruption, the ingest goes
    /// on [default: a directory in $TMPDIR]
    #[arg(long, value_name = "DIR", help_heading = "Effort")]
    work: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum MixArg {
    Random,
    Stratified,
    Sequential,
}

#[derive(Clone, Copy, ValueEnum)]
enum OnErrorArg {
    Fail,
    Skip,
}

#[derive(Clone, Copy)]
enum ShardSize {
    Auto,
    Bytes(ByteSize),
}

impl FromStr for ShardSize {
    type Err = <ByteSize as FromStr>::Err;

    fn from_str(text: &str) -> Result<ShardSize, Self::Err> {
        if text == "auto" { Ok(ShardSize::Auto) } else { text.parse().map(ShardSize::Bytes) }
    }
}

impl Settings {
    pub(crate) fn config(&self) -> IngestConfig {
        IngestConfig {
            mix: match self.mix {
                MixArg::Random => Mix::Random,
                MixArg::Stratified => Mix::Stratified(self.label.clone()),
                MixArg::Sequential => Mix::Sequential,
            },
            seed: self.seed,
            shard_size: match self.shard_size {
                Some(ShardSize::Bytes(size)) => Some(size),
                Some(ShardSize::Auto) | None => None,
            },
            compression: self.compression,
            format: self.format,
            under: self.under.clone(),
            columns: self.columns.clone(),
            take: self.take,
            on_error: match self.on_error {
                OnErrorArg::Fail => OnError::Fail,
                OnErrorArg::Skip => OnError::Skip,
            },
            ..IngestConfig::default()
        }
    }
}

impl Effort {
    pub(crate) fn resources(self) -> Resources {
        let ours = || env::temp_dir().join(format!("shardd-ingest-{}", rustix::process::getuid().as_raw()));
        Resources {
            threads: self.threads.unwrap_or_else(processors).max(1),
            memory: self.memory,
            work: Some(self.work.unwrap_or_else(ours)),
        }
    }
}

impl Ingest {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let started = Instant::now();
        let Ingest { paths, name, message, settings, effort } = self;
        let (config, resources) = (settings.config(), effort.resources());
        let targets = match &settings.split {
            None => vec![(name, None)],
            Some(split) => {
                let parts = split.parts(&name, settings.seed).map_err(Failure::usage)?;
                parts.into_iter().map(|(name, range)| (name, Some(range))).collect()
            }
        };
        let source = Source::new(inputs::open(&paths, config.under.as_deref())?, &config)?;
        let catalog = connect.catalog_to_fill()?;
        let progress = IngestProgress::new(json, source.sample_count().filter(|_| config.take.is_none()));
        let size = |data: u64| match settings.shard_size {
            Some(ShardSize::Auto) => {
                let choice = auto::choose(&*catalog, data, &resources)?;
                choice.reasons.iter().for_each(|reason| progress.note(reason));
                progress.note(&format!("shards of {}", choice.size));
                Ok(Some(choice.size))
            }
            Some(ShardSize::Bytes(size)) => Ok(Some(size)),
            None => Ok(None),
        };
        let how = How { config: &config, resources: &resources, size: &size, message };
        let done = into_datasets(&*catalog, &targets, source, how, &progress)?;
        progress.finish();
        for ((name, _), done) in targets.iter().zip(&done) {
            report(name, done, started.elapsed(), json);
        }
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

/// Ingests all of the source into one dataset; see [`into_datasets`].
pub(crate) fn into_dataset(
    catalog: &dyn Catalog,
    name: &DatasetName,
    source: Source,
    config: &IngestConfig,
    resources: &Resources,
    progress: &IngestProgress,
    message: Message,
) -> Result<Ingested, Failure> {
    let targets = [(name.clone(), None)];
    let how = How { config, resources, size: &|_| Ok(config.shard_size), message };
    let mut done = into_datasets(catalog, &targets, source, how, progress)?;
    Ok(done.pop().expect("one for the only target"))
}

/// How to ingest, and what to say of it.
struct How<'a> {
    config: &'a IngestConfig,
    resources: &'a Resources,
    /// Chooses the size of shards for so many bytes.
    size: &'a dyn Fn(u64) -> Result<Option<ByteSize>, Failure>,
    message: Message,
}

/// Ingests the source into datasets, each with its range of rows, and when every shard is stored, gives the new versions
/// their names: unless somebody else changed what a name stands for in the meantime.
fn into_datasets(
    catalog: &dyn Catalog,
    targets: &[(DatasetName, Option<HashRange>)],
    source: Source,
    how: How<'_>,
    progress: &IngestProgress,
) -> Result<Vec<Ingested>, Failure> {
    let How { config, resources, size, message } = how;
    let datasets = catalog.datasets()?;
    let before =
        |name: &DatasetName| datasets.iter().find(|info| info.name == *name).map(|info| info.version);
    let ranges: Vec<HashRange> = targets.iter().filter_map(|(_, range)| *range).collect();
    let read = Reading::read(source, config, &ranges, resources, progress)?;
    let size = size(read.row_bytes())?;
    let written = read.write(size, &Shelf(catalog), progress)?;
    let note = CommitNote { operation: Operation::INGEST, message };
    let mut done = Vec::new();
    for ((name, _), manifest) in targets.iter().zip(written.manifests()) {
        let (version, before) = (manifest.id(), before(name));
        if before != Some(version) {
            catalog.commit(name, before, manifest, &note)?;
        }
        done.push(Ingested { manifest: manifest.clone(), version, before });
    }
    written.finish();
    Ok(done)
}

/// One thread per processor.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
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
            "skipped": manifest.skipped_count,
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
    if manifest.skipped_count > 0 {
        eprintln!(
            "note: {} could not be read and were left out; `shardctl info {name}` lists them",
            count(manifest.skipped_count)
        );
    }
}

/// A kind of files, by the name it has in configurations.
fn parse_kind(text: &str) -> Result<Kind, String> {
    serde_json::from_value(json!(text)).map_err(|_| {
        let all: Vec<String> =
            Kind::ALL.iter().map(|kind| json!(kind).as_str().unwrap_or_default().to_owned()).collect();
        format!("there are {}", all.join(", "))
    })
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
