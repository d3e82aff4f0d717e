//! Questions about a node that any node answers about itself.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use shardd_api::hot::HotOrder;
use shardd_api::protocol::RunId;
use shardfmt::ShardId;

/// A question about a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Look {
    /// Its status: the answer is a [`NodeStatus`](shardd_api::status::NodeStatus).
    Status,
    /// Its series: the answer is a [`NodeSeries`](shardd_api::series::NodeSeries).
    Series {
        /// Beginnings of their names; none: all.
        names: Vec<String>,
        /// At most this number of points.
        points: usize,
    },
    /// The shards and grains it is asked for most: the answer is a [`Hot`](shardd_api::hot::Hot).
    Hot {
        /// By what.
        by: HotOrder,
        /// At most this number of each.
        limit: usize,
    },
    /// Which grains of a shard are in its cache: the answer is a list of [`CachedGrains`](shardd_api::copies::CachedGrains).
    Copies {
        /// The shard.
        shard: ShardId,
    },
    /// What it did for a run: the answer is a [`Timeline`](shardd_api::timeline::Timeline).
    Timeline {
        /// The run.
        run: RunId,
    },
    /// To which nodes it has sent bytes of a run: the answer is a list of [`SentTo`](shardd_api::traffic::SentTo).
    Receivers {
        /// The run.
        run: RunId,
    },
}

/// Answers questions about this node.
pub trait LookService: Send + Sync {
    /// The answer, as JSON. Takes no time worth mentioning.
    fn answer(&self, look: &Look) -> Bytes;
}
