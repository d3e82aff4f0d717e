//! Clears this node's cache of grains that no run needs, on request.

use std::collections::{BTreeSet, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use shardd_api::evict::{Evict, Evicted};
use shardd_api::node::NodeId;
use shardd_api::protocol::{RanksRecord, RunId};
use shardfmt::{GrainKey, ShardId};

use super::exchange::epochs_in_use;
use super::keys::{RANKS, entries};
use super::run::RunState;
use super::{Engine, EngineError, blocking};
use crate::cache::Class;

impl Engine {
    /// Drops from this node's cache what no run wants here that ranks are attached to: not the grains it
    /// hosts, nor those that arrived for the next epoch, nor those it has yet to send. Files that loaders
    /// have mapped stay readable to them.
    ///
    /// # Errors
    /// A version that the store does not have; a store or a metastore that does not answer, so that the
    /// wanted grains are not known.
    pub async fn evict(self: &Arc<Self>, evict: Evict) -> Result<Evicted, EngineError> {
        let shards: Option<HashSet<ShardId>> = match evict.version {
            None => None,
            Some(version) => {
                let manifest = self.origin.manifest(version).await?;
                Some(manifest.shards.iter().map(|shard| shard.id).collect())
            }
        };
        let runs = self.runs_with_ranks().await?;
        let _one_after_the_other = self.upkeep.clearing.lock().await;
        let engine = Arc::clone(self);
        let clear = move || {
            let wanted = engine.wanted_class(&runs);
            let stays = |key: &GrainKey, class: &Class| match &shards {
                Some(shards) if !shards.contains(&key.shard) => Some(class.clone()),
                _ => wanted(key, class),
            };
            let cleared = engine.cache.clear(stays, evict.dry_run);
            Evicted { node: engine.node.clone(), cleared, used_bytes: engine.cache.used() }
        };
        Ok(blocking(clear).await)
    }

    /// The runs that ranks are attached to and the epochs they are in, as the metastore has them now: a node that has just
    /// started may have heard of none.
    pub(super) async fn runs_with_ranks(
        &self,
    ) -> Result<Vec<(Arc<RunState>, RangeInclusive<u32>)>, EngineError> {
        let mut runs = Vec::new();
        for (id, ranks) in entries::<RunId, RanksRecord>(RANKS, &self.meta.list(RANKS).await?) {
            let run = self.run(&id).await?;
            self.look_up_placement(&run, 1).await?;
            let epochs = epochs_in_use(&run).unwrap_or(ranks.reached..=ranks.reached);
            runs.push((run, epochs));
        }
        Ok(runs)
    }

    /// The class under which one of `runs` wants a grain kept here, for whatever reason. Its argument is the
    /// present class.
    pub(super) fn wanted_class<'a>(
        &'a self,
        runs: &'a [(Arc<RunState>, RangeInclusive<u32>)],
    ) -> impl Fn(&GrainKey, &Class) -> Option<Class> + 'a {
        let given_away: Vec<BTreeSet<u32>> = runs.iter().map(|(run, _)| self.being_given_away(run)).collect();
        move |key, class| {
            runs.iter().zip(&given_away).find_map(|((run, epochs), given_away)| {
                let grain = run.grain(key)?;
                let furthest = *epochs.end();
                let next = furthest.saturating_add(1);
                // Where ranks elsewhere are ahead of those here, it may be for the epoch after the next.
                let comes_early = class.run == run.name() && class.departs > next;
                let last = if comes_early { next.saturating_add(1) } else { next };
                let hosted =
                    (*epochs.start()..=last).find(|epoch| run.is_hosted_by(&self.node, grain, *epoch));
                if let Some(epoch) = hosted {
                    return Some(self.class(run, grain, epoch));
                }
                let is_given = given_away.contains(&run.epochs.view(furthest).partition_of(grain));
                (is_given || run.unacknowledged.contains(grain)).then(|| Class::until(run.name(), furthest))
            })
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
