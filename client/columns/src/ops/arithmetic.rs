//! Arithmetic on each value. It is of 64 bits, in the order of the formula, and the result is rounded once.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float32Array, Float64Array, PrimitiveArray};
use arrow::compute::cast;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Float64Type};
use serde::{Deserialize, Serialize};

use crate::dtype::{Float, for_type};
use crate::kind::{Form, Kind};
use crate::number::{Number, Numbers};
use crate::operation::{Fitted, Operation, takes, to_numbers};
use crate::values::BadValue;

/// `(x - mean) / std`.
///
/// `mean` and `std` are numbers, or lists with one for each place in the last dimension of a column of one shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalize {
    /// Subtracted from each value.
    pub mean: Numbers,
    /// Divides each difference. Over 0.
    pub std: Numbers,
    /// The type of the results.
    #[serde(default)]
    pub dtype: Float,
}

impl Operation for Normalize {
    fn fit(&self, input: &Kind) -> Result<Fitted, String> {
        check_numbers(input)?;
        let last = last_of(input);
        let (means, stds) = (self.mean.for_last("mean", last)?, self.std.for_last("std", last)?);
        if stds.iter().any(|std| *std <= 0.0) {
            return Err("divides by std: give numbers over 0".into());
        }
        let formula = move |place: usize, x: f64| (x - means[place % means.len()]) / stds[place % stds.len()];
        Ok(arithmetic(input, self.dtype, last, formula))
    }
}

/// `(x - min) / (max - min)`: from 0 to 1 for values between the two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MinMaxScale {
    /// Becomes 0: a number, or one for each place in the last dimension of a column of one shape.
    pub min: Numbers,
    /// Becomes 1. Over `min`.
    pub max: Numbers,
    /// The type of the results.
    #[serde(default)]
    pub dtype: Float,
}

impl Operation for MinMaxScale {
    fn fit(&self, input: &Kind) -> Result<Fitted, String> {
        check_numbers(input)?;
        let last = last_of(input);
        let (min, max) = (self.min.for_last("min", last)?, self.max.for_last("max", last)?);
        let places = min.len().max(max.len());
        let at = |numbers: &[f64], place: usize| numbers[place % numbers.len()];
        if (0..places).any(|place| at(&max, place) <= at(&min, place)) {
            return Err("divides by max - min: give a max over min".into());
        }
        let formula = move |place: usize, x: f64| {
            let (min, max) = (min[place % min.len()], max[place % max.len()]);
            (x - min) / (max - min)
        };
        Ok(arithmetic(input, self.dtype, last, formula))
    }
}

/// `log(1 + x)`, as `numpy.log1p`: -inf of -1, and NaN below.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log1p {
    /// The type of the results.
    #[serde(default)]
    pub dtype: Float,
}

impl Operation for Log1p {
    fn fit(&self, input: &Kind) -> Result<Fitted, String> {
        check_numbers(input)?;
        // The standard library's depends on the system.
        Ok(arithmetic(input, self.dtype, None, |_, x| libm::log1p(x)))
    }
}

/// The nearest value between two bounds, of the same type. NaN stays NaN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clip {
    /// The least result; none if it is left out.
    #[serde(default)]
    pub min: Option<Number>,
    /// The largest result; none if it is left out.
    #[serde(default)]
    pub max: Option<Number>,
}

impl Operation for Clip {
    fn fit(&self, input: &Kind) -> Result<Fitted, String> {
        check_numbers(input)?;
        if let (Some(min), Some(max)) = (self.min, self.max)
            && min.float() > max.float()
        {
            return Err(format!("has a min of {min} over a max of {max}: swap them"));
        }
        let whole = |bound: Option<Number>| {
            let remedy = "give an integer, or put Cast(\"float32\") before it";
            let whole = |bound: Number| {
                bound.integer().ok_or_else(|| format!("has the bound {bound}, and gets {input}: {remedy}"))
            };
            bound.map(whole).transpose()
        };
        for_type!(floats input.item, T => {
            let bound = |bound: Option<Number>| bound.map(|bound| nearest::<T>(bound.float())).transpose();
            return Ok(clipped::<T>(input, bound(self.min)?, bound(self.max)?));
        }, {});
        let (min, max) = (whole(self.min)?, whole(self.max)?);
        for_type!(integers input.item, T => {
            type Native = <T as ArrowPrimitiveType>::Native;
            let (least, most) = (i128::from(Native::MIN), i128::from(Native::MAX));
            if min.is_some_and(|min| min > most) || max.is_some_and(|max| max < least) {
                return Err(format!(
                    "has bounds beyond those of {input}: give numbers from {least} to {most}"
                ));
            }
            let bound = |bound: Option<i128>| {
                bound.and_then(|bound| Native::try_from(bound.clamp(least, most)).ok())
            };
            Ok(clipped::<T>(input, bound(min), bound(max)))
        }, Err(takes("numbers", input, to_numbers(input))))
    }
}

/// The float of a type that is nearest to a number.
fn nearest<T: ArrowPrimitiveType>(number: f64) -> Result<T::Native, String> {
    let one = cast(&PrimitiveArray::<Float64Type>::from_value(number, 1), &T::DATA_TYPE);
    Ok(one.map_err(|error| error.to_string())?.as_primitive::<T>().value(0))
}

fn check_numbers(input: &Kind) -> Result<(), String> {
    if input.is_number() { Ok(()) } else { Err(takes("numbers", input, to_numbers(input))) }
}

/// The last dimension of the rows of a column of one shape.
fn last_of(input: &Kind) -> Option<usize> {
    match &input.form {
        Form::Fixed(shape) => shape.last().copied(),
        _ => None,
    }
}

/// A formula of each value and its place in the last dimension.
fn arithmetic(
    input: &Kind,
    dtype: Float,
    last: Option<usize>,
    formula: impl Fn(usize, f64) -> f64 + Send + Sync + 'static,
) -> Fitted {
    let last = last.unwrap_or(1).max(1);
    Fitted::each(input.with_item(dtype.data_type()), move |items| {
        let floats = cast(items, &DataType::Float64)?;
        let floats = floats.as_primitive::<Float64Type>().values();
        let rows = floats.chunks(last);
        let results = rows.flat_map(|row| row.iter().enumerate().map(|(place, x)| formula(place, *x)));
        Ok(match dtype {
            Float::Float32 => Arc::new(Float32Array::from_iter_values(results.map(|x| x as f32))) as ArrayRef,
            Float::Float64 => Arc::new(Float64Array::from_iter_values(results)),
        })
    })
}

fn clipped<T: ArrowPrimitiveType>(input: &Kind, min: Option<T::Native>, max: Option<T::Native>) -> Fitted
where
    T::Native: PartialOrd,
{
    Fitted::each(input.clone(), move |items| -> Result<ArrayRef, BadValue> {
        let clip = |value: T::Native| {
            let value = min.filter(|min| value < *min).unwrap_or(value);
            max.filter(|max| value > *max).unwrap_or(value)
        };
        Ok(Arc::new(items.as_primitive::<T>().unary::<_, T>(clip)))
    })
}
