//! A metastore that another node holds, reached through the [`Transport`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use shardd_store::metastore::{
    Entry, Expected, LeaseId, Listing, MetaError, Metastore, check_key, check_value,
};
use tokio::time::timeout;

use super::Transport;
use super::metastore_wire::{MetaReply, MetaRequest, unflatten};
use crate::metastore::MetastoreNode;

/// How long the other node may take; waiting for changes has no end of its own.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The metastore of the node that holds it. While that node is unreachable, every operation fails with
/// [`MetaError::Unavailable`] within two seconds.
pub struct RemoteMetastore {
    transport: Arc<Transport>,
    node: Arc<MetastoreNode>,
}

impl RemoteMetastore {
    /// The metastore of `node`, which may become another node at any time. `transport` must know its address.
    #[must_use]
    pub fn new(transport: Arc<Transport>, node: Arc<MetastoreNode>) -> RemoteMetastore {
        RemoteMetastore { transport, node }
    }

    async fn ask(&self, request: MetaRequest, value: Vec<u8>) -> Result<(MetaReply, Bytes), MetaError> {
        match timeout(TIMEOUT, self.wait(request, value)).await {
            Ok(answer) => answer,
            Err(_) => Err(self.unavailable(format!("no answer within {TIMEOUT:?}"))),
        }
    }

    async fn wait(&self, request: MetaRequest, value: Vec<u8>) -> Result<(MetaReply, Bytes), MetaError> {
        let answer = self.transport.ask_metastore(&self.node.get(), request, value.into()).await;
        answer.unwrap_or_else(|error| Err(self.unavailable(error.to_string())))
    }

    async fn revision(&self, request: MetaRequest, value: Vec<u8>) -> Result<u64, MetaError> {
        match self.ask(request, value).await? {
            (MetaReply::Revision(revision), _) => Ok(revision),
            _ => Err(self.confused()),
        }
    }

    async fn done(&self, request: MetaRequest) -> Result<(), MetaError> {
        match self.ask(request, vec![]).await? {
            (MetaReply::Done, _) => Ok(()),
            _ => Err(self.confused()),
        }
    }

    fn unavailable(&self, reason: String) -> MetaError {
        let node = self.node.get();
        let reason = format!(
            "{reason}; if it is down, start it again over its --data; if it is lost, promote another: `shardctl promote NODE`"
        );
        MetaError::Unavailable { store: format!("of node {node}"), reason }
    }

    fn confused(&self) -> MetaError {
        self.unavailable("it gave an answer to another question".into())
    }
}

#[async_trait]
impl Metastore for RemoteMetastore {
    async fn get(&self, key: &str) -> Result<Option<Entry>, MetaError> {
        check_key(key)?;
        match self.ask(MetaRequest::Get { key: key.into() }, vec![]).await? {
            (MetaReply::Entry { revision }, value) => {
                Ok(revision.map(|revision| Entry { value: value.into(), revision }))
            }
            _ => Err(self.confused()),
        }
    }

    async fn put(
        &self,
        key: &str,
        value: Vec<u8>,
        expected: Expected,
        lease: Option<LeaseId>,
    ) -> Result<u64, MetaError> {
        check_key(key)?;
        check_value(key, &value)?;
        self.revision(MetaRequest::Put { key: key.into(), expected, lease }, value).await
    }

    async fn delete(&self, key: &str, expected: Expected) -> Result<u64, MetaError> {
        check_key(key)?;
        self.revision(MetaRequest::Delete { key: key.into(), expected }, vec![]).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        match self.ask(MetaRequest::List { prefix: prefix.into() }, vec![]).await? {
            (MetaReply::Listing { keys, revision }, values) => {
                unflatten(keys, revision, &values).ok_or_else(|| self.confused())
            }
            _ => Err(self.confused()),
        }
    }

    async fn lasting(&self) -> Result<Listing, MetaError> {
        match self.ask(MetaRequest::Lasting, vec![]).await? {
            (MetaReply::Listing { keys, revision }, values) => {
                unflatten(keys, revision, &values).ok_or_else(|| self.confused())
            }
            _ => Err(self.confused()),
        }
    }

    async fn changed(&self, prefix: &str, since: u64) -> Result<u64, MetaError> {
        // Without a time limit: the connection's keep-alive notices when the other node is gone.
        match self.wait(MetaRequest::Changed { prefix: prefix.into(), since }, vec![]).await? {
            (MetaReply::Revision(revision), _) => Ok(revision),
            _ => Err(self.confused()),
        }
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        match self.ask(MetaRequest::Grant { ttl_ms }, vec![]).await? {
            (MetaReply::Lease(lease), _) => Ok(lease),
            _ => Err(self.confused()),
        }
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.done(MetaRequest::Renew { lease }).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.done(MetaRequest::Revoke { lease }).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use shardd_api::node::NodeId;
    use shardd_engine::peers::{Ack, FetchRequest, PeerError, PeerService, SendHeader};
    use shardd_store::metastore::{MemoryMetastore, conformance};
    use shardfmt::grain::GrainKey;
    use tokio::sync::mpsc;
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::identity::testing::cluster;
    use crate::transport::Services;

    /// A node without grains.
    struct Empty;

    #[async_trait]
    impl PeerService for Empty {
        async fn fetch(&self, _: &NodeId, request: FetchRequest) -> Vec<Option<Bytes>> {
            vec![None; request.keys.len()]
        }

        async fn receive(
            &self,
            _: &NodeId,
            _: SendHeader,
            _: mpsc::Receiver<(GrainKey, Bytes)>,
        ) -> Result<Ack, PeerError> {
            Ok(Ack { stored: 0, refused: 0 })
        }
    }

    /// Two nodes: one serves `store`, the other reaches it. Cancel the token to stop the first one.
    fn remote(store: Option<Arc<dyn Metastore>>) -> (RemoteMetastore, CancellationToken, Arc<Transport>) {
        let identities = cluster(&["a", "b"]);
        let bind = |of| Transport::bind("127.0.0.1:0".parse().unwrap(), of, Arc::default()).expect("bound");
        let (metastore_node, other) = (bind(&identities[0]), bind(&identities[1]));
        other.learn(identities[0].node(), metastore_node.address());
        let stop = CancellationToken::new();
        tokio::spawn(Arc::clone(&metastore_node).serve(
            Services { peers: Arc::new(Empty), metastore: store, issuer: None, looks: None },
            stop.clone(),
        ));
        (RemoteMetastore::new(other, MetastoreNode::new(identities[0].node().clone())), stop, metastore_node)
    }

    #[tokio::test]
    async fn a_remote_metastore_keeps_the_promises_of_a_metastore() {
        let kept = Mutex::new(vec![]);
        conformance::all(async || {
            let (store, stop, metastore_node) = remote(Some(Arc::new(MemoryMetastore::new())));
            kept.lock().expect("no panic while held").push((stop.drop_guard(), metastore_node));
            Arc::new(store) as Arc<dyn Metastore>
        })
        .await;
    }

    #[tokio::test]
    async fn a_lost_metastore_node_is_noticed_in_time_also_by_those_who_wait() {
        let (store, stop, metastore_node) = remote(Some(Arc::new(MemoryMetastore::new())));
        let since = store.list("").await.expect("lists").revision;
        let waiting = store.changed("", since);
        let going = async {
            stop.cancel();
            metastore_node.close().await;
        };
        let begun = Instant::now();
        let (waited, ()) = tokio::join!(waiting, going);
        assert!(matches!(waited, Err(MetaError::Unavailable { .. })), "{waited:?}");
        let asked = store.get("k").await;
        assert!(matches!(asked, Err(MetaError::Unavailable { .. })), "{asked:?}");
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn a_node_that_keeps_no_metadata_says_so() {
        let (store, _stop, _metastore_node) = remote(None);
        let error = store.get("k").await.expect_err("not kept there").to_string();
        assert!(error.contains("does not keep the metadata"), "{error}");
    }
}
