//! The types that programs of shardd send to each other, and the pure rules over them.
//!
//! [`overview`] names the stage that holds training up, and the faults of a cluster.
//! [`protocol`] has the requests and answers of the HTTP API, [`problem`] the table of its errors, [`local_transport`]
//! the frames between a node and the loaders of its machine. [`placement`] decides which node hosts which partition,
//! [`capacity`] what of it a cache has room for, and [`lookup`] finds samples in a plan. Nothing here reads a file, a clock other than [`duration::now`], or a socket.

pub mod balancer;
pub mod capacity;
pub mod copies;
pub mod drain;
pub mod duration;
pub mod evict;
pub mod exchange;
pub mod explain;
pub mod health;
pub mod hot;
pub mod local_transport;
pub mod lookup;
pub mod loop_time;
pub mod machine;
pub mod media;
pub mod node;
pub mod overview;
pub mod placement;
pub mod problem;
pub mod protocol;
#[cfg(feature = "openapi")]
pub mod schema;
pub mod serde_str;
pub mod series;
pub mod shell;
pub mod status;
pub mod suggest;
pub mod timeline;
pub mod traffic;
