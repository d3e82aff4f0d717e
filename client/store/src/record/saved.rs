//! Losses of samples that are saved beside records: `runs/RUN/losses/STEP/ROW/DIGEST.arrow`.
//!
//! ROW names the bits of the step in its data. They are the same in every record of a training: in each draft, in the one that a resumed
//! training continues, and in the last. So saved losses stay while these records take each other's place, and go with the last record of
//! their run. Two programs may save other bytes for one step: then both files stay, and readers take the one that was written last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shardd_api::protocol::RunId;
use shardfmt::Digest;

use super::losses::{SampleLoss, decode_losses, encode_losses};
use super::stored::is_unreadable;
use super::{Record, RecordError, RecordId, Records, STEPS_PER_PART, StepRow};

/// A step of a training, by its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    step: u64,
    row: Digest,
}

impl Place {
    fn of(record: &Record, step: u64, row: Digest) -> Place {
        // Rows without digests of their input do not have the data.
        let (version, plan) = (record.data.version.0, record.data.plan.0);
        Place { step, row: Digest::of(&[version.0, plan.0, row.0].concat()) }
    }
}

/// A saved file: of which step, and its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Saved {
    place: Place,
    digest: Digest,
}

impl Records {
    /// Saves the losses of a step of a record, which `row` describes. The same losses are the same bytes, so twice does no harm.
    ///
    /// # Errors
    /// [`RecordError::Unfit`] when there are none, and when the store does not take them.
    pub async fn put_losses(
        &self,
        record: &Record,
        row: &StepRow,
        losses: &[SampleLoss],
    ) -> Result<Digest, RecordError> {
        let (run, place) = (&record.run, Place::of(record, row.step, row.digest()));
        let what = what(run, row.step);
        let bytes = encode_losses(&what, row.step, losses)?;
        let digest = Digest::of(&bytes);
        self.origin().put_keyed(key(run, Saved { place, digest }), &what, bytes).await?;
        Ok(digest)
    }

    /// The losses of the samples of a step of a record, which `row` describes, in the order of positions; none if they are not saved.
    ///
    /// # Errors
    /// When they are damaged, of a later format, or cannot be read.
    pub async fn losses(
        &self,
        record: &Record,
        row: &StepRow,
    ) -> Result<Option<Vec<SampleLoss>>, RecordError> {
        let (run, place) = (&record.run, Place::of(record, row.step, row.digest()));
        let listed = self.objects_in(&folder(run, place)).await?;
        let saved = listed.iter().filter_map(|it| Some((it.written, saved_as(run, &it.key)?.digest)));
        let Some((_, digest)) = saved.max() else { return Ok(None) };
        let what = what(run, row.step);
        let bytes = self.origin().keyed(key(run, Saved { place, digest }), &what, digest).await?;
        decode_losses(bytes, &what, row.step).map(Some)
    }

    /// The steps of each of these records of a run whose losses are saved, in order.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn steps_with_losses(
        &self,
        run: &RunId,
        records: &[&Record],
    ) -> Result<Vec<Vec<u64>>, RecordError> {
        let listed = self.objects_in(&losses_folder(run)).await?;
        let saved: BTreeSet<Place> =
            listed.iter().filter_map(|object| Some(saved_as(run, &object.key)?.place)).collect();
        let mut found = Vec::new();
        for record in records {
            let mut steps = Vec::new();
            for place in &saved {
                if self.has(record, *place).await? {
                    steps.push(place.step);
                }
            }
            found.push(steps);
        }
        Ok(found)
    }

    /// A record of the run of `record` that has this step bit by bit, rather `id` than another: it leads to the losses saved for the step.
    /// None where all of them are gone.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn with_step(
        &self,
        id: RecordId,
        record: &Record,
        row: &StepRow,
    ) -> Result<Option<RecordId>, RecordError> {
        let place = Place::of(record, row.step, row.digest());
        let mut listed = self.list(Some(&record.run)).await?;
        listed.sort_by_key(|other| other.id != id);
        for other in listed {
            let has_it = match self.read(&other).await {
                Ok(record) => self.has(&record, place).await?,
                Err(error) if is_unreadable(&error) => false,
                Err(error) => return Err(error),
            };
            if has_it {
                return Ok(Some(other.id));
            }
        }
        Ok(None)
    }

    /// Whether a record has this step; one whose table cannot be read has none.
    async fn has(&self, record: &Record, place: Place) -> Result<bool, RecordError> {
        let Place { step, .. } = place;
        if !(record.steps.first..record.steps.end).contains(&step) {
            return Ok(false);
        }
        match self.row_digests(record, step / STEPS_PER_PART).await {
            Ok(rows) => Ok(rows.get(&step).is_some_and(|row| Place::of(record, step, *row) == place)),
            Err(error) if is_unreadable(&error) => {
                tracing::warn!(run = %record.run, %error, "saved losses of a step are left out");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn row_digests(
        &self,
        record: &Record,
        number: u64,
    ) -> Result<Arc<BTreeMap<u64, Digest>>, RecordError> {
        let Some(part) = record.steps.part(number) else { return Ok(Arc::default()) };
        let known = self.origin().row_digests();
        if let Some(rows) = known.get(part) {
            return Ok(rows);
        }
        let rows = self.steps(record, number).await?;
        let rows: Arc<BTreeMap<u64, Digest>> =
            Arc::new(rows.iter().map(|row| (row.step, row.digest())).collect());
        known.keep(part, Arc::clone(&rows));
        Ok(rows)
    }

    /// Removes all saved losses of a run.
    pub(super) async fn remove_losses(&self, run: &RunId) -> Result<(), RecordError> {
        let saved = self.objects_in(&losses_folder(run)).await?;
        self.delete(saved.into_iter().map(|object| object.key).collect()).await
    }
}

fn what(run: &RunId, step: u64) -> String {
    format!("the file of the losses of step {step} of run {run}")
}

fn losses_folder(run: &RunId) -> String {
    format!("runs/{run}/losses")
}

fn folder(run: &RunId, Place { step, row }: Place) -> String {
    format!("{}/{step}/{row}", losses_folder(run))
}

fn key(run: &RunId, Saved { place, digest }: Saved) -> String {
    format!("{}/{digest}.arrow", folder(run, place))
}

fn saved_as(run: &RunId, text: &str) -> Option<Saved> {
    let rest = text.strip_prefix("runs/")?.strip_prefix(run.as_str())?.strip_prefix("/losses/")?;
    let (step, rest) = rest.split_once('/')?;
    let (row, digest) = rest.split_once('/')?;
    let digest = digest.strip_suffix(".arrow")?.parse().ok()?;
    let saved = Saved { place: Place { step: step.parse().ok()?, row: row.parse().ok()? }, digest };
    // Another spelling of the number is another key.
    (key(run, saved) == text).then_some(saved)
}
