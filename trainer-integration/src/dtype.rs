//! The data type in which gradients are added up and sent.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// In what numbers gradients are added up and travel.
///
/// ```
/// use shardd_trainer::dtype::ReduceDtype;
///
/// assert_eq!("bf16".parse(), Ok(ReduceDtype::Bf16));
/// assert!("f64".parse::<ReduceDtype>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReduceDtype {
    /// 32 bits, 4 bytes a number.
    #[default]
    F32,
    /// 16 bits with the exponents of 32 (bfloat16), 2 bytes a number. Each addition, and each addend, is off
    /// by at most 2⁻⁹ of itself: a sum over V virtual ranks by at most (1 + log2 V, rounded up) 2⁻⁸ of the
    /// sum of magnitudes.
    Bf16,
}

impl FromStr for ReduceDtype {
    type Err = String;

    fn from_str(text: &str) -> Result<ReduceDtype, String> {
        match text {
            "f32" => Ok(ReduceDtype::F32),
            "bf16" => Ok(ReduceDtype::Bf16),
            _ => Err(format!("gradients are not added up in {text:?}; give f32 or bf16")),
        }
    }
}

impl fmt::Display for ReduceDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReduceDtype::F32 => "f32",
            ReduceDtype::Bf16 => "bf16",
        })
    }
}
