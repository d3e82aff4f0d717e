//! How the record batches of a shard are compressed, and how people write that.

use std::fmt;
use std::str::FromStr;

use arrow::error::ArrowError;
use arrow::ipc::CompressionType;
use arrow::ipc::writer::IpcWriteOptions;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::from_text;

/// How the buffers of a shard are compressed, each for itself, as Arrow's format has it.
///
/// Written `none`, `lz4`, `zstd` (level 3) or `zstd:LEVEL`. A level belongs to the writing: a shard does not tell it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::Compression;
/// use shardfmt::shard::ZstdLevel;
///
/// assert_eq!("zstd".parse::<Compression>()?, Compression::Zstd(ZstdLevel::default()));
/// assert_eq!("zstd:9".parse::<Compression>()?.to_string(), "zstd:9");
/// assert!("zip".parse::<Compression>().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Not at all: a shard is mapped and read in place, and any of its rows by byte range.
    #[default]
    None,
    /// LZ4 frames: fast to read, and half of the gain.
    Lz4,
    /// Zstandard: the smallest.
    Zstd(ZstdLevel),
}

/// How much time Zstandard takes to make things small: 1 to 22, by default 3.
///
/// ```
/// use shardfmt::shard::ZstdLevel;
///
/// assert!(ZstdLevel::new(22).is_some());
/// assert_eq!(ZstdLevel::new(0), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ZstdLevel(u8);

impl ZstdLevel {
    /// The level of that number, if there is one.
    pub fn new(level: u8) -> Option<Self> {
        (1..=22).contains(&level).then_some(Self(level))
    }
}

impl Default for ZstdLevel {
    fn default() -> Self {
        Self(3)
    }
}

impl Compression {
    /// `options`, with this compression.
    pub(super) fn applied_to(self, options: IpcWriteOptions) -> Result<IpcWriteOptions, ArrowError> {
        match self {
            Self::None => Ok(options),
            Self::Lz4 => options.try_with_compression(Some(CompressionType::LZ4_FRAME)),
            Self::Zstd(level) => options
                .try_with_compression(Some(CompressionType::ZSTD))?
                .try_with_compression_level(Some(level.0.into())),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(level) if *level == ZstdLevel::default() => f.write_str("zstd"),
            Self::Zstd(level) => write!(f, "zstd:{}", level.0),
        }
    }
}

impl FromStr for Compression {
    type Err = CompressionError;

    fn from_str(text: &str) -> Result<Self, CompressionError> {
        let compression = match text {
            "none" => Some(Self::None),
            "lz4" => Some(Self::Lz4),
            "zstd" => Some(Self::Zstd(ZstdLevel::default())),
            _ => text.strip_prefix("zstd:").and_then(|digits| {
                let level = digits.parse().ok().and_then(ZstdLevel::new);
                level.filter(|level| level.0.to_string() == digits).map(Self::Zstd)
            }),
        };
        compression.ok_or_else(|| CompressionError { text: text.chars().take(80).collect() })
    }
}

impl Serialize for Compression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Compression {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// A text that names no compression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a compression: use none, lz4, zstd or zstd:1 to zstd:22")]
pub struct CompressionError {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(level in 1..=22u8) {
            let level = ZstdLevel::new(level).expect("in range");
            for compression in [Compression::None, Compression::Lz4, Compression::Zstd(level)] {
                prop_assert_eq!(compression.to_string().parse(), Ok(compression));
                let json = serde_json::to_string(&compression).expect("a text");
                prop_assert_eq!(&json, &format!("\"{compression}\""));
                prop_assert_eq!(serde_json::from_str::<Compression>(&json).expect("own JSON"), compression);
            }
        }

        #[test]
        fn there_is_one_way_to_write_it(text in "(none|lz4|zstd|ZSTD|gzip)?:?\\+?[0-9]{0,3}") {
            if let Ok(compression) = text.parse::<Compression>() {
                prop_assume!(text != "zstd:3");
                prop_assert_eq!(compression.to_string(), text);
            }
        }
    }

    #[test]
    fn other_texts_are_refused_with_a_list_of_what_there_is() {
        assert_eq!("zstd".parse(), "zstd:3".parse::<Compression>());
        for text in ["", "gzip", "zstd:", "zstd:0", "zstd:23", "zstd:-1", "lz4:1", "none:", "Zstd"] {
            let error = text.parse::<Compression>().expect_err("there is no such compression").to_string();
            assert!(error.contains("zstd:1 to zstd:22"), "{error}");
        }
    }
}
