//! A node without its sockets: it keeps the grains of the partitions that it hosts in a cache, exchanges them as the plan
//! says, and answers where a grain is.
//!
//! [`engine`] does this over two traits, [`peers::Peers`] and [`shardd_store::metastore::Metastore`], and [`cache`] keeps
//! the bytes on disk. The plan alone decides which samples are read in which order: nothing here can change that, only
//! how long it takes. `docs/PROMISES.md` names the tests of that.

pub mod cache;
pub mod engine;
pub mod peers;
