//! The metadata of a cluster moves from sled on its first node to its store or to etcd, while that node is stopped.
//! The others continue meanwhile, as in any stop of the first node.
//!
//! The order of the steps decides what a crash leaves. All entries are put to the new place first. Then the copy in the
//! store, which is the fence of the metadata in sled, is replaced by a note of where it has moved: from then on neither
//! this node nor a promoted one continues from sled or from the copy. At last the data directory names the new place. The
//! command can be repeated at any point. Entries that hang on a lease stay behind: their holders put them again.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardd_api::duration::now;
use shardd_store::metastore::copy::{CopyTag, Found};
use shardd_store::metastore::relocation::{Arriving, RELOCATION};
use shardd_store::metastore::{CopyShelf, Expected, MetaError, MetadataCopy, MetastoreAddress};
use shardd_store::origin::{Origin, OriginError};
use shardfmt::Digest;

use super::place::{stored, unserved};
use super::relocation::{Names, Places, RelocationError, reserve};
use super::{AHEAD, KeepError, META, Opened, opening, set_aside};
use crate::identity::Identity;
use crate::metastore::{self, MetastoreUrl, OpenError, SledMetastore, Snapshot, Target};

/// Why metadata is not moved. No entry is lost then, and the command can be repeated.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum MigrationError {
    /// There is none.
    #[error(
        "--data {path} has no metadata in sled to move; run this where the first node of the cluster has its data, with the \
         settings that it serves with"
    )]
    NotHere { path: PathBuf },
    /// It would stay where it is.
    #[error("--to sled: the metadata is there already; name store, or the URL of an etcd")]
    ToSled,
    /// It is somewhere else already.
    #[error("the metadata of this cluster is in {at} already; only metadata in sled can be moved")]
    Elsewhere { at: String },
    /// It may be the wrong store.
    #[error(
        "{store} has no copy of this cluster's metadata, which its first node puts there within seconds: give the --store that \
         the node serves with, or let the node run until `shardctl status` shows the copy"
    )]
    OtherStore { store: String },
    /// There is other metadata at the new place, or it cannot be used.
    #[error(transparent)]
    Reserve(#[from] RelocationError),
    /// The new place cannot be used.
    #[error("{to} cannot take the metadata")]
    Target { to: String, source: MetaError },
    /// The new place cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// sled cannot be read.
    #[error("the metadata in sled cannot be read")]
    Source(#[source] MetaError),
    /// The store that has the copy.
    #[error("the store cannot be asked for the copy of the metadata")]
    Store(#[from] OriginError),
    /// Another node has written the copy, or the store does not take the note.
    #[error("the store does not take the note that the metadata moves ({reason}); run this again")]
    NoNote { reason: String },
    /// The metadata in sled is old, damaged or another node's, or a file cannot be moved.
    #[error(transparent)]
    Files(#[from] KeepError),
}

/// The moved metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// The number of entries.
    pub entries: usize,
    /// Their place now.
    pub to: String,
}

/// Moves the metadata of the first node over `data`, which is locked by the caller and not served. `present` is where the
/// data directory says that it is.
///
/// # Errors
/// [`MigrationError`].
pub(crate) async fn migrate(
    data: &Path,
    identity: &Identity,
    origin: &Arc<Origin>,
    present: &MetastoreUrl,
    to: &MetastoreUrl,
) -> Result<Migrated, MigrationError> {
    let meta = data.join(META);
    let shelf = CopyShelf::of(Arc::clone(origin), identity.authority());
    let name = match to {
        MetastoreUrl::Store => origin.name().to_owned(),
        _ => to.to_string(),
    };
    match present {
        MetastoreUrl::Sled => {}
        // Only the last step is missing.
        _ if present == to && meta.exists() => {
            finish(data)?;
            return Ok(Migrated { entries: 0, to: name });
        }
        _ => return Err(MigrationError::Elsewhere { at: present.to_string() }),
    }
    if *to == MetastoreUrl::Sled {
        return Err(MigrationError::ToSled);
    }
    let copy = match shelf.read(None).await? {
        Found::Copy(copy, _) => Some(copy),
        Found::Damaged(..) | Found::Absent | Found::Unchanged => None,
    };
    let is_noted = match copy.as_ref().and_then(|copy| copy.moved_to.as_deref()) {
        Some(moved) if moved == to.to_string() => true,
        Some(moved) => return Err(MigrationError::Elsewhere { at: moved.to_owned() }),
        None => false,
    };
    if !meta.join("db").exists() && !is_noted {
        return Err(MigrationError::NotHere { path: data.to_owned() });
    }
    // What is only read has no copy, and no node is promoted over it.
    let has_copies = !origin.is_read_only();
    if copy.is_none() && has_copies {
        return Err(MigrationError::OtherStore { store: origin.name().to_owned() });
    }
    let me = copy.as_ref().map(|copy| copy.keeper.clone()).filter(|keeper| keeper.node == *identity.node());
    let me = me.unwrap_or_else(|| unserved(identity.node()));
    let mut entries = 0;
    if !is_noted {
        // As at a start: what is older than the copy, damaged or fenced is not moved.
        let Opened { sled, epoch, base } = opening::open(data, &shelf, &me, false, false).await?;
        entries = fill_from(&sled, origin, identity, to, &name).await?;
        if has_copies {
            note(&shelf, &sled, epoch, me, to, base.as_ref()).await?;
        }
    }
    metastore::leave(data, &MetastoreUrl::Sled)?;
    metastore::remember(data, to)?;
    finish(data)?;
    Ok(Migrated { entries, to: name })
}

/// Puts aside the sled that was moved.
fn finish(data: &Path) -> Result<(), MigrationError> {
    set_aside(&data.join(META), "moved")?;
    let _ = fs::remove_file(data.join(AHEAD));
    Ok(())
}

/// Puts all entries to the new place, and lets its numbers continue after those of sled.
async fn fill_from(
    sled: &SledMetastore,
    origin: &Arc<Origin>,
    identity: &Identity,
    to: &MetastoreUrl,
    name: &str,
) -> Result<usize, MigrationError> {
    let snapshot = sled.snapshot().await.map_err(MigrationError::Source)?;
    let places = Places { origin: Arc::clone(origin), cluster: identity.authority() };
    let target = places.open(to, true).await?;
    fill(target.as_ref(), &snapshot, places.cluster, name).await?;
    Ok(snapshot.entries.len())
}

/// Replaces the copy by a note of where the metadata is now: the copy is the fence of who keeps it in sled.
async fn note(
    shelf: &CopyShelf,
    sled: &SledMetastore,
    epoch: u64,
    keeper: MetastoreAddress,
    to: &MetastoreUrl,
    base: Option<&CopyTag>,
) -> Result<(), MigrationError> {
    let snapshot = sled.snapshot().await.map_err(MigrationError::Source)?;
    let note = MetadataCopy {
        epoch: epoch.saturating_add(1),
        keeper,
        settled: snapshot.settled,
        revision: snapshot.revision,
        last_lease: snapshot.last_lease,
        taken_at: now(),
        entries: Vec::new(),
        moved_to: Some(to.to_string()),
    };
    let outcome = shelf.replace(&note, base).await;
    stored(outcome).map_err(|reason| MigrationError::NoNote { reason })
}

/// Puts the entries to a place that has no others. Until all are there, the place has a note of that, and is not used.
async fn fill(
    target: &dyn Target,
    snapshot: &Snapshot,
    cluster: Digest,
    to: &str,
) -> Result<(), MigrationError> {
    let lasting = snapshot.entries.iter().map(|entry| (entry.key.clone(), entry.value.clone())).collect();
    let arriving = Arriving { lasting, leased: Vec::new(), revision: snapshot.revision };
    let note = reserve(&arriving.lasting, target, &Names::new(&MetastoreUrl::Sled, to, cluster)).await?;
    let failed = |source| MigrationError::Target { to: to.to_owned(), source };
    let note = target.take_over(&arriving, note).await.map_err(failed)?;
    target.delete(RELOCATION, Expected::At(note)).await.map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use shardd_store::metastore::relocation::is_of_place;
    use shardd_store::metastore::{BucketMetastore, CopiedEntry, Metastore};

    use super::*;

    #[tokio::test]
    async fn what_was_moved_in_part_is_moved_on_and_what_is_there_is_never_replaced() {
        let cluster = Digest::of(b"authority");
        let place = |origin: &Arc<Origin>| BucketMetastore::of_cluster(Arc::clone(origin), cluster);
        let origin = Arc::new(Origin::open("memory://").expect("opens"));
        let target = place(&origin);
        target.put("refs/a", vec![1], Expected::Absent, None).await.expect("puts");
        let of = |entries: &[(&str, u8)]| Snapshot {
            entries: entries
                .iter()
                .map(|(key, value)| CopiedEntry { key: (*key).to_owned(), revision: 1, value: vec![*value] })
                .collect(),
            revision: 9,
            last_lease: 4,
            epoch: 1,
            settled: 9,
        };
        let entries = of(&[("plans/p", 3), ("refs/a", 1), ("refs/b", 2)]);
        fill(&target, &entries, cluster, "there").await.expect("it continues");
        fill(&target, &entries, cluster, "there").await.expect("nothing is left to do");
        let there = place(&origin).list("").await.expect("lists").entries;
        let values = there.into_iter().filter(|(key, _)| !is_of_place(key));
        let values = values.inspect(|(_, entry)| assert!(entry.revision > 9, "revisions continue"));
        let values: Vec<_> = values.map(|(key, entry)| (key, entry.value[0])).collect();
        assert_eq!(values, [("plans/p".to_owned(), 3), ("refs/a".to_owned(), 1), ("refs/b".to_owned(), 2)]);

        for other in [of(&[("refs/a", 9)]), of(&[("plans/p", 3), ("refs/a", 1)])] {
            let refused = fill(&target, &other, cluster, "there").await.expect_err("there is something else");
            assert!(refused.to_string().contains("there has other metadata (key"), "{refused}");
        }
        assert_eq!(target.lasting().await.expect("lists").entries.len(), 4, "with whose it is");
    }
}
