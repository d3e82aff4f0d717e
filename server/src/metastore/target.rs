//! A place that takes over the metadata of a cluster from another.

use std::collections::BTreeMap;

use async_trait::async_trait;
use shardd_store::metastore::relocation::{Arriving, is_of_place};
use shardd_store::metastore::{BucketMetastore, Expected, MetaError, Metastore};

/// Values by key.
pub(crate) type Values = BTreeMap<String, Vec<u8>>;

/// A place that can take over metadata.
#[async_trait]
pub trait Target: Metastore {
    /// Takes over these entries, instead of those that are here, under the caller's note of the relocation, which has the revision
    /// `note`. It may have another one then: that is returned. Can be repeated.
    ///
    /// # Errors
    /// As for a change; [`MetaError::Conflict`] when the note is not there any more. Then the place may be filled in part.
    async fn take_over(&self, arriving: &Arriving, note: u64) -> Result<u64, MetaError>;
}

#[async_trait]
impl Target for BucketMetastore {
    async fn take_over(&self, arriving: &Arriving, note: u64) -> Result<u64, MetaError> {
        BucketMetastore::take_over(self, arriving, note).await?;
        Ok(note)
    }
}

/// Deletes the lasting entries that are not among these, and puts those that differ. Can be repeated.
pub(crate) async fn make_equal(place: &dyn Metastore, values: &Values) -> Result<(), MetaError> {
    let mut there: BTreeMap<_, _> = place.lasting().await?.entries.into_iter().collect();
    for (key, value) in values {
        let expected = match there.remove(key) {
            Some(entry) if entry.value == *value => continue,
            Some(entry) => Expected::At(entry.revision),
            None => Expected::Absent,
        };
        place.put(key, value.clone(), expected, None).await?;
    }
    for (key, entry) in there.into_iter().filter(|(key, _)| !is_of_place(key)) {
        place.delete(&key, Expected::At(entry.revision)).await?;
    }
    Ok(())
}
