//! Where shardd keeps what must last: objects in a store, and names for them in a metastore.
//!
//! [`stores`] opens a directory, S3, GCS, Azure or memory; [`origin`] reads and writes the content-addressed objects in
//! it; [`metastore`] keeps the few small values that change; [`catalog`] joins the two into datasets, versions, plans and
//! runs, in process or through a node's HTTP API.

pub mod catalog;
mod causes;
#[cfg(feature = "cli")]
pub mod connect;
pub mod durable;
pub mod http;
pub mod metastore;
pub mod origin;
pub mod process;
mod random;
pub mod record;
pub mod reserve;
mod row_digests;
pub mod stores;
pub mod tls;
pub mod training_data;
