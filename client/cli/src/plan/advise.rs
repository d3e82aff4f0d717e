//! `shardctl plan advise`: how to keep the accuracy of a global shuffle, and what each way costs.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use shardd_client::label_skew::{Origins, OriginsBy};
use shardd_plan::{InitialPlacement, Plan, PlanOptions, Selection, Shape, divisors};
use shardd_store::catalog::Catalog;
use shardd_store::connect::only_dataset;
use shardfmt::{ByteSize, DatasetRef, ManifestFile};

use super::PlanArg;
use crate::failure::Failure;
use crate::human::{count, duration, percent, plural};
use crate::output;
use crate::partition::{MICRO_BATCH, SelectionArg, make_plan, origins};
use crate::recommend_q::{Advice, Choice, Question, advise, mean_skew};
use crate::simulate::Pace;
use crate::table::{Table, facts};
use shardd_simulation::LinkRate;
use shardd_simulation::hiding::MEASURED_STEPS;

/// Arguments of `plan advise`.
#[derive(Args)]
pub(super) struct Advise {
    /// The dataset, or a version of it such as NAME@TAG, to be planned again; may be left out if there is
    /// only one
    #[arg(value_name = "NAME[@VERSION]", conflicts_with = "plan")]
    dataset: Option<DatasetRef>,

    #[command(flatten)]
    plan: PlanArg,

    /// Number of partitions of the future plan [default: as `partition`]
    #[arg(long, conflicts_with = "plan")]
    partitions: Option<u32>,

    /// How the future plan selects the exchanged grains
    #[arg(long, value_enum, default_value = "cyclic", conflicts_with = "plan")]
    selection: SelectionArg,

    /// Epochs of the training
    #[arg(long)]
    epochs: u32,

    /// Virtual ranks of the training [default: one for each partition, the worst case]
    #[arg(long, value_name = "COUNT")]
    virtual_ranks: Option<u32>,

    /// Allowed distance of a virtual rank's labels from those of all, above that of chance and in the mean over
    /// the epochs: from 0 to 1
    #[arg(long, value_name = "DISTANCE", default_value_t = 0.25)]
    skew: f64,

    /// Nodes that share the partitions [default: one for each]
    #[arg(long)]
    nodes: Option<u32>,

    #[command(flatten)]
    pace: Pace,
}

impl Advise {
    pub(super) fn run(self, catalog: &dyn Catalog, json: bool) -> Result<(), Failure> {
        let (plan, manifest) = self.open(catalog)?;
        let origins = match origins(&manifest)? {
            Some(origins) => origins,
            None => Origins::shards(manifest.shard_rows()?),
        };
        let document = plan.document();
        let virtual_ranks = self.virtual_ranks.unwrap_or(document.partitions);
        plan.check_ranks(1, virtual_ranks).map_err(|error| Failure::usage(error.to_string()))?;
        let nodes = self.nodes.unwrap_or(document.partitions);
        let advice = advise(&Question {
            spread: origins.spread(&plan, virtual_ranks, MICRO_BATCH),
            selection: document.selection,
            epochs: self.epochs,
            skew: self.skew,
            row_bytes: manifest.totals().row_bytes,
            nodes,
            link: self.pace.link,
            round_trip: self.pace.round_trip(),
            chunks: document.chunks,
            steps: match self.pace.batch_of(nodes) {
                0 => 0,
                batch => plan.sample_count().div_ceil(batch),
            },
            step: self.pace.step(),
        });
        let advice = advice.map_err(Failure::wrong)?;
        let assumptions = assumptions(&plan, &advice, &origins, self.nodes);
        let most_virtual_ranks = self.most_virtual_ranks(&plan, &origins);
        match json {
            true => {
                let partitions = document.partitions;
                output::json(&json!({
                    "partitions": partitions,
                    "advice": advice,
                    "most_virtual_ranks": most_virtual_ranks,
                    "assumptions": assumptions,
                }));
            }
            false => {
                let shards = manifest.totals().shards;
                output::print(&describe(&plan, &advice, &assumptions, self.pace.link));
                output::print(&ways_without_exchange(&plan, &advice, most_virtual_ranks, shards));
            }
        }
        Ok(())
    }

    /// The largest number of virtual ranks with which the plan's own schedule is enough.
    fn most_virtual_ranks(&self, plan: &Plan, origins: &Origins) -> Option<u32> {
        let document = plan.document();
        let mean_skew = |virtual_ranks| {
            let spread = origins.spread(plan, virtual_ranks, MICRO_BATCH);
            mean_skew(&spread, &document.schedule, document.selection, self.epochs)
        };
        divisors(document.partitions).rfind(|virtual_ranks| mean_skew(*virtual_ranks) <= self.skew)
    }

    /// The plan that is asked about, or that there would be.
    fn open(&self, catalog: &dyn Catalog) -> Result<(Plan, ManifestFile), Failure> {
        if self.plan.is_given() {
            return self.plan.open(catalog);
        }
        let command = format!("plan advise --epochs {}", self.epochs);
        let dataset = only_dataset(catalog, self.dataset.as_ref(), &command)?;
        let manifest = catalog.open_manifest(dataset.version)?;
        let shape = Shape { shard_rows: manifest.shard_rows()?, row_bytes: manifest.totals().row_bytes };
        let options = PlanOptions {
            partitions: self.partitions,
            selection: self.selection.into(),
            ..PlanOptions::default()
        };
        Ok((make_plan(dataset.version, &shape, options)?, manifest))
    }
}

fn assumptions(plan: &Plan, advice: &Advice, origins: &Origins, nodes: Option<u32>) -> Vec<String> {
    let document = plan.document();
    let kinds = match advice.spread.by {
        OriginsBy::Label if origins.is_sorted() => {
            "labels are sorted within a shard, as the rows are in the order of the input"
        }
        OriginsBy::Label => "labels are mixed evenly within a shard",
        OriginsBy::Shard => "samples have no labels that the manifest counts, so shards stand for them",
    };
    let selection = match document.selection {
        Selection::Cyclic => "every sample is exchanged in turn (cyclic)",
        Selection::Independent => "the exchanged grains are drawn again each time (independent)",
    };
    let among = match nodes {
        Some(nodes) => format!("{nodes} nodes"),
        None => format!("a node for each of {} partitions", document.partitions),
    };
    let [kinds, selection] = [kinds, selection].map(str::to_owned);
    let virtual_ranks = advice.spread.virtual_ranks;
    vec![kinds, selection, format!("{virtual_ranks} virtual ranks; grains move between {among}")]
}

fn describe(plan: &Plan, advice: &Advice, assumptions: &[String], link: LinkRate) -> String {
    let spread = &advice.spread;
    let what = match spread.by {
        OriginsBy::Label => "labels",
        OriginsBy::Shard => "shards",
    };
    let mut lines = vec![
        ("partitions", format!("{}, of {} kinds of {what}", plan.document().partitions, spread.kinds)),
        (
            "skew",
            format!("{:.3} in epoch 0; samples drawn at random have {:.3}", spread.distance, spread.floor),
        ),
        ("wanted", format!("at most {} above that, in the mean over {} epochs", advice.skew, advice.epochs)),
    ];
    lines.extend(
        assumptions.iter().enumerate().map(|(at, one)| (if at == 0 { "assumed" } else { "" }, one.clone())),
    );
    let mut table =
        Table::new(&["--q", "mean skew", "first exchange", "last", "over the run", "longest exchange"]);
    let size = |bytes: u64| ByteSize(bytes).to_string();
    for choice in [Some(&advice.constant), advice.two_parts.as_ref()].into_iter().flatten() {
        let Choice { q, mean_skew, is_enough, bytes_first, bytes_last, bytes, seconds_at_most, .. } = choice;
        let enough = if *is_enough { "" } else { ", not enough" };
        let longest = Duration::try_from_secs_f64(*seconds_at_most).unwrap_or(Duration::MAX);
        table.row([
            q.clone(),
            format!("{mean_skew:.3}{enough}"),
            size(*bytes_first),
            size(*bytes_last),
            size(*bytes),
            duration(longest),
        ]);
    }
    let hiding = hiding(advice, link);
    let saved = advice.two_parts.as_ref().filter(|two| two.bytes < advice.constant.bytes).map(|two| {
        let part = percent(1.0 - two.bytes as f64 / advice.constant.bytes.max(1) as f64);
        format!("one large exchange and then little moves {part} less: `shardctl partition --q {}`\n", two.q)
    });
    format!("{}\n{}{}{hiding}", facts(&lines), table.render(), saved.unwrap_or_default())
}

/// Whether the exchanges hide behind the steps of training, and the largest one that does.
fn hiding(advice: &Advice, link: LinkRate) -> String {
    let time = |seconds| duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
    let steps = plural(advice.steps_per_epoch, "step");
    let mut lines = String::new();
    let choices = [Some(&advice.constant), advice.two_parts.as_ref()].into_iter().flatten();
    for choice in choices.filter(|choice| choice.bytes > 0) {
        let Choice { q, hiding_step_seconds, hidden_share, exposed_seconds, .. } = choice;
        let hides = match (hidden_share, exposed_seconds) {
            (Some(share), Some(exposed)) if *exposed > 0.0 => {
                format!(
                    "{} of the largest exchange hides, and training waits {} for it",
                    percent(*share),
                    time(*exposed)
                )
            }
            (Some(_), _) => "every exchange hides behind training".to_owned(),
            _ => "--step-ms shows whether the exchange hides".to_owned(),
        };
        let least = time(*hiding_step_seconds);
        lines += &format!("--q {q} at {link}: {hides}; {steps} of {least} or more hide it\n");
    }
    if let Some(largest) = &advice.largest_hidden_q {
        let measured = match &advice.largest_measured_q {
            Some(measured) => format!("--q {measured} by measurements"),
            None => format!("unknown by measurements, as epochs have fewer than {MEASURED_STEPS} steps"),
        };
        lines += &format!("the largest share that hides: {measured}, --q {largest} by the closed form\n");
    }
    lines
}

/// The ways that move no more than the plan does, each with its price. They matter where a network normalises by the
/// micro-batch of a virtual rank.
fn ways_without_exchange(
    plan: &Plan,
    advice: &Advice,
    most_virtual_ranks: Option<u32>,
    shards: u64,
) -> String {
    let document = plan.document();
    if document.placement == InitialPlacement::Random || document.strata.is_some() {
        return String::new();
    }
    let mut table = Table::new(&["without more exchange", "price"]);
    let few = most_virtual_ranks.filter(|few| *few < advice.spread.virtual_ranks);
    if let Some(few) = few {
        let way = format!("at most {} with --q {}", plural(few.into(), "virtual rank"), document.schedule);
        table.row([way, format!("a step has at most {few} micro-batches")]);
    }
    if advice.spread.by == OriginsBy::Label {
        table.row(["--stratify label".to_owned(), "samples move one by one".to_owned()]);
    }
    let parts = u64::from(document.partitions) * shards;
    let price = format!("a cold cache reads up to {} ranges of {}", count(parts), plural(shards, "shard"));
    table.row(["--placement random".to_owned(), price]);
    table.row([
        "shardtrain --norm sync".to_owned(),
        "virtual ranks exchange statistics in each step".to_owned(),
    ]);
    format!("\n{}", table.render())
}
