//! The metadata of a cluster is made of a backup, where it is kept, while the first node is stopped.
//!
//! Entries that hang on a lease are in no backup: their holders put them again. In sled, the copy in the store is replaced
//! first, since a node continues from the copy if it is newer than its own metadata. In the store and in etcd the place keeps
//! its counters, so no revision and no lease is given out twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardd_api::duration::now;
use shardd_api::node::NodeId;
use shardd_store::metastore::copy::{CopyTag, Found, Replaced};
use shardd_store::metastore::relocation::{RELOCATION, no_changes};
use shardd_store::metastore::{Backup, CopyShelf, Expected, MetaError, MetadataCopy, Metastore};
use shardd_store::origin::{Origin, OriginError};
use shardfmt::Digest;

use super::place::{other_key, stored, unserved};
use super::{AHEAD, KeepError, META, opening, set_aside};
use crate::identity::Identity;
use crate::metastore::{self, MetastoreUrl, OpenError, Values, make_equal};

/// Why a backup is not restored. The metadata is as it was, unless the message says otherwise; the command can be repeated.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum RestoreError {
    /// No first node was here.
    #[error(
        "--data {path} is not that of a cluster's first node; restore its tls/ with ca.key there first, or run this where the first node \
         has its data"
    )]
    NotHere { path: PathBuf },
    /// It has other names and certificates.
    #[error(
        "the backup is of another cluster ({backup} instead of {here}): its tokens and nodes would be unknown here; `shardctl recover` \
         brings names and plans from a store into any cluster"
    )]
    OtherCluster { backup: Digest, here: Digest },
    /// Something would be replaced.
    #[error("{at} has metadata that the backup would replace ({part}); add --replace if you want that")]
    NotEmpty { at: String, part: String },
    /// Another node has it.
    #[error("node {keeper} keeps the metadata of this cluster now: run this there")]
    Fenced { keeper: NodeId },
    /// It has moved.
    #[error(
        "the metadata of this cluster has moved to {to}: finish that first, with `shardd metastore migrate --to {to}`"
    )]
    Moved { to: String },
    /// The place cannot be used.
    #[error("{at} does not take the backup; run this again, the backup may be there in part")]
    Target { at: String, source: MetaError },
    /// The place cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store that has the copy.
    #[error("the store cannot be asked for the copy of the metadata")]
    Store(#[from] OriginError),
    /// The store does not take the copy.
    #[error("the store does not take the copy of the metadata ({reason}); run this again")]
    NoCopy { reason: String },
    /// A file cannot be moved.
    #[error(transparent)]
    Files(#[from] KeepError),
}

/// The restored metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The number of entries.
    pub entries: usize,
    /// Their place.
    pub at: String,
}

/// Makes the metadata of the first node over `data`, which is locked by the caller and not served, of a backup. `present` is where
/// the data directory says that it is.
///
/// # Errors
/// [`RestoreError`].
pub(crate) async fn restore(
    data: &Path,
    identity: &Identity,
    origin: &Arc<Origin>,
    present: &MetastoreUrl,
    backup: &Backup,
    is_replacing: bool,
) -> Result<Restored, RestoreError> {
    let here = identity.authority();
    if backup.cluster != here {
        return Err(RestoreError::OtherCluster { backup: backup.cluster, here });
    }
    let at = match present {
        MetastoreUrl::Sled => {
            restore_sled(data, identity, origin, backup, is_replacing).await?;
            data.join(META).display().to_string()
        }
        MetastoreUrl::Store => {
            let store = metastore::open_in_store(origin, here, true).await?;
            let (at, values) = (origin.name().to_owned(), backup.values());
            check_note(store.as_ref(), &at, is_replacing).await?;
            check_place(store.as_ref(), &values, &at, is_replacing).await?;
            let failed = |source| RestoreError::Target { at: at.clone(), source };
            // The object may be a new one, while nodes remember leases and revisions of the one before.
            store.continue_after(backup.revision, backup.revision).await.map_err(failed)?;
            store.replace_lasting(&values).await.map_err(failed)?;
            at
        }
        MetastoreUrl::Etcd(url) => {
            let (etcd, at, values) = (metastore::open_etcd(url)?, present.to_string(), backup.values());
            check_note(etcd.as_ref(), &at, is_replacing).await?;
            check_place(etcd.as_ref(), &values, &at, is_replacing).await?;
            let replaced = make_equal(etcd.as_ref(), &values).await;
            replaced.map_err(|source| RestoreError::Target { at: at.clone(), source })?;
            at
        }
    };
    Ok(Restored { entries: backup.entries.len(), at })
}

/// Refuses a place that the metadata moves to or from, unless it is to be replaced: then it is the place of the metadata.
async fn check_note(place: &dyn Metastore, at: &str, is_replacing: bool) -> Result<(), RestoreError> {
    let failed = |source| RestoreError::Target { at: at.to_owned(), source };
    let Some(note) = place.get(RELOCATION).await.map_err(failed)? else { return Ok(()) };
    if !is_replacing {
        return Err(RestoreError::NotEmpty { at: at.to_owned(), part: no_changes(&note) });
    }
    place.delete(RELOCATION, Expected::At(note.revision)).await.map_err(failed)?;
    Ok(())
}

/// Refuses to replace what the backup does not have.
async fn check_place(
    place: &dyn Metastore,
    values: &Values,
    at: &str,
    is_replacing: bool,
) -> Result<(), RestoreError> {
    let there = place.lasting().await.map_err(|source| RestoreError::Target { at: at.to_owned(), source })?;
    match other_key(&there, values) {
        Some(key) if !is_replacing => {
            Err(RestoreError::NotEmpty { at: at.to_owned(), part: format!("key {key}") })
        }
        _ => Ok(()),
    }
}

async fn restore_sled(
    data: &Path,
    identity: &Identity,
    origin: &Arc<Origin>,
    backup: &Backup,
    is_replacing: bool,
) -> Result<(), RestoreError> {
    let meta = data.join(META);
    let shelf = CopyShelf::of(Arc::clone(origin), identity.authority());
    let (copy, base) = match shelf.read(None).await? {
        Found::Copy(copy, tag) => (Some(copy), Some(tag)),
        Found::Damaged(_, tag) => (None, Some(tag)),
        Found::Absent | Found::Unchanged => (None, None),
    };
    let restored = following(copy.as_ref(), identity.node(), backup)?;
    if meta.join("db").exists() && !is_replacing {
        return Err(RestoreError::NotEmpty { at: meta.display().to_string(), part: "all of it".to_owned() });
    }
    set_aside(&meta, "replaced")?;
    let _ = fs::remove_file(data.join(AHEAD));
    // Interrupted before this, the node continues from the copy as it was; after it, from the backup.
    if !origin.is_read_only() {
        put(&shelf, &restored, base.as_ref()).await?;
    }
    opening::make(data, &restored, restored.epoch).await?;
    Ok(())
}

async fn put(shelf: &CopyShelf, restored: &MetadataCopy, base: Option<&CopyTag>) -> Result<(), RestoreError> {
    match shelf.replace(restored, base).await {
        // A store without conditional puts has no copies.
        Replaced::Refused(_) if base.is_none() => Ok(()),
        outcome => stored(outcome).map_err(|reason| RestoreError::NoCopy { reason }),
    }
}

/// The metadata of the backup, as the successor of all that the copy knows of.
fn following(
    copy: Option<&MetadataCopy>,
    me: &NodeId,
    backup: &Backup,
) -> Result<MetadataCopy, RestoreError> {
    if let Some(MetadataCopy { keeper, .. }) = copy.filter(|copy| copy.keeper.node != *me) {
        return Err(RestoreError::Fenced { keeper: keeper.node.clone() });
    }
    if let Some(to) = copy.and_then(|copy| copy.moved_to.clone()) {
        return Err(RestoreError::Moved { to });
    }
    let keeper = copy.map_or_else(|| unserved(me), |copy| copy.keeper.clone());
    let [epoch, settled, revision, last_lease] =
        copy.map_or([0; 4], |copy| [copy.epoch, copy.settled, copy.revision, copy.last_lease]);
    let revision = revision.max(settled).max(backup.revision).saturating_add(1);
    Ok(MetadataCopy {
        epoch: epoch.saturating_add(1),
        keeper,
        settled: revision,
        revision,
        last_lease: last_lease.max(backup.revision),
        taken_at: now(),
        entries: backup.entries.clone(),
        moved_to: None,
    })
}

#[cfg(test)]
mod tests {
    use shardd_store::metastore::{CopiedEntry, MemoryMetastore, OWNER};

    use super::*;

    fn values(entries: &[(&str, u8)]) -> Values {
        entries.iter().map(|(key, value)| ((*key).to_owned(), vec![*value])).collect()
    }

    #[tokio::test]
    async fn a_place_is_like_the_backup_and_keeps_its_owner_and_leased_keys() {
        let place = MemoryMetastore::new();
        let lease = place.grant(std::time::Duration::from_secs(60)).await.expect("grants");
        for (key, value, lease) in
            [(OWNER, 9, None), ("refs/a", 1, None), ("refs/gone", 1, None), ("nodes/n1", 5, Some(lease))]
        {
            place.put(key, vec![value], Expected::Absent, lease).await.expect("puts");
        }
        let wanted = values(&[("refs/a", 2), ("refs/b", 3)]);
        let refused = check_place(&place, &wanted, "there", false).await.expect_err("it has others");
        assert!(refused.to_string().contains("--replace"), "{refused}");
        check_place(&place, &wanted, "there", true).await.expect("the user wants it");
        for _ in 0..2 {
            make_equal(&place, &wanted).await.expect("restores");
        }
        let there: Vec<_> = place.list("").await.expect("lists").entries;
        let there: Vec<(String, u8)> = there.into_iter().map(|(key, entry)| (key, entry.value[0])).collect();
        let expected = [(OWNER, 9), ("nodes/n1", 5), ("refs/a", 2), ("refs/b", 3)];
        assert_eq!(there, expected.map(|(key, value)| (key.to_owned(), value)));
        check_place(&place, &wanted, "there", false).await.expect("nothing would be replaced");
    }

    #[test]
    fn what_is_restored_succeeds_all_that_the_copy_knows_and_no_other_node() {
        let me: NodeId = "n1".parse().expect("a name");
        let entries = vec![CopiedEntry { key: "refs/a".to_owned(), revision: 2, value: vec![1] }];
        let backup = Backup { cluster: Digest::of(b"authority"), taken_at: 1, revision: 7, entries };
        let first = following(None, &me, &backup).expect("there is none before");
        assert_eq!((first.epoch, first.settled, first.last_lease), (1, 8, 7));
        let later = MetadataCopy { epoch: 4, settled: 40, revision: 41, last_lease: 90, ..first.clone() };
        let next = following(Some(&later), &me, &backup).expect("it is ours");
        assert!(next.epoch > 4 && next.settled > 40 && next.revision > 41 && next.last_lease >= 90);
        assert_eq!(next.entries, backup.entries);

        let other: NodeId = "n2".parse().expect("a name");
        let fenced = following(Some(&later), &other, &backup).expect_err("another keeps it").to_string();
        assert!(fenced.contains("n1"), "{fenced}");
        let moved = MetadataCopy { moved_to: Some("store".to_owned()), ..later };
        assert!(matches!(following(Some(&moved), &me, &backup), Err(RestoreError::Moved { .. })));
    }
}
