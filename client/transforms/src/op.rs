//! An operation as data, by its name.

pub mod containers;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use crate::document::{self, Arguments};
use crate::operation::Operation;
use crate::ops::auto::{AugMix, AutoAugment, RandAugment, TrivialAugmentWide};
use crate::ops::boxes::{ClampBoundingBoxes, ConvertBoundingBoxFormat, SanitizeBoundingBoxes};
use crate::ops::crop::{CenterCrop, Pad, RandomCrop, RandomResizedCrop};
use crate::ops::erase::RandomErasing;
use crate::ops::flip::{RandomHorizontalFlip, RandomVerticalFlip};
use crate::ops::iou_crop::RandomIoUCrop;
use crate::ops::numbers::{Identity, Normalize, ToDtype, ToImage, ToPureTensor};
use crate::ops::random_color::{
    ColorJitter, GaussianBlur, Grayscale, RGB, RandomAdjustSharpness, RandomAutocontrast,
    RandomChannelPermutation, RandomEqualize, RandomGrayscale, RandomInvert, RandomPhotometricDistort,
    RandomPosterize, RandomSolarize,
};
use crate::ops::random_geometry::{ElasticTransform, RandomAffine, RandomPerspective, RandomRotation};
use crate::ops::random_size::{RandomResize, RandomShortestSize, RandomZoomOut, ScaleJitter};
use crate::ops::resize::Resize;
use containers::{Compose, RandomApply, RandomChoice, RandomOrder};

macro_rules! operations {
    ($($name:ident),+ $(,)?) => {
        /// An operation, with the name and arguments that it has in torchvision.transforms.v2.
        ///
        /// As JSON it is an object of its arguments with its name as `type`; left out are arguments with their default values.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "type")]
        pub enum Op {
            $(
                #[doc = concat!("`torchvision.transforms.v2.", stringify!($name), "`.")]
                $name($name),
            )+
        }

        impl Op {
            /// The names of all operations.
            pub const NAMES: &[&str] = &[$(stringify!($name)),+];

            /// The name of an operation that is nearest to this one.
            pub fn nearest(name: &str) -> &'static str {
                document::nearest(name, Self::NAMES.iter().copied()).expect("there are operations")
            }

            /// Its name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)+
                }
            }

            fn of(name: &str, arguments: Arguments) -> Result<Self, String> {
                match name {
                    $(stringify!($name) => document::with_arguments(name, arguments).map(Self::$name),)+
                    _ => Err(unknown(name)),
                }
            }

            /// Whether it is an operation of this name, or has one inside.
            pub fn contains(&self, name: &str) -> bool {
                self.name() == name || self.inner().iter().any(|op| op.contains(name))
            }

            pub(crate) fn operation(&self) -> &dyn Operation {
                match self {
                    $(Self::$name(operation) => operation,)+
                }
            }
        }

        $(
            impl From<$name> for Op {
                fn from(operation: $name) -> Self {
                    Self::$name(operation)
                }
            }
        )+
    };
}

operations! {
    AugMix, AutoAugment, CenterCrop, ClampBoundingBoxes, ColorJitter, Compose, ConvertBoundingBoxFormat, ElasticTransform,
    GaussianBlur, Grayscale, Identity, Normalize, Pad, RandAugment, RandomAdjustSharpness, RandomAffine, RandomApply,
    RandomAutocontrast, RandomChannelPermutation, RandomChoice, RandomCrop, RandomEqualize, RandomErasing, RandomGrayscale,
    RandomHorizontalFlip, RandomInvert, RandomIoUCrop, RandomOrder, RandomPerspective, RandomPhotometricDistort, RandomPosterize,
    RandomResize, RandomResizedCrop, RandomRotation, RandomShortestSize, RandomSolarize, RandomVerticalFlip, RandomZoomOut, Resize,
    RGB, SanitizeBoundingBoxes, ScaleJitter, ToDtype, ToImage, ToPureTensor, TrivialAugmentWide,
}

impl Op {
    /// The operations inside of it.
    fn inner(&self) -> &[Op] {
        match self {
            Self::Compose(op) => &op.transforms,
            Self::RandomApply(op) => &op.transforms,
            Self::RandomChoice(op) => &op.transforms,
            Self::RandomOrder(op) => &op.transforms,
            _ => &[],
        }
    }
}

fn unknown(name: &str) -> String {
    if matches!(name, "MixUp" | "CutMix") {
        return format!("{name} mixes finished batches: put it into the list transforms of \"batch\"");
    }
    format!(
        "there is no operation {name}; the nearest is {}. There are: {}",
        Op::nearest(name),
        Op::NAMES.join(", ")
    )
}

impl<'de> Deserialize<'de> for Op {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let (name, arguments) = document::operation(from)?;
        Self::of(&name, arguments).map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Op {
    /// As a call in Python.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        document::write_call(f, self.name(), self)
    }
}
