//! The errors of caches, and the way out of each.

use std::io;
use std::path::{Path, PathBuf};

use shardfmt::{ByteSize, GrainKey};

/// Why a cache did not carry out a request. Nothing that was findable before is lost or wrong afterwards.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum CacheError {
    /// No room. Drop or evict something, or go without the grain.
    #[error("cache {} is full: {needed} bytes needed, {} of {limit} used", .dir.display(), used)]
    Full { dir: PathBuf, needed: u64, used: ByteSize, limit: ByteSize },
    /// The disk has no more room than its reserve. Make room there, or go without the grain.
    #[error("the disk of cache {} has no {needed} bytes left beside its reserve", .dir.display())]
    DiskFull { dir: PathBuf, needed: u64 },
    /// The grain cannot lie in a segment.
    #[error("grain {key} of {bytes} bytes is too large for a cache: choose a smaller grain")]
    TooLarge { key: GrainKey, bytes: u64 },
    /// Its shard holds rows that were forgotten. Go without the grain.
    #[error("grain {key} is of a shard with rows that were forgotten, and is not kept")]
    Forgotten { key: GrainKey },
    /// The class cannot be written down.
    #[error("run name of {bytes} bytes is too long for a cache")]
    ClassTooLong { bytes: usize },
    /// The segment was dropped since the location was given. Treat it as a miss.
    #[error("segment {} has been dropped", .segment.display())]
    Gone { segment: PathBuf },
    /// Another process has the directory open. Stop it or choose another directory.
    #[error("cache directory {} is in use by {}", .dir.display(), match pid {
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    })]
    InUse { dir: PathBuf, pid: Option<u32> },
    /// A newer release wrote this. Use that release or another directory.
    #[error("segment {} has format {found}, newer than this program knows", .path.display())]
    TooNew { path: PathBuf, found: u16 },
    /// The cache has been closed.
    #[error("cache {} is closed", .dir.display())]
    Closed { dir: PathBuf },
    /// The disk refused.
    #[error("cannot {action} {}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl CacheError {
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.into(), source }
    }

    /// Whether space is missing, under the cache's limit or on the disk.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Full { .. } | Self::DiskFull { .. } => true,
            Self::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            _ => false,
        }
    }
}
