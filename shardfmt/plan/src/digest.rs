//! Names for bytes: 32-byte BLAKE3 digests and the ids that are made of them.
//!
//! A digest is written as 64 lower-case hexadecimal digits wherever people or JSON see it. The newtypes keep a shard's
//! id from being mistaken for a version's. Knows nothing of what the bytes mean.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The shortest prefix of an id that names a version. Shorter ones would often match several versions.
const SHORTEST_PREFIX: usize = 6;

/// Whether `text` reads as a prefix of an id. A tag must not, so that a reference has one meaning.
pub fn is_like_prefix(text: &str) -> bool {
    text.len() >= SHORTEST_PREFIX && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

/// A BLAKE3 digest of some bytes.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_plan::digest::Digest;
///
/// let digest = Digest::of(b"some bytes");
/// let text = digest.to_string();
/// assert_eq!(text.len(), 64);
/// assert_eq!(text.parse::<Digest>()?, digest);
/// assert!(text.starts_with(&digest.short()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of `bytes`. Uses several threads when there are many of them.
    pub fn of(bytes: &[u8]) -> Self {
        /// Below this size one thread is faster than waking others.
        const SEVERAL_THREADS_FROM: usize = 1 << 20;
        let mut hasher = blake3::Hasher::new();
        if bytes.len() < SEVERAL_THREADS_FROM {
            hasher.update(bytes);
        } else {
            hasher.update_rayon(bytes);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The first 12 hexadecimal digits: enough for people to tell digests apart.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let mut bytes = [0; 32];
        from_hex(text, &mut bytes)?;
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// A text that is not the hexadecimal form of a digest.
///
/// ```
/// use shardd_plan::digest::Digest;
///
/// let error = "3FA9".parse::<Digest>().expect_err("too short, and in upper case");
/// assert!(error.to_string().contains("64 lower-case hexadecimal digits"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a digest: expected {expected} lower-case hexadecimal digits")]
pub struct DigestError {
    text: String,
    expected: usize,
}

/// Makes a newtype over [`Digest`] that reads, prints and serialises like it.
macro_rules! digest_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Digest);

        impl $name {
            /// The id of something whose encoding is `bytes`.
            pub fn of(bytes: &[u8]) -> Self {
                Self(Digest::of(bytes))
            }

            /// The first 12 hexadecimal digits, for people.
            pub fn short(&self) -> String {
                self.0.short()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0.short())
            }
        }

        impl FromStr for $name {
            type Err = DigestError;

            fn from_str(text: &str) -> Result<Self, DigestError> {
                text.parse().map(Self)
            }
        }
    };
}

digest_id! {
    /// Names a shard: the digest of its file.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use shardd_plan::digest::ShardId;
    ///
    /// let id = ShardId::of(b"a shard's file");
    /// assert_eq!(id.to_string().parse::<ShardId>()?, id);
    /// assert!(id.object_key().contains(&id.to_string()));
    /// # Ok(())
    /// # }
    /// ```
    ShardId
}
digest_id! {
    /// Names a version of a dataset: the digest of its manifest.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use shardd_plan::digest::VersionId;
    ///
    /// let id = VersionId::of(b"a manifest");
    /// assert_eq!(id.to_string().parse::<VersionId>()?, id);
    /// assert!(id.object_key().contains(&id.to_string()));
    /// # Ok(())
    /// # }
    /// ```
    VersionId
}
digest_id! {
    /// Names a plan: the digest of its canonical document.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use shardd_plan::digest::PlanId;
    ///
    /// let id = PlanId::of(b"a plan document");
    /// assert_eq!(id.to_string().parse::<PlanId>()?, id);
    /// assert!(id.object_key().contains(&id.to_string()));
    /// # Ok(())
    /// # }
    /// ```
    PlanId
}
digest_id! {
    /// Names a mixture of plans: the digest of its canonical document.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use shardd_plan::digest::MixtureId;
    ///
    /// let id = MixtureId::of(b"a mixture document");
    /// assert_eq!(id.to_string().parse::<MixtureId>()?, id);
    /// # Ok(())
    /// # }
    /// ```
    MixtureId
}
digest_id! {
    /// Names the strata of a plan: the digest of their encoding.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use shardd_plan::digest::StrataId;
    ///
    /// let id = StrataId::of(b"encoded strata");
    /// assert_eq!(id.to_string().parse::<StrataId>()?, id);
    /// assert!(id.object_key().contains(&id.to_string()));
    /// # Ok(())
    /// # }
    /// ```
    StrataId
}
digest_id! {
    /// Names a commit: the digest of its canonical document.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use shardd_plan::digest::CommitId;
    ///
    /// let id = CommitId::of(b"a commit's document");
    /// assert_eq!(id.to_string().parse::<CommitId>()?, id);
    /// assert!(id.object_key().contains(&id.to_string()));
    /// # Ok(())
    /// # }
    /// ```
    CommitId
}

impl ShardId {
    /// Where the shard lies in a store.
    pub fn object_key(&self) -> String {
        let hex = self.to_string();
        format!("shards/{}/{hex}.arrow", &hex[..2])
    }

    /// Where the shard's sidecar lies in a store.
    pub fn sidecar_key(&self) -> String {
        let hex = self.to_string();
        format!("shards/{}/{hex}.rows", &hex[..2])
    }
}

impl VersionId {
    /// Where the version's manifest lies in a store.
    pub fn object_key(&self) -> String {
        format!("manifests/{self}.arrow")
    }

    /// Where the tree by which parts of a long manifest are verified lies in a store.
    pub fn tree_key(&self) -> String {
        format!("manifests/{self}.tree")
    }

    /// Where the version's provenance lies in a store.
    pub fn provenance_key(&self) -> String {
        format!("manifests/{self}.json")
    }
}

impl PlanId {
    /// Where the plan's document lies in a store.
    pub fn object_key(&self) -> String {
        format!("plans/{self}.json")
    }
}

impl StrataId {
    /// Where the strata lie in a store.
    pub fn object_key(&self) -> String {
        format!("plans/{self}.strata")
    }
}

impl CommitId {
    /// Where the commit's document lies in a store.
    pub fn object_key(&self) -> String {
        format!("commits/{self}.json")
    }
}

/// Lower-case hexadecimal digits of `bytes`.
pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|n| char::from(DIGITS[usize::from(n)])).collect()
}

/// Fills `bytes` from exactly as many lower-case hexadecimal digits as they need.
///
/// # Errors
/// [`DigestError`] for fewer or more digits, or other characters; `bytes` may be partly filled then.
pub fn from_hex(text: &str, bytes: &mut [u8]) -> Result<(), DigestError> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let expected = bytes.len() * 2;
    let refuse = || DigestError { text: text.chars().take(80).collect(), expected };
    if text.len() != expected {
        return Err(refuse());
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let (high, low) = (value(pair[0]).ok_or_else(refuse)?, value(pair[1]).ok_or_else(refuse)?);
        *byte = high << 4 | low;
    }
    Ok(())
}

/// Deserialises anything that parses from text.
///
/// # Errors
/// When the value is no text, or the text does not parse.
pub fn from_text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
    text.parse().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_digest_is_plain_blake3() {
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(Digest::of(b"").to_string(), empty);
        let long = vec![7; 3 << 20];
        assert_eq!(Digest::of(&long).0, *blake3::hash(&long).as_bytes(), "threads do not change the digest");
    }

    #[test]
    fn object_keys_spread_over_folders() {
        let id = ShardId::of(b"");
        assert_eq!(id.object_key(), format!("shards/af/{id}.arrow"));
        assert_eq!(id.sidecar_key(), format!("shards/af/{id}.rows"));
    }

    #[test]
    fn only_the_one_spelling_is_read() {
        let hex = Digest::of(b"").to_string();
        for wrong in [
            hex.to_uppercase(),
            hex[1..].to_owned(),
            format!("{hex}0"),
            hex.replace('a', "g"),
            "é".repeat(32),
        ] {
            let error = wrong.parse::<ShardId>().expect_err("not the canonical spelling");
            assert!(error.to_string().contains("64 lower-case"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn text_and_json_give_the_digest_back(bytes: [u8; 32]) {
            let id = VersionId(Digest(bytes));
            prop_assert_eq!(id.to_string().parse::<VersionId>(), Ok(id));
            let json = serde_json::to_string(&id).expect("ids serialise");
            prop_assert_eq!(&json, &format!("\"{id}\""));
            prop_assert_eq!(serde_json::from_str::<VersionId>(&json).expect("own JSON"), id);
        }
    }
}
