//! An operation as data, by its name.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use shardd_transforms::document::{self, Arguments};

use crate::operation::Operation;
use crate::ops::{
    Bucketize, Cast, Clip, FillNull, Hash, Log1p, MinMaxScale, MultiHot, Normalize, OneHot, Vocabulary,
};

macro_rules! operations {
    ($($name:ident),+ $(,)?) => {
        /// An operation on the values of a column.
        ///
        /// As JSON it is an object of its arguments with its name as `type`; left out are arguments with their default values.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "type")]
        pub enum Op {
            $(
                #[doc = concat!("[`", stringify!($name), "`](struct@", stringify!($name), ").")]
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
                let arguments = serde_json::Value::Object(arguments);
                match name {
                    $(
                        stringify!($name) => serde_json::from_value(arguments)
                            .map(Self::$name)
                            .map_err(|error| format!("{name}: {error}")),
                    )+
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
    Bucketize, Cast, Clip, FillNull, Hash, Log1p, MinMaxScale, MultiHot, Normalize, OneHot, Vocabulary,
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
    format!(
        "there is no operation {name} on columns; the nearest is {}. There are: {}",
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
