//! Prints how fast softmax and GELU are, with each set of instructions: `cargo run --release --example activations [COLUMNS]`.

use std::hint::black_box;
use std::time::Instant;

use shardd_kernels::{Level, gelu, gelu_gradient, softmax, softmax_gradient};

fn main() {
    let columns = std::env::args().nth(1).and_then(|columns| columns.parse().ok()).unwrap_or(64);
    let count = 1 << 18;
    let numbers: Vec<f32> = (0..count).map(|at| (at % 1_001) as f32 / 97.0 - 5.0).collect();
    println!("ns per number, rows of {columns}, on {} threads", rayon::current_num_threads());
    println!("| instructions | softmax | its gradient | GELU | its gradient |\n|---|--:|--:|--:|--:|");
    let time = |operation: &dyn Fn() -> Vec<f32>| {
        let seconds = || {
            let start = Instant::now();
            black_box(operation());
            start.elapsed().as_secs_f64()
        };
        (0..9).map(|_| seconds()).fold(f64::INFINITY, f64::min) * 1e9 / f64::from(count)
    };
    for level in Level::available() {
        println!(
            "| {level} | {:.2} | {:.2} | {:.2} | {:.2} |",
            time(&|| softmax(level, &numbers, columns)),
            time(&|| softmax_gradient(level, &numbers, &numbers, columns)),
            time(&|| gelu(level, &numbers)),
            time(&|| gelu_gradient(level, &numbers, &numbers)),
        );
    }
}
