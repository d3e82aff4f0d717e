//! The trainer's engine on one rank beside a plain loop of burn over the same modules: what blocks with a graph each, flat buffers and our optimizer cost.
//! `cargo bench -p shardd-benches --bench engine [MODEL]` prints one line for each model.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Int, Tensor, TensorData};
use shardd_benches::figures;
use shardd_benches::picks;
use shardd_benches::plain_burn::{Plain, classes, floats};
use shardd_trainer::collective::threads;
use shardd_trainer::models::{Gpt, GptSize, Mlp, Norm, Resnet18};
use shardd_trainer::{Block, Chain, CrossEntropy, Optimizer, Trainer};

/// As in `shardtrain`: tensors come and go, and fresh pages cost as much as a pass over them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often both sides take a turn.
const ROUNDS: usize = 15;
const RATE: f32 = 1e-3;

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted =
        |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted.as_str()));
    println!(
        "{:<34} {:>12} {:>12} {:>9}",
        "one step, AdamW, medians in turns", "plain burn", "engine", "ratio"
    );
    let device = Device::flex();
    if is_wanted("mlp") {
        let mut widths = vec![256; 26];
        widths.push(10);
        let images = || (floats([32, 256]), classes(32, 10));
        compare("MLP-256 of 26 layers, 32 rows", Mlp::new(&widths, &device), Mlp::into_chain, images);
        let mut widths = vec![1024; 10];
        widths.push(10);
        let images = || (floats([32, 1024]), classes(32, 10));
        compare("MLP-1024 of 10 layers, 32 rows", Mlp::new(&widths, &device), Mlp::into_chain, images);
    }
    if is_wanted("gpt") {
        let size = GptSize::default();
        let text = || {
            let tokens: Vec<i64> = picks(8 * 64, 256).into_iter().map(|token| token as i64).collect();
            let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [8, 64]), &Device::flex());
            (tokens, classes(8 * 64, 256))
        };
        compare("GPT 4x128, 8 x 64 tokens", Gpt::new(256, 64, size, 0.0, &device), Gpt::into_chain, text);
    }
    if is_wanted("resnet") {
        let images = || (floats([8, 3, 32, 32]), classes(8, 10));
        let resnet = Resnet18::new([3, 32, 32], 10, Norm::Batch, 0.0, &device);
        compare("ResNet-18, 8 images of 32x32", resnet, Resnet18::into_chain, images);
    }
}

fn compare<M>(
    name: &str,
    model: M,
    into_chain: impl FnOnce(M) -> Chain<M::Input, M::Output>,
    batch: impl Fn() -> (M::Input, Vec<u32>),
) where
    M: Block<Output = Tensor<2>>,
{
    let mut plain = Plain::new(model.clone(), RATE);
    let alone = threads::world(1, Duration::from_secs(60)).remove(0);
    let mut trainer = Trainer::new(into_chain(model), CrossEntropy, Box::new(alone))
        .optimizer(Optimizer::adamw(0.01))
        .build()
        .expect("a rank alone trains");
    let (mut of_plain, mut of_engine) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS + 2 {
        let (input, labels) = batch();
        let began = Instant::now();
        plain.step(input, &labels);
        let plain_s = began.elapsed().as_secs_f64();
        let (input, labels) = batch();
        let began = Instant::now();
        let mut micro_batch = Some((input, labels));
        trainer.step(RATE, |_| micro_batch.take()).expect("nobody else");
        let engine_s = began.elapsed().as_secs_f64();
        if round >= 2 {
            figures::report(&format!("engine/{name}"), engine_s, plain_s);
            of_plain.push(plain_s);
            of_engine.push(engine_s);
        }
    }
    let (plain_s, engine_s) = (median(of_plain), median(of_engine));
    println!("{name:<34} {:>9.2} ms {:>9.2} ms {:>9.3}", plain_s * 1e3, engine_s * 1e3, engine_s / plain_s);
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
