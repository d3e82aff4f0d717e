//! `shardctl plan advise`: how much to exchange, for labels to be spread evenly early enough.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use shardd_client::label_skew::{Origins, OriginsBy};
use shardd_plan::{Plan, PlanOptions, Selection, Shape};
use shardd_store::catalog::Catalog;
use shardd_store::connect::only_dataset;
use shardfmt::{ByteSize, DatasetRef, ManifestFile};

use super::PlanArg;
use crate::failure::Failure;
use crate::human::{duration, percent};
use crate::output;
use crate::partition::{MICRO_BATCH, SelectionArg, make_plan, origins};
use crate::recommend_q::{Advice, Choice, Question, advise};
use crate::simulate_plan::LinkRate;
use crate::table::{Table, facts};

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

    /// Allowed distance of a partition's labels from those of all, above that of chance: from 0 to 1
    #[arg(long, value_name = "DISTANCE", default_value_t = 0.05)]
    skew: f64,

    /// The part of the epochs within which it must get below that
    #[arg(long, value_name = "PART", default_value_t = 0.25)]
    within: f64,

    /// Nodes that share the partitions [default: one for each]
    #[arg(long)]
    nodes: Option<u32>,

    /// Bandwidth of a node, in each direction
    #[arg(long, value_name = "RATE", default_value = "10Gbit/s")]
    link: LinkRate,
}

impl Advise {
    pub(super) fn run(self, catalog: &dyn Catalog, json: bool) -> Result<(), Failure> {
        let (plan, manifest) = self.open(catalog)?;
        let origins = match origins(&manifest)? {
            Some(origins) => origins,
            None => Origins::shards(manifest.shard_rows()?),
        };
        let document = plan.document();
        let advice = advise(&Question {
            spread: origins.spread(&plan, document.partitions, MICRO_BATCH),
            selection: document.selection,
            epochs: self.epochs,
            skew: self.skew,
            within: self.within,
            row_bytes: manifest.totals().row_bytes,
            nodes: self.nodes.unwrap_or(document.partitions),
            link: self.link,
        });
        let advice = advice.map_err(Failure::wrong)?;
        let assumptions = assumptions(&plan, &advice, self.nodes);
        match json {
            true => {
                let partitions = document.partitions;
                output::json(
                    &json!({ "partitions": partitions, "advice": advice, "assumptions": assumptions }),
                );
            }
            false => output::print(&describe(&plan, &advice, &assumptions)),
        }
        Ok(())
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

fn assumptions(plan: &Plan, advice: &Advice, nodes: Option<u32>) -> Vec<String> {
    let document = plan.document();
    let kinds = match advice.spread.by {
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
    vec![kinds, selection, format!("each partition is a virtual rank; grains move between {among}")]
}

fn describe(plan: &Plan, advice: &Advice, assumptions: &[String]) -> String {
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
        (
            "wanted",
            format!(
                "at most {} above that from epoch {} of {} on",
                advice.skew, advice.from_epoch, advice.epochs
            ),
        ),
    ];
    lines.extend(
        assumptions.iter().enumerate().map(|(at, one)| (if at == 0 { "assumed" } else { "" }, one.clone())),
    );
    let mut table =
        Table::new(&["--q", "skew then", "first exchange", "last", "over the run", "longest exchange"]);
    let size = |bytes: u64| ByteSize(bytes).to_string();
    for choice in [Some(&advice.constant), advice.two_parts.as_ref()].into_iter().flatten() {
        let Choice { q, skew_then, bytes_first, bytes_last, bytes, seconds_at_most } = choice;
        let longest = Duration::try_from_secs_f64(*seconds_at_most).unwrap_or(Duration::MAX);
        table.row([
            q.clone(),
            format!("{skew_then:.3}"),
            size(*bytes_first),
            size(*bytes_last),
            size(*bytes),
            duration(longest),
        ]);
    }
    let saved = advice.two_parts.as_ref().filter(|two| two.bytes < advice.constant.bytes).map(|two| {
        let part = percent(1.0 - two.bytes as f64 / advice.constant.bytes.max(1) as f64);
        format!("one large exchange and then little moves {part} less: `shardctl partition --q {}`\n", two.q)
    });
    format!("{}\n{}{}", facts(&lines), table.render(), saved.unwrap_or_default())
}
