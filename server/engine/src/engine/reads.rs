//! Counts what ranks read at this node, by shard and by grain.

use std::sync::Mutex;

use shardd_api::hot::{Heat, Hot, HotGrain, HotOrder, HotShard};
use shardd_api::node::NodeId;
use shardd_plan::GrainNo;
use shardfmt::{GrainKey, ShardId};
use tokio::time::{Duration, Instant};

use super::hot::{self, Hottest};
use super::run::RunState;
use crate::cache::Cache;

/// After how long a read counts half.
const HALF_LIFE: Duration = Duration::from_secs(600);
/// How many shards, and how many grains, are followed: a few hundred KB.
const FOLLOWED: usize = 2048;

/// The reads of this node, lately.
pub(super) struct Reads {
    started: Instant,
    hottest: Mutex<(Hottest<ShardId>, Hottest<GrainKey>)>,
}

/// The reads of one request, under way.
pub(super) struct Reading {
    began: Instant,
    /// Each grain, and whether the cache had it.
    grains: Vec<(GrainKey, bool)>,
}

impl Default for Reads {
    fn default() -> Reads {
        let hottest = (Hottest::new(FOLLOWED, HALF_LIFE), Hottest::new(FOLLOWED, HALF_LIFE));
        Reads { started: Instant::now(), hottest: Mutex::new(hottest) }
    }
}

impl Reads {
    /// Notes which of the grains that a rank asks for are in the cache.
    pub(super) fn begin(&self, run: &RunState, cache: &Cache, grains: &[GrainNo]) -> Reading {
        let look = |grain: &GrainNo| {
            let key = run.key(*grain);
            (key, cache.get(&key).is_some())
        };
        Reading { began: Instant::now(), grains: grains.iter().map(look).collect() }
    }

    /// The rank is given them; `lengths` are their bytes, in order.
    pub(super) fn end(&self, reading: Reading, lengths: impl Iterator<Item = u32>) {
        if reading.grains.is_empty() {
            return;
        }
        let (at, took) = (self.started.elapsed(), reading.began.elapsed());
        let mut hottest = self.hottest.lock().expect("no panic while held");
        let (shards, grains) = &mut *hottest;
        for ((key, was_cached), bytes) in reading.grains.into_iter().zip(lengths) {
            let read = hot::Heat::of_read(bytes.into(), (!was_cached).then_some(took));
            shards.note(at, &key.shard, read);
            grains.note(at, &key, read);
        }
    }

    /// The most-read shards and grains.
    pub(super) fn hot(&self, node: NodeId, by: HotOrder, limit: usize) -> Hot {
        let at = self.started.elapsed();
        let mut hottest = self.hottest.lock().expect("no panic while held");
        let (shards, grains) = &mut *hottest;
        let order = |heat: &hot::Heat| shown(heat).by(by);
        let shards = shards.top(at, limit, order);
        let grains = grains.top(at, limit, order);
        Hot {
            node,
            half_life_s: HALF_LIFE.as_secs(),
            shards: shards.into_iter().map(|(shard, heat)| HotShard { shard, heat: shown(&heat) }).collect(),
            grains: grains
                .into_iter()
                .map(|(key, heat)| HotGrain {
                    shard: key.shard,
                    first_row: key.index * key.rows,
                    heat: shown(&heat),
                })
                .collect(),
        }
    }
}

fn shown(heat: &hot::Heat) -> Heat {
    Heat {
        reads: heat.reads,
        reads_error: heat.missed,
        misses: heat.misses,
        bytes: heat.bytes,
        miss_seconds: (heat.misses > 0.0).then(|| heat.waited_s / heat.misses),
    }
}
