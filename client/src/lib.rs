//! The loader of shardd: iterates a data set in the order of a plan, for one rank of a training.
//!
//! A *store* is a directory or a bucket with data sets; `shardctl --store DIR ingest FILES --name NAME` fills
//! one. This program reads two shuffled epochs of a data set, without a daemon:
//!
//! ```no_run
//! use shardd_client::{Catalog, Loader, LoaderConfig, LoaderSource, LocalCatalog, StorePlace};
//! use shardd_client::{PlanDocument, PlanOptions, Shape};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let catalog = LocalCatalog::open("digits-store")?;
//!     let dataset = catalog.dataset(&"digits".parse()?)?;
//!     let manifest = catalog.manifest(dataset.version)?;
//!     let shape = Shape { shard_rows: manifest.shard_rows(), row_bytes: manifest.row_bytes() };
//!     let plan = PlanDocument::with_defaults(dataset.version, &shape, PlanOptions::default())?;
//!
//!     let source = LoaderSource::Store(StorePlace::Directory("digits-store".into()));
//!     let config = LoaderConfig { end_epoch: 2, ..LoaderConfig::new(source, plan, 32) };
//!     let mut loader = Loader::open(config)?;
//!     while let Some(step) = loader.next_step()? {
//!         for micro_batch in &step.micro_batches {
//!             println!("step {} of epoch {}: {:?}", step.step, step.epoch, micro_batch.batch);
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Rows are Arrow record batches ([`MicroBatch::batch`]). A step's [`Cursor`] is all you keep to resume, with
//! any number of ranks. To read from the nodes of a cluster, pass [`LoaderSource::Nodes`]. With several ranks,
//! set [`LoaderConfig::rank`] and [`LoaderConfig::world`]; the ranks then share every step.
//!
//! [`replay`] reads the samples of an earlier step again, [`audit`] proves which samples a run read, and
//! [`label_skew`] measures how labels spread over partitions. `examples/read_store.rs` is the program above with
//! arguments, `examples/read_nodes.rs` reads from nodes, and `examples/resume.rs` continues where it was stopped.

pub mod audit;
pub mod fork;
pub mod label_skew;
pub mod launcher;
pub mod loader;
pub mod replay;
pub mod shared_cache;

/// The version of Arrow whose record batches the loader returns.
pub use arrow;
pub use loader::{
    BatchSize, CacheChoice, Cursor, Follow, LastBatch, LoadError, Loader, LoaderConfig, LoaderSource,
    LoaderStats, MicroBatch, MixedSource, OrderId, PlanRef, Step, WorldRank,
};
pub use shardd_api::protocol::RunId;
pub use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
pub use shardd_store::catalog::{Catalog, CatalogError, LocalCatalog, StorePlace};
pub use shardd_store::http::Credentials;
pub use shardd_store::stores::StoreOptions;
pub use shardfmt::{ByteSize, DatasetName, DatasetRef, Manifest, PlanId, VersionId};
