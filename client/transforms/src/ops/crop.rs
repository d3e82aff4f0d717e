//! Cutting out and padding.

use serde::{Deserialize, Serialize};

use super::arguments::{Fill, LONGEST_SIDE, OneOrMany, Size, black, bounded, for_channels, ordered, round};
use super::resize::{Interpolation, Resized, resize};
use crate::companions::Coordinates;
use crate::draws::Draws;
use crate::image::{Image, Region};
use crate::operation::{At, Motion, Mover, bytes_only};
use crate::placed::Placed;
use crate::value::{Dtype, Kind, Value, each};

/// From where the pixels of a margin come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PaddingMode {
    /// All are `fill`.
    #[default]
    Constant,
    /// From the outermost pixel.
    Edge,
    /// Mirrored at the outermost pixel, which is not repeated.
    Reflect,
    /// Mirrored at the edge: the outermost pixel is repeated.
    Symmetric,
}

impl PaddingMode {
    /// The place in `0..side` from which a place comes, which may be outside; none for `fill`.
    fn source(self, at: isize, side: usize) -> Option<usize> {
        let last = side as isize - 1;
        if (0..=last).contains(&at) {
            return Some(at as usize);
        }
        match self {
            Self::Constant => None,
            Self::Edge => Some(at.clamp(0, last) as usize),
            Self::Reflect if side == 1 => Some(0),
            Self::Reflect => {
                let at = at.rem_euclid(2 * last);
                Some(at.min(2 * last - at) as usize)
            }
            Self::Symmetric => {
                let at = at.rem_euclid(2 * (last + 1));
                Some(at.min(2 * last + 1 - at) as usize)
            }
        }
    }
}

/// Adds margins, in pixels: at the left, above, at the right and below.
///
/// Mirrors of pictures that are smaller than the margin are mirrored again.
///
/// # Panics
/// If `fill` does not have as many numbers as a pixel.
pub fn pad<T: Copy>(
    image: &Image<T>,
    [left, top, right, bottom]: [usize; 4],
    fill: &[T],
    mode: PaddingMode,
) -> Image<T> {
    let [height, width, channels] = image.shape();
    assert_eq!(fill.len(), channels, "a number for each channel");
    let [padded_height, padded_width] = [top + height + bottom, left + width + right];
    let columns: Vec<Option<usize>> =
        (0..padded_width).map(|x| mode.source(x as isize - left as isize, width)).collect();
    let mut pixels = Vec::with_capacity(padded_height * padded_width * channels);
    for y in 0..padded_height {
        let Some(row) = mode.source(y as isize - top as isize, height).map(|y| image.row(y)) else {
            (0..padded_width).for_each(|_| pixels.extend_from_slice(fill));
            continue;
        };
        let pixel = |x: &Option<usize>| x.map_or(fill, |x| &row[x * channels..(x + 1) * channels]);
        columns[..left].iter().for_each(|x| pixels.extend_from_slice(pixel(x)));
        pixels.extend_from_slice(row);
        columns[left + width..].iter().for_each(|x| pixels.extend_from_slice(pixel(x)));
    }
    Image::new([padded_height, padded_width, channels], pixels)
}

/// Cuts a rectangle out of the middle. A picture that is too small gets black margins first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CenterCrop {
    /// Height and width of the pictures that it makes.
    pub size: Size,
}

/// The motion of [`CenterCrop`], to this height and width.
pub(crate) struct Middle([usize; 2]);

impl Motion for Middle {
    fn picture(&self, value: Value) -> Result<Value, String> {
        Ok(each!(value, image => center_crop(image, self.0)))
    }

    fn place(&self, placed: &mut Placed<'_>) -> bool {
        middle_region(placed.size(), self.0).is_some_and(|region| placed.cut(region))
    }

    fn mask(&self, plane: Image<u8>) -> Result<Image<u8>, String> {
        Ok(center_crop(plane, self.0))
    }

    /// As torchvision, which rounds half the missing pixels to the even number here, and down for the margins of a picture.
    fn coordinates(&self, all: &mut impl Coordinates, from: [usize; 2], to: [usize; 2]) {
        let by = |axis: usize| round((to[axis] as f64 - from[axis] as f64) / 2.0) as f32;
        all.shift([by(1), by(0)], to);
    }
}

impl Mover for CenterCrop {
    type Motion<'a> = Middle;

    const PLACES: bool = true;

    fn kind(&self, input: Kind) -> Result<Kind, String> {
        Ok(Kind { size: Some(self.size.height_and_width()?), ..input })
    }

    fn motion(&self, _: [usize; 2], _: At) -> Result<Option<Middle>, String> {
        self.size.height_and_width().map(|size| Some(Middle(size)))
    }

    fn region(&self, own: [usize; 2], _: At) -> Option<Region> {
        middle_region(own, self.size.height_and_width().ok()?)
    }
}

/// The rectangle in the middle of a picture, if it is inside.
fn middle_region([own_height, own_width]: [usize; 2], [height, width]: [usize; 2]) -> Option<Region> {
    (height <= own_height && width <= own_width).then(|| Region {
        top: middle(own_height, height),
        left: middle(own_width, width),
        height,
        width,
    })
}

/// The first of the wanted pixels in the middle of a side.
fn middle(side: usize, wanted: usize) -> usize {
    round((side - wanted) as f64 / 2.0) as usize
}

fn center_crop<T: Copy + Default>(mut image: Image<T>, [height, width]: [usize; 2]) -> Image<T> {
    let missing = [width.saturating_sub(image.width()), height.saturating_sub(image.height())];
    if missing != [0, 0] {
        let [across, down] = missing;
        let margins = [across / 2, down / 2, across.div_ceil(2), down.div_ceil(2)];
        image = pad(&image, margins, &vec![T::default(); image.channels()], PaddingMode::Constant);
    }
    let region =
        Region { top: middle(image.height(), height), left: middle(image.width(), width), height, width };
    if region.height == image.height() && region.width == image.width() { image } else { image.cut(region) }
}

/// Adds margins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pad {
    /// Pixels: of all margins, or `[left and right, above and below]`, or `[left, above, right, below]`.
    pub padding: OneOrMany<usize>,
    /// The value of pixels in the margins, with `padding_mode` constant.
    #[serde(default = "black")]
    pub fill: Fill,
    /// From where the pixels of the margins come.
    #[serde(default)]
    pub padding_mode: PaddingMode,
}

/// `[left, above, right, below]`.
fn margins(padding: &OneOrMany<usize>) -> Result<[usize; 4], String> {
    let margins = match *padding.as_slice() {
        [all] => [all; 4],
        [across, down] => [across, down, across, down],
        [left, top, right, bottom] => [left, top, right, bottom],
        _ => return Err("has a padding of other than 1, 2 or 4 numbers".into()),
    };
    match margins.iter().all(|margin| *margin <= LONGEST_SIDE) {
        true => Ok(margins),
        false => Err(format!("has a padding of more than {LONGEST_SIDE} pixels")),
    }
}

/// Margins around a picture, and a rectangle that is then cut out: the motion of several operations.
pub(crate) struct Frame<'a> {
    /// If there are margins: their pixels at the left, above, at the right and below.
    pub(crate) margins: Option<[usize; 4]>,
    /// The value of pixels in the margins of a picture, with `mode` constant. Those of masks are 0.
    pub(crate) fill: &'a Fill,
    /// From where the pixels of the margins come.
    pub(crate) mode: PaddingMode,
    /// The rectangle, if there is one.
    pub(crate) cut: Option<Region>,
}

/// The height and width with these margins.
fn with_margins([left, top, right, bottom]: [usize; 4], [height, width]: [usize; 2]) -> [usize; 2] {
    [top + height + bottom, left + width + right]
}

impl Motion for Frame<'_> {
    fn picture(&self, value: Value) -> Result<Value, String> {
        let value = padded(value, self.margins.unwrap_or_default(), self.fill, self.mode)?;
        Ok(match self.cut {
            Some(region) => each!(value, image => image.cut(region)),
            None => value,
        })
    }

    fn place(&self, placed: &mut Placed<'_>) -> bool {
        self.margins.is_none() && self.cut.is_none_or(|region| placed.cut(region))
    }

    fn mask(&self, plane: Image<u8>) -> Result<Image<u8>, String> {
        let plane = match self.margins {
            Some(margins) => pad(&plane, margins, &[0], self.mode),
            None => plane,
        };
        Ok(match self.cut {
            Some(region) => plane.cut(region),
            None => plane,
        })
    }

    fn coordinates(&self, all: &mut impl Coordinates, from: [usize; 2], _: [usize; 2]) {
        if let Some(margins @ [left, top, ..]) = self.margins {
            all.shift([left as f32, top as f32], with_margins(margins, from));
        }
        if let Some(Region { top, left, height, width }) = self.cut {
            all.shift([-(left as f32), -(top as f32)], [height, width]);
        }
    }
}

impl Mover for Pad {
    type Motion<'a> = Frame<'a>;

    fn kind(&self, input: Kind) -> Result<Kind, String> {
        let margins = margins(&self.padding)?;
        check_fill(&self.fill, input)?;
        check_mode(self.padding_mode, input)?;
        let padded = |size| bounded(with_margins(margins, size));
        Ok(Kind { size: input.size.map(padded).transpose()?, ..input })
    }

    fn motion(&self, _: [usize; 2], _: At) -> Result<Option<Frame<'_>>, String> {
        let margins = Some(margins(&self.padding)?);
        Ok(Some(Frame { margins, fill: &self.fill, mode: self.padding_mode, cut: None }))
    }
}

/// Refuses margins that show things again, which have then more boxes and key points than they are given.
fn check_mode(mode: PaddingMode, of: Kind) -> Result<(), String> {
    match mode == PaddingMode::Constant || !of.companions.has_coordinates() {
        true => Ok(()),
        false => Err(format!(
            "has a padding_mode that shows parts of a picture again, and gets {}: give padding_mode constant",
            of.companions
        )),
    }
}

/// Refuses values of margins that the numbers of these pictures do not have.
pub(super) fn check_fill(fill: &Fill, of: Kind) -> Result<(), String> {
    let fill = for_channels(fill, of.channels, "fill")?;
    match fill
        .iter()
        .all(|value| value.is_finite() && (of.dtype != Dtype::Uint8 || (0.0..=255.0).contains(value)))
    {
        true => Ok(()),
        false => Err(format!("has a fill of {fill:?} for {}: give numbers that this type has", of.dtype)),
    }
}

/// A picture with margins, if there are any.
fn padded(value: Value, margins: [usize; 4], fill: &Fill, mode: PaddingMode) -> Result<Value, String> {
    if margins == [0; 4] {
        return Ok(value);
    }
    bounded(with_margins(margins, value.size()))?;
    let fill = for_channels(fill, value.shape()[2], "fill")?;
    Ok(match value {
        Value::Bytes(image) => {
            let fill: Vec<u8> = fill.iter().map(|fill| *fill as u8).collect();
            Value::Bytes(pad(&image, margins, &fill, mode))
        }
        Value::Floats(image) => {
            let fill: Vec<f32> = fill.iter().map(|fill| *fill as f32).collect();
            Value::Floats(pad(&image, margins, &fill, mode))
        }
    })
}

/// Cuts a rectangle out at a random place.
///
/// Random numbers: where a picture is higher, `below(height - crop_height + 1)` for the first row; then, where it is wider,
/// `below(width - crop_width + 1)` for the first column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomCrop {
    /// Height and width of the pictures that it makes.
    pub size: Size,
    /// Margins that are added first, as those of [`Pad`].
    #[serde(default)]
    pub padding: Option<OneOrMany<usize>>,
    /// Adds more to pictures that are too small, on both sides as much as is missing.
    #[serde(default)]
    pub pad_if_needed: bool,
    /// The value of pixels in the margins, with `padding_mode` constant.
    #[serde(default = "black")]
    pub fill: Fill,
    /// From where the pixels of the margins come.
    #[serde(default)]
    pub padding_mode: PaddingMode,
}

impl RandomCrop {
    /// The margins of a picture of this height and width; an error if it is too small even so.
    fn margins(&self, [height, width]: [usize; 2]) -> Result<[usize; 4], String> {
        let wanted = self.size.height_and_width()?;
        let [mut left, mut top, mut right, mut bottom] = self.padding.as_ref().map_or(Ok([0; 4]), margins)?;
        let [padded_height, padded_width] = with_margins([left, top, right, bottom], [height, width]);
        let missing = [wanted[0].saturating_sub(padded_height), wanted[1].saturating_sub(padded_width)];
        if self.pad_if_needed {
            let [down, across] = missing;
            (left, top, right, bottom) = (left + across, top + down, right + across, bottom + down);
        } else if missing != [0, 0] {
            return Err(format!(
                "cuts {}x{} out of pictures of {padded_height}x{padded_width}: set pad_if_needed, or Resize first",
                wanted[0], wanted[1]
            ));
        }
        Ok([left, top, right, bottom])
    }
}

/// A rectangle of this size anywhere in a picture.
fn random_region(
    [own_height, own_width]: [usize; 2],
    [height, width]: [usize; 2],
    draws: &mut Draws,
) -> Region {
    let mut first =
        |side: usize, wanted: usize| if side > wanted { draws.below(side - wanted + 1) } else { 0 };
    Region { top: first(own_height, height), left: first(own_width, width), height, width }
}

impl Mover for RandomCrop {
    type Motion<'a> = Frame<'a>;

    const PLACES: bool = true;

    fn kind(&self, input: Kind) -> Result<Kind, String> {
        let size = self.size.height_and_width()?;
        check_fill(&self.fill, input)?;
        if self.padding.is_some() || self.pad_if_needed {
            check_mode(self.padding_mode, input)?;
        }
        // Sides that differ are known when the picture is there.
        self.margins(input.size.unwrap_or(size))?;
        Ok(Kind { size: Some(size), ..input })
    }

    fn motion(&self, own: [usize; 2], at: At) -> Result<Option<Frame<'_>>, String> {
        let (size, margins) = (self.size.height_and_width()?, self.margins(own)?);
        let padded = with_margins(margins, own);
        let cut = (padded != size).then(|| random_region(padded, size, &mut at.draws()));
        let margins = Some(margins).filter(|margins| *margins != [0; 4]);
        let frame = Frame { margins, fill: &self.fill, mode: self.padding_mode, cut };
        Ok((frame.margins.is_some() || frame.cut.is_some()).then_some(frame))
    }

    fn region(&self, own: [usize; 2], at: At) -> Option<Region> {
        let size = self.size.height_and_width().ok()?;
        (self.margins(own).ok()? == [0; 4]).then(|| random_region(own, size, &mut at.draws()))
    }
}

/// Cuts a rectangle of random place, size and ratio out, and resizes it: the usual augmentation of large pictures (Szegedy et
/// al., "Going deeper with convolutions", CVPR 2015).
///
/// Random numbers, at most ten times: `between(scale)` for the part of the area, `between(ln ratio)` for the logarithm of width
/// over height, and if that rectangle fits, `below(...)` for its first row and `below(...)` for its first column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomResizedCrop {
    /// Height and width of the pictures that it makes.
    pub size: Size,
    /// The least and the largest part of the area.
    #[serde(default = "RandomResizedCrop::scale")]
    pub scale: [f64; 2],
    /// The least and the largest ratio of width to height.
    #[serde(default = "RandomResizedCrop::ratio")]
    pub ratio: [f64; 2],
    /// How it is resized.
    #[serde(default)]
    pub interpolation: Interpolation,
}

impl RandomResizedCrop {
    fn scale() -> [f64; 2] {
        [0.08, 1.0]
    }

    fn ratio() -> [f64; 2] {
        [3.0 / 4.0, 4.0 / 3.0]
    }

    /// The rectangle in a picture of this height and width.
    pub fn region(&self, [height, width]: [usize; 2], draws: &mut Draws) -> Region {
        let area = (height * width) as f64;
        let [least, most] = self.ratio;
        for _ in 0..10 {
            let part = area * draws.between(self.scale[0], self.scale[1]);
            let ratio = libm::exp(draws.between(libm::log(least), libm::log(most)));
            let [w, h] = [part * ratio, part / ratio].map(|square| round(square.sqrt()) as usize);
            if (1..=width).contains(&w) && (1..=height).contains(&h) {
                let (top, left) = (draws.below(height - h + 1), draws.below(width - w + 1));
                return Region { top, left, height: h, width: w };
            }
        }
        let ratio = width as f64 / height as f64;
        let at_least_one = |side: f64| (round(side) as usize).max(1);
        let (h, w) = match ratio {
            ratio if ratio < least => (at_least_one(width as f64 / least).min(height), width),
            ratio if ratio > most => (height, at_least_one(height as f64 * most).min(width)),
            _ => (height, width),
        };
        Region { top: (height - h) / 2, left: (width - w) / 2, height: h, width: w }
    }
}

impl Mover for RandomResizedCrop {
    type Motion<'a> = Resized;

    fn kind(&self, input: Kind) -> Result<Kind, String> {
        bytes_only(input)?;
        ordered(self.scale, "a scale", 0.0, f64::INFINITY)?;
        ordered(self.ratio, "a ratio", f64::MIN_POSITIVE, f64::INFINITY)?;
        Ok(Kind { size: Some(self.size.height_and_width()?), ..input })
    }

    fn motion(&self, own: [usize; 2], at: At) -> Result<Option<Resized>, String> {
        let region = Some(self.region(own, &mut at.draws()));
        Ok(Some(Resized { region, to: self.size.height_and_width()?, interpolation: self.interpolation }))
    }

    fn region(&self, size: [usize; 2], at: At) -> Option<Region> {
        Some(self.region(size, &mut at.draws()))
    }

    fn apply_to_region(&self, part: Value) -> Result<Value, String> {
        let size = self.size.height_and_width()?;
        part.try_bytes(|image| resize(&image, Region::all_of(&image), size, self.interpolation))
    }
}

#[cfg(test)]
mod tests;
