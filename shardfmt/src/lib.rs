//! The data format of shardd: rows, grains, shards and manifests.
//!
//! A *sample* is a row of an Arrow table and has one canonical form in bytes ([`row`]). A *shard* ([`shard`])
//! is an Arrow IPC file of samples, named by the digest of its bytes ([`digest`]); any Arrow reader opens it.
//! A *grain* ([`grain`]) is a few consecutive rows of a shard in their canonical form, with the path that
//! proves them against the shard's Merkle root ([`merkle`]). A *manifest* ([`manifest`]) lists the shards of
//! one version of a dataset with statistics of their samples ([`statistics`]); a *commit* ([`commit`]) has
//! the time, the reason and the parent of a version in a dataset; people name versions by *references*
//! ([`reference`](mod@reference)). What changed from one version to another is found by [`compare`].
//!
//! Everything is content-addressed and deterministic: the same rows give the same shards, and the same shards
//! and configuration the same manifest, on every machine and with any number of threads. Input from outside
//! is checked; bad bytes give an error that names the fault, never a panic. `docs/FORMAT.md` has the format
//! to the bit, and `docs/PROMISES.md` the tests of these promises.
//!
//! Pure and synchronous: no runtime, no network, no clock.
//!
//! ```
//! use arrow::array::{ArrayRef, Int64Array, RecordBatch};
//! use shardfmt::{Shard, ShardWriter};
//! use std::sync::Arc;
//!
//! // Rows of any Arrow schema become a shard: an Arrow IPC file, named by the digest of its bytes.
//! let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1, 5]));
//! let rows = RecordBatch::try_from_iter([("label", labels)])?;
//! let mut writer = ShardWriter::new(rows.schema())?;
//! writer.push(&rows)?;
//! let finished = writer.finish()?;
//!
//! let shard = Shard::from_bytes(finished.bytes.clone())?;
//! shard.verify(finished.id)?;
//! assert_eq!(shard.rows(), 5);
//! assert_eq!(shard.record_batches()[0].schema(), rows.schema());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod audit;
pub mod commit;
pub mod compare;
#[cfg(test)]
mod golden;
pub mod grain;
pub mod joined;
mod keyed;
pub mod manifest;
pub mod member;
pub mod merkle;
pub mod name;
pub mod provenance;
pub mod reference;
pub mod row;
pub mod shard;
pub mod size;
pub mod sparse;
pub mod statistics;
pub mod store;

/// The version of Arrow whose record batches shards hold.
pub use arrow;
pub use commit::{Commit, CommitError, Message, Operation};
pub use digest::{CommitId, Digest, MixtureId, PlanId, ShardId, StrataId, VersionId};
pub use grain::{Grain, GrainError, GrainKey};
pub use manifest::{Manifest, ManifestError, ManifestFile, ShardEntry};
pub use merkle::{GrainTree, NodeHash};
pub use name::{DatasetName, TagName};
pub use provenance::{InputDigest, Provenance, ProvenanceError, Skipped, SkippedList};
pub use reference::{At, DatasetRef, VersionPrefix};
pub use row::{DigestSum, RowCodec, RowDigest, RowError};
pub use shard::{Compression, FinishedShard, RangePlan, Shard, ShardError, ShardWriter, Sidecar};
pub use shardd_plan::digest;
pub use size::ByteSize;
pub use sparse::SparseGrain;
