//! `shardctl info`: what is in a dataset, and where it came from.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::json;
use shardfmt::{ByteSize, DatasetName, DatasetRef, Manifest};

use crate::connect::{Connect, only_dataset};
use crate::failure::Failure;
use crate::human::{count, percent};
use crate::output;
use crate::table::{Table, facts};

/// Show a dataset: columns, classes, shards, inputs, configuration
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
        let manifest = catalog.manifest(dataset.version)?;
        if json {
            output::json(&as_json(&dataset.name, &manifest));
            return Ok(());
        }
        let mut page = facts(&[
            ("dataset", dataset.name.to_string()),
            ("version", dataset.version.to_string()),
            ("samples", count(manifest.sample_count())),
            (
                "shards",
                format!("{} of {} in all", count(manifest.shards.len() as u64), ByteSize(manifest.bytes())),
            ),
            ("inputs", count(manifest.inputs.len() as u64)),
            ("digest sum", manifest.digest_sum().to_string()),
            ("config", manifest.config.to_string()),
        ]);
        page.push('\n');
        page.push_str(&columns(&manifest).render());
        if let Some(labels) = manifest.labels() {
            page.push('\n');
            page.push_str(&classes(&manifest, &labels).render());
        }
        if self.shards {
            page.push('\n');
            page.push_str(&shards(&manifest).render());
        }
        output::print(&page);
        Ok(())
    }
}

fn columns(manifest: &Manifest) -> Table {
    let mut table = Table::new(&["column", "type", "null"]);
    for field in manifest.schema.fields() {
        let null = if field.is_nullable() { "may be" } else { "never" };
        table.row([field.name().clone(), field.data_type().to_string(), null.to_owned()]);
    }
    table
}

fn classes(manifest: &Manifest, labels: &BTreeMap<String, u64>) -> Table {
    let names = manifest.class_names().unwrap_or_default();
    let mut table = Table::new(&["label", "class", "samples", "share"]);
    let mut rows: Vec<(&String, &u64)> = labels.iter().collect();
    rows.sort_by_key(|(label, _)| (label.parse::<i64>().unwrap_or(i64::MAX), (*label).clone()));
    for (label, samples) in rows {
        let class = label.parse::<usize>().ok().and_then(|label| names.get(label)).cloned();
        let share = *samples as f64 / manifest.sample_count().max(1) as f64;
        table.row([label.clone(), class.unwrap_or_else(|| label.clone()), count(*samples), percent(share)]);
    }
    table
}

fn shards(manifest: &Manifest) -> Table {
    let mut table = Table::new(&["shard", "samples", "size"]);
    for shard in &manifest.shards {
        table.row([shard.id.to_string(), count(shard.rows.into()), ByteSize(shard.bytes).to_string()]);
    }
    table
}

fn as_json(name: &DatasetName, manifest: &Manifest) -> serde_json::Value {
    let columns: Vec<_> = manifest
        .schema
        .fields()
        .iter()
        .map(|field| json!({ "name": field.name(), "type": field.data_type().to_string(), "nullable": field.is_nullable() }))
        .collect();
    let shards: Vec<_> = manifest
        .shards
        .iter()
        .map(|shard| json!({ "id": shard.id, "rows": shard.rows, "bytes": shard.bytes, "digest_sum": shard.digest_sum }))
        .collect();
    json!({
        "dataset": name,
        "version": manifest.id(),
        "samples": manifest.sample_count(),
        "bytes": manifest.bytes(),
        "row_bytes": manifest.row_bytes(),
        "digest_sum": manifest.digest_sum(),
        "columns": columns,
        "classes": manifest.class_names(),
        "labels": manifest.labels(),
        "shards": shards,
        "inputs": manifest.inputs.len(),
        "config": manifest.config,
    })
}
