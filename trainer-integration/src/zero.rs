//! How little of a training one rank can keep (ZeRO: Rajbhandari, Rasley, Ruwase and He, "ZeRO: memory optimizations toward training trillion
//! parameter models", SC 2020): optimizer states, gradients and parameters are cut into slices, of which each rank keeps its own.
//!
//! The computation does not change: the stages differ in the place of numbers and the time of their transfer,
//! and under exact reduction they give the same weights to the last bit.

pub mod formula;
pub mod mesh;
pub mod slices;

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::compress::Compression;
use crate::reduce::Reduction;

/// The state that each rank keeps only a slice of.
///
/// ```
/// use shardd_trainer::Zero;
///
/// assert_eq!("2".parse(), Ok(Zero::Gradients));
/// assert_eq!(Zero::Parameters.stage(), 3);
/// assert!("4".parse::<Zero>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Zero {
    /// Nothing: every rank keeps everything (stage 0, distributed data parallel).
    #[default]
    Nothing,
    /// The optimizer's state (stage 1).
    Moments,
    /// That and gradients, which are gone as soon as they are added up (stage 2).
    Gradients,
    /// That and the parameters, which are gathered block by block when they are used (stage 3, fully sharded).
    Parameters,
}

impl Zero {
    /// All of them, by their number.
    pub const ALL: [Zero; 4] = [Zero::Nothing, Zero::Moments, Zero::Gradients, Zero::Parameters];

    /// Why gradients cannot be added up so.
    pub fn refusal(self, reduction: Reduction) -> Option<&'static str> {
        let is_compressed =
            matches!(reduction, Reduction::Fast(compression) if compression != Compression::None);
        (self != Zero::Nothing && is_compressed).then_some(
            "compressed gradients are added up by every rank, and --zero has each rank add up its slice; leave one of the two out",
        )
    }

    /// The number of the stage.
    pub fn stage(self) -> u8 {
        self as u8
    }
}

/// The state that ranks keep slices of, and the size of their group.
///
/// ```
/// use shardd_trainer::{Slicing, Zero};
/// use std::num::NonZeroU32;
///
/// // Slices of everything, among 8 ranks of one machine.
/// let slicing = Slicing { zero: Zero::Parameters, group: NonZeroU32::new(8) };
/// assert_ne!(slicing, Slicing::from(Zero::Parameters));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slicing {
    /// The state they keep slices of.
    pub zero: Zero,
    /// How many ranks share the numbers; every such group has all of them. Default all ranks.
    pub group: Option<NonZeroU32>,
}

impl From<Zero> for Slicing {
    /// Among all ranks.
    fn from(zero: Zero) -> Slicing {
        Slicing { zero, group: None }
    }
}

impl fmt::Display for Zero {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stage().fmt(f)
    }
}

impl FromStr for Zero {
    type Err = String;

    fn from_str(text: &str) -> Result<Zero, String> {
        let found = Zero::ALL.into_iter().find(|zero| zero.to_string() == text);
        found.ok_or_else(|| format!("there is no stage {text:?} of ZeRO; give 0, 1, 2 or 3"))
    }
}
