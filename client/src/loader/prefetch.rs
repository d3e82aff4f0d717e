//! What a loader does ahead of its user: works out which rows the next steps need, has them made ready, and hands out the
//! building of their batches.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use shardfmt::plan::{Epoch, Partition, Plan, Read, SampleNo, VirtualRank, deal};
use shardfmt::row::{Memory, Rows};
use shardfmt::{DigestSum, Manifest, PlanId, RowCodec, RowDigest};

use super::source::{Reads, Ready, RowSource};
use super::span::{Part, Spans, StepSpan};
use super::tables::Tables;
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
    /// Where slot tables are kept on this machine.
    cache_dir: Option<PathBuf>,
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
    span: StepSpan,
    /// What is read of each part of the step, and where it lies.
    pieces: Vec<(Reads, Arc<dyn Ready>)>,
    builder: Arc<Builder>,
}

/// A step, and what is read of each of its parts.
struct Planned {
    span: StepSpan,
    reads: Vec<Reads>,
}

impl Prefetch {
    pub(crate) fn new(
        share: Share,
        plan: Arc<Plan>,
        manifest: &Manifest,
        steps: Steps,
        cache_dir: Option<PathBuf>,
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
            cache_dir,
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
        let spans = Spans { steps: self.builder.steps, end_epoch: self.end_epoch };
        let stride = usize::try_from(self.stride).unwrap_or(usize::MAX);
        let mut spans = spans.from(self.start.0, self.start.1).step_by(stride).peekable();
        let mut tables = Tables::new(Arc::clone(&self.plan), self.cache_dir.take());
        // Somebody waits for the first step: it is not kept waiting for others.
        let mut length = 1;
        while let Some(first) = spans.next() {
            // A window never crosses into the next epoch, whose grains are still on their way; but for a step that does.
            let epoch = first.epoch;
            let mut window = vec![self.planned(&mut tables, first)];
            while window.len() < length
                && let Some(span) = spans.next_if(|span| span.parts.iter().all(|part| part.epoch == epoch))
            {
                window.push(self.planned(&mut tables, span));
            }
            let mut by_epoch: BTreeMap<u32, Vec<&Reads>> = BTreeMap::new();
            for Planned { span, reads } in &window {
                for (part, reads) in span.parts.iter().zip(reads) {
                    by_epoch.entry(part.epoch).or_default().push(reads);
                }
            }
            let ready = by_epoch.iter().map(|(epoch, reads)| Ok((*epoch, self.rows.prepare(*epoch, reads)?)));
            let ready: BTreeMap<u32, Arc<dyn Ready>> =
                ready.collect::<Result<_, LoadError>>().map_err(Some)?;
            for Planned { span, reads } in window {
                let parts = reads.into_iter().zip(&span.parts);
                let pieces = parts.map(|(reads, part)| (reads, Arc::clone(&ready[&part.epoch]))).collect();
                if !give(Ok(Task { span, pieces, builder: Arc::clone(&self.builder) })) {
                    return Err(None);
                }
            }
            length = (2 * length).min(self.window);
        }
        Ok(())
    }

    /// What each of this rank's virtual ranks reads of the step. Tables move on to the last epoch that it has part in.
    fn planned(&self, tables: &mut Tables, span: StepSpan) -> Planned {
        let reads = match &span.parts[..] {
            [part] => vec![self.reads(tables, part)],
            parts => self.dealt(tables, parts),
        };
        Planned { span, reads }
    }

    /// What each virtual rank reads of one stretch: what its partitions have of it, or an equal part if it is not shuffled.
    fn reads(&self, tables: &mut Tables, part: &Part) -> Reads {
        if self.shuffle {
            let table = tables.of(Epoch(part.epoch));
            let of = |own: &Range<u32>| self.plan.step_reads(table, part.positions.clone(), own.clone());
            return self.partitions.iter().map(of).collect();
        }
        let (all, of) = (part.samples(), u64::from(self.virtual_ranks));
        let bound = |virtual_rank: u64| part.positions.start + all * virtual_rank / of;
        let own = self.own().map(u64::from);
        own.map(|v| (bound(v)..bound(v + 1)).map(|position| self.stored(position)).collect()).collect()
    }

    /// What each virtual rank reads of each of several stretches: together as much as the others, wherever these meet.
    fn dealt(&self, tables: &mut Tables, parts: &[Part]) -> Vec<Reads> {
        let every = 0..self.plan.document().partitions;
        let mut all = |part: &Part| match self.shuffle {
            true => {
                let table = tables.of(Epoch(part.epoch));
                self.plan.step_reads(table, part.positions.clone(), every.clone())
            }
            false => part.positions.clone().map(|position| self.stored(position)).collect(),
        };
        let all: Vec<Vec<Read>> = parts.iter().map(&mut all).collect();
        let owner = |read: &Read| self.plan.virtual_rank_of(read.partition, self.virtual_ranks).0;
        let owners: Vec<u32> = all.iter().flatten().map(owner).collect();
        let (own, mut readers) = (self.own(), deal(&owners, self.virtual_ranks).into_iter());
        let of = |stretch: Vec<Read>| {
            let mut reads: Reads = vec![Vec::new(); own.len()];
            for (read, reader) in stretch.into_iter().zip(&mut readers) {
                if own.contains(&reader) {
                    reads[(reader - own.start) as usize].push(read);
                }
            }
            reads
        };
        all.into_iter().map(of).collect()
    }

    /// The sample of this number, where it is stored.
    fn stored(&self, number: u64) -> Read {
        let (grain, row) = self.plan.grain_of(SampleNo(number));
        Read { position: number, partition: Partition(0), grain, row }
    }

    fn own(&self) -> Range<u32> {
        let first = self.builder.first_virtual_rank;
        first..first + self.partitions.len() as u32
    }
}

impl Task {
    /// Gathers the step's rows.
    pub(crate) fn build(self) -> Result<Step, LoadError> {
        let Self { span, pieces, builder } = self;
        let count = pieces.first().map_or(0, |(reads, _)| reads.len());
        let mut audited: Vec<(u64, DigestSum)> = vec![(0, DigestSum::default()); pieces.len()];
        let mut micro_batches = Vec::with_capacity(count);
        for (index, virtual_rank) in (builder.first_virtual_rank..).take(count).enumerate() {
            let (mut positions, mut ends) = (Vec::new(), Vec::with_capacity(pieces.len()));
            let mut rows: Option<Rows<'_>> = None;
            for ((reads, ready), audited) in pieces.iter().zip(&mut audited) {
                let (reads, own) = (&reads[index], ready.rows(&reads[index]));
                audited.0 += reads.len() as u64;
                if builder.audit {
                    own.for_each_canonical(|row| audited.1 += DigestSum::from(RowDigest::of(row)))?;
                }
                positions.extend(reads.iter().map(|read| read.position));
                ends.push(positions.len());
                rows = Some(match rows {
                    None => own,
                    Some(rows) => rows.followed_by(own),
                });
            }
            let rows = rows.unwrap_or(Rows::Canonical(Vec::new()));
            let batch = builder.codec.gather(&rows, &*builder.memory)?;
            micro_batches.push(MicroBatch { virtual_rank, positions, ends, batch });
        }
        let StepSpan { epoch, step, parts, next } = span;
        Ok(Step {
            epoch,
            step,
            parts,
            cursor: Cursor { plan: builder.plan, epoch: next.0, position: next.1 },
            micro_batches,
            audited,
        })
    }
}
