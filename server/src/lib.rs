//! The shardd server: the sockets around a node of [`shardd_engine`].
//!
//! [`serve`](mod@serve) assembles a node from its [`config`]: its [`identity`], the certificate authority
//! ([`ca`]), the [`transport`] to other nodes, the [`metastore`], its [`membership`] in the cluster and its
//! [`http`] API. The engine decides; this crate has the sockets.

pub mod access;
pub mod ca;
pub mod config;
pub mod http;
pub mod https;
pub mod identity;
mod keeping;
mod lend;
pub mod membership;
pub mod memory;
pub mod metastore;
mod observe;
mod renewal;
pub mod serve;
#[cfg(test)]
mod sim;
pub mod transport;
