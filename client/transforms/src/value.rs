//! What flows through a chain: a picture, and before any picture is there its kind.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::companions::CompanionKinds;
use crate::image::Image;

/// Types of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// Whole numbers from 0 to 255.
    Uint8,
    /// Floats of 16 bits, with 10 bits after the binary point (IEEE 754 binary16).
    Float16,
    /// Floats of 16 bits, with 7 bits after the binary point.
    Bfloat16,
    /// Floats of 32 bits.
    Float32,
}

impl Dtype {
    /// Bytes of a number.
    pub fn size(self) -> usize {
        match self {
            Self::Uint8 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Float32 => 4,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uint8 => "uint8",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
        })
    }
}

/// The order of the numbers of a picture in a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Layout {
    /// Channels, rows, columns: PyTorch's.
    #[default]
    #[serde(rename = "CHW")]
    ChannelsFirst,
    /// Rows, columns, channels: TensorFlow's, and that of files.
    #[serde(rename = "HWC")]
    ChannelsLast,
}

impl Layout {
    /// A shape in this order.
    pub fn shape(self, [height, width, channels]: [usize; 3]) -> [usize; 3] {
        match self {
            Self::ChannelsFirst => [channels, height, width],
            Self::ChannelsLast => [height, width, channels],
        }
    }
}

/// The kind of all pictures at a place of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The type of its numbers.
    pub dtype: Dtype,
    /// The numbers of a pixel: 1 or 3.
    pub channels: usize,
    /// Height and width, if they are those of all pictures.
    pub size: Option<[usize; 2]>,
    /// What comes beside it.
    pub companions: CompanionKinds,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dtype, channels, size, companions } = self;
        match size {
            Some([height, width]) => write!(f, "{dtype} [{channels}, {height}, {width}]"),
            None => write!(f, "{dtype} [{channels}, height, width] of various sizes"),
        }?;
        companions.boxes.map_or(Ok(()), |format| write!(f, " with boxes as {format}"))
    }
}

/// A picture on its way through a chain.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of bytes.
    Bytes(Image<u8>),
    /// Of floats of 32 bits. They become floats of 16 bits when the chain has ended.
    Floats(Image<f32>),
}

impl Value {
    /// `[height, width, channels]`.
    pub fn shape(&self) -> [usize; 3] {
        match self {
            Self::Bytes(image) => image.shape(),
            Self::Floats(image) => image.shape(),
        }
    }

    /// `[height, width]`.
    pub fn size(&self) -> [usize; 2] {
        let [height, width, _] = self.shape();
        [height, width]
    }

    /// Applies a function of bytes.
    ///
    /// # Panics
    /// For floats: chains with such an operation on floats are refused before their first sample.
    pub(crate) fn bytes(self, change: impl FnOnce(Image<u8>) -> Image<u8>) -> Self {
        match self {
            Self::Bytes(image) => Self::Bytes(change(image)),
            Self::Floats(_) => unreachable!("a checked chain gives this operation bytes"),
        }
    }

    /// As [`bytes`](Self::bytes), for a function that may fail.
    pub(crate) fn try_bytes(
        self,
        change: impl FnOnce(Image<u8>) -> Result<Image<u8>, String>,
    ) -> Result<Self, String> {
        match self {
            Self::Bytes(image) => change(image).map(Self::Bytes),
            Self::Floats(_) => unreachable!("a checked chain gives this operation bytes"),
        }
    }
}

/// A picture changed by an expression that is the same for bytes and floats.
macro_rules! each {
    ($value:expr, $image:ident => $change:expr) => {
        match $value {
            $crate::value::Value::Bytes($image) => $crate::value::Value::Bytes($change),
            $crate::value::Value::Floats($image) => $crate::value::Value::Floats($change),
        }
    };
}
pub(crate) use each;
