//! Samples per second of one rank on images in memory: `cargo run --release -p shardd-trainer --example throughput`.

use shardd_trainer::collective::{ThreadCollective, spawn};
use shardd_trainer::reduce::VirtualRanks;
use shardd_trainer::testkit::{MemorySteps, pattern_images};
use shardd_trainer::train::{TrainConfig, train};

fn main() {
    println!("{:>5} {:>8} {:>6} {:>4} {:>12} {:>12}", "side", "threads", "batch", "V", "samples/s", "digest");
    for (side, batch, count) in [(8, 16, 4), (16, 16, 64), (32, 64, 1)] {
        for threads in [1, 2] {
            let rows = pattern_images(2_048, side, 1);
            let ranks = VirtualRanks { count, world: 1 };
            let config = TrainConfig {
                virtual_ranks: count,
                epochs: 2,
                threads: Some(threads),
                ..TrainConfig::default()
            };
            let trained = spawn(1, |collective: ThreadCollective| {
                let mut source = MemorySteps::new(rows.clone(), ranks, 0, batch, config.epochs);
                train(&config, Box::new(collective), &mut source, None, &mut |_| ())
                    .expect("training succeeds")
            });
            let speed = trained[0].samples as f64 / trained[0].train_s;
            println!(
                "{side:>5} {threads:>8} {batch:>6} {count:>4} {speed:>12.0} {:>12}",
                trained[0].digest.short()
            );
        }
    }
}
