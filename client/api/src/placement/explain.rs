//! Explains the hosts of partitions, and the costs and savings of planned moves. Pure, as the placement
//! itself: it decides nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Host;
use crate::node::NodeId;
use crate::protocol::Placement;

/// Why a partition is hosted where it is, and not elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Its rank reads there.
    ItsRank,
    /// It is going to move.
    Moves,
    /// No rank that reads it is attached: it stays where it was.
    NoRank,
    /// Its rank reads at a node that is gone.
    RankGone,
    /// Its rank reads at a node that is to host nothing.
    RankDraining,
    /// Its rank reads at a node whose cache has no room for more.
    RankFull,
    /// Its rank reads at a node that hosts its even share of the partitions read there. Another would have to
    /// leave it for this one: two copies, and as many bytes read elsewhere as before. That costs more than it
    /// saves, and is not done.
    RankShare,
}

/// Why a partition is to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// Its host is gone.
    HostGone,
    /// Its host is to host nothing.
    HostDrains,
    /// To where its rank reads.
    ItsRank,
    /// Its host has no room for its partitions.
    HostFull,
    /// So that all nodes host the same number.
    EvenShares,
}

/// The facts that explain a placement.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    hosts: &'a [Host],
    live: &'a [NodeId],
    preferred: &'a [Option<NodeId>],
    current: &'a Placement,
    target: &'a Placement,
    /// How many each node hosts now, and shall.
    loads: [BTreeMap<&'a NodeId, usize>; 2],
}

impl<'a> Facts<'a> {
    /// `hosts` may host and `live` ones live, both by name; `preferred` is for each partition the node its rank reads at, if
    /// known; `current` hosts, and `target` shall, if that is not the same.
    pub fn new(
        hosts: &'a [Host],
        live: &'a [NodeId],
        preferred: &'a [Option<NodeId>],
        current: &'a Placement,
        target: Option<&'a Placement>,
    ) -> Self {
        let target = target.unwrap_or(current);
        let loads = [current, target].map(|placement| {
            let mut loads = BTreeMap::new();
            for partition in 0..preferred.len() as u32 {
                *loads.entry(placement.host(partition)).or_default() += 1;
            }
            loads
        });
        Self { hosts, live, preferred, current, target, loads }
    }

    fn next_host(&self, partition: u32) -> &NodeId {
        self.target.host(partition)
    }

    /// Whether a node hosts at least this number, now (0) or then (1).
    fn hosts_at_least(&self, when: usize, node: &NodeId, count: usize) -> bool {
        self.loads[when].get(node).copied().unwrap_or(0) >= count
    }

    fn may_host(&self, node: &NodeId) -> Option<&Host> {
        self.hosts.binary_search_by(|host| host.node.cmp(node)).ok().map(|at| &self.hosts[at])
    }

    fn is_live(&self, node: &NodeId) -> bool {
        self.live.binary_search(node).is_ok()
    }

    /// Why a partition is where it is.
    #[must_use]
    pub fn why(&self, partition: u32) -> Why {
        let (now, next) = (self.current.host(partition), self.next_host(partition));
        let Some(reads_at) = &self.preferred[partition as usize] else {
            return if now == next { Why::NoRank } else { Why::Moves };
        };
        match self.may_host(reads_at) {
            _ if now != next => Why::Moves,
            _ if now == reads_at => Why::ItsRank,
            _ if !self.is_live(reads_at) => Why::RankGone,
            None => Why::RankDraining,
            Some(host) if self.hosts_at_least(1, reads_at, host.room) => Why::RankFull,
            Some(_) => Why::RankShare,
        }
    }

    /// Why a partition is to move; `None` if it is not.
    #[must_use]
    pub fn because(&self, partition: u32) -> Option<Because> {
        let (now, next) = (self.current.host(partition), self.next_host(partition));
        if now == next {
            return None;
        }
        Some(match self.may_host(now) {
            _ if !self.is_live(now) => Because::HostGone,
            None => Because::HostDrains,
            _ if self.preferred[partition as usize].as_ref() == Some(next) => Because::ItsRank,
            Some(host) if self.hosts_at_least(0, now, host.room.saturating_add(1)) => Because::HostFull,
            Some(_) => Because::EvenShares,
        })
    }

    /// How many partitions are read in an epoch at another node than the one that hosts them: now, and after all moves.
    #[must_use]
    pub fn read_elsewhere(&self) -> (u64, u64) {
        let elsewhere = |placement: &Placement| {
            let preferred = (0u32..).zip(self.preferred);
            preferred.filter(|(p, at)| at.as_ref().is_some_and(|at| at != placement.host(*p))).count() as u64
        };
        (elsewhere(self.current), elsewhere(self.target))
    }

    /// The effect of a move on the number of partitions read elsewhere in an epoch: 1 less, 1 more, or
    /// nothing.
    #[must_use]
    pub fn saves(&self, partition: u32) -> i64 {
        let Some(reads_at) = &self.preferred[partition as usize] else { return 0 };
        let is_elsewhere = |host: &NodeId| i64::from(host != reads_at);
        is_elsewhere(self.current.host(partition)) - is_elsewhere(self.next_host(partition))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::place;
    use super::*;

    fn names(count: usize) -> Vec<NodeId> {
        (0..count).map(|n| format!("n{n:03}").parse().expect("a good name")).collect()
    }

    fn hosts(nodes: &[NodeId], room: usize) -> Vec<Host> {
        nodes.iter().map(|node| Host { node: node.clone(), room }).collect()
    }

    proptest! {
        #[test]
        fn reasons_agree_with_what_is_moved_and_savings_add_up(
            before in 1usize..6, dead in 0usize..3, drained in 0usize..2, room in 1usize..40,
            reads in prop::collection::vec(prop::option::of(0usize..8), 1..60),
        ) {
            let all = names(8);
            let preferred: Vec<_> = reads.iter().map(|at| at.map(|at| all[at].clone())).collect();
            let none = vec![None; preferred.len()];
            let current = place(&hosts(&all[..before], usize::MAX), &none, None).expect("new");
            let (live, may_host) = (&all[dead..], hosts(&all[dead + drained..], room));
            let target = place(&may_host, &preferred, Some(&current));
            let facts = Facts::new(&may_host, live, &preferred, &current, target.as_ref());
            let mut saved = 0;
            for p in 0..preferred.len() as u32 {
                let (now, next) = (current.host(p), target.as_ref().unwrap_or(&current).host(p));
                prop_assert_eq!(facts.because(p).is_some(), now != next);
                prop_assert_eq!(facts.why(p) == Why::Moves, now != next);
                prop_assert_eq!(facts.because(p) == Some(Because::HostGone), now != next && !live.contains(now));
                if facts.because(p) == Some(Because::ItsRank) {
                    prop_assert_eq!(facts.saves(p), 1);
                }
                if facts.why(p) == Why::RankShare {
                    // A node full of partitions read there gives nothing away for this one.
                    let reads_at = preferred[p as usize].as_ref().expect("known");
                    let placement = target.as_ref().unwrap_or(&current);
                    let all_are_read_there =
                        placement.hosted_by(reads_at).all(|q| preferred[q as usize].as_ref() == Some(reads_at));
                    prop_assert!(all_are_read_there);
                }
                saved += facts.saves(p);
            }
            let (now, then) = facts.read_elsewhere();
            prop_assert_eq!(now as i64 - then as i64, saved);
        }
    }

    #[test]
    fn each_reason_is_given_where_it_holds() {
        let all = names(3);
        let live = &all[..];
        let preferred: Vec<_> = [0, 0, 0, 0, 1, 2].map(|at| Some(all[at].clone())).into();
        let may_host = hosts(&all[..2], usize::MAX);
        let current = place(&may_host, &preferred, None).expect("new");
        let facts = Facts::new(&may_host, live, &preferred, &current, None);
        let whys: Vec<Why> = (0..6).map(|p| facts.why(p)).collect();
        let (here, share) = (Why::ItsRank, Why::RankShare);
        assert_eq!(whys, [here, here, here, share, here, Why::RankDraining]);
        assert_eq!(facts.read_elsewhere(), (2, 2));

        // The third node may host: it gets the partitions read there.
        let may_host = hosts(&all, usize::MAX);
        let target = place(&may_host, &preferred, Some(&current));
        let facts = Facts::new(&may_host, live, &preferred, &current, target.as_ref());
        assert_eq!((facts.why(5), facts.because(5), facts.saves(5)), (Why::Moves, Some(Because::ItsRank), 1));
    }
}
