//! The rules by which a chain is checked and applied.

use crate::companions::{Companion, Companions, Coordinates};
use crate::draws::{Draws, Place};
use crate::image::{Image, Region};
use crate::placed::Placed;
use crate::value::{Dtype, Kind, Value};

/// A step of a chain.
pub(crate) trait Operation {
    /// The kind of the pictures that it makes of pictures of this kind; the text of an error ends the sentence that begins
    /// with its name.
    fn kind(&self, input: Kind) -> Result<Kind, String>;

    /// Changes a picture of a kind that it accepts. The only errors are of pictures whose size is not known before.
    fn apply(&self, value: Value, at: At) -> Result<Value, String>;

    /// Changes a picture and its companions.
    fn apply_with(&self, value: Value, companions: &mut Companions, at: At) -> Result<Value, String> {
        let value = self.apply(value, at)?;
        self.carry(companions, value.size(), at)?;
        Ok(value)
    }

    /// Changes companions as [`apply_with`](Self::apply_with) does, beside a picture that it makes of this height and width.
    ///
    /// Complete for operations that change companions alone, and for those with a [`region`](Self::region).
    fn carry(&self, _companions: &mut Companions, _to: [usize; 2], _at: At) -> Result<(), String> {
        Ok(())
    }

    /// The part of a picture of this height and width that is all it needs of it, if it begins by cutting that out: then only that
    /// is decoded.
    fn region(&self, _size: [usize; 2], _at: At) -> Option<Region> {
        None
    }

    /// Changes that part into the picture that [`apply`](Self::apply) would have made of the whole.
    fn apply_to_region(&self, part: Value) -> Result<Value, String> {
        Ok(part)
    }

    /// Does the same to a picture of bytes without touching its pixels, if it only cuts or flips them; whether it has.
    fn place(&self, _placed: &mut Placed<'_>, _at: At) -> bool {
        false
    }

    /// For how many operations it counts: itself, and those inside.
    fn count(&self) -> u64 {
        1
    }
}

/// A step of a chain that moves pixels. Its random numbers settle the motion, and picture and companions follow that.
pub(crate) trait Mover {
    /// How it moves pixels: all that its random numbers settle.
    type Motion<'a>: Motion
    where
        Self: 'a;

    /// Whether its motions may be such that [`Motion::place`] knows.
    const PLACES: bool = false;

    /// As [`Operation::kind`].
    fn kind(&self, input: Kind) -> Result<Kind, String>;

    /// The motion of a picture of this height and width; none if it stays as it is. The only errors are of pictures whose size is
    /// not known before.
    fn motion(&self, size: [usize; 2], at: At) -> Result<Option<Self::Motion<'_>>, String>;

    /// As [`Operation::region`].
    fn region(&self, _size: [usize; 2], _at: At) -> Option<Region> {
        None
    }

    /// As [`Operation::apply_to_region`].
    fn apply_to_region(&self, part: Value) -> Result<Value, String> {
        Ok(part)
    }
}

impl<M: Mover> Operation for M {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        Mover::kind(self, input)
    }

    fn apply(&self, value: Value, at: At) -> Result<Value, String> {
        let mut alone = Companions::none(value.size());
        self.apply_with(value, &mut alone, at)
    }

    fn apply_with(&self, value: Value, companions: &mut Companions, at: At) -> Result<Value, String> {
        let Some(motion) = self.motion(value.size(), at)? else { return Ok(value) };
        let value = motion.picture(value)?;
        follow(companions, &motion, value.size())?;
        Ok(value)
    }

    fn place(&self, placed: &mut Placed<'_>, at: At) -> bool {
        M::PLACES
            && match self.motion(placed.size(), at) {
                Ok(Some(motion)) => motion.place(placed),
                Ok(None) => true,
                Err(_) => false,
            }
    }

    fn carry(&self, companions: &mut Companions, to: [usize; 2], at: At) -> Result<(), String> {
        match self.motion(companions.size, at)? {
            Some(motion) => follow(companions, &motion, to),
            None => Ok(()),
        }
    }

    fn region(&self, size: [usize; 2], at: At) -> Option<Region> {
        Mover::region(self, size, at)
    }

    fn apply_to_region(&self, part: Value) -> Result<Value, String> {
        Mover::apply_to_region(self, part)
    }
}

/// A way in which all pixels move.
pub(crate) trait Motion {
    /// Moves a picture.
    fn picture(&self, value: Value) -> Result<Value, String>;

    /// Moves a picture of bytes without touching its pixels, if it only cuts or flips; whether it has.
    fn place(&self, _placed: &mut Placed<'_>) -> bool {
        false
    }

    /// Moves a plane of a mask: each pixel comes from the nearest, or is 0.
    fn mask(&self, plane: Image<u8>) -> Result<Image<u8>, String>;

    /// Moves coordinates in a picture of height and width `from` that becomes one of `to`.
    fn coordinates(&self, all: &mut impl Coordinates, from: [usize; 2], to: [usize; 2]);
}

/// Moves the companions of a picture that became one of this height and width.
pub(crate) fn follow(
    companions: &mut Companions,
    motion: &impl Motion,
    to: [usize; 2],
) -> Result<(), String> {
    let from = std::mem::replace(&mut companions.size, to);
    for companion in &mut companions.all {
        match companion {
            Companion::Boxes(boxes) => motion.coordinates(boxes, from, to),
            Companion::KeyPoints(points) => motion.coordinates(points, from, to),
            Companion::Mask(mask) => mask.change(|plane| motion.mask(plane))?,
            Companion::Labels => {}
        }
    }
    Ok(())
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
