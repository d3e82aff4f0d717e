//! The shardd server.

pub mod config;
pub mod identity;
pub mod metastore;
pub mod transport;
