//! The cluster in one thread: real engines, caches and QUIC over a network in memory that loses, delays,
//! reorders and cuts, under tokio's paused clock. Hours pass in seconds, and a seed decides what goes wrong
//! when. It controls neither the order of threads nor the random numbers of TLS and of `select!`: replay a
//! failed seed several times.
//!
//! `SHARDD_SIM_SEEDS=A..B cargo test --release -p shardd --lib sim:: -- --nocapture` runs other seeds than CI does.

mod scenario;
mod world;
