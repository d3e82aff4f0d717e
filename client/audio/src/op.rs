//! An operation as data, by its name.

pub mod containers;

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value as Json};

use crate::operation::Operation;
use crate::ops::{
    AmplitudeToDB, Fade, FrequencyMasking, Identity, LogMel, MFCC, MelScale, MelSpectrogram, MuLawEncoding,
    Normalize, PadOrTrim, RandomTimeCrop, Resample, SpecAugment, Spectrogram, TimeMasking, ToDtype, Vol,
};
use containers::{Compose, RandomApply, RandomChoice, RandomOrder};

macro_rules! operations {
    ($($name:ident),+ $(,)?) => {
        /// An operation, with the name and arguments that it has in torchaudio.transforms, where that has it.
        ///
        /// As JSON it is an object of its arguments with its name as `type`; left out are arguments with their default values.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "type")]
        pub enum Op {
            $(
                #[doc = concat!("[`", stringify!($name), "`].")]
                $name($name),
            )+
        }

        impl Op {
            /// The names of all operations.
            pub const NAMES: &[&str] = &[$(stringify!($name)),+];

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
    AmplitudeToDB, Compose, Fade, FrequencyMasking, Identity, LogMel, MFCC, MelScale, MelSpectrogram, MuLawEncoding, Normalize,
    PadOrTrim, RandomApply, RandomChoice, RandomOrder, RandomTimeCrop, Resample, SpecAugment, Spectrogram, TimeMasking, ToDtype,
    Vol,
}

impl Op {
    /// The name of an operation that is nearest to this one.
    ///
    /// # Panics
    /// Never: there are operations.
    pub fn nearest(name: &str) -> &'static str {
        let lower = name.to_lowercase();
        let near = |known: &str| strsim::jaro_winkler(&lower, &known.to_lowercase());
        let nearest = Self::NAMES.iter().max_by(|one, other| near(one).total_cmp(&near(other)));
        nearest.expect("there are operations")
    }
}

fn arguments_of<T: DeserializeOwned>(name: &str, arguments: Map<String, Json>) -> Result<T, String> {
    serde_json::from_value(Json::Object(arguments)).map_err(|error| format!("{name}: {error}"))
}

fn unknown(name: &str) -> String {
    if shardd_transforms::Op::NAMES.contains(&name) {
        return format!(
            "{name} is an operation on pictures, and \"audio\" makes these transforms those of sounds"
        );
    }
    format!(
        "there is no operation {name} on sounds; the nearest is {}. There are: {}",
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
