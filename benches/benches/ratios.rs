//! The parts of moving a sample, each beside a memcpy of the same run: hashing, writing and gathering rows, verifying grains,
//! and asking the plan. `cargo bench -p shardd-benches` prints one table.

use std::hint::black_box;
use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Int64Array, RecordBatch, UInt8Array};
use arrow::datatypes::{DataType, Field, Schema};
use shardd_benches::{figures, noise, picks, seconds};
use shardd_plan::{Epoch, Permutation, Plan, PlanDocument, PlanOptions, Shape, SlotTable};
use shardfmt::grain::{self, Grain};
use shardfmt::{GrainKey, GrainTree, RowCodec, RowDigest, ShardId, VersionId};

/// More than any cache of the processor holds.
const LARGE: usize = 256 << 20;
/// The bytes copied between two looks at the clock.
const PART: usize = 4 << 20;
/// Rows of a batch.
const BATCH: usize = 256;
/// How many different batches are gathered, so that their rows are not in the processor's caches.
const BATCHES: usize = 256;

fn main() {
    println!(
        "{:<44} {:>12} {:>12} {:>10}",
        "one thread, best of 100 rounds", "per call", "GB/s", "of memcpy"
    );
    let mut table = Table { memcpy: 0.0 };
    memcpy(&mut table);
    hashing(&mut table);
    for values in [784, 3072] {
        rows(&mut table, values);
    }
    plan();
}

/// Prints rates, and what part they are of the first.
struct Table {
    memcpy: f64,
}

impl Table {
    fn rate(&mut self, what: &str, bytes: usize, seconds: f64) {
        let rate = bytes as f64 / seconds / 1e9;
        if self.memcpy == 0.0 {
            self.memcpy = rate;
        } else {
            figures::report(&format!("ratios/{what}"), rate, self.memcpy);
        }
        println!("{what:<44} {:>12} {rate:>12.2} {:>10.2}", readable(seconds), rate / self.memcpy);
    }
}

fn readable(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.1} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s => format!("{:.1} ms", s * 1e3),
    }
}

fn memcpy(table: &mut Table) {
    let (from, mut to) = (noise(LARGE), vec![1_u8; LARGE]);
    let mut parts = (0..LARGE).step_by(PART).cycle();
    let time = seconds(|| {
        let part = parts.next().expect("endless");
        to[part..part + PART].copy_from_slice(&from[part..part + PART]);
        to[part]
    });
    table.rate("memcpy, memory to memory", PART, time);
    let (mut batches, batch) =
        ((0..LARGE - BATCH * 784).step_by(BATCH * 784).cycle(), &mut to[..BATCH * 784]);
    let time = seconds(|| {
        let at = batches.next().expect("endless");
        batch.copy_from_slice(&from[at..at + batch.len()]);
        batch[0]
    });
    table.rate("memcpy, memory to a batch of 196 KiB", BATCH * 784, time);
}

fn hashing(table: &mut Table) {
    let bytes = noise(1 << 20);
    for (name, length) in [("784 B", 784), ("3 KiB", 3 << 10), ("16 KiB", 16 << 10), ("1 MiB", 1 << 20)] {
        let time = seconds(|| blake3::hash(black_box(&bytes[..length])));
        table.rate(&format!("BLAKE3 of {name}"), length, time);
    }
}

/// A sample with `values` bytes and a label, as in MNIST and CIFAR: written, hashed, verified and gathered.
fn rows(table: &mut Table, values: usize) {
    let count = LARGE / values;
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let fields = [
        Field::new("image", DataType::FixedSizeList(Arc::clone(&item), values as i32), false),
        Field::new("label", DataType::Int64, false),
    ];
    let pixels = Arc::new(UInt8Array::from(noise(count * values)));
    let images: ArrayRef = Arc::new(FixedSizeListArray::new(item, values as i32, pixels, None));
    let labels: ArrayRef = Arc::new(Int64Array::from_iter_values(0..count as i64));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let record_batch =
        RecordBatch::try_new(Arc::clone(&schema), vec![images, labels]).expect("equal lengths");

    let codec = RowCodec::new(schema).expect("rows can hold bytes and integers");
    let encoder = codec.encoder(&record_batch).expect("its own schema");
    let mut canonical = vec![];
    for row in 0..count {
        encoder.encode(row, &mut canonical).expect("small rows");
    }
    let row_bytes = canonical.len() / count;
    let row = |number: usize| &canonical[number * row_bytes..(number + 1) * row_bytes];
    let chosen = picks(BATCH * BATCHES, count);
    let mut batches = chosen.chunks(BATCH).cycle();

    let mut out = vec![];
    let time = seconds(|| {
        out.clear();
        for number in batches.next().expect("endless") {
            encoder.encode(*number, &mut out).expect("small rows");
        }
    });
    table.rate(&format!("write 256 random rows of {values} B"), BATCH * row_bytes, time);

    let time =
        seconds(|| codec.decode(batches.next().expect("endless").iter().map(|n| row(*n))).expect("our rows"));
    table.rate(&format!("gather 256 random rows of {values} B"), BATCH * row_bytes, time);

    let time = seconds(|| RowDigest::of(black_box(row(0))));
    table.rate(&format!("digest of a row of {values} B"), row_bytes, time);

    let (shard_rows, grain_rows) = (1024_u32, (16_384 / row_bytes.next_power_of_two()) as u32);
    let digests: Vec<RowDigest> = (0..shard_rows as usize).map(|number| RowDigest::of(row(number))).collect();
    let tree = GrainTree::new(&digests, grain_rows);
    let bytes = grain::build((0..grain_rows as usize).map(row), &tree.path(0));
    let key = GrainKey { shard: ShardId::of(b"a shard"), rows: grain_rows, index: 0 };
    let time = seconds(|| {
        let grain = Grain::parse(black_box(&bytes)).expect("well formed");
        grain.verify(key, shard_rows, tree.root()).expect("true");
    });
    table.rate(&format!("verify a grain of {grain_rows} rows of {values} B"), bytes.len(), time);
}

/// The cost of the order of samples, at the size of ImageNet.
fn plan() {
    println!();
    for len in [200, 1_281_167, 1_000_000_000] {
        let (permutation, mut x) = (Permutation::new(&[7; 32], len), 0);
        let time = seconds(|| {
            for _ in 0..1000 {
                x = permutation.apply(x);
            }
        });
        println!("{:<44} {:>12}", format!("permutation of {len}, one image"), readable(time / 1000.0));
    }

    let shape = Shape { shard_rows: vec![1000; 1_000_000], row_bytes: 1_000_000_000 * 110_000 };
    let options = PlanOptions { partitions: Some(4096), ..PlanOptions::default() };
    let made = || {
        PlanDocument::with_defaults(VersionId::of(b"a version"), &shape, options.clone()).expect("it fits")
    };
    let (time, bytes) = (seconds(|| made().to_bytes()), made().to_bytes().len());
    println!("{:<44} {:>12} {bytes:>10} B", "plan of 10^9 samples, 4,096 partitions", readable(time));
    let time = seconds(|| Plan::new(made(), &shape.shard_rows).expect("the document is of this shape"));
    println!("{:<44} {:>12}", "… applied to the million shards", readable(time));

    let shape = Shape { shard_rows: vec![427; 3000], row_bytes: 1_281_000 * 110_000 };
    let version = VersionId::of(b"a version");
    let document =
        PlanDocument::with_defaults(version, &shape, PlanOptions::default()).expect("defaults fit");
    let plan = Plan::new(document, &shape.shard_rows).expect("the document is of this shape");
    println!(
        "{:<44} {:>12}",
        "plan of 1,281,000 samples: first slot table",
        readable(seconds(|| SlotTable::initial(&plan)))
    );

    let mut table = SlotTable::initial(&plan);
    let time = seconds(|| table.advance(&plan));
    println!("{:<44} {:>12}", "… slot table to the next epoch, Q = 0.1", readable(time));

    let table = SlotTable::at(&plan, Epoch(5));
    let (mut start, step) = (0, 2048);
    let share = plan.document().partitions / 8;
    let time = seconds(|| {
        start = (start + step) % (plan.sample_count() - step);
        plan.step_reads(&table, start..start + step, 0..share)
    });
    println!("{:<44} {:>12}", "… one read of a rank's share of a step", readable(time / (step / 8) as f64));

    let mut position = 0;
    let time = seconds(|| {
        position = (position + 7919) % plan.sample_count();
        plan.sample_at(Epoch(5), position)
    });
    println!("{:<44} {:>12}", "… sample at a position of epoch 5, no table", readable(time));
}
