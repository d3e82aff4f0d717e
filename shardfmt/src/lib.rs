//! The data format of shardd: rows, grains, shards and manifests.
//!
//! A *sample* is a row of an Arrow table and has one canonical form in bytes ([`row`]). A *shard* ([`shard`]) is an Arrow IPC
//! file of samples, named by the digest of its bytes ([`digest`]); any Arrow reader opens it. A *grain* ([`grain`]) is
//! a few consecutive rows of a shard in their canonical form, with the path that proves them against the shard's Merkle
//! root ([`merkle`]). A *manifest* ([`manifest`]) lists the shards of one version of a dataset and what their samples are like
//! ([`statistics`]); a *commit* ([`commit`]) says when and why a dataset came to it, and from which; people name versions by
//! *references* ([`reference`](mod@reference)).
//!
//! Everything is content-addressed and deterministic: the same rows give the same shards, and the same shards and
//! configuration the same manifest, on every machine and with any number of threads. Whatever comes from outside is
//! checked; bad bytes give an error that names what is wrong, never a panic. `docs/FORMAT.md` has the format to the bit.
//!
//! Pure and synchronous: no runtime, no network, no clock.

pub mod audit;
pub mod commit;
pub mod digest;
#[cfg(test)]
mod golden;
pub mod grain;
pub mod ingest;
mod keyed;
pub mod manifest;
pub mod member;
pub mod merkle;
pub mod name;
pub mod plan;
pub mod reference;
pub mod row;
pub mod shard;
pub mod size;
pub mod sparse;
pub mod statistics;
pub mod version;

pub use commit::{Commit, CommitError, Message, Operation};
pub use digest::{CommitId, Digest, MixtureId, PlanId, ShardId, StrataId, VersionId};
pub use grain::{Grain, GrainError, GrainKey};
pub use manifest::{InputDigest, Manifest, ManifestError, ManifestFile, ShardEntry, Skipped};
pub use merkle::{GrainTree, NodeHash};
pub use name::{DatasetName, TagName};
pub use reference::{At, DatasetRef, VersionPrefix};
pub use row::{DigestSum, RowCodec, RowDigest, RowError};
pub use shard::{Compression, FinishedShard, RangePlan, Shard, ShardError, ShardWriter, Sidecar};
pub use size::ByteSize;
pub use sparse::SparseGrain;
