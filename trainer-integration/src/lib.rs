//! Trains models on what a [`shardd-client`](shardd_client) loader reads, with the same weights on any number of
//! processes.

pub mod block;
pub mod checkpoint;
pub mod cluster;
pub mod collective;
pub mod data;
pub mod dataloader;
pub mod device;
pub mod engine;
pub mod evaluate;
pub mod loss;
pub mod model;
pub mod optim;
pub mod random;
pub mod reduce;
pub mod source;
pub mod testkit;
pub mod train;
pub mod weights;
