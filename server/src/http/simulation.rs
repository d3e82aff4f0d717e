//! What a plan would cost, before it is made: the code of `shardctl simulate`, for a version that exists and a cluster that need not.

use std::num::NonZeroU32;
use std::time::Duration;

use rayon::ThreadPoolBuilder;
use serde::{Deserialize, Serialize};
use shardd_api::schema;
use shardd_client::label_skew::Origins;
use shardd_plan::{InitialPlacement, Plan, PlanDocument, PlanOptions, Selection, Shape};
use shardd_simulation::{Effort, MixingMatrix, Report, Scenario, simulate_within, unexchanged};
use shardfmt::manifest::ManifestError;
use shardfmt::{ManifestFile, VersionId};
use utoipa::{IntoParams, ToSchema};

use super::plan_labels::countable;
use super::problem::{Refusal, bad_request, invalid};
use super::{Answer, PathParam, State, ValidQuery, json, place, within};

/// The most nodes, epochs and partitions that are simulated here; `shardctl simulate` has no such limits.
const MOST_NODES: u32 = 4096;
const MOST_EPOCHS: u32 = 200;
const MOST_PARTITIONS: u32 = 1 << 16;
const MOST_ROUND_TRIP: u32 = 60_000;
/// Some seconds, and some megabytes.
const EFFORT: Effort =
    Effort { moves: 1 << 23, moves_of_epoch: 1 << 23, followed: 1 << 20, lookups: 1 << 21 };
/// The processors that it takes: the node has readers, too.
const THREADS: usize = 2;
/// Simulations at once.
pub(super) const SIMULATIONS: usize = 1;

/// A plan and a cluster that need not exist.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Imagined {
    /// The share exchanged after each epoch, or a schedule such as `1,0.1`; 0.1 by default.
    #[param(nullable = false)]
    q: Option<String>,
    /// Partitions; the default of a plan without it.
    #[param(minimum = 1, maximum = 65536, nullable = false)]
    partitions: Option<u32>,
    /// Rows of a grain, a power of two; the default of a plan without it.
    #[param(minimum = 1, nullable = false)]
    grain_rows: Option<u32>,
    /// Parts of an exchange; the default of a plan without it.
    #[param(minimum = 1, nullable = false)]
    chunks: Option<u32>,
    /// The seed, 0 by default.
    #[serde(default)]
    #[param(default = 0, required = false)]
    seed: u64,
    /// Which grains are exchanged: `cyclic`, the default, or `independent`.
    #[serde(default)]
    #[param(value_type = schema::Selection, inline)]
    selection: Selection,
    /// Where grains are in epoch 0: by `shards`, the default, or at `random`.
    #[serde(default)]
    #[param(value_type = schema::InitialPlacement, inline)]
    placement: InitialPlacement,
    /// Nodes, each with one rank; 4 by default.
    #[param(minimum = 1, maximum = 4096, nullable = false)]
    nodes: Option<u32>,
    /// Epochs, 10 by default.
    #[param(minimum = 1, maximum = 200, nullable = false)]
    epochs: Option<u32>,
    /// Bandwidth of a node, in each direction; `10Gbit/s` by default.
    #[param(nullable = false)]
    link: Option<String>,
    /// Milliseconds of a round trip between nodes.
    #[serde(default)]
    #[param(default = 0, maximum = 60_000, required = false)]
    round_trip_ms: u32,
    /// Milliseconds of a step, to show whether it hides the exchange.
    #[param(minimum = 1, nullable = false)]
    #[param(value_type = Option<u32>)]
    step_ms: Option<NonZeroU32>,
    /// Samples of a step; 32 for each node by default.
    #[param(minimum = 1, nullable = false)]
    global_batch_size: Option<u64>,
    /// The epoch whose mixing is given as a matrix.
    #[param(nullable = false)]
    matrix: Option<u32>,
}

/// What a plan would cost on a cluster, and how it would mix.
#[derive(Serialize, ToSchema)]
struct Simulation {
    /// Traffic, disks and time by epoch and node.
    report: Report,
    /// The mixing of the epoch that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    matrix: Option<MixingMatrix>,
    /// How far the labels of virtual ranks are from those of the version, if its shards say their labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    labels: Option<LabelSkew>,
}

/// How far the labels of virtual ranks are from those of the version.
#[derive(Serialize, ToSchema)]
struct LabelSkew {
    /// Labels of the version.
    kinds: usize,
    /// Half the sum of the differences between the shares of labels of a virtual rank and of the version, by epoch, in the mean:
    /// 0 if all are alike, nearly 1 if each has a label of its own.
    skew: Vec<f64>,
    /// The same for samples drawn at random: no exchange goes below it.
    floor: f64,
    /// Labels that a virtual rank begins with, in the mean.
    begins_with: f64,
    /// Labels to be expected in its first micro-batches...
    in_micro_batch: f64,
    /// ...and in as many samples of the version.
    in_micro_batch_of_all: f64,
}

/// What a plan would cost on a cluster: traffic, disks, time, mixing and labels by epoch
///
/// Plays a plan that is not stored, for nodes that need not exist, by the code of `shardctl simulate`. Of a plan with more than
/// 8 million moves, some epochs are estimated: the report says which. A plan with as many in one exchange is refused.
#[utoipa::path(get, path = "/v1/versions/{id}/simulation", tag = "plans", operation_id = "simulate",
    params(("id" = schema::Digest, Path, description = "The version"), Imagined),
    responses((status = 200, description = "The simulation", body = Simulation), (status = 404), (status = 422), (status = 429)))]
pub(super) async fn simulate(
    state: State,
    PathParam(id): PathParam<VersionId>,
    ValidQuery(imagined): ValidQuery<Imagined>,
) -> Answer {
    let scenario = imagined.scenario()?;
    let options = imagined.options()?;
    let the_only_one = place(&state.simulations, "simulation", SIMULATIONS)?;
    let origin = state.api.catalog.origin();
    // The thread has the place: it works on, should the client be gone.
    let asked = move |manifest: ManifestFile| {
        let _the_only_one = the_only_one;
        played(&manifest, options, &scenario, imagined.matrix)
    };
    json(&origin.ask_manifest(id, asked).await??)
}

impl Imagined {
    fn options(&self) -> Result<PlanOptions, Refusal> {
        let given = PlanOptions::default();
        let partitions = self.partitions.map(|number| within("partitions", number, MOST_PARTITIONS));
        Ok(PlanOptions {
            q: match &self.q {
                Some(text) => text.parse().map_err(|error| invalid(format!("q: {error}")))?,
                None => given.q.clone(),
            },
            seed: self.seed,
            partitions: partitions.transpose()?,
            grain_rows: self.grain_rows,
            chunks: self.chunks,
            selection: self.selection,
            placement: self.placement,
            ..given
        })
    }

    fn scenario(&self) -> Result<Scenario, Refusal> {
        let nodes = within("nodes", self.nodes.unwrap_or(4), MOST_NODES)?;
        let epochs = within("epochs", self.epochs.unwrap_or(10), MOST_EPOCHS)?;
        let link = self.link.as_deref().unwrap_or("10Gbit/s");
        let link = link.parse().map_err(|error| invalid(format!("link: {error}")))?;
        let usual = Scenario::healthy(nodes, epochs, link);
        if self.round_trip_ms > MOST_ROUND_TRIP {
            return Err(bad_request(format!("round_trip_ms: give at most {MOST_ROUND_TRIP}")));
        }
        if self.global_batch_size == Some(0) {
            return Err(bad_request("global_batch_size: a step needs at least 1 sample"));
        }
        Ok(Scenario {
            round_trip: Duration::from_millis(self.round_trip_ms.into()),
            step: self.step_ms.map(|ms| Duration::from_millis(u32::from(ms).into())),
            global_batch_size: self.global_batch_size.unwrap_or(usual.global_batch_size),
            ..usual
        })
    }
}

/// Takes seconds.
fn played(
    manifest: &ManifestFile,
    options: PlanOptions,
    scenario: &Scenario,
    matrix: Option<u32>,
) -> Result<Result<Simulation, Refusal>, ManifestError> {
    let shard_rows = manifest.shard_rows()?;
    let shape = Shape { shard_rows, row_bytes: manifest.totals().row_bytes };
    let wrong = |error: &dyn std::error::Error| invalid(error.to_string());
    let plan = PlanDocument::with_defaults(manifest.id(), &shape, options)
        .and_then(|document| Plan::new(document, &shape.shard_rows));
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => return Ok(Err(wrong(&error))),
    };
    let threads = ThreadPoolBuilder::new().num_threads(THREADS).build();
    let play = || simulate_within(EFFORT, &plan, shape.row_bytes, scenario, matrix, &|_, _| {});
    let simulated = match threads {
        Ok(threads) => threads.install(play),
        // The system gives no threads: it takes the ones there are.
        Err(_) => play(),
    };
    let (report, matrix) = match simulated {
        Ok(simulated) => simulated,
        Err(error) => return Ok(Err(wrong(&error))),
    };
    let labels = label_skew(manifest, &plan, &report)?;
    Ok(Ok(Simulation { report, matrix, labels }))
}

fn label_skew(
    manifest: &ManifestFile,
    plan: &Plan,
    report: &Report,
) -> Result<Option<LabelSkew>, ManifestError> {
    let shards = manifest.totals().shards;
    if countable(manifest.labels()?, shards.saturating_add(report.partitions.into())).is_err() {
        return Ok(None);
    }
    let entries = manifest.entries(0..shards)?;
    let labels = Origins::labels(entries.iter().map(|entry| (entry.rows, entry.labels.as_ref())));
    Ok(labels.map(|labels| {
        let micro_batch = (report.global_batch_size / u64::from(report.virtual_ranks.max(1))).max(1);
        let micro_batch = u32::try_from(micro_batch).unwrap_or(u32::MAX);
        let spread = labels.ordered_by(manifest.config()).spread(plan, report.virtual_ranks, micro_batch);
        let document = plan.document();
        let left = unexchanged(&document.schedule, document.selection).take(report.epochs.len());
        LabelSkew {
            kinds: spread.kinds,
            skew: left.map(|left| spread.floor + left * (spread.distance - spread.floor).max(0.0)).collect(),
            floor: spread.floor,
            begins_with: spread.begins_with,
            in_micro_batch: spread.in_micro_batch,
            in_micro_batch_of_all: spread.in_micro_batch_of_all,
        }
    }))
}
