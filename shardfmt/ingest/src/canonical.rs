//! Brings what a file declares to what shards hold: plain types, and no metadata that describes the file rather than
//! the data. Also says in what two files differ.

use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use shardfmt::row::{RowError, plain_batch, plain_schema};

use super::IngestError;
use super::error::one_line;

/// Metadata of a field that says how its file stored it.
const OF_THE_FILE: [&str; 1] = ["PARQUET:field_id"];

/// The schema with plain types, without metadata of the file, and with Arrow's own names for the items of lists and maps,
/// which writers of Parquet and Spark name otherwise. Metadata of fields (extension types, class names) stays.
///
/// # Errors
/// A column that shards cannot hold, or two columns of one name.
pub(super) fn canonical_schema(path: &Path, schema: &Schema) -> Result<SchemaRef, IngestError> {
    let fields = schema.fields();
    for (index, field) in fields.iter().enumerate() {
        if fields[..index].iter().any(|earlier| earlier.name() == field.name()) {
            return Err(IngestError::Column {
                path: path.to_owned(),
                column: field.name().clone(),
                data_type: field.data_type().to_string(),
                reason: "another column has the same name".to_owned(),
            });
        }
    }
    let plain = plain_schema(schema).map_err(|error| row_error(path, error))?;
    Ok(Arc::new(Schema::new(plain.fields().iter().map(canonical_field).collect::<Fields>())))
}

/// A field of a plain type, and those within it.
fn canonical_field(field: &FieldRef) -> FieldRef {
    let named =
        |field: &FieldRef, name: &str| Arc::new(Field::clone(&canonical_field(field)).with_name(name));
    let data_type = match field.data_type() {
        DataType::List(item) => DataType::List(named(item, Field::LIST_FIELD_DEFAULT_NAME)),
        DataType::LargeList(item) => DataType::LargeList(named(item, Field::LIST_FIELD_DEFAULT_NAME)),
        DataType::FixedSizeList(item, size) => {
            DataType::FixedSizeList(named(item, Field::LIST_FIELD_DEFAULT_NAME), *size)
        }
        DataType::Map(entries, is_sorted) => DataType::Map(map_entries(entries), *is_sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(canonical_field).collect()),
        other => other.clone(),
    };
    let mut metadata = field.metadata().clone();
    OF_THE_FILE.iter().for_each(|key| _ = metadata.remove(key));
    Arc::new(Field::clone(field).with_data_type(data_type).with_metadata(metadata))
}

/// The struct of a key and a value that a map is a list of.
fn map_entries(entries: &FieldRef) -> FieldRef {
    let entries = canonical_field(entries);
    let named = |(field, name): (&FieldRef, &str)| Field::clone(field).with_name(name);
    let data_type = match entries.data_type() {
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().zip(["key", "value"]).map(named).collect())
        }
        other => other.clone(),
    };
    Arc::new(Field::clone(&entries).with_name("entries").with_data_type(data_type))
}

/// The same rows under a canonical schema, which must come from the batch's own.
pub(super) fn canonical_batch(
    path: &Path,
    batch: &RecordBatch,
    schema: &SchemaRef,
) -> Result<RecordBatch, IngestError> {
    plain_batch(batch, schema).map_err(|error| row_error(path, error))
}

/// The first thing in which two canonical schemas differ, or `None`. Whether a column may be null is not compared.
fn difference(first: &Schema, other: &Schema) -> Option<String> {
    for (index, field) in first.fields().iter().enumerate() {
        let Some(found) = other.fields().get(index) else {
            return Some(format!("column {:?} is missing", field.name()));
        };
        if found.name() != field.name() {
            return Some(format!("column {index} is {:?} instead of {:?}", found.name(), field.name()));
        }
        if found.data_type() != field.data_type() {
            let (found, expected) = (found.data_type(), field.data_type());
            return Some(format!("column {:?} is {found} instead of {expected}", field.name()));
        }
        if found.metadata() != field.metadata() {
            return Some(format!(
                "column {:?} has other metadata (tensor shape or class names)",
                field.name()
            ));
        }
    }
    let extra = other.fields().get(first.fields().len())?;
    Some(format!("column {:?} is added", extra.name()))
}

/// The first schema, with every column nullable that is nullable in either.
fn widen(first: &Schema, other: &Schema) -> SchemaRef {
    let fields = first.fields().iter().zip(other.fields());
    let fields = fields.map(|(a, b)| Field::clone(a).with_nullable(a.is_nullable() || b.is_nullable()));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The schema of two files of one dataset: `schema`, read from `path`, must have the columns of `first`, which the file
/// called `name` has.
pub(super) fn common(
    first: &SchemaRef,
    name: &str,
    schema: &SchemaRef,
    path: &Path,
) -> Result<SchemaRef, IngestError> {
    match difference(first, schema) {
        None => Ok(widen(first, schema)),
        Some(difference) => {
            Err(IngestError::Schemas { path: path.to_owned(), first: name.into(), difference })
        }
    }
}

/// The error of the row format about a file's columns or rows, with the file it is about.
pub(super) fn row_error(path: &Path, error: RowError) -> IngestError {
    let path = path.to_owned();
    match error {
        RowError::Unsupported { column, data_type, reason } => {
            IngestError::Column { path, column, data_type, reason: reason.to_owned() }
        }
        RowError::Arrow(reason) => IngestError::Row { path, reason: one_line(reason) },
        other => IngestError::Row { path, reason: one_line(other) },
    }
}
