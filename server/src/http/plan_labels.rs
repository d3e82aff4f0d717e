//! The labels of a plan's partitions in an epoch, beside those of the version: where they are uneven, and how far exchanges have
//! evened them.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};
use shardd_api::protocol::MAX_EPOCH;
use shardd_api::schema;
use shardd_client::label_skew::{Origins, PartitionKinds, hops};
use shardd_plan::{Epoch, Partition, Plan};
use shardfmt::manifest::Labels;
use shardfmt::{ManifestFile, PlanId, VersionId};
use utoipa::{IntoParams, ToSchema};

use super::problem::invalid;
use super::{Answer, LOOKUPS, PathParam, State, ValidQuery, json, place, short, within};

/// The default number of partitions in an answer, and the most.
const PARTITIONS: u32 = 64;
const MOST_PARTITIONS: u32 = 256;
/// The default number of labels in an answer, and the most.
const LABELS: usize = 16;
const MOST_LABELS: usize = 64;
/// Steps in which grains are followed back to the first epoch: a second.
const MOST_WORK: u64 = 1 << 21;
/// Of a partition at least this number of grains is looked at, or all.
const FEWEST_LOOKS: u64 = 64;
/// Counts of labels that all shards and partitions together may have.
const MOST_COUNTS: u64 = 1 << 22;
/// The longest label, in characters.
const LONGEST: usize = 200;

/// Which labels are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedLabels {
    /// The epoch, from 0.
    #[serde(default)]
    #[param(default = 0, required = false)]
    epoch: u32,
    /// The first partition.
    #[serde(default)]
    #[param(default = 0, required = false)]
    first: u32,
    /// Partitions from there on, 64 by default.
    #[param(minimum = 1, maximum = 256, nullable = false)]
    partitions: Option<u32>,
    /// Labels, those with the most samples; 16 by default. The others are added up.
    #[param(minimum = 1, maximum = 64, nullable = false)]
    labels: Option<usize>,
}

/// The labels of partitions in an epoch.
#[derive(Serialize, ToSchema)]
struct PlanLabels {
    /// The version that the plan orders.
    #[schema(value_type = schema::Digest)]
    version: VersionId,
    /// The epoch.
    epoch: u32,
    /// Partitions of the plan.
    partitions: u32,
    /// The labels with the most samples in the version.
    labels: Vec<LabelOfVersion>,
    /// The labels of the version beyond these.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    others: Option<OtherLabels>,
    /// The partitions asked for.
    rows: Vec<PartitionLabels>,
    /// Whether all numbers are counts. Else those of some partitions are estimates: their grains are parts of shards with several
    /// labels, and the labels of a grain are taken to be those of its shard, in the mean.
    is_exact: bool,
    /// Whether the rows of the version are in the order of its input: then the labels of a grain may be less even than an estimate.
    is_in_input_order: bool,
    /// The mean of the distances of these partitions.
    mean_distance: f64,
    /// The mean distance of partitions of this size whose grains, of one label each, were drawn at random. An estimate may be below it:
    /// it leaves out which samples of its shard a grain has by chance.
    floor: f64,
}

/// A label of the version.
#[derive(Serialize, ToSchema)]
struct LabelOfVersion {
    /// The label.
    label: String,
    /// The name of its class.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    class: Option<String>,
    /// Samples of the version that have it.
    samples: u64,
    /// Their part of all samples with a label.
    share: f64,
}

/// The labels that are not listed, together.
#[derive(Serialize, ToSchema)]
struct OtherLabels {
    /// How many labels these are.
    labels: usize,
    /// Samples of the version that have one of them.
    samples: u64,
    /// Their part of all samples with a label.
    share: f64,
}

/// The labels of a partition.
#[derive(Serialize, ToSchema)]
struct PartitionLabels {
    /// The partition.
    partition: u32,
    /// All its samples.
    samples: u64,
    /// Its samples of each listed label.
    counts: Vec<u64>,
    /// Its samples of all other labels.
    others: u64,
    /// Whether these are counts, not estimates.
    is_exact: bool,
    /// Half the sum of the differences between the shares of all labels here and in the version: 0 if they are the same, nearly 1 if the
    /// partition has a label of its own.
    distance: f64,
}

/// How often each label is in each partition of a plan in an epoch, beside its share of the version
///
/// From the counts of labels by shard in the manifest, without reading a sample. A number is a count where the shards of a partition lie in it
/// whole, as most do in epoch 0 of a plan that places grains by shards, or have one label. Else it is an estimate, and the answer says so:
/// the labels of a grain are taken to be those of its shard, in the mean.
#[utoipa::path(get, path = "/v1/plans/{id}/labels", tag = "plans", operation_id = "labels_of_plan",
    params(("id" = schema::Digest, Path, description = "The plan"), WantedLabels),
    responses((status = 200, description = "The labels", body = PlanLabels), (status = 404), (status = 422), (status = 429)))]
pub(super) async fn labels(
    state: State,
    PathParam(id): PathParam<PlanId>,
    ValidQuery(wanted): ValidQuery<WantedLabels>,
) -> Answer {
    let WantedLabels { epoch, first, .. } = wanted;
    let partitions = within("partitions", wanted.partitions.unwrap_or(PARTITIONS), MOST_PARTITIONS)?;
    let most = within("labels", wanted.labels.unwrap_or(LABELS), MOST_LABELS)?;
    let one_of_few = place(&state.lookups, "lookups", LOOKUPS)?;
    let document = state.api.catalog.plan(id).await?;
    let version = document.version;
    // The thread has the place: it works on, should the client be gone.
    let asked = move |manifest: ManifestFile| {
        let _one_of_few = one_of_few;
        let plan = match Plan::new(document, &manifest.shard_rows()?) {
            Ok(plan) => plan,
            Err(error) => return Ok(Err(invalid(error))),
        };
        let all = plan.document().partitions;
        if first >= all {
            return Ok(Err(invalid(format!("first: {first} is not one of the {all} partitions, from 0"))));
        }
        let range = first..all.min(first.saturating_add(partitions));
        let shards = manifest.totals().shards;
        let known = match countable(manifest.labels()?, shards + u64::from(partitions)) {
            Ok(known) => known,
            Err(why) => return Ok(Err(invalid(format!("version {version} {why}")))),
        };
        let entries = manifest.entries(0..shards)?;
        let Some(origins) = Origins::labels(entries.iter().map(|entry| (entry.rows, entry.labels.as_ref())))
        else {
            return Ok(Err(invalid(format!("version {version} {NONE_COUNTED}"))));
        };
        let looks = MOST_WORK / hops(&plan, Epoch(epoch)) / u64::from(range.end - range.start);
        if epoch > MAX_EPOCH || looks < FEWEST_LOOKS {
            return Ok(Err(invalid(format!(
                "epoch: it takes too long to follow grains of {} partitions to epoch {epoch}; ask for fewer partitions, or an earlier epoch",
                range.end - range.start
            ))));
        }
        let in_partition = |at| origins.in_partition(&plan, Epoch(epoch), Partition(at), looks);
        let found = range.map(|at| (at, in_partition(at))).collect();
        let labelled: u64 = known.values().sum();
        let of = Labelled { plan: &plan, manifest: &manifest, origins: &origins, labelled: labelled as f64 };
        Ok(Ok(PlanLabels::of(&of, epoch, most, found)))
    };
    json(&state.api.catalog.origin().ask_manifest(version, asked).await??)
}

/// Why a version without counts has no labels here.
const NONE_COUNTED: &str =
    "has no labels, or too many different ones to count: ingest its data with classes in the column `label`";

/// The labels of a version, if shards and partitions, `holders` together, may have a count of each.
pub(super) fn countable(known: Option<Labels>, holders: u64) -> Result<Labels, String> {
    let Some(known) = known.filter(|known| !known.is_empty()) else { return Err(NONE_COUNTED.to_owned()) };
    let labels = known.len() as u64;
    match holders.saturating_mul(labels) <= MOST_COUNTS {
        true => Ok(known),
        false => Err(format!(
            "has {labels} labels, too many to count in {holders} shards and partitions: ask for fewer partitions, or make larger \
             shards with `shardctl reshard`"
        )),
    }
}

/// A plan and the labels of its version.
struct Labelled<'a> {
    plan: &'a Plan,
    manifest: &'a ManifestFile,
    origins: &'a Origins,
    /// Samples that have a label.
    labelled: f64,
}

impl PlanLabels {
    fn of(version: &Labelled<'_>, epoch: u32, most: usize, found: Vec<(u32, PartitionKinds)>) -> Self {
        let Labelled { plan, manifest, origins, labelled } = version;
        let (names, shares) = (origins.names(), origins.shares_of_all());
        let classes = manifest.class_names().unwrap_or_default();
        let samples = |share: f64| (share * labelled).round() as u64;
        // Those with the most samples; of equal ones the first by its text.
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_by_key(|kind| (Reverse(samples(shares[*kind])), names[*kind].clone()));
        let (listed, rest) = order.split_at(most.min(order.len()));
        let label = |kind: &usize| {
            let (label, share) = (&names[*kind], shares[*kind]);
            let class = label.parse::<usize>().ok().and_then(|number| classes.get(number));
            LabelOfVersion {
                label: short(label, LONGEST),
                class: class.map(|class| short(class, LONGEST)),
                samples: samples(share),
                share,
            }
        };
        let others = (!rest.is_empty()).then(|| {
            let share = rest.iter().map(|kind| shares[*kind]).sum();
            OtherLabels { labels: rest.len(), samples: samples(share), share }
        });
        let rows: Vec<PartitionLabels> = found
            .into_iter()
            .map(|(partition, PartitionKinds { samples, counts, is_exact, distance })| PartitionLabels {
                partition,
                samples,
                counts: listed.iter().map(|kind| counts[*kind].round() as u64).collect(),
                others: rest.iter().map(|kind| counts[*kind]).sum::<f64>().round() as u64,
                is_exact,
                distance,
            })
            .collect();
        Self {
            version: plan.document().version,
            epoch,
            partitions: plan.document().partitions,
            labels: listed.iter().map(label).collect(),
            others,
            is_exact: rows.iter().all(|row| row.is_exact),
            is_in_input_order: manifest.config()["mix"] == "sequential",
            mean_distance: rows.iter().map(|row| row.distance).sum::<f64>() / rows.len().max(1) as f64,
            floor: origins.distance_of_drawn(plan),
            rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_a_bound_also_where_the_labels_are_not_known() {
        let of = |labels: u64| -> Option<Labels> {
            Some((0..labels).map(|label| (label.to_string().into(), 1)).collect())
        };
        for unknown in [None, of(0)] {
            let why = countable(unknown, 1).expect_err("nothing to count");
            assert!(
                why.contains("too many different ones to count")
                    && why.contains("ingest its data with classes"),
                "{why}"
            );
        }
        assert_eq!(countable(of(1024), MOST_COUNTS / 1024), Ok(of(1024).expect("labels")));
        let why = countable(of(1024), MOST_COUNTS / 1024 + 1).expect_err("too many");
        assert!(why.contains("has 1024 labels") && why.contains("shardctl reshard"), "{why}");
    }
}
