//! What becomes of one encoded image: it is read to see that it can be, and stays as it is; or it is decoded, and brought
//! to a size if asked. Knows nothing of files and archives.

use std::fmt;
use std::io::Cursor;
use std::path::Path;

use image::imageops::{self, FilterType};
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader};

use super::{caught, jpeg};
use crate::error::one_line;
use crate::image_size::ImageSize;
use crate::{IngestConfig, IngestError};

/// The treatment of the images of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pictures {
    /// They stay as they are.
    Encoded,
    /// They are decoded, and all have this size: brought to it, or by themselves.
    Decoded { size: ImageSize, resize: bool },
}

impl Pictures {
    /// The treatment by the settings. `first` looks for the size of the first image, where all are to have
    /// that one.
    pub(super) fn new(
        config: &IngestConfig,
        first: impl FnOnce() -> Result<ImageSize, IngestError>,
    ) -> Result<Pictures, IngestError> {
        Ok(match (config.decode, config.resize) {
            (false, _) => Pictures::Encoded,
            (true, Some(size)) => Pictures::Decoded { size, resize: true },
            (true, None) => Pictures::Decoded { size: first()?, resize: false },
        })
    }

    /// Reads an image to its end; its pixels, row by row from the top, if it is to be decoded.
    pub(super) fn read(self, bytes: &[u8]) -> Result<Option<Vec<u8>>, Unfit> {
        if self == Pictures::Encoded {
            look_through(bytes)?;
            return Ok(None);
        }
        self.fit(decode(bytes)?).map(Some)
    }

    /// The pixels of a decoded image, at the size that is asked for.
    pub(super) fn fit(self, image: DynamicImage) -> Result<Vec<u8>, Unfit> {
        let pixels = image.into_rgb8();
        let Pictures::Decoded { size, resize } = self else { return Ok(pixels.into_raw()) };
        let found = ImageSize { width: pixels.width(), height: pixels.height() };
        if found == size {
            return Ok(pixels.into_raw());
        }
        if !resize {
            return Err(Unfit::Size { found, first: size });
        }
        Ok(imageops::resize(&pixels, size.width(), size.height(), FilterType::Triangle).into_raw())
    }

    /// How many bytes an image weighs on its way, of which `encoded` were read.
    pub(super) fn weight(self, encoded: u64) -> u64 {
        match self {
            Pictures::Encoded => encoded,
            Pictures::Decoded { size, .. } => encoded.max(size.bytes()),
        }
    }
}

/// Why an image is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// No decoder reads it.
    Unreadable(String),
    /// It is not of the size of the others.
    Size { found: ImageSize, first: ImageSize },
}

impl Unfit {
    /// The same, with the name of the image.
    pub(super) fn named(self, path: &Path, entry: &str) -> IngestError {
        let (path, entry) = (path.to_owned(), entry.to_owned());
        match self {
            Unfit::Unreadable(reason) => IngestError::Image { path, entry, reason },
            Unfit::Size { found, first } => IngestError::ImageSize { path, entry, found, first },
        }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Unreadable(reason) => write!(f, "cannot be decoded ({reason})"),
            Unfit::Size { found, first } => write!(f, "is {found}, where the first is {first}"),
        }
    }
}

impl From<String> for Unfit {
    fn from(reason: String) -> Unfit {
        Unfit::Unreadable(reason)
    }
}

/// The size that an image says it has.
pub(super) fn size_of(bytes: &[u8]) -> Result<ImageSize, Unfit> {
    let reader = reader(bytes)?;
    let decoder = match caught(|| reader.into_decoder()) {
        Some(Ok(decoder)) => decoder,
        Some(Err(error)) => return Err(one_line(error).into()),
        None => return Err("the decoder gave up".to_owned().into()),
    };
    let (width, height) = decoder.dimensions();
    ImageSize::new(width, height).ok_or_else(|| format!("it has {width}x{height} pixels").into())
}

/// Reads an image to its end, without keeping anything of it.
fn look_through(bytes: &[u8]) -> Result<(), String> {
    if jpeg::is_sound(bytes) { Ok(()) } else { decode(bytes).map(drop) }
}

/// Decodes an image by its content, whatever its name says. A decoder that panics has not decoded.
fn decode(bytes: &[u8]) -> Result<DynamicImage, String> {
    let reader = reader(bytes)?;
    if reader.format() == Some(ImageFormat::Jpeg) && !jpeg::is_whole(bytes) {
        return Err("it is cut off".to_owned());
    }
    match caught(|| reader.decode()) {
        Some(Ok(image)) => Ok(image),
        Some(Err(error)) => Err(one_line(error)),
        None => Err("the decoder gave up".to_owned()),
    }
}

fn reader(bytes: &[u8]) -> Result<ImageReader<Cursor<&[u8]>>, String> {
    if bytes.is_empty() {
        return Err("the file is empty".to_owned());
    }
    let reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| one_line(&error))?;
    match reader.format() {
        Some(ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP | ImageFormat::Bmp) => Ok(reader),
        Some(other) => Err(format!("its content is {}", other.to_mime_type())),
        None => Err("its content is no image".to_owned()),
    }
}
