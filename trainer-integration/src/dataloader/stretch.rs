//! The positions of each epoch to read, and their successors. Pure.

use std::ops::Range;

use shardd_client::loader::{LastBatch, Spans, Steps};

/// The same positions of each epoch: all of them, or a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Where it begins.
    pub(super) first: u64,
    /// The steps, of an epoch that ends where it does.
    pub(super) spans: Spans,
    /// A slice is neither filled up nor carried over: its first items are its own.
    pub(super) is_slice: bool,
}

impl Stretch {
    /// How many positions are read in an epoch; those that only fill up a last step are not counted.
    pub(super) fn items(&self) -> u64 {
        self.end(self.first) - self.first
    }

    /// Items `start` to `end` of it, those that it has.
    pub(super) fn slice(&self, start: u64, end: u64) -> Stretch {
        let end = end.min(self.items());
        // Samples that the whole leaves out are not among its items; a slice leaves nothing out.
        let last_batch = LastBatch::Short;
        let steps = Steps { sample_count: self.first + end, last_batch, ..self.spans.steps };
        let spans = Spans { steps, ..self.spans };
        Stretch { first: self.first + start.min(end), spans, is_slice: true }
    }

    /// Where an epoch begins that is to begin at (epoch, position): with the next one, if nothing is left of it. Of a slice nothing
    /// may be left, since others have the rest.
    pub(super) fn beginning(&self, (epoch, position): (u32, u64)) -> (u32, u64) {
        if self.is_slice || self.spans.left_in_epoch(position) > 0 {
            return (epoch, position);
        }
        (epoch.saturating_add(1), self.first)
    }

    /// The position up to which an epoch is read, if it is read from `position` on.
    pub(super) fn end(&self, position: u64) -> u64 {
        let Steps { sample_count, global_batch, .. } = self.spans.steps;
        let read = self.spans.left_in_epoch(position).saturating_mul(global_batch);
        position + read.min(sample_count.saturating_sub(position))
    }

    /// The same, without the last steps for as long as these have no rows; steps that are filled up have.
    pub(super) fn end_with(&self, start: (u32, u64), has_rows: impl Fn(Range<u64>) -> bool) -> u64 {
        let mut end = self.end(start.1);
        while end > start.1 {
            let begin = self.last_step(start.1, end);
            let is_filled = self.spans.at(start.0, begin).is_some_and(|span| span.parts.len() > 1);
            if is_filled || has_rows(begin..end) {
                break;
            }
            end = begin;
        }
        end
    }

    /// Where the epoch after one that begins at (epoch, position) begins.
    pub(super) fn after(&self, (epoch, position): (u32, u64)) -> (u32, u64) {
        let end = self.end(position);
        let carried = match self.spans.steps.last_batch {
            LastBatch::Carry if end > position => {
                self.spans.at(epoch, self.last_step(position, end)).map(|span| span.next)
            }
            _ => None,
        };
        carried.unwrap_or((epoch.saturating_add(1), self.first))
    }

    /// Where the last step begins of those from `start` to `end`.
    fn last_step(&self, start: u64, end: u64) -> u64 {
        end - 1 - (end - 1 - start) % self.spans.steps.global_batch
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICIES: [LastBatch; 4] = [LastBatch::Short, LastBatch::Drop, LastBatch::Wrap, LastBatch::Carry];

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

        #[test]
        fn epoch_by_epoch_it_is_read_as_the_run_would_be(
            sample_count in 1..120u64, global_batch in 1..50u64, policy in 0..4usize, end_epoch in 1..5u32, start in 0..120u64,
        ) {
            let steps = Steps { sample_count, global_batch, last_batch: POLICIES[policy] };
            prop_assume!(steps.per_epoch() > 0);
            let spans = Spans { steps, end_epoch };
            let stretch = Stretch { first: 0, spans, is_slice: false };
            let mut at = stretch.beginning((0, start.min(sample_count)));
            let mut run = spans.from(at.0, at.1).peekable();
            while at.0 < end_epoch {
                let (epoch, end) = (at.0, stretch.end(at.1));
                let mut position = at.1;
                while let Some(span) = run.next_if(|span| span.epoch == epoch) {
                    prop_assert_eq!(span.parts[0].positions.start, position);
                    position = span.parts[0].positions.end;
                    prop_assert_eq!(position >= end, run.peek().is_none_or(|next| next.epoch != epoch));
                }
                prop_assert_eq!(position, end, "progress is complete at the last step");
                at = stretch.beginning(stretch.after(at));
                if let Some(next) = run.peek() {
                    prop_assert_eq!(at, (next.epoch, next.parts[0].positions.start));
                }
            }
            prop_assert!(run.next().is_none());
        }

        #[test]
        fn slices_of_slices_are_what_they_are_of_positions(
            sample_count in 1..200u64, global_batch in 1..20u64, policy in 0..4usize, cuts in prop::collection::vec(0..220u64, 4),
        ) {
            let steps = Steps { sample_count, global_batch, last_batch: POLICIES[policy] };
            let whole = Stretch { first: 0, spans: Spans { steps, end_epoch: 1 }, is_slice: false };
            let positions = |stretch: &Stretch| stretch.first..stretch.end(stretch.first);
            let all: Vec<u64> = positions(&whole).collect();
            let of = |all: &[u64], from: u64, to: u64| {
                let to = all.len().min(to as usize);
                all[to.min(from as usize)..to].to_vec()
            };
            let slice = whole.slice(cuts[0], cuts[1]);
            let expected = of(&all, cuts[0], cuts[1]);
            prop_assert_eq!(positions(&slice).collect::<Vec<_>>(), expected.clone());
            let inner = slice.slice(cuts[2], cuts[3]);
            prop_assert_eq!(positions(&inner).collect::<Vec<_>>(), of(&expected, cuts[2], cuts[3]));
            prop_assert_eq!(inner.items(), positions(&inner).count() as u64);
        }
    }

    #[test]
    fn steps_at_the_end_that_have_no_rows_do_not_count() {
        let steps = Steps { sample_count: 10, global_batch: 4, last_batch: LastBatch::Short };
        let stretch = Stretch { first: 0, spans: Spans { steps, end_epoch: 2 }, is_slice: false };
        assert_eq!(stretch.end_with((0, 0), |_| true), 10);
        assert_eq!(stretch.end_with((0, 0), |positions| positions.start < 8), 8);
        assert_eq!(stretch.end_with((0, 1), |positions| positions.start < 5), 5);
        assert_eq!(stretch.end_with((0, 0), |_| false), 0);
    }
}
