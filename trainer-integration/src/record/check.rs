//! Compares a training with the record of another one, step by step.

use shardd_store::record::{Record, RecordId, Records, STEPS_PER_PART, StepRow, first_difference};
use shardfmt::Digest;
use tracing::warn;

use super::machine;
use crate::checkpoint::{CheckpointStore, Settings, differences};
use crate::error::TrainError;

/// The record that a rerun is compared with.
pub(super) struct Check {
    shelf: CheckpointStore,
    records: Records,
    record: Record,
    /// A part of its steps, by its number.
    read: Option<(u64, Vec<StepRow>)>,
}

impl Check {
    /// Compares with this record a training of these settings that begins with these weights before step `first`. The settings in
    /// `may_change` decide the last bits at most; all others have to be the record's.
    ///
    /// # Errors
    /// When the settings are others, or the weights.
    pub(super) fn begin(
        shelf: &CheckpointStore,
        id: RecordId,
        record: &Record,
        settings: &Settings,
        may_change: &[&str],
        (first, weights): (u64, Digest),
    ) -> Result<Check, TrainError> {
        let id = id.short();
        let split = |settings: &Settings, is_soft: bool| -> Settings {
            let of = settings.iter().filter(|(name, _)| may_change.contains(&name.as_str()) == is_soft);
            of.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        let firm = differences(&split(settings, false), &split(&record.settings, false));
        if !firm.is_empty() {
            return Err(TrainError::Rerun(format!("this is not the training of record {id}: {firm}")));
        }
        let mut changed = differences(&split(settings, true), &split(&record.settings, true));
        if let Some(launch) = record.launches.last() {
            let (theirs, ours) = (&launch.processor, machine::processor());
            if !machine::compute_alike(theirs, &ours) {
                changed = format!("{changed}, processor ({theirs} against {ours})");
            }
            let both = launch.program.zip(machine::program());
            if let Some((theirs, ours)) = both.filter(|(theirs, ours)| theirs != ours) {
                changed = format!("{changed}, program ({} against {})", theirs.short(), ours.short());
            }
        }
        let changed = changed.trim_start_matches(", ");
        if !changed.is_empty() {
            warn!(record = id, changed, "the last bits may differ for this reason");
        }
        if !record.is_exact {
            warn!(record = id, "it was not trained with --reduce exact on a CPU: no bits are promised");
        }
        if (record.steps.first, first) == (0, 0) && record.first_weights != weights {
            let (theirs, ours) = (record.first_weights.short(), weights.short());
            let what = format!("it begins with other weights than record {id} ({theirs} against {ours})");
            return Err(TrainError::Rerun(what));
        }
        let (shelf, records) = (shelf.clone(), shelf.records());
        let mut check = Check { shelf, records, record: record.clone(), read: None };
        let before = first.checked_sub(1).map(|before| check.expected(before)).transpose()?.flatten();
        match before.and_then(|row| row.weights) {
            Some(theirs) if theirs != weights => Err(TrainError::Rerun(format!(
                "the weights before step {first} are others than those of record {id} ({} against {})",
                theirs.short(),
                weights.short()
            ))),
            _ => Ok(check),
        }
    }

    /// A step of the record, if it has it.
    fn expected(&mut self, step: u64) -> Result<Option<StepRow>, TrainError> {
        let number = step / STEPS_PER_PART;
        if self.record.steps.part(number).is_none() {
            return Ok(None);
        }
        if self.read.as_ref().is_none_or(|(read, _)| *read != number) {
            let read = self.records.steps(&self.record, number);
            self.read = Some((number, self.shelf.handle().block_on(read)?));
        }
        let rows = self.read.as_ref().map_or(&[][..], |(_, rows)| rows);
        Ok(rows.iter().find(|expected| expected.step == step).cloned())
    }

    /// Compares a step.
    ///
    /// # Errors
    /// When it differs, or the record cannot be read.
    pub(super) fn take(&mut self, row: &StepRow) -> Result<(), TrainError> {
        let Some(expected) = self.expected(row.step)? else { return Ok(()) };
        match first_difference(std::slice::from_ref(&expected), std::slice::from_ref(row)) {
            None => Ok(()),
            Some(difference) => Err(TrainError::Rerun(difference.to_string())),
        }
    }

    /// Compares the weights that the training ended with, if it has.
    ///
    /// # Errors
    /// When they differ.
    pub(super) fn end(&self, weights: Option<Digest>) -> Result<(), TrainError> {
        match weights.zip(self.record.weights) {
            Some((ours, theirs)) if ours != theirs => {
                let (theirs, ours) = (theirs.short(), ours.short());
                Err(TrainError::Rerun(format!(
                    "all steps are the same, but it ends with other weights ({theirs} against {ours}): running statistics differ, or weights in steps without digests"
                )))
            }
            _ => Ok(()),
        }
    }
}
