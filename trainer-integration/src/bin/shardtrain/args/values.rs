//! The values of flags that have a few.

use clap::ValueEnum;
use shardd_trainer::collective::sums::Algorithm;
use shardd_trainer::data::Attention;
use shardd_trainer::train::Preparation;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rest {
    /// Train on it, weighted by its number of samples
    Short,
    /// Drop its samples
    Drop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportName {
    /// TCP, through host memory
    Tcp,
    /// NVIDIA NCCL, with one GPU for each rank
    Nccl,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Prepare {
    /// On the host, between two steps
    Host,
    /// On the device, during the previous step
    Device,
}

impl From<Prepare> for Preparation {
    fn from(place: Prepare) -> Preparation {
        match place {
            Prepare::Host => Preparation::Host,
            Prepare::Device => Preparation::Device,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OptimizerName {
    /// SGD with momentum
    Sgd,
    /// Adam
    Adam,
    /// Adam with decoupled weight decay
    #[value(name = "adamw")]
    AdamW,
    /// Lion (sign of the momentum)
    Lion,
    /// LAMB (AdamW with a trust ratio for each layer)
    Lamb,
    /// LARS (SGD with a trust ratio for each layer)
    Lars,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnBad {
    /// Stop training
    Stop,
    /// Skip the step; stop after ten bad steps in a row
    Skip,
    /// Return to the last checkpoint of --checkpoint-every and continue with the data after the bad step; stop after three returns to
    /// the same checkpoint
    Rollback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReduceName {
    /// Fixed order
    Exact,
    /// Any order
    Fast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllReduceName {
    Auto,
    Only(Algorithm),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelName {
    /// Two convolutions for images, two hidden layers for columns or sparse features, a small GPT for token sequences
    Small,
    /// Linear layer for columns or sparse features
    Linear,
    /// ResNet-18 for images
    Resnet18,
    /// Decoder-only transformer for token sequences
    Gpt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LrDecayName {
    /// Cosine decay to zero
    Cosine,
    /// Linear decay to zero
    Linear,
    /// Constant
    Constant,
    /// Step decay
    Step,
    /// Decay when the mean training loss of epochs stops falling
    Plateau,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScalingName {
    /// No scaling
    None,
    /// Linear scaling
    Linear,
    /// Square-root scaling
    Sqrt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AttentionName {
    /// A token attends to all tokens before it in its sequence
    Causal,
    /// A token attends to the tokens before it in its document
    BlockCausal,
}

impl From<AttentionName> for Attention {
    fn from(name: AttentionName) -> Attention {
        match name {
            AttentionName::Causal => Attention::Causal,
            AttentionName::BlockCausal => Attention::BlockCausal,
        }
    }
}
