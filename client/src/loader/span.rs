//! Cuts a run, epoch after epoch, into steps, each of one size but the last. Pure: where it is in, what to read out.
//!
//! [`Steps`] says what one epoch is cut into; here is what happens where epochs meet. A step is one stretch
//! of an epoch's positions, except where the policy fills it up: with samples of the same epoch again
//! (`wrap`), or with the first of the next (`carry`). The cursor after a step is the beginning of the next
//! one, so it counts exactly the delivered samples, repeats apart, and you can resume at any position with
//! any batch size.

use std::ops::Range;

use super::{LastBatch, Steps};

/// A step: what all ranks together read in it, in order.
///
/// ```
/// use shardd_client::LastBatch;
/// use shardd_client::loader::{Part, Spans, Steps};
///
/// let steps = Steps { sample_count: 10, global_batch: 4, last_batch: LastBatch::Wrap };
/// let last = Spans { steps, end_epoch: 1 }.from(0, 0).last();
/// let parts = last.map(|step| step.parts).unwrap_or_default();
/// assert_eq!(parts[0], Part { epoch: 0, positions: 8..10, repeats: false });
/// assert_eq!(parts[1], Part { epoch: 0, positions: 0..2, repeats: true });
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepSpan {
    /// The epoch it begins in.
    pub epoch: u32,
    /// Its number in that epoch, if the epoch's steps are all of one size.
    pub step: u64,
    /// Stretches of positions, none of them empty: at least one.
    pub parts: Vec<Part>,
    /// Where the next step begins: (epoch, position).
    pub next: (u32, u64),
}

/// A stretch of an epoch's positions that a step reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The epoch.
    pub epoch: u32,
    /// Positions of its order.
    pub positions: Range<u64>,
    /// Whether these were read before in this epoch, and only fill the step up.
    pub repeats: bool,
}

impl Part {
    /// How many samples it is.
    pub fn samples(&self) -> u64 {
        self.positions.end - self.positions.start
    }
}

impl StepSpan {
    /// Samples of the step, repeats included: what a mean over it is divided by.
    pub fn samples(&self) -> u64 {
        self.parts.iter().map(Part::samples).sum()
    }

    /// Of those, the ones that were read before in the same epoch.
    pub fn repeats(&self) -> u64 {
        self.parts.iter().filter(|part| part.repeats).map(Part::samples).sum()
    }
}

/// The treatment of an epoch's samples when it is read from its start, per policy.
///
/// ```
/// use shardd_client::LastBatch;
/// use shardd_client::loader::{Spans, Steps};
///
/// let steps = Steps { sample_count: 10, global_batch: 4, last_batch: LastBatch::Drop };
/// let tally = Spans { steps, end_epoch: 1 }.tally();
/// assert_eq!((tally.seen, tally.unseen, tally.repeats), (8, 2, 0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Samples that are read, each counted once.
    pub seen: u64,
    /// Samples that are not read in this epoch.
    pub unseen: u64,
    /// Samples that are read a second time (or, if a step is larger than the epoch, more often), counted each time.
    pub repeats: u64,
}

/// The steps of a run.
///
/// ```
/// use shardd_client::LastBatch;
/// use shardd_client::loader::{Spans, Steps};
///
/// let steps = Steps { sample_count: 10, global_batch: 4, last_batch: LastBatch::Carry };
/// let spans = Spans { steps, end_epoch: 2 };
/// assert_eq!(spans.left(0, 0), 5);
/// assert_eq!(spans.at(0, 8).map(|step| step.next), Some((1, 2)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spans {
    /// The parts of each epoch.
    pub steps: Steps,
    /// The epoch before which it stops. Nothing can be carried into that one: the last step of all is short then.
    pub end_epoch: u32,
}

impl Spans {
    /// The step that begins at `position` of `epoch`, or where the next epoch begins if nothing more is read of that one;
    /// `None` at the end of the run.
    pub fn at(&self, epoch: u32, position: u64) -> Option<StepSpan> {
        let Steps { sample_count, global_batch, last_batch } = self.steps;
        let (epoch, position) = match self.left_in_epoch(position) {
            0 => (epoch.checked_add(1)?, 0),
            _ => (epoch, position),
        };
        if epoch >= self.end_epoch || self.left_in_epoch(position) == 0 {
            return None;
        }
        let own = position..sample_count.min(position.saturating_add(global_batch));
        let mut room = global_batch - (own.end - own.start);
        let mut next = (epoch, own.end);
        let mut parts = vec![Part { epoch, positions: own, repeats: false }];
        while room > 0 {
            let (of, repeats) = match last_batch {
                LastBatch::Wrap => (epoch, true),
                LastBatch::Carry if next.0 + 1 < self.end_epoch => (next.0 + 1, false),
                LastBatch::Carry | LastBatch::Short | LastBatch::Drop => break,
            };
            let positions = 0..room.min(sample_count);
            room -= positions.end;
            if !repeats {
                next = (of, positions.end);
            }
            parts.push(Part { epoch: of, positions, repeats });
        }
        // A cursor at the end of an epoch is written as the beginning of the next.
        if self.left_in_epoch(next.1) == 0 {
            next = (next.0 + 1, 0);
        }
        Some(StepSpan { epoch, step: position / global_batch, parts, next })
    }

    /// All steps from a position on.
    pub fn from(&self, epoch: u32, position: u64) -> impl Iterator<Item = StepSpan> + use<> {
        let spans = *self;
        let mut next = (epoch, position);
        std::iter::from_fn(move || {
            let span = spans.at(next.0, next.1)?;
            next = span.next;
            Some(span)
        })
    }

    /// How many steps begin in an epoch from `position` of it on.
    pub fn left_in_epoch(&self, position: u64) -> u64 {
        let left = self.steps.sample_count.saturating_sub(position);
        match self.steps.last_batch {
            LastBatch::Drop => left / self.steps.global_batch,
            LastBatch::Short | LastBatch::Wrap | LastBatch::Carry => left.div_ceil(self.steps.global_batch),
        }
    }

    /// How many steps the run has from `position` of `epoch` on. A count that does not fit is the largest
    /// number.
    pub fn left(&self, epoch: u32, position: u64) -> u64 {
        let Some(following) = self.end_epoch.checked_sub(epoch).and_then(|epochs| epochs.checked_sub(1))
        else {
            return 0;
        };
        let Steps { sample_count, global_batch, last_batch } = self.steps;
        let following = u128::from(following);
        let left = match last_batch {
            LastBatch::Carry => {
                let here = u128::from(sample_count.saturating_sub(position));
                (here + following * u128::from(sample_count)).div_ceil(global_batch.into())
            }
            LastBatch::Short | LastBatch::Drop | LastBatch::Wrap => {
                u128::from(self.left_in_epoch(position)) + following * u128::from(self.left_in_epoch(0))
            }
        };
        u64::try_from(left).unwrap_or(u64::MAX)
    }

    /// The samples of an epoch under the policy, to hold an audit against. With `carry`, the steps that begin
    /// in the epoch before and in this one see all of it.
    pub fn tally(&self) -> Tally {
        let Steps { sample_count, global_batch, last_batch } = self.steps;
        let rest = sample_count % global_batch;
        let all = Tally { seen: sample_count, unseen: 0, repeats: 0 };
        match last_batch {
            LastBatch::Drop => Tally { seen: sample_count - rest, unseen: rest, repeats: 0 },
            LastBatch::Wrap if rest > 0 => Tally { repeats: global_batch - rest, ..all },
            LastBatch::Short | LastBatch::Wrap | LastBatch::Carry => all,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    const POLICIES: [LastBatch; 4] = [LastBatch::Short, LastBatch::Drop, LastBatch::Wrap, LastBatch::Carry];

    fn spans(sample_count: u64, global_batch: u64, last_batch: LastBatch, end_epoch: u32) -> Spans {
        Spans { steps: Steps { sample_count, global_batch, last_batch }, end_epoch }
    }

    /// Ten samples in steps of four, over two epochs: epoch, positions and a mark for repeats; then the cursor.
    fn story(last_batch: LastBatch) -> Vec<String> {
        let part = |part: &Part| {
            format!("{}:{:?}{}", part.epoch, part.positions, if part.repeats { " again" } else { "" })
        };
        let step = |span: StepSpan| {
            let parts: Vec<String> = span.parts.iter().map(part).collect();
            format!("{} -> {}:{}", parts.join(" + "), span.next.0, span.next.1)
        };
        spans(10, 4, last_batch, 2).from(0, 0).map(step).collect()
    }

    #[test]
    fn the_four_policies_differ_where_epochs_meet() {
        let [short, drop, wrap, carry] = POLICIES.map(story);
        assert_eq!(short[1..4], ["0:4..8 -> 0:8", "0:8..10 -> 1:0", "1:0..4 -> 1:4"]);
        assert_eq!(drop[1..3], ["0:4..8 -> 1:0", "1:0..4 -> 1:4"]);
        assert_eq!(wrap[2..4], ["0:8..10 + 0:0..2 again -> 1:0", "1:0..4 -> 1:4"]);
        assert_eq!(carry[2..], ["0:8..10 + 1:0..2 -> 1:2", "1:2..6 -> 1:6", "1:6..10 -> 2:0"]);
        assert_eq!([short, drop, wrap, carry].map(|steps| steps.len()), [6, 4, 6, 5]);
    }

    #[test]
    fn a_step_larger_than_an_epoch_is_told_in_as_many_parts_as_it_takes() {
        let parts = |last_batch| {
            spans(3, 8, last_batch, 4).at(0, 1).map(|span| (span.parts.len(), span.samples(), span.next))
        };
        assert_eq!(parts(LastBatch::Wrap), Some((3, 8, (1, 0))));
        assert_eq!(parts(LastBatch::Carry), Some((3, 8, (3, 0))));
        assert_eq!(parts(LastBatch::Short), Some((1, 2, (1, 0))));
        assert_eq!(parts(LastBatch::Drop), None);
        assert_eq!(spans(3, 8, LastBatch::Carry, u32::MAX).left(0, 0), u64::from(u32::MAX) * 3 / 8 + 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(10_000) })]

        #[test]
        fn each_policy_reads_what_it_says_and_counts_what_it_reads(
            sample_count in 0..120u64, global_batch in 1..50u64, policy in 0..4usize, end_epoch in 0..4u32,
            start in (0..4u32, 0..130u64),
        ) {
            let (last_batch, start) = (POLICIES[policy], (start.0, start.1.min(sample_count)));
            let spans = spans(sample_count, global_batch, last_batch, end_epoch);
            let mut first: BTreeMap<(u32, u64), u64> = BTreeMap::new();
            let (mut cursor, mut steps, mut repeats) = (start, 0, 0);
            let mut begun: BTreeMap<u32, u64> = BTreeMap::new();
            for span in spans.from(start.0, start.1) {
                prop_assert_eq!(spans.left(cursor.0, cursor.1), spans.left(start.0, start.1) - steps);
                prop_assert_eq!(Some(span.clone()), spans.at(cursor.0, cursor.1));
                prop_assert!(span.parts.iter().all(|part| !part.positions.is_empty() && part.positions.end <= sample_count));
                let last = span.next.0 >= end_epoch;
                let full = span.samples() == global_batch;
                match last_batch {
                    LastBatch::Drop | LastBatch::Wrap => prop_assert!(full),
                    LastBatch::Carry => prop_assert!(full || last),
                    LastBatch::Short => prop_assert!(full || span.next == (span.epoch + 1, 0)),
                }
                prop_assert!(span.repeats() == 0 || last_batch == LastBatch::Wrap);
                prop_assert_eq!(span.step, span.parts[0].positions.start / global_batch);
                for part in &span.parts {
                    prop_assert!(part.epoch < end_epoch);
                    for position in part.positions.clone() {
                        if part.repeats {
                            repeats += 1;
                            prop_assert_eq!(part.epoch, span.epoch);
                            // A resumed epoch may repeat reads from before its interruption.
                            prop_assert!(start.1 > 0 || first.contains_key(&(part.epoch, position)));
                        } else {
                            *first.entry((part.epoch, position)).or_default() += 1;
                        }
                    }
                }
                prop_assert!(span.next > cursor);
                *begun.entry(span.epoch).or_default() += 1;
                cursor = span.next;
                steps += 1;
            }
            prop_assert_eq!(steps, spans.left(start.0, start.1));
            prop_assert!(first.values().all(|count| *count == 1));
            // Read are all positions from the start on, in every epoch, but for what the policy leaves out.
            let seen = |epoch: u32| first.keys().filter(|(of, _)| *of == epoch).count() as u64;
            for epoch in start.0..end_epoch {
                let from = if epoch == start.0 { start.1 } else { 0 };
                let left = sample_count - from;
                let unseen = if last_batch == LastBatch::Drop { left % global_batch } else { 0 };
                prop_assert_eq!(seen(epoch), left - unseen);
                let tally = spans.tally();
                prop_assert_eq!(tally.seen + tally.unseen, sample_count);
                if from == 0 {
                    prop_assert_eq!((seen(epoch), unseen), (tally.seen, tally.unseen));
                }
                let carried = last_batch == LastBatch::Carry && epoch > start.0;
                if !carried {
                    prop_assert_eq!(begun.get(&epoch).copied().unwrap_or(0), spans.left_in_epoch(from));
                }
            }
            if start.1 == 0 && start.0 < end_epoch {
                prop_assert_eq!(repeats, spans.tally().repeats * u64::from(end_epoch - start.0));
            }
            prop_assert_eq!(spans.left_in_epoch(0), spans.steps.per_epoch());
        }
    }
}
