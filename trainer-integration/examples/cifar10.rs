//! A network of your own, trained on CIFAR-10 from shardd nodes, on as many ranks as a launcher starts, with
//! checkpoints:
//!
//!     cargo build --release -p shardd-trainer --bin shardtrain --example cifar10
//!     shardtrain run --nproc 4 --program target/release/examples/cifar10 -- \
//!         --server http://127.0.0.1:7700,http://127.0.0.1:7701 --plan PLAN --run mine --checkpoints ./kept
//!
//! The digest at the end is the same for any number of ranks up to eight, also if some of them are killed on the way.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use clap::Parser;
use shardd_api::protocol::RunId;
use shardd_client::loader::{Loader, LoaderConfig, LoaderSource, MicroBatch};
use shardd_store::catalog::StorePlace;
use shardd_store::http::Credentials;
use shardd_trainer::checkpoint::{CheckpointStore, Checkpoints, Place, Resume};
use shardd_trainer::collective::CollectiveError;
use shardd_trainer::collective::tcp::JoinError;
use shardd_trainer::error::TrainError;
use shardd_trainer::launch_env::OTHERS_ARE_GONE;
use shardd_trainer::nn::BatchNorm;
use shardd_trainer::{Chain, CrossEntropy, LaunchEnv, Optimizer, Trainer, block};
use shardfmt::PlanId;

#[derive(Parser)]
struct Args {
    /// The nodes to read from
    #[arg(long, value_delimiter = ',', required = true)]
    server: Vec<String>,
    #[arg(long)]
    plan: PlanId,
    #[arg(long, default_value = "cifar10-example")]
    run: RunId,
    #[arg(long, default_value_t = 5)]
    epochs: u32,
    #[arg(long, default_value_t = 16)]
    batch_size: u32,
    /// Keep checkpoints in this directory, and resume from the newest
    #[arg(long)]
    checkpoints: Option<PathBuf>,
}

/// A convolution, normalisation and ReLU, then half the height and width.
#[derive(Module, Debug)]
struct Layer {
    conv: Conv2d,
    norm: BatchNorm,
    pool: MaxPool2d,
}
block!(Layer, |self, images: Tensor<4>, pass| -> Tensor<4> {
    self.pool.forward(relu(self.norm.forward(self.conv.forward(images), pass)))
});

#[derive(Module, Debug)]
struct Logits {
    linear: Linear,
}
block!(Logits, |self, images: Tensor<4>| -> Tensor<2> { self.linear.forward(images.flatten(1, 3)) });

fn network(device: &Device) -> Chain<Tensor<4>, Tensor<2>> {
    let layer = |from, to| Layer {
        conv: Conv2dConfig::new([from, to], [3, 3])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .init(device),
        norm: BatchNorm::new(to, device),
        pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
    };
    let linear = LinearConfig::new(64 * 4 * 4, 10).init(device);
    Chain::start(layer(3, 16)).then(layer(16, 32)).then(layer(32, 64)).then(Logits { linear })
}

/// Images `[rows, 3, 32, 32]` between -1 and 1, and their classes.
fn samples(rows: &RecordBatch, device: &Device) -> Result<(Tensor<4>, Vec<u32>), Box<dyn Error>> {
    let files = rows.column_by_name("image").ok_or("no column image")?.as_binary::<i32>();
    let mut pixels = Vec::with_capacity(files.len() * 3 * 32 * 32);
    for file in files.iter().flatten() {
        let image = image::load_from_memory(file)?.to_rgb8();
        for channel in 0..3 {
            pixels.extend(image.pixels().map(|pixel| f32::from(pixel[channel]) / 127.5 - 1.0));
        }
    }
    let labels = rows.column_by_name("label").ok_or("no column label")?.as_primitive::<Int64Type>();
    let labels = labels.values().iter().map(|label| *label as u32).collect();
    Ok((Tensor::from_data(TensorData::new(pixels, [files.len(), 3, 32, 32]), device), labels))
}

fn train(args: &Args) -> Result<(), Box<dyn Error>> {
    let (launched, device) = (LaunchEnv::of_env()?, Device::flex());
    device.seed(1); // of the first weights, which burn draws; those of rank 0 are everyone's
    let collective = launched.join(&args.run.to_string())?;
    let mut builder = Trainer::new(network(&device), CrossEntropy, collective)
        .virtual_ranks(8)
        .optimizer(Optimizer::adamw(0.01));
    if let Some(directory) = &args.checkpoints {
        let shelf = CheckpointStore::open(&StorePlace::Directory(directory.clone()), &args.run)?;
        let kept = Checkpoints { shelf, every_steps: Some(50), every: None, keep: 2 };
        builder = builder.checkpoints(kept, Resume::Auto).stop(launched.stop_flag()?);
    }
    let mut trainer = builder.build()?;

    let Place { epoch, position } = trainer.place();
    let nodes = LoaderSource::Nodes {
        servers: args.server.clone(),
        run: args.run.clone(),
        credentials: Credentials::of_env()?,
    };
    let mut loader = Loader::open(LoaderConfig {
        rank: launched.rank(),
        world: launched.world(),
        virtual_ranks: Some(8),
        start: (epoch, position),
        end_epoch: args.epochs,
        ..LoaderConfig::new(nodes, args.plan, args.batch_size)
    })?;
    while let Some(step) = loader.next_step()? {
        // A virtual rank without rows in the last step of an epoch has no micro-batch.
        let read = |it: &MicroBatch| match it.batch.num_rows() {
            0 => Ok(None),
            _ => samples(&it.batch, &device).map(Some),
        };
        let batches = step.micro_batches.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let mut batches = batches.into_iter();
        let loss = trainer.step(0.001, |_| batches.next().flatten())?;
        if launched.rank() == 0 {
            println!("epoch {} step {} loss {:.4}", step.epoch, step.step, loss.mean());
        }
        let (epoch, position) = (step.cursor.epoch, step.cursor.position);
        if trainer.keep(Place { epoch, position })?.is_break() {
            return Ok(());
        }
    }
    trainer.finish()?;
    if launched.rank() == 0 {
        println!("{} steps, weights blake3 {}", trainer.steps(), trainer.weights()?.digest());
    } else {
        trainer.weights()?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let Err(error) = train(&Args::parse()) else { return ExitCode::SUCCESS };
    eprintln!("{error}");
    let is_others = error.is::<CollectiveError>()
        || error.is::<JoinError>()
        || matches!(error.downcast_ref(), Some(TrainError::Collective(_)));
    ExitCode::from(if is_others { OTHERS_ARE_GONE } else { 1 })
}
