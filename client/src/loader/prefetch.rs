//! What a loader does ahead of its user: works out which rows the next steps need, has them made ready, and hands out the
//! building of their batches.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use shardd_plan::SourceNo;
use shardfmt::row::{Memory, Rows};
use shardfmt::{DigestSum, RowCodec, RowDigest, RowError};
use tracing::{Span, debug_span};

use super::clocks::{Clocks, On};
use super::delivered::Delivered;
use super::late::Late;
use super::order::{Cursor, Order, OrderId, SourceRead};
use super::shares::Shares;
use super::source::{Reads, Ready, RowSource};
use super::span::{Spans, StepSpan};
use super::transformed::Transformed;
use super::transformed_samples::{Changed, Failed, kept};
use super::{LoadError, MicroBatch, Step, Steps};

/// Whose share is read, from where to where, and how far ahead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) virtual_ranks: u32,
    pub(crate) start: (u32, u64),
    pub(crate) end_epoch: u32,
    pub(crate) stride: u64,
    pub(crate) window: usize,
    /// How many bytes of rows a thread asks for ahead of those that it gathers, where these are read then.
    pub(crate) ahead_bytes: u64,
    pub(crate) audit: bool,
}

pub(crate) struct Prefetch {
    rank: u32,
    shares: Shares,
    rows: Box<dyn RowSource>,
    start: (u32, u64),
    /// Where the steps end that were given.
    given: (u32, u64),
    end_epoch: u32,
    stride: u64,
    window: usize,
    builder: Arc<Builder>,
}

/// The common settings of all batches of a loader.
struct Builder {
    order: OrderId,
    steps: Steps,
    first_virtual_rank: u32,
    codec: RowCodec,
    memory: Box<dyn Memory + Send + Sync>,
    ahead_bytes: u64,
    audit: bool,
    transformed: Option<Arc<Transformed>>,
}

/// A step whose rows lie ready, or in open files: all that remains is to gather them, on any thread.
pub(crate) struct Task {
    span: StepSpan,
    /// The reads of each part of the step, and their places.
    pieces: Vec<(Reads, Arc<dyn Ready>)>,
    surplus: u64,
    builder: Arc<Builder>,
    /// The parent of its gathering.
    window: Span,
}

/// A step, the reads of each of its parts, and how many of those reads are of other ranks' partitions.
struct Planned {
    span: StepSpan,
    reads: Vec<Reads>,
    surplus: u64,
}

impl Prefetch {
    /// Rows are of `schema`, whatever source they are of.
    pub(crate) fn new(
        share: Share,
        order: Order,
        schema: SchemaRef,
        steps: Steps,
        cache_dir: Option<PathBuf>,
        rows: Box<dyn RowSource>,
        memory: Box<dyn Memory + Send + Sync>,
    ) -> Result<Self, LoadError> {
        let Share { rank, world, virtual_ranks, start, end_epoch, stride, window, ahead_bytes, audit } =
            share;
        let shares = Shares::new(order, rank, world, virtual_ranks, cache_dir);
        let builder = Builder {
            order: shares.order().id(),
            steps,
            first_virtual_rank: shares.own().start,
            codec: RowCodec::new(schema)?,
            memory,
            ahead_bytes,
            audit,
            transformed: None,
        };
        let builder = Arc::new(builder);
        Ok(Self { rank, shares, rows, start, given: start, end_epoch, stride, window, builder })
    }

    /// Changes the pictures of each batch.
    pub(crate) fn transformed(mut self, transformed: Option<Arc<Transformed>>) -> Self {
        Arc::get_mut(&mut self.builder).expect("no task was given yet").transformed = transformed;
        self
    }

    /// Gives tasks until all epochs are read or no thread takes them any more (`false`); an error is the last
    /// thing given.
    pub(crate) fn run(mut self, mut give: impl FnMut(Result<Task, LoadError>) -> bool) {
        if let Err(Some(error)) = self.read_all(&mut give) {
            give(Err(error));
        }
    }

    /// `Err(None)`: no thread takes the tasks any more.
    fn read_all(
        &mut self,
        give: &mut impl FnMut(Result<Task, LoadError>) -> bool,
    ) -> Result<(), Option<LoadError>> {
        let spans = Spans { steps: self.builder.steps, end_epoch: self.end_epoch };
        let stride = usize::try_from(self.stride).unwrap_or(usize::MAX);
        let mut spans = spans.from(self.start.0, self.start.1).step_by(stride).peekable();
        let mut planned = |shares: &mut Shares, epoch: Option<u32>| {
            let span = spans.next_if(|span| epoch.is_none_or(|epoch| is_of(span, epoch)))?;
            let reads = shares.of_step(&span.parts);
            let surplus = shares.surplus(&reads);
            Some(Planned { span, reads, surplus })
        };
        // The steps announced to the source.
        let mut ahead: VecDeque<Planned> = VecDeque::new();
        // A reader waits for the first step: it is not kept waiting for others.
        let mut length = 1;
        // Where others behind a step may be announced before it is prepared, it is announced, too: rows come in one order.
        let announced = |rows: &mut dyn RowSource, step: Planned, length: usize| {
            if length > 1 && rows.horizon() > 0 {
                step.announce(rows);
            }
            step
        };
        while let Some(first) = ahead.pop_front().or_else(|| {
            let first = planned(&mut self.shares, None)?;
            Some(announced(&mut *self.rows, first, length))
        }) {
            // A window never crosses into the next epoch, whose grains are still on their way; but for a step that does. Nor
            // does it have more rows than are read ahead.
            let (epoch, horizon) = (first.span.epoch, self.rows.horizon());
            let mut room = horizon.saturating_sub(first.rows());
            let mut window = vec![first];
            while window.len() < length
                && ahead.front().is_none_or(|next| is_of(&next.span, epoch))
                && (horizon == 0 || ahead.front().map_or(room > 0, |next| next.rows() <= room))
                && let Some(next) = ahead.pop_front().or_else(|| {
                    let next = planned(&mut self.shares, Some(epoch))?;
                    Some(announced(&mut *self.rows, next, length))
                })
            {
                room = room.saturating_sub(next.rows());
                window.push(next);
            }
            let within = (!self.rows.looks_beyond_epochs()).then_some(epoch);
            let mut rows_ahead: u64 = ahead.iter().map(Planned::rows).sum();
            while length > 1
                && rows_ahead < horizon
                && let Some(next) = planned(&mut self.shares, within)
            {
                next.announce(&mut *self.rows);
                rows_ahead += next.rows();
                ahead.push_back(next);
            }
            self.give_window(window, give)?;
            length = (2 * length).min(self.window);
        }
        Ok(())
    }

    /// Has the rows of some steps made ready, and gives the steps.
    fn give_window(
        &mut self,
        window: Vec<Planned>,
        give: &mut impl FnMut(Result<Task, LoadError>) -> bool,
    ) -> Result<(), Option<LoadError>> {
        let first = window.first().map(|first| (first.span.epoch, first.span.step)).unwrap_or_default();
        let rows: u64 = window.iter().map(Planned::rows).sum();
        let loading = debug_span!(
            "load_steps",
            rank = self.rank,
            epoch = first.0,
            step = first.1,
            steps = window.len(),
            rows
        );
        let _loading = loading.enter();
        let mut by_epoch: BTreeMap<u32, Vec<&Reads>> = BTreeMap::new();
        for Planned { span, reads, .. } in &window {
            for (part, reads) in span.parts.iter().zip(reads) {
                by_epoch.entry(part.epoch).or_default().push(reads);
            }
        }
        if let Some(epoch) = by_epoch.keys().next_back() {
            self.rows.await_epoch(*epoch, self.given);
        }
        let ready = debug_span!("prepare").in_scope(|| {
            let ready = by_epoch.iter().map(|(epoch, reads)| Ok((*epoch, self.rows.prepare(*epoch, reads)?)));
            ready.collect::<Result<BTreeMap<u32, Arc<dyn Ready>>, LoadError>>()
        });
        let ready = ready.map_err(Some)?;
        for Planned { span, reads, surplus } in window {
            let parts = reads.into_iter().zip(&span.parts);
            let pieces = parts.map(|(reads, part)| (reads, Arc::clone(&ready[&part.epoch]))).collect();
            self.given = span.next;
            let builder = Arc::clone(&self.builder);
            if !give(Ok(Task { span, pieces, surplus, builder, window: loading.clone() })) {
                return Err(None);
            }
        }
        Ok(())
    }
}

impl Planned {
    /// Lets a source know of its rows.
    fn announce(&self, rows: &mut dyn RowSource) {
        for (part, reads) in self.span.parts.iter().zip(&self.reads) {
            rows.expect(part.epoch, reads);
        }
    }

    /// How many rows this rank reads.
    fn rows(&self) -> u64 {
        self.reads.iter().flatten().map(|reads| reads.len() as u64).sum()
    }
}

/// Whether a step reads rows of this epoch alone.
fn is_of(span: &StepSpan, epoch: u32) -> bool {
    span.parts.iter().all(|part| part.epoch == epoch)
}

impl Builder {
    fn gather(&self, rows: &Rows<'_>, late: &Late, clocks: &Clocks) -> Result<RecordBatch, RowError> {
        if late.is_empty() {
            return self.codec.gather(rows, &*self.memory);
        }
        let copy = |first: usize, values: &[&[u8]], out: Option<&mut [u8]>| {
            late.copy(first, values, out, self.ahead_bytes, clocks)
        };
        self.codec.gather_with(rows, &*self.memory, &copy)
    }

    /// The batch of these rows, which are of `placed`, and for the audit their digests in it. Rows that may have changed where they
    /// lie are checked in the batch, and brought again if they have.
    fn gather_checked(
        &self,
        rows: Rows<'_>,
        placed: &[Placed<'_>],
        late: &Late,
        clocks: &Clocks,
    ) -> Result<(RecordBatch, Vec<RowDigest>), LoadError> {
        let looked_at: Vec<usize> =
            (0..placed.len()).filter(|row| self.audit || placed[*row].may_change()).collect();
        let mut again: BTreeMap<usize, Bytes> = BTreeMap::new();
        loop {
            let rows = with(&rows, &again);
            let gathered = self.gather(&rows, late, clocks).and_then(|batch| {
                let encoder = self.codec.encoder(&batch)?;
                let in_batch = looked_at.iter().map(|row| (&encoder, *row));
                let digests = digests_of(&Rows::Columns(in_batch.collect()))?;
                Ok((batch, digests))
            });
            let digests = match (&gathered, &*rows) {
                (Ok((_, digests)), _) => digests,
                // Those that have changed may be no rows.
                (Err(_), Rows::Canonical(rows)) => {
                    &digests_of(&Rows::Canonical(looked_at.iter().map(|row| rows[*row]).collect()))?
                }
                (Err(_), Rows::Columns(_)) => return Ok(gathered?),
            };
            // One that was brought again is right: what it is known by may have changed, too.
            let is_wrong = |(row, digest): &(usize, &RowDigest)| {
                let Placed { read, ready, .. } = &placed[*row];
                !again.contains_key(row) && !ready.is_genuine(read, **digest)
            };
            let wrong: Vec<usize> =
                looked_at.iter().copied().zip(digests).filter(is_wrong).map(|(row, _)| row).collect();
            if wrong.is_empty() {
                return Ok(gathered?);
            }
            drop(rows);
            for rows in wrong.chunk_by(|row, next| placed[*row].is_beside(&placed[*next])) {
                let reads: Vec<&SourceRead> = rows.iter().map(|row| placed[*row].read).collect();
                let brought = placed[rows[0]].ready.again(&reads)?;
                again.extend(rows.iter().copied().zip(brought));
            }
        }
    }
}

/// These rows, some of them replaced.
fn with<'a>(rows: &'a Rows<'a>, replaced: &'a BTreeMap<usize, Bytes>) -> Cow<'a, Rows<'a>> {
    match rows {
        Rows::Canonical(rows) if !replaced.is_empty() => {
            let mut rows = rows.clone();
            replaced.iter().for_each(|(row, bytes)| rows[*row] = bytes);
            Cow::Owned(Rows::Canonical(rows))
        }
        rows => Cow::Borrowed(rows),
    }
}

/// A row of a batch, and where it is from.
struct Placed<'a> {
    read: &'a SourceRead,
    piece: usize,
    ready: &'a dyn Ready,
}

impl Placed<'_> {
    fn may_change(&self) -> bool {
        self.ready.may_change(self.read)
    }

    /// Whether another row is brought by the same source.
    fn is_beside(&self, other: &Self) -> bool {
        self.piece == other.piece
    }
}

/// The digest of each row. Small rows are copied together: their digests are worked out several at a time.
fn digests_of(rows: &Rows<'_>) -> Result<Vec<RowDigest>, RowError> {
    let mut digests = Vec::with_capacity(rows.len());
    let (mut together, mut ends) = (Vec::new(), vec![0]);
    rows.for_each_canonical(|row| {
        let is_large = row.len() >= DIGESTED_TOGETHER;
        if is_large || together.len() + row.len() > DIGESTED_TOGETHER {
            digests.extend(digests_between(&together, &ends));
            together.clear();
            ends.truncate(1);
        }
        if is_large {
            digests.push(RowDigest::of(row));
        } else {
            together.extend_from_slice(row);
            ends.push(together.len());
        }
    })?;
    digests.extend(digests_between(&together, &ends));
    Ok(digests)
}

/// The digests of the rows between each two of `ends`.
fn digests_between(rows: &[u8], ends: &[usize]) -> Vec<RowDigest> {
    RowDigest::of_each(&ends.windows(2).map(|ends| &rows[ends[0]..ends[1]]).collect::<Vec<_>>())
}

/// Bytes of rows whose digests are worked out together: they stay in a processor's nearer caches.
const DIGESTED_TOGETHER: usize = 128 << 10;

impl Task {
    /// Gathers the step's rows.
    pub(crate) fn build(self, clocks: &Clocks) -> Result<Step, LoadError> {
        let Self { span, pieces, surplus, builder, window } = self;
        let _gathering =
            debug_span!(parent: &window, "gather", epoch = span.epoch, step = span.step).entered();
        let count = pieces.first().map_or(0, |(reads, _)| reads.len());
        let mut delivered = vec![vec![Delivered::default(); count]; pieces.len()];
        let mut micro_batches = Vec::with_capacity(count);
        for (index, virtual_rank) in (builder.first_virtual_rank..).take(count).enumerate() {
            let (mut positions, mut sources) = (Vec::new(), Vec::new());
            let mut ends = Vec::with_capacity(pieces.len());
            let (mut rows, mut late): (Option<Rows<'_>>, _) = (None, Late::default());
            for ((reads, ready), delivered) in pieces.iter().zip(&mut delivered) {
                let (reads, own) = (&reads[index], ready.rows(&reads[index]));
                delivered[index].samples += reads.len() as u64;
                late.add(positions.len(), ready.late(reads));
                positions.extend(reads.iter().map(|read| read.read.position));
                if matches!(builder.order, OrderId::Mixture(_)) {
                    sources.extend(reads.iter().map(|read| read.source));
                }
                ends.push(positions.len());
                rows = Some(match rows {
                    None => own,
                    Some(rows) => rows.followed_by(own),
                });
            }
            let rows = rows.unwrap_or(Rows::Canonical(Vec::new()));
            let (batch, digests) = match builder.audit || pieces.iter().any(|(_, ready)| ready.has_changing())
            {
                true => {
                    let mut placed: Vec<Placed<'_>> = Vec::new();
                    for (piece, (reads, ready)) in pieces.iter().enumerate() {
                        placed.extend(reads[index].iter().map(|read| Placed {
                            read,
                            piece,
                            ready: &**ready,
                        }));
                    }
                    builder.gather_checked(rows, &placed, &late, clocks)?
                }
                false => (builder.gather(&rows, &late, clocks)?, Vec::new()),
            };
            let mut piece = 0;
            for (number, digest) in digests.into_iter().enumerate().filter(|_| builder.audit) {
                piece += ends[piece..].iter().take_while(|end| **end <= number).count();
                delivered[piece][index].digest_sum += DigestSum::from(digest);
            }
            let (batch, failed) = match &builder.transformed {
                Some(transformed) => {
                    let piece = |row| ends.iter().take_while(|end| **end <= row).count();
                    let place = |(row, position): (usize, &u64)| (span.parts[piece(row)].epoch, *position);
                    let places: Vec<(u32, u64)> = positions.iter().enumerate().map(place).collect();
                    let Changed { batch, failed } = clocks
                        .time(On::Transforming, || transformed.apply(&batch, &places, &*builder.memory))?;
                    leave_out(&failed, &mut positions, &mut sources, &mut ends);
                    (batch, failed)
                }
                None => (batch, Vec::new()),
            };
            micro_batches.push(MicroBatch { virtual_rank, positions, sources, ends, batch, failed });
        }
        let StepSpan { epoch, step, parts, next } = span;
        Ok(Step {
            epoch,
            step,
            parts,
            cursor: Cursor { order: builder.order, epoch: next.0, position: next.1 },
            micro_batches,
            surplus,
            delivered,
        })
    }
}

/// Takes the samples that are left out of a batch from its lists, too.
fn leave_out(failed: &[Failed], positions: &mut Vec<u64>, sources: &mut Vec<SourceNo>, ends: &mut [usize]) {
    let Some(kept) = kept(positions.len(), failed) else { return };
    ends.iter_mut().for_each(|end| *end = kept[..*end].iter().filter(|kept| **kept).count());
    let mut rows = kept.iter();
    positions.retain(|_| *rows.next().unwrap_or(&true));
    let mut rows = kept.iter();
    sources.retain(|_| *rows.next().unwrap_or(&true));
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};
    use proptest::prelude::*;
    use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
    use shardfmt::VersionId;
    use shardfmt::row::Fresh;

    use super::super::LastBatch;
    use super::*;

    /// Rows that are known to be read, by epoch and position, and how many of them were prepared.
    #[derive(Default)]
    struct Known {
        rows: Vec<(u32, u64)>,
        prepared: usize,
        horizon: u64,
        looks_beyond: bool,
    }

    struct NoRows;

    impl Ready for NoRows {
        fn rows(&self, _: &[super::super::order::SourceRead]) -> Rows<'_> {
            Rows::Canonical(Vec::new())
        }
    }

    impl RowSource for Known {
        fn prepare(&mut self, epoch: u32, window: &[&Reads]) -> Result<Arc<dyn Ready>, LoadError> {
            for read in window.iter().copied().flatten().flatten() {
                let row = (epoch, read.read.position);
                match self.rows.get(self.prepared) {
                    Some(known) => assert_eq!(*known, row, "another was announced"),
                    None => self.rows.push(row),
                }
                self.prepared += 1;
            }
            Ok(Arc::new(NoRows))
        }

        fn horizon(&mut self) -> u64 {
            self.horizon
        }

        fn looks_beyond_epochs(&self) -> bool {
            self.looks_beyond
        }

        fn expect(&mut self, epoch: u32, reads: &Reads) {
            self.rows.extend(reads.iter().flatten().map(|read| (epoch, read.read.position)));
        }
    }

    proptest! {
        #[test]
        fn rows_are_prepared_in_the_order_in_which_they_were_announced(
            samples in 8u32..300, global_batch in 1u64..20, window in 1usize..9, horizon in 0u64..200,
            looks_beyond in any::<bool>(), last in 0usize..4,
        ) {
            let shape = Shape { shard_rows: vec![samples], row_bytes: 1 << 30 };
            let options = PlanOptions { partitions: Some(4), grain_rows: Some(1), ..PlanOptions::default() };
            let document = PlanDocument::with_defaults(VersionId::of(b"windows"), &shape, options).expect("fits");
            let plan = Arc::new(Plan::new(document, &shape.shard_rows).expect("fits"));
            let last_batch = [LastBatch::Short, LastBatch::Drop, LastBatch::Wrap, LastBatch::Carry][last];
            let steps = Steps { sample_count: samples.into(), global_batch, last_batch };
            let share = Share {
                rank: 0, world: 1, virtual_ranks: 1, start: (0, 0), end_epoch: 3, stride: 1, window, ahead_bytes: 0,
                audit: false,
            };
            let schema = Arc::new(Schema::new(vec![Field::new("y", DataType::Int64, false)]));
            let rows = Box::new(Known { horizon, looks_beyond, ..Known::default() });
            let order = Order::of_plan(plan, true);
            let prefetch = Prefetch::new(share, order, schema, steps, None, rows, Box::new(Fresh)).expect("plain");
            let mut given = 0;
            prefetch.run(|task| {
                given += usize::from(task.is_ok());
                true
            });
            prop_assert_eq!(given, Spans { steps, end_epoch: 3 }.from(0, 0).count());
        }
    }
}
