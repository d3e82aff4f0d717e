//! Which node keeps the metadata, as a joined node knows it.

use std::sync::{Arc, PoisonError, RwLock};

use shardd_client::node::NodeId;

/// The node that is asked for metadata and certificates. It changes when another is promoted.
pub struct KeptBy(RwLock<NodeId>);

impl KeptBy {
    /// This one, as far as is known.
    #[must_use]
    pub fn node(node: NodeId) -> Arc<KeptBy> {
        Arc::new(KeptBy(RwLock::new(node)))
    }

    /// Who does now.
    #[must_use]
    pub fn get(&self) -> NodeId {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on another does.
    pub fn set(&self, node: NodeId) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = node;
    }
}
