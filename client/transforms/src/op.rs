//! An operation as data, by its name.

pub mod containers;

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value as Json};

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

/// Nearest of some names to one that is not among them.
pub(crate) fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_lowercase();
    names.into_iter().max_by(|one, other| {
        let [one, other] = [one, other].map(|known| strsim::jaro_winkler(&lower, &known.to_lowercase()));
        one.total_cmp(&other)
    })
}

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
                nearest(name, Self::NAMES.iter().copied()).expect("there are operations")
            }

            /// Its name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)+
                }
            }

            fn of(name: &str, arguments: Map<String, Json>) -> Result<Self, String> {
                match name {
                    $(stringify!($name) => arguments_of(name, arguments).map(Self::$name),)+
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

fn arguments_of<T: DeserializeOwned>(name: &str, arguments: Map<String, Json>) -> Result<T, String> {
    serde_json::from_value(Json::Object(arguments)).map_err(|error| format!("{name}: {error}"))
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
        use serde::de::Error;
        let mut arguments = Map::deserialize(from)?;
        match arguments.remove("type") {
            Some(Json::String(name)) => Self::of(&name, arguments).map_err(D::Error::custom),
            Some(other) => {
                Err(D::Error::custom(format!("\"type\" is {other}, and has to be the name of an operation")))
            }
            None => Err(D::Error::custom("an operation has no \"type\": name the operation there")),
        }
    }
}

impl fmt::Display for Op {
    /// As a call in Python.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_value(self).map_err(|_| fmt::Error)?;
        let arguments = json.as_object().into_iter().flatten().filter(|(name, _)| *name != "type");
        let arguments: Vec<String> = arguments.map(|(name, value)| format!("{name}={value}")).collect();
        write!(f, "{}({})", self.name(), arguments.join(", "))
    }
}
