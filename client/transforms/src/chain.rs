//! A chain of operations as data, to be written in a file, sent, compared and recorded.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::companions::Declared;
use crate::decode::DecodeOptions;
use crate::document::{self, VERSION};
use crate::mixing::Mixing;
use crate::op::Op;
use crate::op::containers::count_of;
use crate::value::Layout;

/// A chain cannot be read, or cannot change the pictures that it gets.
#[derive(Debug, Error)]
pub enum ChainError {
    /// The text is no chain.
    #[error("the transforms are no chain: {0}")]
    Json(#[from] serde_json::Error),
    /// It is of another version.
    #[error("the transforms have version {0}, and this program reads version 1: update it")]
    Version(u32),
    /// An operation does not accept the pictures that it gets, or has arguments without a meaning.
    #[error("operation {index} of the transforms, {name}, {reason}")]
    Op {
        /// Its index in the list.
        index: usize,
        /// Its name.
        name: &'static str,
        /// The end of the sentence that begins with its name.
        reason: String,
    },
    /// The pictures at the end have no common size.
    #[error(
        "the transforms make pictures of various sizes, and a batch has one size: add Resize([height, width]) or a crop, before \
         ToDtype"
    )]
    Sizes,
    /// A picture's column has other values.
    #[error(
        "the transforms take encoded images, or uint8 of [height, width, channels] or [channels, height, width], and get {0}"
    )]
    Input(String),
    /// The columns that belong to the pictures do not fit each other.
    #[error("of the companions of the transforms, {0}")]
    Companions(String),
}

/// What happens with a sample whose picture cannot be decoded or changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// Reading ends with an error that names the sample.
    #[default]
    Raise,
    /// The picture is zeros, and the sample is counted and reported.
    Zero,
    /// The sample is left out of its batch, counted and reported. Audits count it as read.
    Skip,
}

/// A chain of operations, with all that the pixels of a batch depend on but the samples and the seed of their plan.
///
/// ```
/// use shardd_transforms::Chain;
///
/// # fn main() -> Result<(), shardd_transforms::ChainError> {
/// let chain: Chain = r#"{"transforms": [{"type": "RandomResizedCrop", "size": 224}, {"type": "RandomHorizontalFlip"}]}"#.parse()?;
/// assert_eq!(chain.transforms[1].to_string(), "RandomHorizontalFlip(p=0.5)");
///
/// let mistaken = r#"{"transforms": [{"type": "RandomResizeCrop", "size": 224}]}"#.parse::<Chain>();
/// assert!(mistaken.is_err_and(|error| error.to_string().contains("the nearest is RandomResizedCrop")));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chain {
    /// The version of this document: 1.
    #[serde(default = "Chain::version")]
    pub version: u32,
    /// The column of pictures; the only one if none is given.
    #[serde(default)]
    pub column: Option<String>,
    /// The columns that belong to the pictures and move with them.
    #[serde(default, skip_serializing_if = "Declared::is_empty")]
    pub companions: Declared,
    /// How encoded images become pixels.
    #[serde(default)]
    pub decode: DecodeOptions,
    /// The operations, one after the other.
    pub transforms: Vec<Op>,
    /// How the samples of a finished batch are mixed; not at all if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Mixing>,
    /// The order of numbers in a batch.
    #[serde(default)]
    pub layout: Layout,
    /// The key of the random numbers; the seed of the plan if none is given.
    #[serde(default)]
    pub seed: Option<u64>,
    /// What happens with a sample whose picture cannot be decoded or changed.
    #[serde(default)]
    pub on_error: OnError,
}

impl Chain {
    /// Of these operations, with the defaults of everything else.
    pub fn new(transforms: Vec<Op>) -> Self {
        Self {
            version: VERSION,
            column: None,
            companions: Declared::new(),
            decode: DecodeOptions::default(),
            transforms,
            batch: None,
            layout: Layout::default(),
            seed: None,
            on_error: OnError::default(),
        }
    }

    fn version() -> u32 {
        VERSION
    }

    /// How many numbers its operations on samples have, those inside of others among them.
    pub fn count(&self) -> u64 {
        count_of(&self.transforms)
    }

    /// The JSON with all defaults written out, in one way for equal chains.
    ///
    /// # Panics
    /// Never: a chain has no maps whose keys are not strings.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a chain is JSON")
    }

    /// The BLAKE3 of its JSON: the name of the chain in records and audits.
    pub fn digest(&self) -> blake3::Hash {
        blake3::hash(self.to_json().as_bytes())
    }
}

impl std::str::FromStr for Chain {
    type Err = ChainError;

    /// Reads a chain, or a list of operations.
    fn from_str(json: &str) -> Result<Self, ChainError> {
        if json.trim_start().starts_with('[') {
            return Ok(Self::new(serde_json::from_str(json)?));
        }
        let version = document::version(json)?;
        if version == VERSION { Ok(serde_json::from_str(json)?) } else { Err(ChainError::Version(version)) }
    }
}
