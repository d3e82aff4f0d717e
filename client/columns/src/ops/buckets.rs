//! Numbers to the buckets that they are in.

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use serde::{Deserialize, Serialize};

use crate::dtype::for_type;
use crate::kind::Kind;
use crate::operation::{Fitted, Operation, takes, to_numbers};

/// The most boundaries.
const MOST_BOUNDARIES: usize = 1 << 16;

/// The number of boundaries below each value, by the rule of `torch.bucketize`: `int64` from 0 to their number. NaN is
/// above all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucketize {
    /// Ascending; rounded to the type of the values if these are `float32` or `float16`.
    pub boundaries: Vec<f64>,
    /// Whether a value that equals a boundary is in the bucket above it. Else it is in the one below.
    #[serde(default)]
    pub right: bool,
}

impl Operation for Bucketize {
    fn fit(&self, input: &Kind) -> Result<Fitted, String> {
        let Self { boundaries, right } = self;
        if boundaries.is_empty() || boundaries.len() > MOST_BOUNDARIES {
            return Err(format!("has {} boundaries: give 1 to {MOST_BOUNDARIES}", boundaries.len()));
        }
        if let Some(pair) = boundaries.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(format!("has the boundary {} before {}: sort them, each once", pair[0], pair[1]));
        }
        let output = input.with_item(DataType::Int64);
        let right = *right;
        if input.is_integer() {
            // An integer is below 2.5 where it is at most 2, and at least 2.5 where it is at least 3.
            let whole = |boundary: &f64| if right { boundary.ceil() } else { boundary.floor() };
            let boundaries: Vec<i128> = boundaries.iter().map(|boundary| whole(boundary) as i128).collect();
            return Ok(Fitted::each(output, move |items| {
                let is_below = |boundary: i128, x: i128| if right { boundary <= x } else { boundary < x };
                let bucket = |x: i128| boundaries.partition_point(|boundary| is_below(*boundary, x));
                Ok(for_type!(integers items.data_type(), T => {
                    Arc::new(items.as_primitive::<T>().unary::<_, Int64Type>(|x| bucket(x.into()) as i64))
                }, unreachable!("its type was checked")))
            }));
        }
        let round: fn(f64) -> f64 = match &input.item {
            DataType::Float64 => |boundary| boundary,
            DataType::Float32 => |boundary| f64::from(boundary as f32),
            DataType::Float16 => |boundary| half::f16::from_f64(boundary).to_f64(),
            _ => return Err(takes("numbers", input, to_numbers(input))),
        };
        let boundaries: Vec<f64> = boundaries.iter().map(|boundary| round(*boundary)).collect();
        Ok(Fitted::each(output, move |items| {
            let bucket = |x: f64| match x {
                nan if nan.is_nan() => boundaries.len(),
                x => {
                    boundaries.partition_point(|boundary| if right { *boundary <= x } else { *boundary < x })
                }
            };
            let floats = cast(items, &DataType::Float64)?;
            Ok(Arc::new(floats.as_primitive::<Float64Type>().unary::<_, Int64Type>(|x| bucket(x) as i64)))
        }))
    }
}
