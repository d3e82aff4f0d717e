//! The course of a training: its steps in as many points as a chart shows, and single steps with their place in the data. Pure.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use shardd_api::lookup::rank_of;

use super::document::{Record, StepsTable};
use super::steps::StepRow;

/// The most parts of a table that are read for a course: of a longer one, some parts are left out.
pub(super) const MOST_PARTS: u64 = 64;

/// Consecutive steps of a training, as one point of a curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CoursePoint {
    /// The first step.
    pub step: u64,
    /// How many steps it stands for.
    pub steps: u64,
    /// The epoch of the first.
    pub epoch: u32,
    /// The mean loss of a sample or token; none if it is infinite or NaN.
    pub loss: Option<f64>,
    /// The least mean loss of a step.
    pub loss_min: Option<f64>,
    /// The largest.
    pub loss_max: Option<f64>,
    /// The step of the largest.
    pub step_of_max: u64,
    /// The part of the answers that were right.
    pub accuracy: f64,
    /// The learning rate of the first step.
    pub learning_rate: f32,
    /// The largest norm of the gradient before clipping; none if it is infinite or NaN.
    pub gradient_norm: Option<f64>,
    /// Steps that were bad, and changed nothing.
    pub skipped: u64,
}

/// The course of a training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Course {
    /// The first step of the record.
    pub first: u64,
    /// The step after the last one of the record.
    pub end: u64,
    /// Steps of the whole training.
    pub of: u64,
    /// Whether some steps between these are left out, as there are too many.
    pub is_sampled: bool,
    /// The points, in the order of steps.
    pub points: Vec<CoursePoint>,
}

/// A step of a training, and which positions of the epoch it read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StepExplained {
    /// The step, counted from the beginning of the training.
    pub step: u64,
    /// Its epoch.
    pub epoch: u32,
    /// The step within the epoch.
    pub step_of_epoch: u64,
    /// The first position of the epoch's order that it read.
    pub position: u64,
    /// Samples of a step, over all ranks.
    pub global_batch_size: u64,
    /// How many virtual ranks share it.
    pub virtual_ranks: u32,
    /// How many ranks there were.
    pub world: u32,
    /// The learning rate.
    pub learning_rate: f32,
    /// The mean loss; none if it is infinite or NaN.
    pub loss: Option<f64>,
    /// The norm of the gradient before clipping; none if it is infinite or NaN.
    pub gradient_norm: Option<f64>,
    /// Whether the step was bad, and changed nothing.
    pub is_skipped: bool,
    /// By virtual rank.
    pub shares: Vec<ShareExplained>,
}

/// A virtual rank's part in a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShareExplained {
    /// The virtual rank.
    pub virtual_rank: u32,
    /// The rank that computed it.
    pub rank: u32,
    /// Answers that its loss is of: samples, or tokens of sequences.
    pub samples: u64,
    /// Its mean loss; none if it is infinite or NaN.
    pub loss: Option<f64>,
    /// How many answers were right.
    pub correct: u64,
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// The parts to read for a course over these steps: all, or [`MOST_PARTS`] evenly apart.
pub(super) fn parts(steps: Range<u64>) -> Vec<u64> {
    let all = StepsTable::part_numbers(steps);
    let count = all.end - all.start;
    match count <= MOST_PARTS {
        true => all.collect(),
        // The first and the last are among them.
        false => (0..MOST_PARTS).map(|at| all.start + at * (count - 1) / (MOST_PARTS - 1)).collect(),
    }
}

/// Steps as at most `most` points, of equally many steps each but for the last.
#[must_use]
pub(super) fn points(rows: &[StepRow], most: usize) -> Vec<CoursePoint> {
    let size = rows.len().div_ceil(most.max(1)).max(1);
    rows.chunks(size).map(point).collect()
}

fn point(rows: &[StepRow]) -> CoursePoint {
    let means = || rows.iter().filter(|row| row.samples > 0).map(|row| (row.mean(), row.step));
    let is_number = means().all(|(mean, _)| mean.is_finite());
    let largest = means().max_by(|one, other| one.0.total_cmp(&other.0));
    let samples: u64 = rows.iter().map(|row| row.samples).sum();
    let norms = rows.iter().map(|row| row.gradient_norm);
    CoursePoint {
        step: rows[0].step,
        steps: rows.len() as u64,
        epoch: rows[0].epoch,
        loss: finite(rows.iter().map(|row| row.loss).sum::<f64>() / samples.max(1) as f64),
        loss_min: means().map(|(mean, _)| mean).min_by(f64::total_cmp).filter(|_| is_number),
        loss_max: largest.map(|(mean, _)| mean).filter(|_| is_number),
        step_of_max: largest.map_or(rows[0].step, |(_, step)| step),
        accuracy: rows.iter().map(|row| row.correct).sum::<u64>() as f64 / samples.max(1) as f64,
        learning_rate: rows[0].rate,
        gradient_norm: norms.max_by(f64::total_cmp).and_then(finite),
        skipped: rows.iter().filter(|row| row.is_skipped).count() as u64,
    }
}

impl Record {
    /// Samples of a step over all ranks; none if the record does not say it.
    #[must_use]
    pub fn global_batch_size(&self) -> Option<u64> {
        let (_, size) = self.settings.get("data")?.rsplit_once(" in steps of ")?;
        size.split_once(',')?.0.parse().ok()
    }

    /// Steps of an epoch; none if the record does not say it.
    #[must_use]
    pub fn steps_per_epoch(&self) -> Option<u64> {
        self.settings.get("steps per epoch")?.parse().ok().filter(|steps| *steps > 0)
    }

    /// A step with its place in the data; none if the record does not say how long steps are.
    #[must_use]
    pub fn explained(&self, row: &StepRow) -> Option<StepExplained> {
        let global_batch_size = self.global_batch_size()?;
        let step_of_epoch = row.step % self.steps_per_epoch()?;
        let launch = self.launches.iter().rev().find(|launch| launch.first_step <= row.step);
        let world = launch.or(self.launches.first()).map_or(1, |launch| launch.world);
        let shares = row.shares.iter().zip(0..).map(|(share, virtual_rank)| ShareExplained {
            virtual_rank,
            rank: rank_of(virtual_rank, world, self.virtual_ranks),
            samples: share.samples,
            loss: finite(share.loss / share.samples.max(1) as f64),
            correct: share.correct,
        });
        Some(StepExplained {
            step: row.step,
            epoch: row.epoch,
            step_of_epoch,
            position: step_of_epoch * global_batch_size,
            global_batch_size,
            virtual_ranks: self.virtual_ranks,
            world,
            learning_rate: row.rate,
            loss: finite(row.mean()),
            gradient_norm: finite(row.gradient_norm),
            is_skipped: row.is_skipped,
            shares: shares.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{STEPS_PER_PART, ShareRow};

    fn row(step: u64, loss: f64) -> StepRow {
        let share = ShareRow { samples: 4, loss, correct: 1, input: None, gradient: None };
        StepRow {
            step,
            epoch: (step / 8) as u32,
            rate: 0.1,
            samples: 4,
            loss,
            correct: 1,
            gradient_norm: loss / 2.0,
            is_skipped: false,
            weights: None,
            shares: vec![share],
        }
    }

    #[test]
    fn a_spike_is_seen_whatever_the_number_of_points() {
        let mut rows: Vec<StepRow> = (0..1000).map(|step| row(step, 4.0)).collect();
        rows[340] = row(340, 400.0);
        for most in [1, 7, 100, 1000, 5000] {
            let found = points(&rows, most);
            assert!(found.len() <= most);
            let spike =
                found.iter().max_by(|one, other| one.loss_max.partial_cmp(&other.loss_max).expect("numbers"));
            let spike = spike.expect("points");
            assert_eq!((spike.step_of_max, spike.loss_max), (340, Some(100.0)));
            assert!((spike.step..spike.step + spike.steps).contains(&340));
        }
    }

    #[test]
    fn a_loss_that_is_no_number_is_none_and_names_its_step() {
        let found = points(&[row(0, 1.0), row(1, f64::NAN), row(2, 1.0)], 1);
        assert_eq!((found[0].loss, found[0].loss_max, found[0].step_of_max), (None, None, 1));
        assert_eq!(found[0].gradient_norm, None);
    }

    proptest! {
        #[test]
        fn points_have_each_step_once_and_the_sums_of_all(count in 1..300u64, most in 1..50usize) {
            let rows: Vec<StepRow> = (0..count).map(|step| row(step, step as f64)).collect();
            let found = points(&rows, most);
            prop_assert!(found.len() <= most);
            prop_assert_eq!(found.iter().map(|point| point.steps).sum::<u64>(), count);
            let sum: f64 = found.iter().map(|point| point.loss.expect("a number") * 4.0 * point.steps as f64).sum();
            prop_assert!((sum - (count * (count - 1)) as f64 / 2.0).abs() < 1e-6 * (1.0 + sum));
        }

        #[test]
        fn parts_are_few_in_order_and_have_both_ends(start in 0..100_000u64, steps in 1..10_000_000u64) {
            let found = parts(start..start + steps);
            prop_assert!(found.len() as u64 <= MOST_PARTS && found.is_sorted_by(|one, other| one < other));
            prop_assert_eq!(found[0], start / STEPS_PER_PART);
            prop_assert_eq!(found[found.len() - 1], (start + steps - 1) / STEPS_PER_PART);
        }
    }
}
