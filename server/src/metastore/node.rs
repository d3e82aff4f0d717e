//! The node that holds the metadata, from the view of a joined node.

use std::sync::{Arc, PoisonError, RwLock};

use shardd_api::node::NodeId;

/// The node that serves metadata and signs certificates. A promotion changes it.
pub struct MetastoreNode(RwLock<NodeId>);

impl MetastoreNode {
    /// Begins with `node`, the last one known.
    #[must_use]
    pub fn new(node: NodeId) -> Arc<MetastoreNode> {
        Arc::new(MetastoreNode(RwLock::new(node)))
    }

    /// The current node.
    #[must_use]
    pub fn get(&self) -> NodeId {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the node after a promotion.
    pub fn set(&self, node: NodeId) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = node;
    }
}
