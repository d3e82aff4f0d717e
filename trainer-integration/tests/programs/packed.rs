//! Documents that share sequences train a model as each does in a sequence of its own, on any number of ranks.
//!
//! The text is `../shared/data/tinyshakespeare.txt`; without it the test is skipped.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, FixedSizeListArray, ListArray, RecordBatch, UInt8Array, UInt32Array};
use arrow::datatypes::{DataType, Field, UInt8Type, UInt32Type};
use arrow::ipc::writer::FileWriter;
use shardd_client::loader::{Loader, LoaderConfig, LoaderSource};
use shardd_ingest::IngestConfig;
use shardd_store::catalog::LocalCatalog;
use shardd_trainer::cluster::CatalogRows;
use shardd_trainer::collective::{Collective, ThreadCollective, spawn};
use shardd_trainer::data::Rows;
use shardd_trainer::models::{GptSize, ModelKind, ModelOptions};
use shardd_trainer::optim::{LrDecay, Optimizer};
use shardd_trainer::train::{TrainConfig, Trained, train};
use shardfmt::{Manifest, PlanId};

use crate::common::{add, add_as, plan_of};

const LENGTH: usize = 256;
const EPOCHS: u32 = 4;

/// Speeches, of which most are much shorter than a sequence.
fn text() -> Option<String> {
    let shared = std::env::var_os("SHARDD_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"), Into::into);
    let Ok(text) = fs::read_to_string(shared.join("data/tinyshakespeare.txt")) else {
        println!("skipped: no tinyshakespeare.txt in {}", shared.join("data").display());
        return None;
    };
    Some(text[..24_000].to_owned())
}

/// The documents of packed sequences, each in a sequence of its own.
fn unpacked(rows: &RecordBatch) -> RecordBatch {
    let list = rows.column_by_name("tokens").unwrap().as_fixed_size_list();
    let tokens = list.values().as_primitive::<UInt8Type>().values();
    let lengths = rows.column_by_name("length").unwrap().as_primitive::<UInt32Type>();
    let documents = rows.column_by_name("documents").unwrap().as_list::<i32>();
    let (mut values, mut own_lengths) = (Vec::new(), Vec::new());
    for row in 0..rows.num_rows() {
        let starts = documents.value(row);
        let starts = starts.as_primitive::<UInt32Type>().values();
        let ends = starts[1..].iter().copied().chain([lengths.value(row)]);
        for (&start, end) in starts.iter().zip(ends) {
            let sequence = &tokens[list.value_offset_at(row)..][..LENGTH];
            values.extend_from_slice(&sequence[start as usize..end as usize]);
            own_lengths.push(end - start);
            values.resize(own_lengths.len() * LENGTH, 0);
        }
    }
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let tokens = FixedSizeListArray::new(item, LENGTH as i32, Arc::new(UInt8Array::from(values)), None);
    let starts =
        ListArray::from_iter_primitive::<UInt32Type, _, _>(own_lengths.iter().map(|_| Some([Some(0)])));
    RecordBatch::try_from_iter([
        ("tokens", Arc::new(tokens) as ArrayRef),
        ("documents", Arc::new(starts)),
        ("length", Arc::new(UInt32Array::from(own_lengths))),
    ])
    .unwrap()
}

fn rank(store: &Path, plan: PlanId, rows: u32, collective: Box<dyn Collective>) -> Trained {
    let config = LoaderConfig {
        rank: collective.rank(),
        world: collective.world(),
        virtual_ranks: Some(4),
        end_epoch: EPOCHS,
        ..LoaderConfig::new(LoaderSource::Store(store.to_owned().into()), plan, rows)
    };
    let mut loader = Loader::open(config).unwrap();
    let size = GptSize { layers: 1, heads: 2, width: 32 };
    let config = TrainConfig {
        virtual_ranks: 4,
        epochs: EPOCHS,
        optimizer: Optimizer::sgd(0.0),
        rate: 0.3,
        decline: LrDecay::Constant,
        warm_up_epochs: 0.0,
        model: ModelOptions { kind: ModelKind::Gpt(size), ..ModelOptions::default() },
        ..TrainConfig::default()
    };
    train(&config, collective, &mut loader, None, &mut |_| ()).unwrap()
}

#[test]
fn packed_documents_train_as_each_in_a_sequence_of_its_own_on_one_two_and_three_ranks() {
    let Some(text) = text() else { return };
    let directory = tempfile::tempdir().unwrap();
    let catalog = LocalCatalog::open(directory.path()).unwrap();
    let file = directory.path().join("speeches.txt");
    fs::write(&file, text).unwrap();
    let config: IngestConfig = serde_json::from_value(serde_json::json!({
        "documents": "blank-line", "sequence_length": LENGTH, "packing": "best_fit_decreasing",
    }))
    .unwrap();
    let packed = add_as(&catalog, "packed", &file, &config);
    let rows =
        CatalogRows::open(Box::new(LocalCatalog::open(directory.path()).unwrap()), packed.id()).unwrap();
    let batches = rows.read(0..rows.row_count()).unwrap();
    let batches: Vec<RecordBatch> = batches.iter().map(unpacked).collect();
    let file = directory.path().join("unpacked.arrow");
    let mut writer = FileWriter::try_new(File::create(&file).unwrap(), &batches[0].schema()).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
    let unpacked = add(&catalog, "unpacked", &file);

    // All of the text in each step, so that the order of documents does not matter.
    let whole = |manifest: &Manifest| manifest.sample_count().div_ceil(4) as u32;
    let trained = |manifest: &Manifest, rows: u32, world| {
        let plan = plan_of(&catalog, manifest);
        spawn(world, |ours: ThreadCollective| rank(directory.path(), plan, rows, Box::new(ours)))
    };
    let together = trained(&packed, whole(&packed), 1).remove(0);
    let apart = trained(&unpacked, whole(&unpacked), 1).remove(0);
    let (few, many) = (packed.sample_count(), unpacked.sample_count());
    println!(
        "{few} sequences of {many} documents: losses {:?}, apart {:?}",
        together.loss_per_epoch, apart.loss_per_epoch
    );
    assert!(2 * few < many, "sequences have several documents each");
    assert_eq!(together.steps, u64::from(EPOCHS));
    for (one, other) in together.loss_per_epoch.iter().zip(&apart.loss_per_epoch) {
        assert!((one - other).abs() < 1e-5, "{one} and {other}");
    }
    assert!(together.loss_per_epoch[3] < together.loss_per_epoch[0] - 0.1, "it learns");
    // Many steps of a few sequences, where ranks have unequally many tokens.
    let alone = trained(&packed, 3, 1).remove(0);
    for world in [2, 3] {
        for rank in trained(&packed, 3, world) {
            assert_eq!(
                (rank.digest, &rank.loss_per_epoch),
                (alone.digest, &alone.loss_per_epoch),
                "W={world}"
            );
        }
    }
}
