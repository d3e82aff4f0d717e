//! The commit: a change of a dataset to a version. Knows no shards and no store, only their names.
//!
//! A version is pure content; the same rows make the same version at any time and on any machine. Facts of
//! one dataset (the time of the commit, its operation, its reason, its parent) are in a small document beside
//! it. Each names its parent, so the last one leads to all.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::digest::{CommitId, Digest, VersionId, from_text};
use crate::name::DatasetName;

/// The format this release writes.
pub const FORMAT: u32 = 2;
/// The format of commits without a provenance, and of those of datasets that are older than commits.
pub const FORMAT_1: u32 = 1;

/// The longest message, in bytes.
const LONGEST_MESSAGE: usize = 4096;
/// The longest name of an operation, in bytes.
const LONGEST_OPERATION: usize = 32;

/// One step in the history of a dataset. Never changed.
///
/// Its canonical form is compact JSON with the fields in this order; its [id](Self::id) is the BLAKE3 digest of that.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::{Commit, Message, Operation, VersionId};
///
/// let commit = Commit {
///     format: shardfmt::commit::FORMAT,
///     dataset: "digits".parse()?,
///     version: VersionId::of(b"a manifest"),
///     provenance: None,
///     parent: None,
///     number: 1,
///     time: 1_700_000_000,
///     operation: Operation::INGEST,
///     message: Message::default(),
///     samples: 1_797,
///     bytes: 120_000,
///     shards: 2,
/// };
/// assert_eq!(Commit::from_bytes(&commit.to_bytes())?, commit);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// 1 or 2, of `docs/VERSIONS.md`.
    pub format: u32,
    /// The dataset whose step it is.
    pub dataset: DatasetName,
    /// The resulting version.
    pub version: VersionId,
    /// The digest of the version's provenance, if that was known. Since format 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Digest>,
    /// The commit before; `None` for the first.
    pub parent: Option<CommitId>,
    /// How many commits there are up to this one: 1 for the first, one more than its parent for any other.
    pub number: u64,
    /// When, in seconds since 1970.
    pub time: u64,
    /// By what.
    pub operation: Operation,
    /// Why, in the words of who did it.
    pub message: Message,
    /// Samples of the version.
    pub samples: u64,
    /// Bytes of its shards.
    pub bytes: u64,
    /// How many shards it has.
    pub shards: u64,
}

impl Commit {
    /// Parses and checks a document; any JSON layout will do.
    ///
    /// # Errors
    ///
    /// [`CommitError::Malformed`] if this is no commit, [`CommitError::TooNew`] if a later release wrote it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CommitError> {
        #[derive(Deserialize)]
        struct Header {
            format: u32,
        }
        let malformed = |error: serde_json::Error| CommitError::Malformed { reason: error.to_string() };
        let header: Header = serde_json::from_slice(bytes).map_err(malformed)?;
        if header.format > FORMAT {
            return Err(CommitError::TooNew { found: header.format, supported: FORMAT });
        }
        let commit: Self = serde_json::from_slice(bytes).map_err(malformed)?;
        match (commit.format, commit.provenance) {
            (FORMAT_1, None) | (FORMAT, _) => {}
            (FORMAT_1, Some(_)) => {
                let reason = "format 1 has no provenance".to_owned();
                return Err(CommitError::Malformed { reason });
            }
            (format, _) => {
                let reason = format!("format {format} was never written");
                return Err(CommitError::Malformed { reason });
            }
        }
        if commit.number == 0 || (commit.number == 1) != commit.parent.is_none() {
            let parent = if commit.parent.is_some() { "a" } else { "no" };
            let reason = format!("commit number {} has {parent} parent", commit.number);
            return Err(CommitError::Malformed { reason });
        }
        Ok(commit)
    }

    /// The canonical form: compact JSON, fields in the order of the type.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a commit is numbers and strings")
    }

    /// The BLAKE3 digest of the canonical form.
    pub fn id(&self) -> CommitId {
        CommitId(Digest::of(&self.to_bytes()))
    }
}

/// Why some bytes are no commit.
///
/// ```
/// use shardfmt::{Commit, CommitError};
///
/// let newer = Commit::from_bytes(br#"{"format": 99}"#);
/// assert_eq!(newer, Err(CommitError::TooNew { found: 99, supported: 2 }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum CommitError {
    /// The bytes are damaged, or were never a commit.
    #[error("commit is malformed: {reason}")]
    Malformed { reason: String },
    /// A later program wrote it. Use that or a later one.
    #[error("commit has format {found}, and this program reads format {supported}: use a newer one")]
    TooNew { found: u32, supported: u32 },
}

/// The operation that made a version: a word of `a-z`, digits and `-`. Words that this release does not know
/// are kept as they are.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::Operation;
///
/// assert_eq!("reshard".parse::<Operation>()?, Operation::RESHARD);
/// assert!("Re Shard".parse::<Operation>().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Operation(Cow<'static, str>);

impl Operation {
    /// Made of a source.
    pub const INGEST: Self = Self(Cow::Borrowed("ingest"));
    /// The parent's samples and further ones.
    pub const APPEND: Self = Self(Cow::Borrowed("append"));
    /// Samples of another version, by rules.
    pub const DERIVE: Self = Self(Cow::Borrowed("derive"));
    /// The parent's samples without some.
    pub const FORGET: Self = Self(Cow::Borrowed("forget"));
    /// The parent's samples in other shards.
    pub const RESHARD: Self = Self(Cow::Borrowed("reshard"));
    /// A version that there was already, made the present one.
    pub const RESTORE: Self = Self(Cow::Borrowed("restore"));

    /// The word.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Operation {
    type Err = OperationError;

    fn from_str(text: &str) -> Result<Self, OperationError> {
        let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let well_formed = text.len() <= LONGEST_OPERATION
            && text.bytes().next().is_some_and(|c| c.is_ascii_lowercase())
            && text.bytes().all(allowed);
        if well_formed {
            Ok(Self(Cow::Owned(text.to_owned())))
        } else {
            Err(OperationError { text: text.chars().take(80).collect() })
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Operation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// A text that cannot name an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} cannot name an operation: use 1 to {LONGEST_OPERATION} of a-z, 0-9 and '-', a letter first"
)]
pub struct OperationError {
    text: String,
}

/// Why a version was made, for people: at most 4096 bytes, which a terminal can show. May be empty.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardfmt::Message;
///
/// let message: Message = "add the scans of May\n\nThey were late.".parse()?;
/// assert!(message.as_str().starts_with("add the scans"));
/// assert!("clears the screen: \u{1b}[2J".parse::<Message>().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Message(String);

impl Message {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Message {
    type Err = MessageError;

    fn from_str(text: &str) -> Result<Self, MessageError> {
        if text.len() > LONGEST_MESSAGE {
            return Err(MessageError::TooLong { bytes: text.len() });
        }
        match text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
            Some(found) => Err(MessageError::Control { found }),
            None => Ok(Self(text.to_owned())),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// A text that cannot be a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum MessageError {
    /// Say it in fewer words.
    #[error("a message has at most {LONGEST_MESSAGE} bytes, not {bytes}")]
    TooLong { bytes: usize },
    /// It would do something to a terminal instead of being shown.
    #[error("a message cannot hold the control character {found:?}")]
    Control { found: char },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn first() -> Commit {
        Commit {
            format: FORMAT,
            dataset: "digits".parse().expect("a name"),
            version: VersionId::of(b"manifest"),
            provenance: None,
            parent: None,
            number: 1,
            time: 1_790_000_000,
            operation: Operation::INGEST,
            message: "as \"published\"".parse().expect("a message"),
            samples: 1437,
            bytes: 98_765,
            shards: 7,
        }
    }

    #[test]
    fn the_canonical_form_and_its_name_do_not_change() {
        let expected = concat!(
            r#"{"format":1,"dataset":"digits","#,
            r#""version":"0d197521d9a48760576da1c87dfd828a60d397ea1e16f92a5b7c44b4f4060ce1","parent":null,"number":1,"#,
            r#""time":1790000000,"operation":"ingest","message":"as \"published\"","#,
            r#""samples":1437,"bytes":98765,"shards":7}"#
        );
        let commit = Commit { format: FORMAT_1, ..first() };
        assert_eq!(String::from_utf8(commit.to_bytes()).expect("JSON is text"), expected);
        assert_eq!(
            commit.id().object_key(),
            "commits/f97b291a32ba41e461036f58e8947be3af2e96a53a7f27c31d8d7b143ab12d30.json"
        );
    }

    #[test]
    fn the_provenance_follows_the_version() {
        let commit = Commit { provenance: Some(Digest::of(b"provenance")), ..first() };
        let text = String::from_utf8(commit.to_bytes()).expect("JSON is text");
        let provenance = Digest::of(b"provenance");
        assert!(text.contains(&format!(r#"","provenance":"{provenance}","parent":null,"#)), "{text}");
        assert!(text.starts_with(r#"{"format":2,"#), "{text}");
        let earlier = Commit { format: FORMAT_1, ..commit };
        let error = Commit::from_bytes(&earlier.to_bytes()).expect_err("format 1 had none").to_string();
        assert!(error.contains("format 1 has no provenance"), "{error}");
    }

    #[test]
    fn numbers_and_parents_agree() {
        let parent = Some(first().id());
        for (number, parent) in [(0, None), (0, parent), (1, parent), (2, None)] {
            let error = Commit::from_bytes(&Commit { number, parent, ..first() }.to_bytes());
            assert!(error.expect_err("they do not").to_string().contains("commit number"));
        }
        assert!(Commit::from_bytes(&Commit { number: 2, parent, ..first() }.to_bytes()).is_ok());
    }

    #[test]
    fn later_formats_are_told_from_damage() {
        let error = Commit::from_bytes(br#"{"format":3,"mood":"sunny"}"#).expect_err("a later format");
        assert_eq!(error, CommitError::TooNew { found: 3, supported: 2 });
        for junk in ["", "{}", "[1]", r#"{"format":0}"#, r#"{"format":1,"dataset":"digits"}"#] {
            let error = Commit::from_bytes(junk.as_bytes()).expect_err("no commit");
            assert!(matches!(error, CommitError::Malformed { .. }), "{junk}");
        }
    }

    #[test]
    fn messages_are_what_a_terminal_can_show() {
        assert!("two lines\nand a\ttab, déjà vu 数据".parse::<Message>().is_ok());
        assert!("\u{1b}[2J".parse::<Message>().is_err());
        assert!("x".repeat(4097).parse::<Message>().is_err());
        assert!(serde_json::from_str::<Message>("\"a\\u0007b\"").is_err(), "JSON is checked too");
        for bad in ["", "In Gest", "-x", "7x", &"x".repeat(33)] {
            assert!(bad.parse::<Operation>().is_err(), "{bad}");
        }
        assert_eq!("verify-repair".parse::<Operation>().expect("unknown is kept").as_str(), "verify-repair");
    }

    proptest! {
        #[test]
        fn commits_come_back_as_they_were(
            version: [u8; 32], provenance: Option<[u8; 32]>, parent: [u8; 32], number in 1u64.., time: u64, message in "[^\\x00-\\x1f\\x7f-\\x9f]{0,40}",
        ) {
            let commit = Commit {
                version: VersionId(Digest(version)),
                provenance: provenance.map(Digest),
                parent: (number > 1).then_some(CommitId(Digest(parent))),
                number,
                time,
                message: message.parse().expect("no control characters"),
                ..first()
            };
            let back = Commit::from_bytes(&commit.to_bytes()).expect("own commit");
            prop_assert_eq!(back.id(), commit.id());
            prop_assert_eq!(back, commit);
        }
    }
}
