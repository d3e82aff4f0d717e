//! burn's trait for data over a plan, asked as a trainer asks it: by nothing but the trait.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::split::split_dataloader;
use burn::data::dataloader::{DataLoader, Progress};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};
use shardd_client::loader::{Cursor, LastBatch, LoadError, LoaderConfig, LoaderSource, MicroBatch, OrderId};
use shardd_plan::{PlanDocument, PlanOptions, Shape};
use shardd_store::catalog::{Catalog, LocalCatalog};
use shardd_trainer::data::InputOptions;
use shardd_trainer::dataloader::{BurnLoader, EachRow, TensorBatch};

use crate::common::DigitsStore;

const EPOCHS: u32 = 12;

#[derive(Module, Debug)]
struct Perceptron {
    hidden: Linear,
    output: Linear,
}

impl Perceptron {
    fn new(inputs: usize, device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(inputs, 32).init(device),
            output: LinearConfig::new(32, 10).init(device),
        }
    }

    fn logits(&self, inputs: Tensor<2>) -> Tensor<2> {
        self.output.forward(relu(self.hidden.forward(inputs)))
    }
}

fn source(store: &DigitsStore) -> LoaderSource {
    LoaderSource::Store(store.path().to_owned().into())
}

fn config(store: &DigitsStore) -> LoaderConfig {
    LoaderConfig { end_epoch: EPOCHS, ..LoaderConfig::new(source(store), store.plan, 32) }
}

/// The test digits, as they are stored.
fn validation(store: &DigitsStore) -> LoaderConfig {
    let catalog = LocalCatalog::open(store.path()).unwrap();
    let version = catalog.dataset(&"digits-test".parse().unwrap()).unwrap().version;
    let manifest = catalog.manifest(version).unwrap();
    let shape = Shape {
        shard_rows: manifest.shards.iter().map(|shard| shard.rows).collect(),
        row_bytes: manifest.row_bytes(),
    };
    let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default()).unwrap();
    LoaderConfig { shuffle: false, ..LoaderConfig::new(source(store), document, 32) }
}

fn tensors(config: LoaderConfig) -> BurnLoader<TensorBatch> {
    BurnLoader::tensors(config, &InputOptions::default(), &Device::flex()).unwrap()
}

/// The loop that burn-train has around its strategies: nothing is asked that the trait does not have.
fn trained(train: &Arc<dyn DataLoader<TensorBatch>>, valid: &Arc<dyn DataLoader<TensorBatch>>) -> Vec<f64> {
    let device = Device::flex().autodiff();
    let (train, valid) = (train.to_device(&device), valid.to_device(&Device::flex()));
    device.seed(1);
    let mut model = Perceptron::new(64, &device);
    let mut optimizer: ModuleOptimizer = AdamConfig::new().init();
    let mut accuracies = Vec::new();
    for _ in 0..EPOCHS {
        for batch in train.iter() {
            let batch = batch.unwrap();
            let logits = model.logits(batch.inputs);
            let loss = CrossEntropyLossConfig::new().init(&device).forward(logits, batch.targets);
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(1e-2, model, gradients);
        }
        let (known, mut right, mut all) = (model.valid(), 0, 0);
        for batch in valid.iter() {
            let batch = batch.unwrap();
            let rows = batch.targets.dims()[0];
            let found = known.logits(batch.inputs).argmax(1).reshape([rows]);
            right += found.equal(batch.targets).int().sum().into_scalar::<i64>();
            all += rows;
        }
        assert_eq!(all, valid.num_items());
        accuracies.push(right as f64 / all as f64);
    }
    accuracies
}

#[test]
fn a_model_learns_the_digits_from_a_plan() {
    let store = DigitsStore::new();
    let (train, valid) = (Arc::new(tensors(config(&store))), Arc::new(tensors(validation(&store))));
    let accuracies = trained(
        &(Arc::clone(&train) as Arc<dyn DataLoader<TensorBatch>>),
        &(Arc::clone(&valid) as Arc<dyn DataLoader<TensorBatch>>),
    );
    println!("accuracy after each epoch: {accuracies:.3?}");
    assert!(accuracies[EPOCHS as usize - 1] >= 0.85, "{accuracies:?}");
    let end = Cursor { order: OrderId::Plan(store.plan), epoch: EPOCHS, position: 0 };
    assert_eq!(train.cursor(), end, "every epoch was read to its end");
    assert_eq!(valid.cursor().epoch, EPOCHS, "the test set once for each epoch");
    let Some(Err(beyond)) = train.iter().next() else { panic!("there are no more epochs") };
    let beyond = beyond.to_string();
    assert!(beyond.contains(&format!("epoch {EPOCHS}")) && beyond.contains("end_epoch"), "{beyond}");
}

/// The positions of a step's rows, and their labels.
#[derive(Clone, Debug, PartialEq)]
struct Seen(Vec<u64>, Vec<i64>);

struct Record;

impl Batcher<MicroBatch, Seen> for Record {
    fn batch(&self, micro_batches: Vec<MicroBatch>, _device: &Device) -> Seen {
        let positions = micro_batches.iter().flat_map(|micro_batch| micro_batch.positions.clone());
        let labels = micro_batches.iter().flat_map(|micro_batch| labels(&micro_batch.batch));
        Seen(positions.collect(), labels.collect())
    }
}

fn labels(rows: &RecordBatch) -> Vec<i64> {
    let column = rows.column_by_name("label").unwrap();
    let column = arrow::compute::cast(column, &arrow::datatypes::DataType::Int64).unwrap();
    column.as_primitive::<Int64Type>().values().to_vec()
}

fn record(config: LoaderConfig) -> BurnLoader<Seen> {
    BurnLoader::open(config, Record, &Device::flex()).unwrap()
}

/// The batches of an epoch; progress only grows, and is complete with the last of them and not before.
fn epoch(loader: &dyn DataLoader<Seen>) -> Vec<Seen> {
    let mut batches = loader.iter();
    let (mut seen, mut progress): (Vec<Seen>, Vec<Progress>) = (Vec::new(), Vec::new());
    while let Some(batch) = batches.next() {
        seen.push(batch.unwrap());
        progress.push(batches.progress());
    }
    assert!(batches.next().is_none(), "an ended loader stays so");
    assert!(progress.is_sorted_by_key(|progress| progress.items_processed));
    let complete = progress.iter().filter(|progress| progress.is_completed()).count();
    assert_eq!(complete, usize::from(!seen.is_empty()));
    assert!(progress.last().is_none_or(Progress::is_completed));
    seen
}

fn positions(batches: &[Seen]) -> Vec<u64> {
    batches.iter().flat_map(|batch| batch.0.clone()).collect()
}

#[test]
fn each_iteration_is_the_next_epoch_and_a_cursor_resumes_within_one() {
    let store = DigitsStore::new();
    let samples = store.manifest.sample_count();
    let straight = record(config(&store));
    assert_eq!(straight.num_items() as u64, samples);
    let epochs: Vec<Vec<Seen>> = (0..3).map(|_| epoch(&straight)).collect();
    for batches in &epochs {
        assert_eq!(positions(batches), (0..samples).collect::<Vec<_>>());
    }
    assert_ne!(epochs[0], epochs[1], "another order in each epoch");

    let stopped = record(config(&store));
    assert_eq!(epoch(&stopped), epochs[0]);
    assert_eq!(stopped.iter().take(7).map(Result::unwrap).collect::<Vec<_>>(), epochs[1][..7]);
    let cursor = stopped.cursor();
    assert_eq!((cursor.epoch, cursor.position), (1, 7 * 32));
    let resumed = record(LoaderConfig { start: (cursor.epoch, cursor.position), ..config(&store) });
    assert_eq!(epoch(&resumed), epochs[1][7..], "the rest of the epoch");
    assert_eq!(epoch(&resumed), epochs[2], "and the next");
    assert_eq!(epoch(&stopped), epochs[2], "an epoch that was broken off is over");
    stopped.set_epoch(1);
    assert_eq!(epoch(&*stopped.to_device(&Device::flex())), epochs[1]);
    assert_eq!(epoch(&stopped), epochs[2], "on whichever device: it is one loader");
}

#[test]
fn slices_together_are_the_epoch() {
    let store = DigitsStore::new();
    let samples = store.manifest.sample_count();
    let whole = record(LoaderConfig { virtual_ranks: Some(4), ..config(&store) });
    let all = epoch(&whole);
    let all: BTreeSet<(u64, i64)> =
        all.iter().flat_map(|batch| batch.0.iter().copied().zip(batch.1.iter().copied())).collect();
    whole.set_epoch(0);
    let parts = split_dataloader(
        Arc::new(whole) as Arc<dyn DataLoader<Seen>>,
        &[Device::flex(), Device::flex(), Device::flex()],
    );
    assert_eq!(parts.iter().map(|part| part.num_items() as u64).sum::<u64>(), samples);
    let mut found = BTreeSet::new();
    for part in &parts {
        let batches = epoch(&**part);
        assert_eq!(positions(&batches).len(), part.num_items());
        for (position, label) in batches.iter().flat_map(|batch| batch.0.iter().zip(&batch.1)) {
            assert!(found.insert((*position, *label)), "position {position} in two slices");
        }
        assert_eq!(positions(&epoch(&**part)).len(), part.num_items(), "and so the next epoch");
    }
    assert_eq!(found, all, "the same samples at the same positions");
    let (inner, none) = (parts[1].slice(10, 50), parts[1].slice(50, 50));
    assert_eq!((inner.num_items(), none.num_items(), epoch(&*none).len()), (40, 0, 0));
    let sorted = |loader: &dyn DataLoader<Seen>| {
        let mut positions = positions(&epoch(loader));
        positions.sort_unstable();
        positions
    };
    let first = samples / 3 + 10;
    assert_eq!(sorted(&*inner), (first..first + 40).collect::<Vec<_>>());
}

#[test]
fn every_policy_for_the_last_batch_completes_its_epochs_on_every_rank() {
    let store = DigitsStore::new();
    let samples = store.manifest.sample_count();
    for last_batch in [LastBatch::Short, LastBatch::Drop, LastBatch::Wrap, LastBatch::Carry] {
        for (world, batch_size) in [(1, 100), (3, 37), (4, (samples / 4) as u32)] {
            let mut read = vec![0u64; 2];
            for rank in 0..world {
                let config = LoaderConfig {
                    rank,
                    world,
                    virtual_ranks: Some(4),
                    batch: batch_size.into(),
                    last_batch,
                    end_epoch: 2,
                    ..config(&store)
                };
                let loader = record(config);
                for read in &mut read {
                    *read += positions(&epoch(&loader)).len() as u64;
                }
                let error = loader.iter().next().unwrap().unwrap_err();
                assert!(error.to_string().contains("before epoch 2"), "{error}");
            }
            let global = 4 * u64::from(batch_size);
            let expected = match last_batch {
                LastBatch::Short => [samples; 2],
                LastBatch::Drop => [samples / global * global; 2],
                LastBatch::Wrap => [samples.next_multiple_of(global); 2],
                LastBatch::Carry => {
                    let first = samples.next_multiple_of(global);
                    [first, 2 * samples - first]
                }
            };
            assert_eq!(read, expected, "{last_batch:?}, {world} ranks of {batch_size}");
        }
    }
}

/// A batcher of single items, as programs have them.
struct Labels;

impl Batcher<i64, Tensor<1, Int>> for Labels {
    fn batch(&self, items: Vec<i64>, device: &Device) -> Tensor<1, Int> {
        Tensor::from_data(items.as_slice(), device)
    }
}

#[test]
fn a_batcher_of_single_items_is_used_as_it_is() {
    let store = DigitsStore::new();
    let config = LoaderConfig { virtual_ranks: Some(3), ..config(&store) };
    let batcher = EachRow::new(|rows: &RecordBatch, row| labels(rows)[row], Labels);
    let loader = BurnLoader::open(config.clone(), batcher, &Device::flex()).unwrap();
    let found: Vec<Vec<i64>> =
        loader.iter().map(|batch| batch.unwrap().into_data().iter::<i64>().collect()).collect();
    let expected: Vec<Vec<i64>> = epoch(&record(config)).into_iter().map(|batch| batch.1).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_stride_is_refused() {
    let store = DigitsStore::new();
    let refused = BurnLoader::open(LoaderConfig { stride: 2, ..config(&store) }, Record, &Device::flex());
    assert!(matches!(refused.err(), Some(LoadError::Config(message)) if message.contains("stride of 2")));
}
