//! The content that a training read, as `shardctl runs summary --json` prints it for one record, without its first epochs if there are many.

use serde::Serialize;
use shardd_api::protocol::RunId;
use shardd_api::schema;
use shardd_store::record::RecordId;
use shardd_store::training_data::{Training, Version, base};
use shardfmt::VersionId;
use utoipa::ToSchema;

use super::super::access::Datasets;
use super::super::client::Client;
use super::super::contents::first_sample;
use super::super::problem::invalid;
use super::super::{Answer, PathPair, State, json, look};
use super::{read, records};

/// The most epochs that are listed of a training.
const MOST_EPOCHS: usize = 100;
/// The most versions that are named of those that a version was derived from.
const MOST_BASES: usize = 100;

/// The content that a training read.
#[derive(Serialize, ToSchema)]
struct TrainingData {
    /// The training, with the samples that it read in each of its last epochs, at most 100.
    trainings: Vec<Training>,
    /// In how many epochs it read samples.
    epochs: usize,
    /// Samples that it read in all of these, a repeated one as often as it was read.
    samples_read: u64,
    /// The version that they are of, with how much of which media it read.
    versions: Vec<Version>,
}

/// The data that a training read: samples by epoch, their version, and how much of which media
///
/// `shardctl runs summary --json` prints the same, with all epochs. The formats of files are those of the first sample. Of the versions that the data
/// was derived from, the nearest 100 are named.
#[utoipa::path(get, path = "/v1/runs/{id}/records/{record}/summary", tag = "runs", operation_id = "training_data",
    params(("id" = RunId, Path, description = "The run"),
        ("record" = schema::Digest, Path, description = "The record")),
    responses((status = 200, description = "The data", body = TrainingData), (status = 404), (status = 422)))]
pub(crate) async fn show(
    state: State,
    seen: Datasets,
    client: Client,
    PathPair(run, id): PathPair<RunId, RecordId>,
) -> Answer {
    let training = {
        let _one_of_few = look(&state).await?;
        let record = read(&records(&state), &seen, run, id).await?;
        Training::of(id, &record).map_err(invalid)?
    };
    // It is one of few itself.
    let first = first_sample(&state, client, training.version).await?;
    let _one_of_few = look(&state).await?;
    let origin = state.api.catalog.origin();
    let (version, trainings) = (training.version, vec![training]);
    let provenance = origin.provenance(version).await?;
    let described = origin.ask_manifest(version, move |manifest| {
        let version = Version::of(&manifest, provenance.as_ref(), first.as_ref(), &trainings, Vec::new())?;
        Ok((trainings, version))
    });
    let (mut trainings, mut version) = described.await?;
    let samples_read = trainings.iter().map(Training::samples_read).sum();
    let epochs = trainings.iter().map(|training| training.epochs.len()).sum();
    for training in &mut trainings {
        training.epochs.drain(..training.epochs.len().saturating_sub(MOST_EPOCHS));
    }
    let mut next = base(&version.config);
    while let Some(base_id) = next.filter(|id| is_new(*id, &version.derived_from)) {
        version.derived_from.push(base_id);
        // One that is no longer in the store ends the list, as far as it is known.
        next = origin.ask_manifest(base_id, |manifest| Ok(base(manifest.config()))).await.ok().flatten();
    }
    json(&TrainingData { trainings, epochs, samples_read, versions: vec![version] })
}

fn is_new(id: VersionId, found: &[VersionId]) -> bool {
    found.len() < MOST_BASES && !found.contains(&id)
}
