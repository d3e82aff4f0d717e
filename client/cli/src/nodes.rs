//! The live nodes of a cluster, for commands about one of them.

use shardd_api::drain::NodeState;
use shardd_api::node::NodeId;
use shardd_store::http::{HttpClient, HttpError};

use crate::failure::Failure;

/// The live nodes, as `server` knows them.
pub(crate) fn live_nodes(http: &HttpClient, server: &str) -> Result<Vec<NodeState>, HttpError> {
    http.get_list(&format!("{server}/v1/nodes"), usize::MAX)
}

/// The failure of a command about a node that is not live.
pub(crate) fn not_live(node: &NodeId) -> Failure {
    Failure::failed(format!("node {node} is not among the live nodes; `shardctl status` lists them"))
}
