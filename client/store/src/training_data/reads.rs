//! The samples that a training read, epoch by epoch. Pure.

use crate::record::{Ending, Record, RecordId};
use serde::Serialize;
use shardfmt::{NodeHash, PlanId, VersionId};

/// The samples that a training read in an epoch.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EpochRead {
    /// The epoch.
    pub epoch: u32,
    /// Different samples: an epoch reads none twice.
    pub samples: u64,
    /// Commits to all samples of the epoch and their positions, if it was asked for.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<shardd_api::schema::Digest>))]
    pub root: Option<NodeHash>,
}

/// A training of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Training {
    /// The record it is known from; none where you named a plan.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<shardd_api::schema::Digest>))]
    pub record: Option<RecordId>,
    /// Its run.
    pub run: Option<String>,
    /// The dataset, if it was asked for by name.
    pub dataset: Option<String>,
    /// The version of the samples.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub version: VersionId,
    /// Their order.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub plan: PlanId,
    /// When it began, in seconds since 1970.
    pub from: Option<u64>,
    /// When it ended, or its record was written.
    pub until: Option<u64>,
    /// How it ended.
    pub ending: Option<String>,
    /// Whether the training had not ended when the record was written.
    pub is_underway: bool,
    /// The weights at its end, if it was trained to the end.
    pub weights: Option<String>,
    /// Steps before the first of the record, of which it does not know the samples.
    pub steps_unknown: u64,
    /// The samples that it read, by epoch.
    pub epochs: Vec<EpochRead>,
}

impl Training {
    /// The training of a record.
    ///
    /// # Errors
    /// Names the fact that the record lacks.
    pub fn of(id: RecordId, record: &Record) -> Result<Training, String> {
        let lacks = |fact| format!("record {} does not have {fact}", id.short());
        let size = record.global_batch_size().ok_or_else(|| lacks("the size of a step"))?;
        let per_epoch = record.steps_per_epoch().ok_or_else(|| lacks("the steps of an epoch"))?;
        let steps = &record.steps;
        Ok(Training {
            record: Some(id),
            run: Some(record.run.to_string()),
            dataset: record.data.dataset.clone(),
            version: record.data.version,
            plan: record.data.plan,
            from: record.launches.first().map(|launch| launch.started),
            until: Some(record.written()),
            ending: Some(record.ending.to_string()),
            is_underway: record.ending == Ending::Underway,
            weights: record.weights.map(|weights| weights.to_string()),
            steps_unknown: steps.first,
            epochs: epochs(steps.first, steps.end, per_epoch, size, record.data.samples),
        })
    }

    /// For a reader of the record of a training that had not ended: it is written from time to time.
    pub fn caution(&self) -> &'static str {
        match self.is_underway {
            true => "; steps that the training has done since are not in the record",
            false => "",
        }
    }

    /// Samples that it read, a repeated one as often as it was read.
    pub fn samples_read(&self) -> u64 {
        self.epochs.iter().map(|epoch| epoch.samples).sum()
    }

    /// Samples of which it is certain that the training read each at least once.
    pub fn samples_at_least(&self) -> u64 {
        self.epochs.iter().map(|epoch| epoch.samples).max().unwrap_or(0)
    }
}

/// The epochs of steps `first..end`: a step reads `size` positions, the last of an epoch those that are left.
fn epochs(first: u64, end: u64, per_epoch: u64, size: u64, samples: u64) -> Vec<EpochRead> {
    if first >= end {
        return Vec::new();
    }
    let read = |epoch: u64| {
        let begins = epoch * per_epoch;
        let position = |step: u64| (step.clamp(begins, begins + per_epoch) - begins).saturating_mul(size);
        let samples = position(end).min(samples) - position(first).min(samples);
        EpochRead { epoch: u32::try_from(epoch).unwrap_or(u32::MAX), samples, root: None }
    };
    (first / per_epoch..=(end - 1) / per_epoch).map(read).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_short_last_step_reads_what_is_left() {
        let read = |first, end| {
            let epochs = epochs(first, end, 4, 3, 10);
            epochs.iter().map(|epoch| (epoch.epoch, epoch.samples)).collect::<Vec<_>>()
        };
        assert_eq!(read(0, 8), [(0, 10), (1, 10)]);
        assert_eq!(read(0, 2), [(0, 6)]);
        assert_eq!(read(3, 5), [(0, 1), (1, 3)]);
        assert_eq!(read(4, 4), []);
    }

    proptest! {
        /// A training in two parts reads as much as in one.
        #[test]
        fn parts_add_up(end in 1u64..60, cut in 0u64..60, per_epoch in 1u64..9, size in 1u64..7, rest in 0u64..7) {
            let samples = (per_epoch * size).saturating_sub(rest.min(size - 1)).max(1);
            let cut = cut.min(end);
            let sum = |first, end| epochs(first, end, per_epoch, size, samples).iter().map(|e| e.samples).sum::<u64>();
            prop_assert_eq!(sum(0, cut) + sum(cut, end), sum(0, end));
        }
    }
}
