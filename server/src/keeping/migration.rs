//! The metadata of a cluster moves from sled on its first node to its store or to etcd, while that node is stopped.
//! The others continue meanwhile, as in any stop of the first node.
//!
//! Entries that hang on a lease stay behind: their holders put them again. The move can be repeated after a crash:
//! moved entries are found equal, and only the last step makes the first node start with the new place.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardd_api::node::NodeId;
use shardd_store::metastore::copy::Found;
use shardd_store::metastore::{CopiedEntry, CopyShelf, Expected, MetaError, Metastore};
use shardd_store::origin::{Origin, OriginError};

use super::{AHEAD, KeepError, META, opening, set_aside};
use crate::identity::Identity;
use crate::metastore::{self, CLUSTER, MetastoreUrl, OpenError};

/// Why metadata is not moved. Nothing is lost then, and the node starts with it as before.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum MigrationError {
    /// It is somewhere else already, or there is none.
    #[error(
        "--data {path} has no metadata in sled to move; run this where the first node of the cluster has its data, with the \
         settings that it serves with"
    )]
    NotHere { path: PathBuf },
    /// It would stay where it is.
    #[error("--to sled: the metadata is there already; name store, or the URL of an etcd")]
    ToSled,
    /// Another node was promoted.
    #[error("node {keeper} keeps the metadata of this cluster now: run this there")]
    Fenced { keeper: NodeId },
    /// There is other metadata at the new place.
    #[error("{to} has other metadata (key {key}): name an empty place, or another prefix or folder")]
    NotEmpty { to: String, key: String },
    /// The new place cannot be used.
    #[error("{to} cannot take the metadata")]
    Target { to: String, source: MetaError },
    /// The new place cannot be opened, or sled.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// sled cannot be read.
    #[error("the metadata in sled cannot be read")]
    Source(#[source] MetaError),
    /// The store that would say who keeps the metadata, or has its copy.
    #[error("the store cannot be asked for the copy of the metadata")]
    Store(#[from] OriginError),
    /// Files of the data directory.
    #[error(transparent)]
    Files(#[from] KeepError),
}

/// What has moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// How many entries there are.
    pub entries: usize,
    /// Where they are now.
    pub to: String,
}

/// Moves the metadata of the first node over `data`, which is locked by the caller and not served.
///
/// # Errors
/// [`MigrationError`].
pub(crate) async fn migrate(
    data: &Path,
    identity: &Identity,
    origin: &Arc<Origin>,
    to: &MetastoreUrl,
) -> Result<Migrated, MigrationError> {
    let meta = data.join(META);
    if !meta.join("db").exists() {
        return Err(MigrationError::NotHere { path: data.to_owned() });
    }
    let shelf = CopyShelf::of(Arc::clone(origin), identity.authority());
    if let Found::Copy(copy, _) = shelf.read(None).await?
        && copy.keeper.node != *identity.node()
    {
        return Err(MigrationError::Fenced { keeper: copy.keeper.node });
    }
    let sled = opening::open_sled(&meta, &data.join(AHEAD)).await?;
    let snapshot = sled.snapshot().await.map_err(MigrationError::Source)?;
    let target: Arc<dyn Metastore> = match to {
        MetastoreUrl::Sled => return Err(MigrationError::ToSled),
        MetastoreUrl::Store => metastore::open_in_store(origin, identity.authority(), true).await?,
        MetastoreUrl::Etcd(url) => metastore::open_etcd(url)?,
    };
    let name = match to {
        MetastoreUrl::Store => origin.name().to_owned(),
        _ => to.to_string(),
    };
    fill(target.as_ref(), &snapshot.entries, &name).await?;
    metastore::remember(data, to)?;
    // From here on the node starts with the new place; what is left is old.
    drop(sled);
    set_aside(&meta, "moved")?;
    let _ = fs::remove_file(data.join(AHEAD));
    // Who is promoted must not continue from it.
    shelf.remove().await?;
    Ok(Migrated { entries: snapshot.entries.len(), to: name })
}

/// Puts the entries to a place that has no others.
async fn fill(target: &dyn Metastore, entries: &[CopiedEntry], to: &str) -> Result<(), MigrationError> {
    let failed = |source| MigrationError::Target { to: to.to_owned(), source };
    let of =
        |key: &str| entries.binary_search_by(|entry| entry.key.as_str().cmp(key)).ok().map(|at| &entries[at]);
    let there = target.list("").await.map_err(failed)?.entries;
    for (key, found) in &there {
        if key != CLUSTER && of(key).is_none_or(|entry| entry.value != found.value) {
            return Err(MigrationError::NotEmpty { to: to.to_owned(), key: key.clone() });
        }
    }
    for CopiedEntry { key, value, .. } in entries {
        if there.iter().all(|(there, _)| there != key) {
            target.put(key, value.clone(), Expected::Absent, None).await.map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use shardd_store::metastore::MemoryMetastore;

    use super::*;

    fn entry(key: &str, value: u8) -> CopiedEntry {
        CopiedEntry { key: key.to_owned(), revision: 1, value: vec![value] }
    }

    #[tokio::test]
    async fn what_was_moved_in_part_is_moved_on_and_what_is_there_is_never_replaced() {
        let target = MemoryMetastore::new();
        target.put("refs/a", vec![1], Expected::Absent, None).await.expect("puts");
        let entries = [entry("plans/p", 3), entry("refs/a", 1), entry("refs/b", 2)];
        fill(&target, &entries, "there").await.expect("it continues");
        fill(&target, &entries, "there").await.expect("nothing is left to do");
        let there = target.list("").await.expect("lists").entries;
        let there: Vec<_> = there.into_iter().map(|(key, entry)| (key, entry.value[0])).collect();
        assert_eq!(there, [("plans/p".to_owned(), 3), ("refs/a".to_owned(), 1), ("refs/b".to_owned(), 2)]);

        for other in [vec![entry("refs/a", 9)], vec![entry("plans/p", 3), entry("refs/a", 1)]] {
            let refused = fill(&target, &other, "there").await.expect_err("there is something else");
            assert!(matches!(refused, MigrationError::NotEmpty { .. }), "{refused}");
        }
        assert_eq!(target.list("").await.expect("lists").entries.len(), 3);
    }
}
