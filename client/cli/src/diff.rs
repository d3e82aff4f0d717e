//! `shardctl diff`: what changed between two versions, by content. Exits like `diff`: 0 when they have the same samples
//! under the same numbers, 1 when they do not, 2 when they cannot be compared.

use clap::Args;
use serde_json::json;
use shardd_ingest::version::{Base, Change, ColumnDrift, Diff as Found, Drift, LabelShare, diff, drift};
use shardd_store::catalog::{Catalog, CatalogStore, DatasetInfo};
use shardd_store::connect::{Connect, find_version};
use shardfmt::statistics::Quantiles;
use shardfmt::{At, DatasetRef, Manifest};

use crate::failure::Failure;
use crate::human::{count, percent};
use crate::output;
use crate::table::{Table, facts};
use crate::work::WorkProgress;

/// Show what changed from one version to another: columns, inputs, shards, samples
#[derive(Args)]
pub(crate) struct Diff {
    /// The earlier version: NAME@TAG, NAME@ID or NAME@~1; of a plain NAME, the one before the present
    old: DatasetRef,

    /// The later version [default: the present one of the same dataset]
    new: Option<DatasetRef>,

    /// Also show how labels, lengths and numeric columns differ
    #[arg(long)]
    stats: bool,
}

impl Diff {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        // An error is no difference.
        match self.compare(connect, json) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::Differs),
            Err(failure) => Err(Failure::usage(failure.to_string())),
        }
    }

    /// Whether both are the same.
    fn compare(self, connect: &Connect, json: bool) -> Result<bool, Failure> {
        let catalog = connect.catalog()?;
        let present = DatasetRef::from(self.old.dataset.clone());
        let (old, new) = match (self.old, self.new) {
            (old, Some(new)) => (old, new),
            (DatasetRef { dataset, at: At::Present }, None) => {
                (DatasetRef { dataset, at: At::Back(1) }, present)
            }
            (old, None) => (old, present),
        };
        let (these, those) = (find_version(&*catalog, &old)?, find_version(&*catalog, &new)?);
        let (before, after) = (catalog.manifest(these.version)?, catalog.manifest(those.version)?);
        let found = compare(&*catalog, &these, &before, &those, &after, json)?;
        let drift = self.stats.then(|| drift(&before, &after));
        if json {
            let of = |info: &DatasetInfo| json!({ "dataset": info.name, "version": info.version, "samples": info.samples, "shards": info.shards });
            let (old, new) = (of(&these), of(&those));
            output::json(&json!({
                "event": "done", "old": old, "new": new, "same": found.is_same_content(), "diff": found, "stats": drift,
            }));
        } else {
            let sides = [(&old, &these), (&new, &those)].map(|(name, info)| {
                format!("{name} ({}, {} samples)", info.version.short(), count(info.samples))
            });
            output::print(&format!("{} -> {}\n", sides[0], sides[1]));
            output::print(&describe(&found));
            if let Some(drift) = &drift {
                output::print(&describe_drift(drift, after.class_names().or(before.class_names())));
            }
        }
        Ok(found.is_same_content())
    }
}

fn compare(
    catalog: &dyn Catalog,
    these: &DatasetInfo,
    before: &Manifest,
    those: &DatasetInfo,
    after: &Manifest,
    json: bool,
) -> Result<Found, Failure> {
    let (old, new) = (catalog.provenance(these.version)?, catalog.provenance(those.version)?);
    let progress = WorkProgress::new(json, "comparing", before.sample_count() + after.sample_count());
    let found = diff(
        Base { id: these.version, manifest: before, provenance: old.as_ref() },
        Base { id: those.version, manifest: after, provenance: new.as_ref() },
        &CatalogStore(catalog),
        &progress,
    );
    progress.finish();
    Ok(found?)
}

fn describe(found: &Found) -> String {
    let counted = |change: &Change| match change {
        change if change.is_none() => format!("{} in both", count(change.kept)),
        Change { kept, added, removed } => {
            format!("{} in both, {} added, {} removed", count(*kept), count(*added), count(*removed))
        }
    };
    let order = match (found.samples.is_none(), found.same_order) {
        (true, true) => "every sample has the same number",
        (true, false) => "the same samples have other numbers",
        (false, _) => "-",
    };
    let mut page = facts(&[
        ("inputs", found.inputs.as_ref().map_or_else(|| "not known".to_owned(), counted)),
        ("shards", counted(&found.shards)),
        ("samples", counted(&found.samples)),
        ("order", order.to_owned()),
    ]);
    for change in &found.schema {
        page.push_str(&format!("columns  {change}\n"));
    }
    page
}

fn describe_drift(drift: &Drift, classes: Option<Vec<String>>) -> String {
    let mut page = String::new();
    if let (Some(labels), Some(distance)) = (&drift.labels, drift.label_distance) {
        page.push('\n');
        page.push_str(&label_table(labels, &classes.unwrap_or_default()).render());
        page.push_str(&format!("label distance (total variation): {distance:.4}\n"));
    }
    if let Some([old, new]) = &drift.row_bytes {
        page.push('\n');
        page.push_str(&length_table(old, new).render());
    }
    if let Some(columns) = drift.columns.as_ref().filter(|columns| !columns.is_empty()) {
        page.push('\n');
        page.push_str(&column_table(columns).render());
    }
    if drift.row_bytes.is_none() {
        page.push_str("\nlengths and columns were not measured when one of the versions was made: reshard it to have them\n");
    }
    page
}

fn label_table(labels: &[LabelShare], classes: &[String]) -> Table {
    let total = |of: fn(&LabelShare) -> u64| labels.iter().map(of).sum::<u64>().max(1) as f64;
    let (olds, news) = (total(|label| label.old), total(|label| label.new));
    let mut table = Table::new(&["label", "class", "before", "share", "after", "share", "change"]);
    let mut labels: Vec<&LabelShare> = labels.iter().collect();
    labels.sort_by_key(|share| (share.label.parse::<i64>().unwrap_or(i64::MAX), share.label.clone()));
    for LabelShare { label, old, new } in labels {
        let class = label.parse::<usize>().ok().and_then(|label| classes.get(label)).unwrap_or(label);
        let (before, after) = (*old as f64 / olds, *new as f64 / news);
        let points = (after - before) * 100.0;
        table.row([
            label.clone(),
            class.clone(),
            count(*old),
            percent(before),
            count(*new),
            percent(after),
            format!("{points:+.2} pt"),
        ]);
    }
    table
}

fn length_table(old: &Quantiles, new: &Quantiles) -> Table {
    let mut table = Table::new(&["row bytes", "min", "25 %", "50 %", "75 %", "99 %", "max"]);
    for (side, quantiles) in [("before", old), ("after", new)] {
        let lengths = quantiles.to_array().map(|length| count(length.into()));
        table.row([side.to_owned()].into_iter().chain(lengths));
    }
    table
}

fn column_table(columns: &[ColumnDrift]) -> Table {
    let headings = ["column", "", "values", "min", "max", "mean", "deviation", "difference"];
    let mut table = Table::new(&headings);
    let shown = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| format!("{number:.6}"));
    for column in columns {
        let measured = if column.measured == "lengths" { ", length" } else { "" };
        for (side, numbers) in [("before", &column.old), ("after", &column.new)] {
            let is_first = side == "before";
            table.row([
                if is_first { format!("{}{measured}", column.column) } else { String::new() },
                side.to_owned(),
                count(numbers.count),
                shown(numbers.min),
                shown(numbers.max),
                shown(numbers.mean),
                shown(numbers.deviation),
                if is_first { shown(column.difference) } else { String::new() },
            ]);
        }
    }
    table
}
