//! The columns that a chain of transforms changes, in each batch, by the threads that gather it: pictures, and the labels of
//! pictures that are mixed.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, RecordBatch, make_array,
};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt8Type};
use shardd_transforms::{Chain, ChainError, Dtype, Input, OnError, Place, Transform};
use shardfmt::row::Memory;

use super::error::{LoadError, PictureError};
use super::soft_labels::SoftLabels;
use super::tensors::{metadata, refused, shape};

/// The metadata of a column of 16-bit numbers that are floats with 8 bits of exponent, for which Arrow has no type.
pub const BFLOAT16: [&str; 2] = ["shardd.dtype", "bfloat16"];

/// The metadata of transformed batches with the digest of the chain.
pub const TRANSFORMS: &str = "shardd.transforms";

/// A chain of transforms that fits a column.
#[derive(Debug)]
pub struct Transformed {
    transform: Transform,
    seed: u64,
    column: usize,
    /// The labels of pictures that are mixed.
    labels: Option<SoftLabels>,
    schema: SchemaRef,
}

/// A sample whose picture could not be decoded or changed, where the transforms have a remedy other than an error.
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

impl Transformed {
    /// A chain for batches of these columns, in an order with this seed.
    ///
    /// # Errors
    /// [`LoadError::Transforms`] if the columns have no pictures or several of them, or the chain does not fit them.
    pub fn new(chain: &Chain, columns: &Schema, seed: u64) -> Result<Self, LoadError> {
        if !chain.companions.is_empty() {
            let message = "a loader changes pictures alone: leave companions out, or move boxes, masks and key points with \
                           shardd_transforms::Transform::apply_with";
            return Err(LoadError::Config(message.into()));
        }
        let (column, input) = pictures(chain, columns)?;
        let transform = Transform::new(chain.clone(), input)?;
        let labels = chain.batch.as_ref().map(|mixing| SoftLabels::new(mixing, columns)).transpose()?;
        let mut fields = columns.fields().to_vec();
        fields[column] = Arc::new(field(&fields[column], &transform));
        if let Some(labels) = &labels {
            fields[labels.column()] = Arc::new(labels.field(columns));
        }
        let mut metadata = columns.metadata().clone();
        metadata.insert(TRANSFORMS.to_owned(), chain.digest().to_hex().to_string());
        let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
        Ok(Self { transform, seed, column, labels, schema })
    }

    /// The columns of transformed batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Bytes of a sample's picture in a batch, and of its labels, which are there twice while they are mixed.
    pub(crate) fn bytes(&self) -> u64 {
        self.transform.bytes() as u64 + self.classes().map_or(0, |classes| 2 * 4 * u64::from(classes))
    }

    /// Bytes of the largest picture on its way.
    pub(crate) fn largest(&self) -> u64 {
        self.transform.largest()
    }

    /// The classes of labels that are mixed.
    pub fn classes(&self) -> Option<u32> {
        self.labels.as_ref().map(SoftLabels::classes)
    }

    /// Changes a batch whose rows are at these positions of these epochs, into memory that is lent.
    ///
    /// # Errors
    /// [`LoadError::Picture`] for a picture that cannot be decoded or changed, unless it is to be zeros or left out, and
    /// [`LoadError::Label`] for a label of no class.
    pub fn apply(
        &self,
        batch: &RecordBatch,
        places: &[(u32, u64)],
        memory: &dyn Memory,
    ) -> Result<Changed, LoadError> {
        let size = self.transform.bytes();
        let len = size.checked_mul(places.len()).ok_or_else(too_large)?;
        let mut lent = memory.lend(len).map_err(|source| LoadError::Memory { source })?;
        let failed = self.write(batch, places, &mut lent.as_mut_slice()[..len])?;
        let kept: Vec<bool> = kept(places.len(), &failed);
        let rest = match failed.iter().any(|failed| failed.skipped) {
            true => filter_record_batch(batch, &BooleanArray::from(kept.clone())).map_err(refused)?,
            false => batch.clone(),
        };
        let len = size * rest.num_rows();
        let mut columns = rest.columns().to_vec();
        if let Some(labels) = &self.labels {
            let places: Vec<(u32, u64)> =
                places.iter().zip(&kept).filter_map(|(place, kept)| kept.then_some(*place)).collect();
            let mut shares = labels.shares(&rest, &places)?;
            if let Some(&first) = places.first() {
                self.transform.mix(self.place(first), &mut lent.as_mut_slice()[..len], &mut shares);
            }
            columns[labels.column()] = labels.array(shares, memory)?;
        }
        let numbers = ArrayData::builder(numbers(self.transform.dtype()))
            .len(len / self.transform.dtype().size())
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
    ) -> Result<Vec<Failed>, LoadError> {
        let samples = Samples::of(batch.column(self.column));
        let (mut written, mut failed) = (0, Vec::new());
        for (row, &(epoch, position)) in places.iter().enumerate() {
            let picture = &mut pictures[written..][..self.transform.bytes()];
            let done = match samples.get(row) {
                Some(sample) => self
                    .transform
                    .apply(sample, self.place((epoch, position)), picture)
                    .map_err(PictureError::Sample),
                None => Err(PictureError::Missing),
            };
            let skipped = match (done, self.transform.chain().on_error) {
                (Ok(()), _) => false,
                (Err(source), OnError::Raise) => {
                    let column = self.schema.field(self.column).name().clone();
                    return Err(LoadError::Picture { column, epoch, position, source: Box::new(source) });
                }
                (Err(source), on_error) => {
                    picture.fill(0);
                    let skipped = on_error == OnError::Skip;
                    failed.push(Failed { row, epoch, position, reason: source.to_string(), skipped });
                    skipped
                }
            };
            written += if skipped { 0 } else { self.transform.bytes() };
        }
        Ok(failed)
    }

    fn place(&self, (epoch, position): (u32, u64)) -> Place {
        Place { seed: self.seed, epoch: epoch.into(), position }
    }
}

/// Which rows of a batch of this length stay in it.
pub(crate) fn kept(rows: usize, failed: &[Failed]) -> Vec<bool> {
    let mut kept = vec![true; rows];
    failed.iter().filter(|failed| failed.skipped).for_each(|failed| kept[failed.row] = false);
    kept
}

fn too_large() -> LoadError {
    LoadError::Config(
        "a batch of transformed pictures is larger than the memory: use smaller batches or pictures".into(),
    )
}

/// Where the bytes of each sample are.
enum Samples<'a> {
    Bytes(Box<dyn Fn(usize) -> Option<&'a [u8]> + 'a>),
    Pixels { bytes: &'a [u8], width: usize, list: &'a FixedSizeListArray },
}

impl<'a> Samples<'a> {
    fn of(column: &'a ArrayRef) -> Self {
        fn present<'a>(array: &'a dyn Array, row: usize, value: &'a [u8]) -> Option<&'a [u8]> {
            array.is_valid(row).then_some(value)
        }
        match column.data_type() {
            DataType::LargeBinary => {
                let array = column.as_binary::<i64>();
                Self::Bytes(Box::new(move |row| present(array, row, array.value(row))))
            }
            DataType::BinaryView => {
                let array = column.as_binary_view();
                Self::Bytes(Box::new(move |row| present(array, row, array.value(row))))
            }
            DataType::FixedSizeList(_, width) => {
                let list = column.as_fixed_size_list();
                let bytes: &[u8] = list.values().as_primitive::<UInt8Type>().values();
                Self::Pixels { bytes, width: *width as usize, list }
            }
            _ => {
                let array = column.as_binary::<i32>();
                Self::Bytes(Box::new(move |row| present(array, row, array.value(row))))
            }
        }
    }

    fn get(&self, row: usize) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(of_row) => of_row(row),
            Self::Pixels { bytes, width, list } => {
                let start = list.value_offset_at(row);
                list.is_valid(row).then(|| &bytes[start..start + width])
            }
        }
    }
}

/// The column that the chain names, or the only one with pictures, and their kind.
fn pictures(chain: &Chain, columns: &Schema) -> Result<(usize, Input), LoadError> {
    if let Some(name) = &chain.column {
        let column = columns.index_of(name).map_err(|_| {
            let names: Vec<&str> = columns.fields().iter().map(|field| field.name().as_str()).collect();
            LoadError::Config(format!(
                "the transforms are of column {name:?}, and there are {}",
                names.join(", ")
            ))
        })?;
        return Ok((column, input(columns.field(column))?));
    }
    let found: Vec<(usize, Input)> = columns
        .fields()
        .iter()
        .enumerate()
        .filter_map(|(at, field)| Some((at, input(field).ok()?)))
        .collect();
    match found.as_slice() {
        [one] => Ok(*one),
        [] => {
            Err(LoadError::Config("no column has encoded images or uint8 pixels for the transforms".into()))
        }
        several => {
            let names: Vec<&str> = several.iter().map(|(at, _)| columns.field(*at).name().as_str()).collect();
            Err(LoadError::Config(format!(
                "transforms of one of the columns {}: name it (column)",
                names.join(", ")
            )))
        }
    }
}

fn input(field: &Field) -> Result<Input, ChainError> {
    match field.data_type() {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Ok(Input::Encoded),
        DataType::FixedSizeList(item, _) if *item.data_type() == DataType::UInt8 => match shape(field) {
            Some(shape) => Input::of_shape(&shape),
            None => Err(ChainError::Input("lists of uint8 without a shape".into())),
        },
        other => Err(ChainError::Input(other.to_string())),
    }
}

fn numbers(dtype: Dtype) -> DataType {
    match dtype {
        Dtype::Uint8 => DataType::UInt8,
        Dtype::Float16 => DataType::Float16,
        Dtype::Bfloat16 => DataType::UInt16,
        Dtype::Float32 => DataType::Float32,
    }
}

/// The column of transformed pictures.
fn field(column: &Field, transform: &Transform) -> Field {
    let item = Arc::new(Field::new("item", numbers(transform.dtype()), false));
    let shape = transform.shape();
    let width = i32::try_from(shape.iter().product::<usize>()).unwrap_or(i32::MAX);
    let mut metadata = metadata(&shape);
    if transform.dtype() == Dtype::Bfloat16 {
        metadata.insert(BFLOAT16[0].to_owned(), BFLOAT16[1].to_owned());
    }
    Field::new(column.name(), DataType::FixedSizeList(item, width), false).with_metadata(metadata)
}
