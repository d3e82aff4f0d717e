//! Metadata in an object of the cluster's store: every node reads and replaces it, and none of them is special. One
//! store has the metadata of one cluster, whose first change claims it.

use std::sync::Arc;

use shardd_store::metastore::{BucketMetastore, MetaError};
use shardd_store::origin::Origin;
use shardfmt::Digest;
use tracing::warn;

use super::OpenError;

/// The metadata in the store, for a node of the cluster of this authority. Where the cluster is not new, the store
/// need not answer yet: each later change claims it, or is refused.
///
/// # Errors
/// [`OpenError::InStore`] when the store can keep no metadata, or has that of another cluster.
pub async fn open_in_store(
    origin: &Arc<Origin>,
    authority: Digest,
    is_new: bool,
) -> Result<Arc<BucketMetastore>, OpenError> {
    let metastore = Arc::new(BucketMetastore::of_cluster(Arc::clone(origin), authority));
    match metastore.begin().await {
        Ok(()) => {}
        Err(error @ MetaError::Unavailable { .. }) if !is_new => {
            warn!(%error, "the metadata in the store cannot be read yet");
        }
        Err(source) => return Err(OpenError::InStore { source }),
    }
    Ok(metastore)
}

#[cfg(test)]
mod tests {
    use shardd_store::metastore::{Expected, Metastore};

    use super::*;

    #[tokio::test]
    async fn a_store_has_the_metadata_of_one_cluster() {
        let origin = Arc::new(Origin::open("memory://").expect("opens"));
        let [ours, theirs] = [b"ours", b"them"].map(|name| Digest::of(name));
        // One that could not claim it at its start does with its first change.
        let first = BucketMetastore::of_cluster(Arc::clone(&origin), ours);
        first.put("refs/a", vec![1], Expected::Absent, None).await.expect("puts");
        let again = open_in_store(&origin, ours, false).await.expect("it is ours");
        assert_eq!(again.get("refs/a").await.expect("reads").expect("there").value, [1]);
        let refused = open_in_store(&origin, theirs, true).await.err().expect("it is another's");
        assert!(format!("{:#}", anyhow::Error::from(refused)).contains("of another cluster"));
        let late = BucketMetastore::of_cluster(origin, theirs);
        let refused = late.put("refs/b", vec![2], Expected::Absent, None).await;
        assert!(matches!(refused, Err(MetaError::Unchangeable { .. })), "{refused:?}");
        assert!(late.get("refs/a").await.is_err(), "it is not read, either");
    }
}
