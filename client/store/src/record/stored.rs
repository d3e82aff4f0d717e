//! What runs have in a store, by the keys alone: records with their steps and saved losses, checkpoints and their parts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardd_api::protocol::RunId;

use super::shelf::{Listed, Records, listed_as};
use super::{Record, RecordError, RecordId};
use crate::origin::{OriginError, StoredObject};

/// The objects of a run in a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredRun {
    /// How many records.
    pub records: u64,
    /// The bytes of these, of their steps, and of the losses saved beside them.
    pub record_bytes: u64,
    /// How many checkpoints.
    pub checkpoints: u64,
    /// The bytes of these and of their parts.
    pub checkpoint_bytes: u64,
}

/// The objects of a run in a store, and their places.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) stored: StoredRun,
    pub(crate) records: Vec<RecordId>,
    record_keys: Vec<String>,
    checkpoint_keys: Vec<String>,
}

impl Records {
    /// The objects of each run here, of one run or of all.
    pub(crate) async fn kept(&self, run: Option<&RunId>) -> Result<BTreeMap<RunId, Kept>, RecordError> {
        let folder = run.map_or_else(|| "runs".to_owned(), |run| format!("runs/{run}"));
        Ok(by_run(self.objects_in(&folder).await?))
    }

    /// The record of a run that was written last; none where none can be read.
    pub(crate) async fn newest(&self, run: &RunId, kept: &Kept) -> Result<Option<Record>, RecordError> {
        let mut newest: Option<Record> = None;
        for id in &kept.records {
            let record = match self.read(&Listed { run: run.clone(), id: *id }).await {
                Ok(record) => record,
                Err(error) if is_unreadable(&error) => {
                    tracing::warn!(%run, %error, "a record is left out of the list of runs");
                    continue;
                }
                Err(error) => return Err(error),
            };
            if newest.as_ref().is_none_or(|newest| newest.written() <= record.written()) {
                newest = Some(record);
            }
        }
        Ok(newest)
    }

    /// Deletes what a run has here: its records with their steps and saved losses, and its checkpoints only if requested.
    /// Records first: a crash in between leaves parts that no record names, which the next removal finds.
    pub(crate) async fn remove_run(&self, kept: Kept, with_checkpoints: bool) -> Result<(), RecordError> {
        let Kept { record_keys, checkpoint_keys, .. } = kept;
        let (documents, steps) = record_keys.into_iter().partition(|key| listed_as(key).is_some());
        self.delete(documents).await?;
        self.delete(steps).await?;
        if with_checkpoints {
            self.delete(checkpoint_keys).await?;
        }
        Ok(())
    }
}

/// Whether it will not be readable another time either.
pub(super) fn is_unreadable(error: &RecordError) -> bool {
    let is_spoilt =
        |error: &OriginError| matches!(error, OriginError::Corrupt { .. } | OriginError::NotFound { .. });
    match error {
        RecordError::Damaged { .. } | RecordError::TooNew { .. } => true,
        RecordError::Store(error) => is_spoilt(error),
        _ => false,
    }
}

fn by_run(objects: Vec<StoredObject>) -> BTreeMap<RunId, Kept> {
    let mut runs = BTreeMap::<RunId, Kept>::new();
    for StoredObject { key, bytes, .. } in objects {
        let mut steps = key.splitn(4, '/');
        let (Some("runs"), Some(run), Some(folder), Some(_)) =
            (steps.next(), steps.next(), steps.next(), steps.next())
        else {
            continue;
        };
        let Ok(run) = run.parse::<RunId>() else { continue };
        let is_document = key.ends_with(".json");
        let kept = match folder {
            "records" | "steps" | "losses" | "checkpoints" | "parts" => runs.entry(run).or_default(),
            _ => continue,
        };
        let StoredRun { records, record_bytes, checkpoints, checkpoint_bytes } = &mut kept.stored;
        match folder {
            "records" | "steps" | "losses" => {
                *record_bytes += bytes;
                if let Some(listed) = listed_as(&key) {
                    *records += 1;
                    kept.records.push(listed.id);
                }
                kept.record_keys.push(key);
            }
            _ => {
                *checkpoint_bytes += bytes;
                *checkpoints += u64::from(folder == "checkpoints" && is_document);
                kept.checkpoint_keys.push(key);
            }
        }
    }
    runs
}
