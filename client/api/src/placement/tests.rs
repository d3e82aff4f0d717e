use proptest::prelude::*;

use super::*;

fn names(count: usize) -> Vec<NodeId> {
    (0..count).map(|n| format!("n{n:03}").parse().expect("a good name")).collect()
}

fn roomy(nodes: &[NodeId]) -> Vec<Host> {
    nodes.iter().cloned().map(Host::roomy).collect()
}

fn loads(placement: &Placement, nodes: &[NodeId]) -> Vec<usize> {
    nodes.iter().map(|node| placement.hosted_by(node).count()).collect()
}

fn moved(before: &Placement, after: &Placement) -> Vec<u32> {
    (0..before.of_partition.len() as u32).filter(|p| before.host(*p) != after.host(*p)).collect()
}

/// How many partitions have to move: what each of the nodes has too much of, and what those had that are gone.
fn fewest_moves(current: &Placement, nodes: &[NodeId]) -> usize {
    let partitions = current.of_partition.len();
    let (base, extras) = (partitions / nodes.len(), partitions % nodes.len());
    let loads = loads(current, nodes);
    let above = |load: &usize| load.saturating_sub(base);
    let kept_extras = loads.iter().filter(|load| **load > base).count().min(extras);
    let stay = loads.iter().map(|load| load - above(load)).sum::<usize>() + kept_extras;
    partitions - stay
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn every_partition_has_a_live_host_and_all_host_the_same_give_or_take_one(
        nodes in 1usize..9,
        wishes in prop::collection::vec(prop::option::of(0usize..12), 1..100),
        before in prop::option::of(1usize..9),
    ) {
        let all = names(12);
        let live = &all[..nodes];
        let preferred: Vec<_> = wishes.iter().map(|w| w.map(|w| all[w].clone())).collect();
        let none = vec![None; wishes.len()];
        let current = before.and_then(|count| place(&roomy(&all[12 - count..]), &none, None));
        let Some(next) = place(&roomy(live), &preferred, current.as_ref()) else {
            return Ok(()); // nothing to change: the current one is already the answer
        };
        let loads = loads(&next, live);
        let even = wishes.len() / nodes;
        prop_assert_eq!(loads.iter().sum::<usize>(), wishes.len());
        prop_assert!(loads.iter().all(|load| (even..=even + 1).contains(load)), "{:?} around {}", loads, even);
        prop_assert_eq!(place(&roomy(live), &preferred, Some(&next)), None, "placing again changes nothing");
    }

    #[test]
    fn no_more_moves_than_must_when_nodes_come_and_go(
        before in 1usize..9, after in 1usize..9, from in 0usize..9, partitions in 1usize..100,
    ) {
        let all = names(17);
        let none = vec![None; partitions];
        let current = place(&roomy(&all[..before]), &none, None).expect("the first placement is new");
        let live = &all[from.min(before)..][..after];
        let fewest = fewest_moves(&current, live);
        match place(&roomy(live), &none, Some(&current)) {
            None => prop_assert_eq!(fewest, 0),
            Some(next) => {
                prop_assert_eq!(moved(&current, &next).len(), fewest);
                prop_assert_eq!(&next.moved, &moved(&current, &next));
            }
        }
    }

    #[test]
    fn a_node_that_comes_back_gets_what_it_had(nodes in 2usize..9, partitions in 1usize..100, away in 0usize..9) {
        let all = names(nodes);
        let away = away % nodes;
        let none = vec![None; partitions];
        let first = place(&roomy(&all), &none, None).expect("the first placement is new");
        let mut left = all.clone();
        left.remove(away);
        let Some(second) = place(&roomy(&left), &none, Some(&first)) else {
            prop_assert_eq!(first.hosted_by(&all[away]).count(), 0);
            return Ok(());
        };
        if let Some(third) = place(&roomy(&all), &none, Some(&second)) {
            let had: Vec<u32> = first.hosted_by(&all[away]).collect();
            let has: Vec<u32> = third.hosted_by(&all[away]).collect();
            prop_assert!(has.iter().filter(|p| had.contains(p)).count() >= has.len().min(had.len()) - 1,
                "had {:?}, has {:?}", had, has);
        }
    }

    #[test]
    fn no_node_is_given_more_than_it_has_room_for(
        rooms in prop::collection::vec(0usize..40, 1..9), partitions in 1usize..100,
    ) {
        let nodes = names(rooms.len());
        let hosts: Vec<Host> = nodes.iter().cloned().zip(&rooms).map(|(node, room)| Host { node, room: *room }).collect();
        let placed = place(&hosts, &vec![None; partitions], None).expect("new");
        if rooms.iter().sum::<usize>() >= partitions {
            let loads = loads(&placed, &nodes);
            prop_assert!(loads.iter().zip(&rooms).all(|(load, room)| load <= room), "{:?} in {:?}", loads, rooms);
        }
        prop_assert_eq!(place(&hosts, &vec![None; partitions], Some(&placed)), None);
    }

    #[test]
    fn steps_reach_the_target_and_move_no_partition_twice(
        before in 1usize..9, after in 1usize..9, from in 0usize..9, dead in 0usize..3, partitions in 1usize..100,
    ) {
        let all = names(17);
        let none = vec![None; partitions];
        let mut now = place(&roomy(&all[..before]), &none, None).expect("the first placement is new");
        let candidates = roomy(&all[from.min(before).max(dead.min(before))..][..after]);
        // Those that are left of the others are drained; a few are dead.
        let live = &all[dead.min(before)..];
        let mut has_moved = vec![false; partitions];
        for round in 0.. {
            prop_assert!(round <= partitions, "no end");
            let Some(target) = place(&candidates, &none, Some(&now)) else { break };
            let next = step(&now, target, live, MOST_AT_ONCE).expect("something moves in each step");
            prop_assert_eq!(next.generation, now.generation + 1);
            prop_assert_eq!(&next.moved, &moved(&now, &next));
            for node in &all {
                let given = next.moved.iter().filter(|p| next.host(**p) == node && live.contains(now.host(**p)));
                prop_assert!(given.count() <= MOST_AT_ONCE);
            }
            for p in &next.moved {
                prop_assert!(!std::mem::replace(&mut has_moved[*p as usize], true), "{} moves twice", p);
            }
            prop_assert!((0..partitions as u32).all(|p| live.contains(next.host(p))), "an orphan waits");
            now = next;
        }
        prop_assert_eq!(loads(&now, &all).iter().sum::<usize>(), partitions);
    }
}

#[test]
fn placement_follows_the_ranks_and_keeps_virtual_ranks_together() {
    let all = names(4);
    let preferred: Vec<_> = (0..16).map(|p| Some(all[p / 4].clone())).collect();
    let placed = place(&roomy(&all), &preferred, None).expect("new");
    assert_eq!(placed.of_partition, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);

    // One rank on the second node: it gets its even share there, the rest is spread in runs.
    let one_rank: Vec<_> = (0..16).map(|_| Some(all[1].clone())).collect();
    let placed = place(&roomy(&all), &one_rank, None).expect("new");
    assert_eq!(placed.of_partition, [1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 2, 2, 3, 3, 3, 3]);
}

#[test]
fn a_step_waits_for_nothing_where_a_host_is_dead_and_moves_nothing_when_told_to_wait() {
    let all = names(3);
    let none = vec![None; 12];
    let first = place(&roomy(&all[..2]), &none, None).expect("new");
    let target = place(&roomy(&all), &none, Some(&first)).expect("the third takes its share");
    assert_eq!(step(&first, target.clone(), &all, 0), None);
    assert_eq!(step(&first, target.clone(), &all, 2).map(|next| next.moved.len()), Some(2));
    let target = place(&roomy(&all[1..]), &none, Some(&first)).expect("the first one is gone");
    let next = step(&first, target, &all[1..], 0).expect("orphans do not wait");
    assert_eq!(loads(&next, &all)[0], 0);
}
