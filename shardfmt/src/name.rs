//! The names of datasets and of tags, checked once where they enter.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::digest::{from_text, is_like_prefix};

/// The name of a dataset: `[a-z0-9][a-z0-9._-]{0,62}`, so that it is safe in a path, a URL and a metastore key.
///
/// ```
/// # use shardfmt::DatasetName;
/// assert!("speech-en".parse::<DatasetName>().is_ok());
/// assert!("Speech EN".parse::<DatasetName>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct DatasetName(String);

impl DatasetName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DatasetName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if is_safe(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError { text: text.chars().take(80).collect() })
        }
    }
}

impl fmt::Display for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for DatasetName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for DatasetName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// Whether a text is `[a-z0-9][a-z0-9._-]{0,62}`.
fn is_safe(text: &str) -> bool {
    const MAX_LENGTH: usize = 63;
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= MAX_LENGTH
        && text.bytes().next().is_some_and(plain)
        && text.bytes().all(|c| plain(c) || b"._-".contains(&c))
}

/// A text that cannot name a dataset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} cannot name a dataset: use 1 to 63 characters of a-z, 0-9, '.', '_' and '-', the first a letter or digit"
)]
pub struct NameError {
    text: String,
}

/// A lasting name for one version of a dataset: like a [`DatasetName`], and not to be taken for a version's id.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::TagName;
///
/// assert_eq!("v1".parse::<TagName>()?.as_str(), "v1");
/// // A tag must not read like a version's id.
/// assert!("3fa9c2".parse::<TagName>().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct TagName(String);

impl TagName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TagName {
    type Err = TagNameError;

    fn from_str(text: &str) -> Result<Self, TagNameError> {
        if is_like_prefix(text) {
            Err(TagNameError::LikeAVersion { text: text.chars().take(80).collect() })
        } else if is_safe(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(TagNameError::Unsafe { text: text.chars().take(80).collect() })
        }
    }
}

impl fmt::Display for TagName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TagName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// A text that cannot be a tag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum TagNameError {
    /// It has characters that tags do not have.
    #[error(
        "{text:?} cannot be a tag: use 1 to 63 characters of a-z, 0-9, '.', '_' and '-', the first a letter or digit"
    )]
    Unsafe { text: String },
    /// `NAME@TAG` would name a version by its id.
    #[error("{text:?} cannot be a tag, as it could begin a version: add a letter after f, or a '-'")]
    LikeAVersion { text: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_in_paths_and_urls() {
        for good in ["a", "mnist", "speech-en", "0.1_b-c", &"x".repeat(63)] {
            assert_eq!(good.parse::<DatasetName>().expect(good).as_str(), good);
        }
        for bad in ["", ".hidden", "-x", "a/b", "A", "a b", "é", "..", &"x".repeat(64)] {
            let error = bad.parse::<DatasetName>().expect_err(bad);
            assert!(error.to_string().contains("cannot name a dataset"), "{error}");
        }
    }

    #[test]
    fn tags_are_never_taken_for_versions() {
        for good in ["v1", "2026", "2026-10-01", "paper", "abcde", "abcdefg"] {
            assert_eq!(good.parse::<TagName>().expect(good).as_str(), good);
        }
        for bad in ["20261001", "abcdef", &"0".repeat(64)] {
            let error = bad.parse::<TagName>().expect_err(bad);
            assert!(error.to_string().contains("could begin a version"), "{error}");
        }
        for bad in ["", "~1", "a/b", "V1", "é", &"x".repeat(64)] {
            let error = bad.parse::<TagName>().expect_err(bad);
            assert!(error.to_string().contains("cannot be a tag"), "{error}");
        }
    }

    #[test]
    fn json_is_checked_too() {
        assert!(serde_json::from_str::<TagName>("\"../etc\"").is_err());
        assert!(serde_json::from_str::<DatasetName>("\"mnist\"").is_ok());
        assert!(serde_json::from_str::<DatasetName>("\"../etc\"").is_err());
    }
}
