//! How much of a cache a run takes, and which grains a cache without room for all of them keeps: worked out from plan and
//! shards before anything is filled. Pure. Nodes go by it, and so do predictions of their reads.

mod kept;

use std::collections::BTreeMap;

use shardd_plan::{Plan, Selection};

use crate::node::{NodeId, NodeRecord};
use crate::protocol::{Placement, Room};

pub use kept::Kept;

/// Bytes before each grain in a cache.
pub const RECORD_HEADER: u64 = 64;

/// The header of a segment, more or less, and how many segments there are of a class that is large.
const HEADER: u64 = 128;
const SEGMENTS: u64 = 32;
/// Grains are apart by up to this number of chunks of an epoch, and by as many epochs as it takes until all
/// have left, up to this number.
const MOST_CHUNKS: u64 = 16;
const MOST_EPOCHS: u64 = 200;

/// The rows of a shard, and their canonical bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardRows {
    /// The rows.
    pub rows: u32,
    /// Their bytes.
    pub row_bytes: u64,
}

/// How much of a cache the grains of a shard take, `grain_rows` rows each: their rows, where each ends, their paths, and the
/// headers of their records.
#[must_use]
pub fn resting_bytes(shard: ShardRows, grain_rows: u32) -> u64 {
    let ShardRows { rows, row_bytes } = shard;
    let grains = u64::from(rows.div_ceil(grain_rows.max(1)));
    let path = u64::from(grains.next_power_of_two().trailing_zeros()) * 32;
    let each = RECORD_HEADER + 8 + path + 7;
    row_bytes.saturating_add(u64::from(rows) * 4).saturating_add(grains * each)
}

/// How much of a cache one grain of a shard takes that has `grain` of its rows.
#[must_use]
pub fn resting_bytes_of(grain: u32, shard: ShardRows, grain_rows: u32) -> u64 {
    let resting = u128::from(resting_bytes(shard, grain_rows));
    (resting * u128::from(grain)).div_ceil(u128::from(shard.rows.max(1))) as u64
}

/// The space of a run's grains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Of one partition, the most there is at any instant: its grains, those that have arrived before their
    /// epoch, and two chunks that have been sent and not acknowledged.
    pub partition_bytes: u64,
    /// Of one partition, the bytes read in an epoch.
    pub read_bytes: u64,
    /// The same, as rows in the store.
    row_bytes: u64,
    /// Of the kept grains, the part that leaves its partition with two chunks, in units of 2^-32: while they
    /// are on their way they lie on both sides.
    on_its_way: u64,
    /// Into how many classes it falls that leave one after the other.
    classes: u64,
    /// The number of epochs after which all grains of a partition have moved to others; `None` if the plan does not say.
    pub epochs_to_leave: Option<u32>,
}

impl Needs {
    /// Of a plan over shards.
    #[must_use]
    pub fn of(plan: &Plan, shards: impl IntoIterator<Item = ShardRows>) -> Self {
        let document = plan.document();
        let grain_rows = document.grain_rows;
        let (mut resting, mut row_bytes) = (0_u64, 0_u64);
        for shard in shards {
            resting = resting.saturating_add(resting_bytes(shard, grain_rows));
            row_bytes = row_bytes.saturating_add(shard.row_bytes);
        }
        let partitions = u64::from(document.partitions);
        let read_bytes = resting.div_ceil(partitions);
        // The share that moves, and two chunks of it more, in units of 2^-32.
        let moved = u128::from(document.schedule.largest().units());
        let coming = moved + 2 * moved / u128::from(document.chunks);
        let extra = (u128::from(read_bytes) * coming) >> 32;
        let partition_bytes = read_bytes.saturating_add(u64::try_from(extra).unwrap_or(u64::MAX));
        let on_its_way = match document.selection {
            Selection::Cyclic => moved.min(2 * moved / u128::from(document.chunks)),
            // It is not known which grain leaves with which chunk: all of it lies on both sides until its
            // epoch ends.
            Selection::Independent => coming,
        };
        let on_its_way = u64::try_from(on_its_way).unwrap_or(u64::MAX);
        let row_bytes = row_bytes.div_ceil(partitions);
        let epochs =
            (1_u64 << 32).checked_div(document.schedule.largest().units()).map_or(0, |epochs| epochs + 1);
        let classes = u64::from(document.chunks).min(MOST_CHUNKS) * epochs.min(MOST_EPOCHS);
        let least = document.schedule.shares().iter().map(|share| share.units()).min().unwrap_or(0);
        let epochs_to_leave = match document.selection {
            Selection::Cyclic if least > 0 => u32::try_from((1_u64 << 32).div_ceil(least)).ok(),
            Selection::Cyclic | Selection::Independent => None,
        };
        let partition_bytes = partition_bytes.max(1);
        Needs { partition_bytes, read_bytes, row_bytes, on_its_way, classes, epochs_to_leave }
    }

    /// Of the run's segments, the bytes that are not of its grains.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        (SEGMENTS + 2 * self.classes) * HEADER
    }

    /// Of partitions that need and have this number of bytes, of which none moves.
    #[must_use]
    pub fn of_bytes(partition_bytes: u64, read_bytes: u64) -> Self {
        let row_bytes = read_bytes;
        Needs { partition_bytes, read_bytes, row_bytes, on_its_way: 0, classes: 0, epochs_to_leave: None }
    }

    /// How much of `hosted` partitions a node keeps in a cache with `free` bytes for them, if that has no room for all of it and
    /// for grains on their way. `hosts` nodes host the others.
    #[must_use]
    pub fn kept_bytes(&self, hosted: u64, free: u64, hosts: u64) -> Option<u64> {
        if hosted.saturating_mul(self.partition_bytes) <= free {
            return None;
        }
        // A grain that moves to a partition of the same node stays in its place.
        let others = u128::from(hosts.saturating_sub(1));
        let elsewhere = (u128::from(self.on_its_way) * others).div_ceil(u128::from(hosts.max(1)));
        // Half of what moves, or a third, moves to a partition of the same node, and leaves it epochs later.
        let headers = if others > 0 { self.segment_bytes() } else { SEGMENTS * HEADER };
        let room = u128::from(free.saturating_sub(headers)) << 32;
        Some(u64::try_from(room / ((1 << 32) + elsewhere)).unwrap_or(u64::MAX))
    }

    /// How many partitions have room in a cache of `bytes`.
    #[must_use]
    pub fn room_in(&self, bytes: u64) -> usize {
        usize::try_from(bytes / self.partition_bytes).unwrap_or(usize::MAX)
    }

    /// Whether the hosts of a placement have room for it, each with the bytes that `free` gives it.
    #[must_use]
    pub fn room(&self, placement: &Placement, free: &BTreeMap<NodeId, u64>) -> Room {
        let mut room =
            Room { needed_bytes: 0, cache_bytes: 0, from_store_bytes_per_epoch: 0, by_rows: false };
        for host in &placement.hosts {
            let hosted = placement.hosted_by(host).count() as u64;
            let (needed, free) =
                (hosted.saturating_mul(self.partition_bytes), free.get(host).copied().unwrap_or(0));
            room.needed_bytes = room.needed_bytes.saturating_add(needed);
            room.cache_bytes = room.cache_bytes.saturating_add(free);
            let Some(kept) = self.kept_bytes(hosted, free, placement.hosts.len() as u64) else { continue };
            let resting = hosted.saturating_mul(self.read_bytes);
            let lacking = u128::from(resting.saturating_sub(kept));
            let read =
                lacking * u128::from(hosted.saturating_mul(self.row_bytes)) / u128::from(resting.max(1));
            room.by_rows = true;
            room.from_store_bytes_per_epoch =
                room.from_store_bytes_per_epoch.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        }
        room
    }
}

/// The share of a run that needs a number of bytes of a cache in which others need some, too.
#[must_use]
pub fn share(cache_bytes: u64, needed: u64, others: u64) -> u64 {
    let (all, own) = (u128::from(needed) + u128::from(others), u128::from(cache_bytes) * u128::from(needed));
    let fair = own.checked_div(all).map_or(cache_bytes, |fair| u64::try_from(fair).unwrap_or(u64::MAX));
    cache_bytes.saturating_sub(others).max(fair)
}

/// The room of each node's cache for a run, beside the room reserved for others.
#[must_use]
pub fn free<'a>(
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn two_runs_have_what_they_need_of_a_cache_or_no_more_than_there_is(
            cache in 0..1u64 << 50, one in 0..1u64 << 50, other in 0..1u64 << 50,
        ) {
            let (first, second) = (share(cache, one, other), share(cache, other, one));
            match one + other <= cache {
                true => prop_assert!(first >= one && second >= other),
                false => prop_assert!(first + second <= cache),
            }
        }

        #[test]
        fn what_is_kept_and_what_is_on_its_way_fit_in_the_cache(
            read_bytes in 1..1u64 << 40, hosted in 1..100u64, hosts in 1..100u64, part in 0..100u64,
            units in 0..=1u64 << 32, chunks in 1..100u64,
        ) {
            let on_its_way = units.min(2 * units / chunks);
            let partition_bytes = read_bytes + u64::try_from((u128::from(read_bytes) * u128::from(units)) >> 32).expect("less");
            let needs = Needs { on_its_way, ..Needs::of_bytes(partition_bytes, read_bytes) };
            let free = hosted * partition_bytes / 100 * part;
            if let Some(kept) = needs.kept_bytes(hosted, free, hosts) {
                let coming = (u128::from(kept) * u128::from(on_its_way) / u128::from(hosts) * u128::from(hosts - 1)) >> 32;
                prop_assert!(u128::from(kept) + coming <= u128::from(free));
            }
        }
    }
}
