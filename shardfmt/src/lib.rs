//! The data format of shardd: rows, grains, shards and manifests, and the plans that order them.
//!
//! Pure and synchronous: no runtime, no network, no clock.

pub mod digest;
pub mod name;
pub mod plan;
pub mod size;

pub use digest::{Digest, PlanId, ShardId, VersionId};
pub use name::DatasetName;
pub use size::ByteSize;
