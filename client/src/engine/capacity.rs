//! How much of a cache a run takes: worked out from plan and manifest before anything is filled. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardfmt::Manifest;
use shardfmt::plan::Plan;

use crate::cache::resting_bytes;
use crate::node::{NodeId, NodeRecord};
use crate::protocol::Placement;

/// Whether the caches hold a run's grains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Room {
    /// Bytes that all caches of the run's hosts need together, while an exchange is under way.
    pub needed_bytes: u64,
    /// Bytes that they have for it.
    pub cache_bytes: u64,
    /// Bytes that are read from the store in every epoch because they fit nowhere.
    pub from_store_bytes_per_epoch: u64,
}

/// What the grains of a run take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Of one partition, the most there is at any instant: what it holds, what has come before its epoch, and two chunks that
    /// have been sent and not acknowledged.
    pub(crate) partition_bytes: u64,
    /// Of one partition, what is read in an epoch.
    pub(crate) read_bytes: u64,
}

impl Needs {
    pub(crate) fn of(plan: &Plan, manifest: &Manifest) -> Self {
        let document = plan.document();
        let grain_rows = document.grain_rows;
        let resting: u64 = manifest
            .shards
            .iter()
            .map(|shard| resting_bytes(shard.rows, shard.row_bytes, grain_rows))
            .fold(0, u64::saturating_add);
        let partitions = u64::from(document.partitions);
        let read_bytes = resting.div_ceil(partitions);
        // The share that moves, and two chunks of it more, in units of 2^-32.
        let moved = u128::from(document.schedule.largest().units());
        let coming = moved + 2 * moved / u128::from(document.chunks);
        let extra = (u128::from(read_bytes) * coming) >> 32;
        let partition_bytes = read_bytes.saturating_add(u64::try_from(extra).unwrap_or(u64::MAX));
        Needs { partition_bytes: partition_bytes.max(1), read_bytes }
    }

    /// How many partitions have room in a cache of `bytes`.
    pub(crate) fn room_in(&self, bytes: u64) -> usize {
        usize::try_from(bytes / self.partition_bytes).unwrap_or(usize::MAX)
    }

    /// Whether the hosts of a placement have room for it, each with the bytes that `free` gives it.
    pub(crate) fn room(&self, placement: &Placement, free: &BTreeMap<NodeId, u64>) -> Room {
        let mut room = Room { needed_bytes: 0, cache_bytes: 0, from_store_bytes_per_epoch: 0 };
        for host in &placement.hosts {
            let hosted = placement.hosted_by(host).count() as u64;
            let (needed, free) =
                (hosted.saturating_mul(self.partition_bytes), free.get(host).copied().unwrap_or(0));
            room.needed_bytes = room.needed_bytes.saturating_add(needed);
            room.cache_bytes = room.cache_bytes.saturating_add(free);
            let lacking = needed.saturating_sub(free);
            let read = u128::from(lacking) * u128::from(self.read_bytes) / u128::from(self.partition_bytes);
            room.from_store_bytes_per_epoch =
                room.from_store_bytes_per_epoch.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        }
        room
    }
}

/// What each node's cache has left for a run beside what is reserved there for others.
pub(crate) fn free<'a>(
    nodes: impl Iterator<Item = &'a NodeRecord>,
    reserved: &BTreeMap<NodeId, u64>,
) -> BTreeMap<NodeId, u64> {
    nodes
        .map(|node| {
            let taken = reserved.get(&node.id).copied().unwrap_or(0);
            (node.id.clone(), node.cache_bytes.saturating_sub(taken))
        })
        .collect()
}
