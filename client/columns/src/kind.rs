//! What a column has in each row: one value, or several.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};

use crate::dtype::Dtype;
use crate::tensor;

/// The most values that a row may have in a column of one shape.
pub(crate) const MOST_WIDTH: usize = 1 << 20;

/// How many values a row has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// One.
    One,
    /// A list of its own length.
    Lists,
    /// The same, with offsets of 64 bits.
    LargeLists,
    /// As many as this shape has.
    Fixed(Vec<usize>),
}

/// The form of a column's rows, and the type of their values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// How many values a row has.
    pub form: Form,
    /// The type of each.
    pub item: DataType,
}

impl Kind {
    /// That of a column.
    pub fn of(field: &Field) -> Self {
        let (form, item) = match field.data_type() {
            DataType::List(item) => (Form::Lists, item.data_type()),
            DataType::LargeList(item) => (Form::LargeLists, item.data_type()),
            DataType::FixedSizeList(item, width) => {
                let width = usize::try_from(*width).unwrap_or_default();
                let shape = tensor::shape(field).filter(|shape| product(shape) == Some(width));
                (Form::Fixed(shape.unwrap_or_else(|| vec![width])), item.data_type())
            }
            one => (Form::One, one),
        };
        Self { form, item: item.clone() }
    }

    /// The values in a row, if all rows have as many.
    pub fn width(&self) -> Option<usize> {
        match &self.form {
            Form::One => Some(1),
            Form::Fixed(shape) => product(shape),
            Form::Lists | Form::LargeLists => None,
        }
    }

    /// A column of it, which has no nulls.
    pub(crate) fn field(&self, name: &str) -> Field {
        let item = || Arc::new(Field::new("item", self.item.clone(), false));
        match &self.form {
            Form::One => Field::new(name, self.item.clone(), false),
            Form::Lists => Field::new(name, DataType::List(item()), false),
            Form::LargeLists => Field::new(name, DataType::LargeList(item()), false),
            Form::Fixed(shape) => {
                let width = product(shape).and_then(|width| i32::try_from(width).ok());
                let list = DataType::FixedSizeList(item(), width.expect("checked with the operation"));
                Field::new(name, list, false).with_metadata(tensor::metadata(shape))
            }
        }
    }

    /// With values of another type.
    pub(crate) fn with_item(&self, item: DataType) -> Self {
        Self { form: self.form.clone(), item }
    }

    pub(crate) fn is_integer(&self) -> bool {
        self.item.is_integer()
    }

    /// Whether its values are integers or floats.
    pub(crate) fn is_number(&self) -> bool {
        self.item.is_integer() || self.item.is_floating()
    }

    pub(crate) fn is_words(&self) -> bool {
        matches!(
            self.item,
            DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::FixedSizeBinary(_)
        )
    }
}

/// How many values a shape has; `None` if they are beyond counting.
pub(crate) fn product(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size))
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let item = match (&self.item, Dtype::of(&self.item)) {
            (_, Some(dtype)) => dtype.to_string(),
            (DataType::Utf8 | DataType::LargeUtf8, _) => "text".to_owned(),
            (DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_), _) => {
                "binary".to_owned()
            }
            (other, _) => other.to_string(),
        };
        match &self.form {
            Form::One => write!(f, "{item}"),
            Form::Lists | Form::LargeLists => write!(f, "lists of {item}"),
            Form::Fixed(shape) => write!(f, "{item} of {shape:?}"),
        }
    }
}
