//! The messages of [`RemoteMetastore`](super::RemoteMetastore): one for each operation, followed by values as
//! plain bytes. Knows nothing of connections.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use shardd_store::metastore::{Entry, Expected, LeaseId, Listing, MetaError, Metastore};

/// An operation; the value of a put is the body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum MetaRequest {
    Get { key: String },
    Put { key: String, expected: Expected, lease: Option<LeaseId> },
    Delete { key: String, expected: Expected },
    List { prefix: String },
    Lasting,
    Changed { prefix: String, since: u64 },
    Grant { ttl_ms: u64 },
    Renew { lease: LeaseId },
    Revoke { lease: LeaseId },
}

/// The result of an operation; values are in the body, one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum MetaReply {
    Entry { revision: Option<u64> },
    Revision(u64),
    Listing { keys: Vec<(String, u64, u32)>, revision: u64 },
    Lease(LeaseId),
    Done,
}

/// Performs `request` on `store`.
pub(super) async fn answer(
    store: &dyn Metastore,
    request: MetaRequest,
    value: Bytes,
) -> (Result<MetaReply, MetaError>, Bytes) {
    let plain = |reply| (reply, Bytes::new());
    match request {
        MetaRequest::Get { key } => match store.get(&key).await {
            Ok(Some(entry)) => (Ok(MetaReply::Entry { revision: Some(entry.revision) }), entry.value.into()),
            Ok(None) => plain(Ok(MetaReply::Entry { revision: None })),
            Err(error) => plain(Err(error)),
        },
        MetaRequest::List { prefix } => match store.list(&prefix).await {
            Ok(listing) => flatten(listing),
            Err(error) => plain(Err(error)),
        },
        MetaRequest::Lasting => match store.lasting().await {
            Ok(listing) => flatten(listing),
            Err(error) => plain(Err(error)),
        },
        MetaRequest::Put { key, expected, lease } => {
            plain(store.put(&key, value.to_vec(), expected, lease).await.map(MetaReply::Revision))
        }
        MetaRequest::Delete { key, expected } => {
            plain(store.delete(&key, expected).await.map(MetaReply::Revision))
        }
        MetaRequest::Changed { prefix, since } => {
            plain(store.changed(&prefix, since).await.map(MetaReply::Revision))
        }
        MetaRequest::Grant { ttl_ms } => {
            plain(store.grant(Duration::from_millis(ttl_ms)).await.map(MetaReply::Lease))
        }
        MetaRequest::Renew { lease } => plain(store.renew(lease).await.map(|()| MetaReply::Done)),
        MetaRequest::Revoke { lease } => plain(store.revoke(lease).await.map(|()| MetaReply::Done)),
    }
}

fn flatten(listing: Listing) -> (Result<MetaReply, MetaError>, Bytes) {
    let mut keys = Vec::with_capacity(listing.entries.len());
    let mut values = Vec::new();
    for (key, entry) in listing.entries {
        keys.push((key, entry.revision, entry.value.len().try_into().expect("values are below 64 KiB")));
        values.extend_from_slice(&entry.value);
    }
    (Ok(MetaReply::Listing { keys, revision: listing.revision }), values.into())
}

/// The listing that a [`MetaReply::Listing`] and its body describe, or `None` if they do not fit each other.
pub(super) fn unflatten(keys: Vec<(String, u64, u32)>, revision: u64, values: &[u8]) -> Option<Listing> {
    let mut rest = values;
    let mut entries = Vec::new();
    for (key, revision, length) in keys {
        let (value, after) = rest.split_at_checked(length as usize)?;
        rest = after;
        entries.push((key, Entry { value: value.to_vec(), revision }));
    }
    rest.is_empty().then_some(Listing { entries, revision })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn listings_survive_the_wire(
            values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..6),
            revision: u64,
        ) {
            let entries = (0..).zip(values).map(|(i, value)| (format!("k/{i}"), Entry { value, revision: i })).collect();
            let listing = Listing { entries, revision };
            let (reply, body) = flatten(listing.clone());
            let Ok(MetaReply::Listing { keys, revision }) = reply else { panic!("not a listing") };
            prop_assert_eq!(unflatten(keys.clone(), revision, &body), Some(listing));
            prop_assert_eq!(unflatten(keys, revision, &[&body[..], b"x"].concat()), None);
        }
    }
}
