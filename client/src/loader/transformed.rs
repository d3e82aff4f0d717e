//! The columns that transforms change, in each batch, by the threads that gather it: those of single samples, and whole columns.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use shardfmt::row::Memory;

use super::error::LoadError;
use super::tensors::refused;
use super::transformed_samples::{Changed, TransformedSamples};
use super::transforms::Transforms;

/// The metadata of transformed batches with the digest of the transforms.
pub const TRANSFORMS: &str = "shardd.transforms";

/// Transforms that fit the columns of batches.
#[derive(Debug)]
pub struct Transformed {
    samples: Option<TransformedSamples>,
    columns: Option<shardd_columns::Transform>,
    schema: SchemaRef,
}

impl Transformed {
    /// Transforms for batches of these columns, in an order with this seed.
    ///
    /// # Errors
    /// [`LoadError`] if the columns have no pictures or sounds or several of them, the transforms do not fit the columns, or two of
    /// them change one column.
    pub fn new(transforms: &Transforms, columns: &Schema, seed: u64) -> Result<Self, LoadError> {
        let samples = transforms.samples().map(|samples| TransformedSamples::new(samples, columns, seed));
        let samples = samples.transpose()?;
        let changed = transforms.columns().cloned();
        let changed = changed.map(|chain| shardd_columns::Transform::new(chain, columns)).transpose()?;
        let mut schema = columns.clone();
        if let Some(samples) = &samples {
            schema = samples.schema().as_ref().clone();
        }
        if let Some(changed) = &changed {
            let mut fields = schema.fields().to_vec();
            for column in changed.changed() {
                let name = columns.field(column).name();
                if samples.as_ref().is_some_and(|samples| samples.changed().any(|other| other == column)) {
                    return Err(LoadError::Config(format!(
                        "two transforms change column {name:?}, one of samples and one of columns: leave it out of one of them"
                    )));
                }
                fields[column] = Arc::clone(&changed.schema().fields()[column]);
            }
            schema = Schema::new_with_metadata(fields, schema.metadata().clone());
        }
        schema.metadata.insert(TRANSFORMS.to_owned(), transforms.digest());
        let schema = Arc::new(schema);
        let samples = samples.map(|samples| samples.with_schema(Arc::clone(&schema)));
        Ok(Self { samples, columns: changed, schema })
    }

    /// The columns of transformed batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Bytes of a sample's transformed values in a batch; those of labels are there twice while they are mixed.
    pub(crate) fn bytes(&self) -> u64 {
        let samples = self.samples.as_ref().map_or(0, TransformedSamples::bytes);
        samples + self.columns.as_ref().map_or(0, shardd_columns::Transform::bytes)
    }

    /// Bytes of the largest picture on its way.
    pub(crate) fn largest(&self) -> u64 {
        self.samples.as_ref().map_or(0, TransformedSamples::largest)
    }

    /// The classes of labels that are mixed.
    pub fn classes(&self) -> Option<u32> {
        self.samples.as_ref().and_then(TransformedSamples::classes)
    }

    /// Changes a batch whose rows are at these positions of these epochs, into memory that is lent.
    ///
    /// # Errors
    /// [`LoadError::Picture`] for a picture that cannot be decoded or changed, unless it is to be zeros or left out,
    /// [`LoadError::Label`] for a label of no class, and [`LoadError::Value`] for another value to which an operation gives no result.
    pub fn apply(
        &self,
        batch: &RecordBatch,
        places: &[(u32, u64)],
        memory: &dyn Memory,
    ) -> Result<Changed, LoadError> {
        // Whole columns first: they have all rows, as `places` has.
        let changed = self.columns.as_ref().map(|columns| columns.apply(batch)).transpose();
        let changed = changed.map_err(|source| {
            let (epoch, position) = places[source.row];
            LoadError::Value { column: source.column.clone(), epoch, position, source: Box::new(source) }
        })?;
        let batch = changed.as_ref().unwrap_or(batch);
        match &self.samples {
            Some(samples) => samples.apply(batch, places, memory),
            None => {
                let batch = batch.clone().with_schema(Arc::clone(&self.schema)).map_err(refused)?;
                Ok(Changed { batch, failed: Vec::new() })
            }
        }
    }
}
