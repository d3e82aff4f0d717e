//! Rows that are read past the cache, from the store, one by one: the rows of a grain are due at unrelated
//! positions of an epoch, so that a grain which is not kept would have to be read again for each of them.
//! Each row is verified here by its shard's sidecar, and travels with its proof for the loader.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use shardd_api::explain::{MissSource, Wanted};
use shardd_api::timeline::Work;
use shardd_plan::GrainNo;
use shardfmt::merkle::GrainTree;
use shardfmt::sparse::{self, Item};
use shardfmt::{RowCodec, RowDigest};
use tokio::time::Instant;
use tracing::warn;

use super::misses::Given;
use super::obtain::group;
use super::run::RunState;
use super::run::known_shards::Known;
use super::{Counters, Engine, EngineError, blocking};

/// How many shards are asked for rows at once.
const AT_ONCE: usize = 8;

impl Engine {
    /// Those of the `grains` that pass by the cache of this node in `epoch` and are not in it, and the rows that are wanted of
    /// each: `rows` has them, a list for each grain.
    pub(super) fn passing_by(
        &self,
        run: &RunState,
        epoch: u32,
        grains: &[GrainNo],
        rows: &[Vec<u32>],
    ) -> BTreeMap<GrainNo, Vec<u32>> {
        let passes_by =
            |grain: &GrainNo| self.passes_by(run, epoch, *grain) && !self.is_resident(run, *grain);
        let passing = grains.iter().zip(rows).filter(|(grain, _)| passes_by(grain));
        passing.filter_map(|(grain, rows)| Some((*grain, run.some_rows(*grain, rows)?))).collect()
    }

    /// Single rows from the store, by grain, each with what proves it ([`shardfmt::sparse`]). Nothing of it is kept.
    pub(super) async fn read_past(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        epoch: u32,
        wanted: &BTreeMap<GrainNo, Vec<u32>>,
    ) -> Result<HashMap<GrainNo, Bytes>, EngineError> {
        if wanted.is_empty() {
            return Ok(HashMap::new());
        }
        let began = Instant::now();
        let by_shard =
            group(wanted.iter().map(|(grain, rows)| (run.shard_of(*grain), (*grain, rows.clone()))));
        let asked: Vec<_> =
            by_shard.into_iter().map(|(shard, wanted)| self.read_rows_right(run, shard, wanted)).collect();
        let read: Vec<Vec<(GrainNo, Bytes)>> =
            stream::iter(asked).buffer_unordered(AT_ONCE).try_collect().await?;
        let read: HashMap<GrainNo, Bytes> = read.into_iter().flatten().collect();
        let bytes = read.values().map(Bytes::len).sum();
        Counters::add(&self.counters.misses_from_origin, read.len());
        Counters::add(&self.counters.miss_bytes_from_origin, bytes);
        let given = Given { epoch, wanted: Wanted::ToRead, source: MissSource::Store, from: None };
        let view = run.epochs.view(epoch);
        let grains: Vec<GrainNo> = read.keys().copied().collect();
        run.misses.note(given, grains.into_iter(), bytes, |grain| view.partition_of(grain));
        run.stretches.note(Work::Fetch, epoch, None, read.len() as u64, began);
        Ok(read)
    }

    /// The same of one shard. Rows that come over a network and are wrong are read a second time.
    async fn read_rows_right(
        &self,
        run: &Arc<RunState>,
        shard: u32,
        wanted: Vec<(GrainNo, Vec<u32>)>,
    ) -> Result<Vec<(GrainNo, Bytes)>, EngineError> {
        match self.read_rows(run, shard, &wanted).await {
            Err(EngineError::CorruptOrigin { .. } | EngineError::Shard(_)) if self.origin.may_reread() => {
                warn!(shard, "rows from the store are wrong; reading them again");
                self.read_rows(run, shard, &wanted).await
            }
            read => read,
        }
    }

    /// Some rows of some grains of a shard: only their bytes are read, and no more than a little between them.
    async fn read_rows(
        &self,
        run: &Arc<RunState>,
        shard: u32,
        wanted: &[(GrainNo, Vec<u32>)],
    ) -> Result<Vec<(GrainNo, Bytes)>, EngineError> {
        let known = self.known_shard(run, shard).await?;
        let first = |grain: GrainNo| run.plan.locate_grain(grain).index * run.plan.document().grain_rows;
        let row_at = |(grain, rows): &(GrainNo, Vec<u32>)| {
            let first = first(*grain);
            rows.iter().map(move |row| first + row..first + row + 1).collect::<Vec<Range<u32>>>()
        };
        let rows: Vec<Range<u32>> = wanted.iter().flat_map(row_at).collect();
        let plan = known.sidecar.read_plan(&run.manifest.schema, &rows)?;
        let fetched = self.origin.read_ranges_apart(&run.entry(shard).id, plan.ranges()).await?;
        let (run, wanted) = (Arc::clone(run), wanted.to_vec());
        let build = move || {
            let codec = RowCodec::new(Arc::clone(&run.manifest.schema))?;
            let mut canonical = Vec::with_capacity(rows.len());
            for batches in plan.decode(&fetched)? {
                let mut bytes = Vec::new();
                for batch in &batches {
                    codec.encoder(batch)?.encode(0, &mut bytes)?;
                }
                canonical.push(bytes);
            }
            let (mut canonical, mut built) = (canonical.into_iter(), Vec::with_capacity(wanted.len()));
            for (grain, rows) in wanted {
                let place = run.plan.locate_grain(grain);
                let first = (place.index * run.plan.document().grain_rows) as usize;
                let digests = &known.sidecar.rows[first..first + place.rows as usize];
                let own: Vec<Vec<u8>> = canonical.by_ref().take(rows.len()).collect();
                let mut items: Vec<Item<'_>> = digests.iter().copied().map(Item::Digest).collect();
                for (row, bytes) in rows.iter().zip(&own) {
                    if RowDigest::of(bytes) != digests[*row as usize] {
                        return Err(EngineError::CorruptOrigin { grain: run.key(grain) });
                    }
                    items[*row as usize] = Item::Row(bytes);
                }
                built.push((grain, Bytes::from(sparse::build(&items, &known.tree.path(place.index)))));
            }
            Ok(built)
        };
        blocking(build).await
    }

    /// Where the rows of a shard lie and what proves them, from its sidecar, which is read once.
    pub(super) async fn known_shard(&self, run: &RunState, shard: u32) -> Result<Arc<Known>, EngineError> {
        if let Some(known) = run.shards.known.lock().expect("no panic while held").get(shard) {
            return Ok(known);
        }
        let sidecar = self.origin.sidecar(run.entry(shard)).await?;
        let grain_rows = run.plan.document().grain_rows;
        let known = move || {
            let tree = GrainTree::new(&sidecar.rows, grain_rows);
            Arc::new(Known { sidecar, tree })
        };
        let known = blocking(known).await;
        run.shards.known.lock().expect("no panic while held").insert(shard, &known);
        Ok(known)
    }
}
