//! `shardtrain export`: the weights of a checkpoint as a file, without training.

use std::error::Error;
use std::path::PathBuf;

use shardd_api::protocol::RunId;
use shardd_trainer::checkpoint::{Exported, export_as};

use crate::args::Args;
use crate::expected::open;
use crate::output::tell_exported;

/// Export the weights of a checkpoint as safetensors
///
/// Running statistics are averaged over the virtual ranks. The file is byte for byte the one that --save writes at that step. Memory use does
/// not grow with the model.
#[derive(clap::Args, Debug)]
pub(crate) struct Export {
    /// Directory or bucket of the checkpoints
    #[arg(long, value_name = "DIR|URL")]
    checkpoints: PathBuf,

    /// Name of the run
    #[arg(long, value_name = "NAME", default_value = "train")]
    run: RunId,

    /// Step of the checkpoint [default: the newest]
    #[arg(long, value_name = "STEPS")]
    step: Option<u64>,

    /// Add the adapters of --lora to the weights of their layers; the file is that of a model without adapters
    #[arg(long, conflicts_with = "adapters")]
    merged: bool,

    /// Export the parameters of adapters only
    #[arg(long)]
    adapters: bool,

    /// Output file; written whole or left unchanged
    #[arg(long, value_name = "FILE.safetensors")]
    save: PathBuf,
}

pub(crate) fn run(asked: &Export, said: &Args) -> Result<(), Box<dyn Error>> {
    let shelf = open(&asked.checkpoints, &asked.run, said, "checkpoints")?;
    let what = match (asked.merged, asked.adapters) {
        (true, _) => Exported::Merged,
        (_, true) => Exported::Adapters,
        _ => Exported::All,
    };
    let id = export_as(&shelf, asked.step, what, &asked.save)?;
    tell_exported(&id.short(), &asked.save);
    Ok(())
}
