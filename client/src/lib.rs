//! What a program needs to use shardd: the store, the cache, the metastore, the engine between them, the loader.

mod durable;

pub mod cache;
pub mod metastore;
