//! How fast `shardctl ingest` reads each kind of table and text, with one thread and with two.
//!
//! `cargo bench -p shardd-benches --bench kinds` takes what lies in target/release/shardctl.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use clap::Parser;
use parquet::arrow::ArrowWriter;
use serde_json::Value;
use shardd_benches::child::{self, Usage};

/// Of a table, or lines of text.
const ROWS: u32 = 1_000_000;
/// Rows of a record batch.
const BATCH: usize = 1 << 16;

/// Writes a file to be read.
type Writer = fn(&mut File) -> Result<()>;

/// Ingest of each kind of table and text
#[derive(Parser)]
struct Options {
    /// The binary to measure [default: the one beside this bench]
    #[arg(long)]
    shardctl: Option<PathBuf>,

    /// Only files whose name contains this
    #[arg(long, default_value = "")]
    only: String,

    /// What `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let shardctl = match &options.shardctl {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("../shardctl"),
    };
    let home = tempfile::tempdir()?;
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/../shardfmt/testdata/sources/tokenizer.json");
    let packed = ["--sequence-length", "1024"];
    let tokens = ["--sequence-length", "1024", "--tokenizer", tokenizer];
    let files: [(&str, Writer, &[&str]); 8] = [
        ("t.parquet", parquet, &[]),
        ("t.arrow", ipc, &[]),
        ("t.zstd.arrow", zstd_ipc, &[]),
        ("t.csv", csv, &[]),
        ("t.jsonl", json_lines, &[]),
        ("t.npy", npy, &[]),
        ("t.svm", libsvm, &[]),
        ("t.txt", text, &packed),
    ];
    let files = files.into_iter().chain([("t-tokens.txt", text as Writer, &tokens[..])]);
    println!(
        "{:<14} {:>8} {:>10} {:>9} {:>9} {:>8}",
        "seconds", "MB", "samples", "1 thread", "2 threads", "speedup"
    );
    for (name, write, more) in files.filter(|(name, ..)| name.contains(&options.only)) {
        let path = home.path().join(name);
        write(&mut File::create(&path)?)?;
        let (one, first) = ingest(&shardctl, home.path(), &path, more, "1")?;
        let (two, second) = ingest(&shardctl, home.path(), &path, more, "2")?;
        ensure!(first["version"] == second["version"], "{name}: the version depends on threads");
        println!(
            "{name:<14} {:>8.1} {:>10} {:>9.2} {:>9.2} {:>7.2}x",
            fs::metadata(&path)?.len() as f64 / 1e6,
            first["samples"],
            one.seconds,
            two.seconds,
            one.seconds / two.seconds
        );
        fs::remove_file(path)?;
    }
    Ok(())
}

fn ingest(shardctl: &Path, home: &Path, from: &Path, more: &[&str], threads: &str) -> Result<(Usage, Value)> {
    let store = home.join("store");
    let mut command = Command::new(shardctl);
    command.args(["--json", "--store"]).arg(&store).arg("ingest").arg(from).args(more);
    command.args(["--name", "samples", "--threads", threads]).env("TMPDIR", home);
    rustix::fs::sync(); // what others have left to write is not this one's business
    let (used, output) = child::run(command)?;
    fs::remove_dir_all(store)?;
    let last = output.lines().last().context("shardctl reports its work")?;
    Ok((used, serde_json::from_str(last).context("shardctl prints JSON")?))
}

fn table() -> Result<RecordBatch> {
    let text = |row: u32| format!("text {}", row.wrapping_mul(2_654_435_761));
    let columns: [(&str, ArrayRef); 3] = [
        ("label", Arc::new(Int64Array::from_iter_values((0..ROWS).map(|row| i64::from(row % 10))))),
        ("value", Arc::new(Float32Array::from_iter_values((0..ROWS).map(|row| row as f32 / 8.0)))),
        ("text", Arc::new(StringArray::from_iter_values((0..ROWS).map(text)))),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}

fn parquet(to: &mut File) -> Result<()> {
    let table = table()?;
    let mut writer = ArrowWriter::try_new(to, table.schema(), None)?;
    writer.write(&table)?;
    writer.close()?;
    Ok(())
}

fn ipc(to: &mut File) -> Result<()> {
    arrow_file(to, None)
}

fn zstd_ipc(to: &mut File) -> Result<()> {
    arrow_file(to, Some(CompressionType::ZSTD))
}

fn arrow_file(to: &mut File, compression: Option<CompressionType>) -> Result<()> {
    let table = table()?;
    let options = IpcWriteOptions::default().try_with_compression(compression)?;
    let mut writer = FileWriter::try_new_with_options(to, &table.schema(), options)?;
    for from in (0..table.num_rows()).step_by(BATCH) {
        writer.write(&table.slice(from, (table.num_rows() - from).min(BATCH)))?;
    }
    Ok(writer.finish()?)
}

fn csv(to: &mut File) -> Result<()> {
    let mut writer = arrow::csv::WriterBuilder::new().with_header(true).build(to);
    Ok(writer.write(&table()?)?)
}

fn json_lines(to: &mut File) -> Result<()> {
    let mut writer = arrow::json::LineDelimitedWriter::new(to);
    writer.write(&table()?)?;
    Ok(writer.finish()?)
}

fn npy(to: &mut File) -> Result<()> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({ROWS}, 16), }}\n");
    to.write_all(b"\x93NUMPY\x01\0")?;
    to.write_all(&u16::try_from(header.len())?.to_le_bytes())?;
    to.write_all(header.as_bytes())?;
    let values: Vec<u8> = (0..ROWS * 16).flat_map(|value| (value as f32).to_le_bytes()).collect();
    Ok(to.write_all(&values)?)
}

fn libsvm(to: &mut File) -> Result<()> {
    let line = |row| format!("{} 1:{row} 7:0.5 {}:2\n", row % 10, 8 + row % 99);
    Ok(to.write_all((0..ROWS).map(line).collect::<String>().as_bytes())?)
}

fn text(to: &mut File) -> Result<()> {
    let line = "the quick brown fox jumps over the lazy dog\n";
    Ok(to.write_all(line.repeat(ROWS as usize).as_bytes())?)
}
