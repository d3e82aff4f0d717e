//! The demo's digits from Parquet to weights, without any server: the same model for every number of ranks.

use std::io;
use std::path::Path;

use shardd_client::catalog::{Catalog, LocalCatalog};
use shardd_client::loader::{Loader, LoaderConfig, LoaderSource};
use shardd_trainer::cluster::CatalogRows;
use shardd_trainer::collective::{Collective, ThreadCollective, spawn};
use shardd_trainer::train::{TrainConfig, Trained, train};
use shardfmt::ingest::{IngestConfig, NoProgress, Sink, Source, ingest};
use shardfmt::plan::{PlanDocument, PlanOptions, Shape};
use shardfmt::{DigestSum, FinishedShard, Manifest, PlanId};

const VIRTUAL_RANKS: u32 = 4;
const EPOCHS: u32 = 10;

struct Shelf<'a>(&'a LocalCatalog);

impl Sink for Shelf<'_> {
    fn put_shard(&self, shard: &FinishedShard) -> io::Result<()> {
        self.0.put_shard(shard).map_err(io::Error::other)
    }
}

fn add(catalog: &LocalCatalog, name: &str, file: &str) -> Manifest {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/data/digits").join(file);
    let config = IngestConfig::default();
    let source = Source::open(&path, &config).unwrap();
    let manifest = ingest(source, &config, 1, &Shelf(catalog), &NoProgress).unwrap();
    catalog.commit(&name.parse().unwrap(), None, &manifest).unwrap();
    manifest
}

fn rank(store: &Path, plan: PlanId, collective: Box<dyn Collective>) -> Trained {
    let config = LoaderConfig {
        rank: collective.rank(),
        world: collective.world(),
        virtual_ranks: Some(VIRTUAL_RANKS),
        end_epoch: EPOCHS,
        audit: true,
        ..LoaderConfig::new(LoaderSource::Directory(store.to_owned()), plan, 16)
    };
    let mut loader = Loader::open(config).unwrap();
    let catalog = LocalCatalog::open(store).unwrap();
    let version = catalog.resolve(&"digits-test".parse().unwrap()).unwrap();
    let test = CatalogRows::open(Box::new(catalog), version).unwrap();
    let config = TrainConfig { virtual_ranks: VIRTUAL_RANKS, epochs: EPOCHS, ..TrainConfig::default() };
    train(&config, collective, &mut loader, Some(&test), &mut |_| ()).unwrap()
}

#[test]
fn digits_train_to_the_same_weights_on_one_to_four_ranks() {
    let store = tempfile::tempdir().unwrap();
    let catalog = LocalCatalog::open(store.path()).unwrap();
    let manifest = add(&catalog, "digits", "train.parquet");
    add(&catalog, "digits-test", "test.parquet");
    let shape = Shape {
        shard_rows: manifest.shards.iter().map(|shard| shard.rows).collect(),
        row_bytes: manifest.row_bytes(),
    };
    let options = PlanOptions { partitions: Some(12), ..PlanOptions::default() };
    let plan = PlanDocument::with_defaults(manifest.id(), &shape, options).unwrap();
    let plan = catalog.put_plan(&plan).unwrap();

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
            assert_eq!(read, manifest.sample_count(), "every sample once in epoch {epoch}");
            assert_eq!(sum, manifest.digest_sum(), "the very samples in epoch {epoch}");
        }
    }
}
