//! All that belongs to a picture and moves with it: boxes, key points, masks and labels.
//!
//! Coordinates count pixels to the right and down from the top left corner of the picture, as torchvision's do: a box around
//! all of it ends at its width and height, and the key point of its last pixel is at its width and height minus 1.

mod boxes;
mod key_points;
mod mask;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use boxes::{BoxFormat, Boxes};
pub use key_points::KeyPoints;
pub use mask::Mask;

/// The kind of a column that belongs to the pictures, as a chain declares it.
///
/// ```
/// use shardd_transforms::{BoxFormat, CompanionKind};
///
/// let kind: CompanionKind = serde_json::from_str(r#"{"type": "boxes", "format": "XYWH"}"#).unwrap();
/// assert_eq!(kind, CompanionKind::Boxes { format: BoxFormat::Xywh });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum CompanionKind {
    /// Boxes, `[n, 4]`. A chain has one such column at most.
    Boxes {
        /// The meaning of their four numbers.
        format: BoxFormat,
    },
    /// Key points, `[n, 2]`: x and y.
    KeyPoints {},
    /// Class numbers of pixels, from 0 to 255: `[height, width]`, or `[planes, height, width]`, or a PNG.
    Mask {},
    /// One entry for each box, of any type: [`SanitizeBoundingBoxes`](crate::ops::boxes::SanitizeBoundingBoxes) drops it with
    /// its box.
    Labels {},
}

impl fmt::Display for CompanionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Boxes { .. } => "boxes",
            Self::KeyPoints {} => "key points",
            Self::Mask {} => "a mask",
            Self::Labels {} => "labels",
        })
    }
}

/// The companions of a chain's pictures by their columns.
pub type Declared = BTreeMap<String, CompanionKind>;

/// The kinds of companions at a place of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CompanionKinds {
    /// The format of the boxes, if there are boxes.
    pub boxes: Option<BoxFormat>,
    /// Whether there are key points.
    pub key_points: bool,
    /// Whether there are masks.
    pub masks: bool,
}

impl CompanionKinds {
    /// Those that are declared; the text of an error says which of them have no meaning.
    pub(crate) fn of(declared: &Declared) -> Result<Self, String> {
        let mut kinds = Self::default();
        let mut labels = None;
        for (name, kind) in declared {
            match *kind {
                CompanionKind::Boxes { format } => {
                    if kinds.boxes.replace(format).is_some() {
                        return Err(format!(
                            "column {name:?} is the second one of boxes: declare one, and join the others with it"
                        ));
                    }
                }
                CompanionKind::KeyPoints {} => kinds.key_points = true,
                CompanionKind::Mask {} => kinds.masks = true,
                CompanionKind::Labels {} => labels = Some(name),
            }
        }
        match labels {
            Some(name) if kinds.boxes.is_none() => Err(format!(
                "column {name:?} has the labels of boxes, and no column has boxes: declare it, or leave the labels out"
            )),
            _ => Ok(kinds),
        }
    }

    /// Whether pictures have coordinates beside them.
    pub(crate) fn has_coordinates(self) -> bool {
        self.boxes.is_some() || self.key_points
    }

    /// Whether pictures come alone, or with labels.
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl fmt::Display for CompanionKinds {
    /// Their names: `boxes, key points and masks`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [(self.boxes.is_some(), "boxes"), (self.key_points, "key points"), (self.masks, "masks")];
        let names: Vec<&str> =
            all.into_iter().filter(|(is_there, _)| *is_there).map(|(_, name)| name).collect();
        match names.as_slice() {
            [] => f.write_str("no companions"),
            [one] => f.write_str(one),
            [first @ .., last] => write!(f, "{} and {last}", first.join(", ")),
        }
    }
}

/// A sample's companion as its column has it. Convert whole numbers to `f32` first.
#[derive(Clone, Copy, Debug)]
pub enum Given<'a> {
    /// Four numbers for each box.
    Boxes(&'a [f32]),
    /// x and y of each key point.
    KeyPoints(&'a [f32]),
    /// The pixels of a mask, row by row.
    Pixels {
        /// `[height, width]` or `[planes, height, width]`.
        shape: &'a [usize],
        /// As many as the shape has.
        bytes: &'a [u8],
    },
    /// A mask as a PNG, of grey or of a palette's indices.
    Encoded(&'a [u8]),
    /// How many labels there are.
    Labels(usize),
}

impl Given<'_> {
    fn name(self) -> &'static str {
        match self {
            Self::Boxes(_) => "boxes",
            Self::KeyPoints(_) => "key points",
            Self::Pixels { .. } | Self::Encoded(_) => "a mask",
            Self::Labels(_) => "labels",
        }
    }
}

/// A sample's companion behind operations.
#[derive(Clone, Debug, PartialEq)]
pub enum Companion {
    /// Boxes.
    Boxes(Boxes),
    /// Key points.
    KeyPoints(KeyPoints),
    /// A mask.
    Mask(Mask),
    /// Labels: those at [`Companions::kept`].
    Labels,
}

impl Companion {
    /// The one of this kind, of a picture of this height and width; the text of an error ends the sentence that begins with its
    /// name.
    fn of(kind: CompanionKind, given: Given<'_>, size: [usize; 2]) -> Result<Self, String> {
        match (kind, given) {
            (CompanionKind::Boxes { format }, Given::Boxes(numbers)) => {
                Boxes::of(format, numbers).map(Self::Boxes)
            }
            (CompanionKind::KeyPoints {}, Given::KeyPoints(numbers)) => {
                KeyPoints::of(numbers).map(Self::KeyPoints)
            }
            (CompanionKind::Mask {}, Given::Pixels { shape, bytes }) => {
                Mask::of_pixels(shape, bytes, size).map(Self::Mask)
            }
            (CompanionKind::Mask {}, Given::Encoded(bytes)) => Mask::decode(bytes, size).map(Self::Mask),
            (CompanionKind::Labels {}, Given::Labels(_)) => Ok(Self::Labels),
            (kind, given) => Err(format!("is declared as {kind}, and its sample has {}", given.name())),
        }
    }
}

/// The companions of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Companions {
    /// Height and width of the picture.
    pub size: [usize; 2],
    /// One for each that the chain declares, in the order of their names.
    pub all: Vec<Companion>,
    /// The indices that the boxes had in the sample: all of them, but those that
    /// [`SanitizeBoundingBoxes`](crate::ops::boxes::SanitizeBoundingBoxes) dropped. Take the entries with these indices from
    /// every column that has one for each box.
    pub kept: Vec<usize>,
}

/// Why a sample's companions do not fit its picture or the chain.
pub(crate) enum Misfit {
    /// There are more or fewer than are declared: this number.
    Count(usize),
    /// One of them does not fit: its name, and the end of the sentence that begins with it.
    One(String, String),
}

impl Companions {
    /// Of a picture of this height and width that comes alone.
    pub(crate) fn none(size: [usize; 2]) -> Self {
        Self { size, all: Vec::new(), kept: Vec::new() }
    }

    /// Of a picture of this height and width: one for each that is declared, in the order of their names.
    pub(crate) fn of(declared: &Declared, given: &[Given<'_>], size: [usize; 2]) -> Result<Self, Misfit> {
        if given.len() != declared.len() {
            return Err(Misfit::Count(given.len()));
        }
        let misfit = |name: &String, reason| Misfit::One(name.clone(), reason);
        let columns = || declared.iter().zip(given);
        let all = columns().map(|((name, kind), given)| {
            Companion::of(*kind, *given, size).map_err(|reason| misfit(name, reason))
        });
        let mut companions = Self { all: all.collect::<Result<_, _>>()?, ..Self::none(size) };
        let boxes = companions.boxes().map_or(0, |boxes| boxes.boxes.len());
        for ((name, _), given) in columns() {
            if let Given::Labels(labels) = given
                && *labels != boxes
            {
                return Err(misfit(
                    name,
                    format!("has {labels} labels for {boxes} boxes: give one for each"),
                ));
            }
        }
        companions.kept = (0..boxes).collect();
        Ok(companions)
    }

    /// The boxes, if there are any.
    pub fn boxes(&self) -> Option<&Boxes> {
        self.all.iter().find_map(|companion| match companion {
            Companion::Boxes(boxes) => Some(boxes),
            _ => None,
        })
    }

    /// The boxes, to be changed.
    pub(crate) fn boxes_mut(&mut self) -> Option<&mut Boxes> {
        self.all.iter_mut().find_map(|companion| match companion {
            Companion::Boxes(boxes) => Some(boxes),
            _ => None,
        })
    }

    /// Keeps the boxes of which this is true, and their planes of masks that have one for each box.
    pub(crate) fn retain(&mut self, is_kept: &[bool]) {
        for companion in &mut self.all {
            match companion {
                Companion::Boxes(boxes) => keep(&mut boxes.boxes, is_kept),
                Companion::Mask(mask) => mask.retain(is_kept),
                Companion::KeyPoints(_) | Companion::Labels => {}
            }
        }
        keep(&mut self.kept, is_kept);
    }
}

/// Keeps the values of which this is true.
fn keep<T>(values: &mut Vec<T>, is_kept: &[bool]) {
    let mut is_kept = is_kept.iter();
    values.retain(|_| is_kept.next().copied().unwrap_or(false));
}

/// Places in a picture that follow its pixels: those of boxes or of key points.
pub(crate) trait Coordinates {
    /// Mirrors along x (`axis` 0) or y (1), in a picture that has this many pixels along it.
    fn mirror(&mut self, axis: usize, side: usize);

    /// Multiplies x and y.
    fn scale(&mut self, factors: [f32; 2]);

    /// Moves by this many pixels to the right and down, into a picture of this height and width.
    fn shift(&mut self, by: [f32; 2], size: [usize; 2]);

    /// Moves each point to where a function maps it, in a picture of this height and width.
    fn map(&mut self, map: impl Fn([f32; 2]) -> [f32; 2], size: [usize; 2]);

    /// As [`map`](Self::map), of the pixel at each point: the next one for boxes, the last one for key points, as torchvision
    /// has it.
    fn map_pixels(&mut self, map: impl Fn([f32; 2]) -> [f32; 2], size: [usize; 2]);
}
