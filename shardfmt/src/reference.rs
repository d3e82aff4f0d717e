//! How people name a version: by its dataset and, if it is not the present one, by a tag, by the beginning of its id, or by
//! how many commits ago it was. Parsed once, where it comes in; who looks it up is elsewhere.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::{VersionId, from_text, is_like_prefix};
use crate::name::{DatasetName, NameError, TagName, TagNameError};

/// A version of a dataset, as a person names it.
///
/// ```
/// # use shardfmt::{At, DatasetRef};
/// for text in ["digits", "digits@v1", "digits@3fa9c2", "digits@~2"] {
///     assert_eq!(text.parse::<DatasetRef>().unwrap().to_string(), text);
/// }
/// assert_eq!("digits@~2".parse::<DatasetRef>().unwrap().at, At::Back(2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DatasetRef {
    /// The dataset.
    pub dataset: DatasetName,
    /// Which of its versions.
    pub at: At,
}

/// Which of a dataset's versions is meant.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::At;
///
/// assert_eq!("~2".parse::<At>()?, At::Back(2));
/// assert_eq!("v1".parse::<At>()?, At::Tag("v1".parse()?));
/// assert_eq!("3fa9c2".parse::<At>()?, At::Version("3fa9c2".parse()?));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum At {
    /// `NAME`: the present one.
    Present,
    /// `NAME@TAG`: the one that bears the tag.
    Tag(TagName),
    /// `NAME@3fa9c2`: the one of its history whose id begins so.
    Version(VersionPrefix),
    /// `NAME@~2`: the one that was present this number of commits ago.
    Back(u64),
}

impl From<DatasetName> for DatasetRef {
    fn from(dataset: DatasetName) -> Self {
        Self { dataset, at: At::Present }
    }
}

impl FromStr for DatasetRef {
    type Err = RefError;

    fn from_str(text: &str) -> Result<Self, RefError> {
        let (dataset, at) = match text.split_once('@') {
            None => (text, At::Present),
            Some((dataset, at)) => (dataset, at.parse()?),
        };
        Ok(Self { dataset: dataset.parse()?, at })
    }
}

impl FromStr for At {
    type Err = RefError;

    /// Parses what stands after the `@`.
    fn from_str(text: &str) -> Result<Self, RefError> {
        if let Some(back) = text.strip_prefix('~') {
            let digits = !back.is_empty() && back.bytes().all(|c| c.is_ascii_digit());
            let back = digits.then(|| back.parse().ok()).flatten();
            return back.map(Self::Back).ok_or_else(|| RefError::Back { text: shortened(text) });
        }
        if is_like_prefix(text) {
            return text.parse().map(Self::Version);
        }
        Ok(Self::Tag(text.parse()?))
    }
}

impl fmt::Display for DatasetRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dataset, at } = self;
        match at {
            At::Present => write!(f, "{dataset}"),
            At::Tag(tag) => write!(f, "{dataset}@{tag}"),
            At::Version(prefix) => write!(f, "{dataset}@{prefix}"),
            At::Back(back) => write!(f, "{dataset}@~{back}"),
        }
    }
}

impl Serialize for DatasetRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DatasetRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// The beginning of a version's id, or all of it: 6 to 64 lower-case hexadecimal digits.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::{VersionId, VersionPrefix};
///
/// let version = VersionId::of(b"a manifest");
/// let prefix: VersionPrefix = version.to_string()[..6].parse()?;
/// assert!(prefix.fits(version));
/// assert_eq!(prefix.whole(), None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VersionPrefix(String);

impl VersionPrefix {
    const LONGEST: usize = 64;

    /// Whether the version's id begins so.
    pub fn fits(&self, version: VersionId) -> bool {
        version.to_string().starts_with(&self.0)
    }

    /// The version, if all of its id was given.
    pub fn whole(&self) -> Option<VersionId> {
        self.0.parse().ok()
    }
}

impl From<VersionId> for VersionPrefix {
    fn from(version: VersionId) -> Self {
        Self(version.to_string())
    }
}

impl FromStr for VersionPrefix {
    type Err = RefError;

    fn from_str(text: &str) -> Result<Self, RefError> {
        if is_like_prefix(text) && text.len() <= Self::LONGEST {
            Ok(Self(text.to_owned()))
        } else {
            Err(RefError::Prefix { text: shortened(text) })
        }
    }
}

impl fmt::Display for VersionPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

/// A text that names no version of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum RefError {
    /// The part before the `@`, or all of it, is not a name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The part after the `@` is neither a tag nor an id.
    #[error(transparent)]
    Tag(#[from] TagNameError),
    /// Not a number of commits.
    #[error(
        "{text:?} is not a number of commits: use ~1 for the version before the present one, ~2 for the one \
        before that"
    )]
    Back { text: String },
    /// Not the beginning of an id.
    #[error("{text:?} does not begin a version: use 6 to 64 lower-case hexadecimal digits")]
    Prefix { text: String },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Result<At, RefError> {
        text.parse::<DatasetRef>().map(|reference| reference.at)
    }

    #[test]
    fn each_way_to_name_a_version_is_told_from_the_others() {
        let tag = |text: &str| At::Tag(text.parse().expect("a tag"));
        let whole = VersionId::of(b"v");
        assert_eq!(at("d"), Ok(At::Present));
        assert_eq!(at("d@v1.0"), Ok(tag("v1.0")));
        assert_eq!(at("d@~0"), Ok(At::Back(0)));
        assert_eq!(at("d@abcde"), Ok(tag("abcde")), "five digits are no version");
        assert_eq!(at("d@abcdef"), Ok(At::Version(VersionPrefix("abcdef".into()))));
        assert_eq!(at(&format!("d@{whole}")), Ok(At::Version(whole.into())));
        let Ok(At::Version(prefix)) = at(&format!("d@{}", whole.short())) else { panic!("a version") };
        assert!(prefix.fits(whole) && !prefix.fits(VersionId::of(b"w")) && prefix.whole().is_none());
        assert_eq!(VersionPrefix::from(whole).whole(), Some(whole));
    }

    #[test]
    fn what_names_nothing_is_refused_with_what_would() {
        let long = format!("d@{}", "a".repeat(65));
        for (bad, said) in [
            ("", "cannot name a dataset"),
            ("@v1", "cannot name a dataset"),
            ("d@", "cannot be a tag"),
            ("d@A", "cannot be a tag"),
            ("d@v1@v2", "cannot be a tag"),
            ("d@~", "~1 for"),
            ("d@~-1", "~1 for"),
            ("d@~+1", "~1 for"),
            ("d@~99999999999999999999", "~1 for"),
            (&long, "6 to 64"),
        ] {
            let error = bad.parse::<DatasetRef>().expect_err(bad).to_string();
            assert!(error.contains(said), "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn text_and_json_give_the_reference_back(text in "[a-z0-9.~@_-]{1,12}") {
            if let Ok(reference) = text.parse::<DatasetRef>() {
                let again: DatasetRef = reference.to_string().parse().expect("own text");
                prop_assert_eq!(&again, &reference);
                let json = serde_json::to_string(&reference).expect("a string");
                prop_assert_eq!(serde_json::from_str::<DatasetRef>(&json).expect("own JSON"), reference);
            }
        }
    }
}
