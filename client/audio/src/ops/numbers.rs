//! Numbers of another mean, deviation or type.

use serde::{Deserialize, Serialize};
use shardd_transforms::Dtype;

use super::within;
use crate::operation::{Operation, Planned};
use crate::value::{Form, Kind};

/// Changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {}

impl Operation for Identity {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        Ok(Planned::new(input, |value, _| Ok(value)))
    }
}

/// Subtracts a mean from all numbers, and divides them by a standard deviation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalize {
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub std: f64,
}

impl Normalize {
    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        within("mean", self.mean, -1e30..=1e30)?;
        within("std", self.std, 1e-30..=1e30)
    }

    /// The number in the place of another one.
    fn number(&self) -> impl Fn(f32) -> f32 + Copy + use<> {
        let [mean, std] = [self.mean, self.std].map(|number| number as f32);
        move |number| (number - mean) / std
    }
}

impl Operation for Normalize {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        self.check().map_err(|detail| crate::error::arguments(&detail))?;
        if input.dtype == Dtype::Uint8 {
            return Err(format!("takes floats, and gets {input}: put ToDtype(float32) before it"));
        }
        let number = self.number();
        Ok(Planned::new(input, move |value, _| Ok(value.map(number))))
    }
}

/// Gives the numbers of a batch another type.
///
/// Floats of 16 bits are rounded when a batch is written; before, they have 32 bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToDtype {
    /// The type: `float16`, `bfloat16` or `float32`; `uint8` only for levels that have it already.
    pub dtype: Dtype,
}

impl Operation for ToDtype {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        let is_level = matches!(input.form, Form::Levels { .. }) && input.dtype == Dtype::Uint8;
        if self.dtype == Dtype::Uint8 && !is_level {
            return Err(format!(
                "makes uint8 of {input}: leave it out, or put MuLawEncoding of 256 channels before it"
            ));
        }
        Ok(Planned::new(Kind { dtype: self.dtype, ..input }, |value, _| Ok(value)))
    }
}
