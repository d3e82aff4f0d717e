//! What asking a plan costs at the size of 4,096 partitions, on one core. Nothing is remembered: every figure is of plans that
//! were just made, the best of some rounds. `cargo bench -p shardd-benches --bench plan` prints one table, with `-- table`
//! what slot tables of 10^8 grains take, on all cores.

use std::hint::black_box;
use std::time::Instant;

use shardd_plan::{Epoch, Partition, Plan, PlanDocument, PlanOptions, SampleNo, Shape, SlotTable};
use shardfmt::VersionId;

const PARTITIONS: u32 = 4096;
/// ImageNet, and a thousand million.
const SIZES: [u64; 2] = [1_281_167, 1_000_000_000];

fn main() {
    let only = std::env::args().nth(1).filter(|argument| argument != "--bench");
    if only.as_deref() == Some("table") {
        return table();
    }
    println!("{:<64} {:>10} {:>10}", "one core, 4,096 partitions, grains of one sample", "best", "wanted");
    for (samples, wanted) in SIZES.into_iter().zip([1e-4, 1e-2]) {
        let rounds = if samples == SIZES[0] { 101 } else { 11 };
        let (e, m) = (Epoch(7), Partition(1234));
        let time = best(
            rounds,
            |seed| plan(samples, "0.1", seed),
            |plan| {
                let exchange = plan.exchange(e);
                for chunk in 0..plan.document().chunks {
                    exchange.sends(chunk, m).for_each(|sent| _ = black_box(sent));
                    exchange.receives(chunk, m).for_each(|received| _ = black_box(received));
                }
            },
        );
        line(
            &format!("N = {samples}, Q = 0.1: what a partition sends and receives after an epoch"),
            time,
            wanted,
        );
    }
    let time = best(
        3,
        |seed| plan(SIZES[0], "1", seed),
        |plan| {
            let exchange = plan.exchange(Epoch(7));
            for chunk in 0..plan.document().chunks {
                plan.partitions().for_each(|m| exchange.sends(chunk, m).for_each(|sent| _ = black_box(sent)));
            }
        },
    );
    line("N = 1281167, Q = 1: what all partitions send, each by itself", time, 1.0);
    for samples in SIZES {
        let asked: Vec<u64> = (1..=200).map(|n| n * 6_700_417 % samples).collect();
        let plan = plan(samples, "0.1", 1);
        let once = |position: u64| {
            let began = Instant::now();
            black_box(plan.sample_at(Epoch(100), black_box(position)));
            began.elapsed().as_secs_f64()
        };
        let time = middle(asked.iter().map(|position| once(*position)).collect());
        line(&format!("N = {samples}, Q = 0.1: the sample at a position of epoch 100"), time, 1e-5);
        let once = |sample: u64| {
            let began = Instant::now();
            black_box(plan.position_of_sample(Epoch(100), black_box(SampleNo(sample))));
            began.elapsed().as_secs_f64()
        };
        let time = middle(asked.iter().map(|sample| once(*sample)).collect());
        line("… and the position of a sample", time, 1e-5);
    }
}

/// Tables of 10^8 grains.
fn table() {
    let plan = plan(100_000_000, "0.1", 1);
    let began = Instant::now();
    let mut table = SlotTable::initial(&plan);
    println!("10^8 grains: first slot table {:.2} s", began.elapsed().as_secs_f64());
    let began = Instant::now();
    table.advance(&plan);
    println!("to the next epoch, Q = 0.1 {:.2} s", began.elapsed().as_secs_f64());
    let began = Instant::now();
    while table.epoch() < Epoch(50) {
        table.advance(&plan);
    }
    println!("from there to epoch 50 {:.1} s", began.elapsed().as_secs_f64());
    black_box(&table);
}

fn plan(samples: u64, q: &str, seed: u64) -> Plan {
    let shards = samples / 20_000;
    let mut shard_rows = vec![20_000; shards as usize];
    shard_rows.push((samples % 20_000) as u32);
    let shape = Shape { shard_rows, row_bytes: samples * 110_000 };
    let q = q.parse().expect("a share");
    let options = PlanOptions { q, seed, partitions: Some(PARTITIONS), ..PlanOptions::default() };
    let version = VersionId::of(b"a version");
    let document = PlanDocument::with_defaults(version, &shape, options).expect("defaults fit");
    Plan::new(document, &shape.shard_rows).expect("the document is of this shape")
}

/// Seconds that `asked` takes at best, of a plan that was just made each time.
fn best(rounds: u64, made: impl Fn(u64) -> Plan, asked: impl Fn(&Plan)) -> f64 {
    let times = (0..rounds).map(|seed| {
        let plan = made(seed);
        let began = Instant::now();
        asked(&plan);
        began.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn line(what: &str, seconds: f64, wanted: f64) {
    let readable = |seconds: f64| match seconds {
        ..1e-3 => format!("{:.1} µs", seconds * 1e6),
        ..1.0 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    };
    println!("{what:<64} {:>10} {:>10}", readable(seconds), readable(wanted));
}
