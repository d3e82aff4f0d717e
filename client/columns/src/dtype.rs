//! Types of numbers, by the names that NumPy and PyTorch have for them.

use std::fmt;

use arrow::datatypes::DataType;
use serde::{Deserialize, Serialize};

macro_rules! dtypes {
    ($($name:ident = $text:literal => $type:ident),+ $(,)?) => {
        /// A type of numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum Dtype {
            $(
                #[doc = concat!("`", $text, "`.")]
                $name,
            )+
        }

        impl Dtype {
            /// Arrow's type.
            pub fn data_type(self) -> DataType {
                match self {
                    $(Self::$name => DataType::$type,)+
                }
            }

            /// That of Arrow's type; `None` if it is none of numbers.
            pub fn of(data_type: &DataType) -> Option<Self> {
                match data_type {
                    $(DataType::$type => Some(Self::$name),)+
                    _ => None,
                }
            }
        }

        impl fmt::Display for Dtype {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $text,)+
                })
            }
        }
    };
}

dtypes! {
    Bool = "bool" => Boolean,
    Int8 = "int8" => Int8,
    Int16 = "int16" => Int16,
    Int32 = "int32" => Int32,
    Int64 = "int64" => Int64,
    Uint8 = "uint8" => UInt8,
    Uint16 = "uint16" => UInt16,
    Uint32 = "uint32" => UInt32,
    Uint64 = "uint64" => UInt64,
    Float16 = "float16" => Float16,
    Float32 = "float32" => Float32,
    Float64 = "float64" => Float64,
}

/// The type of the results of arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Float {
    /// `float32`: each result is rounded once.
    #[default]
    Float32,
    /// `float64`.
    Float64,
}

impl Float {
    /// Arrow's type.
    pub fn data_type(self) -> DataType {
        match self {
            Self::Float32 => DataType::Float32,
            Self::Float64 => DataType::Float64,
        }
    }
}

/// Runs code for the Arrow type of integers or, with `numbers`, of integers and floats.
macro_rules! for_type {
    (integers $data_type:expr, $type:ident => $body:expr, $other:expr) => {
        match $data_type {
            arrow::datatypes::DataType::Int8 => {
                type $type = arrow::datatypes::Int8Type;
                $body
            }
            arrow::datatypes::DataType::Int16 => {
                type $type = arrow::datatypes::Int16Type;
                $body
            }
            arrow::datatypes::DataType::Int32 => {
                type $type = arrow::datatypes::Int32Type;
                $body
            }
            arrow::datatypes::DataType::Int64 => {
                type $type = arrow::datatypes::Int64Type;
                $body
            }
            arrow::datatypes::DataType::UInt8 => {
                type $type = arrow::datatypes::UInt8Type;
                $body
            }
            arrow::datatypes::DataType::UInt16 => {
                type $type = arrow::datatypes::UInt16Type;
                $body
            }
            arrow::datatypes::DataType::UInt32 => {
                type $type = arrow::datatypes::UInt32Type;
                $body
            }
            arrow::datatypes::DataType::UInt64 => {
                type $type = arrow::datatypes::UInt64Type;
                $body
            }
            _ => $other,
        }
    };
    (floats $data_type:expr, $type:ident => $body:expr, $other:expr) => {
        match $data_type {
            arrow::datatypes::DataType::Float16 => {
                type $type = arrow::datatypes::Float16Type;
                $body
            }
            arrow::datatypes::DataType::Float32 => {
                type $type = arrow::datatypes::Float32Type;
                $body
            }
            arrow::datatypes::DataType::Float64 => {
                type $type = arrow::datatypes::Float64Type;
                $body
            }
            _ => $other,
        }
    };
}

pub(crate) use for_type;
