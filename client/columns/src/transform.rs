//! Chains that fit a schema.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use thiserror::Error;

use crate::chain::{Chain, ChainError};
use crate::kind::Kind;
use crate::operation::Fitted;
use crate::values::{BadValue, Values};

/// A value to which an operation gives no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("operation {index}, {name}, {reason}")]
pub struct ValueError {
    /// The column.
    pub column: String,
    /// Its row in the batch.
    pub row: usize,
    /// The index of the operation in the column's list.
    pub index: usize,
    /// The operation's name.
    pub name: &'static str,
    /// The end of the sentence that begins with its name.
    pub reason: String,
}

/// An operation of a column, checked.
struct Step {
    name: &'static str,
    takes_nulls: bool,
    fitted: Fitted,
}

/// The operations of a column.
struct Column {
    /// Its index in the schema.
    at: usize,
    steps: Vec<Step>,
}

/// A chain that fits a schema.
pub struct Transform {
    columns: Vec<Column>,
    schema: SchemaRef,
}

impl Transform {
    /// A chain for record batches of these columns.
    ///
    /// # Errors
    /// [`ChainError`] if a column is not there, or an operation does not take the values that it gets.
    pub fn new(chain: Chain, schema: &Schema) -> Result<Self, ChainError> {
        let mut fields = schema.fields().to_vec();
        let mut columns = Vec::new();
        for (name, ops) in chain.columns.0.iter() {
            let at = schema.index_of(name).map_err(|_| {
                let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                ChainError::Column { column: name.clone(), columns: names.join(", ") }
            })?;
            let (mut kind, mut steps) = (Kind::of(&fields[at]), Vec::with_capacity(ops.len()));
            for (index, op) in ops.iter().enumerate() {
                let fitted = op.operation().fit(&kind).map_err(|reason| ChainError::Op {
                    column: name.clone(),
                    index,
                    name: op.name(),
                    reason,
                })?;
                kind = fitted.output.clone();
                steps.push(Step { name: op.name(), takes_nulls: op.operation().takes_nulls(), fitted });
            }
            if !steps.is_empty() {
                fields[at] = Arc::new(kind.field(name));
                columns.push(Column { at, steps });
            }
        }
        let schema = Schema::new_with_metadata(fields, schema.metadata().clone());
        Ok(Self { columns, schema: Arc::new(schema) })
    }

    /// The columns of changed record batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The indices of the columns that it changes.
    pub fn changed(&self) -> impl Iterator<Item = usize> {
        self.columns.iter().map(|column| column.at)
    }

    /// The bytes of a row in its changed columns, without those of lists, whose lengths differ.
    pub fn bytes(&self) -> u64 {
        let of = |column: &Column| {
            let kind = Kind::of(self.schema.field(column.at));
            let width = kind.width().unwrap_or_default() as u64;
            width.saturating_mul(kind.item.primitive_width().unwrap_or(1) as u64)
        };
        self.columns.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Changes a record batch of the columns that it was made for. The others are not copied.
    ///
    /// # Errors
    /// [`ValueError`] for the first value to which an operation gives no result: a null, a class that is out of range.
    ///
    /// # Panics
    /// If the batch has other columns.
    pub fn apply(&self, batch: &RecordBatch) -> Result<RecordBatch, ValueError> {
        assert_eq!(
            batch.num_columns(),
            self.schema.fields().len(),
            "a batch of the columns that were checked"
        );
        let mut columns = batch.columns().to_vec();
        for Column { at, steps } in &self.columns {
            let field = self.schema.field(*at);
            let error = |index: usize, BadValue { row, reason }| ValueError {
                column: field.name().clone(),
                row,
                index,
                name: steps[index].name,
                reason,
            };
            let mut values = Values::of(&columns[*at]);
            for (index, step) in steps.iter().enumerate() {
                if !step.takes_nulls
                    && let Some(row) = values.null()
                {
                    let reason = "gets a null: put FillNull before it".to_owned();
                    return Err(error(index, BadValue { row, reason }));
                }
                values = (step.fitted.change)(values).map_err(|bad| error(index, bad))?;
            }
            let last = steps.len() - 1;
            let column = values.column(&steps[last].fitted.output);
            columns[*at] = column.map_err(|failed: ArrowError| error(last, failed.into()))?;
        }
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options);
        Ok(batch.expect("its columns were made for the schema"))
    }
}

impl fmt::Debug for Transform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.columns.iter().map(|column| {
            let names: Vec<&str> = column.steps.iter().map(|step| step.name).collect();
            (self.schema.field(column.at).name(), names)
        });
        f.debug_map().entries(steps).finish()
    }
}

#[cfg(test)]
mod tests;
