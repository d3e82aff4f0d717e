//! The demo's digits from Parquet to weights, without any server: the same model for every number of ranks.

use std::path::Path;

use shardd_client::loader::{Loader, LoaderConfig, LoaderSource};
use shardd_store::catalog::{Catalog, LocalCatalog};
use shardd_trainer::cluster::CatalogRows;
use shardd_trainer::collective::{Collective, ThreadCollective, spawn};
use shardd_trainer::train::{TrainConfig, Trained, train};
use shardfmt::{DigestSum, PlanId};

use crate::common::DigitsStore;

const VIRTUAL_RANKS: u32 = 4;
const EPOCHS: u32 = 10;

fn rank(store: &Path, plan: PlanId, collective: Box<dyn Collective>) -> Trained {
    let config = LoaderConfig {
        rank: collective.rank(),
        world: collective.world(),
        virtual_ranks: Some(VIRTUAL_RANKS),
        end_epoch: EPOCHS,
        audit: true,
        ..LoaderConfig::new(LoaderSource::Store(store.to_owned().into()), plan, 16)
    };
    let mut loader = Loader::open(config).unwrap();
    let catalog = LocalCatalog::open(store).unwrap();
    let version = catalog.dataset(&"digits-test".parse().unwrap()).unwrap().version;
    let test = CatalogRows::open(Box::new(catalog), version).unwrap();
    let config = TrainConfig { virtual_ranks: VIRTUAL_RANKS, epochs: EPOCHS, ..TrainConfig::default() };
    train(&config, collective, &mut loader, Some(&test), &mut |_| ()).unwrap()
}

#[test]
fn digits_train_to_the_same_weights_on_one_to_four_ranks() {
    let store = DigitsStore::new();
    let plan = store.plan;

    let trained =
        |world| spawn(world, |collective: ThreadCollective| rank(store.path(), plan, Box::new(collective)));
    let alone = trained(1).remove(0);
    let evaluation = alone.evaluation.unwrap();
    println!("loss {:?}", alone.loss_per_epoch);
    println!("accuracy {:.3}, {:.0} samples/s", evaluation.accuracy(), alone.samples as f64 / alone.train_s);
    assert!(evaluation.accuracy() >= 0.95, "{evaluation:?}");
    for world in 2..=VIRTUAL_RANKS {
        let ranks = trained(world);
        for rank in &ranks {
            assert_eq!(rank.digest, alone.digest, "W={world}");
            assert_eq!(rank.evaluation, alone.evaluation, "W={world}");
        }
        for epoch in 0..EPOCHS as usize {
            let read: u64 = ranks.iter().map(|rank| rank.audits[epoch].samples).sum();
            let sums = ranks.iter().map(|rank| rank.audits[epoch].digest_sum.parse::<DigestSum>().unwrap());
            let sum = sums.reduce(|sum, next| sum + next).unwrap();
            assert_eq!(read, store.manifest.sample_count(), "every sample once in epoch {epoch}");
            assert_eq!(sum, store.manifest.digest_sum(), "the very samples in epoch {epoch}");
        }
    }
}
