//! Which grains of a shard lie in the cache of this node.

use shardd_api::copies::CachedGrains;
use shardfmt::ShardId;

use super::Engine;
use super::run::RunState;

impl Engine {
    /// The grains of a shard in the cache, for each run that is known here and reads the shard.
    pub fn cached_grains(&self, shard: ShardId) -> Vec<CachedGrains> {
        let runs = self.active_run_states();
        let mut found: Vec<CachedGrains> = runs.iter().filter_map(|run| self.cached_of(run, shard)).collect();
        found.sort_by(|one, other| one.run.cmp(&other.run));
        found
    }

    fn cached_of(&self, run: &RunState, shard: ShardId) -> Option<CachedGrains> {
        let number = run.shard_number(shard)?;
        let epoch = run.ranks.progress.borrow().furthest().map(|(epoch, _)| epoch);
        let hosts = epoch.and_then(|epoch| Some((run.epochs.view(epoch), run.placement()?)));
        let mut of = CachedGrains {
            run: run.record.id.clone(),
            plan: run.record.plan,
            version: run.record.version,
            grains: 0,
            cached: 0,
            bytes: 0,
            hosted: hosts.as_ref().map(|_| 0),
        };
        for grain in run.grains_of_shard(number) {
            of.grains += 1;
            if let (Some(hosted), Some((view, placement))) = (&mut of.hosted, &hosts) {
                *hosted += u64::from(*placement.host(view.partition_of(grain)) == self.node);
            }
            if let Some(at) = self.cache.get(&run.key(grain)) {
                of.cached += 1;
                of.bytes += u64::from(at.len);
            }
        }
        Some(of)
    }
}
