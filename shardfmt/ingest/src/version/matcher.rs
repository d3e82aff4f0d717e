//! Which samples have certain values in certain columns. Values are given as text, and read as the type of their column.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow::compute::{CastOptions, can_cast_types, cast_with_options};
use arrow::datatypes::{DataType, Schema};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};

/// Values that a column may have.
///
/// ```
/// use shardd_ingest::version::{Condition, ConditionError, Matcher};
/// use shardfmt::arrow::datatypes::{DataType, Field, Schema};
///
/// let schema = Schema::new(vec![Field::new("label", DataType::Int64, false)]);
/// let label = |value: &str| Condition { column: "label".into(), values: vec![value.into()] };
/// assert!(Matcher::new(&schema, &[label("7")]).is_ok());
/// let refused = Matcher::new(&schema, &[label("seven")]);
/// assert!(matches!(refused, Err(ConditionError::WrongType { .. })));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The column.
    pub column: String,
    /// The values, as text. A sample fits with any of them.
    pub values: Vec<String>,
}

/// Why a condition says nothing about some samples.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum ConditionError {
    /// Name one of those that there are.
    #[error("there is no column {column:?}: there is {}", columns.join(", "))]
    NoColumn { column: String, columns: Vec<String> },
    /// Give a value of the column's type.
    #[error("{value:?} is not a value of column {column:?}, which has the type {data_type}")]
    WrongType { column: String, value: String, data_type: DataType },
    /// Choose another column, or name the samples one by one.
    #[error(
        "values of column {column:?}, which has the type {data_type}, cannot be given as text: choose another column, or name the rows"
    )]
    Unsupported { column: String, data_type: DataType },
}

/// Tells which samples of one schema fit all of some conditions. Conditions on the same column are one, with the values of all.
/// A missing value fits none.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kept.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::version::{Base, Condition, Matcher, find_rows, forget};
/// # use shardd_ingest::{IngestConfig, Inputs, NoProgress, Resources, Source, ingest};
/// # let (kept, config) = (Kept::default(), IngestConfig::default());
/// # let words = "word,label\ncat,0\ndog,1\ncow,0\n";
/// # let source = Source::new(Inputs::in_memory("words.csv", words), &config)?;
/// # let manifest = ingest(source, &config, &Resources::threads(1), &kept, &NoProgress)?.manifest;
///
/// let with_label_0 = Condition { column: "label".into(), values: vec!["0".into()] };
/// let matcher = Matcher::new(&manifest.schema, &[with_label_0])?;
/// let found = find_rows(&manifest.shards, &matcher, &kept, 1, &NoProgress)?;
/// let rows = found.into_values().flatten().collect();
///
/// let base = Base { id: manifest.id(), manifest: &manifest, provenance: None };
/// let without = forget(base, &rows, &kept, 1, &kept, &NoProgress)?;
/// assert_eq!((manifest.sample_count(), without.sample_count()), (3, 1));
/// # Ok(())
/// # }
/// ```
pub struct Matcher(Vec<Column>);

struct Column {
    index: usize,
    converter: RowConverter,
    wanted: BTreeSet<Vec<u8>>,
}

impl Matcher {
    /// For samples of this schema.
    ///
    /// # Errors
    ///
    /// A column that is not there, or a value that is not of its type.
    pub fn new(schema: &Schema, conditions: &[Condition]) -> Result<Self, ConditionError> {
        let mut of_columns = BTreeMap::<&str, Vec<&str>>::new();
        for Condition { column, values } in conditions {
            of_columns.entry(column).or_default().extend(values.iter().map(String::as_str));
        }
        let columns = of_columns.into_iter().map(|(column, values)| Column::new(schema, column, &values));
        Ok(Self(columns.collect::<Result<_, _>>()?))
    }

    /// Of each sample of a record batch, whether it fits.
    ///
    /// # Errors
    ///
    /// When the batch is of another schema.
    pub(super) fn fits(&self, batch: &RecordBatch) -> Result<Vec<bool>, ArrowError> {
        let mut fits = vec![true; batch.num_rows()];
        for Column { index, converter, wanted } in &self.0 {
            let column = batch
                .columns()
                .get(*index)
                .ok_or_else(|| ArrowError::SchemaError(format!("there is no column {index}")))?;
            let rows = converter.convert_columns(std::slice::from_ref(column))?;
            for (number, (fits, row)) in fits.iter_mut().zip(rows.iter()).enumerate() {
                *fits = *fits && column.is_valid(number) && wanted.contains(row.as_ref());
            }
        }
        Ok(fits)
    }
}

impl Column {
    fn new(schema: &Schema, column: &str, values: &[&str]) -> Result<Self, ConditionError> {
        let Some((index, field)) = schema.column_with_name(column) else {
            let columns = schema.fields().iter().map(|field| field.name().clone()).collect();
            return Err(ConditionError::NoColumn { column: column.to_owned(), columns });
        };
        let data_type = field.data_type();
        let unsupported =
            || ConditionError::Unsupported { column: column.to_owned(), data_type: data_type.clone() };
        if data_type.is_nested() || !can_cast_types(&DataType::Utf8, data_type) {
            return Err(unsupported());
        }
        let converter =
            RowConverter::new(vec![SortField::new(data_type.clone())]).map_err(|_| unsupported())?;
        let read = read_as(data_type, values).map_err(|wrong| ConditionError::WrongType {
            column: column.to_owned(),
            value: wrong.to_owned(),
            data_type: data_type.clone(),
        })?;
        let rows = converter.convert_columns(&[read]).map_err(|_| unsupported())?;
        let wanted = rows.iter().map(|row| row.as_ref().to_vec()).collect();
        Ok(Self { index, converter, wanted })
    }
}

/// The values as an array of that type; else the first that is none.
fn read_as<'a>(data_type: &DataType, values: &[&'a str]) -> Result<ArrayRef, &'a str> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let cast = |values: Vec<&str>| {
        let text: ArrayRef = Arc::new(StringArray::from(values));
        cast_with_options(&text, data_type, &options).ok().filter(|read| read.null_count() == 0)
    };
    let wrong = || values.iter().copied().find(|value| cast(vec![value]).is_none());
    cast(values.to_vec()).ok_or_else(|| wrong().or(values.first().copied()).unwrap_or_default())
}
