//! Trains models on what a [`shardd-client`](shardd_client) loader reads, with the same weights on any number of
//! processes.

pub mod collective;
pub mod reduce;
