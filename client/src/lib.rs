//! What a program needs to use shardd: the store, the cache, the metastore, the engine between them, the loader.

mod durable;

pub mod cache;
pub mod catalog;
pub mod http;
pub mod metastore;
pub mod node;
pub mod origin;
pub mod problem;
