//! `shardtrain export`: the weights of a checkpoint as a file, without training.

use std::error::Error;
use std::path::PathBuf;

use shardd_client::protocol::RunId;
use shardd_trainer::checkpoint::export;

use crate::args::Args;
use crate::output::tell_exported;
use crate::records::open;

/// Saves the weights of a checkpoint, as --save does those of the end
///
/// With running statistics averaged over the virtual ranks: the file is byte for byte the one that --save writes at that step. A few pieces of
/// the checkpoint are in memory at a time, however large the model is.
#[derive(clap::Args, Debug)]
pub(crate) struct Export {
    /// Directory or bucket that the checkpoints are in
    #[arg(long, value_name = "DIR|URL")]
    checkpoints: PathBuf,

    /// Name of the run
    #[arg(long, value_name = "NAME", default_value = "train")]
    run: RunId,

    /// The checkpoint after so many steps [default: the newest]
    #[arg(long, value_name = "STEPS")]
    step: Option<u64>,

    /// The file, which is replaced by all of it or left as it was
    #[arg(long, value_name = "FILE.safetensors")]
    save: PathBuf,
}

pub(crate) fn run(asked: &Export, said: &Args) -> Result<(), Box<dyn Error>> {
    let shelf = open(&asked.checkpoints, &asked.run, said, "checkpoints")?;
    let id = export(&shelf, asked.step, &asked.save)?;
    tell_exported(&id.short(), &asked.save);
    Ok(())
}
