//! From Arrow rows to the numbers a model takes. Knows schemas and images, not loaders or models' layers.

mod augment;
mod convert;
mod decode;
mod error;
mod evaluation;
mod packed;
mod sparse;
mod spec;
mod stored;

pub use augment::Augmentation;
pub use error::InputError;
pub use evaluation::{MemoryRows, Rows, RowsError};
pub use packed::Attention;
pub use spec::{InputOptions, InputSpec};
pub use stored::{Samples, StoredSamples};
