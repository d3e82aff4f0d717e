//! The rules by which a chain is checked and applied.

use crate::draws::{Draws, Place};
use crate::image::Region;
use crate::value::{Dtype, Kind, Value};

/// A step of a chain.
pub(crate) trait Operation {
    /// The kind of the pictures that it makes of pictures of this kind; the text of an error ends the sentence that begins
    /// with its name.
    fn kind(&self, input: Kind) -> Result<Kind, String>;

    /// Changes a picture of a kind that it accepts. The only errors are of pictures whose size is not known before.
    fn apply(&self, value: Value, at: At) -> Result<Value, String>;

    /// The part of a picture of this height and width that is all it needs of it, if it begins by cutting that out: then only that
    /// is decoded.
    fn region(&self, _size: [usize; 2], _at: At) -> Option<Region> {
        None
    }

    /// Changes that part into the picture that [`apply`](Self::apply) would have made of the whole.
    fn apply_to_region(&self, part: Value) -> Result<Value, String> {
        Ok(part)
    }

    /// For how many operations it counts: itself, and those inside.
    fn count(&self) -> u64 {
        1
    }
}

/// Where an operation is applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) place: Place,
    /// The operation's number.
    pub(crate) op: u64,
}

impl At {
    /// The random numbers of the operation.
    pub(crate) fn draws(self) -> Draws {
        Draws::new(self.place, self.op)
    }
}

/// The rule of an operation on bytes that changes neither size nor channels.
pub(crate) fn bytes_only(input: Kind) -> Result<Kind, String> {
    match input.dtype {
        Dtype::Uint8 => Ok(input),
        dtype => Err(format!("takes uint8 pictures, and gets {dtype}: move it before ToDtype")),
    }
}
