//! Sizes in bytes, as people write them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most bytes a shard may have, as a file, decompressed, and as canonical rows: 4 GiB less one.
pub const MAX_SHARD_BYTES: u64 = u32::MAX as u64;

/// A number of bytes. Reads `"64MiB"`, `"1.5 GB"` and `"1000"`; prints in binary units, as `"64.0 MiB"`.
///
/// ```
/// # use shardfmt::ByteSize;
/// assert_eq!("64MiB".parse(), Ok(ByteSize(64 << 20)));
/// assert_eq!("2GB".parse(), Ok(ByteSize(2_000_000_000)));
/// assert_eq!(ByteSize(64 << 20).to_string(), "64.0 MiB");
/// ```
///
/// Serialised as text that reads back as exactly the same number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// `count` mebibytes.
    ///
    /// # Panics
    ///
    /// If that is 16 EiB or more.
    pub const fn mib(count: u64) -> Self {
        Self(count.checked_mul(1 << 20).expect("fewer than 16 EiB"))
    }
}

const BINARY: [(&str, u64); 6] = [
    ("EiB", 1 << 60),
    ("PiB", 1 << 50),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
];

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The unit is the largest of which there is one after rounding to a tenth: never "1024.0 KiB".
        let tenths = |unit: u64| (u128::from(self.0) * 10 + u128::from(unit) / 2) / u128::from(unit);
        match BINARY.iter().find(|(_, unit)| tenths(*unit) >= 10) {
            Some((name, unit)) => f.pad(&format!("{}.{} {name}", tenths(*unit) / 10, tenths(*unit) % 10)),
            None => f.pad(&format!("{} B", self.0)),
        }
    }
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let refuse = || SizeError { text: text.chars().take(40).collect() };
        let trimmed = text.trim();
        let number_end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(number_end);
        let unit = unit_named(unit.trim_start()).ok_or_else(refuse)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let whole: u64 = whole.parse().map_err(|_| refuse())?;
        // Integer arithmetic throughout: a size means the same bytes everywhere.
        if fraction.is_empty() || fraction.len() > 9 || (number.contains('.') && unit == 1) {
            return Err(refuse());
        }
        let scale = 10u128.pow(u32::try_from(fraction.len()).expect("at most 9 digits"));
        let fraction: u128 = fraction.parse().map_err(|_| refuse())?;
        let bytes = u128::from(whole) * u128::from(unit) + fraction * u128::from(unit) / scale;
        u64::try_from(bytes).map(Self).map_err(|_| refuse())
    }
}

/// The bytes in a unit written as people write it, in any case.
fn unit_named(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    match lower.as_str() {
        "" | "b" => return Some(1),
        _ => {}
    }
    let power = "kmgtpe".find(lower.chars().next()?)? + 1;
    let power = u32::try_from(power).ok()?;
    match &lower[1..] {
        "" | "ib" => Some(1u64 << (10 * power)),
        "b" => Some(1000u64.pow(power)),
        _ => None,
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let exact = BINARY.iter().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit));
        match exact {
            Some((name, unit)) => serializer.collect_str(&format_args!("{}{name}", self.0 / unit)),
            None => serializer.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrNumber;
        impl serde::de::Visitor<'_> for TextOrNumber {
            type Value = ByteSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size like \"64MiB\" or a number of bytes")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }
            fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes).map(ByteSize).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(TextOrNumber)
    }
}

/// A text that is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a size: write a number of bytes, or a number with KiB, MiB, GiB, TiB (or kB, MB, GB, TB)"
)]
pub struct SizeError {
    text: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn people_write_sizes_in_many_ways() {
        for (text, bytes) in [
            ("0", 0),
            ("1000", 1000),
            ("64MiB", 64 << 20),
            ("64 mib", 64 << 20),
            ("64M", 64 << 20),
            ("2GB", 2_000_000_000),
            ("1.5KiB", 1536),
            ("7 B", 7),
            ("15EiB", 15 << 60),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for bad in
            ["", "MiB", "-1", "1.2.3GB", "1.", "1.5", ".5GB", "1XB", "16EiB", "1 é", "99999999999999999999"]
        {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_unit_that_reads_best() {
        for (bytes, text) in [
            (0, "0 B"),
            (900, "900 B"),
            (1023, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (64 << 20, "64.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn json_keeps_every_byte(bytes: u64, shift in 0..40u32) {
            let size = ByteSize(bytes >> shift << shift);
            let json = serde_json::to_string(&size).expect("sizes serialise");
            prop_assert_eq!(serde_json::from_str::<ByteSize>(&json).expect("own JSON"), size);
            prop_assert_eq!(serde_json::from_str::<ByteSize>(&size.0.to_string()).expect("a number"), size);
        }
    }
}
