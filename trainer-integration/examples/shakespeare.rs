//! A small transformer that learns a text from shardd nodes, on as many ranks as a launcher starts, and then writes some of its own:
//!
//!     shardctl ingest tinyshakespeare.txt --name shakespeare --sequence-length 65
//!     cargo build --release -p shardd-trainer --bin shardtrain --example shakespeare
//!     shardtrain run --nproc 4 --program target/release/examples/shakespeare -- \
//!         --server http://127.0.0.1:7700,http://127.0.0.1:7701 --plan PLAN

use std::error::Error;
use std::process::ExitCode;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::UInt8Type;
use burn::tensor::{Device, Int, Tensor, TensorData};
use clap::Parser;
use shardd_api::protocol::RunId;
use shardd_client::loader::{Loader, LoaderConfig, LoaderSource, MicroBatch};
use shardd_store::http::Credentials;
use shardd_trainer::collective::CollectiveError;
use shardd_trainer::collective::tcp::JoinError;
use shardd_trainer::error::TrainError;
use shardd_trainer::launch_env::OTHERS_ARE_GONE;
use shardd_trainer::models::{GptSize, gpt};
use shardd_trainer::{CrossEntropy, LaunchEnv, Optimizer, Trainer};
use shardfmt::PlanId;

/// Bytes of a sequence; the target of each but the last is the next.
const LENGTH: usize = 65;

#[derive(Parser)]
struct Args {
    /// The nodes to read from
    #[arg(long, value_delimiter = ',', required = true)]
    server: Vec<String>,
    #[arg(long)]
    plan: PlanId,
    #[arg(long, default_value = "shakespeare-example")]
    run: RunId,
    #[arg(long, default_value_t = 2)]
    epochs: u32,
    /// Sequences of each of the eight virtual ranks in a step
    #[arg(long, default_value_t = 8)]
    batch_size: u32,
    /// How many bytes to write at the end
    #[arg(long, default_value_t = 300)]
    write: usize,
}

type Transformer = Trainer<Tensor<2, Int>, Tensor<2>, CrossEntropy>;

/// Bytes `[rows, 64]`, and of each the one that follows.
fn sequences(rows: &RecordBatch, device: &Device) -> Result<(Tensor<2, Int>, Vec<u32>), Box<dyn Error>> {
    let lists = rows.column_by_name("tokens").ok_or("no column tokens")?.as_fixed_size_list();
    if lists.value_length() as usize != LENGTH {
        return Err(format!("ingest the text with --sequence-length {LENGTH}").into());
    }
    let bytes = lists.values().as_primitive_opt::<UInt8Type>().ok_or("the tokens are no bytes")?.values();
    // A batch may be a part of a larger array.
    let bytes = &bytes[lists.value_offset_at(0)..][..lists.len() * LENGTH];
    let (mut inputs, mut next) = (Vec::new(), Vec::new());
    for sequence in bytes.chunks_exact(LENGTH) {
        inputs.extend(sequence[..LENGTH - 1].iter().map(|byte| i64::from(*byte)));
        next.extend(sequence[1..].iter().map(|byte| u32::from(*byte)));
    }
    Ok((Tensor::from_data(TensorData::new(inputs, [lists.len(), LENGTH - 1]), device), next))
}

/// Samples `count` bytes, one after the other, by their probabilities. All ranks write the same.
fn write(trainer: &mut Transformer, count: usize, device: &Device) -> Result<String, Box<dyn Error>> {
    let mut written = b"\n".repeat(LENGTH - 1);
    let mut chance = 1u64;
    for _ in 0..count {
        let last: Vec<i64> = written[written.len() + 1 - LENGTH..].iter().map(|it| i64::from(*it)).collect();
        let input = Tensor::from_data(TensorData::new(last, [1, LENGTH - 1]), device);
        let logits: Vec<f32> = trainer.output(input)?.into_data().try_into_vec_as()?;
        // Those of the byte that follows the last one, somewhat sharpened.
        let logits = &logits[logits.len() - 256..];
        let highest = logits.iter().copied().fold(f32::MIN, f32::max);
        let weights: Vec<f32> = logits.iter().map(|logit| ((logit - highest) / 0.8).exp()).collect();
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut left = (chance >> 40) as f32 / (1u64 << 24) as f32 * weights.iter().sum::<f32>();
        let byte = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        written.push(byte.unwrap_or(usize::from(b' ')) as u8);
    }
    Ok(String::from_utf8_lossy(&written[LENGTH - 1..]).into_owned())
}

fn train(args: &Args) -> Result<(), Box<dyn Error>> {
    let (launched, device) = (LaunchEnv::of_env()?, Device::flex());
    let model = gpt(256, LENGTH - 1, GptSize { layers: 3, heads: 4, width: 96 }, 0.1, &device);
    let mut trainer = Trainer::new(model, CrossEntropy, launched.join(&args.run.to_string())?)
        .virtual_ranks(8)
        .optimizer(Optimizer::adamw(0.01))
        .clip(1.0)
        .build()?;
    let nodes = LoaderSource::Nodes {
        servers: args.server.clone(),
        run: args.run.clone(),
        credentials: Credentials::of_env()?,
    };
    let mut loader = Loader::open(LoaderConfig {
        rank: launched.rank(),
        world: launched.world(),
        virtual_ranks: Some(8),
        end_epoch: args.epochs,
        ..LoaderConfig::new(nodes, args.plan, args.batch_size)
    })?;
    let speaks = launched.rank() == 0;
    while let Some(step) = loader.next_step()? {
        let read = |it: &MicroBatch| match it.batch.num_rows() {
            0 => Ok(None),
            _ => sequences(&it.batch, &device).map(Some),
        };
        let batches = step.micro_batches.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let mut batches = batches.into_iter();
        // The rate rises over fifty steps.
        let rate = 0.003 * ((trainer.steps() + 1) as f32 / 50.0).min(1.0);
        let loss = trainer.step(rate, |_| batches.next().flatten())?;
        if speaks && step.step.is_multiple_of(20) {
            println!("epoch {} step {} loss {:.4}", step.epoch, step.step, loss.mean());
        }
    }
    let digest = trainer.weights()?.digest();
    let text = write(&mut trainer, args.write, &device)?;
    if speaks {
        println!("{} steps, weights blake3 {digest}\n{text}", trainer.steps());
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
