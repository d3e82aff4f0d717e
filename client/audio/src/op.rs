//! An operation as data, by its name.

pub mod containers;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use shardd_transforms::document::{self, Arguments};

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

            fn of(name: &str, arguments: Arguments) -> Result<Self, String> {
                match name {
                    $(stringify!($name) => document::with_arguments(name, arguments).map(Self::$name),)+
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
        document::nearest(name, Self::NAMES.iter().copied()).expect("there are operations")
    }
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
