//! Nodes that ceased to renew their leases without saying goodbye: they are known to belong here, and when they were last seen.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Engine;
use super::membership::entries;
use crate::metastore::Listing;
use crate::node::{NodeId, NodeRecord};

/// Nodes that registered and have not left since, as the metastore keeps them, whether or not they live.
pub(super) const MEMBERS: &str = NodeRecord::MEMBERS;

/// A node that is not among the live ones, though it has not left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Lost {
    /// What it said of itself.
    #[serde(flatten)]
    pub record: NodeRecord,
    /// When the node that is asked last saw it live, in seconds since 1970; `None` if it has not since it started itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub last_seen: Option<u64>,
}

/// What is remembered of nodes that are not there.
#[derive(Debug, Default)]
pub(super) struct Absent {
    members: Mutex<BTreeMap<NodeId, NodeRecord>>,
    last_seen: Mutex<BTreeMap<NodeId, u64>>,
}

impl Absent {
    /// Nodes were live before, and are now: those that have gone were last seen just now.
    pub(super) fn note(&self, before: &BTreeMap<NodeId, NodeRecord>, now: &BTreeMap<NodeId, NodeRecord>) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut last_seen = self.last_seen.lock().expect("no panic while held");
        last_seen.retain(|node, _| !now.contains_key(node));
        let gone = before.keys().filter(|node| !now.contains_key(*node));
        last_seen.extend(gone.map(|node| (node.clone(), at)));
    }
}

impl Engine {
    /// Nodes that are expected and not live, by name, as far as this one knows.
    pub fn lost_nodes(&self) -> Vec<Lost> {
        let live = self.live_nodes();
        let last_seen = self.absent.last_seen.lock().expect("no panic while held").clone();
        let members = self.absent.members.lock().expect("no panic while held");
        let lost = members.values().filter(|record| !live.contains(&record.id));
        lost.map(|record| Lost { last_seen: last_seen.get(&record.id).copied(), record: record.clone() })
            .collect()
    }

    pub(super) fn take_members(&self, listing: &Listing) {
        *self.absent.members.lock().expect("no panic while held") = entries(MEMBERS, listing).collect();
    }
}
