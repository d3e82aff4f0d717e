//! Prints the speed of the convolutions of a ResNet-18, with each set of instructions: `cargo run --release --example layers [BATCH]`.

use std::hint::black_box;
use std::time::Instant;

use shardd_kernels::{Conv, Level};

fn main() {
    let batch = std::env::args().nth(1).and_then(|batch| batch.parse().ok()).unwrap_or(32);
    println!("GFLOP/s of {batch} images on {} threads", rayon::current_num_threads());
    println!("| convolution | instructions | forward | input's gradient | weight's gradient |");
    println!("|---|---|--:|--:|--:|");
    for (channels, outputs, size, stride, kernel) in [
        (3, 24, 32, 2, 3),
        (24, 48, 16, 2, 3),
        (3, 64, 32, 1, 3),
        (64, 64, 32, 1, 3),
        (64, 128, 32, 2, 3),
        (64, 128, 32, 2, 1),
        (128, 128, 16, 1, 3),
        (256, 256, 8, 1, 3),
        (512, 512, 4, 1, 3),
    ] {
        let conv = Conv {
            batch,
            channels,
            height: size,
            width: size,
            outputs,
            kernel: [kernel; 2],
            stride: [stride; 2],
            padding: [(kernel / 2, kernel / 2); 2],
            ..Conv::default()
        };
        let [height, width] = conv.output().expect("the kernel fits");
        let numbers = |count: usize| (0..count).map(|at| (at % 17) as f32 - 8.0).collect::<Vec<f32>>();
        let input = numbers(batch * channels * size * size);
        let weight = numbers(outputs * channels * kernel * kernel);
        let output = numbers(batch * outputs * height * width);
        let operations = (2 * weight.len() * batch * height * width) as f64;
        for level in Level::available() {
            if level.name() == "scalar" {
                continue;
            }
            let speed = |compute: &dyn Fn() -> Vec<f32>| {
                let seconds = || {
                    let start = Instant::now();
                    black_box(compute());
                    start.elapsed().as_secs_f64()
                };
                let best = (0..7).map(|_| seconds()).fold(f64::INFINITY, f64::min);
                operations / best / 1e9
            };
            let fits = "the sizes fit";
            println!(
                "| {channels} to {outputs}, {size} x {size}, {kernel} x {kernel} by {stride} | {level} | {:.0} | {:.0} | {:.0} |",
                speed(&|| conv.forward(level, &input, &weight).expect(fits)),
                speed(&|| conv.input_gradient(level, &output, &weight).expect(fits)),
                speed(&|| conv.weight_gradient(level, &input, &output).expect(fits)),
            );
        }
    }
}
