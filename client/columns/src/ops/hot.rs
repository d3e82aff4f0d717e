//! Classes to vectors of zeros and ones.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, BooleanArray, BooleanBufferBuilder,
    PrimitiveArray,
};
use serde::{Deserialize, Serialize};

use crate::dtype::{Dtype, for_type};
use crate::kind::{Form, Kind, MOST_WIDTH, product};
use crate::operation::{Fitted, Operation, integers, shown, takes};
use crate::values::Values;

/// A vector of zeros for each integer, with a one in the place that it names. Another integer than 0 to `classes - 1` is an
/// error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneHot {
    /// The length of the vector.
    pub classes: u32,
    /// The type of the zeros and ones.
    #[serde(default = "float32")]
    pub dtype: Dtype,
}

impl Operation for OneHot {
    fn fit(&self, input: &Kind) -> Result<Fitted, String> {
        let mut shape = match &input.form {
            Form::One => Vec::new(),
            Form::Fixed(shape) => shape.clone(),
            Form::Lists | Form::LargeLists => {
                return Err(takes("values and lists of one length", input, "use MultiHot"));
            }
        };
        shape.push(self.classes as usize);
        fit(input, self.classes, self.dtype, shape, false)
    }
}

/// One vector of zeros for each list of integers, with ones in the places that it names. Another integer than 0 to
/// `classes - 1` is an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MultiHot {
    /// The length of the vector.
    pub classes: u32,
    /// The type of the zeros and ones.
    #[serde(default = "float32")]
    pub dtype: Dtype,
}

impl Operation for MultiHot {
    fn fit(&self, input: &Kind) -> Result<Fitted, String> {
        if input.form == Form::One {
            return Err(takes("lists", input, "use OneHot"));
        }
        fit(input, self.classes, self.dtype, vec![self.classes as usize], true)
    }
}

fn float32() -> Dtype {
    Dtype::Float32
}

/// Vectors of `classes`, one for each row if `of_rows`, else one for each value. A row then has this shape.
fn fit(input: &Kind, classes: u32, dtype: Dtype, shape: Vec<usize>, of_rows: bool) -> Result<Fitted, String> {
    if !input.is_integer() {
        let remedy = if input.is_words() {
            "put Vocabulary or Hash before it"
        } else {
            "put Cast(\"int64\") before it"
        };
        return Err(takes("integers", input, remedy));
    }
    let Some(width @ 1..=MOST_WIDTH) = product(&shape) else {
        return Err(format!(
            "makes {shape:?} numbers of a row: give classes for 1 to {MOST_WIDTH}, or Hash into fewer"
        ));
    };
    let change = move |values: Values| {
        let (mut places, mut bad) = (Vec::with_capacity(values.items.len()), None);
        let mut item = 0;
        integers(&values.items, |class| {
            let class = class.and_then(|class| u32::try_from(class).ok()).filter(|class| *class < classes);
            let vector = if of_rows { values.row_of(item) } else { item };
            match class {
                Some(class) => places.push(vector * classes as usize + class as usize),
                None => bad = bad.or(Some(item)),
            }
            item += 1;
        })?;
        if let Some(item) = bad {
            let class = shown(&values.items, item);
            let reason = format!(
                "takes 0 to {}, and gets {class}: raise classes, or put Clip or Vocabulary before it",
                classes - 1
            );
            return Err(values.bad(item, reason));
        }
        let len = values.len() * width;
        let items: ArrayRef = for_type!(integers dtype.data_type(), T => hot::<T>(len, &places), {
            for_type!(floats dtype.data_type(), T => hot::<T>(len, &places), hot_bits(len, &places))
        });
        Ok(values.with_width(items, width))
    };
    let output = Kind { form: Form::Fixed(shape), item: dtype.data_type() };
    Ok(Fitted { output, change: Box::new(change) })
}

/// Zeros, with ones at some places.
fn hot<T: ArrowPrimitiveType>(len: usize, places: &[usize]) -> ArrayRef {
    let mut numbers = vec![T::Native::ZERO; len];
    places.iter().for_each(|place| numbers[*place] = T::Native::ONE);
    Arc::new(PrimitiveArray::<T>::new(numbers.into(), None))
}

fn hot_bits(len: usize, places: &[usize]) -> ArrayRef {
    let mut bits = BooleanBufferBuilder::new(len);
    bits.append_n(len, false);
    places.iter().for_each(|place| bits.set_bit(*place, true));
    Arc::new(BooleanArray::new(bits.finish(), None))
}
