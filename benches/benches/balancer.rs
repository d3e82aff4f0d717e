//! Fleets with slow nodes, in the simulator: the time that training loses without the balancer and with it, and what
//! moves. `cargo bench -p shardd-benches --bench balancer` plays 10 and 100 nodes in a minute; other sizes are
//! arguments: `cargo bench -p shardd-benches --bench balancer -- 4096`.

use std::collections::BTreeSet;
use std::f64::consts::PI;

use shardd_api::balancer::Mode;
use shardd_simulation::fleet::{Fleet, PARTITIONS, Played, Speed, fewest_moves, play};

/// Two hours and twenty minutes.
const LOOKS: usize = 840;

/// What happens to a fleet: the speed of a node at a look, and the fewest partitions that have to move, where that is known.
struct Scenario {
    name: &'static str,
    speed: Box<dyn Fn(usize, usize) -> Speed>,
    least: Option<usize>,
}

fn main() {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![10, 100] } else { sizes };
    for nodes in sizes {
        println!(
            "{nodes} nodes, {PARTITIONS} partitions of 256 MiB each, 1 GiB a minute for each, {LOOKS} looks of 10 s"
        );
        println!(
            "{:<34} {:>8} {:>8} {:>9} {:>8} {:>8} {:>9}",
            "", "lost off", "lost on", "decisions", "moved", "least", "recovered"
        );
        for scenario in scenarios(nodes) {
            let fleet = Fleet {
                nodes,
                looks: LOOKS,
                partition_bytes: 256 << 20,
                link: 1 << 30,
                noise: 0.2,
                hiccups: 0.0,
                seed: 1,
            };
            let off = play(&fleet, Mode::Observe, &scenario.speed);
            let on = play(&fleet, Mode::On, &scenario.speed);
            line(&scenario, off, on);
        }
        println!();
    }
}

fn line(scenario: &Scenario, off: Played, on: Played) {
    let percent = |lost: f64| format!("{:.1} %", lost * 100.0);
    let least = scenario.least.map_or("-".to_owned(), |least| least.to_string());
    let recovered = on.recovered.map_or("no".to_owned(), |looks| format!("{:.1} min", looks as f64 / 6.0));
    println!(
        "{:<34} {:>8} {:>8} {:>9} {:>8} {:>8} {:>9}",
        scenario.name,
        percent(off.lost),
        percent(on.lost),
        on.decisions,
        on.moved,
        least,
        recovered
    );
}

fn scenarios(nodes: usize) -> Vec<Scenario> {
    let times = Speed::Times;
    let some = nodes.div_ceil(10);
    let third = nodes / 3;
    // What a node with this share of eighths gives up.
    let gives = move |slow: usize, eighths: usize| {
        let all = 8 * (nodes - slow) + eighths * slow;
        let cap = (nodes * PARTITIONS * eighths + all / 2) / all;
        slow * (PARTITIONS - cap)
    };
    let all: BTreeSet<usize> = (0..nodes).collect();
    let without_zone: BTreeSet<usize> = (third..nodes).collect();
    let zone = fewest_moves(&all, &without_zone) + fewest_moves(&without_zone, &all);
    let random = |node: usize, look: usize| {
        let mixed = (node as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
            ^ (look as u64).wrapping_mul(0xD1B5_4A32_D192_ED03);
        (mixed ^ (mixed >> 31)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 40
    };
    let scenario = |name, speed: Box<dyn Fn(usize, usize) -> Speed>, least| Scenario { name, speed, least };
    vec![
        scenario("nothing", Box::new(move |_, _| times(1.0)), Some(0)),
        scenario(
            "a disk takes 8 times as long",
            Box::new(move |node, look| times(if node == 1 && (60..600).contains(&look) { 8.0 } else { 1.0 })),
            Some(2 * gives(1, 1)),
        ),
        scenario(
            "a disk takes 3 times as long",
            Box::new(move |node, look| times(if node == 1 && look >= 60 { 3.0 } else { 1.0 })),
            Some(gives(1, 3)),
        ),
        scenario(
            "a disk gets slower, up to 10 times",
            Box::new(move |node, look| {
                times(if node == 1 { 1.0 + 9.0 * look as f64 / LOOKS as f64 } else { 1.0 })
            }),
            Some(gives(1, 1)),
        ),
        scenario(
            "a rack takes 4 times as long",
            Box::new(move |node, look| times(if node < some && look >= 60 { 4.0 } else { 1.0 })),
            Some(gives(some, 2)),
        ),
        scenario(
            "a node wavers every 5 minutes",
            Box::new(move |node, look| times(if node == 1 && look / 30 % 2 == 1 { 6.0 } else { 1.0 })),
            None,
        ),
        scenario(
            "a tenth wavers, each for itself",
            Box::new(move |node, look| {
                let phase = 2.0 * PI * (look as f64 / (40.0 + 7.0 * node as f64) + node as f64);
                times(if node < some && phase.sin() > 0.3 { 6.0 } else { 1.0 })
            }),
            None,
        ),
        scenario(
            "half is 2.5 times as fast",
            Box::new(move |node, _| times(if node % 2 == 0 { 2.5 } else { 1.0 })),
            Some(gives(nodes / 2, 3)),
        ),
        scenario(
            "a third of the fleet is lost",
            Box::new(
                move |node, look| {
                    if node < third && (60..360).contains(&look) { Speed::Gone } else { times(1.0) }
                },
            ),
            Some(zone),
        ),
        scenario(
            "a third has a slow link",
            Box::new(move |node, look| times(if node < third && look >= 60 { 3.0 } else { 1.0 })),
            Some(gives(third, 3)),
        ),
        scenario(
            "a hot data set wanders",
            Box::new(move |node, look| times(if node == look / 180 % nodes { 3.5 } else { 1.0 })),
            None,
        ),
        scenario(
            "200 jobs start, for 5 minutes",
            Box::new(move |node, look| {
                times(if (60..90).contains(&look) {
                    1.0 + random(node, look) as f64 % 500.0 / 100.0
                } else {
                    1.0
                })
            }),
            Some(0),
        ),
        scenario(
            "every node restarts in turn",
            Box::new(move |node, look| {
                let turn = 60 + node * 600 / nodes;
                if (turn..turn + 2).contains(&look) { Speed::Gone } else { times(1.0) }
            }),
            None,
        ),
    ]
}
