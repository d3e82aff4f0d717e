//! How much of their communication the stages of ZeRO hide behind computing: two ranks on a link that is in use for half as long as they compute,
//! by what stage 0 sends. `cargo bench -p shardd-benches --bench zero` prints one table.
//!
//! Shares are what a rank sends in a step, in parts of the model's bytes times (N - 1) / N. Blocks take a set time, as on an accelerator: forward a third of a step, backward two thirds; stage 3 goes forward again on the way back. Steps are
//! taken in turns, three of a kind one after the other: every stage by itself, then every stage on two ranks.

use std::sync::Barrier;
use std::time::Duration;

use shardd_benches::figures;
use shardd_benches::link::{self, LinkSpeed, Links, Usage};
use shardd_benches::stepper::Stepper;
use shardd_benches::timed::TimedModel;
use shardd_benches::turns::{StepFigures, Way, in_turns, medians};
use shardd_trainer::Zero;
use shardd_trainer::buckets::BucketSizes;
use shardd_trainer::collective::{slice_of, threads};

/// As in `shardtrain`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 7;
const STEPS: u32 = 3;
const RANKS: u32 = 2;
const BLOCKS: usize = 10;
const BLOCK_LEN: usize = 1 << 20;

fn main() {
    println!(
        "{:<14} {:>6} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "2 ranks, in C", "stage", "C", "shares", "alone", "link", "step", "hidden"
    );
    for time in [60, 240] {
        measure(Duration::from_millis(time));
    }
}

fn measure(time: Duration) {
    let timed = TimedModel { blocks: BLOCKS, block_len: BLOCK_LEN, forward: time / 3 };
    let links = Links::default();
    let rounds = |rounds: usize| {
        let all = Barrier::new(RANKS as usize);
        // By stage an end of a link for each rank.
        let mut worlds: Vec<_> = Zero::ALL.iter().map(|_| link::world(RANKS, &links)).collect();
        let ends: Vec<Vec<_>> =
            (0..RANKS).map(|_| worlds.iter_mut().map(|world| world.remove(0)).collect()).collect();
        let (all, timed) = (&all, &timed);
        let ranks = std::thread::scope(|scope| {
            let ranks = ends.into_iter().map(|ends| {
                scope.spawn(move || {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
                    pool.install(|| {
                        let buckets = BucketSizes { first: 4 * BLOCK_LEN, others: 4 * BLOCK_LEN };
                        let alone = Zero::ALL.into_iter().map(|zero| {
                            let end = threads::world(1, Duration::from_secs(60)).remove(0);
                            Stepper::new(timed.model(), zero, buckets, Box::new(end), Usage::default())
                        });
                        let together = Zero::ALL.into_iter().zip(ends).map(|(zero, (end, usage))| {
                            Stepper::new(timed.model(), zero, buckets, Box::new(end), usage)
                        });
                        let mut steppers: Vec<Stepper> = alone.chain(together).collect();
                        let mut ways: Vec<Way<'_>> = Vec::new();
                        for stepper in &mut steppers {
                            ways.push(Box::new(|| stepper.steps(STEPS, || timed.micro_batch())));
                        }
                        in_turns(all, rounds, &mut ways)
                    })
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect::<Vec<_>>()
        });
        medians(&ranks)
    };
    // How long a step is without communication says how fast the link is.
    let compute = rounds(3)[0].seconds / f64::from(STEPS);
    let share = slice_of(4 * BLOCKS * BLOCK_LEN, 0, RANKS).len() * (RANKS as usize - 1);
    let bytes_per_s = 2.0 * share as f64 / (compute / 2.0);
    links.set(Some(LinkSpeed { bytes_per_s, latency: Duration::ZERO }));
    let found: Vec<StepFigures> = rounds(ROUNDS);
    let (alone, together) = found.split_at(Zero::ALL.len());
    let compute = alone[0].seconds;
    let steps = f64::from(STEPS);
    for ((zero, alone), together) in Zero::ALL.into_iter().zip(alone).zip(together) {
        figures::report(&format!("zero/{zero}, {} ms", time.as_millis()), together.seconds, compute);
        println!(
            "{:<14} {zero:>6} {:>6.1} ms {:>7.3} {:>9.3} {:>9.3} {:>9.3} {:>8.0}%",
            format!("{} ms", time.as_millis()),
            compute / steps * 1e3,
            together.link_s * bytes_per_s / share as f64 / steps,
            alone.seconds / compute,
            together.link_s / compute,
            together.seconds / compute,
            100.0 * (1.0 - (together.seconds - alone.seconds) / together.link_s),
        );
    }
}
