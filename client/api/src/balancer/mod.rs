//! Decides which share of the partitions each node hosts: a node that is slower than the others hosts fewer, until it
//! is as fast as they are. Pure: the record of earlier looks and the observations of one look in, the record and the
//! decisions out. Placement does the rest; it changes the speed of reading, never the samples.
//!
//! Slowness is relative: the time of a node beside the median of the others, by the worst of its signals. A share
//! changes only when several looks in a row ask for it, and each change back takes twice as long as the one before,
//! so a node that wavers is left alone. The bytes of all changes stay within a budget.

mod decide;
mod record;
mod slowness;

#[cfg(test)]
mod tests;

pub use decide::{Look, decide};
pub use record::{BalancerRecord, Decision, Forecast, Mode, Outcome, Settings, Share, Standing};
pub use slowness::{FAST_READ_MICROS, NodeLoad, Signal, Slowness, slowness, stretched};

use std::collections::BTreeMap;

use crate::node::NodeId;

/// How many of `partitions` each node may host that has less than a full share: its part of them all, and one at
/// least unless it has none. Nodes with a full share host the rest, and are not listed.
pub fn caps(partitions: usize, shares: &BTreeMap<NodeId, Share>) -> BTreeMap<NodeId, usize> {
    let all: usize = shares.values().map(|share| usize::from(share.eighths())).sum();
    let limited = shares.iter().filter(|(_, share)| !share.is_full());
    let cap = |share: &Share| (partitions * usize::from(share.eighths()) + all / 2) / all.max(1);
    limited.map(|(node, share)| (node.clone(), cap(share).max(usize::from(*share > Share::NONE)))).collect()
}
