//! How far the samples of two versions are apart in what their manifests say of them.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::manifest::Manifest;
use crate::statistics::{ColumnStatistics, Measure, Quantiles, Spread, Statistics};

/// How labels, lengths and columns differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Drift {
    /// Every label that either has, in order. `None` where one of them has no labels.
    pub labels: Option<Vec<LabelShare>>,
    /// Half the sum of the differences of their shares: 0 where labels are spread alike, 1 where they have none in common.
    pub label_distance: Option<f64>,
    /// The lengths of canonical rows: of the first version, of the second. `None` where one of them has shards from
    /// before statistics were kept.
    pub row_bytes: Option<[Quantiles; 2]>,
    /// The columns that both have and whose values, or their lengths, are numbers. `None` likewise.
    pub columns: Option<Vec<ColumnDrift>>,
}

/// How often a label occurs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LabelShare {
    /// The label.
    pub label: String,
    /// Samples of the first version that have it.
    pub old: u64,
    /// Samples of the second.
    pub new: u64,
}

/// How the numbers of a column differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ColumnDrift {
    /// The column.
    pub column: String,
    /// The measured quantity: `values` or `lengths`.
    pub measured: &'static str,
    /// Of the first version.
    pub old: Numbers,
    /// Of the second.
    pub new: Numbers,
    /// By how many standard deviations the means differ: by their distance over the root of the mean of both variances.
    /// `None` where none differs from another on either side, but between them they do, or there are none.
    pub difference: Option<f64>,
}

/// Some numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "the names say it")]
pub struct Numbers {
    pub count: u64,
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub mean: Option<f64>,
    pub deviation: Option<f64>,
}

impl From<&ColumnStatistics> for Numbers {
    fn from(column: &ColumnStatistics) -> Self {
        let of = |field: fn(&Spread) -> f64| column.spread.as_ref().map(field);
        Self {
            count: column.count,
            min: of(|spread| spread.min),
            max: of(|spread| spread.max),
            mean: of(|spread| spread.mean),
            deviation: of(|spread| spread.variance.sqrt()),
        }
    }
}

/// Compares what two manifests say of their samples.
pub fn drift(old: &Manifest, new: &Manifest) -> Drift {
    let labels = old.labels().zip(new.labels()).map(|(old, new)| {
        let all: BTreeSet<&str> = old.keys().chain(new.keys()).map(AsRef::as_ref).collect();
        let count = |label: &str| LabelShare {
            label: label.to_owned(),
            old: old.get(label).copied().unwrap_or(0),
            new: new.get(label).copied().unwrap_or(0),
        };
        all.into_iter().map(count).collect::<Vec<_>>()
    });
    let label_distance = labels.as_deref().map(total_variation);
    let statistics = statistics(old).zip(statistics(new));
    let row_bytes = statistics.as_ref().map(|(old, new)| [old.row_bytes, new.row_bytes]);
    let columns = statistics.map(|(these, those)| columns(old, &these, new, &those));
    Drift { labels, label_distance, row_bytes, columns }
}

fn total_variation(labels: &[LabelShare]) -> f64 {
    let total =
        |of: fn(&LabelShare) -> u64| labels.iter().map(|label| of(label) as f64).sum::<f64>().max(1.0);
    let (old, new) = (total(|label| label.old), total(|label| label.new));
    let apart: f64 = labels.iter().map(|label| (label.old as f64 / old - label.new as f64 / new).abs()).sum();
    (apart / 2.0).min(1.0)
}

/// The statistics of all samples of a version, if every shard has them.
fn statistics(manifest: &Manifest) -> Option<Statistics> {
    let parts = manifest.shards.iter().map(|shard| Some((u64::from(shard.rows), shard.statistics.as_ref()?)));
    let parts = parts.collect::<Option<Vec<_>>>()?;
    Statistics::merged(parts.into_iter())
}

fn columns(old: &Manifest, these: &Statistics, new: &Manifest, those: &Statistics) -> Vec<ColumnDrift> {
    let measured = old.schema.fields().iter().zip(&these.columns).filter_map(|(field, old)| {
        let place = new.schema.index_of(field.name()).ok()?;
        let measure = Measure::of(field.data_type());
        let measured = match measure {
            Measure::Values => "values",
            Measure::Lengths => "lengths",
            Measure::Nothing => return None,
        };
        (Measure::of(new.schema.field(place).data_type()) == measure).then_some(())?;
        let new = those.columns.get(place)?;
        let (old, new) = (Numbers::from(old), Numbers::from(new));
        Some(ColumnDrift {
            column: field.name().clone(),
            measured,
            old,
            new,
            difference: standardized_difference(&old, &new),
        })
    });
    measured.collect()
}

fn standardized_difference(old: &Numbers, new: &Numbers) -> Option<f64> {
    let apart = new.mean? - old.mean?;
    let spread = ((old.deviation?.powi(2) + new.deviation?.powi(2)) / 2.0).sqrt();
    match apart == 0.0 {
        true => Some(0.0),
        false => Some(apart / spread).filter(|difference| difference.is_finite()),
    }
}
