//! Decides which node hosts which partition. Knows nothing of time, network or storage.
//!
//! Placement follows the ranks: a partition is hosted where its rank reads, while no node hosts more than its
//! even share and its room. The remaining partitions return to their previous host, else stay in place, and
//! are spread last. Placement changes the speed of reading, never the samples.

pub mod explain;
mod rid;
mod shares;
mod step;

use std::collections::BTreeMap;

use shardd_plan::{Plan, VirtualRank};

use crate::node::NodeId;
use crate::protocol::{Placement, RanksRecord};

pub use rid::without;
use shares::Shares;
pub use step::{MOST_AT_ONCE, step};

/// A node that can host partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The node.
    pub node: NodeId,
    /// How many partitions its cache has room for.
    pub room: usize,
}

impl Host {
    /// One with room for everything.
    pub fn roomy(node: NodeId) -> Self {
        Self { node, room: usize::MAX }
    }
}

/// Places partitions on the `hosts` (sorted by name, not empty).
///
/// `preferred` gives for each partition the node its rank reads at, if known; `current` the placement so far. Returns the next
/// placement, or `None` if `current` is already it.
pub fn place(hosts: &[Host], preferred: &[Option<NodeId>], current: Option<&Placement>) -> Option<Placement> {
    assert!(!hosts.is_empty(), "a placement needs a node");
    debug_assert!(hosts.is_sorted_by(|one, other| one.node < other.node));
    let partitions = preferred.len();
    let index_of = |node: &NodeId| hosts.binary_search_by(|host| host.node.cmp(node)).ok();
    let rooms: Vec<usize> = hosts.iter().map(|host| host.room).collect();
    let mut placing = Placing { shares: Shares::of(partitions, &rooms), at: vec![None; partitions] };

    for (partition, wish) in preferred.iter().enumerate() {
        placing.claim(partition, wish.as_ref().and_then(index_of));
    }
    if let Some(current) = current {
        let now: Vec<Option<usize>> = (0..).zip(preferred).map(|(p, _)| index_of(current.host(p))).collect();
        placing
            .give_back(&now, former_hosts(current).into_iter().map(|(p, node)| (p as usize, index_of(node))));
        for (partition, now) in now.into_iter().enumerate() {
            placing.claim(partition, now);
        }
    }
    placing.spread(hosts.len());

    let at: Vec<usize> = placing.at.into_iter().map(|at| at.expect("spread leaves none out")).collect();
    let is_current = |current: &Placement| (0..).zip(&at).all(|(p, at)| hosts[*at].node == *current.host(p));
    if current.is_some_and(is_current) {
        return None;
    }
    let nodes: Vec<NodeId> = hosts.iter().map(|host| host.node.clone()).collect();
    let departed = current.map_or_else(BTreeMap::new, |current| departed(current, &nodes));
    let of_partition =
        at.into_iter().map(|at| u16::try_from(at).expect("at most 65,536 nodes")).collect::<Vec<_>>();
    let moved = match current {
        None => Vec::new(),
        Some(current) => (0..)
            .zip(&of_partition)
            .filter(|(p, at)| nodes[usize::from(**at)] != *current.host(*p))
            .map(|(p, _)| p)
            .collect(),
    };
    let generation = current.map_or(0, |current| current.generation) + 1;
    Some(Placement { generation, hosts: nodes, of_partition, moved, departed })
}

/// For each partition whose last host has gone: who it was.
fn former_hosts(placement: &Placement) -> BTreeMap<u32, &NodeId> {
    let departed = placement.departed.iter();
    departed
        .flat_map(|(node, partitions)| partitions.iter().map(move |partition| (*partition, node)))
        .collect()
}

/// Who hosted what and is not among `nodes` any more.
fn departed(current: &Placement, nodes: &[NodeId]) -> BTreeMap<NodeId, Vec<u32>> {
    let before = former_hosts(current);
    let is_away = |node: &&NodeId| nodes.binary_search(node).is_err();
    let mut departed = BTreeMap::<NodeId, Vec<u32>>::new();
    for partition in 0..current.of_partition.len() as u32 {
        // The node lost last has the fresher copy.
        let candidates = [Some(current.host(partition)), before.get(&partition).copied()];
        if let Some(former) = candidates.into_iter().flatten().find(is_away) {
            departed.entry(former.clone()).or_default().push(partition);
        }
    }
    departed
}

/// For each partition the node where its rank reads; of ranks that do not fit the plan, none.
pub fn preferences(plan: &Plan, virtual_ranks: u32, ranks: &RanksRecord) -> Vec<Option<NodeId>> {
    let mut preferred = vec![None; plan.document().partitions as usize];
    if plan.check_ranks(ranks.world, virtual_ranks).is_err() {
        return preferred;
    }
    for (rank, node) in (0u32..).zip(&ranks.nodes) {
        for virtual_rank in Plan::virtual_ranks_of(rank, ranks.world, virtual_ranks) {
            for partition in plan.partitions_of(VirtualRank(virtual_rank), virtual_ranks) {
                preferred[partition as usize].clone_from(node);
            }
        }
    }
    preferred
}

/// Partitions that are being given to hosts, by index.
struct Placing {
    shares: Shares,
    at: Vec<Option<usize>>,
}

impl Placing {
    /// Gives the partition to the host, if it has none yet and the host may have it.
    fn claim(&mut self, partition: usize, host: Option<usize>) {
        if let (None, Some(host)) = (self.at[partition], host)
            && self.shares.give(host)
        {
            self.at[partition] = Some(host);
        }
    }

    /// Gives returned hosts their former partitions, as long as the host `now` has too many.
    fn give_back(&mut self, now: &[Option<usize>], formerly: impl Iterator<Item = (usize, Option<usize>)>) {
        let mut loads = BTreeMap::<usize, usize>::new();
        for host in now.iter().flatten() {
            *loads.entry(*host).or_default() += 1;
        }
        for (partition, former) in formerly {
            let (Some(host), Some(former)) = (now[partition], former) else { continue };
            let load = loads.get_mut(&host).expect("counted above");
            if self.at[partition].is_none() && !self.shares.is_within_base(host, *load) {
                self.claim(partition, Some(former));
                *load -= usize::from(self.at[partition].is_some());
            }
        }
    }

    /// Gives the rest to the hosts in runs, so that neighbouring partitions (one virtual rank's) stay
    /// together.
    fn spread(&mut self, hosts: usize) {
        let left: Vec<usize> = (0..self.at.len()).filter(|partition| self.at[*partition].is_none()).collect();
        let mut left = left.into_iter();
        for host in 0..hosts {
            while self.shares.give(host) {
                match left.next() {
                    Some(partition) => self.at[partition] = Some(host),
                    None => return,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
