//! Sidecars of shards of which single rows were read.

use std::collections::HashMap;
use std::sync::Arc;

use shardfmt::Sidecar;
use shardfmt::merkle::GrainTree;

/// Sidecars of this number of rows together are kept for single reads: 16 bytes a row each, and the proofs of
/// its grains.
const ROWS_KNOWN: u64 = 16 << 20;

/// The sidecar that locates and proves the rows of a shard.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) sidecar: Sidecar,
    pub(crate) tree: GrainTree,
}

/// The known facts about shards of which single rows were read.
#[derive(Debug, Default)]
pub(crate) struct KnownShards {
    shards: HashMap<u32, Arc<Known>>,
    rows: u64,
}

impl KnownShards {
    pub(crate) fn get(&self, shard: u32) -> Option<Arc<Known>> {
        self.shards.get(&shard).cloned()
    }

    pub(crate) fn insert(&mut self, shard: u32, known: &Arc<Known>) {
        let rows = known.sidecar.rows.len() as u64;
        if self.rows + rows > ROWS_KNOWN {
            *self = Self::default();
        }
        if self.shards.insert(shard, Arc::clone(known)).is_none() {
            self.rows += rows;
        }
    }
}
