//! One side of the comparison with PyTorch: trains a small convolutional network on one batch, again and
//! again, and prints the cost. `benches/peers/cnn/run` runs it; by itself: `cargo bench -p shardd-benches
//! --bench cnn -- --side engine|plain [--seconds S]`.
//!
//! Threads are those of `RAYON_NUM_THREADS`. "plain" is the loop of burn's book over the same layers, computed by burn, so that the difference of the two is ours.

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use clap::{Parser, ValueEnum};
use shardd_benches::child::own_cpu_seconds;
use shardd_benches::picks;
use shardd_trainer::collective::threads;
use shardd_trainer::nn::{conv2d_layer, linear_layer};
use shardd_trainer::{Chain, CrossEntropy, Optimizer, Trainer, block};

/// As in `shardtrain`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROWS: usize = 64;
const SIDE: usize = 28;
const CLASSES: usize = 10;
const RATE: f32 = 1e-3;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Side {
    /// The trainer's engine, one rank.
    Engine,
    /// burn's own loop.
    Plain,
}

/// Trains and counts.
#[derive(Parser)]
struct Args {
    /// Which loop.
    #[arg(long, value_enum, default_value = "engine")]
    side: Side,
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
    let (images, labels) = (images(), labels());
    let mut step: Box<dyn FnMut() -> f64> = match args.side {
        Side::Engine => {
            let alone = threads::world(1, Duration::from_secs(60)).remove(0);
            let Net { first, second, hidden, logits } = Net::new(&device);
            let chain = Chain::start(first).then(second).then(hidden).then(logits);
            let mut trainer = Trainer::new(chain, CrossEntropy, Box::new(alone))
                .optimizer(Optimizer::adam(0.0))
                .build()
                .expect("a rank alone trains");
            Box::new(move || {
                trainer.step(RATE, |_| [(images.clone(), labels.clone())]).expect("nobody else").mean()
            })
        }
        Side::Plain => {
            let mut model = Some(Net::new(&device.clone().autodiff()));
            let mut optimizer: ModuleOptimizer = AdamConfig::new().init();
            Box::new(move || {
                let net = model.take().expect("put back after every step");
                let logits = net.forward(images.clone().autodiff());
                let labels: Vec<i64> = labels.iter().map(|&label| label.into()).collect();
                let labels = Tensor::<1, Int>::from_data(&labels[..], &logits.device());
                let loss = CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, labels);
                let gradients = GradientsParams::from_grads(loss.backward(), &net);
                let value = f64::from(loss.into_scalar::<f32>());
                model = Some(optimizer.step(f64::from(RATE), net, gradients));
                value
            })
        }
    };
    let warm = Instant::now();
    while warm.elapsed() < Duration::from_millis(500) {
        step();
    }
    let (began, cpu_before) = (Instant::now(), own_cpu_seconds());
    let (mut steps, mut loss) = (0, f64::INFINITY);
    while began.elapsed().as_secs_f64() < args.seconds {
        loss = step();
        steps += 1;
    }
    let (seconds, cpu_s) = (began.elapsed().as_secs_f64(), own_cpu_seconds() - cpu_before);
    println!(
        "{}",
        serde_json::json!({"samples": steps * ROWS, "seconds": seconds, "cpu_s": cpu_s, "loss": loss})
    );
}

fn images() -> Tensor<4> {
    let values: Vec<f32> =
        (picks(ROWS * SIDE * SIDE, 1 << 16).into_iter()).map(|pick| pick as f32 / 65_536.0 - 0.5).collect();
    Tensor::from_data(TensorData::new(values, [ROWS, 1, SIDE, SIDE]), &Device::flex())
}

fn labels() -> Vec<u32> {
    picks(ROWS, CLASSES).into_iter().map(|class| class as u32).collect()
}

/// A convolution of 3x3, ReLU, and the largest of each 2x2.
#[derive(Module, Debug)]
struct Conv {
    conv: Conv2d,
    pool: MaxPool2d,
}
block!(Conv, |self, input: Tensor<4>| -> Tensor<4> {
    self.pool.forward(relu(conv2d_layer(&self.conv, input)))
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

/// 1 → 16 → 32 channels, 1568-128-10: 206,922 parameters.
#[derive(Module, Debug)]
struct Net {
    first: Conv,
    second: Conv,
    hidden: Hidden,
    logits: Logits,
}

impl Net {
    fn new(device: &Device) -> Net {
        let conv = |from, to| Conv {
            conv: Conv2dConfig::new([from, to], [3, 3])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
        };
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Net {
            first: conv(1, 16),
            second: conv(16, 32),
            hidden: Hidden { linear: linear(32 * 7 * 7, 128) },
            logits: Logits { linear: linear(128, CLASSES) },
        }
    }

    fn forward(&self, input: Tensor<4>) -> Tensor<2> {
        let convolved = self.second.pool.forward(relu(
            self.second.conv.forward(self.first.pool.forward(relu(self.first.conv.forward(input)))),
        ));
        let hidden: Tensor<2> = convolved.flatten(1, 3);
        self.logits.linear.forward(relu(self.hidden.linear.forward(hidden)))
    }
}
