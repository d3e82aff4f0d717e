//! `shardctl ingest` of fixed-size samples from Parquet, beside a plain loop that reads, hashes and writes
//! the same bytes; with one thread and with two; and its peak memory. Prints ratios, as all benches do:
//! figures of one run belong together.
//!
//! `cargo bench -p shardd-benches --bench ingest -- --help` lists what can be set. Takes three times the space of the
//! largest input in the directory for temporary files (`TMPDIR`).

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use arrow::array::{ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, Int64Array, RecordBatch, UInt8Array};
use arrow::datatypes::{DataType, Field, Schema};
use clap::Parser;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use shardd_benches::child::{self, Usage};
use shardd_benches::figures;
use tempfile::TempDir;

/// Rows are written to Parquet in row groups of about this size.
const ROW_GROUP: usize = 64 << 20;
/// The bytes that the plain loop reads at a time.
const PART: usize = 1 << 20;

/// Ingest of fixed-size samples beside a plain loop of read, BLAKE3 and write
#[derive(Parser)]
struct Options {
    /// The binary to measure [default: the one beside this bench]
    #[arg(long)]
    shardctl: Option<PathBuf>,

    /// Bytes of samples in each input
    #[arg(long, default_value_t = 1_000_000_000)]
    bytes: usize,

    /// How often each is measured, in turns; the best of each is printed
    #[arg(long, default_value_t = 5)]
    rounds: usize,

    /// Only inputs whose name contains this
    #[arg(long, default_value = "")]
    only: String,

    /// Handed to `shardctl ingest`, such as 512MiB
    #[arg(long)]
    memory: Option<String>,

    /// Measure memory instead, with one input of this number of bytes
    #[arg(long)]
    peak: Option<usize>,

    /// Only the plain loop, from a file to another: how this bench runs it
    #[arg(long, hide = true, num_args = 2)]
    plain: Vec<PathBuf>,

    /// What `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

/// A Parquet file of samples: a fixed number of bytes, and a label.
struct Input {
    name: &'static str,
    sample_bytes: usize,
    list: bool,
    compression: Compression,
}

const INPUTS: [Input; 6] = [
    Input { name: "3 KB binary", sample_bytes: 3072, list: false, compression: Compression::UNCOMPRESSED },
    Input { name: "3 KB binary, snappy", sample_bytes: 3072, list: false, compression: Compression::SNAPPY },
    Input {
        name: "147 KB binary",
        sample_bytes: 150_528,
        list: false,
        compression: Compression::UNCOMPRESSED,
    },
    Input {
        name: "147 KB binary, snappy",
        sample_bytes: 150_528,
        list: false,
        compression: Compression::SNAPPY,
    },
    Input { name: "3 KB list of u8", sample_bytes: 3072, list: true, compression: Compression::UNCOMPRESSED },
    Input {
        name: "3 KB list of u8, snappy",
        sample_bytes: 3072,
        list: true,
        compression: Compression::SNAPPY,
    },
];

fn main() -> Result<()> {
    let options = Options::parse();
    if let [from, to] = options.plain.as_slice() {
        return plain(from, to);
    }
    let shardctl = match &options.shardctl {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("../shardctl"),
    };
    ensure!(
        shardctl.is_file(),
        "no {}: build it with `cargo build --release -p shardctl`",
        shardctl.display()
    );
    let bench = Bench { shardctl, memory: options.memory.clone(), home: tempfile::tempdir()? };
    match options.peak {
        Some(bytes) => bench.peak(bytes),
        None => bench.ratios(&options),
    }
}

struct Bench {
    shardctl: PathBuf,
    memory: Option<String>,
    home: TempDir,
}

impl Bench {
    fn ratios(&self, options: &Options) -> Result<()> {
        println!(
            "{:<24} {:>8} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9} {:>9} {:>8}",
            format!("best of {}, seconds", options.rounds),
            "plain",
            "1 thread",
            "2 threads",
            "of plain",
            "speedup",
            "CPU plain",
            "CPU 2 thr",
            "of plain",
            "peak MB"
        );
        for input in INPUTS.iter().filter(|input| input.name.contains(&options.only)) {
            let path = self.home.path().join("input.parquet");
            let rows = write(input, options.bytes, &path)?;
            let (mut plain, mut one, mut two) = (vec![], vec![], vec![]);
            for _ in 0..options.rounds {
                plain.push(self.plain(&path)?);
                one.push(self.ingest(&path, 1, rows)?);
                two.push(self.ingest(&path, 2, rows)?);
                if let (Some(plain), Some(two)) = (plain.last(), two.last()) {
                    figures::report(&format!("ingest/{}", input.name), two.seconds, plain.seconds);
                }
            }
            let peak = two.iter().map(|used| used.peak_bytes).max().unwrap_or(0);
            let cpu = |runs: &[Usage]| best(runs.iter().map(|used| used.cpu_seconds));
            let (plain_cpu, two_cpu) = (cpu(&plain), cpu(&two));
            let wall = |runs: &[Usage]| best(runs.iter().map(|used| used.seconds));
            let (plain, one, two) = (wall(&plain), wall(&one), wall(&two));
            println!(
                "{:<24} {plain:>8.2} {one:>9.2} {two:>9.2} {:>8.2}x {:>7.2}x {plain_cpu:>9.2} {two_cpu:>9.2} {:>8.2}x {:>8}",
                input.name,
                two / plain,
                one / two,
                two_cpu / plain_cpu,
                peak / 1_000_000
            );
        }
        Ok(())
    }

    fn peak(&self, bytes: usize) -> Result<()> {
        let path = self.home.path().join("input.parquet");
        let rows = write(&INPUTS[0], bytes, &path)?;
        let used = self.ingest(&path, 2, rows)?;
        println!(
            "{} of {:.1} GB, 2 threads, {}: {:.2} s, {:.2} s of processors, at most {} MB resident, {} MB of it not of files",
            INPUTS[0].name,
            bytes as f64 / 1e9,
            self.memory.as_ref().map_or("no --memory".to_owned(), |memory| format!("--memory {memory}")),
            used.seconds,
            used.cpu_seconds,
            used.peak_bytes / 1_000_000,
            used.peak_anonymous_bytes / 1_000_000,
        );
        Ok(())
    }

    fn plain(&self, from: &Path) -> Result<Usage> {
        let to = self.home.path().join("copy");
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--plain").args([from, &to]);
        rustix::fs::sync(); // what others have left to write is not this one's business
        let (used, _) = child::run(command)?;
        fs::remove_file(to)?;
        Ok(used)
    }

    fn ingest(&self, from: &Path, threads: usize, rows: usize) -> Result<Usage> {
        let (store, work) = (self.home.path().join("store"), self.home.path().join("work"));
        fs::create_dir(&work)?;
        let mut command = Command::new(&self.shardctl);
        command.args(["--json", "--store"]).arg(&store).arg("ingest").arg(from);
        command.args(["--name", "samples", "--threads", &threads.to_string()]);
        if let Some(memory) = &self.memory {
            command.args(["--memory", memory]);
        }
        command.env("TMPDIR", &work);
        rustix::fs::sync();
        let (used, output) = child::run(command)?;
        let last = output.lines().last().context("shardctl reports its work")?;
        let last: serde_json::Value = serde_json::from_str(last).context("shardctl prints JSON")?;
        ensure!(last["samples"] == rows, "shardctl wrote {} of {rows} samples", last["samples"]);
        fs::remove_dir_all(store)?;
        fs::remove_dir_all(work)?; // nothing to continue from: every run does all of it
        Ok(used)
    }
}

/// The yardstick of ingest: reads, hashes, writes, and makes it last, as ingest does.
fn plain(from: &Path, to: &Path) -> Result<()> {
    let (mut from, mut to) = (File::open(from)?, File::create(to)?);
    let (mut hasher, mut part) = (blake3::Hasher::new(), vec![0; PART]);
    loop {
        let read = from.read(&mut part)?;
        if read == 0 {
            break;
        }
        hasher.update(&part[..read]);
        to.write_all(&part[..read])?;
    }
    std::hint::black_box(hasher.finalize());
    Ok(to.sync_all()?)
}

/// Writes the file and reads it once, so that it is in memory; gives its rows.
fn write(input: &Input, bytes: usize, path: &Path) -> Result<usize> {
    let rows = bytes / input.sample_bytes;
    let width = i32::try_from(input.sample_bytes)?;
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let sample = match input.list {
        true => DataType::FixedSizeList(Arc::clone(&item), width),
        false => DataType::FixedSizeBinary(width),
    };
    let fields = vec![Field::new("sample", sample, false), Field::new("label", DataType::Int64, false)];
    let schema = Arc::new(Schema::new(fields));
    let group_rows = (ROW_GROUP / input.sample_bytes).max(1);
    let properties = WriterProperties::builder()
        .set_compression(input.compression)
        .set_max_row_group_row_count(Some(group_rows))
        .build();
    let mut writer = ArrowWriter::try_new(File::create(path)?, Arc::clone(&schema), Some(properties))?;
    let mut noise = blake3::Hasher::new().finalize_xof();
    for start in (0..rows).step_by(group_rows) {
        let count = group_rows.min(rows - start);
        let mut bytes = vec![0; count * input.sample_bytes];
        noise.fill(&mut bytes);
        let samples: ArrayRef = match input.list {
            true => {
                let values = Arc::new(UInt8Array::from(bytes));
                Arc::new(FixedSizeListArray::try_new(Arc::clone(&item), width, values, None)?)
            }
            false => Arc::new(FixedSizeBinaryArray::try_new(width, bytes.into(), None)?),
        };
        let labels: ArrayRef =
            Arc::new(Int64Array::from_iter_values((start..start + count).map(|row| row as i64 % 1000)));
        writer.write(&RecordBatch::try_new(Arc::clone(&schema), vec![samples, labels])?)?;
    }
    writer.close()?;
    std::io::copy(&mut File::open(path)?, &mut std::io::sink())?;
    Ok(rows)
}

/// Other work of the machine makes some runs slower, and none faster.
fn best(seconds: impl Iterator<Item = f64>) -> f64 {
    seconds.fold(f64::INFINITY, f64::min)
}
