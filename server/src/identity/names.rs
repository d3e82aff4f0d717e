//! Which public key holds a node's name. A lease in the metastore binds the two while the node lives.

use shardd_api::node::{NodeId, NodeRecord};
use shardd_store::metastore::{MetaError, Metastore};
use shardfmt::digest::Digest;

/// The metastore key under which the digest of the name's public key is stored.
pub(crate) fn name_key(id: &NodeId) -> String {
    format!("names/{id}")
}

/// The digest of the public key that holds the name, or `None` while the name is free.
pub(crate) async fn holder(metastore: &dyn Metastore, id: &NodeId) -> Result<Option<Digest>, MetaError> {
    let entry = metastore.get(&name_key(id)).await?;
    Ok(entry.and_then(|entry| String::from_utf8(entry.value).ok()?.parse().ok()))
}

/// The reason to refuse the name `id` for `key`: a live node with another key holds it. `None` if none does.
pub(crate) async fn other_holder(
    metastore: &dyn Metastore,
    id: &NodeId,
    key: Digest,
) -> Result<Option<String>, MetaError> {
    match metastore.get(&name_key(id)).await? {
        Some(entry) if entry.value != key.to_string().as_bytes() => {}
        _ => return Ok(None),
    }
    let record = metastore.get(&NodeRecord::key(id)).await?;
    let record = record.and_then(|entry| serde_json::from_slice::<NodeRecord>(&entry.value).ok());
    let place = record.map_or_else(String::new, |record| format!(" at {}", record.http));
    Ok(Some(format!(
        "node id {id} belongs to a live node{place}; start this one with another --id, or stop that one"
    )))
}
