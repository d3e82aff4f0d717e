//! Steps from one placement towards another, a few partitions at a time: a moved partition has to be copied,
//! and reads slower meanwhile. The old host of a partition keeps its grains until the new host has them.

use std::collections::BTreeMap;

use crate::node::NodeId;
use crate::protocol::Placement;

/// How many partitions a node is given at once.
pub const MOST_AT_ONCE: usize = 2;

/// The next placement on the way from `current` to `target`: every partition whose host is not among the `live` ones moves at
/// once, of the others at most `most` to each node, those of nodes that will host nothing first. `None` if nothing may move.
pub fn step(current: &Placement, target: Placement, live: &[NodeId], most: usize) -> Option<Placement> {
    let is_live = |node: &NodeId| live.binary_search(node).is_ok();
    let stays_host = |node: &NodeId| target.hosted_by(node).next().is_some();
    let (orphans, mut movable): (Vec<u32>, Vec<u32>) =
        target.moved.iter().partition(|partition| !is_live(current.host(**partition)));
    movable.sort_by_key(|partition| stays_host(current.host(*partition)));

    let mut given = vec![0; target.hosts.len()];
    movable.retain(|partition| {
        let given = &mut given[usize::from(target.of_partition[*partition as usize])];
        *given += 1;
        *given <= most
    });
    let mut moved: Vec<u32> = orphans.into_iter().chain(movable).collect();
    moved.sort_unstable();
    if moved.is_empty() {
        return None;
    }
    if moved.len() == target.moved.len() {
        return Some(target);
    }

    let mut hosts: Vec<NodeId> = target.hosts.clone();
    let waiting = |partition: &u32| moved.binary_search(partition).is_err();
    let keepers = target.moved.iter().filter(|partition| waiting(partition));
    hosts.extend(keepers.clone().map(|partition| current.host(*partition).clone()));
    hosts.sort_unstable();
    hosts.dedup();
    let index_of = |node: &NodeId| {
        let at = hosts.binary_search(node).expect("every host is listed");
        u16::try_from(at).expect("at most 65,536 nodes")
    };
    let mut of_partition: Vec<u16> =
        (0..target.of_partition.len() as u32).map(|partition| index_of(target.host(partition))).collect();
    for partition in keepers {
        of_partition[*partition as usize] = index_of(current.host(*partition));
    }
    let mut next =
        Placement { generation: target.generation, hosts, of_partition, moved, departed: BTreeMap::new() };
    for (node, mut partitions) in target.departed {
        partitions.retain(|partition| *next.host(*partition) != node);
        if !partitions.is_empty() {
            next.departed.insert(node, partitions);
        }
    }
    Some(next)
}
