//! A store with the demo's digits, as `shardctl --store` would make it.

use std::io;
use std::path::Path;

use shardd_ingest::{IngestConfig, Ingested, NoProgress, Resources, Sink, Source, ingest};
use shardd_plan::{PlanDocument, PlanOptions, Shape};
use shardd_store::catalog::{Catalog, CommitNote, LocalCatalog};
use shardfmt::{FinishedShard, Manifest, Operation, PlanId, ShardId};
use tempfile::TempDir;

/// Data sets `digits` and `digits-test`, and a plan of 12 partitions for the first.
pub(crate) struct DigitsStore {
    pub(crate) directory: TempDir,
    pub(crate) manifest: Manifest,
    pub(crate) plan: PlanId,
}

impl DigitsStore {
    pub(crate) fn new() -> DigitsStore {
        let directory = tempfile::tempdir().unwrap();
        let catalog = LocalCatalog::open(directory.path()).unwrap();
        let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/data/digits");
        let manifest = add(&catalog, "digits", &digits.join("train.parquet"));
        add(&catalog, "digits-test", &digits.join("test.parquet"));
        let plan = plan_of(&catalog, &manifest);
        DigitsStore { directory, manifest, plan }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// A plan of 12 partitions.
pub(crate) fn plan_of(catalog: &LocalCatalog, manifest: &Manifest) -> PlanId {
    let shape = Shape {
        shard_rows: manifest.shards.iter().map(|shard| shard.rows).collect(),
        row_bytes: manifest.row_bytes(),
    };
    let options = PlanOptions { partitions: Some(12), ..PlanOptions::default() };
    let document = PlanDocument::with_defaults(manifest.id(), &shape, options).unwrap();
    catalog.put_plan(&document).unwrap()
}

struct CheckpointStore<'a>(&'a LocalCatalog);

impl Sink for CheckpointStore<'_> {
    fn put_shard(&self, shard: FinishedShard) -> io::Result<()> {
        self.0.put_shard(&shard).map_err(io::Error::other)
    }

    fn has_shard(&self, id: &ShardId) -> io::Result<bool> {
        self.0.has_shard(id).map_err(io::Error::other)
    }
}

/// Ingests a file.
pub(crate) fn add(catalog: &LocalCatalog, name: &str, path: &Path) -> Manifest {
    add_as(catalog, name, path, &IngestConfig::default())
}

/// Ingests a file, configured.
pub(crate) fn add_as(catalog: &LocalCatalog, name: &str, path: &Path, config: &IngestConfig) -> Manifest {
    let source = Source::open(path, config).unwrap();
    let Ingested { manifest, provenance } =
        ingest(source, config, &Resources::threads(1), &CheckpointStore(catalog), &NoProgress).unwrap();
    let note = CommitNote { provenance: Some(provenance), ..CommitNote::of(Operation::INGEST) };
    catalog.commit(&name.parse().unwrap(), None, &manifest, &note).unwrap();
    manifest
}
