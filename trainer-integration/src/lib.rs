//! Trains models on what a [`shardd-client`](shardd_client) loader reads, with the same weights on any number of
//! processes.

pub mod block;
pub mod collective;
pub mod data;
pub mod engine;
pub mod loss;
pub mod model;
pub mod optim;
pub mod reduce;
pub mod steps;
pub mod testkit;
pub mod weights;
