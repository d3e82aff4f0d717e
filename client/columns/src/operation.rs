//! What all operations can do.

use arrow::array::{ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, UInt64Type};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::kind::Kind;
use crate::values::{BadValue, Values};

/// Changes the values of a column.
pub(crate) type Change = Box<dyn Fn(Values) -> Result<Values, BadValue> + Send + Sync>;

/// An operation, checked for the values that it gets: the kind of its results, and what makes them.
pub(crate) struct Fitted {
    pub(crate) output: Kind,
    pub(crate) change: Change,
}

pub(crate) trait Operation {
    /// The operation for values of this kind.
    ///
    /// # Errors
    /// The end of the sentence that begins with its name.
    fn fit(&self, input: &Kind) -> Result<Fitted, String>;

    /// Whether it gets nulls.
    fn takes_nulls(&self) -> bool {
        false
    }
}

impl Fitted {
    /// One that makes a value of each. An error has the place of its value among all.
    pub(crate) fn each(
        output: Kind,
        change: impl Fn(&ArrayRef) -> Result<ArrayRef, BadValue> + Send + Sync + 'static,
    ) -> Self {
        let change = move |values: Values| match change(&values.items) {
            Ok(items) => Ok(values.with_items(items)),
            Err(BadValue { row: item, reason }) => Err(values.bad(item, reason)),
        };
        Self { output, change: Box::new(change) }
    }
}

/// The end of a sentence about values that an operation does not take.
pub(crate) fn takes(what: &str, input: &Kind, remedy: &str) -> String {
    format!("takes {what}, and gets {input}: {remedy}")
}

/// The way from values to numbers.
pub(crate) fn to_numbers(input: &Kind) -> &'static str {
    if input.is_words() {
        "put Vocabulary or Hash before it"
    } else {
        "put Cast(\"float32\") before it, or leave the column out"
    }
}

/// A value, to be read by a person.
pub(crate) fn shown(items: &ArrayRef, item: usize) -> String {
    let options = FormatOptions::default().with_null("null");
    let shown = ArrayFormatter::try_new(items, &options).map(|values| values.value(item).to_string());
    match (items.data_type(), shown) {
        (DataType::Utf8 | DataType::LargeUtf8, Ok(text)) => format!("{text:?}"),
        (_, Ok(value)) => value,
        (data_type, Err(_)) => format!("a value of {data_type}"),
    }
}

/// Passes on each value of integers.
pub(crate) fn integers(items: &ArrayRef, mut take: impl FnMut(Option<i128>)) -> Result<(), ArrowError> {
    if *items.data_type() == DataType::UInt64 {
        items.as_primitive::<UInt64Type>().iter().for_each(|integer| take(integer.map(i128::from)));
    } else {
        let wide = cast(items, &DataType::Int64)?;
        wide.as_primitive::<Int64Type>().iter().for_each(|integer| take(integer.map(i128::from)));
    }
    Ok(())
}
