//! The note that a place of metadata bears while the metadata of a cluster moves to it or away from it.
//!
//! A place without a note is in use. Every change there happens on condition that there is no note, in one step with the
//! change, so that a note ends all changes at once, also those on their way. Who fills a new place holds it by the revision of
//! its note: a second one who begins puts another note, and the first can fill no more.
//!
//! | the note | changes | leases | reads |
//! |---|---|---|---|
//! | none | yes | yes | yes |
//! | [`Step::Leaving`] | no | renewed and ended | yes |
//! | [`Step::Left`] | no | no | no |
//! | [`Step::Arriving`] | of who put the note | no | no |

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardfmt::Digest;

use super::Entry;

/// The key of the cluster whose metadata it is, where an object of the store has it.
pub const OWNER: &str = "cluster";
/// Begins the keys of facts about a place, which do not move with the metadata.
const OF_PLACE: &str = "place/";
/// The key of the note.
pub const RELOCATION: &str = "place/relocation";
/// The key of what a place adds to its own revisions, so that they continue after those of the place before.
pub const REVISIONS: &str = "place/revisions";

/// Whether the entry describes the place of the metadata: no backup has it, and it does not move.
#[must_use]
pub fn is_of_place(key: &str) -> bool {
    key == OWNER || key.starts_with(OF_PLACE)
}

/// The entries that come to a place.
#[derive(Debug, Clone, Default)]
pub struct Arriving {
    /// Those without a lease.
    pub lasting: BTreeMap<String, Vec<u8>>,
    /// Those whose holders may not notice the move in time.
    pub leased: Vec<LeasedEntry>,
    /// The revision of the place before, which the new ones continue after.
    pub revision: u64,
}

/// An entry that hangs on a lease of its own in the new place, which its holder does not know.
#[derive(Debug, Clone)]
pub struct LeasedEntry {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// How long it lives there.
    pub ttl: Duration,
}

/// The note.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relocation {
    /// The digest of the cluster's authority.
    pub cluster: Digest,
    /// How far it is.
    #[serde(flatten)]
    pub step: Step,
}

/// How far a relocation is. Places are as `--metastore` names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// The metadata is copied to this place.
    Arriving {
        /// Its place so far.
        from: String,
    },
    /// The metadata is copied to another place for the last time.
    Leaving {
        /// The other place.
        to: String,
    },
    /// The metadata is at another place.
    Left {
        /// The other place.
        to: String,
    },
}

impl Relocation {
    /// The value of the key.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a note is plain data")
    }

    /// The note in this entry.
    ///
    /// # Errors
    /// With the reason, for what a newer release may have written.
    pub fn of(entry: &Entry) -> Result<Relocation, String> {
        serde_json::from_slice(&entry.value)
            .map_err(|error| format!("{RELOCATION} cannot be read ({error}); use a newer release"))
    }
}

/// Why a place with this note takes no changes.
#[must_use]
pub fn no_changes(note: &Entry) -> String {
    match Relocation::of(note).map(|note| note.step) {
        Ok(Step::Leaving { to }) => format!(
            "the metadata is moving to {to}; if that was interrupted, run `shardctl metastore migrate --to {to}` again, or name the \
             present place with --to to stay"
        ),
        Ok(Step::Arriving { from }) => format!(
            "the metadata is moving here from {from}; if that was interrupted, run `shardctl metastore migrate` there again"
        ),
        Ok(Step::Left { to }) => format!("the metadata has moved to {to}; name a node with --server"),
        Err(reason) => reason,
    }
}

/// Why a place with this note is not read, if so.
#[must_use]
pub fn no_reads(note: &Entry) -> Option<String> {
    let is_read = matches!(Relocation::of(note), Ok(Relocation { step: Step::Leaving { .. }, .. }));
    (!is_read).then(|| no_changes(note))
}
