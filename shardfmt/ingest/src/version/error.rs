//! Why an operation stopped. Nothing was committed: stored shards are harmless, and running again makes the
//! same.

use std::io;

use shardfmt::digest::ShardId;
use shardfmt::shard::ShardError;

use super::damage::{Damage, File};

/// Why an operation on a version stopped.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum VersionError {
    /// A file of the version is missing or damaged. Repair the version first.
    #[error("the {file} of shard {shard} {damage}; `shardctl verify --repair` mends what can be mended")]
    Damaged { file: File, shard: ShardId, damage: Damage },
    /// A shard could not be made.
    #[error("shard {index} cannot be written; choose a smaller shard size")]
    Shard { index: usize, source: ShardError },
    /// The sink refused a shard.
    #[error("shard {shard} cannot be stored; running again continues with the same shards")]
    Sink { shard: ShardId, source: io::Error },
    /// The rows of a shard, written again, would not be those of the version: a fault of this program or machine.
    #[error("shard {shard} was written with other rows than were read; check this machine's memory")]
    Changed { shard: ShardId },
    /// All samples would go. Remove the dataset instead.
    #[error("no sample would be left; `shardctl rm` removes a dataset with all of its samples")]
    NothingLeft,
    /// A shard of no bytes holds no row.
    #[error("a shard of 0 bytes holds no row; give a size such as 4MiB")]
    NoSize,
    /// The temporary file for digests or rows failed.
    #[error("temporary file in {}: cannot hold the rows; free space there or set TMPDIR to a larger disk", .directory.display())]
    Spill { directory: std::path::PathBuf, source: io::Error },
    /// No threads could be started.
    #[error("cannot start threads; use fewer")]
    Threads(#[source] rayon::ThreadPoolBuildError),
}

impl VersionError {
    pub(super) fn damaged(file: File, shard: ShardId, damage: Damage) -> Self {
        Self::Damaged { file, shard, damage }
    }

    pub(super) fn spill(source: io::Error) -> Self {
        Self::Spill { directory: std::env::temp_dir(), source }
    }
}
