//! Records of trainings, which `shardtrain --record` writes into the store: how a training went, and which samples a step read.

pub(super) mod losses;
pub(super) mod summary;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardd_api::problem::Kind;
use shardd_api::protocol::RunId;
use shardd_api::schema;
use shardd_store::origin::OriginError;
use shardd_store::record::{
    CheckpointWritten, Course, Ending, Launch, Listed, Record, RecordError, RecordId, Records, StepExplained,
};
use shardfmt::{Digest, PlanId, VersionId};
use utoipa::{IntoParams, ToSchema};

use super::access::Datasets;
use super::problem::{Refusal, chain, invalid, not_found};
use super::run_access::Seen;
use super::{Answer, PathPair, PathTriple, State, ValidQuery, json, look, within};

/// The most records that are listed of a run.
const MOST_RECORDS: usize = 50;
/// The most checkpoints that are listed of a record.
const MOST_CHECKPOINTS: usize = 100;
/// The most steps with saved losses that are listed of a record.
const MOST_LOSSES: usize = 100;
/// The default number of points of a course, and the most.
const POINTS: usize = 240;
const MOST_POINTS: usize = 2000;

/// A record of a training.
#[derive(Serialize, ToSchema)]
struct RecordInfo {
    /// The record.
    #[schema(value_type = schema::Digest)]
    id: RecordId,
    /// The dataset, if it was asked for by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    dataset: Option<String>,
    /// The version of the samples.
    #[schema(value_type = schema::Digest)]
    version: VersionId,
    /// The plan.
    #[schema(value_type = schema::Digest)]
    plan: PlanId,
    /// The store that has it, as `--record` of `shardctl` and `shardtrain` names it.
    store: String,
    /// How many virtual ranks share a step.
    virtual_ranks: u32,
    /// Samples of a step, over all ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    global_batch_size: Option<u64>,
    /// The first step.
    first: u64,
    /// The step after the last one.
    end: u64,
    /// Steps of the whole training.
    of: u64,
    /// How the training ended: `underway`, `trained`, `stopped` or `failed`.
    ending: &'static str,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
    /// When it was written, in seconds since 1970.
    written: u64,
    /// Whether the same training gives the same bits.
    is_exact: bool,
    /// The weights at its end, if it was trained to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Digest>, nullable = false)]
    weights: Option<Digest>,
    /// The processes that trained it, in order.
    launches: Vec<LaunchInfo>,
    /// The checkpoints of which it is known when they were written; records of earlier versions have none.
    checkpoints: CheckpointsInfo,
    /// The steps of which the losses of single samples are saved.
    losses: SavedLossesInfo,
    /// Its settings, as JSON texts by name.
    settings: BTreeMap<String, String>,
}

/// The steps of which the losses of single samples are saved.
#[derive(Serialize, ToSchema)]
struct SavedLossesInfo {
    /// How many.
    count: usize,
    /// The last of them, at most 100, in their order.
    last: Vec<u64>,
}

impl SavedLossesInfo {
    fn of(mut steps: Vec<u64>) -> Self {
        let count = steps.len();
        Self { count, last: steps.split_off(count.saturating_sub(MOST_LOSSES)) }
    }
}

/// A start of a training's processes.
#[derive(Serialize, ToSchema)]
struct LaunchInfo {
    /// The first step that it trained.
    first_step: u64,
    /// How many ranks there were.
    world: u32,
    /// When it began, in seconds since 1970.
    started: u64,
    /// When it was last heard of.
    until: u64,
    /// Where rank 0 computed.
    device: String,
    /// The most memory of a rank's process that was resident at any time, of the rank with the most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    memory_bytes: Option<u64>,
}

/// The checkpoints that a training wrote.
#[derive(Serialize, ToSchema)]
struct CheckpointsInfo {
    /// How many.
    count: usize,
    /// The last of them, at most 100, in their order.
    last: Vec<CheckpointInfo>,
}

/// A checkpoint that a training wrote. It may have been removed since.
#[derive(Serialize, ToSchema)]
struct CheckpointInfo {
    /// Steps of the training before it.
    step: u64,
    /// When it was complete, in seconds since 1970.
    at: u64,
    /// Bytes of its objects, of all ranks.
    bytes: u64,
    /// Of these, bytes that were written: the checkpoint before had the others.
    written_bytes: u64,
    /// Seconds from its beginning until it was complete.
    took_s: f64,
}

impl CheckpointsInfo {
    fn of(writes: &[CheckpointWritten]) -> Self {
        let last = &writes[writes.len().saturating_sub(MOST_CHECKPOINTS)..];
        let info = |it: &CheckpointWritten| CheckpointInfo {
            step: it.step,
            at: it.at,
            bytes: it.bytes,
            written_bytes: it.written_bytes,
            took_s: it.millis as f64 / 1000.0,
        };
        Self { count: writes.len(), last: last.iter().map(info).collect() }
    }
}

impl RecordInfo {
    fn of(id: RecordId, record: Record, store: &str, losses: Vec<u64>) -> Self {
        let (global_batch_size, written) = (record.global_batch_size(), record.written());
        let (ending, reason) = match record.ending {
            Ending::Underway => ("underway", None),
            Ending::Trained => ("trained", None),
            Ending::Stopped => ("stopped", None),
            Ending::Failed { reason } => ("failed", Some(reason)),
        };
        let launch = |launch: Launch| {
            let Launch { first_step, world, started, until, device, memory_bytes, .. } = launch;
            LaunchInfo { first_step, world, started, until, device, memory_bytes }
        };
        Self {
            id,
            dataset: record.data.dataset,
            version: record.data.version,
            plan: record.data.plan,
            store: store.to_owned(),
            virtual_ranks: record.virtual_ranks,
            global_batch_size,
            first: record.steps.first,
            end: record.steps.end,
            of: record.steps.of,
            ending,
            reason,
            written,
            is_exact: record.is_exact,
            weights: record.weights,
            launches: record.launches.into_iter().map(launch).collect(),
            checkpoints: CheckpointsInfo::of(&record.checkpoint_writes),
            losses: SavedLossesInfo::of(losses),
            settings: record.settings,
        }
    }
}

/// The records of a run in the store, the newest first
///
/// They outlive the run: `shardtrain --record` writes one while it trains.
#[utoipa::path(get, path = "/v1/runs/{id}/records", tag = "runs", operation_id = "list_records",
    params(("id" = RunId, Path, description = "The run")),
    responses((status = 200, description = "Its records, at most 50", body = Vec<RecordInfo>)))]
pub(super) async fn list(state: State, seen: Datasets, Seen(run): Seen) -> Answer {
    let _one_of_few = look(&state).await?;
    let records = records(&state);
    let mut found = Vec::new();
    for listed in records.list(Some(&run)).await? {
        found.push((listed.id, records.read(&listed).await?));
    }
    found.retain(|(_, record)| may_see(&seen, record));
    found.sort_by_key(|(id, record)| Reverse((record.written(), *id)));
    found.truncate(MOST_RECORDS);
    let shown: Vec<&Record> = found.iter().map(|(_, record)| record).collect();
    let (store, saved) = (store_name(&records), records.steps_with_losses(&run, &shown).await?);
    let shown = found.into_iter().zip(saved);
    let shown = shown.map(|((id, record), losses)| RecordInfo::of(id, record, &store, losses));
    json(&shown.collect::<Vec<_>>())
}

/// Which steps of a record are wanted.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedSteps {
    /// The first step; that of the record without it.
    #[param(nullable = false)]
    from: Option<u64>,
    /// The step after the last one; that of the record without it.
    #[param(nullable = false)]
    to: Option<u64>,
    /// Points, 240 by default.
    #[param(minimum = 1, maximum = 2000, nullable = false)]
    points: Option<usize>,
}

/// How a training went: loss, learning rate and gradient norm in a number of points
#[utoipa::path(get, path = "/v1/runs/{id}/records/{record}/steps", tag = "runs", operation_id = "course",
    params(("id" = RunId, Path, description = "The run"),
        ("record" = schema::Digest, Path, description = "The record"), WantedSteps),
    responses((status = 200, description = "The course", body = Course), (status = 404)))]
pub(super) async fn course(
    state: State,
    seen: Datasets,
    PathPair(run, id): PathPair<RunId, RecordId>,
    ValidQuery(wanted): ValidQuery<WantedSteps>,
) -> Answer {
    let points = within("points", wanted.points.unwrap_or(POINTS), MOST_POINTS)?;
    let _one_of_few = look(&state).await?;
    let records = records(&state);
    let record = read(&records, &seen, run, id).await?;
    let (first, end) = (record.steps.first, record.steps.end);
    let steps = wanted.from.unwrap_or(first).max(first)..wanted.to.unwrap_or(end).min(end);
    json(&records.course(&record, steps, points).await?)
}

/// A step of a training: its loss by virtual rank, and which positions of the epoch it read
///
/// `/v1/plans/{id}/at` names the samples at these positions.
#[utoipa::path(get, path = "/v1/runs/{id}/records/{record}/steps/{step}", tag = "runs", operation_id = "explain_step",
    params(("id" = RunId, Path, description = "The run"),
        ("record" = schema::Digest, Path, description = "The record"),
        ("step" = u64, Path, description = "The step, counted from the beginning of the training")),
    responses((status = 200, description = "The step", body = StepExplained), (status = 404), (status = 422)))]
pub(super) async fn step(
    state: State,
    seen: Datasets,
    PathTriple(run, id, step): PathTriple<RunId, RecordId, u64>,
) -> Answer {
    let _one_of_few = look(&state).await?;
    let records = records(&state);
    let record = read(&records, &seen, run, id).await?;
    let Some(row) = records.step(&record, step).await? else { return Err(no_step(&record, step)) };
    let explained = record.explained(&row);
    json(&explained.ok_or_else(|| invalid("the record does not have the size of a step"))?)
}

fn no_step(record: &Record, step: u64) -> Refusal {
    let (first, end) = (record.steps.first, record.steps.end);
    not_found(format!("the record has no step {step}, but {first} to {}", end.saturating_sub(1)))
}

fn records(state: &State) -> Records {
    Records::new(state.api.catalog.origin().clone())
}

/// The store of these records, as `--record` names it.
fn store_name(records: &Records) -> String {
    absolute(records.store())
}

/// A directory or bucket by a name that holds in every working directory.
fn absolute(name: &str) -> String {
    let path = (!name.contains("://")).then(|| std::path::absolute(name).ok()).flatten();
    path.map_or_else(|| name.to_owned(), |path| path.display().to_string())
}

async fn read(records: &Records, seen: &Datasets, run: RunId, id: RecordId) -> Result<Record, Refusal> {
    let listed = Listed { run, id };
    match records.read(&listed).await {
        Ok(record) if may_see(seen, &record) => Ok(record),
        Ok(_) | Err(RecordError::Store(OriginError::NotFound { .. })) => {
            Err(not_found(format!("run {} has no record {id}", listed.run)))
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether a record is of a dataset that the client may see. It outlives the run, so it says itself of which.
fn may_see(seen: &Datasets, record: &Record) -> bool {
    let dataset = || record.data.dataset.as_deref()?.parse().ok();
    seen.0.is_all() || dataset().is_some_and(|dataset| seen.0.holds(&dataset))
}

impl From<RecordError> for Refusal {
    fn from(error: RecordError) -> Refusal {
        let kind = match &error {
            RecordError::NoSuch { .. } | RecordError::Ambiguous { .. } => Kind::NotFound,
            RecordError::Store(error) => Kind::from(error),
            RecordError::Unfit { .. } => Kind::Invalid,
            RecordError::Damaged { .. } | RecordError::TooNew { .. } => Kind::Corrupt,
        };
        Refusal::of(kind, chain(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_the_store_from_every_directory() {
        assert_eq!(absolute("s3://bucket/folder"), "s3://bucket/folder");
        assert_eq!(absolute("/data/store"), "/data/store");
        let named = absolute("./node/store");
        assert!(
            named.starts_with('/') && named.ends_with("/node/store") && !named.contains("/./"),
            "{named}"
        );
    }
}
