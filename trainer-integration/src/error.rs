//! The errors of trainings.

use shardd_store::record::RecordError;
use shardfmt::digest::Digest;
use thiserror::Error;

use crate::checkpoint::CheckpointError;
use crate::collective::CollectiveError;
use crate::collective::nccl::NcclError;
use crate::data::{InputError, RowsError};
use crate::device::DeviceError;
use crate::engine::EngineError;
use crate::model::FreezeError;
use crate::models::ModelError;
use crate::source::SourceError;
use crate::weights::WeightsError;

/// Why a training ended without weights.
///
/// ```
/// # use burn::module::Module;
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::tensor::{Device, Tensor};
/// # #[derive(Module, Debug)]
/// # struct Dense {
/// #     linear: Linear,
/// # }
/// # shardd_trainer::block!(Dense, |self, input: Tensor<2>| -> Tensor<2> { self.linear.forward(input) });
/// use shardd_trainer::{Chain, CrossEntropy, TrainError, Trainer, spawn};
///
/// let results = spawn(2, |collective| {
///     let linear = LinearConfig::new(4, 2).init(&Device::flex());
///     let model = Chain::start(Dense { linear });
///     Trainer::new(model, CrossEntropy, Box::new(collective)).virtual_ranks(1).build().map(drop)
/// });
/// assert!(matches!(results[0], Err(TrainError::TooManyRanks { world: 2, virtual_ranks: 1 })));
/// ```
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum TrainError {
    /// More processes than shares of a step; start fewer, or begin a run with more virtual ranks.
    #[error(
        "{world} ranks cannot share {virtual_ranks} virtual ranks; start at most {virtual_ranks} ranks, or give --virtual-ranks {world} or more to a new run"
    )]
    TooManyRanks { world: u32, virtual_ranks: u32 },
    /// Ranks were started with different settings or data.
    #[error("rank {rank} differs from rank 0 in {differences}; start all ranks with the same settings")]
    Settings { rank: u32, differences: String },
    /// The machines of two ranks compute different bits.
    #[error(
        "rank {rank} computes other bits than rank 0 in {operations} (instructions {theirs}, rank 0 has {ours}); train on machines of one kind and with one C library, or give --reduce fast, which promises no bits"
    )]
    Arithmetic { rank: u32, operations: String, theirs: String, ours: String },
    /// Ranks hold different weights though they must not: a fault in hardware or in this program.
    #[error(
        "rank {rank} holds other weights than rank 0 in block {block} of the model {moment} ({theirs} against {ours}); the machines compute differently"
    )]
    Diverged { rank: u32, block: usize, moment: String, ours: Digest, theirs: Digest },
    /// A step gave no usable gradient; the weights are those before it.
    #[error("epoch {epoch}, step {step}: {what}")]
    BadStep { epoch: u32, step: u64, what: BadStep },
    /// There would be nothing to go back to.
    #[error(
        "bad steps are undone by going back to checkpoints: keep some (--checkpoints), written by steps (--checkpoint-every)"
    )]
    NothingToGoBackTo,
    /// Gradients cannot be added up so for this optimizer.
    #[error("{0}")]
    Reduction(&'static str),
    /// Ranks cannot share numbers by groups of that size.
    #[error("{0} (--zero-group)")]
    Groups(String),
    /// The model does not fit the data.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A block of the model would compute other numbers on another number of ranks.
    #[error("{0}")]
    Block(String),
    /// Another rank is gone or late.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The device has no memory for a micro-batch.
    #[error(transparent)]
    Memory(EngineError),
    /// Gradients cannot be carried as they are to be.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// Rows cannot be trained on.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Training data cannot be read.
    #[error("training data cannot be read")]
    Source(#[source] SourceError),
    /// Test data cannot be read.
    #[error("test data cannot be read")]
    Rows(#[source] RowsError),
    /// The source gives other shares than this rank's, or counts its samples wrongly.
    #[error("the data source is at odds with the trainer: {0}")]
    Share(String),
    /// A checkpoint cannot be written or read, or is of another training.
    #[error(transparent)]
    Checkpoint(CheckpointError),
    /// The record that the training is compared with cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The training is not the one of the record that it is compared with.
    #[error("{0}")]
    Rerun(String),
    /// Parameters cannot be frozen so.
    #[error(transparent)]
    Freeze(#[from] FreezeError),
    /// The weights to begin with are those of another model.
    #[error("the first weights cannot be used")]
    Weights(#[from] WeightsError),
    /// The device is not there.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The system has no threads to give.
    #[error("a pool of {threads} threads could not be started")]
    Threads { threads: usize, source: rayon::ThreadPoolBuildError },
}

impl From<EngineError> for TrainError {
    fn from(error: EngineError) -> TrainError {
        match error {
            EngineError::Collective(error) => TrainError::Collective(error),
            error @ EngineError::OutOfMemory { .. } => TrainError::Memory(error),
        }
    }
}

impl From<CheckpointError> for TrainError {
    fn from(error: CheckpointError) -> TrainError {
        match error {
            CheckpointError::Collective(error) => TrainError::Collective(error),
            error => TrainError::Checkpoint(error),
        }
    }
}

/// The fault of a step.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum BadStep {
    /// The loss, or the length of the gradient, is infinite or NaN.
    #[error(
        "the loss is {loss} and the norm of its gradient {gradient_norm}; lower the learning rate (--lr), or clip (--clip-grad-norm)"
    )]
    NotFinite { loss: f64, gradient_norm: f64 },
    /// The same where gradients have been scaled down to the limit.
    #[error(
        "the loss is {loss} and the norm of its gradient {gradient_norm}, with loss scaled by {scale}, which is as little as it may be: 16 bits do not hold it; give --precision bf16 or f32, lower the learning rate (--lr), or clip (--clip-grad-norm)"
    )]
    TooLarge { loss: f64, gradient_norm: f64, scale: f32 },
    /// The loss is far above what came before.
    #[error(
        "the loss is {loss}, more than {factor} times the {usual} of the steps before; look at the data, or clip (--clip-grad-norm)"
    )]
    Spike { loss: f64, usual: f64, factor: f32 },
}
