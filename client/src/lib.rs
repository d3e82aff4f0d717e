//! What a program needs to use shardd: the store, the cache, the metastore, the engine between them, the loader.

mod durable;

pub mod advise;
pub mod audit;
pub mod cache;
pub mod catalog;
pub mod certificates;
pub mod checkpoints;
pub mod engine;
pub mod fork;
pub mod health;
pub mod http;
pub mod inputs;
pub mod lend;
pub mod loader;
pub mod lookup;
pub mod metastore;
pub mod nearest;
pub mod node;
pub mod origin;
pub mod peers;
pub mod placement;
pub mod problem;
mod process;
pub mod protocol;
pub mod record;
pub mod replay;
pub mod reserve;
pub mod schema;
pub mod shared_cache;
pub mod simulate;
pub mod span;
pub mod spread;
pub mod stores;
pub mod strata;
mod text;
pub mod tls;
