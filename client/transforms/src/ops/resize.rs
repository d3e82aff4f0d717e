//! Other sizes, as Pillow and torchvision with `antialias=True` compute them.

use std::cell::RefCell;
use std::num::TryFromIntError;

use fast_image_resize::images::{CroppedImage, Image as Pixels, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use serde::{Deserialize, Serialize};

use super::arguments::{LONGEST_SIDE, MOST_PIXELS, Size, bounded};
use crate::companions::Coordinates;
use crate::image::{Image, Region};
use crate::operation::{At, Motion, Mover, bytes_only};
use crate::value::{Kind, Value};

/// How pixels between pixels are found. All but the first two average over what becomes one pixel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interpolation {
    /// The pixel at `floor(i * scale)`, as torchvision and OpenCV have it.
    Nearest,
    /// The pixel at `floor((i + 0.5) * scale)`, as Pillow has it.
    NearestExact,
    /// A triangle of pixels.
    #[default]
    Bilinear,
    /// Keys' cubic with a = -0.5.
    Bicubic,
    /// All pixels alike.
    Box,
    /// A Hamming window.
    Hamming,
    /// A sinc with three lobes.
    Lanczos,
}

impl Interpolation {
    fn filter(self) -> Option<FilterType> {
        match self {
            Self::Nearest | Self::NearestExact => None,
            Self::Bilinear => Some(FilterType::Bilinear),
            Self::Bicubic => Some(FilterType::CatmullRom),
            Self::Box => Some(FilterType::Box),
            Self::Hamming => Some(FilterType::Hamming),
            Self::Lanczos => Some(FilterType::Lanczos3),
        }
    }

    /// Which of `from` pixels becomes each of `to`.
    fn nearest(self, from: usize, to: usize) -> Vec<usize> {
        let scale = from as f32 / to as f32;
        let shift = if self == Self::NearestExact { 0.5 } else { 0.0 };
        (0..to).map(|at| (((at as f32 + shift) * scale) as usize).min(from - 1)).collect()
    }
}

thread_local! {
    /// Keep their memory from one picture to the next.
    static SCRATCH: RefCell<(Resizer, Vec<u8>)> = RefCell::new((Resizer::new(), Vec::new()));
}

/// Resizes a region to this height and width. Pixels outside the region have no influence.
///
/// Numbers are rounded as torchvision's kernels for bytes and Pillow-SIMD do: weights have 16 bits with sign, and sums are
/// rounded after each direction, across first and then down.
///
/// # Errors
/// For pictures with other than 1 or 3 channels.
pub fn resize(
    image: &Image<u8>,
    region: Region,
    [height, width]: [usize; 2],
    interpolation: Interpolation,
) -> Result<Image<u8>, String> {
    let channels = image.channels();
    if [region.height, region.width] == [height, width] {
        return Ok(image.cut(region));
    }
    let Some(filter) = interpolation.filter() else {
        return Ok(nearest(image, region, [height, width], interpolation));
    };
    let pixel = match channels {
        1 => PixelType::U8,
        3 => PixelType::U8x3,
        _ => return Err(format!("resizes pictures of 1 or 3 channels, not of {channels}")),
    };
    bounded_between(region.height, width)?;
    let mut pixels = vec![0; height * width * channels];
    let target = Target { pixels: &mut pixels, size: [height, width] };
    resize_by(image, region, target, pixel, filter)
        .map_err(|error| format!("resizes no such picture: {error}"))?;
    Ok(Image::new([height, width, channels], pixels))
}

/// Memory that a thread keeps from one picture to the next, at most.
const KEPT_BYTES: usize = 32 << 20;

/// Refuses pictures whose rows, once they are as wide as wanted, take too much memory.
fn bounded_between(height: usize, width: usize) -> Result<(), String> {
    match height.saturating_mul(width) <= MOST_PIXELS {
        true => Ok(()),
        false => Err(format!(
            "makes {height} rows of {width} pixels before it makes them fewer: crop the picture first"
        )),
    }
}

/// Memory for the pixels of a picture of this height and width.
struct Target<'a> {
    pixels: &'a mut [u8],
    size: [usize; 2],
}

fn resize_by(
    image: &Image<u8>,
    region: Region,
    target: Target<'_>,
    pixel: PixelType,
    filter: FilterType,
) -> Result<(), Box<dyn std::error::Error>> {
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter)).use_alpha(false);
    let [own_height, own_width] = small([image.height(), image.width()])?;
    let ([top, left], [part_height, part_width]) =
        (small([region.top, region.left])?, small([region.height, region.width])?);
    let [height, width] = small(target.size)?;
    let source = ImageRef::new(own_width, own_height, image.pixels(), pixel)?;
    let part = CroppedImage::new(&source, left, top, part_width, part_height)?;
    let mut down = Pixels::from_slice_u8(width, height, target.pixels, pixel)?;
    let needed = region.height * target.size[1] * image.channels();
    SCRATCH.with_borrow_mut(|(resizer, across)| {
        // Both directions in one call would go down first, and round other numbers.
        if across.len() < needed {
            across.resize(needed, 0);
        }
        let mut between = Pixels::from_slice_u8(width, part_height, &mut across[..needed], pixel)?;
        resizer.resize(&part, &mut between, &options)?;
        resizer.resize(&between, &mut down, &options)?;
        if needed > KEPT_BYTES {
            *across = Vec::new();
            resizer.reset_internal_buffers();
        }
        Ok(())
    })
}

fn small([height, width]: [usize; 2]) -> Result<[u32; 2], TryFromIntError> {
    Ok([height.try_into()?, width.try_into()?])
}

fn nearest(
    image: &Image<u8>,
    region: Region,
    [height, width]: [usize; 2],
    interpolation: Interpolation,
) -> Image<u8> {
    let channels = image.channels();
    let columns = interpolation.nearest(region.width, width);
    let mut pixels = Vec::with_capacity(height * width * channels);
    for y in interpolation.nearest(region.height, height) {
        let row = &image.row(region.top + y)[region.left * channels..];
        for x in &columns {
            pixels.extend_from_slice(&row[x * channels..][..channels]);
        }
    }
    Image::new([height, width, channels], pixels)
}

/// Another height and width, of a picture or of a part of it: the motion of several operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resized {
    /// The part, if not all of it: parts of boxes outside are then cut off.
    pub(crate) region: Option<Region>,
    /// The height and width.
    pub(crate) to: [usize; 2],
    /// How pixels of a picture are found.
    pub(crate) interpolation: Interpolation,
}

impl Resized {
    fn image(&self, image: &Image<u8>, interpolation: Interpolation) -> Result<Image<u8>, String> {
        resize(image, self.region.unwrap_or_else(|| Region::all_of(image)), self.to, interpolation)
    }
}

impl Motion for Resized {
    fn picture(&self, value: Value) -> Result<Value, String> {
        value.try_bytes(|image| self.image(&image, self.interpolation))
    }

    /// As torchvision, which hears of nearest-exact where all of the mask is resized.
    fn mask(&self, plane: Image<u8>) -> Result<Image<u8>, String> {
        self.image(
            &plane,
            match (self.region, self.interpolation) {
                (None, Interpolation::NearestExact) => Interpolation::NearestExact,
                _ => Interpolation::Nearest,
            },
        )
    }

    fn coordinates(&self, all: &mut impl Coordinates, mut from: [usize; 2], to: [usize; 2]) {
        if let Some(Region { top, left, height, width }) = self.region {
            from = [height, width];
            all.shift([-(left as f32), -(top as f32)], from);
        }
        let factor = |axis: usize| (to[axis] as f64 / from[axis] as f64) as f32;
        all.scale([factor(1), factor(0)]);
    }
}

/// Resizes pictures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Height and width; or one number for the shorter side, which keeps the ratio of the sides; or null, for pictures whose
    /// longer side becomes `max_size`.
    pub size: Option<Size>,
    /// How pixels between pixels are found.
    #[serde(default)]
    pub interpolation: Interpolation,
    /// The most that the longer side becomes, if `size` is one number or null.
    #[serde(default)]
    pub max_size: Option<usize>,
}

impl Resize {
    /// The height and width that a picture of this height and width gets.
    pub(super) fn size_of(&self, own: [usize; 2]) -> Result<[usize; 2], String> {
        let [short, long] = [own[0].min(own[1]), own[0].max(own[1])];
        let [new_short, new_long] = match (&self.size, self.max_size) {
            (Some(size), _) if size.as_slice().len() != 1 => return size.height_and_width(),
            // As Python's int(): rounded towards zero.
            (Some(size), most) => {
                let [wanted, _] = size.height_and_width()?;
                let longer = (wanted * long / short).max(1);
                match most {
                    Some(most) if longer > most => [(most * wanted / longer).max(1), most],
                    _ => [wanted, longer],
                }
            }
            (None, Some(most)) => [(most * short / long).max(1), most],
            (None, None) => return Err("has neither size nor max_size: give one".into()),
        };
        bounded(if own[1] <= own[0] { [new_long, new_short] } else { [new_short, new_long] })
    }
}

impl Mover for Resize {
    type Motion<'a> = Resized;

    fn kind(&self, input: Kind) -> Result<Kind, String> {
        bytes_only(input)?;
        let is_fixed = self.size.as_ref().is_some_and(|size| size.as_slice().len() != 1);
        if is_fixed && self.max_size.is_some() {
            return Err("has max_size beside a height and a width: leave one of them out".into());
        }
        if let Some(most) = self.max_size {
            let least = self.size.as_ref().map_or(Ok([1, 1]), Size::height_and_width)?[0];
            if !(least..=LONGEST_SIDE).contains(&most) || (self.size.is_some() && most == least) {
                return Err(format!(
                    "has a max_size of {most}: give one between the size of the shorter side and {LONGEST_SIDE}"
                ));
            }
        }
        let of_any = self.size_of(input.size.unwrap_or([1, 1]))?;
        let size = if is_fixed { Some(of_any) } else { input.size.map(|_| of_any) };
        Ok(Kind { size, ..input })
    }

    fn motion(&self, own: [usize; 2], _: At) -> Result<Option<Resized>, String> {
        let to = self.size_of(own)?;
        Ok((to != own).then_some(Resized { region: None, to, interpolation: self.interpolation }))
    }
}
