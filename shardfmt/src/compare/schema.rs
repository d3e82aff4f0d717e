//! In what two schemas differ, column by column.

use std::fmt;

use arrow::datatypes::{Field, Schema};
use serde::Serialize;

/// One thing in which a schema differs from an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "change", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each variant names its fields")]
pub enum SchemaChange {
    /// A column that was not there before.
    Added { column: String, data_type: String },
    /// A column that is gone.
    Removed { column: String, data_type: String },
    /// A column of another type.
    Type { column: String, from: String, to: String },
    /// A column that may be null now, or may no longer.
    Nullable { column: String, nullable: bool },
    /// A column with other metadata: a tensor's shape, the names of classes.
    Metadata { column: String, key: String, from: Option<String>, to: Option<String> },
    /// The columns that both have, in another order.
    Order { from: Vec<String>, to: Vec<String> },
}

impl fmt::Display for SchemaChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added { column, data_type } => write!(f, "column {column:?} ({data_type}) is added"),
            Self::Removed { column, data_type } => write!(f, "column {column:?} ({data_type}) is missing"),
            Self::Type { column, from, to } => write!(f, "column {column:?} is {to} instead of {from}"),
            Self::Nullable { column, nullable: true } => write!(f, "column {column:?} may be null"),
            Self::Nullable { column, nullable: false } => write!(f, "column {column:?} is never null"),
            Self::Metadata { column, key, from, to } => {
                let (from, to) = (shown(from.as_deref()), shown(to.as_deref()));
                write!(f, "column {column:?} has the {key} {to} instead of {from}")
            }
            Self::Order { from, to } => {
                write!(f, "the columns come as {} instead of {}", to.join(", "), from.join(", "))
            }
        }
    }
}

fn shown(value: Option<&str>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(value) if value.chars().count() <= 200 => value.to_owned(),
        Some(value) => value.chars().take(200).chain("...".chars()).collect(),
    }
}

/// All in which `new` differs from `old`, in the order of the columns.
pub fn changes(old: &Schema, new: &Schema) -> Vec<SchemaChange> {
    let mut changes = Vec::new();
    for field in old.fields() {
        match new.field_with_name(field.name()) {
            Ok(found) => of_column(field, found, &mut changes),
            Err(_) => changes.push(SchemaChange::Removed {
                column: field.name().clone(),
                data_type: field.data_type().to_string(),
            }),
        }
    }
    let added = new.fields().iter().filter(|field| old.field_with_name(field.name()).is_err());
    changes.extend(added.map(|field| SchemaChange::Added {
        column: field.name().clone(),
        data_type: field.data_type().to_string(),
    }));
    let (from, to) = (common(old, new), common(new, old));
    if from != to {
        changes.push(SchemaChange::Order { from, to });
    }
    changes
}

fn of_column(old: &Field, new: &Field, changes: &mut Vec<SchemaChange>) {
    let column = old.name();
    if old.data_type() != new.data_type() {
        changes.push(SchemaChange::Type {
            column: column.clone(),
            from: old.data_type().to_string(),
            to: new.data_type().to_string(),
        });
    }
    if old.is_nullable() != new.is_nullable() {
        changes.push(SchemaChange::Nullable { column: column.clone(), nullable: new.is_nullable() });
    }
    let (from, to) = (old.metadata(), new.metadata());
    let keys = from.iter().map(|(key, _)| key).chain(to.iter().map(|(key, _)| key));
    let keys: std::collections::BTreeSet<_> = keys.collect();
    for key in keys {
        let (from, to) = (from.get(key), to.get(key));
        if from != to {
            changes.push(SchemaChange::Metadata {
                column: column.clone(),
                key: key.to_string(),
                from: from.map(|value| value.to_string()),
                to: to.map(|value| value.to_string()),
            });
        }
    }
}

/// The columns of `schema` that `other` has too, in order.
fn common(schema: &Schema, other: &Schema) -> Vec<String> {
    let names = schema.fields().iter().map(|field| field.name());
    names.filter(|name| other.field_with_name(name).is_ok()).cloned().collect()
}

/// Whether rows of the two can be compared by their bytes: the same columns of the same types in the same order.
pub(super) fn are_comparable(old: &Schema, new: &Schema) -> bool {
    let column = |field: &std::sync::Arc<Field>| (field.name().clone(), field.data_type().clone());
    old.fields().iter().map(column).eq(new.fields().iter().map(column))
}
