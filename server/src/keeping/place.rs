//! A metastore that takes over entries: from sled, or from a backup.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use shardd_api::node::NodeId;
use shardd_store::metastore::copy::Replaced;
use shardd_store::metastore::{Expected, Listing, MetaError, Metastore, MetastoreAddress, OWNER};

/// Values by key.
pub(super) type Values = BTreeMap<String, Vec<u8>>;

/// The first key there that these values lack or that has another one.
pub(super) fn other_key(there: &Listing, values: &Values) -> Option<String> {
    let mut others =
        there.entries.iter().filter(|(key, entry)| key != OWNER && values.get(key) != Some(&entry.value));
    others.next().map(|(key, _)| key.clone())
}

/// Deletes the lasting entries that are not among these, and puts those that differ. Can be repeated.
pub(super) async fn make_equal(place: &dyn Metastore, values: &Values) -> Result<(), MetaError> {
    let mut there: BTreeMap<_, _> = place.lasting().await?.entries.into_iter().collect();
    for (key, value) in values {
        let expected = match there.remove(key) {
            Some(entry) if entry.value == *value => continue,
            Some(entry) => Expected::At(entry.revision),
            None => Expected::Absent,
        };
        place.put(key, value.clone(), expected, None).await?;
    }
    for (key, entry) in there.into_iter().filter(|(key, _)| key != OWNER) {
        place.delete(&key, Expected::At(entry.revision)).await?;
    }
    Ok(())
}

/// The address of a node that does not serve.
pub(super) fn unserved(node: &NodeId) -> MetastoreAddress {
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    MetastoreAddress { node: node.clone(), http: String::new(), quic: nowhere }
}

/// Why a copy of the metadata is not in the store, if it is not.
pub(super) fn stored(outcome: Replaced) -> Result<(), String> {
    match outcome {
        Replaced::Done(_) => Ok(()),
        Replaced::Lost => Err("another node has replaced the copy".to_owned()),
        Replaced::Refused(reason) | Replaced::Unknown(reason) => Err(reason),
    }
}
