//! Transforms of samples as data: decoding and augmentation of pictures with the names, arguments and pixels of
//! torchvision.transforms.v2.
//!
//! A [`Chain`] is a document. [`Transform::new`] checks it for the pictures that it gets, and [`Transform::apply`] makes a
//! sample's numbers in a batch. Each random parameter is a pure function of a seed, an epoch, a position in its order and the
//! operation's number ([`Draws`]), so that a sample has the same bytes for any number of threads, processes, ranks and restarts.
//!
//! ```
//! use shardd_transforms::{Chain, Input, Place, Transform};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let chain: Chain = r#"{"transforms": [
//!     {"type": "RandomCrop", "size": 4, "padding": 1},
//!     {"type": "RandomHorizontalFlip"},
//!     {"type": "ToDtype", "dtype": "float32", "scale": true}
//! ]}"#
//! .parse()?;
//! let transform = Transform::new(chain, Input::of_shape(&[4, 4, 3])?)?;
//! assert_eq!(transform.shape(), [3, 4, 4]);
//!
//! let sample: Vec<u8> = (0..48).collect();
//! let mut numbers = vec![0; transform.bytes()];
//! transform.apply(&sample, Place { seed: 7, epoch: 0, position: 12 }, &mut numbers)?;
//! # Ok(())
//! # }
//! ```

mod chain;
mod companions;
pub mod decode;
pub mod document;
mod draws;
mod image;
mod mixing;
pub mod op;
mod operation;
pub mod ops;
mod placed;
mod transform;
mod value;

pub use chain::{Chain, ChainError, OnError};
pub use companions::{
    BoxFormat, Boxes, Companion, CompanionKind, CompanionKinds, Companions, Declared, Given, KeyPoints, Mask,
};
pub use draws::{Draws, Place};
pub use image::{Image, Region};
pub use mixing::{CutMix, Mix, MixUp, Mixing, RandomApplyMix, RandomChoiceMix};
pub use op::Op;
pub use transform::{Input, SampleError, Stage, Transform};
pub use value::{Dtype, Kind, Layout, Value};
