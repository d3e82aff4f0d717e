//! Losses of samples that are saved beside records: `runs/RUN/losses/RECORD/STEP/DIGEST.arrow`. They go with their record.

use std::collections::BTreeMap;

use shardd_api::protocol::RunId;
use shardfmt::Digest;

use super::losses::{SampleLoss, decode_losses, encode_losses};
use super::{RecordError, RecordId, Records};

/// A saved file: of which record, which step, and its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Saved {
    record: RecordId,
    step: u64,
    digest: Digest,
}

impl Records {
    /// Saves the losses of a step beside its record, in the place of other ones of this step. The same losses are the same bytes, so twice
    /// does no harm.
    ///
    /// # Errors
    /// [`RecordError::Unfit`] when there are none, and when the store does not take them.
    pub async fn put_losses(
        &self,
        run: &RunId,
        record: RecordId,
        step: u64,
        losses: &[SampleLoss],
    ) -> Result<Digest, RecordError> {
        let bytes = encode_losses(&what(run, step), step, losses)?;
        let digest = Digest::of(&bytes);
        let saved = Saved { record, step, digest };
        self.origin().put_keyed(key(run, saved), &what(run, step), bytes).await?;
        let folder = format!("{}/{step}", folder(run, record));
        let others = self.objects_in(&folder).await?.into_iter().map(|object| object.key);
        self.delete(others.filter(|other| *other != key(run, saved)).collect()).await?;
        Ok(digest)
    }

    /// The losses of the samples of a step, in the order of positions; none if they are not saved.
    ///
    /// # Errors
    /// When they are damaged or cannot be read.
    pub async fn losses(
        &self,
        run: &RunId,
        record: RecordId,
        step: u64,
    ) -> Result<Option<Vec<SampleLoss>>, RecordError> {
        let folder = format!("{}/{step}", folder(run, record));
        let listed = self.objects_in(&folder).await?;
        let Some(saved) = listed.iter().find_map(|object| saved_as(run, &object.key)) else {
            return Ok(None);
        };
        let what = what(run, step);
        let bytes = self.origin().keyed(key(run, saved), &what, saved.digest).await?;
        decode_losses(bytes, &what, step).map(Some)
    }

    /// The steps of each record of a run whose losses are saved.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn steps_with_losses(&self, run: &RunId) -> Result<BTreeMap<RecordId, Vec<u64>>, RecordError> {
        let mut found = BTreeMap::<RecordId, Vec<u64>>::new();
        for object in self.objects_in(&format!("runs/{run}/losses")).await? {
            if let Some(Saved { record, step, .. }) = saved_as(run, &object.key) {
                found.entry(record).or_default().push(step);
            }
        }
        for steps in found.values_mut() {
            steps.sort_unstable();
            steps.dedup();
        }
        Ok(found)
    }

    pub(super) async fn remove_losses(&self, run: &RunId, record: RecordId) -> Result<(), RecordError> {
        let saved = self.objects_in(&folder(run, record)).await?;
        self.delete(saved.into_iter().map(|object| object.key).collect()).await
    }
}

fn what(run: &RunId, step: u64) -> String {
    format!("the losses of step {step} of run {run}")
}

fn folder(run: &RunId, record: RecordId) -> String {
    format!("runs/{run}/losses/{record}")
}

fn key(run: &RunId, Saved { record, step, digest }: Saved) -> String {
    format!("{}/{step}/{digest}.arrow", folder(run, record))
}

fn saved_as(run: &RunId, text: &str) -> Option<Saved> {
    let rest = text.strip_prefix("runs/")?.strip_prefix(run.as_str())?.strip_prefix("/losses/")?;
    let (record, rest) = rest.split_once('/')?;
    let (step, digest) = rest.split_once('/')?;
    let digest = digest.strip_suffix(".arrow")?.parse().ok()?;
    let saved = Saved { record: record.parse().ok()?, step: step.parse().ok()?, digest };
    // Another spelling of the number is another key.
    (key(run, saved) == text).then_some(saved)
}
