//! The server's metastores: [`SledMetastore`] on the node that keeps the metadata, [`RemoteMetastore`] on all others.
//!
//! Both keep the promises of [`Metastore`](shardd_client::metastore::Metastore); `wire` is what they say to each other.

mod remote;
mod sled;
pub(crate) mod wire;

pub use self::sled::{OpenError, SledMetastore};
pub use remote::RemoteMetastore;
