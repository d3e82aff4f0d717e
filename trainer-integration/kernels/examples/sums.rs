//! Prints how fast exact sums are made, with each set of instructions: `cargo run --release --example sums [NUMBERS]`.

use std::hint::black_box;
use std::time::Instant;

use shardd_kernels::{Level, add_whole, from_whole, largest_exponent};

fn main() {
    let count = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(1 << 20);
    let numbers: Vec<f32> = (0..count).map(|at| (at % 1_001) as f32 / 997.0 - 0.5).collect();
    let (mut plain, mut sums, mut rounded) = (numbers.clone(), vec![0_i64; count], vec![0.0; count]);
    println!("ns per number, {count} numbers on {} threads", rayon::current_num_threads());
    println!("| instructions | largest exponent | add to whole sums | round whole sums | add in 32 bits |");
    println!("|---|--:|--:|--:|--:|");
    let time = |operation: &mut dyn FnMut()| {
        let mut seconds = || {
            let start = Instant::now();
            operation();
            start.elapsed().as_secs_f64()
        };
        (0..9).map(|_| seconds()).fold(f64::INFINITY, f64::min) * 1e9 / count as f64
    };
    for level in Level::available() {
        println!(
            "| {level} | {:.2} | {:.2} | {:.2} | {:.2} |",
            time(&mut || _ = black_box(largest_exponent(level, &numbers))),
            time(&mut || add_whole(level, &mut sums, &numbers, 40)),
            time(&mut || from_whole(level, &sums, &mut rounded, 40)),
            time(&mut || plain.iter_mut().zip(&numbers).for_each(|(sum, number)| *sum += number)),
        );
    }
}
