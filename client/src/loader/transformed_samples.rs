//! The columns that a chain for single samples changes in each batch: pictures or sounds, companions of pictures, and the labels of
//! pictures that are mixed.

use std::sync::Arc;

use arrow::array::{ArrayData, BooleanArray, FixedSizeListArray, RecordBatch, make_array};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use shardd_transforms::{Dtype, Given, OnError, Place};
use shardfmt::row::Memory;

use super::change::Change;
use super::companions::{Beside, Moving};
use super::error::{LoadError, PictureError};
use super::samples::Samples;
use super::soft_labels::SoftLabels;
use super::tensors::{metadata, refused};
use super::transforms::SampleTransforms;

/// The metadata of a column of 16-bit numbers that are floats with 8 bits of exponent, for which Arrow has no type.
pub const BFLOAT16: [&str; 2] = ["shardd.dtype", "bfloat16"];

/// A chain for single samples that fits a column.
#[derive(Debug)]
pub(super) struct TransformedSamples {
    change: Change,
    on_error: OnError,
    seed: u64,
    column: usize,
    /// The columns that move with the pictures.
    beside: Beside,
    /// The labels of pictures that are mixed.
    labels: Option<SoftLabels>,
    schema: SchemaRef,
}

/// A sample whose picture or sound could not be decoded or changed, where the transforms have a remedy other than an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Its row in the batch, counted before any sample was left out.
    pub row: usize,
    /// The epoch.
    pub epoch: u32,
    /// The sample's position in the epoch's order.
    pub position: u64,
    /// Why.
    pub reason: String,
    /// Whether it is left out of the batch; else its picture is zeros.
    pub skipped: bool,
}

/// A batch that was changed.
#[derive(Debug)]
pub struct Changed {
    /// Its rows, but for those that are left out.
    pub batch: RecordBatch,
    /// The samples whose pictures could not be decoded or changed, ascending by row.
    pub failed: Vec<Failed>,
}

impl TransformedSamples {
    /// A chain for batches of these columns, in an order with this seed.
    ///
    /// # Errors
    /// [`LoadError`] if the columns have no pictures or sounds or several of them, or the transforms do not fit them.
    pub(super) fn new(transforms: &SampleTransforms, columns: &Schema, seed: u64) -> Result<Self, LoadError> {
        let (column, change) = Change::new(transforms, columns)?;
        let beside = Beside::new(change.pictures(), columns)?;
        let mixing = transforms.pictures().and_then(|chain| chain.batch.as_ref());
        let labels = mixing.map(|mixing| SoftLabels::new(mixing, columns)).transpose()?;
        let mut fields = columns.fields().to_vec();
        fields[column] = Arc::new(field(&fields[column], &change));
        for (column, field) in beside.fields() {
            fields[column] = Arc::new(field.clone());
        }
        if let Some(labels) = &labels {
            fields[labels.column()] = Arc::new(labels.field(columns));
        }
        let schema = Arc::new(Schema::new_with_metadata(fields, columns.metadata().clone()));
        Ok(Self { change, on_error: transforms.on_error(), seed, column, beside, labels, schema })
    }

    /// The same for batches of these columns, of which those that it does not change may have other types.
    pub(super) fn with_schema(self, schema: SchemaRef) -> Self {
        Self { schema, ..self }
    }

    /// The columns of transformed batches.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Bytes of a sample's picture and masks in a batch, and of its labels, which are there twice while they are mixed.
    pub(super) fn bytes(&self) -> u64 {
        self.change.bytes() as u64
            + self.beside.bytes()
            + self.classes().map_or(0, |classes| 2 * 4 * u64::from(classes))
    }

    /// Bytes of the largest picture on its way.
    pub(super) fn largest(&self) -> u64 {
        // A mask has a byte for each pixel, of which two pictures have several.
        self.change.largest() + self.beside.planes() * (self.change.largest() / 2)
    }

    /// The indices of the columns that it changes.
    pub(super) fn changed(&self) -> impl Iterator<Item = usize> {
        let beside = self.beside.fields().map(|(column, _)| column);
        beside.chain([self.column]).chain(self.labels.as_ref().map(SoftLabels::column))
    }

    /// The classes of labels that are mixed.
    pub(super) fn classes(&self) -> Option<u32> {
        self.labels.as_ref().map(SoftLabels::classes)
    }

    /// Changes a batch whose rows are at these positions of these epochs, into memory that is lent.
    ///
    /// # Errors
    /// [`LoadError::Picture`] for a picture that cannot be decoded or changed, unless it is to be zeros or left out, and
    /// [`LoadError::Label`] for a label of no class.
    pub(super) fn apply(
        &self,
        batch: &RecordBatch,
        places: &[(u32, u64)],
        memory: &dyn Memory,
    ) -> Result<Changed, LoadError> {
        let size = self.change.bytes();
        let len = size.checked_mul(places.len()).ok_or_else(too_large)?;
        let mut lent = memory.lend(len).map_err(|source| LoadError::Memory { source })?;
        let mut beside = self.beside.of(batch, memory)?;
        let failed = self.write(batch, places, &mut lent.as_mut_slice()[..len], &mut beside)?;
        let kept = kept(places.len(), &failed);
        let rest = match &kept {
            Some(kept) => filter_record_batch(batch, &BooleanArray::from(kept.clone())).map_err(refused)?,
            None => batch.clone(),
        };
        let len = size * rest.num_rows();
        let mut columns = rest.columns().to_vec();
        for moved in beside {
            let (column, array) = moved.finish()?;
            columns[column] = array;
        }
        if let Some(labels) = &self.labels {
            let is_kept = |row: usize| kept.as_ref().is_none_or(|kept| kept[row]);
            let places: Vec<(u32, u64)> =
                places.iter().enumerate().filter_map(|(row, place)| is_kept(row).then_some(*place)).collect();
            let mut shares = labels.shares(&rest, &places)?;
            if let (Some(&first), Some(transform)) = (places.first(), self.change.pictures()) {
                transform.mix(self.place(first), &mut lent.as_mut_slice()[..len], &mut shares);
            }
            columns[labels.column()] = labels.array(shares, memory)?;
        }
        let numbers = ArrayData::builder(numbers(self.change.dtype()))
            .len(len / self.change.dtype().size())
            .add_buffer(lent.into_buffer(len))
            .build()
            .map_err(refused)?;
        let DataType::FixedSizeList(item, width) = self.schema.field(self.column).data_type() else {
            unreachable!("made by `field`")
        };
        let list = FixedSizeListArray::try_new(Arc::clone(item), *width, make_array(numbers), None)
            .map_err(refused)?;
        columns[self.column] = Arc::new(list);
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(refused)?;
        Ok(Changed { batch, failed })
    }

    /// Writes the pictures of a batch one behind the other, without those that are left out.
    fn write(
        &self,
        batch: &RecordBatch,
        places: &[(u32, u64)],
        pictures: &mut [u8],
        beside: &mut [Moving<'_>],
    ) -> Result<Vec<Failed>, LoadError> {
        let samples = Samples::of(batch.column(self.column));
        let (mut written, mut failed) = (0, Vec::new());
        for (row, &(epoch, position)) in places.iter().enumerate() {
            let picture = &mut pictures[written..][..self.change.bytes()];
            let given: Result<Vec<Given<'_>>, PictureError> =
                beside.iter().map(|moving| moving.given(row)).collect();
            let done = given.and_then(|given| {
                let sample = samples.get(row).ok_or(PictureError::Missing)?;
                self.change.apply(sample, &given, self.place((epoch, position)), picture)
            });
            let skipped = match (done, self.on_error) {
                (Ok(companions), _) => {
                    if let Some(companions) = companions {
                        for (at, moving) in beside.iter_mut().enumerate() {
                            moving.push(row, &companions, at);
                        }
                    }
                    false
                }
                (Err(source), OnError::Raise) => {
                    let column = self.schema.field(self.column).name().clone();
                    return Err(LoadError::Picture { column, epoch, position, source: Box::new(source) });
                }
                (Err(source), on_error) => {
                    picture.fill(0);
                    let skipped = on_error == OnError::Skip;
                    if !skipped {
                        beside.iter_mut().for_each(Moving::push_none);
                    }
                    failed.push(Failed { row, epoch, position, reason: source.to_string(), skipped });
                    skipped
                }
            };
            written += if skipped { 0 } else { self.change.bytes() };
        }
        Ok(failed)
    }

    fn place(&self, (epoch, position): (u32, u64)) -> Place {
        Place { seed: self.seed, epoch: epoch.into(), position }
    }
}

/// Which rows of a batch of this length stay in it; `None` if all do.
pub(crate) fn kept(rows: usize, failed: &[Failed]) -> Option<Vec<bool>> {
    if failed.iter().all(|failed| !failed.skipped) {
        return None;
    }
    let mut kept = vec![true; rows];
    failed.iter().filter(|failed| failed.skipped).for_each(|failed| kept[failed.row] = false);
    Some(kept)
}

fn too_large() -> LoadError {
    LoadError::Config(
        "a batch of transformed samples is larger than the memory: use smaller batches or samples".into(),
    )
}

fn numbers(dtype: Dtype) -> DataType {
    match dtype {
        Dtype::Uint8 => DataType::UInt8,
        Dtype::Float16 => DataType::Float16,
        Dtype::Bfloat16 => DataType::UInt16,
        Dtype::Float32 => DataType::Float32,
    }
}

/// The column of transformed pictures or sounds.
fn field(column: &Field, change: &Change) -> Field {
    let item = Arc::new(Field::new("item", numbers(change.dtype()), false));
    let shape = change.shape();
    let width = i32::try_from(shape.iter().product::<usize>()).unwrap_or(i32::MAX);
    let mut metadata = metadata(&shape);
    if change.dtype() == Dtype::Bfloat16 {
        metadata.insert(BFLOAT16[0].to_owned(), BFLOAT16[1].to_owned());
    }
    Field::new(column.name(), DataType::FixedSizeList(item, width), false).with_metadata(metadata)
}
