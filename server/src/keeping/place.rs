//! A metastore that takes over entries: from sled, or from a backup.

use std::net::SocketAddr;

use shardd_api::node::NodeId;
use shardd_store::metastore::copy::Replaced;
use shardd_store::metastore::relocation::is_of_place;
use shardd_store::metastore::{Listing, MetastoreAddress};

use crate::metastore::Values;

/// The first key there that these values lack or that has another one.
pub(super) fn other_key(there: &Listing, values: &Values) -> Option<String> {
    let mut others = there
        .entries
        .iter()
        .filter(|(key, entry)| !is_of_place(key) && values.get(key) != Some(&entry.value));
    others.next().map(|(key, _)| key.clone())
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
