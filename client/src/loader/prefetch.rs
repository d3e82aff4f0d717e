//! The reading thread of a loader: works out which rows the next steps need, has them made ready, and builds the batches.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use shardfmt::plan::{Epoch, Plan, Read, SlotTable, VirtualRank};
use shardfmt::{DigestSum, Manifest, PlanId, RowCodec, RowDigest};

use super::source::{RowSource, Wanted};
use super::{LoadError, MicroBatch, Step, Steps};
use crate::protocol::Cursor;

/// Whose share is read, from where to where, and how far ahead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) virtual_ranks: u32,
    pub(crate) start: (u32, u64),
    pub(crate) end_epoch: u32,
    pub(crate) window: usize,
    pub(crate) audit: bool,
}

pub(crate) struct Prefetch {
    plan: Arc<Plan>,
    plan_id: PlanId,
    codec: RowCodec,
    rows: Box<dyn RowSource>,
    steps: Steps,
    /// This rank's virtual ranks and the partitions of each.
    shares: Vec<(u32, Range<u32>)>,
    start: (u32, u64),
    end_epoch: u32,
    window: usize,
    audit: bool,
}

impl Prefetch {
    pub(crate) fn new(
        share: Share,
        plan: Arc<Plan>,
        manifest: &Manifest,
        steps: Steps,
        rows: Box<dyn RowSource>,
    ) -> Result<Self, LoadError> {
        let Share { rank, world, virtual_ranks, start, end_epoch, window, audit } = share;
        let shares = Plan::virtual_ranks_of(rank, world, virtual_ranks)
            .map(|v| (v, plan.partitions_of(VirtualRank(v), virtual_ranks)))
            .collect();
        Ok(Self {
            plan_id: plan.id(),
            codec: RowCodec::new(Arc::clone(&manifest.schema))?,
            plan,
            rows,
            steps,
            shares,
            start,
            end_epoch,
            window,
            audit,
        })
    }

    /// Gives steps until all epochs are read or nobody takes them any more (`false`); an error is the last thing given.
    pub(crate) fn run(mut self, mut give: impl FnMut(Result<Step, LoadError>) -> bool) {
        if let Err(Some(error)) = self.read_all(&mut give) {
            give(Err(error));
        }
    }

    /// `Err(None)`: nobody takes the steps any more.
    fn read_all(
        &mut self,
        give: &mut impl FnMut(Result<Step, LoadError>) -> bool,
    ) -> Result<(), Option<LoadError>> {
        let (first, mut position) = self.start;
        let mut table: Option<SlotTable> = None;
        for epoch in first..self.end_epoch {
            let table = match &mut table {
                Some(table) => {
                    table.advance(&self.plan);
                    table
                }
                None => table.insert(SlotTable::at(&self.plan, Epoch(epoch))),
            };
            while self.steps.at(position).is_some() {
                // A window never crosses into the next epoch: its grains are still on their way.
                let mut window = Vec::new();
                let mut at = position;
                while let Some(step) = self.steps.at(at)
                    && window.len() < self.window
                {
                    at = step.end;
                    window.push(step);
                }
                let reads: Vec<Vec<Vec<Read>>> =
                    window.iter().map(|positions| self.reads(table, positions)).collect();
                let wanted: BTreeSet<Wanted> = reads
                    .iter()
                    .flatten()
                    .flatten()
                    .map(|read| Wanted { grain: read.grain, partition: read.partition.0 })
                    .collect();
                let wanted: Vec<Wanted> = wanted.into_iter().collect();
                self.rows.prepare(epoch, &wanted).map_err(Some)?;
                for (positions, reads) in window.into_iter().zip(reads) {
                    let step = self.build(epoch, positions, reads).map_err(Some)?;
                    if !give(Ok(step)) {
                        return Err(None);
                    }
                }
                position = at;
            }
            position = 0;
        }
        Ok(())
    }

    /// What each of this rank's virtual ranks reads of the step.
    fn reads(&self, table: &SlotTable, positions: &Range<u64>) -> Vec<Vec<Read>> {
        self.shares
            .iter()
            .map(|(_, partitions)| self.plan.step_reads(table, positions.clone(), partitions.clone()))
            .collect()
    }

    fn build(&self, epoch: u32, positions: Range<u64>, reads: Vec<Vec<Read>>) -> Result<Step, LoadError> {
        let mut audited = (0, DigestSum::default());
        let mut micro_batches = Vec::with_capacity(self.shares.len());
        for ((virtual_rank, _), reads) in self.shares.iter().zip(reads) {
            let rows = reads
                .iter()
                .map(|read| self.rows.row(read.grain, read.row))
                .collect::<Result<Vec<_>, _>>()?;
            audited.0 += rows.len() as u64;
            if self.audit {
                for row in &rows {
                    audited.1 += DigestSum::from(RowDigest::of(row));
                }
            }
            let batch = self.codec.decode(rows.iter().map(AsRef::as_ref))?;
            let positions = reads.iter().map(|read| read.position).collect();
            micro_batches.push(MicroBatch { virtual_rank: *virtual_rank, positions, batch });
        }
        let next =
            if self.steps.at(positions.end).is_some() { (epoch, positions.end) } else { (epoch + 1, 0) };
        Ok(Step {
            epoch,
            step: positions.start / self.steps.global_batch,
            cursor: Cursor { plan: self.plan_id, epoch: next.0, position: next.1 },
            positions,
            micro_batches,
            audited,
        })
    }
}
