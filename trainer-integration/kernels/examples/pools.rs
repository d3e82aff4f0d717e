//! Prints how fast the largest numbers of windows are found, with each set of instructions: `cargo run --release --example pools`.

use std::hint::black_box;
use std::time::Instant;

use shardd_kernels::{Level, MaxPool};

fn main() {
    println!("ns per number of 64 x 16 images of 28 x 28, on {} threads", rayon::current_num_threads());
    println!("| window, stride | instructions | forward | gradient |\n|---|---|--:|--:|");
    let numbers: Vec<f32> = (0..64 * 16 * 28 * 28).map(|at| (at % 2_003 * 7_919 % 1_009) as f32).collect();
    for (window, stride, padding) in [(2, 2, 0), (3, 2, 1), (3, 1, 1)] {
        let (window, stride, padding) = ([window; 2], [stride; 2], [padding; 2]);
        let pool = MaxPool { height: 28, width: 28, window, stride, padding, dilation: [1, 1] };
        for level in Level::available() {
            let output = pool.forward(level, &numbers);
            let time = |operation: &dyn Fn() -> Vec<f32>| {
                let seconds = || {
                    let start = Instant::now();
                    black_box(operation());
                    start.elapsed().as_secs_f64()
                };
                (0..9).map(|_| seconds()).fold(f64::INFINITY, f64::min) * 1e9 / numbers.len() as f64
            };
            let forward = time(&|| pool.forward(level, &numbers));
            let backward = time(&|| pool.backward(level, &numbers, &output));
            println!("| {}, {} | {level} | {forward:.2} | {backward:.2} |", window[0], stride[0]);
        }
    }
}
