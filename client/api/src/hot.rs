//! The shards and grains that a node is asked for most, lately.

use std::collections::BTreeMap;

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

/// The shards and grains that the nodes of a cluster are asked for most.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HotOfCluster {
    /// After how many seconds a read counts half.
    pub half_life_s: u64,
    /// The shards, with the nodes that were asked.
    pub shards: Vec<Hosted<HotShard>>,
    /// The grains.
    pub grains: Vec<Hosted<HotGrain>>,
    /// Nodes that did not answer, and are missing here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<NodeId>,
}

/// A hot shard or grain, and the nodes that were asked for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Hosted<T> {
    /// The shard or the grain.
    #[serde(flatten)]
    pub what: T,
    /// The nodes.
    pub nodes: Vec<NodeId>,
}

impl HotOfCluster {
    /// Adds up the answers of nodes about the same shards and grains, and keeps the first `limit` of each.
    #[must_use]
    pub fn merged(answers: Vec<Hot>, unanswered: Vec<NodeId>, by: HotOrder, limit: usize) -> HotOfCluster {
        let half_life_s = answers.iter().map(|hot| hot.half_life_s).max().unwrap_or(0);
        let shards =
            answers.iter().flat_map(|hot| hot.shards.iter().map(|one| (one.shard, one.heat, &hot.node)));
        let grains = answers
            .iter()
            .flat_map(|hot| hot.grains.iter().map(|one| ((one.shard, one.first_row), one.heat, &hot.node)));
        let shard = |(shard, heat, nodes)| Hosted { what: HotShard { shard, heat }, nodes };
        let grain =
            |((shard, first_row), heat, nodes)| Hosted { what: HotGrain { shard, first_row, heat }, nodes };
        HotOfCluster {
            half_life_s,
            shards: hottest(shards, by, limit).into_iter().map(shard).collect(),
            grains: hottest(grains, by, limit).into_iter().map(grain).collect(),
            unanswered,
        }
    }
}

/// The sums by key, the first `limit` of them in an order, each with the nodes that it is of.
fn hottest<'a, K: Ord + Copy>(
    found: impl Iterator<Item = (K, Heat, &'a NodeId)>,
    by: HotOrder,
    limit: usize,
) -> Vec<(K, Heat, Vec<NodeId>)> {
    let mut sums: BTreeMap<K, (Heat, Vec<NodeId>)> = BTreeMap::new();
    for (key, heat, node) in found {
        let (sum, nodes) = sums.entry(key).or_default();
        *sum = sum.plus(heat);
        nodes.push(node.clone());
    }
    let mut sorted: Vec<_> = sums.into_iter().map(|(key, (heat, nodes))| (key, heat, nodes)).collect();
    sorted.sort_by(|(_, one, _), (_, other, _)| other.by(by).total_cmp(&one.by(by)));
    sorted.truncate(limit);
    sorted
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

impl HotOrder {
    /// Its name in requests.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            HotOrder::Reads => "reads",
            HotOrder::Bytes => "bytes",
            HotOrder::Misses => "misses",
            HotOrder::Latency => "latency",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_shard_of_several_nodes_is_one_with_the_sum() {
        let shard = |fill| ShardId(shardfmt::digest::Digest::of(&[fill]));
        let hot = |node: &str, reads: &[(u8, f64)]| Hot {
            node: node.parse().expect("a name"),
            half_life_s: 600,
            shards: reads
                .iter()
                .map(|(fill, reads)| HotShard {
                    shard: shard(*fill),
                    heat: Heat { reads: *reads, ..Heat::default() },
                })
                .collect(),
            grains: Vec::new(),
        };
        let answers = vec![hot("n1", &[(1, 5.0), (2, 4.0)]), hot("n2", &[(2, 3.0), (3, 1.0)])];
        let merged = HotOfCluster::merged(answers, Vec::new(), HotOrder::Reads, 2);
        let found: Vec<_> =
            merged.shards.iter().map(|one| (one.what.shard, one.what.heat.reads, one.nodes.len())).collect();
        assert_eq!(found, [(shard(2), 7.0, 2), (shard(1), 5.0, 1)]);
        assert_eq!((merged.half_life_s, merged.grains), (600, Vec::new()));
    }

    #[test]
    fn the_mean_time_of_misses_is_weighed_by_their_number() {
        let heat =
            |misses, miss_seconds| Heat { reads: 10.0, misses, bytes: 5.0, miss_seconds, ..Heat::default() };
        let sum = heat(3.0, Some(1.0)).plus(heat(1.0, Some(5.0)));
        assert_eq!((sum.reads, sum.misses, sum.bytes, sum.miss_seconds), (20.0, 4.0, 10.0, Some(2.0)));
        assert_eq!(heat(0.0, None).plus(heat(0.0, None)).by(HotOrder::Latency), 0.0);
    }
}
