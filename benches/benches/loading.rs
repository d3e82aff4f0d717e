//! What reading costs a training: an epoch over what a loader reads from a store, in turns with an epoch over the same tensors in memory.
//! `cargo bench -p shardd-benches --bench loading` prints a line for each model.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::data::dataloader::DataLoader;
use burn::tensor::{Device, Tensor};
use shardd_benches::figures;
use shardd_benches::turns::median;
use shardd_client::loader::{LoaderConfig, LoaderSource};
use shardd_plan::{PlanDocument, PlanOptions, Shape};
use shardd_store::catalog::{Catalog, CommitNote, LocalCatalog, StorePlace};
use shardd_trainer::collective::threads;
use shardd_trainer::data::InputOptions;
use shardd_trainer::dataloader::{BurnLoader, TensorBatch};
use shardd_trainer::models::{Mlp, Norm, conv_net};
use shardd_trainer::testkit::pattern_images;
use shardd_trainer::{Chain, CrossEntropy, Optimizer, TensorTree, Trainer};
use shardfmt::{Manifest, Operation, ShardWriter};

/// As in `shardtrain`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Epochs of each, after one that does not count.
const ROUNDS: usize = 7;
const SIDE: usize = 32;
const BATCH: u32 = 64;
const RATE: f32 = 1e-3;

fn main() {
    println!(
        "{:<44} {:>10} {:>10} {:>9} {:>12}",
        "an epoch over images of 3x32x32, in turns", "in memory", "loader", "ratio", "samples/s"
    );
    let (device, labels) = (Device::flex(), 2);
    let conv = conv_net([3, SIDE, SIDE], labels, Norm::Batch, 0.0, &device);
    compare("convolutions, 24 and 48 channels", 4_096, conv, |batch| batch.images().expect("images"));
    let mlp = Mlp::new(&[3 * SIDE * SIDE, 256, labels], &device).into_chain();
    compare("perceptron, 256 in the middle", 16_384, mlp, |batch| batch.inputs.clone());
}

/// The parts of a batch that a model takes.
type Batch<Input> = (Input, Vec<u32>);

fn compare<Input: TensorTree + Clone>(
    name: &str,
    samples: usize,
    model: Chain<Input, Tensor<2>>,
    input: impl Fn(&TensorBatch) -> Input,
) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let plan = plan_over(dir.path(), samples);
    let source = LoaderSource::Store(StorePlace::from(dir.path().to_owned()));
    let config = LoaderConfig { end_epoch: 2 + ROUNDS as u32, ..LoaderConfig::new(source, plan, BATCH) };
    let loader = BurnLoader::tensors(config, &InputOptions::default(), &Device::flex()).expect("a store");
    let alone = threads::world(1, Duration::from_secs(60)).remove(0);
    let mut trainer = Trainer::new(model, CrossEntropy, Box::new(alone))
        .optimizer(Optimizer::adam(0.0))
        .build()
        .expect("a rank alone trains");
    let mut step = |(input, labels): Batch<Input>| {
        let mut micro_batch = Some((input, labels));
        trainer.step(RATE, |_| micro_batch.take()).expect("nobody else");
    };
    let read = |batch: Result<TensorBatch, _>| -> Batch<Input> {
        let batch = batch.expect("our rows");
        let labels = batch.targets.clone().into_data().iter::<u32>().collect();
        (input(&batch), labels)
    };

    let kept: Vec<Batch<Input>> = loader.iter().map(read).collect();
    let (mut of_memory, mut of_loader) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let began = Instant::now();
        kept.iter().cloned().for_each(&mut step);
        let memory_s = began.elapsed().as_secs_f64();
        let began = Instant::now();
        loader.iter().map(read).for_each(&mut step);
        if round > 0 {
            of_memory.push(memory_s);
            let loader_s = began.elapsed().as_secs_f64();
            figures::report(&format!("loading/{name}"), loader_s, memory_s);
            of_loader.push(loader_s);
        }
    }
    let (memory_s, loader_s) = (median(of_memory), median(of_loader));
    let (ratio, speed) = (loader_s / memory_s, samples as f64 / loader_s);
    println!("{name:<44} {memory_s:>8.3} s {loader_s:>8.3} s {ratio:>9.3} {speed:>12.0}");
}

/// A store in this directory, and a plan of the images in it.
fn plan_over(dir: &std::path::Path, samples: usize) -> PlanDocument {
    let store = LocalCatalog::open(dir).expect("disk space");
    let rows = pattern_images(samples, SIDE, 1);
    let schema = rows.schema();
    let shard_rows = samples / 16;
    let shards = (0..16).map(|shard| {
        let mut writer = ShardWriter::new(Arc::clone(&schema)).expect("plain columns");
        writer.push(&rows.slice(shard * shard_rows, shard_rows)).expect("our rows");
        let shard = writer.finish().expect("there are rows");
        store.put_shard(&shard).expect("disk space");
        shard.entry.clone()
    });
    let manifest = Manifest::new(Arc::clone(&schema), shards.collect(), serde_json::json!({}));
    let note = CommitNote::of(Operation::INGEST);
    store.commit(&"images".parse().expect("a name"), None, &manifest, &note).expect("disk space");
    let shape = Shape {
        shard_rows: manifest.shards.iter().map(|shard| shard.rows).collect(),
        row_bytes: manifest.row_bytes(),
    };
    PlanDocument::with_defaults(manifest.id(), &shape, PlanOptions::default()).expect("defaults fit")
}
