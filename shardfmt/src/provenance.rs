//! The provenance of a version: the inputs that it was made of, and how they were read.
//!
//! It lies beside the manifest and is no part of it: equal samples in the same order are one version, whether they came
//! from files of this or that format or from tables of another engine. The first ingest that makes a version records
//! how; the commit names the record by its digest. Knows no shards.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::manifest::sorted;

/// The format this release writes.
pub const FORMAT: u32 = 1;

/// How many of the skipped rows and files are listed at most; all are counted.
pub const SKIPPED_LISTED: usize = 10_000;

/// A file that was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputDigest {
    /// Its name within the source.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The digest of its content.
    pub digest: Digest,
}

/// A file, member or row of the input that could not be read and was passed over, as the settings of the
/// ingest allow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Which one.
    pub name: String,
    /// Why, in one line.
    pub reason: String,
}

/// The skipped parts of an input.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedList {
    /// How much that is.
    pub count: u64,
    /// The first [`SKIPPED_LISTED`] of it, in input order.
    pub first: Vec<Skipped>,
}

impl SkippedList {
    fn is_empty(&self) -> bool {
        self.count == 0 && self.first.is_empty()
    }

    /// With those of a later input.
    pub fn extend(&mut self, later: SkippedList) {
        self.count = self.count.saturating_add(later.count);
        self.first.extend(later.first);
        self.first.truncate(SKIPPED_LISTED);
    }
}

/// The inputs that a version was made of, and how they were read.
///
/// Its canonical form is compact JSON with the fields in this order and those of `settings` sorted.
///
/// ```
/// use shardfmt::{Digest, InputDigest, Provenance};
///
/// let file = b"label\n3\n1\n4\n1\n5\n";
/// let input = InputDigest { name: "labels.csv".into(), bytes: file.len() as u64, digest: Digest::of(file) };
/// let provenance = Provenance::new(serde_json::json!({ "delimiter": "comma" }), vec![input]);
///
/// assert_eq!(Provenance::from_bytes(&provenance.to_bytes())?, provenance);
/// # Ok::<(), shardfmt::ProvenanceError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// 1, of `docs/FORMAT.md`.
    pub format: u32,
    /// The settings of the ingest.
    pub settings: Value,
    /// Every file that was read, in input order.
    pub inputs: Vec<InputDigest>,
    /// The parts of them that could not be read.
    #[serde(default, skip_serializing_if = "SkippedList::is_empty")]
    pub skipped: SkippedList,
}

/// Of nothing.
impl Default for Provenance {
    fn default() -> Self {
        Self::new(Value::Object(Map::new()), Vec::new())
    }
}

impl Provenance {
    /// Of inputs that were read whole.
    pub fn new(settings: Value, inputs: Vec<InputDigest>) -> Self {
        Self { format: FORMAT, settings: sorted(&settings), inputs, skipped: SkippedList::default() }
    }

    /// Parses a document; any JSON layout will do.
    ///
    /// # Errors
    ///
    /// [`ProvenanceError`] if this is none, or a later release wrote it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ProvenanceError> {
        #[derive(Deserialize)]
        struct Header {
            format: u32,
        }
        let malformed = |error: serde_json::Error| ProvenanceError::Malformed { reason: error.to_string() };
        let Header { format } = serde_json::from_slice(bytes).map_err(malformed)?;
        match format {
            FORMAT => {}
            0 => return Err(ProvenanceError::Malformed { reason: "format 0 was never written".to_owned() }),
            found => return Err(ProvenanceError::TooNew { found, supported: FORMAT }),
        }
        let read: Self = serde_json::from_slice(bytes).map_err(malformed)?;
        if read.skipped.first.len() as u64 > read.skipped.count {
            let reason = "it lists more skipped inputs than it counts".to_owned();
            return Err(ProvenanceError::Malformed { reason });
        }
        Ok(read)
    }

    /// The canonical form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let canonical = Self { settings: sorted(&self.settings), ..self.clone() };
        serde_json::to_vec(&canonical).expect("a provenance is numbers and strings")
    }

    /// The digest of the canonical form.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.to_bytes())
    }
}

/// Why some bytes are no provenance.
///
/// ```
/// use shardfmt::{Provenance, ProvenanceError};
///
/// let newer = Provenance::from_bytes(br#"{"format": 99}"#);
/// assert_eq!(newer, Err(ProvenanceError::TooNew { found: 99, supported: 1 }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum ProvenanceError {
    /// The bytes are damaged, or were never a provenance.
    #[error("provenance is malformed: {reason}")]
    Malformed { reason: String },
    /// A later program wrote it. Use that or a later one.
    #[error("provenance has format {found}, and this program reads format {supported}: use a newer one")]
    TooNew { found: u32, supported: u32 },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn provenance() -> impl Strategy<Value = Provenance> {
        let input = ("[a-zé/\"]{0,9}", any::<u64>(), any::<[u8; 32]>());
        let input =
            input.prop_map(|(name, bytes, digest)| InputDigest { name, bytes, digest: Digest(digest) });
        let skipped = ("[a-zé]{0,9}", "[a-z ]{1,9}").prop_map(|(name, reason)| Skipped { name, reason });
        let lists = (prop::collection::vec(input, 0..5), prop::collection::vec(skipped, 0..4));
        (lists, any::<u64>(), 0..3u64).prop_map(|((inputs, first), seed, more)| {
            let skipped = SkippedList { count: first.len() as u64 + more, first };
            Provenance { skipped, ..Provenance::new(serde_json::json!({ "b": seed, "a": [null] }), inputs) }
        })
    }

    proptest! {
        #[test]
        fn it_comes_back_as_it_was(provenance in provenance()) {
            let bytes = provenance.to_bytes();
            let back = Provenance::from_bytes(&bytes).expect("own bytes");
            prop_assert_eq!((&back, back.digest()), (&provenance, Digest::of(&bytes)));
        }

        #[test]
        fn damage_is_an_error_or_another_provenance(provenance in provenance(), at: prop::sample::Index, to: u8) {
            let mut bytes = provenance.to_bytes();
            prop_assert!(Provenance::from_bytes(&bytes[..at.index(bytes.len())]).is_err());
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(other) = Provenance::from_bytes(&bytes) {
                prop_assert!(other == provenance || other.digest() != provenance.digest());
            }
        }
    }

    #[test]
    fn the_canonical_form_does_not_change() {
        let input = InputDigest { name: "a.csv".into(), bytes: 3, digest: Digest::of(b"a,b") };
        let settings = serde_json::json!({ "seed": 7, "mix": "random" });
        let whole = Provenance::new(settings, vec![input]);
        let digest = Digest::of(b"a,b");
        let expected = format!(
            r#"{{"format":1,"settings":{{"mix":"random","seed":7}},"inputs":[{{"name":"a.csv","bytes":3,"digest":"{digest}"}}]"#
        );
        assert_eq!(String::from_utf8(whole.to_bytes()).expect("JSON is text"), format!("{expected}}}"));
        let first = vec![Skipped { name: "line 3".into(), reason: "it is cut off".into() }];
        let part = Provenance { skipped: SkippedList { count: 2, first }, ..whole };
        let skipped = r#","skipped":{"count":2,"first":[{"name":"line 3","reason":"it is cut off"}]}}"#;
        assert_eq!(String::from_utf8(part.to_bytes()).expect("JSON is text"), format!("{expected}{skipped}"));
    }

    #[test]
    fn the_order_of_settings_does_not_matter() {
        let of = |settings| Provenance { settings, ..Provenance::new(Value::Null, vec![]) }.digest();
        assert_eq!(of(serde_json::json!({ "a": 1, "b": 2 })), of(serde_json::json!({ "b": 2, "a": 1 })));
    }

    #[test]
    fn more_listed_than_counted_is_no_provenance() {
        let text = r#"{"format":1,"settings":{},"inputs":[],"skipped":{"count":0,"first":[{"name":"a","reason":"b"}]}}"#;
        let error = Provenance::from_bytes(text.as_bytes()).expect_err("it cannot be");
        assert!(error.to_string().contains("more skipped inputs than it counts"), "{error}");
    }

    #[test]
    fn later_inputs_follow_and_the_list_ends() {
        let one = |name: String| Skipped { name, reason: "it is cut off".to_owned() };
        let mut all = SkippedList { count: 2, first: vec![one("a".to_owned())] };
        let many = (0..SKIPPED_LISTED).map(|row| one(row.to_string())).collect();
        all.extend(SkippedList { count: u64::MAX - 1, first: many });
        assert_eq!((all.count, all.first.len(), all.first[0].name.as_str()), (u64::MAX, SKIPPED_LISTED, "a"));
    }
}
