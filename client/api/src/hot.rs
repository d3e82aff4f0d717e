//! The shards and grains that a node is asked for most, lately.

use serde::{Deserialize, Serialize};
use shardfmt::ShardId;

use crate::node::NodeId;

/// What a node is asked for most. Counts decay: a read counts half after `half_life_s`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Hot {
    /// The node.
    pub node: NodeId,
    /// After how many seconds a read counts half.
    pub half_life_s: u64,
    /// The shards, the first by the property that was asked for first.
    pub shards: Vec<HotShard>,
    /// The grains.
    pub grains: Vec<HotGrain>,
}

/// The recent reads of a shard or a grain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Heat {
    /// Reads of its grains by ranks of this node.
    pub reads: f64,
    /// How much higher that number may be: the node forgets what is read little.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reads_error: f64,
    /// The reads for which the node had to bring a grain from elsewhere.
    pub misses: f64,
    /// Bytes of the reads.
    pub bytes: f64,
    /// The mean time that such a miss took, in seconds; none if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub miss_seconds: Option<f64>,
}

impl Heat {
    /// With the reads of the same shard or grain on another node.
    #[must_use]
    pub fn plus(self, other: Heat) -> Heat {
        let waited = |heat: &Heat| heat.miss_seconds.map_or(0.0, |seconds| seconds * heat.misses);
        let misses = self.misses + other.misses;
        Heat {
            reads: self.reads + other.reads,
            reads_error: self.reads_error + other.reads_error,
            misses,
            bytes: self.bytes + other.bytes,
            miss_seconds: (misses > 0.0).then(|| (waited(&self) + waited(&other)) / misses),
        }
    }

    /// The number that it is sorted by.
    #[must_use]
    pub fn by(&self, order: HotOrder) -> f64 {
        match order {
            HotOrder::Reads => self.reads,
            HotOrder::Bytes => self.bytes,
            HotOrder::Misses => self.misses,
            HotOrder::Latency => self.miss_seconds.unwrap_or(0.0),
        }
    }
}

/// A shard and its recent reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HotShard {
    /// The shard.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::schema::Digest))]
    pub shard: ShardId,
    /// Its reads.
    #[serde(flatten)]
    pub heat: Heat,
}

/// A grain and its recent reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HotGrain {
    /// Its shard.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::schema::Digest))]
    pub shard: ShardId,
    /// Its first row in the shard.
    pub first_row: u32,
    /// Its reads.
    #[serde(flatten)]
    pub heat: Heat,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(error: &f64) -> bool {
    *error == 0.0
}

/// By what shards and grains are sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum HotOrder {
    /// By reads, most first.
    #[default]
    Reads,
    /// By bytes, most first.
    Bytes,
    /// By misses, most first.
    Misses,
    /// By the mean time of a miss, the slowest first.
    Latency,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_time_of_misses_is_weighed_by_their_number() {
        let heat =
            |misses, miss_seconds| Heat { reads: 10.0, misses, bytes: 5.0, miss_seconds, ..Heat::default() };
        let sum = heat(3.0, Some(1.0)).plus(heat(1.0, Some(5.0)));
        assert_eq!((sum.reads, sum.misses, sum.bytes, sum.miss_seconds), (20.0, 4.0, 10.0, Some(2.0)));
        assert_eq!(heat(0.0, None).plus(heat(0.0, None)).by(HotOrder::Latency), 0.0);
    }
}
