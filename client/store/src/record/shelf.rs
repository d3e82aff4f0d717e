//! The records of a store: `runs/RUN/records/DIGEST.json`, and the parts of their tables in `runs/RUN/steps/`, beside the checkpoints of
//! the runs. Parts are put before the record that names them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use shardd_api::protocol::RunId;
use shardfmt::Digest;
use tokio::try_join;

use super::RecordError;
use super::compare::{Comparison, StepDifference, first_difference};
use super::course::{self, Course};
use super::document::{Record, RecordId, StepsTable};
use super::steps::{STEPS_PER_PART, StepRow, decode_part};
use crate::origin::{Origin, StoredObject};

/// Parts of a table that are read at once.
const PARTS_AT_ONCE: usize = 8;

/// This number of records is named where one is wanted that is not there.
const NAMED: usize = 10;

/// The records of a store. Its futures run on a tokio runtime; one that is dropped leaves at most a part that no record names.
#[derive(Clone, Debug)]
pub struct Records {
    origin: Arc<Origin>,
}

/// A record that is there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// Of which run.
    pub run: RunId,
    /// Which.
    pub id: RecordId,
}

impl Records {
    /// Those of this store.
    pub fn new(origin: Arc<Origin>) -> Records {
        Records { origin }
    }

    /// The name of the store for people.
    pub fn store(&self) -> &str {
        self.origin.name()
    }

    /// The records there are, of one run or of all, by run and id.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn list(&self, run: Option<&RunId>) -> Result<Vec<Listed>, RecordError> {
        let folder = run.map_or_else(|| "runs".to_owned(), records_folder);
        let listed = self.origin.list_folder(&folder).await?;
        let mut found: Vec<Listed> = listed.iter().filter_map(|object| listed_as(&object.key)).collect();
        found.sort();
        Ok(found)
    }

    /// The record that is called so: by the beginning of its id, or by the name of a run that has only one.
    ///
    /// # Errors
    /// [`RecordError::NoSuch`], [`RecordError::Ambiguous`], and when the store cannot be asked.
    pub async fn find(&self, asked: &str) -> Result<Listed, RecordError> {
        let all = self.list(None).await?;
        let fits = |it: &&Listed| {
            it.run.as_str() == asked || !asked.is_empty() && it.id.to_string().starts_with(asked)
        };
        let fitting: Vec<&Listed> = all.iter().filter(fits).collect();
        let (asked, store) = (asked.to_owned(), self.store().to_owned());
        match fitting[..] {
            [one] => Ok(one.clone()),
            [] => Err(RecordError::NoSuch { asked, store, present: named(&all.iter().collect::<Vec<_>>()) }),
            _ => Err(RecordError::Ambiguous { asked, store, count: fitting.len(), fitting: named(&fitting) }),
        }
    }

    /// A record, verified.
    ///
    /// # Errors
    /// See [`Record::from_bytes`], and when it is not there or cannot be read.
    pub async fn read(&self, listed: &Listed) -> Result<Record, RecordError> {
        let Listed { run, id } = listed;
        let what = format!("record {}", id.short());
        let bytes = self.origin.keyed(record_key(run, *id), &what, id.0).await?;
        Record::from_bytes(*id, &bytes)
    }

    /// The steps of part `number` of a record; none if it has no such part.
    ///
    /// # Errors
    /// When it is not there, damaged, or cannot be read.
    pub async fn steps(&self, record: &Record, number: u64) -> Result<Vec<StepRow>, RecordError> {
        let Some(digest) = record.steps.part(number) else { return Ok(Vec::new()) };
        let what = format!("part {} of the steps of run {}", digest.short(), record.run);
        let bytes = self.origin.keyed(part_key(&record.run, digest), &what, digest).await?;
        decode_part(bytes, &what, record.steps.steps_of(number), record.virtual_ranks)
    }

    /// A step of a record; none if it has no such step.
    ///
    /// # Errors
    /// See [`steps`](Self::steps).
    pub async fn step(&self, record: &Record, step: u64) -> Result<Option<StepRow>, RecordError> {
        let rows = self.steps(record, step / STEPS_PER_PART).await?;
        Ok(rows.into_iter().find(|row| row.step == step))
    }

    /// The course of a training over some steps of its record, in at most `points` points. Of a range of more than
    /// 65,536 steps it reads some parts, evenly apart.
    ///
    /// # Errors
    /// See [`steps`](Self::steps).
    pub async fn course(
        &self,
        record: &Record,
        steps: Range<u64>,
        points: usize,
    ) -> Result<Course, RecordError> {
        let parts = course::parts(steps.clone());
        let all = StepsTable::part_numbers(steps.clone());
        let is_sampled = (parts.len() as u64) < all.end - all.start;
        let read = stream::iter(parts).map(|number| self.steps(record, number)).buffered(PARTS_AT_ONCE);
        let mut rows: Vec<StepRow> = read.try_concat().await?;
        rows.retain(|row| steps.contains(&row.step));
        let StepsTable { first, end, of, .. } = record.steps;
        Ok(Course { first, end, of, is_sampled, points: course::points(&rows, points) })
    }

    /// Puts a part of a table: its digest.
    ///
    /// # Errors
    /// When the store does not take it.
    pub async fn put_part(&self, run: &RunId, bytes: Bytes) -> Result<Digest, RecordError> {
        let digest = Digest::of(&bytes);
        let what = format!("part {} of the steps of run {run}", digest.short());
        self.origin.put_keyed(part_key(run, digest), &what, bytes).await?;
        Ok(digest)
    }

    /// Puts a record whose parts are there: from now on it exists.
    ///
    /// # Errors
    /// When the store does not take it.
    pub async fn publish(&self, record: &Record) -> Result<RecordId, RecordError> {
        let id = record.id();
        let what = format!("record {}", id.short());
        self.origin.put_keyed(record_key(&record.run, id), &what, record.to_bytes().into()).await?;
        Ok(id)
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    pub(super) async fn objects_in(&self, folder: &str) -> Result<Vec<StoredObject>, RecordError> {
        Ok(self.origin.list_folder(folder).await?)
    }

    pub(super) async fn delete(&self, keys: Vec<String>) -> Result<(), RecordError> {
        match keys.is_empty() {
            true => Ok(()),
            false => Ok(self.origin.delete(keys).await?),
        }
    }

    /// Removes a record that another one of its run tells more of, and the parts that no record of the run names any more. With the last
    /// record of a run go its saved losses.
    ///
    /// # Errors
    /// When the store cannot be asked; also when a record of the run cannot be read, whose parts are then not known: the record is gone,
    /// its parts stay.
    pub async fn remove(&self, id: RecordId, record: &Record) -> Result<(), RecordError> {
        self.origin.delete(vec![record_key(&record.run, id)]).await?;
        let mut parts: BTreeSet<Digest> = record.steps.parts.iter().copied().collect();
        let others = self.list(Some(&record.run)).await?;
        if others.is_empty() {
            self.remove_losses(&record.run).await?;
        }
        for other in others {
            for part in self.read(&other).await?.steps.parts {
                parts.remove(&part);
            }
        }
        let keys = parts.into_iter().map(|part| part_key(&record.run, part)).collect();
        Ok(self.origin.delete(keys).await?)
    }
}

/// Compares two records, of one store or of two, reading the first parts that differ.
///
/// # Errors
/// When a part that is needed is not there, damaged, or cannot be read.
pub async fn compare(a: (&Records, &Record), b: (&Records, &Record)) -> Result<Comparison, RecordError> {
    let ((these, a), (those, b)) = (a, b);
    let first = find_first((these, a), (those, b)).await?;
    Ok(Comparison::of_documents(a, b, first))
}

async fn find_first(
    (these, a): (&Records, &Record),
    (those, b): (&Records, &Record),
) -> Result<Option<StepDifference>, RecordError> {
    let (start, end) = (a.steps.first.max(b.steps.first), a.steps.end.min(b.steps.end));
    for number in StepsTable::part_numbers(start..end.max(start)) {
        if a.steps.part(number) == b.steps.part(number) {
            continue;
        }
        let (ours, theirs) = try_join!(these.steps(a, number), those.steps(b, number))?;
        let both = |rows: Vec<StepRow>| -> Vec<StepRow> {
            rows.into_iter().filter(|row| (start..end).contains(&row.step)).collect()
        };
        if let Some(difference) = first_difference(&both(ours), &both(theirs)) {
            return Ok(Some(difference));
        }
    }
    Ok(None)
}

fn records_folder(run: &RunId) -> String {
    format!("runs/{run}/records")
}

fn record_key(run: &RunId, id: RecordId) -> String {
    format!("{}/{id}.json", records_folder(run))
}

fn part_key(run: &RunId, digest: Digest) -> String {
    format!("runs/{run}/steps/{digest}.arrow")
}

/// The record whose key this is.
pub(super) fn listed_as(key: &str) -> Option<Listed> {
    let (run, id) = key.strip_prefix("runs/")?.split_once("/records/")?;
    let listed = Listed { run: run.parse().ok()?, id: id.strip_suffix(".json")?.parse().ok()? };
    Some(listed)
}

fn named(records: &[&Listed]) -> String {
    let names: Vec<String> =
        records.iter().take(NAMED).map(|it| format!("{} ({})", it.id.short(), it.run)).collect();
    match records.len() {
        0 => "none".to_owned(),
        count if count > NAMED => format!("{} and {} more", names.join(", "), count - NAMED),
        _ => names.join(", "),
    }
}
