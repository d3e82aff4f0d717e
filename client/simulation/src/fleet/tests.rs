use super::*;

fn fleet(nodes: usize, looks: usize) -> Fleet {
    Fleet { nodes, looks, partition_bytes: 256 << 20, link: 1 << 30, noise: 0.2, hiccups: 0.0, seed: 7 }
}

/// One node takes `times` as long between these looks.
fn slow(node: usize, times: f64, looks: std::ops::Range<usize>) -> impl Fn(usize, usize) -> Speed {
    move |number, look| Speed::Times(if number == node && looks.contains(&look) { times } else { 1.0 })
}

#[test]
fn a_slow_node_costs_little_with_the_balancer() {
    for nodes in [4, 10, 100] {
        let fleet = fleet(nodes, 400);
        let speed = |number, look| slow(1, 8.0, 20..300)(number, look);
        let (without, with) = (play(&fleet, Mode::Observe, speed), play(&fleet, Mode::On, speed));
        assert!(without.lost > 0.5, "{nodes} nodes: {without:?}");
        assert!(with.lost < without.lost / 3.0, "{nodes} nodes: {with:?} beside {without:?}");
        assert_eq!(without.moved, 0, "what is only observed moves nothing");
        assert!(with.decisions < 30 && with.recovered == Some(0), "{with:?}");
    }
}

#[test]
fn the_partitions_of_a_slow_node_come_back_and_no_others_move() {
    let fleet = fleet(10, 400);
    let with = play(&fleet, Mode::On, slow(3, 8.0, 20..200));
    // All but its share go, and come back.
    let most = 2 * PARTITIONS;
    assert!(with.moved <= most * 12 / 10, "{with:?}");
}

#[test]
fn healthy_nodes_are_left_alone_for_a_thousand_hours() {
    // Each node is ten times slower at one look in five hundred.
    let fleet = Fleet { noise: 0.3, hiccups: 0.002, ..fleet(10, 0) };
    let speeds: BTreeMap<NodeId, f64> = (0..10).map(|number| (name(number), 1.0)).collect();
    let settings = Settings { mode: Mode::On, ..Settings::default() };
    let mut record = BalancerRecord { settings, ..BalancerRecord::default() };
    for number in 0..1000 * 360 {
        let slowness = slowness(&fleet.measured(&speeds, number), &[]);
        let nodes = speeds.keys().cloned().collect();
        let look =
            Look { elapsed: LOOK, nodes, partitions: 160, bytes: 1 << 30, slowness, ..Look::default() };
        record = decide(&record, &look).unwrap_or(record);
    }
    assert!(record.journal.is_empty(), "{:?}", record.journal);
}

#[test]
fn nodes_that_come_and_go_move_little_more_than_they_must() {
    let fleet = fleet(20, 300);
    // Three go at once, and come back.
    let speed = |number, look: usize| match number < 3 && (50..150).contains(&look) {
        true => Speed::Gone,
        false => Speed::Times(1.0),
    };
    let played = play(&fleet, Mode::On, speed);
    let (all, left) = ((0..20).collect(), (3..20).collect());
    let least = fewest_moves(&all, &left) + fewest_moves(&left, &all);
    assert!(played.moved <= least * 12 / 10, "{played:?}, at least {least}");
    assert_eq!((played.decisions, played.orphans), (0, 3 * PARTITIONS));
}

#[test]
fn a_fleet_whose_half_is_slower_shares_by_speed() {
    let fleet = fleet(16, 1200);
    let speed = |number, _| Speed::Times(if number % 2 == 0 { 6.0 } else { 1.0 });
    let (without, with) = (play(&fleet, Mode::Observe, speed), play(&fleet, Mode::On, speed));
    // Most of the rest is lost until the budget has let the partitions move.
    assert!(without.lost > 0.6 && with.lost < without.lost / 3.0, "{with:?} beside {without:?}");
}
