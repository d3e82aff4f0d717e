//! What changed between two versions, in an answer of bounded length: lists are cut, and the rest of each is counted. Pure.

use serde::Serialize;
use shardd_api::schema;
use shardfmt::compare::{BoundedDiff, ColumnDrift, Drift, LabelShare, SchemaChange};
use shardfmt::statistics::Quantiles;
use shardfmt::{Manifest, VersionId};
use utoipa::ToSchema;

use super::summary::RowLengths;

/// The most changes of columns, columns of numbers, and labels.
const MOST_CHANGES: usize = 100;
const MOST_COLUMNS: usize = 100;
const MOST_LABELS: usize = 100;
/// The most columns of a list that has their order.
const MOST_ORDERED: usize = 100;
/// The longest name or type, in characters.
const LONGEST: usize = 200;

/// What changed from one version to another: as `shardctl diff --json` has it.
#[derive(Serialize, ToSchema)]
pub(super) struct VersionDiff {
    /// The earlier version.
    old: DiffSide,
    /// The later version.
    new: DiffSide,
    /// Whether both have the same samples under the same numbers; none where that was not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    same: Option<bool>,
    /// The changes. Of columns, at most 100.
    diff: BoundedDiff,
    /// Changes of columns beyond those of the list.
    #[serde(skip_serializing_if = "is_zero")]
    more_schema: usize,
    /// How far the samples are apart, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    stats: Option<DriftRows>,
}

/// A version that is compared.
#[derive(Serialize, ToSchema)]
struct DiffSide {
    /// The version.
    #[schema(value_type = schema::Digest)]
    version: VersionId,
    /// Samples.
    samples: u64,
    /// Shards.
    shards: u64,
    /// Bytes of its shards.
    bytes: u64,
}

/// How labels, lengths and columns differ.
#[derive(Serialize, ToSchema)]
struct DriftRows {
    /// The labels whose shares differ most, at most 100; none where one of the versions has no labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    labels: Option<Vec<LabelDrift>>,
    /// Labels beyond those of the list.
    #[serde(skip_serializing_if = "is_zero")]
    more_labels: usize,
    /// Half the sum of the differences of their shares, of all labels: 0 where labels are spread alike, 1 where the versions have none
    /// in common.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    label_distance: Option<f64>,
    /// Bytes of a row, of the earlier version and of the later one; none where one of them was made before they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    row_bytes: Option<[RowLengths; 2]>,
    /// The columns of numbers whose means differ most, at most 100; none where one of the versions was made before they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    columns: Option<Vec<ColumnDrift>>,
    /// Columns beyond those of the list.
    #[serde(skip_serializing_if = "is_zero")]
    more_columns: usize,
}

/// How often a label occurs in both.
#[derive(Serialize, ToSchema)]
struct LabelDrift {
    #[serde(flatten)]
    share: LabelShare,
    /// The name of its class.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    class: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl VersionDiff {
    /// Of two versions, by the names in `ids`, and what was found.
    pub(super) fn of(
        ids: [VersionId; 2],
        manifests: [&Manifest; 2],
        found: BoundedDiff,
        drift: Option<Drift>,
    ) -> Self {
        let same = found.is_same_content();
        let (mut diff, most) = (found, MOST_CHANGES);
        let more_schema = cut(&mut diff.schema, most);
        diff.schema = diff.schema.into_iter().map(bounded).collect();
        let [old, new] = [0, 1].map(|at| DiffSide {
            version: ids[at],
            samples: manifests[at].sample_count(),
            shards: manifests[at].shards.len() as u64,
            bytes: manifests[at].bytes(),
        });
        let classes = manifests[1].class_names().or_else(|| manifests[0].class_names()).unwrap_or_default();
        let stats = drift.map(|drift| DriftRows::of(drift, &classes));
        Self { old, new, same, diff, more_schema, stats }
    }
}

impl DriftRows {
    fn of(drift: Drift, classes: &[String]) -> Self {
        let Drift { labels, label_distance, row_bytes, columns } = drift;
        let (mut more_labels, mut more_columns) = (0, 0);
        let labels = labels.map(|mut labels| {
            let total = |of: fn(&LabelShare) -> u64| labels.iter().map(of).sum::<u64>().max(1) as f64;
            let (old, new) = (total(|label| label.old), total(|label| label.new));
            let apart = |label: &LabelShare| (label.old as f64 / old - label.new as f64 / new).abs();
            labels.sort_by(|one, other| {
                apart(other).total_cmp(&apart(one)).then_with(|| one.label.cmp(&other.label))
            });
            more_labels = cut(&mut labels, MOST_LABELS);
            let class = |label: &str| label.parse::<usize>().ok().and_then(|number| classes.get(number));
            let row = |share: LabelShare| LabelDrift {
                class: class(&share.label).map(|class| short(class)),
                share: LabelShare { label: short(&share.label), ..share },
            };
            labels.into_iter().map(row).collect()
        });
        let columns = columns.map(|mut columns| {
            // Where the difference has no number, none of the values is that of the other version.
            let apart = |column: &ColumnDrift| column.difference.map_or(f64::INFINITY, f64::abs);
            columns.sort_by(|one, other| apart(other).total_cmp(&apart(one)));
            more_columns = cut(&mut columns, MOST_COLUMNS);
            columns.iter_mut().for_each(|column| column.column = short(&column.column));
            columns
        });
        let row_bytes = row_bytes.map(|both| both.map(|quantiles: Quantiles| RowLengths::of(&quantiles)));
        Self { labels, more_labels, label_distance, row_bytes, columns, more_columns }
    }
}

/// Cuts a list, and counts the rest.
fn cut<T>(list: &mut Vec<T>, most: usize) -> usize {
    let more = list.len().saturating_sub(most);
    list.truncate(most);
    more
}

/// A text of at most [`LONGEST`] characters.
fn short(text: &str) -> String {
    super::super::short(text, LONGEST)
}

fn bounded(change: SchemaChange) -> SchemaChange {
    let names = |mut names: Vec<String>| {
        let more = cut(&mut names, MOST_ORDERED);
        names.iter_mut().for_each(|name| *name = short(name));
        names.extend((more > 0).then(|| format!("and {more} more")));
        names
    };
    let value = |value: Option<String>| value.as_deref().map(short);
    match change {
        SchemaChange::Added { column, data_type } => {
            SchemaChange::Added { column: short(&column), data_type: short(&data_type) }
        }
        SchemaChange::Removed { column, data_type } => {
            SchemaChange::Removed { column: short(&column), data_type: short(&data_type) }
        }
        SchemaChange::Type { column, from, to } => {
            SchemaChange::Type { column: short(&column), from: short(&from), to: short(&to) }
        }
        SchemaChange::Nullable { column, nullable } => {
            SchemaChange::Nullable { column: short(&column), nullable }
        }
        SchemaChange::Metadata { column, key, from, to } => SchemaChange::Metadata {
            column: short(&column),
            key: short(&key),
            from: value(from),
            to: value(to),
        },
        SchemaChange::Order { from, to } => SchemaChange::Order { from: names(from), to: names(to) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_and_names_are_cut_and_the_rest_is_counted() {
        let label =
            |number: u64| LabelShare { label: format!("{number:03}"), old: 1, new: 1 + number * number };
        let column = |number: usize| ColumnDrift {
            column: "é".repeat(300),
            measured: "values",
            old: numbers(),
            new: numbers(),
            difference: (number > 0).then_some(-(number as f64)),
        };
        let drift = Drift {
            labels: Some((0..150).map(label).collect()),
            label_distance: Some(0.5),
            row_bytes: None,
            columns: Some((0..120).map(column).collect()),
        };
        let rows = DriftRows::of(drift, &["zero".to_owned()]);
        let labels = rows.labels.expect("both have labels");
        assert_eq!((labels.len(), rows.more_labels, rows.more_columns), (100, 50, 20));
        assert_eq!((labels[0].share.label.as_str(), labels[1].share.label.as_str()), ("149", "148"));
        let columns = rows.columns.expect("both were measured");
        assert_eq!((columns[0].difference, columns[1].difference), (None, Some(-119.0)));
        assert_eq!(columns[0].column.chars().count(), LONGEST + 1);
        let order =
            bounded(SchemaChange::Order { from: vec!["x".repeat(201); 102], to: vec!["y".to_owned()] });
        let SchemaChange::Order { from, to } = order else { panic!("{order:?}") };
        assert_eq!((from.len(), from[100].as_str(), to), (101, "and 2 more", vec!["y".to_owned()]));
    }

    fn numbers() -> shardfmt::compare::Numbers {
        shardfmt::compare::Numbers { count: 1, min: None, max: None, mean: None, deviation: None }
    }
}
