//! `shardctl partition`: fixes the order of every epoch of a dataset in a plan, and says what that will cost, and whether
//! batch normalisation will suffer.

use std::str::FromStr;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::json;
use shardd_client::label_skew::{Origins, Spread};
use shardd_plan::{
    InitialPlacement, Order, Plan, PlanDocument, PlanOptions, Schedule, Selection, Shape, Share, Strata,
};
use shardd_store::catalog::Catalog;
use shardd_store::connect::{Connect, only_dataset};
use shardfmt::{ByteSize, DatasetName, DatasetRef, ManifestFile, VersionId};

use crate::failure::Failure;
use crate::human::{count, percent, plural};
use crate::progress::style;
use crate::table::facts;
use crate::{output, strata};

/// Samples of a micro-batch, where the number is not known yet.
pub(crate) const MICRO_BATCH: u32 = 32;
/// Shards whose labels are still looked at.
const MOST_SHARDS: u64 = 1 << 14;

/// Make a plan: the partitions of samples, and the share exchanged after each epoch
#[derive(Args)]
pub(crate) struct Partition {
    /// The dataset, or a version of it such as NAME@TAG or NAME@~1; may be left out if there is only one
    #[arg(value_name = "NAME[@VERSION]")]
    dataset: Option<DatasetRef>,

    #[command(flatten)]
    choices: PlanChoices,

    /// Keep as many samples of each label, or of each size, in every partition in all epochs: label, size or
    /// size:BUCKETS. Samples then move one by one. Reads the samples, unless each shard has but one label or
    /// size
    #[arg(long, value_name = "label|size[:BUCKETS]")]
    stratify: Option<Stratify>,

    /// Print the plan's id and nothing else
    #[arg(long)]
    id: bool,
}

/// The options of a plan.
#[derive(Args)]
pub(crate) struct PlanChoices {
    /// Share of each partition's samples exchanged after an epoch: 0 shuffles within partitions only, 1 exchanges
    /// all. That is a uniform permutation only with --chunks 1 --grain-rows 1 --placement random. A list such as
    /// 1,0.01 gives the share after each epoch; its last one holds on
    #[arg(long, value_name = "SHARE[,SHARE...]", allow_negative_numbers = true)]
    q: Schedule,

    /// Number of partitions, of which ranks get equal parts [default: 96, or the largest of 1, 2, 3, 4, 6, 8, 12, 16,
    /// 24, 32, 48 that leaves 100 samples each]
    #[arg(long)]
    partitions: Option<u32>,

    /// Samples that move together, a power of two [default: 16 KiB of them, fewer for small datasets]
    #[arg(long)]
    grain_rows: Option<u32>,

    /// Number of parts of an exchange during an epoch [default: 16, fewer for small datasets]
    #[arg(long)]
    chunks: Option<u32>,

    /// Seed of the plan
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Exchange every sample in turn, or choose again after each epoch
    #[arg(long, value_enum, default_value = "cyclic")]
    selection: SelectionArg,

    /// Where samples begin: neighbours together, so that cold caches read whole shards, or spread at random
    #[arg(long, value_enum, default_value = "shards")]
    placement: PlacementArg,

    /// Read a partition in blocks of this many grains, shuffled inside, for disks with slow random reads
    #[arg(long, value_name = "GRAINS")]
    block_slots: Option<u32>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum SelectionArg {
    Cyclic,
    Independent,
}

impl From<SelectionArg> for Selection {
    fn from(selection: SelectionArg) -> Self {
        match selection {
            SelectionArg::Cyclic => Selection::Cyclic,
            SelectionArg::Independent => Selection::Independent,
        }
    }
}

/// By what samples are stratified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stratify {
    Label,
    Size { buckets: u32 },
}

impl FromStr for Stratify {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let buckets = text.strip_prefix("size:").map(str::parse);
        match (text, buckets) {
            ("label", _) => Ok(Stratify::Label),
            ("size", _) => Ok(Stratify::Size { buckets: 8 }),
            (_, Some(Ok(buckets))) => Ok(Stratify::Size { buckets }),
            _ => Err("use label, size or size:BUCKETS, such as size:8"),
        }
    }
}

impl Stratify {
    fn strata(self, catalog: &dyn Catalog, manifest: &ManifestFile) -> Result<Strata, Failure> {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(style("reading {wide_bar} {human_pos}/{human_len} shards, {eta} left"));
        let progress = |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        };
        let strata = match self {
            Stratify::Label => strata::by_label(catalog, manifest, &progress),
            Stratify::Size { buckets } => strata::by_size(catalog, manifest, buckets, &progress),
        };
        bar.finish_and_clear();
        strata.map_err(Failure::wrong)
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum PlacementArg {
    Shards,
    Random,
}

impl Partition {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        let command = format!("partition --q {}", self.choices.q);
        let dataset = only_dataset(&*catalog, self.dataset.as_ref(), &command)?;
        let manifest = catalog.open_manifest(dataset.version)?;
        let shape = Shape { shard_rows: manifest.shard_rows()?, row_bytes: manifest.totals().row_bytes };
        let only_id = self.id;
        let strata = self.stratify.map(|by| by.strata(&*catalog, &manifest)).transpose()?.map(Arc::new);
        let plan = make_plan(dataset.version, &shape, PlanOptions { strata, ..self.choices.options() })?;
        catalog.put_plan(plan.document())?;
        if only_id && json {
            output::json(&json!({ "plan": plan.id() }));
        } else if only_id {
            output::print(&format!("{}\n", plan.id()));
        } else {
            let begins = origins(&manifest)?
                .map(|labels| labels.spread(&plan, plan.document().partitions, MICRO_BATCH));
            match json {
                true => output::json(&as_json(&dataset.name, shape.row_bytes, &plan, begins.as_ref())),
                false => output::print(&describe(&dataset.name, shape.row_bytes, &plan, begins.as_ref())),
            }
        }
        Ok(())
    }
}

impl PlanChoices {
    pub(crate) fn options(self) -> PlanOptions {
        PlanOptions {
            q: self.q,
            seed: self.seed,
            partitions: self.partitions,
            grain_rows: self.grain_rows,
            chunks: self.chunks,
            selection: self.selection.into(),
            placement: match self.placement {
                PlacementArg::Shards => InitialPlacement::Shards,
                PlacementArg::Random => InitialPlacement::Random,
            },
            order: self.block_slots.map_or(Order::Samples, |slots| Order::Blocked { slots }),
            strata: None,
        }
    }
}

/// The labels of the samples, if the manifest knows them and has few enough shards to look at.
pub(crate) fn origins(manifest: &ManifestFile) -> Result<Option<Origins>, Failure> {
    let shards = manifest.totals().shards;
    if shards > MOST_SHARDS || manifest.labels()?.is_none() {
        return Ok(None);
    }
    let entries = manifest.entries(0..shards)?;
    let labels = Origins::labels(entries.iter().map(|entry| (entry.rows, entry.labels.as_ref())));
    Ok(labels.map(|labels| labels.ordered_by(manifest.config())))
}

/// The plan for a version, with defaults for what `options` leaves open.
pub(crate) fn make_plan(version: VersionId, shape: &Shape, options: PlanOptions) -> Result<Plan, Failure> {
    let document = PlanDocument::with_defaults(version, shape, options)?;
    Ok(Plan::new(document, &shape.shard_rows)?)
}

/// The part of all grains that changes its partition in an exchange of `share`: a drawn grain may be drawn
/// for its own place.
pub(crate) fn moved_share(share: Share, partitions: u32) -> f64 {
    as_fraction(share) * (1.0 - 1.0 / f64::from(partitions))
}

fn as_fraction(share: Share) -> f64 {
    share.units() as f64 / (1u64 << 32) as f64
}

fn describe(dataset: &DatasetName, row_bytes: u64, plan: &Plan, begins: Option<&Spread>) -> String {
    let document = plan.document();
    let mean = row_bytes.checked_div(plan.sample_count()).unwrap_or(0);
    let grain_bytes = ByteSize(mean * u64::from(document.grain_rows));
    let each = plan.sample_count() / u64::from(document.partitions);
    let shares = document.schedule.shares();
    let moved: Vec<String> = shares.iter().map(|q| percent(moved_share(*q, document.partitions))).collect();
    let bytes: Vec<String> = shares
        .iter()
        .map(|q| ByteSize((moved_share(*q, document.partitions) * row_bytes as f64) as u64).to_string())
        .collect();
    let per_epoch = |values: &[String]| match values {
        [one] => format!("{one} per epoch"),
        several => format!("{} after the first epochs, the last from then on", several.join(", ")),
    };
    let strata = document.strata.as_ref().and_then(|strata| strata.get());
    let mut lines = vec![
        ("plan", plan.id().to_string()),
        (
            "dataset",
            format!(
                "{dataset}, version {}, {}",
                document.version.short(),
                plural(plan.sample_count(), "sample")
            ),
        ),
        ("Q", format!("{}, {}", document.schedule, selection_name(document.selection))),
        ("partitions", format!("{} of {} samples", document.partitions, count(each))),
        (
            "grains",
            format!(
                "{} of {}, {grain_bytes}",
                count(plan.grain_count()),
                plural(document.grain_rows.into(), "sample")
            ),
        ),
        ("chunks", plural(document.chunks.into(), "part") + " per exchange"),
        ("moves", format!("of the samples {}", per_epoch(&moved))),
        (
            "traffic",
            format!(
                "at most {} of rows, and some 300 B for each grain; moves inside a node cost nothing",
                per_epoch(&bytes)
            ),
        ),
    ];
    if let Some(shuffle) = whole_exchange(document) {
        lines.push(("shuffle", shuffle));
    }
    if let Some(strata) = strata {
        let said = format!("{} by {}, as many of each in every partition", strata.names().len(), strata.by());
        lines.push(("strata", said));
    }
    if let Some(risk) = begins.and_then(|begins| begins.batch_norm_risk(&document.schedule)) {
        lines.push(("warning", risk));
    }
    facts(&lines)
}

/// How far an exchange of all samples is from a uniform permutation of them.
fn whole_exchange(document: &PlanDocument) -> Option<String> {
    if document.schedule.shares() != [Share::ALL] {
        return None;
    }
    let is_uniform = document.chunks == 1 && document.grain_rows == 1 && document.strata.is_none();
    Some(match (is_uniform, document.placement) {
        (true, InitialPlacement::Random) => "each epoch is a uniform permutation of all samples".to_owned(),
        (true, InitialPlacement::Shards) => {
            "each epoch but the first, which is read as placed, is a uniform permutation of all samples"
                .to_owned()
        }
        (false, _) => format!(
            "grains of {} are exchanged in {}, each permuted by itself; with --chunks 1 --grain-rows 1 --placement \
             random, each epoch is a uniform permutation (docs/PAPER.md compares their accuracy)",
            plural(document.grain_rows.into(), "sample"),
            plural(document.chunks.into(), "part"),
        ),
    })
}

fn selection_name(selection: Selection) -> &'static str {
    match selection {
        Selection::Cyclic => "every sample in turn",
        Selection::Independent => "drawn again after each epoch",
    }
}

fn as_json(dataset: &DatasetName, row_bytes: u64, plan: &Plan, begins: Option<&Spread>) -> serde_json::Value {
    let document = plan.document();
    let shares = document.schedule.shares();
    let moved: Vec<f64> = shares.iter().map(|q| moved_share(*q, document.partitions)).collect();
    let bytes: Vec<u64> = moved.iter().map(|share| (share * row_bytes as f64) as u64).collect();
    json!({
        "plan": plan.id(),
        "dataset": dataset,
        "version": document.version,
        "samples": plan.sample_count(),
        "partitions": document.partitions,
        "q": document.schedule.to_string(),
        "grain_rows": document.grain_rows,
        "grains": plan.grain_count(),
        "chunks": document.chunks,
        "predicted_moved_share": moved,
        "predicted_bytes_per_epoch": bytes,
        "shuffle": whole_exchange(document),
        "begins": begins,
        "batch_norm_risk": begins.is_some_and(Spread::risks_batch_norm),
        "document": document,
    })
}
