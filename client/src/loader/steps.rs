//! Cuts the global order into steps. Pure: positions in, positions out.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The treatment of the samples at the end of an epoch that do not fill a global batch.
///
/// ```
/// use shardd_client::LastBatch;
/// use shardd_client::loader::{Spans, Steps};
///
/// let sizes = |last_batch| {
///     let steps = Steps { sample_count: 10, global_batch: 4, last_batch };
///     let spans = Spans { steps, end_epoch: 2 }.from(0, 0);
///     spans.map(|step| step.samples()).collect::<Vec<u64>>()
/// };
/// assert_eq!(sizes(LastBatch::Short), [4, 4, 2, 4, 4, 2]);
/// assert_eq!(sizes(LastBatch::Drop), [4, 4, 4, 4]);
/// assert_eq!(sizes(LastBatch::Wrap), [4, 4, 4, 4, 4, 4]);
/// assert_eq!(sizes(LastBatch::Carry), [4, 4, 4, 4, 4]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastBatch {
    /// They are a smaller step of their own; gradients are weighted by samples. Nothing is left out.
    #[default]
    Short,
    /// They are not read in this epoch; the audit counts them.
    Drop,
    /// Their step is filled up with the first samples of the same epoch's order; the audit counts these repeats apart.
    Wrap,
    /// They open the first step of the next epoch, which continues with that epoch's first samples. Nothing
    /// is left out or repeated, and only the last step of the last epoch may be smaller.
    Carry,
}

/// The steps of one epoch's order.
///
/// ```
/// use shardd_client::LastBatch;
/// use shardd_client::loader::Steps;
///
/// let steps = Steps { sample_count: 10, global_batch: 4, last_batch: LastBatch::Short };
/// assert_eq!(steps.per_epoch(), 3);
/// assert_eq!(steps.at(8), Some(8..10));
/// assert_eq!(steps.at(10), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// Samples of an epoch.
    pub sample_count: u64,
    /// Samples of a full step, at least 1.
    pub global_batch: u64,
    /// The treatment of the rest.
    pub last_batch: LastBatch,
}

impl Steps {
    /// The step that begins at `position`, or `None` if the epoch ends there. What the policy fills it up with is not in it:
    /// that is for [`Spans`](super::Spans) to say.
    pub fn at(&self, position: u64) -> Option<Range<u64>> {
        let left = self.sample_count.saturating_sub(position);
        match self.last_batch {
            _ if left == 0 => None,
            LastBatch::Drop if left < self.global_batch => None,
            _ => Some(position..position + left.min(self.global_batch)),
        }
    }

    /// How many steps an epoch has from its start; with [`LastBatch::Carry`], how many begin in it if none was carried in.
    pub fn per_epoch(&self) -> u64 {
        match self.last_batch {
            LastBatch::Short | LastBatch::Wrap | LastBatch::Carry => {
                self.sample_count.div_ceil(self.global_batch)
            }
            LastBatch::Drop => self.sample_count / self.global_batch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn steps_follow_each_other_and_cover_what_the_policy_says(
            sample_count in 0u64..2_000,
            global_batch in 1u64..300,
            drops in any::<bool>(),
        ) {
            let last_batch = if drops { LastBatch::Drop } else { LastBatch::Short };
            let steps = Steps { sample_count, global_batch, last_batch };
            let mut position = 0;
            let mut count = 0;
            while let Some(step) = steps.at(position) {
                prop_assert_eq!(step.start, position);
                prop_assert!(step.end > step.start && step.end - step.start <= global_batch);
                position = step.end;
                count += 1;
            }
            prop_assert_eq!(count, steps.per_epoch());
            let unseen = sample_count - position;
            prop_assert_eq!(unseen, if drops { sample_count % global_batch } else { 0 });
        }
    }
}
