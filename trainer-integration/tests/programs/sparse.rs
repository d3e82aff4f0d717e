//! A libsvm file from its lines to weights: the same model for every number of ranks.

use std::fmt::Write;
use std::path::Path;

use shardd_client::loader::{Loader, LoaderConfig, LoaderSource};
use shardd_store::catalog::{Catalog, LocalCatalog};
use shardd_trainer::cluster::CatalogRows;
use shardd_trainer::collective::{Collective, ThreadCollective, spawn};
use shardd_trainer::data::InputOptions;
use shardd_trainer::error::TrainError;
use shardd_trainer::models::{ModelKind, ModelOptions};
use shardd_trainer::random::Key;
use shardd_trainer::train::{TrainConfig, Trained, train};
use shardfmt::PlanId;

use crate::common::{add, plan_of};

const FEATURES: usize = 2_000;
const EPOCHS: u32 = 4;

/// Lines of a label and ten features by ascending index, from 1. Each of the first hundred features speaks for one
/// class.
fn lines(count: u64, seed: u64) -> String {
    let mut lines = String::new();
    for row in 0..count {
        let draw = |at: u64| Key::new(seed).of(row).at(at);
        let is_positive = draw(0) % 2 == 1;
        let mut indices: Vec<u64> = (1..7).map(|at| 101 + draw(at) % (FEATURES as u64 - 101)).collect();
        indices.extend((7..11).map(|at| 1 + 2 * (draw(at) % 50) + u64::from(is_positive)));
        indices.sort_unstable();
        indices.dedup();
        lines.push_str(if is_positive { "+1" } else { "-1" });
        indices.iter().for_each(|index| write!(lines, " {index}:1").expect("a string takes all"));
        lines.push('\n');
    }
    lines
}

fn rank(
    (store, plan): (&Path, PlanId),
    (kind, features): (ModelKind, Option<usize>),
    collective: Box<dyn Collective>,
) -> Result<Trained, TrainError> {
    let config = LoaderConfig {
        rank: collective.rank(),
        world: collective.world(),
        virtual_ranks: Some(4),
        end_epoch: EPOCHS,
        ..LoaderConfig::new(LoaderSource::Store(store.to_owned().into()), plan, 16)
    };
    let mut loader = Loader::open(config).unwrap();
    let catalog = LocalCatalog::open(store).unwrap();
    let version = catalog.dataset(&"test".parse().unwrap()).unwrap().version;
    let test = CatalogRows::open(Box::new(catalog), version).unwrap();
    let input = InputOptions { classes: Some(2), features, ..InputOptions::default() };
    let model = ModelOptions { kind, ..ModelOptions::default() };
    let config =
        TrainConfig { virtual_ranks: 4, epochs: EPOCHS, rate: 0.3, model, input, ..TrainConfig::default() };
    train(&config, collective, &mut loader, Some(&test), &mut |_| ())
}

#[test]
fn a_libsvm_file_trains_to_the_same_weights_on_one_two_and_four_ranks() {
    let directory = tempfile::tempdir().unwrap();
    let catalog = LocalCatalog::open(directory.path()).unwrap();
    let ingested = |name: &str, count, seed| {
        let path = directory.path().join(format!("{name}.svm"));
        std::fs::write(&path, lines(count, seed)).unwrap();
        add(&catalog, name, &path)
    };
    let plan = plan_of(&catalog, &ingested("train", 960, 1));
    ingested("test", 400, 2);
    let trained = |world, how| {
        spawn(world, |collective: ThreadCollective| rank((directory.path(), plan), how, Box::new(collective)))
    };
    for kind in [ModelKind::Linear, ModelKind::Small] {
        let alone = trained(1, (kind, Some(FEATURES))).remove(0).unwrap();
        let evaluation = alone.evaluation.unwrap();
        println!("{kind:?}: loss {:?}, accuracy {:.3}", alone.loss_per_epoch, evaluation.accuracy());
        assert!(evaluation.accuracy() >= 0.95, "{kind:?}: {evaluation:?}");
        for world in [2, 4] {
            for rank in trained(world, (kind, Some(FEATURES))) {
                let rank = rank.unwrap();
                assert_eq!(rank.digest, alone.digest, "{kind:?}, W={world}");
                assert_eq!(rank.evaluation, alone.evaluation, "{kind:?}, W={world}");
            }
        }
    }
    for (features, says) in
        [(None, "give --features"), (Some(500), "is not one of the 500 features (0 to 499)")]
    {
        let refused = trained(1, (ModelKind::Linear, features)).remove(0).unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
}
