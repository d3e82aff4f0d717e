//! Nodes that ceased to renew their leases without saying goodbye: they are known to belong here, and when they were last seen.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use shardd_api::node::{NodeId, NodeRecord};
use shardd_api::status::Lost;
use shardd_store::metastore::Listing;

use super::Engine;
use super::keys::{MEMBERS, entries};

/// The notes on absent nodes.
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
    /// Nodes that are expected and not live, by name, as this one knows them.
    pub fn lost_nodes(&self) -> Vec<Lost> {
        let live = self.live_nodes();
        let last_seen = self.neighbours.absent.last_seen.lock().expect("no panic while held").clone();
        let members = self.neighbours.absent.members.lock().expect("no panic while held");
        let lost = members.values().filter(|record| !live.contains(&record.id));
        lost.map(|record| Lost { last_seen: last_seen.get(&record.id).copied(), record: record.clone() })
            .collect()
    }

    pub(super) fn take_members(&self, listing: &Listing) {
        *self.neighbours.absent.members.lock().expect("no panic while held") =
            entries(MEMBERS, listing).collect();
    }
}
