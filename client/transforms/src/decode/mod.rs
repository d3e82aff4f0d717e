//! Decodes pictures: from the bytes of a file to 8-bit grey or RGB pixels.
//!
//! JPEG pixels are those of libjpeg-turbo with its default settings, bit for bit: the pixels of Pillow and
//! torchvision. The other formats go through crate `image`. `jpeg.rs` alone knows which JPEG decoder is used.

mod colour;
mod exif;
mod indices;
mod jpeg;
mod marker;
mod others;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::image::{Image, Region};

pub use indices::decode_indices;

/// Channels to decode to; the names are those of `torchvision.io.ImageReadMode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ColorMode {
    /// One channel. Of a colour JPEG it is the stored luma, as in torchvision. Of a PNG it is libpng's weighted
    /// sum, as in torchvision. Of all others it is the sum that Pillow's `convert("L")` makes.
    Gray,
    /// Red, green and blue. Alpha is dropped, not blended, as in torchvision and Pillow's `convert("RGB")`.
    #[default]
    Rgb,
}

impl ColorMode {
    /// 1 or 3.
    pub fn channels(self) -> usize {
        match self {
            Self::Gray => 1,
            Self::Rgb => 3,
        }
    }
}

/// What to do with a JPEG whose data end too soon or do not make sense.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Truncated {
    /// Return an error.
    #[default]
    #[serde(rename = "raise")]
    Refuse,
    /// Keep the pixels that are there and make the rest grey, as libjpeg does.
    Fill,
}

/// How to decode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DecodeOptions {
    /// Channels of the result. Default RGB.
    pub mode: ColorMode,
    /// Whether to turn the picture as its EXIF orientation asks. Default false, as in torchvision.
    pub apply_exif_orientation: bool,
    /// Pictures with more pixels are refused before any memory is taken for them. Default 178,956,970, at which
    /// Pillow raises `DecompressionBombError`.
    pub max_pixels: u64,
    /// What to do with a damaged JPEG. Default: refuse. Damaged files of other formats are always refused.
    pub truncated: Truncated,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self {
            mode: ColorMode::Rgb,
            apply_exif_orientation: false,
            max_pixels: 2 * 89_478_485,
            truncated: Truncated::Refuse,
        }
    }
}

/// A file format that [`decode`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the formats'")]
pub enum Format {
    Jpeg,
    Png,
    WebP,
    Gif,
    Tiff,
    Bmp,
}

impl Format {
    /// The format that the first bytes announce.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        Some(match bytes {
            [0xFF, 0xD8, 0xFF, ..] => Self::Jpeg,
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Self::Png,
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Self::WebP,
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Self::Gif,
            [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => Self::Tiff,
            [b'B', b'M', ..] => Self::Bmp,
            _ => return None,
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
            Self::Tiff => "TIFF",
            Self::Bmp => "BMP",
        })
    }
}

/// What a file says of its picture before the first pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The file's format.
    pub format: Format,
    /// Rows as stored, before any turning.
    pub height: usize,
    /// Columns as stored, before any turning.
    pub width: usize,
    /// Channels as stored; those of the colours if there is a palette.
    pub channels: usize,
    /// Bits of a channel.
    pub bits: usize,
    /// EXIF orientation, 1 to 8; 1 (upright) if the file has none or a wrong one.
    pub orientation: u8,
}

impl Header {
    /// `[height, width]` of the picture that [`decode`] makes with `options`.
    pub fn decoded_size(&self, options: &DecodeOptions) -> [usize; 2] {
        exif::turned_size([self.height, self.width], self.turn(options))
    }

    fn turn(&self, options: &DecodeOptions) -> u8 {
        if options.apply_exif_orientation { self.orientation } else { 1 }
    }

    fn check_size(&self, options: &DecodeOptions) -> Result<(), DecodeError> {
        let &Self { format, height, width, .. } = self;
        if height == 0 || width == 0 {
            return Err(DecodeError::broken(format, format!("its size is {height}x{width} pixels")));
        }
        if height as u64 * width as u64 > options.max_pixels {
            return Err(DecodeError::TooLarge { format, height, width, max_pixels: options.max_pixels });
        }
        Ok(())
    }
}

impl Region {
    fn is_inside(&self, [height, width]: [usize; 2]) -> bool {
        let fits =
            |start: usize, len: usize, end| len > 0 && start.checked_add(len).is_some_and(|e| e <= end);
        fits(self.top, self.height, height) && fits(self.left, self.width, width)
    }
}

/// Why bytes did not become a picture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum DecodeError {
    /// The bytes start like no known format.
    #[error(
        "unknown image format: the bytes start with {first}; known are JPEG, PNG, WebP, GIF, TIFF and BMP. \
         Check that the column holds encoded images, or convert them"
    )]
    UnknownFormat { first: String },
    /// More pixels than the options allow.
    #[error(
        "{format} of {height}x{width} pixels is over the limit of {max_pixels}; \
         raise `max_pixels` if you trust its source, else leave it out"
    )]
    TooLarge { format: Format, height: usize, width: usize, max_pixels: u64 },
    /// The data end before the last pixel.
    #[error(
        "{format} ends too soon: {detail}; fetch it again or leave it out, \
         or set `truncated` to \"fill\" to keep what a damaged JPEG still shows"
    )]
    Truncated { format: Format, detail: String },
    /// The data contradict the format.
    #[error(
        "{format} is broken: {detail}; fetch it again or leave it out, \
         or set `truncated` to \"fill\" to keep what a damaged JPEG still shows"
    )]
    Broken { format: Format, detail: String },
    /// A valid file of a kind that is not read.
    #[error("{format} is not supported: {detail}; store the picture as 8-bit grey or RGB, JPEG or PNG")]
    Unsupported { format: Format, detail: String },
    /// An image whose pixels are no class numbers of this mask.
    #[error(
        "{format} is no mask of this picture: {detail}; store class numbers as PNG of grey or palette indices, \
         of 8 bits at most and of the picture's size"
    )]
    NoIndices { format: Format, detail: String },
    /// The region is empty or reaches outside.
    #[error(
        "region {region:?} is empty or outside the picture of {height}x{width} pixels; \
         take its bounds from `Header::decoded_size`"
    )]
    OutsideRegion { region: Region, height: usize, width: usize },
}

impl DecodeError {
    fn unknown(bytes: &[u8]) -> Self {
        let hex: Vec<_> = bytes.iter().take(12).map(|byte| format!("{byte:02X}")).collect();
        Self::UnknownFormat { first: if hex.is_empty() { "nothing (0 bytes)".into() } else { hex.join(" ") } }
    }

    fn truncated(format: Format, detail: impl Into<String>) -> Self {
        Self::Truncated { format, detail: detail.into() }
    }

    fn broken(format: Format, detail: impl Into<String>) -> Self {
        Self::Broken { format, detail: detail.into() }
    }

    fn unsupported(format: Format, detail: impl Into<String>) -> Self {
        Self::Unsupported { format, detail: detail.into() }
    }
}

/// Size, channels and orientation of the picture in `bytes`. Reads no pixels.
///
/// # Errors
/// If the format is unknown, or its header is broken or incomplete.
pub fn header(bytes: &[u8]) -> Result<Header, DecodeError> {
    match Format::of(bytes) {
        None => Err(DecodeError::unknown(bytes)),
        Some(Format::Jpeg) => Ok(marker::Frame::parse(bytes)?.header()),
        Some(format) => guarded(format, || others::header(bytes, format)),
    }
}

/// The picture in `bytes`.
///
/// # Errors
/// See [`DecodeError`]. No input makes it panic.
pub fn decode(bytes: &[u8], options: &DecodeOptions) -> Result<Image<u8>, DecodeError> {
    Decoder::new().decode(bytes, options)
}

/// A part of the picture in `bytes`: the pixels that [`decode`] makes, cut out, but faster for most JPEGs.
///
/// `region` counts in the decoded picture, after turning. A JPEG is not read further down than needed, so
/// damage below the region goes unnoticed.
///
/// # Errors
/// See [`DecodeError`]. No input makes it panic.
pub fn decode_region(
    bytes: &[u8],
    options: &DecodeOptions,
    region: Region,
) -> Result<Image<u8>, DecodeError> {
    Decoder::new().decode_region(bytes, options, region)
}

/// [`decode`] and [`decode_region`] with buffers that are kept from call to call. Make one per thread.
#[derive(Debug, Default)]
pub struct Decoder {
    scratch: Scratch,
}

/// Memory between calls; what it holds has no meaning.
#[derive(Debug, Default)]
struct Scratch {
    stream: Vec<u8>,
    pixels: Vec<u8>,
}

/// A buffer that grew over this many bytes is given back.
const KEPT_BYTES: usize = 8 << 20;

impl Decoder {
    /// With empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`decode`].
    ///
    /// # Errors
    /// As [`decode`].
    pub fn decode(&mut self, bytes: &[u8], options: &DecodeOptions) -> Result<Image<u8>, DecodeError> {
        self.run(bytes, options, None)
    }

    /// As [`decode_region`].
    ///
    /// # Errors
    /// As [`decode_region`].
    pub fn decode_region(
        &mut self,
        bytes: &[u8],
        options: &DecodeOptions,
        region: Region,
    ) -> Result<Image<u8>, DecodeError> {
        self.run(bytes, options, Some(region))
    }

    fn run(
        &mut self,
        bytes: &[u8],
        options: &DecodeOptions,
        region: Option<Region>,
    ) -> Result<Image, DecodeError> {
        let format = Format::of(bytes).ok_or_else(|| DecodeError::unknown(bytes))?;
        let scratch = &mut self.scratch;
        let turned = guarded(format, || match format {
            Format::Jpeg => {
                let frame = marker::Frame::parse(bytes)?;
                turned(&frame.header(), options, region, |part| {
                    jpeg::decode(bytes, &frame, options, part, scratch)
                })
            }
            _ => {
                let header = others::header(bytes, format)?;
                turned(&header, options, region, |part| {
                    others::decode(bytes, &header, options, part, scratch)
                })
            }
        });
        for buffer in [&mut scratch.stream, &mut scratch.pixels] {
            if buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
        turned
    }
}

/// Checks the size and the region, decodes the stored pixels of the region, and turns them.
fn turned(
    header: &Header,
    options: &DecodeOptions,
    region: Option<Region>,
    decode_stored: impl FnOnce(Option<Region>) -> Result<Image<u8>, DecodeError>,
) -> Result<Image<u8>, DecodeError> {
    header.check_size(options)?;
    let [height, width] = header.decoded_size(options);
    if let Some(region) = region.filter(|region| !region.is_inside([height, width])) {
        return Err(DecodeError::OutsideRegion { region, height, width });
    }
    let turn = header.turn(options);
    let stored = region.map(|region| exif::stored_region(region, [header.height, header.width], turn));
    Ok(exif::turn(decode_stored(stored)?, turn))
}

/// Makes an error of a panic in a decoder of another crate: one file must not end a training.
fn guarded<T>(format: Format, work: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, DecodeError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(DecodeError::broken(format, "its decoder panicked")))
}
