//! Brings whole shards of stores to this machine, once for all its processes, and checks those that are here, once.

use std::fs::File;
use std::io::Read;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Advice, fadvise};
use shardd_store::origin::Origin;
use shardfmt::{Digest, ShardEntry, ShardError, ShardId};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::super::LoadError;
use crate::shared_cache::{Fetched, Seen, SharedCache};

/// How much of a file is read at once.
const PIECE: usize = 1 << 20;

/// Where shards are kept here, what works in the meantime, and what says that they are not wanted any more.
#[derive(Clone)]
pub(super) struct Bringer {
    pub(super) cache: Arc<SharedCache>,
    pub(super) runtime: Handle,
    pub(super) stop: CancellationToken,
}

impl Bringer {
    /// Where a shard lies on this machine, once it does. Blocks.
    pub(super) fn bring(&self, origin: &Origin, entry: &ShardEntry) -> Result<Fetched, LoadError> {
        self.cache.get(entry.id, entry.bytes, || self.go_on(), || self.fetch(origin, entry))
    }

    /// A shard from its store, whole; not, once no reader wants it any more. Blocks.
    pub(super) fn fetch(&self, origin: &Origin, entry: &ShardEntry) -> Result<Bytes, LoadError> {
        self.unless_stopped(async { Ok(origin.shard(entry).await?) })
    }

    /// Reads a file from its begin to its end, and notes that it is the shard; not, once no reader wants that
    /// any more. Blocks. The read shard makes room in memory for those that others wait for, unless all of it
    /// `fits`.
    pub(super) fn verify(&self, shard: ShardId, path: &Path, fits: bool) -> Result<(), LoadError> {
        if self.cache.is_verified(shard, path) {
            return Ok(()); // by another process, or a reader that could not wait
        }
        let failed = |source| ShardError::Io { shard: path.display().to_string(), source };
        let seen = Seen::now(path);
        let mut file = File::open(path).map_err(failed)?;
        let (mut hasher, mut piece, mut at) = (blake3::Hasher::new(), vec![0; PIECE], 0);
        loop {
            self.go_on()?;
            let read = file.read(&mut piece).map_err(failed)?;
            let Some(length) = NonZeroU64::new(read as u64) else { break };
            hasher.update(&piece[..read]);
            if !fits {
                // A wish.
                let _ = fadvise(&file, at, Some(length), Advice::DontNeed);
            }
            at += length.get();
        }
        let found = ShardId(Digest(*hasher.finalize().as_bytes()));
        if found != shard {
            return Err(ShardError::WrongDigest { expected: shard, found }.into());
        }
        self.cache.note_verified(shard, path, seen);
        Ok(())
    }

    /// The result of `work`, unless no reader wants it any more. Blocks.
    pub(super) fn unless_stopped<T>(
        &self,
        work: impl Future<Output = Result<T, LoadError>>,
    ) -> Result<T, LoadError> {
        self.runtime.block_on(async {
            tokio::select! {
                () = self.stop.cancelled() => Err(LoadError::Stopped),
                done = work => done,
            }
        })
    }

    fn go_on(&self) -> Result<(), LoadError> {
        if self.stop.is_cancelled() { Err(LoadError::Stopped) } else { Ok(()) }
    }
}
