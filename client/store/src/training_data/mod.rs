//! The content that a model was trained on, for `shardctl runs summary` and for nodes. Pure.
//!
//! - `reads.rs`: the samples that a training read, by its record.
//! - `content.rs`: the columns of a version, and the media in them.
//! - `version.rs`: a version, with how much of it was read.

mod content;
mod reads;
mod version;

pub use content::{Column, Modality, Unit, columns};
pub use reads::{EpochRead, Training};
pub use version::{Amount, Version, base};
