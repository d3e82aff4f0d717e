//! Brings whole shards of stores to this machine, once for all its processes.

use std::sync::Arc;

use bytes::Bytes;
use shardfmt::ShardEntry;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::super::LoadError;
use crate::origin::Origin;
use crate::shared_cache::{Fetched, SharedCache};

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

    /// A shard from its store, whole; not, once nobody wants it any more. Blocks.
    pub(super) fn fetch(&self, origin: &Origin, entry: &ShardEntry) -> Result<Bytes, LoadError> {
        self.unless_stopped(async { Ok(origin.shard(entry).await?) })
    }

    /// What comes of `work`, unless nobody wants it any more. Blocks.
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
