//! The shardd server: what makes a node of the engine that `shardd-client` has.
//!
//! [`serve`](mod@serve) puts a node together from its [`config`]: who it is ([`identity`]), where
//! certificates are signed ([`desk`]), how it reaches the others
//! ([`transport`]), where small shared facts are kept ([`metastore`]), its place among the nodes ([`membership`]) and its
//! HTTP API ([`http`]). What is decided, the engine decides; here are its sockets.

pub mod access;
pub mod config;
pub mod desk;
pub mod http;
pub mod https;
pub mod identity;
mod keeping;
mod lend;
pub mod membership;
pub mod memory;
pub mod metastore;
mod renewal;
pub mod serve;
#[cfg(test)]
mod sim;
pub mod transport;
