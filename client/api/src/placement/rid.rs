//! A placement without some of its nodes, for a run without readers: there is nothing to copy and no rank to
//! wait for.

use std::collections::{BTreeMap, BTreeSet};

use crate::node::NodeId;
use crate::protocol::Placement;

/// `current` without the `leaving` nodes: their partitions go to those of the `staying` that host least.
/// `None` if it names none of them, or no node stays.
pub fn without(current: &Placement, leaving: &BTreeSet<NodeId>, staying: &[NodeId]) -> Option<Placement> {
    let partitions = current.of_partition.len() as u32;
    let is_named = current.hosts.iter().chain(current.departed.keys()).any(|node| leaving.contains(node));
    if !is_named || staying.iter().all(|node| leaving.contains(node)) {
        return None;
    }
    let kept = |partition: u32| Some(current.host(partition)).filter(|host| !leaving.contains(*host));
    let mut loads: BTreeMap<&NodeId, usize> =
        staying.iter().filter(|node| !leaving.contains(*node)).map(|node| (node, 0)).collect();
    for host in (0..partitions).filter_map(kept) {
        *loads.entry(host).or_default() += 1;
    }
    let takers: BTreeSet<&NodeId> = staying.iter().filter(|node| !leaving.contains(*node)).collect();
    let mut at: Vec<NodeId> = Vec::with_capacity(partitions as usize);
    for partition in 0..partitions {
        let host = kept(partition).unwrap_or_else(|| {
            let least = takers.iter().min_by_key(|node| loads.get(**node)).expect("one node stays");
            *loads.entry(least).or_default() += 1;
            least
        });
        at.push(host.clone());
    }
    let hosts: Vec<NodeId> = at.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect();
    let index_of = |node: &NodeId| hosts.binary_search(node).expect("every host is listed");
    let of_partition = at.iter().map(|node| u16::try_from(index_of(node)).expect("no more than there were"));
    let departed = current.departed.iter().filter(|(node, _)| !leaving.contains(*node));
    Some(Placement {
        generation: current.generation + 1,
        of_partition: of_partition.collect(),
        moved: Vec::new(),
        departed: departed.map(|(node, partitions)| (node.clone(), partitions.clone())).collect(),
        hosts,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::placement::{Host, place};

    proptest! {
        #[test]
        fn what_a_leaving_node_hosted_goes_to_those_that_host_least_and_nothing_else_moves(
            nodes in 1usize..7, partitions in 1usize..60, leaving in prop::collection::btree_set(0usize..7, 0..4),
        ) {
            let all: Vec<NodeId> = (0..nodes).map(|n| format!("n{n}").parse().expect("a good name")).collect();
            let hosts: Vec<Host> = all.iter().cloned().map(Host::roomy).collect();
            let current = place(&hosts, &vec![None; partitions], None).expect("the first is new");
            let leaving: BTreeSet<NodeId> =
                leaving.iter().filter_map(|n| all.get(*n)).cloned().collect();
            let Some(next) = without(&current, &leaving, &all) else {
                let is_named = current.hosts.iter().any(|host| leaving.contains(host));
                prop_assert!(!is_named || leaving.len() == nodes);
                return Ok(());
            };
            prop_assert!(next.hosts.iter().all(|host| !leaving.contains(host)));
            prop_assert_eq!(next.generation, current.generation + 1);
            for partition in (0..partitions as u32).filter(|p| !leaving.contains(current.host(*p))) {
                prop_assert_eq!(next.host(partition), current.host(partition));
            }
            let loads: Vec<usize> = (all.iter().filter(|node| !leaving.contains(*node)))
                .map(|node| next.hosted_by(node).count()).collect();
            let (least, most) = (loads.iter().min(), loads.iter().max());
            prop_assert!(most.expect("one node stays") - least.expect("one node stays") <= 1, "{:?}", loads);
            prop_assert_eq!(without(&next, &leaving, &all), None, "once is enough");
        }
    }
}
