//! Values of another type of numbers.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{can_cast_types, cast};
use arrow::datatypes::{DataType, Float64Type};
use arrow::error::ArrowError;
use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;
use crate::kind::Kind;
use crate::operation::{Fitted, Operation, shown, takes};
use crate::values::BadValue;

/// The same numbers as another type.
///
/// Floats are rounded to the nearest, and lose their fraction where they become integers. A number that the type does not
/// hold is an error. `true` is 1. A date, time or duration becomes the count of its units (`int64`), a decimal a float.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cast {
    /// The type.
    pub dtype: Dtype,
}

/// The first value that the type of the results does not hold: an integer that became null, or a finite number that became
/// infinite.
fn lost(items: &ArrayRef, results: &ArrayRef) -> Result<Option<usize>, ArrowError> {
    if let Some(nulls) = results.nulls().filter(|nulls| nulls.null_count() > 0) {
        return Ok((0..nulls.len()).find(|item| nulls.is_null(*item)));
    }
    if !results.data_type().is_floating() || *results.data_type() == DataType::Float64 {
        return Ok(None);
    }
    let (from, to) = (cast(items, &DataType::Float64)?, cast(results, &DataType::Float64)?);
    let [from, to] = [&from, &to].map(|floats| floats.as_primitive::<Float64Type>().values());
    Ok(from.iter().zip(to).position(|(from, to)| from.is_finite() && to.is_infinite()))
}

impl Operation for Cast {
    fn fit(&self, input: &Kind) -> Result<Fitted, String> {
        let to = self.dtype.data_type();
        let is_taken = match &input.item {
            DataType::Boolean => true,
            item if item.is_temporal() => to == DataType::Int64,
            DataType::Decimal32(..)
            | DataType::Decimal64(..)
            | DataType::Decimal128(..)
            | DataType::Decimal256(..) => matches!(to, DataType::Float32 | DataType::Float64),
            _ => input.is_number(),
        };
        if !is_taken || !can_cast_types(&input.item, &to) {
            let remedy = match &input.item {
                item if item.is_temporal() => "use Cast(\"int64\") first",
                item if item.is_numeric() => "use Cast(\"float64\") first",
                _ if input.is_words() => "use Vocabulary or Hash",
                _ => "leave the column out",
            };
            return Err(takes("numbers", input, remedy));
        }
        let dtype = self.dtype;
        Ok(Fitted::each(input.with_item(to.clone()), move |items| {
            // Dates have 32 bits, and Arrow no way from there to 64 bits but by way of integers.
            let items =
                if *items.data_type() == DataType::Date32 { &cast(items, &DataType::Int32)? } else { items };
            let results = cast(items, &to)?;
            let Some(item) = lost(items, &results)? else { return Ok(results) };
            let number = shown(items, item);
            let reason = format!(
                "gets {number}, which {dtype} does not hold: use a wider type, or put Clip before it"
            );
            Err(BadValue { row: item, reason })
        }))
    }
}
