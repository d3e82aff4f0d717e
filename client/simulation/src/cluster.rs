//! Nodes that come, leave and die, and the placement that follows them. Does not know the exchange.

use std::collections::BTreeSet;

use serde::Serialize;
use shardd_api::node::NodeId;
use shardd_api::placement::{Host, place, preferences};
use shardd_api::protocol::{Placement, RanksRecord};
use shardd_plan::{Partition, Permutation, Plan};

use super::{Event, EventKind};

/// The live nodes of a run, one rank at each as it begins, and who hosts what.
///
/// Ranks keep their number for the whole run: that of a node that is gone stays empty until another joins.
pub(super) struct Cluster<'p> {
    plan: &'p Plan,
    /// Sorted by name; names are given in ascending order and only once.
    nodes: Vec<NodeId>,
    named: u32,
    ranks: RanksRecord,
    virtual_ranks: u32,
    placement: Placement,
    /// Samples of each host of the placement that it keeps only until their new host has them.
    kept: Vec<u64>,
}

/// The moves of the placement when nodes came or went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Change {
    /// Nodes that came.
    pub joined: u32,
    /// Nodes that were drained.
    pub left: u32,
    /// Nodes that were lost.
    pub died: u32,
    /// Partitions that got another host.
    pub partitions_moved: u64,
    /// Samples that their new hosts had from the hosts before.
    pub samples_from_peers: u64,
    /// Samples whose host was lost: read from the store again.
    pub samples_from_store: u64,
}

impl<'p> Cluster<'p> {
    pub(super) fn new(plan: &'p Plan, nodes: u32) -> Self {
        let named = nodes;
        let nodes: Vec<NodeId> = (0..nodes).map(name).collect();
        let ranks = RanksRecord {
            launch: 1,
            world: named,
            epoch: 0,
            reached: 0,
            nodes: nodes.iter().cloned().map(Some).collect(),
            seen: None,
            lost: Vec::new(),
        };
        let virtual_ranks = plan.fewest_virtual_ranks(ranks.world);
        let preferred = preferences(plan, virtual_ranks, &ranks);
        let placement = place(&roomy(&nodes), &preferred, None).expect("the first placement is new");
        let kept = vec![0; placement.hosts.len()];
        Cluster { plan, nodes, named, ranks, virtual_ranks, placement, kept }
    }

    /// Lets the events of an epoch happen; `None` if there are none.
    pub(super) fn change<'e>(
        &mut self,
        events: impl Iterator<Item = &'e Event>,
        seed: u64,
        epoch: u32,
    ) -> Option<Change> {
        self.kept.fill(0);
        let mut change = Change::default();
        let mut dead = BTreeSet::new();
        let mut any = false;
        for (number, event) in (0u32..).zip(events) {
            any = true;
            match event.kind {
                EventKind::Join => {
                    change.joined += event.nodes;
                    self.join(event.nodes);
                }
                EventKind::Leave => {
                    change.left += event.nodes;
                    self.part(event.nodes, &choice(seed, epoch, number));
                }
                EventKind::Death => {
                    change.died += event.nodes;
                    dead.extend(self.part(event.nodes, &choice(seed, epoch, number)));
                }
            }
        }
        any.then(|| {
            self.settle(&mut change, &dead);
            change
        })
    }

    fn join(&mut self, count: u32) {
        let new: Vec<NodeId> = (self.named..self.named + count).map(name).collect();
        self.named += count;
        let free = self.ranks.nodes.iter_mut().filter(|rank| rank.is_none());
        free.zip(&new).for_each(|(rank, node)| *rank = Some(node.clone()));
        self.nodes.extend(new);
    }

    /// Takes `count` nodes away, chosen by the key.
    fn part(&mut self, count: u32, key: &[u8; 32]) -> BTreeSet<NodeId> {
        let chosen = Permutation::new(key, self.nodes.len() as u64);
        let gone: BTreeSet<NodeId> =
            (0..u64::from(count)).map(|n| self.nodes[chosen.apply(n) as usize].clone()).collect();
        self.nodes.retain(|node| !gone.contains(node));
        for rank in &mut self.ranks.nodes {
            rank.take_if(|node| gone.contains(node));
        }
        gone
    }

    fn settle(&mut self, change: &mut Change, dead: &BTreeSet<NodeId>) {
        let Some(next) = place(&roomy(&self.nodes), &self.preferred(), Some(&self.placement)) else { return };
        let mut kept = vec![0; next.hosts.len()];
        for partition in self.plan.partitions() {
            let old = self.placement.host(partition.0);
            if old == next.host(partition.0) {
                continue;
            }
            let samples = self.plan.partition_samples(partition);
            change.partitions_moved += 1;
            match dead.contains(old) {
                true => change.samples_from_store += samples,
                false => change.samples_from_peers += samples,
            }
            if let Ok(still_here) = next.hosts.binary_search(old) {
                kept[still_here] += samples;
            }
        }
        (self.placement, self.kept) = (next, kept);
    }

    fn preferred(&self) -> Vec<Option<NodeId>> {
        preferences(self.plan, self.virtual_ranks, &self.ranks)
    }

    /// Who hosts what.
    pub(super) fn placement(&self) -> &Placement {
        &self.placement
    }

    pub(super) fn live_count(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// V.
    pub(super) fn virtual_ranks(&self) -> u32 {
        self.virtual_ranks
    }

    /// The samples that each host of the placement has on its disk before the exchange of the epoch.
    pub(super) fn held(&self) -> Vec<u64> {
        let mut held = self.kept.clone();
        for (partition, host) in (0..).map(Partition).zip(&self.placement.of_partition) {
            held[usize::from(*host)] += self.plan.partition_samples(partition);
        }
        held
    }

    /// For each host of the placement, the samples of an epoch that its rank reads elsewhere.
    pub(super) fn remote(&self) -> Vec<u64> {
        let mut remote = vec![0; self.placement.hosts.len()];
        for (partition, wish) in (0..).map(Partition).zip(self.preferred()) {
            if let Some(reader) = wish.filter(|node| node != self.placement.host(partition.0)) {
                let at = self.placement.hosts.binary_search(&reader);
                let at = at.expect("a node with a rank hosts a partition of it");
                remote[at] += self.plan.partition_samples(partition);
            }
        }
        remote
    }
}

fn roomy(nodes: &[NodeId]) -> Vec<Host> {
    nodes.iter().cloned().map(Host::roomy).collect()
}

pub(crate) fn name(number: u32) -> NodeId {
    format!("n{number:010}").parse().expect("letters and digits make a name")
}

/// Decides who goes.
fn choice(seed: u64, epoch: u32, number: u32) -> [u8; 32] {
    let mut material = [0; 16];
    material[..8].copy_from_slice(&seed.to_le_bytes());
    material[8..12].copy_from_slice(&epoch.to_le_bytes());
    material[12..].copy_from_slice(&number.to_le_bytes());
    blake3::derive_key("shardd simulate 2026 v1 gone", &material)
}
