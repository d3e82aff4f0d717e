//! Clears this node's cache of what nobody wants, on request.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardfmt::{GrainKey, ShardId, VersionId};

use super::run::RunState;
use super::{Engine, EngineError, blocking};
use crate::cache::{Class, Cleared};
use crate::node::NodeId;
use crate::protocol::RunId;

/// Asks a node to clear its cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Evict {
    /// Only of grains of this version; without it, of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::schema::Digest>)]
    pub version: Option<VersionId>,
    /// Only say what would go.
    #[serde(default)]
    pub dry_run: bool,
}

/// What went from a node's cache, or would go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Evicted {
    /// The node.
    pub node: NodeId,
    /// What went.
    #[serde(flatten)]
    pub cleared: Cleared,
    /// Bytes of the cache that are in use now.
    pub used_bytes: u64,
}

impl Engine {
    /// Drops from this node's cache what no run wants here that ranks are attached to: not what it hosts, nor what it has been
    /// brought for the next epoch, nor what it has yet to give to others. Files that loaders have mapped stay readable to them.
    ///
    /// # Errors
    /// A version that the store does not have, a store that does not answer.
    pub async fn evict(self: &Arc<Self>, evict: Evict) -> Result<Evicted, EngineError> {
        let shards: Option<HashSet<ShardId>> = match evict.version {
            None => None,
            Some(version) => {
                let manifest = self.origin.manifest(version).await?;
                Some(manifest.shards.iter().map(|shard| shard.id).collect())
            }
        };
        let engine = Arc::clone(self);
        let clear = move || {
            let wanted = engine.wanted_class();
            let stays = |key: &GrainKey, class: &Class| match &shards {
                Some(shards) if !shards.contains(&key.shard) => Some(class.clone()),
                _ => wanted(key),
            };
            let cleared = engine.cache.clear(stays, evict.dry_run);
            Evicted { node: engine.node.clone(), cleared, used_bytes: engine.cache.used() }
        };
        Ok(blocking(clear).await)
    }

    /// The class under which a run with ranks wants a grain kept here, for whatever reason.
    fn wanted_class(&self) -> impl Fn(&GrainKey) -> Option<Class> {
        let hosted = self.hosted_class(None);
        let runs = self.active_run_states();
        let given_away: BTreeMap<RunId, BTreeSet<u32>> =
            runs.iter().map(|run| (run.record.id.clone(), self.being_given_away(run))).collect();
        move |key| {
            let for_another = |run: &Arc<RunState>| {
                let (grain, (epoch, _)) = (run.grain(key)?, run.progress.borrow().furthest()?);
                let next = epoch.saturating_add(1);
                if run.is_hosted_by(&self.node, grain, next) {
                    return Some(run.class(grain, next));
                }
                let partition = run.epochs.view(epoch).partition_of(grain);
                let is_given = given_away[&run.record.id].contains(&partition);
                (is_given || run.is_unacknowledged(grain))
                    .then(|| Class { run: run.name().to_owned(), departs: epoch })
            };
            hosted(key).or_else(|| runs.iter().find_map(for_another))
        }
    }

    /// The partitions that this node hosted and that their new hosts are still copying.
    fn being_given_away(&self, run: &RunState) -> BTreeSet<u32> {
        let placements = run.placement.borrow().clone();
        let (Some(now), Some(before)) = (placements.now, placements.before) else { return BTreeSet::new() };
        let live: Vec<NodeId> = self.live_nodes().into_iter().collect();
        self.being_copied(run, &now, &live)
            .filter(|partition| *before.host(*partition) == self.node)
            .collect()
    }
}
