//! One side of the comparison with PyTorch: trains a model on one batch, again and again, and prints the cost.
//! `benches/peers/models/run` runs it; by itself: `cargo bench -p shardd-benches --bench models -- --model cnn|mlp|gpt
//! [--seconds S]`.
//!
//! Threads are those of `RAYON_NUM_THREADS`. The trainer's engine computes, as one rank.

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use clap::{Parser, ValueEnum};
use shardd_benches::child::own_cpu_seconds;
use shardd_benches::picks;
use shardd_trainer::collective::threads;
use shardd_trainer::models::{GptSize, Mlp, gpt};
use shardd_trainer::nn::{conv2d_layer, linear_layer, max_pool2d_layer};
use shardd_trainer::{Chain, CrossEntropy, Optimizer, TensorTree, Trainer, block};

/// As in `shardtrain`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROWS: usize = 64;
const SIDE: usize = 28;
const CLASSES: usize = 10;
const RATE: f32 = 1e-3;
/// Sequences of a batch, tokens of each, and how many tokens there are.
const SEQUENCES: [usize; 3] = [16, 64, 128];

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Model {
    /// Two convolutions and two linear layers: 206,922 parameters.
    Cnn,
    /// 784-1024-1024-10: 1,863,690 parameters.
    Mlp,
    /// Four layers of width 128: 817,920 parameters.
    Gpt,
}

/// Trains and counts.
#[derive(Parser)]
struct Args {
    /// Which model.
    #[arg(long, value_enum, default_value = "cnn")]
    model: Model,
    /// How long to train, after as much of a second as it takes to warm up.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// As cargo bench says it.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let args = Args::parse();
    let device = Device::flex();
    let (samples, mut step) = match args.model {
        Model::Cnn => (ROWS, steps(net(&device), images(), labels(ROWS, CLASSES))),
        Model::Mlp => {
            let chain = Chain::start(Mlp::new(&[SIDE * SIDE, 1024, 1024, CLASSES], &device));
            (ROWS, steps(chain, images().flatten(1, 3), labels(ROWS, CLASSES)))
        }
        Model::Gpt => {
            let [rows, length, vocabulary] = SEQUENCES;
            let chain = gpt(vocabulary, length, GptSize::default(), 0.0, &device);
            (rows, steps(chain, tokens(), labels(rows * length, vocabulary)))
        }
    };
    let warm = Instant::now();
    while warm.elapsed() < Duration::from_millis(500) {
        step();
    }
    let (began, cpu_before) = (Instant::now(), own_cpu_seconds());
    let (mut count, mut loss) = (0, f64::INFINITY);
    while began.elapsed().as_secs_f64() < args.seconds {
        loss = step();
        count += 1;
    }
    let (seconds, cpu_s) = (began.elapsed().as_secs_f64(), own_cpu_seconds() - cpu_before);
    println!(
        "{}",
        serde_json::json!({"samples": count * samples, "seconds": seconds, "cpu_s": cpu_s, "loss": loss})
    );
}

/// Steps of a training, each on this batch; they return the loss.
fn steps<Input: TensorTree + Clone>(
    chain: Chain<Input, Tensor<2>>,
    input: Input,
    labels: Vec<u32>,
) -> Box<dyn FnMut() -> f64> {
    let alone = threads::world(1, Duration::from_secs(60)).remove(0);
    let trainer = Trainer::new(chain, CrossEntropy, Box::new(alone)).optimizer(Optimizer::adam(0.0)).build();
    let mut trainer = trainer.expect("a rank alone trains");
    Box::new(move || {
        let loss = trainer.step(RATE, |_| [(input.clone(), labels.clone())]);
        loss.expect("one rank depends on no other").mean()
    })
}

fn images() -> Tensor<4> {
    let values: Vec<f32> =
        (picks(ROWS * SIDE * SIDE, 1 << 16).into_iter()).map(|pick| pick as f32 / 65_536.0 - 0.5).collect();
    Tensor::from_data(TensorData::new(values, [ROWS, 1, SIDE, SIDE]), &Device::flex())
}

fn tokens() -> Tensor<2, Int> {
    let [rows, length, vocabulary] = SEQUENCES;
    let values: Vec<i32> = picks(rows * length, vocabulary).into_iter().map(|pick| pick as i32).collect();
    Tensor::from_data(TensorData::new(values, [rows, length]), &Device::flex())
}

fn labels(count: usize, classes: usize) -> Vec<u32> {
    picks(count, classes).into_iter().map(|class| class as u32).collect()
}

/// A convolution of 3x3, ReLU, and the largest of each 2x2.
#[derive(Module, Debug)]
struct Conv {
    conv: Conv2d,
    pool: MaxPool2d,
}
block!(Conv, |self, input: Tensor<4>| -> Tensor<4> {
    max_pool2d_layer(&self.pool, relu(conv2d_layer(&self.conv, input)))
});

#[derive(Module, Debug)]
struct Hidden {
    linear: Linear,
}
block!(Hidden, |self, input: Tensor<4>| -> Tensor<2> {
    relu(linear_layer(&self.linear, input.flatten::<2>(1, 3)))
});

#[derive(Module, Debug)]
struct Logits {
    linear: Linear,
}
block!(Logits, |self, input: Tensor<2>| -> Tensor<2> { linear_layer(&self.linear, input) });

/// 1 → 16 → 32 channels, 1568-128-10.
fn net(device: &Device) -> Chain<Tensor<4>, Tensor<2>> {
    let conv = |from, to| Conv {
        conv: Conv2dConfig::new([from, to], [3, 3])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .init(device),
        pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
    };
    let linear = |from, to| LinearConfig::new(from, to).init(device);
    let hidden = Hidden { linear: linear(32 * 7 * 7, 128) };
    Chain::start(conv(1, 16)).then(conv(16, 32)).then(hidden).then(Logits { linear: linear(128, CLASSES) })
}
