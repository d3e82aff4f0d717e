//! Where a shard is cached: how many of its grains each node holds, for which run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardfmt::{PlanId, ShardId, VersionId};

use crate::node::NodeId;
use crate::protocol::RunId;

/// The grains of a shard that a node has for a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CachedGrains {
    /// The run.
    pub run: RunId,
    /// Its plan.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::schema::Digest))]
    pub plan: PlanId,
    /// The version that the plan is over.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::schema::Digest))]
    pub version: VersionId,
    /// Grains of the shard.
    pub grains: u64,
    /// Of these, the ones in the cache of the node.
    pub cached: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Of the grains, the ones of partitions that the node hosts in the present epoch of the run; absent while the node has heard of
    /// no rank of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub hosted: Option<u64>,
}

/// The grains of a shard on a node, by run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CachedAt {
    /// The node.
    pub node: NodeId,
    /// The grains. Runs of one plan share them.
    #[serde(flatten)]
    pub grains: CachedGrains,
}

/// The caches that hold grains of a shard, and the runs that read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Copies {
    /// The shard.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::schema::Digest))]
    pub shard: ShardId,
    /// Of the shard's file in the store.
    pub bytes: u64,
    /// Nodes that host a grain of it for a run, or have one in their cache; at most 200, those with most grains first.
    pub nodes: Vec<CachedAt>,
    /// Those that are left out.
    pub more_nodes: usize,
    /// Runs that read the shard, with their plan and version.
    pub runs: Vec<RunOfShard>,
    /// Nodes that did not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<NodeId>,
}

/// A run that reads a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunOfShard {
    /// The run.
    pub run: RunId,
    /// Its plan.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::schema::Digest))]
    pub plan: PlanId,
    /// The version that the plan is over.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::schema::Digest))]
    pub version: VersionId,
    /// Grains of the shard in it.
    pub grains: u64,
    /// Grains in the caches of all nodes together: two copies of a grain count twice.
    pub cached: u64,
}

/// The most rows of nodes in an answer.
pub const MOST_NODES: usize = 200;

impl Copies {
    /// The answers of nodes, put together.
    #[must_use]
    pub fn of(
        shard: ShardId,
        bytes: u64,
        answers: impl IntoIterator<Item = (NodeId, Vec<CachedGrains>)>,
        unanswered: Vec<NodeId>,
    ) -> Copies {
        let mut runs: BTreeMap<RunId, RunOfShard> = BTreeMap::new();
        let mut nodes = Vec::new();
        for (node, of_runs) in answers {
            for grains in of_runs {
                let run = runs.entry(grains.run.clone()).or_insert_with(|| RunOfShard {
                    run: grains.run.clone(),
                    plan: grains.plan,
                    version: grains.version,
                    grains: grains.grains,
                    cached: 0,
                });
                run.cached = run.cached.saturating_add(grains.cached);
                if grains.cached > 0 || grains.hosted > Some(0) {
                    nodes.push(CachedAt { node: node.clone(), grains });
                }
            }
        }
        nodes.sort_by(|one, other| {
            let key = |at: &CachedAt| std::cmp::Reverse((at.grains.cached, at.grains.hosted));
            (key(one), &one.node, &one.grains.run).cmp(&(key(other), &other.node, &other.grains.run))
        });
        let more_nodes = nodes.len().saturating_sub(MOST_NODES);
        nodes.truncate(MOST_NODES);
        Copies { shard, bytes, nodes, more_nodes, runs: runs.into_values().collect(), unanswered }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(run: &str, cached: u64, hosted: u64) -> CachedGrains {
        CachedGrains {
            run: run.parse().expect("a name"),
            plan: PlanId::of(b"plan"),
            version: VersionId::of(b"version"),
            grains: 8,
            cached,
            bytes: 100 * cached,
            hosted: Some(hosted),
        }
    }

    #[test]
    fn nodes_with_most_grains_come_first_and_runs_have_the_sum() {
        let node = |name: &str| name.parse::<NodeId>().expect("a name");
        let answers = [
            (node("n1"), vec![cached("a", 2, 2), cached("b", 0, 0)]),
            (node("n2"), vec![cached("a", 6, 6)]),
            (node("n3"), vec![cached("a", 0, 1), cached("b", 0, 0)]),
        ];
        let copies = Copies::of(ShardId::of(b"shard"), 9, answers, vec![node("n4")]);
        let rows: Vec<(&str, &str, u64)> = copies
            .nodes
            .iter()
            .map(|at| (at.node.as_str(), at.grains.run.as_str(), at.grains.cached))
            .collect();
        assert_eq!(rows, [("n2", "a", 6), ("n1", "a", 2), ("n3", "a", 0)]);
        let runs: Vec<(&str, u64, u64)> =
            copies.runs.iter().map(|run| (run.run.as_str(), run.grains, run.cached)).collect();
        assert_eq!(runs, [("a", 8, 8), ("b", 8, 0)]);
        assert_eq!((copies.more_nodes, copies.unanswered.len()), (0, 1));

        let many = (0..300).map(|n| (node(&format!("n{n}")), vec![cached("a", n, 0)]));
        let copies = Copies::of(ShardId::of(b"shard"), 9, many, Vec::new());
        assert_eq!((copies.nodes.len(), copies.more_nodes), (MOST_NODES, 99), "n0 has none");
        assert_eq!(copies.nodes[0].grains.cached, 299);
    }
}
