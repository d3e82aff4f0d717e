//! The keys of the metastore that the engine follows.

use serde::de::DeserializeOwned;
use shardd_api::node::NodeRecord;
use shardd_store::metastore::Listing;
use tracing::warn;

use super::value::parse;

pub(crate) const NODES: &str = "nodes/";
pub(crate) const RUNS: &str = "runs/";
pub(crate) const RANKS: &str = "ranks/";
pub(crate) const PLACEMENTS: &str = "placements/";
pub(super) const DRAINING: &str = "draining/";
pub(super) const COPIED: &str = "copied/";

/// Nodes that registered and have not left since, as the metastore keeps them, whether or not they live.
pub(super) const MEMBERS: &str = NodeRecord::MEMBERS;

/// The readable entries below a prefix. A value of a later format than ours is left alone.
pub(super) fn entries<'a, K, V>(prefix: &'a str, listing: &'a Listing) -> impl Iterator<Item = (K, V)> + 'a
where
    K: std::str::FromStr + 'a,
    V: DeserializeOwned + 'a,
{
    listing.entries.iter().filter_map(move |(key, entry)| {
        let name = key.strip_prefix(prefix)?.parse().ok();
        let value = parse(entry);
        if name.is_none() || value.is_none() {
            warn!(key, "an entry of the metastore cannot be read; ignored");
        }
        Some((name?, value?))
    })
}
