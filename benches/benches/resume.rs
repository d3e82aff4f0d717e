//! The cost of resuming in the middle of an epoch of 10^8 samples: from opening a loader to its first step,
//! with the slot table kept on the machine, without it, and the time of waiting for the table. `cargo bench
//! -p shardd-benches --bench resume [-- EPOCH]` prints one table. Needs 2 GiB of memory and of temporary
//! disk.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use shardd_client::loader::{CacheChoice, Loader, LoaderConfig, LoaderSource};
use shardd_client::shared_cache::SlotTables;
use shardd_plan::{Epoch, Plan, PlanDocument, PlanOptions, Shape, SlotTable};
use shardd_store::catalog::{Catalog, CommitNote, LocalCatalog};
use shardfmt::{Manifest, Operation, ShardEntry, ShardWriter};

const SHARDS: usize = 5_000;
const SHARD_ROWS: u32 = 20_000;
const PARTITIONS: u32 = 4096;
const ROUNDS: usize = 11;

fn main() {
    let epoch = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(5);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (store, entry) = store(dir.path());
    println!(
        "{:<58} {:>10} {:>10} {:>10}",
        "10^8 samples, from opening to the first step, ms", "open", "first", "both"
    );
    let manifest = Manifest::new(schema(), vec![entry; SHARDS], serde_json::json!({}));
    let note = CommitNote::of(Operation::INGEST);
    store.commit(&"rows".parse().expect("a name"), None, &manifest, &note).expect("disk space");
    let version = manifest.id();
    for grain_rows in [1, 16] {
        let shape = Shape { shard_rows: vec![SHARD_ROWS; SHARDS], row_bytes: manifest.row_bytes() };
        let options = PlanOptions {
            partitions: Some(PARTITIONS),
            grain_rows: Some(grain_rows),
            ..PlanOptions::default()
        };
        let document = PlanDocument::with_defaults(version, &shape, options).expect("defaults fit");
        store.put_plan(&document).expect("disk space");
        let plan = Plan::new(document.clone(), &shape.shard_rows).expect("the document is of this shape");

        let began = Instant::now();
        let table = SlotTable::at(&plan, Epoch(epoch));
        println!("grains of {grain_rows}: waiting for the table of epoch {epoch}{:>43.0}", ms(began));
        let kept = dir.path().join(format!("kept-{grain_rows}"));
        let began = Instant::now();
        let turn = SlotTables::open(&kept).expect("disk space").begin(plan.id(), Epoch(epoch));
        let is_kept = turn.expect("disk space").expect("nobody else").put(&plan, &table).expect("disk space");
        assert!(is_kept, "there is room for {} bytes", table.written_bytes(&plan));
        println!("… writing its {:>4} MB{:>69.0}", table.written_bytes(&plan) / 1_000_000, ms(began));
        drop(table);
        for (what, is_kept) in [("with it kept", true), ("without it", false)] {
            let times: Vec<[f64; 2]> = (0..ROUNDS)
                .map(|round| {
                    let cache = match is_kept {
                        true => kept.clone(),
                        false => dir.path().join(format!("none-{grain_rows}-{round}")),
                    };
                    resumed(dir.path(), &document, epoch, plan.sample_count() / 2, &cache)
                })
                .collect();
            let middle = |of: &dyn Fn(&[f64; 2]) -> f64| {
                let mut times: Vec<f64> = times.iter().map(of).collect();
                times.sort_by(f64::total_cmp);
                times[times.len() / 2]
            };
            let (open, first, both) = (middle(&|t| t[0]), middle(&|t| t[1]), middle(&|t| t[0] + t[1]));
            println!("{:<58} {open:>10.1} {first:>10.1} {both:>10.1}", format!("… resuming {what}"));
        }
    }
}

/// Milliseconds to open a loader there, and then to its first step.
fn resumed(store: &Path, document: &PlanDocument, epoch: u32, position: u64, cache: &Path) -> [f64; 2] {
    let config = LoaderConfig {
        start: (epoch, position),
        end_epoch: epoch + 1,
        cache: CacheChoice { dir: Some(cache.to_owned()), limit: None },
        ..LoaderConfig::new(LoaderSource::Store(store.to_owned().into()), document.clone().id(), 256)
    };
    let began = Instant::now();
    let mut loader = Loader::open(config).expect("a store");
    let open = ms(began);
    let step = loader.next_step().expect("reads").expect("half an epoch");
    let both = ms(began);
    assert_eq!((step.positions().start, step.global_samples()), (position, 256));
    [open, both - open]
}

/// A store with one shard, which manifests may have as often as they like.
fn store(dir: &Path) -> (LocalCatalog, ShardEntry) {
    let store = LocalCatalog::open(dir).expect("disk space");
    let rows = Int64Array::from_iter_values(0..i64::from(SHARD_ROWS));
    let rows = RecordBatch::try_new(schema(), vec![Arc::new(rows)]).expect("one column");
    let mut writer = ShardWriter::new(schema()).expect("plain columns");
    writer.push(&rows).expect("our rows");
    let shard = writer.finish().expect("there are rows");
    store.put_shard(&shard).expect("disk space");
    (store, shard.entry.clone())
}

fn schema() -> Arc<Schema> {
    Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, false)]))
}

fn ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}
