//! Trains models on what a [`shardd-client`](shardd_client) loader reads, with the same weights on any number of
//! processes.

pub mod block;
pub mod checkpoint;
pub mod cluster;
pub mod collective;
pub mod compress;
pub mod data;
pub mod dataloader;
pub mod device;
pub mod elastic;
pub mod engine;
pub mod evaluate;
pub mod flow;
pub mod launched;
pub mod ledger;
pub mod loss;
pub mod model;
pub mod models;
pub mod nn;
pub mod optim;
pub mod profile;
pub mod random;
pub mod record;
pub mod reduce;
pub mod source;
pub mod stage;
pub mod testkit;
pub mod trace;
pub mod train;
pub mod trainer;
pub mod weights;
pub mod zero;

pub use block::{Block, Pass};
pub use collective::spawn;
pub use flow::Flow;
pub use launched::Launched;
pub use loss::{CrossEntropy, Objective, SampleLosses};
pub use model::Chain;
pub use optim::Optimizer;
pub use train::TrainError;
pub use trainer::Trainer;
pub use zero::{Slicing, Zero};
