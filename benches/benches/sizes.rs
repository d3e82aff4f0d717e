//! What the size of shards does to those who read them: samples a second, the first batch, memory. Each size is ingested into
//! a store of its own and read by `shardctl read` for some epochs; the last line is the size that `--shard-size auto`
//! chooses.
//!
//! `cargo bench -p shardd-benches --bench sizes -- INPUT` takes anything that `shardctl ingest` does.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::Value;
use shardd_benches::child::{self, Usage};

/// The size of shards, and how fast they are read
#[derive(Parser)]
struct Options {
    /// The input
    input: PathBuf,

    /// Only this folder of it
    #[arg(long)]
    under: Option<String>,

    /// Sizes to try besides `auto`
    #[arg(long, value_delimiter = ',', default_value = "256KiB,1MiB,4MiB,16MiB,64MiB")]
    sizes: Vec<String>,

    /// How many epochs are read
    #[arg(long, default_value_t = 3)]
    epochs: u32,

    /// How often each is measured, in turns; medians are printed
    #[arg(long, default_value_t = 3)]
    rounds: usize,

    /// The binary to measure [default: the one beside this bench]
    #[arg(long)]
    shardctl: Option<PathBuf>,

    /// What `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

/// The figures of one size.
#[derive(Default)]
struct Seen {
    shards: u64,
    ingest: Vec<f64>,
    first_batch: Vec<f64>,
    rate: Vec<f64>,
    peak: Vec<f64>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let shardctl = match &options.shardctl {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("../shardctl"),
    };
    let sizes: Vec<&str> = options.sizes.iter().map(String::as_str).chain(["auto"]).collect();
    let mut seen: Vec<Seen> = Vec::new();
    seen.resize_with(sizes.len(), Seen::default);
    for _ in 0..options.rounds {
        for (size, seen) in sizes.iter().zip(&mut seen) {
            measure(&shardctl, &options, size, seen)?;
        }
    }
    println!(
        "{:<10} {:>8} {:>10} {:>14} {:>14} {:>10} {:>9}",
        "size", "shards", "ingest s", "first batch s", "samples/s", "of best", "peak MB"
    );
    let rates: Vec<f64> = seen.iter().map(|seen| median(&seen.rate)).collect();
    let best = rates.iter().copied().fold(0.0, f64::max);
    for ((size, seen), rate) in sizes.iter().zip(&seen).zip(rates) {
        println!(
            "{size:<10} {:>8} {:>10.2} {:>14.3} {rate:>14.0} {:>10.2} {:>9.0}",
            seen.shards,
            median(&seen.ingest),
            median(&seen.first_batch),
            rate / best,
            median(&seen.peak) / 1e6
        );
    }
    Ok(())
}

/// Ingests with shards of this size, and reads all of it.
fn measure(shardctl: &Path, options: &Options, size: &str, seen: &mut Seen) -> Result<()> {
    let home = tempfile::tempdir()?;
    let command = |arguments: &[&str]| {
        let mut command = Command::new(shardctl);
        command.arg("--store").arg(home.path().join("store")).arg("--json").args(arguments);
        command.env("TMPDIR", home.path());
        command
    };
    let mut ingest = command(&["ingest", "--name", "samples", "--shard-size", size]);
    ingest.arg(&options.input).args(options.under.iter().flat_map(|under| ["--under", under]));
    rustix::fs::sync(); // what others have left to write is not this one's business
    let (used, output) = child::run(ingest)?;
    let ingested = last(&output)?;
    seen.ingest.push(used.seconds);
    seen.shards = ingested["shards"].as_u64().context("shardctl says how many shards there are")?;
    child::run(command(&["partition", "samples", "--q", "0.1"]))?;

    rustix::fs::sync();
    let (mut first, mut end) = (None, String::new());
    let epochs = options.epochs.to_string();
    let used: Usage = child::follow(command(&["read", "--epochs", &epochs]), |at, line| {
        first.get_or_insert(at);
        line.clone_into(&mut end);
    })?;
    let read: Value = last(&end)?;
    ensure!(
        read["samples"].as_u64()
            == ingested["samples"].as_u64().map(|samples| samples * u64::from(options.epochs)),
        "not all samples were read: {read}"
    );
    seen.first_batch.push(first.context("a step was printed")?.as_secs_f64());
    seen.rate.push(read["samples_per_s"].as_f64().context("a rate was printed")?);
    seen.peak.push(used.peak_bytes as f64);
    Ok(())
}

fn last(output: &str) -> Result<Value> {
    let line = output.lines().last().context("shardctl reports its work")?;
    serde_json::from_str(line).context("shardctl prints JSON")
}

fn median(numbers: &[f64]) -> f64 {
    let mut numbers = numbers.to_vec();
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
