//! The labels of a batch whose samples are mixed: a share of each class.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, FixedSizeListArray, RecordBatch, make_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float32Type, Int64Type, Schema};
use shardd_transforms::Mixing;
use shardfmt::manifest::CLASSES_KEY;
use shardfmt::row::Memory;

use super::error::LoadError;
use super::tensors::{metadata, refused};

/// The most classes that a batch has shares of.
const MOST_CLASSES: u32 = 1 << 24;

/// A column of labels that becomes one of shares.
#[derive(Debug)]
pub(super) struct SoftLabels {
    column: usize,
    name: String,
    classes: u32,
    /// Whether the column has shares already.
    are_shares: bool,
}

impl SoftLabels {
    /// The labels that a mixing names, or the column whose name says that it has them.
    ///
    /// # Errors
    /// [`LoadError::Config`] if there is no such column, or its classes cannot be counted.
    pub(super) fn new(mixing: &Mixing, columns: &Schema) -> Result<Self, LoadError> {
        let name = match &mixing.labels {
            Some(name) => name.clone(),
            None => named_labels(columns)?,
        };
        let column = columns.index_of(&name).map_err(|_| {
            LoadError::Config(format!("there is no column {name:?} of labels: {}", named(columns)))
        })?;
        let field = columns.field(column);
        let (are_shares, counted) = match field.data_type() {
            kind if kind.is_integer() => (false, classes_of(field)),
            DataType::FixedSizeList(item, count) if item.data_type().is_floating() => {
                (true, u32::try_from(*count).ok())
            }
            kind => {
                return Err(LoadError::Config(format!(
                    "MixUp and CutMix mix labels that are integers or shares of each class, and column {name:?} is {kind}"
                )));
            }
        };
        let classes = match (mixing.num_classes, counted) {
            (Some(given), Some(counted)) if given < counted || are_shares && given != counted => {
                return Err(LoadError::Config(format!(
                    "num_classes is {given}, and column {name:?} has {counted} classes"
                )));
            }
            (given, counted) => given.or(counted).ok_or_else(|| {
                LoadError::Config(format!("column {name:?} does not name its classes: give num_classes"))
            })?,
        };
        if classes > MOST_CLASSES {
            return Err(LoadError::Config(format!(
                "num_classes is {classes}: shares of at most {MOST_CLASSES} classes fit a batch"
            )));
        }
        Ok(Self { column, name, classes, are_shares })
    }

    pub(super) fn column(&self) -> usize {
        self.column
    }

    pub(super) fn classes(&self) -> u32 {
        self.classes
    }

    fn width(&self) -> usize {
        self.classes as usize
    }

    fn data_type(&self) -> DataType {
        DataType::FixedSizeList(
            Arc::new(Field::new("item", DataType::Float32, false)),
            self.classes.cast_signed(),
        )
    }

    /// The column of shares that takes the place of the labels.
    pub(super) fn field(&self, columns: &Schema) -> Field {
        let labels = columns.field(self.column);
        let mut metadata = metadata(&[self.width()]);
        metadata.extend(
            labels.metadata().get(CLASSES_KEY).map(|classes| (CLASSES_KEY.to_owned(), classes.clone())),
        );
        Field::new(labels.name(), self.data_type(), false).with_metadata(metadata)
    }

    /// The share of each class, row by row: 1 for that of the label.
    ///
    /// # Errors
    /// [`LoadError::Label`] for a row without a label, or with one of no class.
    pub(super) fn shares(&self, batch: &RecordBatch, places: &[(u32, u64)]) -> Result<Vec<f32>, LoadError> {
        let column = batch.column(self.column);
        let bad = |row: usize, label: Option<i64>| {
            let (epoch, position) = places[row];
            LoadError::Label { column: self.name.clone(), epoch, position, label, classes: self.classes }
        };
        if let Some(row) = (0..column.len()).find(|row| column.is_null(*row)) {
            return Err(bad(row, None));
        }
        if self.are_shares {
            let list = column.as_fixed_size_list();
            let values = cast(list.values(), &DataType::Float32).map_err(refused)?;
            let start = list.value_offset_at(0);
            return Ok(values.as_primitive::<Float32Type>().values()[start..][..column.len() * self.width()]
                .to_vec());
        }
        // A number beyond 2^63 becomes null.
        let labels = cast(column, &DataType::Int64).map_err(refused)?;
        let mut shares = vec![0.0; column.len() * self.width()];
        for (row, (label, shares)) in
            labels.as_primitive::<Int64Type>().iter().zip(shares.chunks_exact_mut(self.width())).enumerate()
        {
            let share =
                label.and_then(|label| usize::try_from(label).ok()).and_then(|class| shares.get_mut(class));
            *share.ok_or_else(|| bad(row, label))? = 1.0;
        }
        Ok(shares)
    }

    /// Shares as a column, in memory that is lent.
    ///
    /// # Errors
    /// [`LoadError::Memory`] if there is none.
    pub(super) fn array(&self, shares: Vec<f32>, memory: &dyn Memory) -> Result<ArrayRef, LoadError> {
        let len = size_of_val(shares.as_slice());
        let mut lent = memory.lend(len).map_err(|source| LoadError::Memory { source })?;
        for (bytes, share) in lent.as_mut_slice()[..len].as_chunks_mut::<4>().0.iter_mut().zip(&shares) {
            *bytes = share.to_le_bytes();
        }
        let numbers = ArrayData::builder(DataType::Float32)
            .len(shares.len())
            .add_buffer(lent.into_buffer(len))
            .build()
            .map_err(refused)?;
        let DataType::FixedSizeList(item, width) = self.data_type() else { unreachable!("made above") };
        Ok(Arc::new(FixedSizeListArray::try_new(item, width, make_array(numbers), None).map_err(refused)?))
    }
}

/// The classes that a column names.
fn classes_of(field: &Field) -> Option<u32> {
    let names: Vec<String> = serde_json::from_str(field.metadata().get(CLASSES_KEY)?).ok()?;
    u32::try_from(names.len()).ok()
}

/// The column of labels by its name: `label` or `labels`, else the only one whose name has `label` in it.
fn named_labels(columns: &Schema) -> Result<String, LoadError> {
    let names = || columns.fields().iter().map(|field| field.name());
    let lower = |name: &String| name.to_lowercase();
    let exact = names().find(|name| matches!(lower(name).as_str(), "label" | "labels"));
    let mut having = names().filter(|name| lower(name).contains("label"));
    match (exact, having.next(), having.next()) {
        (Some(name), _, _) | (None, Some(name), None) => Ok(name.clone()),
        _ => Err(LoadError::Config(format!(
            "MixUp and CutMix mix labels, and no column is known as theirs: name it (labels). {}",
            named(columns)
        ))),
    }
}

fn named(columns: &Schema) -> String {
    let names: Vec<&str> = columns.fields().iter().map(|field| field.name().as_str()).collect();
    format!("There are {}", names.join(", "))
}
