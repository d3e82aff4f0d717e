//! A copy of a cluster's metadata in its store: what hangs on no lease, at one moment, in **one object** for each cluster,
//! `meta/copies/<digest of its authority>`.
//!
//! The object is also the fence. It says which node keeps the metadata and in which epoch; every write
//! replaces the object that was read last and no other. A promotion writes the next epoch there, and from
//! then on the store takes no copy of the previous node, which sees that at its next copy and at its next
//! start.
//!
//! Of tokens and join secrets it has digests only. No key is.

mod document;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use shardd_api::node::NodeId;
use shardfmt::Digest;

use super::records::{decode, encode};
use crate::causes::in_a_line;
use crate::origin::{Origin, OriginError, Swap, Swappable, Tag};

pub use document::{CopiedEntry, MetadataCopy};

/// Where copies lie, below `meta/`.
const COPIES: &str = "copies/";
/// The longest copy.
const MAX_BYTES: u64 = 1 << 30;

/// The node that keeps a cluster's metadata, and where it is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetastoreAddress {
    /// The node.
    pub node: NodeId,
    /// Where its HTTP API is, as URL.
    pub http: String,
    /// Where other nodes reach it.
    pub quic: SocketAddr,
}

/// Where the copy of one cluster lies.
#[derive(Clone)]
pub struct CopyShelf {
    origin: Arc<Origin>,
    name: String,
}

/// Tells one state of the copy from all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyTag(Tag);

/// The present copy.
#[derive(Debug, Clone)]
pub enum Found {
    /// Nothing.
    Absent,
    /// The object with the known tag.
    Unchanged,
    /// A copy.
    Copy(MetadataCopy, CopyTag),
    /// Bytes that are none.
    Damaged(String, CopyTag),
}

/// The outcome of a copy.
#[derive(Debug)]
pub enum Replaced {
    /// It lies there, and bears this tag.
    Done(CopyTag),
    /// Another one lies there than the one that was to be replaced.
    Lost,
    /// The store takes none, now or later.
    Refused(String),
    /// There was no answer: it may lie there, now or later.
    Unknown(String),
}

impl CopyShelf {
    /// The place for the cluster of this authority.
    #[must_use]
    pub fn of(origin: Arc<Origin>, authority: Digest) -> CopyShelf {
        CopyShelf { origin, name: format!("{COPIES}{authority}") }
    }

    /// The key of the object.
    #[must_use]
    pub fn object(&self) -> String {
        format!("meta/{}", self.name)
    }

    /// The copy, unless it bears the tag that is known.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn read(&self, known: Option<&CopyTag>) -> Result<Found, OriginError> {
        read(&self.origin, &self.name, known).await
    }

    /// The copies of other clusters that lie in the same store, the newest first.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn of_others(&self) -> Result<Vec<MetadataCopy>, OriginError> {
        all_but(&self.origin, Some(&self.name)).await
    }

    /// Puts `copy` there, in place of the one that bears `base`, or of none.
    pub async fn replace(&self, copy: &MetadataCopy, base: Option<&CopyTag>) -> Replaced {
        let bytes = Bytes::from(encode(copy));
        match self.origin.swap(&self.name, bytes, base.map(|tag| &tag.0)).await {
            Swap::Done(Some(tag)) => Replaced::Done(CopyTag(tag)),
            Swap::Done(None) => Replaced::Refused(format!("{} gives no ETags", self.origin.name())),
            Swap::Lost => Replaced::Lost,
            Swap::Refused(error) => Replaced::Refused(in_a_line(&error)),
            Swap::Unknown(error) => Replaced::Unknown(in_a_line(&error)),
        }
    }
}

/// The copies of all clusters that lie in a store, the newest first. Damaged ones are passed over.
pub(crate) async fn all(origin: &Origin) -> Result<Vec<MetadataCopy>, OriginError> {
    all_but(origin, None).await
}

async fn all_but(origin: &Origin, own: Option<&str>) -> Result<Vec<MetadataCopy>, OriginError> {
    let mut copies = Vec::new();
    for name in origin.swappables(COPIES).await?.into_iter().filter(|name| Some(name.as_str()) != own) {
        match read(origin, &name, None).await? {
            Found::Copy(copy, _) => copies.push(copy),
            Found::Damaged(reason, _) => {
                tracing::warn!(name, reason, "a copy of metadata is damaged and passed over");
            }
            Found::Absent | Found::Unchanged => {}
        }
    }
    copies.sort_by_key(|copy| (std::cmp::Reverse(copy.taken_at), copy.keeper.node.clone()));
    Ok(copies)
}

async fn read(origin: &Origin, name: &str, known: Option<&CopyTag>) -> Result<Found, OriginError> {
    let mut is_first = true;
    loop {
        let (bytes, tag) = match origin.read_swappable(name, known.map(|tag| &tag.0), MAX_BYTES).await? {
            Swappable::Absent => return Ok(Found::Absent),
            Swappable::Unchanged => return Ok(Found::Unchanged),
            // Without a tag nothing can be compared, and so nothing was ever put there.
            Swappable::Present { tag: None, .. } => return Ok(Found::Absent),
            Swappable::Present { bytes, tag: Some(tag) } => (bytes, CopyTag(tag)),
        };
        match decode::<MetadataCopy>(&bytes) {
            Ok(copy) => return Ok(Found::Copy(copy, tag)),
            // A second read over a network may be right.
            Err(_) if is_first && origin.may_reread() => is_first = false,
            Err(reason) => return Ok(Found::Damaged(reason, tag)),
        }
    }
}

#[cfg(test)]
mod tests;
