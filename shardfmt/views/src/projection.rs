//! A choice of columns: which to keep, and in which order.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;

use crate::expr::nearest;
use crate::expr::tree::Identifier;

/// Columns to keep, in order, checked against a schema.
#[derive(Debug, Clone)]
pub struct Projection {
    columns: Vec<String>,
    schema: SchemaRef,
}

/// Why columns make no projection.
#[derive(Debug, thiserror::Error)]
pub enum ProjectionError {
    /// The schema lacks columns.
    #[error("there is no column {}: {way_out}", .columns.join(", "))]
    Unknown {
        /// All names that the schema lacks.
        columns: Vec<String>,
        /// The nearest column to the first of them, or the columns there are.
        way_out: String,
    },
    /// A column is named twice, in the list or in the schema.
    #[error("column {column} appears twice: name it once, and give columns of a dataset different names")]
    Twice {
        /// Its name.
        column: String,
    },
    /// No column would be left.
    #[error("no column is left: name at least one")]
    Empty,
    /// The record batch has another schema.
    #[error(
        "column {column} is missing from the record batch or has another type: check the projection against its schema"
    )]
    Schema {
        /// Name of the column.
        column: String,
    },
    /// Arrow refused the columns.
    #[error("the columns make no record batch")]
    Arrow(#[from] ArrowError),
}

impl Projection {
    /// Checks that `schema` has all `columns`.
    ///
    /// # Errors
    /// [`ProjectionError::Unknown`] with all unknown names, [`ProjectionError::Twice`] and
    /// [`ProjectionError::Empty`].
    pub fn new(columns: Vec<String>, schema: &Schema) -> Result<Self, ProjectionError> {
        if columns.is_empty() {
            return Err(ProjectionError::Empty);
        }
        let named = |name: &String| schema.fields().iter().filter(|field| field.name() == name).count();
        let unknown: Vec<_> = columns.iter().filter(|name| named(name) == 0).cloned().collect();
        if let Some(first) = unknown.first() {
            let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            let way_out = nearest::way_out(first, &names, "columns");
            return Err(ProjectionError::Unknown { columns: unknown, way_out });
        }
        for (index, name) in columns.iter().enumerate() {
            if named(name) > 1 || columns[..index].contains(name) {
                return Err(ProjectionError::Twice { column: name.clone() });
            }
        }
        let indices = columns.iter().filter_map(|name| schema.index_of(name).ok()).collect::<Vec<_>>();
        Ok(Self { schema: Arc::new(schema.project(&indices)?), columns })
    }

    /// Names of the columns, in order.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The schema of the kept columns, with the metadata of fields and schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The kept columns of `batch`; no value is copied.
    ///
    /// # Errors
    /// [`ProjectionError::Schema`] if the record batch has another schema.
    pub fn apply(&self, batch: &RecordBatch) -> Result<RecordBatch, ProjectionError> {
        let column = |(name, field): (&String, &FieldRef)| {
            let found = batch.column_by_name(name).filter(|array| array.data_type() == field.data_type());
            found.cloned().ok_or_else(|| ProjectionError::Schema { column: name.clone() })
        };
        let columns: Result<Vec<_>, _> = self.columns.iter().zip(self.schema.fields()).map(column).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns?, &options)?)
    }
}

/// The names, separated by commas, in double quotes where an expression needs them.
impl fmt::Display for Projection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_columns(f, &self.columns)
    }
}

/// Writes names of columns, separated by commas.
pub(crate) fn fmt_columns(f: &mut fmt::Formatter<'_>, columns: &[String]) -> fmt::Result {
    for (index, name) in columns.iter().enumerate() {
        write!(f, "{}{}", if index == 0 { "" } else { ", " }, Identifier(name))?;
    }
    Ok(())
}
