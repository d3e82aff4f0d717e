//! Trains models on what a [`shardd-client`](shardd_client) loader reads, with the same weights on any number of
//! processes. `docs/PROMISES.md` names the tests of that.

mod arithmetic;
pub mod block;
pub mod buckets;
mod causes;
pub mod checkpoint;
pub mod cluster;
pub mod collective;
pub mod compress;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod cube;
pub mod data;
pub mod dataloader;
pub mod device;
pub mod dtype;
pub mod elastic;
pub mod engine;
pub mod error;
pub mod evaluate;
pub mod exact;
pub mod flat_block;
pub mod launch_env;
pub mod ledger;
pub mod loss;
pub mod model;
pub mod models;
pub mod name_pattern;
pub mod nn;
pub mod optim;
pub mod profile;
pub mod progress;
pub mod random;
pub mod record;
pub mod reduce;
mod resident;
pub mod scaling;
pub mod source;
pub mod tensor_tree;
pub mod testkit;
pub mod trace;
pub mod train;
pub mod trainer;
pub mod weights;
pub mod zero;

pub use block::{Block, Pass};
pub use collective::spawn;
pub use error::TrainError;
pub use launch_env::LaunchEnv;
pub use loss::{CrossEntropy, Objective, SampleLosses, SoftCrossEntropy};
pub use model::Chain;
pub use name_pattern::NamePattern;
pub use optim::Optimizer;
pub use tensor_tree::TensorTree;
pub use trainer::Trainer;
pub use zero::{Slicing, Zero};
