//! What a version holds, from its manifest alone. Pure.

use std::cmp::Reverse;

use serde::Serialize;
use shardd_api::schema;
use shardfmt::manifest::Labels;
use shardfmt::statistics::{Measure, Quantiles};
use shardfmt::{ManifestError, ManifestFile, Provenance, ShardId, SkippedList, VersionId};
use utoipa::ToSchema;

/// The most labels of a version, and of a shard.
const MOST_LABELS: usize = 1000;
const MOST_LABELS_OF_A_SHARD: usize = 32;
/// The most files and rows that were left out, by name.
const MOST_SKIPPED: usize = 20;

/// What a version holds.
#[derive(Serialize, ToSchema)]
pub(super) struct VersionSummary {
    /// The version.
    #[schema(value_type = schema::Digest)]
    version: VersionId,
    /// Samples.
    samples: u64,
    /// Bytes of its shards.
    bytes: u64,
    /// Bytes of its rows in their canonical form.
    row_bytes: u64,
    /// How many shards it has.
    shards: u64,
    /// How many inputs it was made of, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    inputs: Option<u64>,
    /// The files and rows that were left out.
    skipped: SkippedInputs,
    /// The columns, with what is known of their values.
    columns: Vec<ColumnSummary>,
    /// The column of labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    label_column: Option<String>,
    /// How often each label occurs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    labels: Option<LabelSummary>,
    /// The bytes of a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    row_lengths: Option<RowLengths>,
    /// How samples were laid into shards, and what the version was made of another one by.
    config: serde_json::Value,
    /// The settings of the ingest, if they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    settings: Option<serde_json::Value>,
}

/// Inputs that were left out.
#[derive(Serialize, ToSchema)]
struct SkippedInputs {
    /// How many.
    count: u64,
    /// The first of them, at most 20.
    first: Vec<SkippedInput>,
}

/// An input that was left out.
#[derive(Serialize, ToSchema)]
struct SkippedInput {
    /// Its name.
    name: String,
    /// Why.
    reason: String,
}

/// A column, and what is known of its values.
#[derive(Serialize, ToSchema)]
struct ColumnSummary {
    /// Its name.
    name: String,
    /// Its Arrow type.
    #[serde(rename = "type")]
    data_type: String,
    /// Whether values may be missing.
    nullable: bool,
    /// How many values are present: neither null nor, of floating-point columns, NaN or infinite.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    present: Option<u64>,
    /// How they spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    spread: Option<ColumnSpread>,
}

/// How the values of a column spread, or their lengths.
#[derive(Serialize, ToSchema)]
struct ColumnSpread {
    /// `values` or `lengths`.
    of: &'static str,
    /// The least.
    min: f64,
    /// The largest.
    max: f64,
    /// The mean.
    mean: f64,
    /// The variance.
    variance: f64,
}

/// How often labels occur.
#[derive(Serialize, ToSchema)]
struct LabelSummary {
    /// How many different labels there are.
    distinct: usize,
    /// Those with the most samples, at most 1,000.
    most: Vec<LabelCount>,
}

/// How often a label occurs.
#[derive(Serialize, ToSchema)]
struct LabelCount {
    /// The label.
    label: String,
    /// The name of its class.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    class: Option<String>,
    /// How many samples have it.
    samples: u64,
}

/// Bytes of rows: the least, the quartiles, the 99th percentile and the largest.
#[derive(Serialize, ToSchema)]
pub(super) struct RowLengths {
    min: u32,
    p25: u32,
    p50: u32,
    p75: u32,
    p99: u32,
    max: u32,
}

/// Shards of a version, in its order.
#[derive(Serialize, ToSchema)]
pub(super) struct ShardRows {
    /// How many shards the version has.
    total: u64,
    /// The shards asked for.
    rows: Vec<ShardRow>,
}

/// A shard of a version.
#[derive(Serialize, ToSchema)]
struct ShardRow {
    /// Its place in the version, from 0.
    index: u64,
    /// The shard.
    #[schema(value_type = schema::Digest)]
    id: ShardId,
    /// The number of its first sample.
    first: u64,
    /// Samples.
    samples: u32,
    /// Bytes of its file.
    bytes: u64,
    /// How often labels occur in it, at most 32 of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    labels: Option<Vec<LabelCount>>,
}

impl VersionSummary {
    pub(super) fn of(manifest: &ManifestFile, provenance: Option<Provenance>) -> Result<Self, ManifestError> {
        let totals = manifest.totals();
        let classes = manifest.class_names().unwrap_or_default();
        let labels = manifest.labels()?.map(|labels| LabelSummary {
            distinct: labels.len(),
            most: most(&labels, &classes, MOST_LABELS),
        });
        let (inputs, skipped, settings) = match provenance {
            Some(Provenance { inputs, skipped, settings, .. }) => {
                (Some(inputs.len() as u64), skipped, Some(settings))
            }
            None => Default::default(),
        };
        Ok(Self {
            version: manifest.id(),
            samples: totals.samples,
            bytes: totals.bytes,
            row_bytes: totals.row_bytes,
            shards: totals.shards,
            inputs,
            skipped: SkippedInputs::of(skipped),
            columns: (0..manifest.schema().fields().len())
                .map(|at| ColumnSummary::of(manifest, at))
                .collect(),
            label_column: manifest.label_column().map(str::to_owned),
            labels,
            row_lengths: totals.statistics.as_ref().map(|known| RowLengths::of(&known.row_bytes)),
            config: manifest.config().clone(),
            settings,
        })
    }
}

impl SkippedInputs {
    fn of(SkippedList { count, first, .. }: SkippedList) -> Self {
        let first = first.into_iter().take(MOST_SKIPPED);
        let first = first.map(|one| SkippedInput { name: one.name, reason: one.reason }).collect();
        Self { count, first }
    }
}

impl ColumnSummary {
    fn of(manifest: &ManifestFile, at: usize) -> Self {
        let field = manifest.schema().field(at);
        let known = manifest.totals().statistics.as_ref().and_then(|known| known.columns.get(at));
        let spread = known.and_then(|known| known.spread).map(|spread| ColumnSpread {
            of: Measure::of(field.data_type()).noun(),
            min: spread.min,
            max: spread.max,
            mean: spread.mean,
            variance: spread.variance,
        });
        Self {
            name: field.name().clone(),
            data_type: field.data_type().to_string(),
            nullable: field.is_nullable(),
            present: known.map(|known| known.count),
            spread,
        }
    }
}

impl RowLengths {
    pub(super) fn of(quantiles: &Quantiles) -> Self {
        let [min, p25, p50, p75, p99, max] = quantiles.to_array();
        Self { min, p25, p50, p75, p99, max }
    }
}

impl ShardRows {
    pub(super) fn of(manifest: &ManifestFile, offset: u64, limit: u64) -> Result<Self, ManifestError> {
        let total = manifest.totals().shards;
        let from = offset.min(total);
        let entries = manifest.entries(from..total.min(from.saturating_add(limit)))?;
        let before = &manifest.shard_rows()?[..from as usize];
        let mut first: u64 = before.iter().map(|rows| u64::from(*rows)).sum();
        let classes = manifest.class_names().unwrap_or_default();
        let rows = entries.iter().zip(from..).map(|(entry, index)| {
            let row = ShardRow {
                index,
                id: entry.id,
                first,
                samples: entry.rows,
                bytes: entry.bytes,
                labels: entry.labels.as_ref().map(|labels| most(labels, &classes, MOST_LABELS_OF_A_SHARD)),
            };
            first += u64::from(entry.rows);
            row
        });
        Ok(Self { total, rows: rows.collect() })
    }
}

/// The labels with the most samples, the first by their text where that is equal.
fn most(labels: &Labels, classes: &[String], limit: usize) -> Vec<LabelCount> {
    let mut sorted: Vec<_> = labels.iter().collect();
    sorted.sort_by_key(|(label, samples)| (Reverse(**samples), (*label).clone()));
    let counted = sorted.into_iter().take(limit).map(|(label, samples)| LabelCount {
        class: label.parse::<usize>().ok().and_then(|number| classes.get(number)).cloned(),
        label: label.to_string(),
        samples: *samples,
    });
    counted.collect()
}
