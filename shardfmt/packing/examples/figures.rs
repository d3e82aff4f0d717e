//! Measures padding, speed and balance for random lengths: `cargo run --release --example figures`.

use std::num::NonZeroU32;

use shardd_packing::{CostModel, Packing, Strategy, balance, imbalance};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((word ^ (word >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A length of 600 tokens on average, or uniform up to 2048.
    fn length(&mut self, kind: &str) -> u32 {
        let length = match kind {
            "log-normal" => {
                let normal = (-2.0 * (1.0 - self.uniform()).ln()).sqrt()
                    * (std::f64::consts::TAU * self.uniform()).cos();
                (600f64.ln() - 0.5 + normal).exp()
            }
            "geometric" => (1.0 - self.uniform()).ln() / (1.0 - 1.0 / 600.0f64).ln(),
            _ => self.uniform() * 2048.0,
        };
        1 + length as u32
    }

    fn lengths(&mut self, kind: &str, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.length(kind)).collect()
    }
}

/// Seconds that this thread computed, which others on the machine do not lengthen. Linux only.
fn seconds_used() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|nanoseconds| nanoseconds.parse::<f64>().ok())
        .map_or(f64::NAN, |nanoseconds| nanoseconds / 1e9)
}

const KINDS: [&str; 3] = ["log-normal", "geometric", "uniform"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count = 1_000_000;
    println!(
        "padding in percent of all places, seconds, and sequences above the bound; {count} documents, window = all"
    );
    for kind in KINDS {
        let lengths = Random(1).lengths(kind, count);
        for length in [2048, 4096, 8192] {
            for strategy in [
                Strategy::ConcatThenSplit,
                Strategy::FirstFit,
                Strategy::FirstFitDecreasing,
                Strategy::BestFit,
                Strategy::BestFitDecreasing,
            ] {
                let started = seconds_used();
                let (_, stats) = Packing { strategy, ..Packing::new(length) }.pack(&lengths)?;
                let seconds = seconds_used() - started;
                let above = stats.sequences - stats.least_sequences(length);
                println!(
                    "{kind:10} {length:5} {strategy:?}: {:.4} % {seconds:.3} s, {above} of {} above, {} cut",
                    100.0 * stats.padding_share(),
                    stats.sequences,
                    stats.cut
                );
            }
        }
    }
    windows()?;
    balances()?;
    Ok(())
}

fn windows() -> Result<(), Box<dyn std::error::Error>> {
    println!("padding in percent by window, without and with carry; best_fit_decreasing, 300000 documents");
    for kind in KINDS {
        let lengths = Random(2).lengths(kind, 300_000);
        for length in [2048, 4096, 8192] {
            print!("{kind:10} {length:5}");
            for window in [32, 64, 128, 256, 512, 1024, 2048, 4096, 16384] {
                let share = |carry| -> Result<(f64, f64), Box<dyn std::error::Error>> {
                    let started = seconds_used();
                    let (_, stats) = Packing { window, carry, ..Packing::new(length) }.pack(&lengths)?;
                    Ok((100.0 * stats.padding_share(), (seconds_used() - started)))
                };
                let ((without, _), (with, seconds)) = (share(false)?, share(true)?);
                print!("  {window}: {without:.2}/{with:.2} ({seconds:.2}s)");
            }
            println!();
        }
    }
    Ok(())
}

fn balances() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "largest cost over mean cost of 50 steps: mean and worst, and of dealing in order; seconds of a step"
    );
    for (length, width) in [(2048, 1024), (8192, 1024), (8192, 4096), (32768, 4096)] {
        let lengths = Random(3).lengths("log-normal", 3_000_000 / 600 * length as usize / 40);
        let long: Vec<u32> =
            lengths.iter().map(|&tokens| if tokens > 1800 { tokens * 8 } else { tokens }).collect();
        let (packed, _) = Packing { window: 4096, ..Packing::new(length) }.pack(&long)?;
        let model = CostModel::of_width(width);
        let costs: Vec<u64> = packed.iter().map(|pieces| model.cost(pieces)).collect();
        for ways in [8, 16, 32, 64] {
            for each in [4, 8, 16, 32] {
                let ways = NonZeroU32::new(ways).ok_or("ways")?;
                let (mut sum, mut worst, mut dealt, mut steps, mut floor) = (0.0, 0.0f64, 0.0, 0.0, 0.0);
                let started = seconds_used();
                for step in costs.chunks_exact(ways.get() as usize * each).take(50) {
                    let ratio = imbalance(step, &balance(step, ways), ways);
                    let order: Vec<u32> = (0..step.len()).map(|item| (item / each) as u32).collect();
                    dealt += imbalance(step, &order, ways);
                    floor += least(step, ways.get(), each);
                    sum += ratio;
                    worst = worst.max(ratio);
                    steps += 1.0;
                }
                let seconds = (seconds_used() - started) / steps;
                println!(
                    "length {length} width {width} ways {ways} each {each}: {:.4} worst {worst:.4}, bound {:.4}, in order {:.3}, {seconds:.5} s, {steps} steps",
                    sum / steps,
                    floor / steps,
                    dealt / steps
                );
            }
        }
    }
    Ok(())
}

/// A bound of the ratio of any deal: of the `j * ways + 1` most expensive sequences, one way gets `j + 1`, and the cheapest
/// others at best; the first has the most expensive one.
fn least(step: &[u64], ways: u32, each: usize) -> f64 {
    let mut sorted = step.to_vec();
    sorted.sort_unstable();
    let expensive = |rank: usize| sorted[sorted.len() - 1 - rank];
    let cheap = |count: usize| sorted[..count].iter().sum::<u64>();
    let crowded = (0..each).map(|j| {
        let first = expensive(j * ways as usize);
        first * (j as u64 + 1) + cheap(each - j - 1)
    });
    let most = crowded.max().unwrap_or(0);
    (most as f64 * f64::from(ways) / step.iter().sum::<u64>() as f64).max(1.0)
}
