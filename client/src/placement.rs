//! Decides which node hosts which partition. Knows nothing of time, network or storage.
//!
//! Placement follows the ranks: a partition is hosted where its rank reads, as far as every node hosts at most its even share;
//! what is left stays where it was, and only then is spread. Nothing here changes what is read, only how fast.

use shardfmt::plan::{Plan, VirtualRank};

use crate::node::NodeId;
use crate::protocol::{Placement, RanksRecord};

/// Places `partitions` partitions on the `nodes` (sorted, not empty).
///
/// `preferred` gives for each partition the node its rank reads at, if known; `current` the placement so far. Returns the next
/// placement, or `None` if `current` is already it.
pub fn place(
    nodes: &[NodeId],
    preferred: &[Option<NodeId>],
    current: Option<&Placement>,
) -> Option<Placement> {
    assert!(!nodes.is_empty(), "a placement needs a node");
    debug_assert!(nodes.is_sorted());
    let partitions = preferred.len();
    let cap = partitions.div_ceil(nodes.len());
    let mut load = vec![0usize; nodes.len()];
    let mut host: Vec<Option<usize>> = vec![None; partitions];
    let index_of = |node: &NodeId| nodes.binary_search(node).ok();

    let claim =
        |host: &mut Vec<Option<usize>>, load: &mut Vec<usize>, partition: usize, wish: Option<&NodeId>| {
            if let (None, Some(at)) = (host[partition], wish.and_then(index_of))
                && load[at] < cap
            {
                host[partition] = Some(at);
                load[at] += 1;
            }
        };
    for (partition, wish) in preferred.iter().enumerate() {
        claim(&mut host, &mut load, partition, wish.as_ref());
    }
    if let Some(current) = current {
        for partition in 0..partitions {
            claim(&mut host, &mut load, partition, Some(current.host(partition as u32)));
        }
    }
    spread(&mut host, &mut load, partitions);

    let of_partition: Vec<u16> = host
        .into_iter()
        .map(|at| u16::try_from(at.expect("spread leaves none out")).expect("at most 65,536 nodes"))
        .collect();
    if let Some(current) = current
        && (0..partitions).all(|p| nodes[usize::from(of_partition[p])] == *current.host(p as u32))
    {
        return None;
    }
    let generation = current.map_or(0, |current| current.generation) + 1;
    Some(Placement { generation, hosts: nodes.to_vec(), of_partition })
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

/// Gives what is left to the nodes in runs, so that neighbouring partitions (one virtual rank's) stay together.
fn spread(host: &mut [Option<usize>], load: &mut [usize], partitions: usize) {
    let nodes = load.len();
    let mut left = (0..partitions).filter(|&p| host[p].is_none()).collect::<Vec<_>>().into_iter();
    for (at, load) in load.iter_mut().enumerate() {
        let share = partitions / nodes + usize::from(at < partitions % nodes);
        for partition in left.by_ref().take(share.saturating_sub(*load)) {
            host[partition] = Some(at);
            *load += 1;
        }
    }
    for partition in left {
        let at = (0..nodes).min_by_key(|&at| load[at]).expect("there is a node");
        host[partition] = Some(at);
        load[at] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(count: usize) -> Vec<NodeId> {
        (0..count).map(|n| format!("n{n:03}").parse().expect("a good name")).collect()
    }

    fn loads(placement: &Placement, nodes: &[NodeId]) -> Vec<usize> {
        nodes.iter().map(|node| placement.hosted_by(node).count()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn every_partition_has_a_live_host_and_none_hosts_more_than_an_even_share(
            nodes in 1usize..9,
            wishes in prop::collection::vec(prop::option::of(0usize..12), 1..100),
            before in prop::option::of(1usize..9),
        ) {
            let all = names(12);
            let live = &all[..nodes];
            let preferred: Vec<_> = wishes.iter().map(|w| w.map(|w| all[w].clone())).collect();
            let none = vec![None; wishes.len()];
            let current = before.and_then(|count| place(&all[12 - count..], &none, None));
            let Some(next) = place(live, &preferred, current.as_ref()) else {
                return Ok(()); // nothing to change: the current one is already the answer
            };
            let cap = wishes.len().div_ceil(nodes);
            let loads = loads(&next, live);
            prop_assert_eq!(loads.iter().sum::<usize>(), wishes.len());
            prop_assert!(loads.iter().all(|load| *load <= cap), "{loads:?} over {cap}");
            prop_assert_eq!(place(live, &preferred, Some(&next)), None, "placing again changes nothing");
        }

        #[test]
        fn a_death_moves_only_what_the_dead_node_hosted(nodes in 2usize..9, partitions in 1usize..100, dead in 0usize..9) {
            let all = names(nodes);
            let dead = dead % nodes;
            let none = vec![None; partitions];
            let first = place(&all, &none, None).expect("the first placement is new");
            let mut left = all.clone();
            left.remove(dead);
            let Some(second) = place(&left, &none, Some(&first)) else {
                prop_assert_eq!(first.hosted_by(&all[dead]).count(), 0);
                return Ok(());
            };
            for p in 0..partitions as u32 {
                if first.host(p) != &all[dead] {
                    prop_assert_eq!(first.host(p), second.host(p));
                }
            }
        }
    }

    #[test]
    fn placement_follows_the_ranks_and_keeps_virtual_ranks_together() {
        let all = names(4);
        let preferred: Vec<_> = (0..16).map(|p| Some(all[p / 4].clone())).collect();
        let placed = place(&all, &preferred, None).expect("new");
        assert_eq!(placed.of_partition, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);

        // One rank on the second node: it gets its even share there, the rest is spread in runs.
        let one_rank: Vec<_> = (0..16).map(|_| Some(all[1].clone())).collect();
        let placed = place(&all, &one_rank, None).expect("new");
        assert_eq!(placed.of_partition, [1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 2, 2, 3, 3, 3, 3]);
    }
}
