//! The cost of statistics for a written shard, and of a version of a million shards: opening its manifest,
//! looking up entries, and reading it whole. `cargo bench -p shardd-benches --bench manifest` prints one
//! table. Needs 2 GiB of memory and 0.4 GB of temporary disk.

use std::fs::File;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use shardd_benches::versions::images;
use shardd_benches::{picks, seconds};
use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
use shardfmt::manifest::{LocalManifest, tree_of};
use shardfmt::statistics::Gatherer;
use shardfmt::{Manifest, ManifestFile, RowCodec, ShardWriter, VersionId};

const SHARDS: u64 = 1_000_000;

fn main() {
    println!("{:<54} {:>10} {:>14}", "a shard of 8 MiB", "ms", "of writing it");
    statistics("numbers, 27 B a row", &numbers(8 << 20));
    statistics("text of 0 to 199 B, and a number", &texts(8 << 20));
    println!();
    let manifest = images(SHARDS);
    let what = format!("{SHARDS} shards of images with 10 labels");
    println!("{what:<54} {:>10} {:>14} {:>12}", "ms", "on processor", "bytes read");
    let (bytes, took) = timed(|| manifest.encode());
    row("write the manifest", took, None);
    let (tree, took) = timed(|| tree_of(&bytes).expect("it is long"));
    row("make its tree", took, None);
    let id = VersionId::of(&bytes);
    println!("{:<54} {:>10} {:>14}", "its bytes, and those of its tree", bytes.len(), tree.len());

    let dir = tempfile::tempdir().expect("a temporary directory");
    let local = LocalManifest { file: dir.path().join("m.arrow"), tree: dir.path().join("m.tree") };
    std::fs::write(&local.file, &bytes).expect("disk space");
    std::fs::write(&local.tree, &tree).expect("disk space");
    drop(bytes);

    for (state, cold) in [("cold", true), ("warm", false)] {
        if cold {
            forget(&local);
        }
        let (file, took) = timed(|| ManifestFile::open(id, local.clone()).expect("our manifest"));
        row(&format!("open it, {state}: schema, configuration, totals"), took, Some(file.bytes_read()));
        assert_eq!(file.totals().shards, SHARDS);
        let ask = |what: &str, ask: &dyn Fn()| {
            let before = file.bytes_read();
            let ((), took) = timed(ask);
            row(&format!("… {what}"), took, Some(file.bytes_read() - before));
        };
        ask("labels of all samples", &|| drop(black_box(file.labels().expect("labels"))));
        ask("a shard", &|| drop(black_box(file.entry(654_321).expect("a shard"))));
        ask("the shard that a sample lies in", &|| {
            black_box(file.find_sample(123_456_789).expect("a sample"));
        });
        ask("a plan of its 512 million samples", &|| drop(black_box(plan(&file))));
    }

    let (whole, took) = timed(|| std::fs::read(&local.file).expect("it is there"));
    row("read it whole", took, Some(whole.len() as u64));
    let (found, took) = timed(|| VersionId::of(&whole));
    row("… verify that", took, None);
    let (decoded, took) = timed(|| Manifest::decode(&whole).expect("our manifest"));
    row("… and decode it", took, None);
    assert!(found == id && decoded == manifest);
}

/// Writes a shard of the rows, then gathers their statistics alone.
fn statistics(what: &str, rows: &RecordBatch) {
    let codec = RowCodec::new(rows.schema()).expect("plain columns");
    let encoder = codec.encoder(rows).expect("its own schema");
    let mut canonical = vec![];
    let lengths: Vec<usize> = (0..rows.num_rows())
        .map(|row| {
            let start = canonical.len();
            encoder.encode(row, &mut canonical).expect("small rows");
            canonical.len() - start
        })
        .collect();
    let written = seconds(|| {
        let mut writer = ShardWriter::new(rows.schema()).expect("plain columns");
        let mut rest = &canonical[..];
        for length in &lengths {
            let (row, others) = rest.split_at(*length);
            writer.push_row(row).expect("our rows");
            rest = others;
        }
        writer.finish().expect("there are rows")
    });
    println!("{:<54} {:>10.2}", format!("write {what}"), written * 1e3);
    let parts: Vec<RecordBatch> = {
        let rows_per_part = rows.num_rows().div_ceil(canonical.len().div_ceil(1 << 20));
        let starts = (0..rows.num_rows()).step_by(rows_per_part);
        starts.map(|start| rows.slice(start, rows_per_part.min(rows.num_rows() - start))).collect()
    };
    let gathered = seconds(|| {
        let mut gatherer = Gatherer::new(rows.schema_ref());
        let mut first = 0;
        for part in &parts {
            gatherer.add(part, lengths[first..first + part.num_rows()].iter().copied());
            first += part.num_rows();
        }
        gatherer.finish()
    });
    println!("{:<54} {:>10.2} {:>14.3}", "… of this, statistics", gathered * 1e3, gathered / written);
}

/// Rows of two whole numbers and a real one.
fn numbers(bytes: usize) -> RecordBatch {
    let picked = picks(bytes / 27, 1 << 40);
    let column = |shift: u32| Int64Array::from_iter_values(picked.iter().map(|n| (*n >> shift) as i64));
    let real = Float64Array::from_iter_values(picked.iter().map(|n| *n as f64 / 1e6));
    let columns: [(&str, ArrayRef); 3] =
        [("a", Arc::new(column(0))), ("b", Arc::new(column(20))), ("c", Arc::new(real))];
    RecordBatch::try_from_iter(columns).expect("equal lengths")
}

fn texts(bytes: usize) -> RecordBatch {
    let lengths = picks(bytes / 114, 200);
    let texts = StringArray::from_iter_values(lengths.iter().map(|length| "x".repeat(*length)));
    let number = Int64Array::from_iter_values(lengths.iter().map(|length| *length as i64));
    let columns: [(&str, ArrayRef); 2] = [("text", Arc::new(texts)), ("number", Arc::new(number))];
    RecordBatch::try_from_iter(columns).expect("equal lengths")
}

fn plan(file: &ManifestFile) -> Plan {
    let shape = Shape { shard_rows: file.shard_rows().expect("rows"), row_bytes: file.totals().row_bytes };
    let document =
        PlanDocument::with_defaults(file.id(), &shape, PlanOptions::default()).expect("defaults fit");
    Plan::new(document, &shape.shard_rows).expect("the document is of this shape")
}

/// The time of something, in milliseconds.
#[derive(Clone, Copy)]
struct Took {
    all: f64,
    /// Of this thread's processor: what others do to a shared machine is not in it.
    processor: f64,
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Took) {
    let (began, before) = (Instant::now(), processor_ms());
    let made = black_box(work());
    let processor = processor_ms() - before;
    (made, Took { all: began.elapsed().as_secs_f64() * 1e3, processor })
}

/// How long this thread has run.
fn processor_ms() -> f64 {
    let known = std::fs::read_to_string("/proc/thread-self/schedstat").expect("this is Linux");
    known.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("nanoseconds come first") / 1e6
}

fn row(what: &str, took: Took, bytes: Option<u64>) {
    let bytes = bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
    println!("{what:<54} {:>10.2} {:>14.2} {bytes:>12}", took.all, took.processor);
}

/// Has the system drop its cached pages of the files.
fn forget(local: &LocalManifest) {
    for path in [&local.file, &local.tree] {
        let file = File::open(path).expect("it is there");
        file.sync_all().expect("written out");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice is taken");
    }
}
