//! How much of the communication is hidden behind computing: two ranks on a link that is in use for half as long as they compute.
//! `cargo bench -p shardd-benches --bench overlap` prints one table.
//!
//! Steps are taken in turns: each rank by itself, then with all gradients in one bucket, then in ten. The blocks either compute, a rank to a core (in
//! the way of which then are its own sums and messages), or take a set time, as on an accelerator.

use std::ops::Range;
use std::sync::Barrier;
use std::time::Duration;

use burn::tensor::{Device, Tensor};
use shardd_benches::figures;
use shardd_benches::link::{self, LinkSpeed, Links, Shaped, Usage};
use shardd_benches::picks;
use shardd_benches::stepper::Stepper;
use shardd_benches::timed::TimedModel;
use shardd_benches::turns::{Way, in_turns, medians};
use shardd_trainer::buckets::BucketSizes;
use shardd_trainer::collective::{Collective, slice_of, threads};
use shardd_trainer::engine::MicroBatch;
use shardd_trainer::model::Model;
use shardd_trainer::models::Mlp;
use shardd_trainer::tensor_tree::{Part, TensorTree};
use shardd_trainer::{CrossEntropy, Objective, Zero};

/// As in `shardtrain`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 15;
const RANKS: u32 = 2;
/// Of each rank.
const ROWS: usize = 128;
const WIDTH: usize = 1024;

fn main() {
    println!(
        "{:<38} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "2 ranks, link in use for C/2; steps in C", "C", "link", "1 bucket", "10", "limit", "hidden"
    );
    let mut widths = vec![WIDTH; 10];
    widths.push(10);
    let mlp = || Mlp::new(&widths, &Device::flex()).into_chain().into_model();
    measure("MLP-1024 of 10 layers, computed", mlp, rows);
    for time in [60, 240] {
        let forward = Duration::from_millis(time / 3);
        let timed = TimedModel { blocks: 10, block_len: WIDTH * WIDTH, forward };
        measure(&format!("10 blocks as large, timed, {time} ms"), || timed.model(), || timed.micro_batch());
    }
}

fn rows() -> MicroBatch<'static> {
    let values = picks(ROWS * WIDTH, 1 << 16).into_iter().map(|pick| pick as f32 / 65_536.0 - 0.5);
    let labels: Vec<u32> = picks(ROWS, 10).into_iter().map(|class| class as u32).collect();
    let input = vec![Part::floats(values.collect(), &[ROWS, WIDTH], &Device::flex())];
    let measure = move |output: Vec<Part>, _: Range<usize>, _: usize| {
        let logits = <Tensor<2> as TensorTree>::from_parts(&mut output.into_iter());
        CrossEntropy.measure(logits, &labels)
    };
    MicroBatch { input, measure: Box::new(measure), is_divisible: false }
}

fn measure(
    name: &str,
    model: impl Fn() -> Model + Sync,
    micro_batch: impl Fn() -> MicroBatch<'static> + Sync,
) {
    let bytes = model().parameter_count() * size_of::<f32>();
    // Of ten buckets the last one has the first block alone.
    let first_block: usize = model().stages[0].parameters().iter().map(|parameter| parameter.len()).sum();
    let last = (first_block * size_of::<f32>()) as f64 / bytes as f64;
    let in_ten = BucketSizes { first: bytes / 10, others: bytes / 10 };
    let (all, links) = (Barrier::new(RANKS as usize), Links::default());
    let (model, micro_batch) = (&model, &micro_batch);
    let take = |ends: Vec<(Shaped, Usage)>, others: Vec<(Shaped, Usage)>, rounds| {
        let all = &all;
        std::thread::scope(|scope| {
            let ranks = ends.into_iter().zip(others).map(|(one, ten)| {
                scope.spawn(move || {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
                    let alone = threads::world(1, Duration::from_secs(60)).remove(0);
                    pool.install(|| {
                        let stepper = |buckets, end: Box<dyn Collective>, usage| {
                            Stepper::new(model(), Zero::Nothing, buckets, end, usage)
                        };
                        let mut alone = stepper(BucketSizes::default(), Box::new(alone), Usage::default());
                        let one_bucket = BucketSizes { first: usize::MAX, others: usize::MAX };
                        let mut one = stepper(one_bucket, Box::new(one.0), one.1);
                        let mut ten = stepper(in_ten, Box::new(ten.0), ten.1);
                        let mut ways: Vec<Way<'_>> = vec![
                            Box::new(|| alone.step(micro_batch())),
                            Box::new(|| one.step(micro_batch())),
                            Box::new(|| ten.step(micro_batch())),
                        ];
                        in_turns(all, rounds, &mut ways)
                    })
                })
            });
            let ranks: Vec<_> = ranks.collect();
            medians(&ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect::<Vec<_>>())
        })
    };
    // How long a step is without communication says how fast the link is.
    let world = || link::world(RANKS, &links);
    let compute = take(world(), world(), 5)[0].seconds;
    let travels = slice_of(bytes, 0, RANKS).len() * 2 * (RANKS as usize - 1);
    links.set(Some(LinkSpeed { bytes_per_s: travels as f64 / (compute / 2.0), latency: Duration::ZERO }));
    let [alone, one, ten] = take(world(), world(), ROUNDS)[..] else { unreachable!("three ways") };
    let of_compute = |seconds: f64| seconds / alone.seconds;
    figures::report(&format!("overlap/{name}"), ten.seconds, alone.seconds);
    println!(
        "{name:<38} {:>6.1} ms {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>8.0}%",
        alone.seconds * 1e3,
        of_compute(ten.link_s),
        of_compute(one.seconds),
        of_compute(ten.seconds),
        1.10 + of_compute(ten.link_s) * last,
        100.0 * (1.0 - ten.waited_s / ten.link_s),
    );
}
