//! The operations, with the names of the field.

mod arithmetic;
mod buckets;
mod cast;
mod fill;
mod hot;
mod words;

pub use arithmetic::{Clip, Log1p, MinMaxScale, Normalize};
pub use buckets::Bucketize;
pub use cast::Cast;
pub use fill::FillNull;
pub use hot::{MultiHot, OneHot};
pub use words::{Hash, Vocabulary, Words};

pub use crate::number::Numbers;
