//! Width and height of images.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Decoded images are red, green and blue.
pub(crate) const CHANNELS: u32 = 3;
/// The most bytes that a decoded image may have.
pub(crate) const MOST_DECODED: u64 = 512 << 20;

/// Width and height in pixels, written `224x224`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::ImageSize;
///
/// let size: ImageSize = "224x160".parse()?;
/// assert_eq!((size.width(), size.height()), (224, 160));
/// assert_eq!(ImageSize::new(0, 160), None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageSize {
    pub(crate) width: u32,
    pub(crate) height: u32,
}

impl ImageSize {
    /// A size; `None` for an image without pixels, or of more than memory should hold (512 MiB).
    pub fn new(width: u32, height: u32) -> Option<ImageSize> {
        let size = ImageSize { width, height };
        (size.bytes() > 0 && size.bytes() <= MOST_DECODED).then_some(size)
    }

    /// Pixels from left to right.
    pub fn width(self) -> u32 {
        self.width
    }

    /// Pixels from top to bottom.
    pub fn height(self) -> u32 {
        self.height
    }

    /// The bytes of a decoded image.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.width).saturating_mul(u64::from(self.height)).saturating_mul(u64::from(CHANNELS))
    }
}

impl fmt::Display for ImageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

impl FromStr for ImageSize {
    type Err = String;

    fn from_str(text: &str) -> Result<ImageSize, String> {
        let sides = text
            .split_once('x')
            .and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
        sides
            .and_then(|(width, height)| ImageSize::new(width, height))
            .ok_or_else(|| format!("{text:?} is no size of images; give width and height, such as 224x224"))
    }
}

impl TryFrom<String> for ImageSize {
    type Error = String;

    fn try_from(text: String) -> Result<ImageSize, String> {
        text.parse()
    }
}

impl From<ImageSize> for String {
    fn from(size: ImageSize) -> String {
        size.to_string()
    }
}
