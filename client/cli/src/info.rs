//! `shardctl info`: the contents of a version, statistics of its samples, and its origin.

use std::time::Duration;

use arrow::datatypes::{DataType, TimeUnit};
use clap::Args;
use serde_json::json;
use shardd_store::catalog::DatasetInfo;
use shardd_store::connect::{Connect, only_dataset};
use shardfmt::manifest::Labels;
use shardfmt::statistics::{ColumnStatistics, Measure, Quantiles, Spread};
use shardfmt::{ByteSize, DatasetRef, ManifestError, ManifestFile, Provenance, ShardEntry, SkippedList};

use crate::failure::Failure;
use crate::human::{count, date, duration, number, percent};
use crate::output;
use crate::table::{Table, facts};

/// How many skipped files and rows are shown; `--json` lists more.
const SKIPPED_SHOWN: usize = 10;

/// Show a dataset: columns, classes, shards, inputs, configuration
///
/// Of each column it shows how many values are present (neither null nor, of floating-point columns, NaN or infinite) and of those the least,
/// the mean, the largest and their standard deviation; of text, bytes and lists, the same of their lengths.
#[derive(Args)]
pub(crate) struct Info {
    /// The dataset, or a version of it such as NAME@TAG or NAME@~1; may be left out if there is only one
    #[arg(value_name = "NAME[@VERSION]")]
    dataset: Option<DatasetRef>,

    /// List every shard
    #[arg(long)]
    shards: bool,
}

impl Info {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        let dataset = only_dataset(&*catalog, self.dataset.as_ref(), "info")?;
        let manifest = catalog.open_manifest(dataset.version)?;
        let provenance = catalog.provenance(dataset.version)?;
        let entries = if self.shards { Some(manifest.entries(0..manifest.totals().shards)?) } else { None };
        if json {
            output::json(&as_json(&dataset, &manifest, provenance.as_ref(), entries.as_deref())?);
            return Ok(());
        }
        let totals = manifest.totals();
        let mut known = vec![
            ("dataset", dataset.name.to_string()),
            ("version", dataset.version.to_string()),
            ("samples", count(totals.samples)),
            ("shards", format!("{} of {} in all", count(totals.shards), ByteSize(totals.bytes))),
        ];
        if let Some(Provenance { inputs, skipped, .. }) = &provenance {
            known.push(("inputs", count(inputs.len() as u64)));
            if skipped.count > 0 {
                known.push(("skipped", count(skipped.count)));
            }
        }
        if let Some(statistics) = &totals.statistics {
            known.push(("row bytes", lengths(&statistics.row_bytes)));
        }
        known.push(("digest sum", totals.digest_sum.to_string()));
        known.push(("config", manifest.config().to_string()));
        if let Some(Provenance { settings, .. }) = &provenance {
            known.push(("settings", settings.to_string()));
        }
        let mut parts = vec![facts(&known), columns(&manifest).render()];
        if let Some(labels) = manifest.labels()? {
            parts.push(classes(&manifest, &labels).render());
        }
        if let Some(provenance) = provenance.filter(|known| known.skipped.count > 0) {
            parts.push(skipped(&provenance.skipped));
        }
        parts.extend(entries.map(|entries| shards(&entries).render()));
        output::print(&parts.join("\n"));
        Ok(())
    }
}

fn lengths(quantiles: &Quantiles) -> String {
    let [min, p25, p50, p75, p99, max] = quantiles.to_array().map(|length| count(length.into()));
    format!("{min} to {max}, half of them {p25} to {p75}, the median {p50}, 99 % up to {p99}")
}

/// The columns, and the known facts about their values.
fn columns(manifest: &ManifestFile) -> Table {
    let schema = manifest.schema();
    let Some(statistics) = &manifest.totals().statistics else {
        let mut table = Table::new(&["column", "type", "null"]);
        for field in schema.fields() {
            let null = if field.is_nullable() { "may be" } else { "never" };
            table.row([field.name().clone(), field.data_type().to_string(), null.to_owned()]);
        }
        return table;
    };
    let headings =
        ["column", "type", "null", "present", "measured", "min", "mean", "max", "standard deviation"];
    let mut table = Table::new(&headings);
    let unmeasured = ColumnStatistics::default();
    for (at, field) in schema.fields().iter().enumerate() {
        let known = statistics.columns.get(at);
        let null = if field.is_nullable() { "may be" } else { "never" };
        let present = known.map(|known| count(known.count)).unwrap_or_default();
        let mut row = vec![field.name().clone(), field.data_type().to_string(), null.to_owned(), present];
        if let Some(spread) = known.unwrap_or(&unmeasured).spread {
            row.push(Measure::of(field.data_type()).noun().to_owned());
            row.extend(shown(field.data_type(), spread));
        }
        table.row(row);
    }
    table
}

/// The least, mean and largest value, and their standard deviation: moments as such.
fn shown(data_type: &DataType, spread: Spread) -> [String; 4] {
    let values = [spread.min, spread.mean, spread.max];
    let seconds = match data_type {
        DataType::Timestamp(TimeUnit::Second, _) => 1.0,
        DataType::Timestamp(TimeUnit::Millisecond, _) | DataType::Date64 => 1e-3,
        DataType::Timestamp(TimeUnit::Microsecond, _) => 1e-6,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => 1e-9,
        DataType::Date32 => 86_400.0,
        _ => return [spread.min, spread.mean, spread.max, spread.variance.sqrt()].map(number),
    };
    let [min, mean, max] = values.map(|value| date((value * seconds).floor() as i64));
    let deviation = Duration::try_from_secs_f64(spread.variance.sqrt() * seconds);
    [min, mean, max, deviation.map(duration).unwrap_or_default()]
}

fn classes(manifest: &ManifestFile, labels: &Labels) -> Table {
    let names = manifest.class_names().unwrap_or_default();
    let mut table = Table::new(&["label", "class", "samples", "share"]);
    let mut rows: Vec<_> = labels.iter().collect();
    rows.sort_by_key(|(label, _)| (label.parse::<i64>().unwrap_or(i64::MAX), (*label).clone()));
    for (label, samples) in rows {
        let class = label.parse::<usize>().ok().and_then(|label| names.get(label)).cloned();
        let share = *samples as f64 / manifest.totals().samples.max(1) as f64;
        let class = class.unwrap_or_else(|| label.to_string());
        table.row([label.to_string(), class, count(*samples), percent(share)]);
    }
    table
}

fn skipped(list: &SkippedList) -> String {
    let mut table = Table::new(&["skipped", "because"]);
    for one in list.first.iter().take(SKIPPED_SHOWN) {
        table.row([one.name.clone(), one.reason.clone()]);
    }
    let shown = list.first.len().min(SKIPPED_SHOWN) as u64;
    match list.count.saturating_sub(shown) {
        0 => table.render(),
        more => format!("{}and {} more; --json lists {}\n", table.render(), count(more), list.first.len()),
    }
}

fn shards(entries: &[ShardEntry]) -> Table {
    let mut table = Table::new(&["shard", "samples", "size"]);
    for shard in entries {
        table.row([shard.id.to_string(), count(shard.rows.into()), ByteSize(shard.bytes).to_string()]);
    }
    table
}

fn as_json(
    dataset: &DatasetInfo,
    manifest: &ManifestFile,
    provenance: Option<&Provenance>,
    entries: Option<&[ShardEntry]>,
) -> Result<serde_json::Value, ManifestError> {
    let totals = manifest.totals();
    let column = |at: usize| {
        let field = manifest.schema().field(at);
        let known = totals.statistics.as_ref().and_then(|statistics| statistics.columns.get(at));
        let spread = known.and_then(|known| known.spread).map(|spread| {
            json!({
                "of": Measure::of(field.data_type()).noun(),
                "min": spread.min,
                "max": spread.max,
                "mean": spread.mean,
                "variance": spread.variance,
            })
        });
        json!({
            "name": field.name(),
            "type": field.data_type().to_string(),
            "nullable": field.is_nullable(),
            "present": known.map(|known| known.count),
            "spread": spread,
        })
    };
    let entry = |shard: &ShardEntry| json!({ "id": shard.id, "rows": shard.rows, "bytes": shard.bytes, "digest_sum": shard.digest_sum });
    let mut info = json!({
        "dataset": dataset.name,
        "version": dataset.version,
        "samples": totals.samples,
        "bytes": totals.bytes,
        "row_bytes": totals.row_bytes,
        "row_lengths": totals.statistics.as_ref().map(|statistics| statistics.row_bytes),
        "digest_sum": totals.digest_sum,
        "columns": (0..manifest.schema().fields().len()).map(column).collect::<Vec<_>>(),
        "classes": manifest.class_names(),
        "labels": manifest.labels()?,
        "shards": totals.shards,
        "inputs": provenance.map(|known| known.inputs.len()),
        "skipped": provenance.map(|known| &known.skipped),
        "config": manifest.config(),
        "settings": provenance.map(|known| &known.settings),
    });
    if let Some(entries) = entries {
        info["entries"] = entries.iter().map(entry).collect();
    }
    Ok(info)
}
