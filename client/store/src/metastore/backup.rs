//! A backup of a metastore: a file with all entries that hang on no lease, at one moment.
//!
//! Its form is that of the copy that clusters keep in their store ([`super::copy`]): a line with length and digest, then JSON.
//! Of tokens and join secrets it has digests only. No key is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardd_api::duration::now;
use shardfmt::Digest;

use super::Listing;
use super::copy::CopiedEntry;
use super::records::{decode, encode};
use super::relocation::is_of_place;

/// The entries of a metastore at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// The digest of the cluster's authority.
    pub cluster: Digest,
    /// When it was made, in seconds since 1970.
    pub taken_at: u64,
    /// The revision of the metadata then.
    pub revision: u64,
    /// The entries without a lease, ordered by key.
    pub entries: Vec<CopiedEntry>,
}

/// The bytes are no backup.
#[derive(Debug, thiserror::Error)]
#[error("it is no backup of metadata ({0}); make one with `shardctl metastore backup FILE`")]
pub struct BadBackup(String);

impl Backup {
    /// A backup of these lasting entries, which belong to the cluster.
    #[must_use]
    pub fn of(cluster: Digest, lasting: Listing) -> Backup {
        let entry = |(key, entry): (String, super::Entry)| CopiedEntry {
            key,
            revision: entry.revision,
            value: entry.value,
        };
        let entries = lasting.entries.into_iter().filter(|(key, _)| !is_of_place(key)).map(entry).collect();
        Backup { cluster, taken_at: now(), revision: lasting.revision, entries }
    }

    /// The content of the file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// The backup in a file.
    ///
    /// # Errors
    /// [`BadBackup`] for other files, and for damaged ones.
    pub fn from_bytes(bytes: &[u8]) -> Result<Backup, BadBackup> {
        let backup: Backup = decode(bytes).map_err(BadBackup)?;
        match backup.entries.is_sorted_by(|a, b| a.key < b.key) {
            true => Ok(backup),
            false => Err(BadBackup("its keys are out of order".to_owned())),
        }
    }

    /// Its values by key.
    #[must_use]
    pub fn values(&self) -> BTreeMap<String, Vec<u8>> {
        self.entries.iter().map(|entry| (entry.key.clone(), entry.value.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Entry;
    use super::*;

    proptest! {
        #[test]
        fn a_backup_reads_back_and_a_changed_byte_is_noticed(
            values in prop::collection::btree_map("[a-z/]{1,12}", prop::collection::vec(any::<u8>(), 0..20), 0..8),
            revision: u64,
            at: prop::sample::Index,
            flip in 1u8..,
        ) {
            let entries = values.iter().map(|(key, value)| (key.clone(), Entry { value: value.clone(), revision: 3 }));
            let listing = Listing { entries: entries.collect(), revision };
            let backup = Backup::of(Digest::of(b"authority"), listing);
            let mut bytes = backup.to_bytes();
            let read = Backup::from_bytes(&bytes).expect("reads back");
            prop_assert_eq!(&read, &backup);
            let known: BTreeMap<_, _> = values.into_iter().filter(|(key, _)| !is_of_place(key)).collect();
            prop_assert_eq!(read.values(), known);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(Backup::from_bytes(&bytes).is_err(), "byte {} of {}", at, bytes.len());
        }
    }
}
