//! Metadata in an object of the cluster's store: every node reads and replaces it, and none of them is special. One
//! store has the metadata of one cluster, which the first node claims.

use std::sync::Arc;

use shardd_store::metastore::{BucketMetastore, Expected, MetaError, Metastore};
use shardd_store::origin::Origin;
use shardfmt::Digest;
use tracing::warn;

use super::OpenError;

/// The key with the digest of the authority of the cluster.
pub(crate) const CLUSTER: &str = "cluster";

/// The metadata in the store, which is that of the cluster of this authority from now on. Where the cluster is not
/// new, the store may be away.
///
/// # Errors
/// [`OpenError::OfAnotherCluster`], and [`OpenError::InStore`] when it can keep no metadata.
pub async fn open_in_store(
    origin: &Arc<Origin>,
    authority: Digest,
    is_new: bool,
) -> Result<Arc<dyn Metastore>, OpenError> {
    let metastore = Arc::new(BucketMetastore::of_cluster(Arc::clone(origin)));
    match claim(metastore.as_ref(), authority).await {
        Ok(true) => {}
        Ok(false) => return Err(OpenError::OfAnotherCluster { store: origin.name().to_owned() }),
        Err(error @ MetaError::Unavailable { .. }) if !is_new => {
            warn!(%error, "the metadata in the store cannot be read yet");
        }
        Err(source) => return Err(OpenError::InStore { store: origin.name().to_owned(), source }),
    }
    Ok(metastore)
}

/// Whether the metadata is that of the cluster of this authority. What has none yet is.
async fn claim(metastore: &dyn Metastore, authority: Digest) -> Result<bool, MetaError> {
    let ours = authority.to_string().into_bytes();
    match metastore.put(CLUSTER, ours.clone(), Expected::Absent, None).await {
        Ok(_) => Ok(true),
        Err(MetaError::Conflict { .. }) => {
            Ok(metastore.get(CLUSTER).await?.is_some_and(|entry| entry.value == ours))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_has_the_metadata_of_one_cluster() {
        let origin = Arc::new(Origin::open("memory://").expect("opens"));
        let [ours, theirs] = [b"ours", b"them"].map(|name| Digest::of(name));
        let first = open_in_store(&origin, ours, true).await.expect("nothing is there");
        first.put("refs/a", vec![1], Expected::Absent, None).await.expect("puts");
        let again = open_in_store(&origin, ours, false).await.expect("it is ours");
        assert_eq!(again.get("refs/a").await.expect("reads").expect("there").value, [1]);
        let refused = open_in_store(&origin, theirs, true).await.err().expect("it is another's");
        assert!(matches!(refused, OpenError::OfAnotherCluster { .. }), "{refused}");
    }
}
