//! The losses of the samples of a step, if `shardtrain rerun --save` saved them beside the record.

use serde::{Deserialize, Serialize};
use shardd_api::protocol::RunId;
use shardd_api::schema;
use shardd_api::shell::word;
use shardd_store::record::{RecordId, SampleLoss, largest_first};
use utoipa::{IntoParams, ToSchema};

use super::super::access::Datasets;
use super::super::problem::not_found;
use super::super::{Answer, PathTriple, State, ValidQuery, json, look, within};
use super::{no_step, read, records, store_name};

/// The default number of samples, and the most.
const SAMPLES: usize = 100;
const MOST_SAMPLES: usize = 10_000;

/// The losses of the samples of a step.
#[derive(Serialize, ToSchema)]
struct StepLosses {
    /// The step, counted from the beginning of the training.
    step: u64,
    /// How many samples of the step have a loss.
    samples: usize,
    /// The mean loss of their answers; none if it is infinite or NaN.
    mean: Option<f64>,
    /// Those with the largest loss, the largest first.
    largest: Vec<SampleLossInfo>,
}

/// The loss of a sample in a step: after augmentation, and by the weights before the step.
#[derive(Serialize, ToSchema)]
struct SampleLossInfo {
    /// Its number in the order of the dataset.
    sample: u64,
    /// Its position in the epoch.
    position: u64,
    /// The virtual rank that read it.
    virtual_rank: u32,
    /// The mean loss of its answers; none if it is infinite or NaN.
    loss: Option<f64>,
    /// One; of sequences, tokens that have a next one in their document.
    answers: u64,
}

impl StepLosses {
    fn of(step: u64, mut losses: Vec<SampleLoss>, most: usize) -> StepLosses {
        let answers: u64 = losses.iter().map(|it| it.answers).sum();
        let sum: f64 = losses.iter().map(|it| it.loss * it.answers as f64).sum();
        losses.sort_by(largest_first);
        let samples = losses.len();
        losses.truncate(most);
        let largest = losses.into_iter().map(|it| SampleLossInfo {
            sample: it.sample,
            position: it.position,
            virtual_rank: it.virtual_rank,
            loss: finite(it.loss),
            answers: it.answers,
        });
        StepLosses { step, samples, mean: finite(sum / answers.max(1) as f64), largest: largest.collect() }
    }
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// How many samples are wanted.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WantedLosses {
    /// Samples, 100 by default.
    #[param(minimum = 1, maximum = 10000, nullable = false)]
    limit: Option<usize>,
}

/// The losses of the samples of a step, the largest first
///
/// `shardtrain rerun --sample-losses STEP --save` trains up to the step and saves them; without them the answer is 404, with this command.
#[utoipa::path(get, path = "/v1/runs/{id}/records/{record}/steps/{step}/losses", tag = "runs", operation_id = "step_losses",
    params(("id" = RunId, Path, description = "The run"),
        ("record" = schema::Digest, Path, description = "The record"),
        ("step" = u64, Path, description = "The step, counted from the beginning of the training"), WantedLosses),
    responses((status = 200, description = "The losses", body = StepLosses), (status = 404)))]
pub(crate) async fn show(
    state: State,
    seen: Datasets,
    PathTriple(run, id, step): PathTriple<RunId, RecordId, u64>,
    ValidQuery(wanted): ValidQuery<WantedLosses>,
) -> Answer {
    let most = within("limit", wanted.limit.unwrap_or(SAMPLES), MOST_SAMPLES)?;
    let _one_of_few = look(&state).await?;
    let records = records(&state);
    let record = read(&records, &seen, run, id).await?;
    let Some(row) = records.step(&record, step).await? else { return Err(no_step(&record, step)) };
    match records.losses(&record, &row).await? {
        Some(losses) => json(&StepLosses::of(step, losses, most)),
        None => {
            let (id, store, node) = (id.short(), word(&store_name(&records)), word(&state.api.node.http));
            Err(not_found(format!(
                "the losses of step {step} are not saved; save them with \
                 `shardtrain rerun {id} --sample-losses {step} --save --record {store} --server {node}`"
            )))
        }
    }
}
