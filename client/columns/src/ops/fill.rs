//! Values in the place of nulls.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, Scalar as ArrowScalar, StringArray,
    UInt64Array,
};
use arrow::compute::kernels::zip::zip;
use arrow::compute::{cast, is_not_null, nullif};
use arrow::datatypes::{DataType, Float64Type};
use serde::{Deserialize, Serialize};

use crate::kind::Kind;
use crate::number::Scalar;
use crate::operation::{Fitted, Operation, takes};
use crate::values::Values;

/// Puts a value in the place of each null: a number, `true` or `false`, or text.
///
/// In lists it fills the nulls among the values. A null in the place of a list becomes an empty list, or, in a column of
/// one shape, a row of the value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FillNull {
    /// The value. The column's type holds it exactly, but for the rounding of floats.
    pub value: Scalar,
    /// Whether it takes the place of NaN, too.
    #[serde(default)]
    pub nan: bool,
}

impl Operation for FillNull {
    fn fit(&self, input: &Kind) -> Result<Fitted, String> {
        let is_fixed = matches!(input.item, DataType::FixedSizeBinary(_));
        if is_fixed || !input.is_number() && !input.is_words() && input.item != DataType::Boolean {
            return Err(takes("numbers, text and binary", input, "leave the column out"));
        }
        let nan = self.nan;
        if nan && !input.item.is_floating() {
            return Err(takes("floats where nan is true", input, "leave nan out"));
        }
        let value = value_of(&self.value, &input.item).ok_or_else(|| {
            format!("has the value {}, which {input} does not hold: give a value of that type", self.value)
        })?;
        let value = ArrowScalar::new(value);
        let change = move |values: Values| {
            let values = values.with_nulls_of_rows_in_values()?;
            let mut items = Arc::clone(&values.items);
            if nan {
                let floats = cast(&items, &DataType::Float64)?;
                let is_nan = BooleanArray::from_unary(floats.as_primitive::<Float64Type>(), f64::is_nan);
                items = nullif(&items, &is_nan)?;
            }
            if items.null_count() > 0 {
                items = zip(&is_not_null(&items)?, &items, &value)?;
            }
            Ok(values.with_items(items))
        };
        Ok(Fitted { output: input.clone(), change: Box::new(change) })
    }

    fn takes_nulls(&self) -> bool {
        true
    }
}

/// One value of this type; `None` if the type does not hold it.
fn value_of(value: &Scalar, data_type: &DataType) -> Option<ArrayRef> {
    let one: ArrayRef = match value {
        Scalar::Bool(value) if *data_type == DataType::Boolean => Arc::new(BooleanArray::from(vec![*value])),
        Scalar::Text(text) if !data_type.is_numeric() && *data_type != DataType::Boolean => {
            Arc::new(StringArray::from(vec![text.as_str()]))
        }
        Scalar::Number(number) if data_type.is_floating() => {
            Arc::new(Float64Array::from(vec![number.float()]))
        }
        Scalar::Number(number) if data_type.is_integer() => match number.integer()? {
            integer if integer < 0 => Arc::new(Int64Array::from(vec![i64::try_from(integer).ok()?])),
            integer => Arc::new(UInt64Array::from(vec![u64::try_from(integer).ok()?])),
        },
        Scalar::Bool(_) | Scalar::Text(_) | Scalar::Number(_) => return None,
    };
    // A number that is too large becomes null.
    cast(&one, data_type).ok().filter(|one| one.null_count() == 0)
}
