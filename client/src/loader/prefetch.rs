//! What a loader does ahead of its user: works out which rows the next steps need, has them made ready, and hands out the
//! building of their batches.

use std::ops::Range;
use std::sync::Arc;

use shardfmt::plan::{Epoch, Partition, Plan, Read, SampleNo, SlotTable, VirtualRank};
use shardfmt::row::Memory;
use shardfmt::{DigestSum, Manifest, PlanId, RowCodec, RowDigest};

use super::source::{Reads, Ready, RowSource};
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
    pub(crate) stride: u64,
    pub(crate) shuffle: bool,
    pub(crate) window: usize,
    pub(crate) audit: bool,
}

pub(crate) struct Prefetch {
    plan: Arc<Plan>,
    rows: Box<dyn RowSource>,
    /// The partitions of each of this rank's virtual ranks.
    partitions: Vec<Range<u32>>,
    start: (u32, u64),
    end_epoch: u32,
    stride: u64,
    shuffle: bool,
    virtual_ranks: u32,
    window: usize,
    builder: Arc<Builder>,
}

/// What all batches of a loader have in common.
struct Builder {
    plan: PlanId,
    steps: Steps,
    first_virtual_rank: u32,
    codec: RowCodec,
    memory: Box<dyn Memory + Send + Sync>,
    audit: bool,
}

/// A step whose rows lie ready: what is left is to gather them, on any thread.
pub(crate) struct Task {
    epoch: u32,
    positions: Range<u64>,
    reads: Reads,
    ready: Arc<dyn Ready>,
    builder: Arc<Builder>,
}

impl Prefetch {
    pub(crate) fn new(
        share: Share,
        plan: Arc<Plan>,
        manifest: &Manifest,
        steps: Steps,
        rows: Box<dyn RowSource>,
        memory: Box<dyn Memory + Send + Sync>,
    ) -> Result<Self, LoadError> {
        let Share { rank, world, virtual_ranks, start, end_epoch, stride, shuffle, window, audit } = share;
        let own = Plan::virtual_ranks_of(rank, world, virtual_ranks);
        let builder = Builder {
            plan: plan.id(),
            steps,
            first_virtual_rank: own.start,
            codec: RowCodec::new(Arc::clone(&manifest.schema))?,
            memory,
            audit,
        };
        let partitions = own.map(|v| plan.partitions_of(VirtualRank(v), virtual_ranks)).collect();
        Ok(Self {
            plan,
            rows,
            partitions,
            start,
            end_epoch,
            stride,
            shuffle,
            virtual_ranks,
            window,
            builder: Arc::new(builder),
        })
    }

    /// Gives tasks until all epochs are read or nobody takes them any more (`false`); an error is the last thing given.
    pub(crate) fn run(mut self, mut give: impl FnMut(Result<Task, LoadError>) -> bool) {
        if let Err(Some(error)) = self.read_all(&mut give) {
            give(Err(error));
        }
    }

    /// `Err(None)`: nobody takes the tasks any more.
    fn read_all(
        &mut self,
        give: &mut impl FnMut(Result<Task, LoadError>) -> bool,
    ) -> Result<(), Option<LoadError>> {
        let steps = self.builder.steps;
        let (first, mut position) = self.start;
        let mut table: Option<SlotTable> = None;
        // Somebody waits for the first step: it is not kept waiting for others.
        let mut length = 1;
        for epoch in first..self.end_epoch {
            let table = match &mut table {
                Some(table) => {
                    table.advance(&self.plan);
                    table
                }
                None => table.insert(SlotTable::at(&self.plan, Epoch(epoch))),
            };
            while steps.at(position).is_some() {
                // A window never crosses into the next epoch: its grains are still on their way.
                let mut window = Vec::new();
                let mut at = position;
                while let Some(step) = steps.at(at)
                    && window.len() < length
                {
                    // Those between are others'.
                    at = step.end.saturating_add((self.stride - 1).saturating_mul(steps.global_batch));
                    window.push(step);
                }
                let reads: Vec<Reads> = window.iter().map(|positions| self.reads(table, positions)).collect();
                let ready = self.rows.prepare(epoch, &reads).map_err(Some)?;
                for (positions, reads) in window.into_iter().zip(reads) {
                    let (ready, builder) = (Arc::clone(&ready), Arc::clone(&self.builder));
                    if !give(Ok(Task { epoch, positions, reads, ready, builder })) {
                        return Err(None);
                    }
                }
                position = at;
                length = (2 * length).min(self.window);
            }
            position = 0;
        }
        Ok(())
    }

    /// What each of this rank's virtual ranks reads of the step.
    fn reads(&self, table: &SlotTable, positions: &Range<u64>) -> Reads {
        if !self.shuffle {
            return self.stretches(positions);
        }
        let of = |partitions: &Range<u32>| self.plan.step_reads(table, positions.clone(), partitions.clone());
        self.partitions.iter().map(of).collect()
    }
}

impl Prefetch {
    /// The same in the order of the store.
    fn stretches(&self, positions: &Range<u64>) -> Reads {
        let (all, of) = (positions.end - positions.start, u64::from(self.virtual_ranks));
        let bound = |virtual_rank: u64| positions.start + all * virtual_rank / of;
        let read = |position| {
            let (grain, row) = self.plan.grain_of(SampleNo(position));
            Read { position, partition: Partition(0), grain, row }
        };
        let first = u64::from(self.builder.first_virtual_rank);
        let own = first..first + self.partitions.len() as u64;
        own.map(|virtual_rank| (bound(virtual_rank)..bound(virtual_rank + 1)).map(read).collect()).collect()
    }
}

impl Task {
    /// Gathers the step's rows.
    pub(crate) fn build(self) -> Result<Step, LoadError> {
        let Self { epoch, positions, reads, ready, builder } = self;
        let mut audited = (0, DigestSum::default());
        let mut micro_batches = Vec::with_capacity(reads.len());
        for (virtual_rank, reads) in (builder.first_virtual_rank..).zip(reads) {
            let rows = ready.rows(&reads);
            audited.0 += reads.len() as u64;
            if builder.audit {
                rows.for_each_canonical(|row| audited.1 += DigestSum::from(RowDigest::of(row)))?;
            }
            let batch = builder.codec.gather(&rows, &*builder.memory)?;
            let positions = reads.iter().map(|read| read.position).collect();
            micro_batches.push(MicroBatch { virtual_rank, positions, batch });
        }
        let steps = &builder.steps;
        let next = if steps.at(positions.end).is_some() { (epoch, positions.end) } else { (epoch + 1, 0) };
        Ok(Step {
            epoch,
            step: positions.start / steps.global_batch,
            cursor: Cursor { plan: builder.plan, epoch: next.0, position: next.1 },
            positions,
            micro_batches,
            audited,
        })
    }
}
