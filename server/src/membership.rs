//! A node's place among the others: its name, held by a lease, and where everybody is.
//!
//! A name belongs to a key: the node with that key takes its record over at once after a restart, any other
//! is refused while the record lives. Losing the metastore is no reason to stop: the node continues and
//! registers again when it can.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardd_api::node::{NodeId, NodeRecord};
use shardd_api::protocol::Health;
use shardd_certificates::CA_CERTIFICATE;
use shardd_store::metastore::copy::{self, CopyTag};
use shardd_store::metastore::{
    CopyShelf, Expected, Following, LeaseId, Listing, MetaError, Metastore, MetastoreAddress,
};
use shardfmt::digest::Digest;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::identity::{self, Cluster, KeyRevoked, Revoked, name_key, other_holder};
use crate::metastore::{MetastoreNode, MetastoreUrl, MovableMetastore};
use crate::transport::Transport;

/// How long a record outlives its node.
const TTL: Duration = Duration::from_secs(5);
/// Interval between renewals of the lease, and between attempts while the metastore is unreachable.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Limit for reading from the store which node holds the metadata.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit for releasing the name at shutdown.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(1);

/// The node's membership: its record, and the metastore.
pub(crate) struct Membership {
    /// Where names are held.
    pub(crate) metastore: Arc<dyn Metastore>,
    /// The facts for the others.
    pub(crate) record: NodeRecord,
    /// Of a first node that does not keep the metadata: its place, which the others learn from the record.
    pub(crate) announced: Option<Arc<MovableMetastore>>,
    /// Digest of the key that the name belongs to.
    pub(crate) key: Digest,
    /// The revoked keys.
    pub(crate) revoked: Arc<Revoked>,
    /// The node that holds the metadata, if it is another one. It closes connections of nodes with a revoked
    /// key, so that they cannot read the revocation from the metastore.
    pub(crate) metastore_node: Option<(Arc<Transport>, Arc<MetastoreNode>)>,
}

/// Why a node is no member.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MembershipError {
    /// A live node with another key has the name.
    #[error("{0}")]
    Taken(String),
    /// The node's key was revoked.
    #[error(transparent)]
    Revoked(#[from] KeyRevoked),
    /// Not now.
    #[error(transparent)]
    Meta(#[from] MetaError),
}

/// Finds the node that holds the metadata after it has moved to another address or another node.
pub(crate) struct Finder {
    transport: Arc<Transport>,
    cluster: Mutex<Cluster>,
    tls: PathBuf,
    shelf: CopyShelf,
    metastore_node: Arc<MetastoreNode>,
    /// The tag of the copy in the store at the last look.
    looked_at: Mutex<Option<CopyTag>>,
    me: NodeId,
}

impl Membership {
    /// Takes the name, or says who has it.
    pub(crate) async fn register(&self) -> Result<LeaseId, MembershipError> {
        let lease = self.metastore.grant(TTL).await?;
        match self.take(lease).await {
            Ok(()) => Ok(lease),
            Err(error) => {
                let _ = self.metastore.revoke(lease).await;
                Err(error)
            }
        }
    }

    fn is_revoked(&self) -> bool {
        let expelled = self.metastore_node.as_ref();
        let expelled = expelled.is_some_and(|(transport, node)| transport.was_expelled_by(&node.get()));
        expelled || self.revoked.contains(self.key)
    }

    async fn take(&self, lease: LeaseId) -> Result<(), MembershipError> {
        let id = &self.record.id;
        if Revoked::holds(self.metastore.as_ref(), self.key).await? {
            return Err(KeyRevoked(id.clone()).into());
        }
        let name = name_key(id);
        loop {
            if let Some(other) = other_holder(self.metastore.as_ref(), id, self.key).await? {
                return Err(MembershipError::Taken(other));
            }
            let held = self.metastore.get(&name).await?;
            let expected = Expected::unchanged(held.map(|entry| entry.revision));
            match self.metastore.put(&name, self.key.to_string().into(), expected, Some(lease)).await {
                Ok(_) => break,
                // Another node was faster, or the old record lapsed: look again.
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let metastore = self.announced.as_ref().map(|movable| movable.place().to_string());
        let record = NodeRecord { metastore, ..self.record.clone() };
        let value = serde_json::to_vec(&record).expect("a record is plain data");
        // That it belongs here outlives the lease: a node that is lost is missed until it is back, or leaves.
        self.metastore.put(&NodeRecord::member_key(id), value.clone(), Expected::Any, None).await?;
        self.metastore.put(&NodeRecord::key(id), value, Expected::Any, Some(lease)).await?;
        Ok(())
    }

    /// Renews `lease` until `stop`, then gives the name back. Registers again when the lease was lost, or was
    /// never had.
    ///
    /// # Errors
    /// [`MembershipError::Taken`] when a node that has never been a member finds its name taken,
    /// [`MembershipError::Revoked`] when its key was revoked.
    pub(crate) async fn keep(
        self,
        mut lease: Option<LeaseId>,
        finder: Option<Arc<Finder>>,
        stop: CancellationToken,
    ) -> Result<(), MembershipError> {
        let mut was_member = lease.is_some();
        let mut trouble: Option<String> = None;
        loop {
            let begun = Instant::now();
            let heartbeat = async {
                match lease {
                    _ if self.is_revoked() => Err(KeyRevoked(self.record.id.clone()).into()),
                    Some(lease) => {
                        self.metastore.renew(lease).await.map(|()| lease).map_err(MembershipError::from)
                    }
                    None => self.register().await,
                }
            };
            let beat = tokio::select! {
                () = stop.cancelled() => break,
                beat = heartbeat => beat,
            };
            match beat {
                Ok(held) => {
                    if trouble.take().is_some() || lease.is_none() {
                        info!(node = %self.record.id, "registered with the metastore");
                    }
                    (lease, was_member) = (Some(held), true);
                }
                Err(MembershipError::Meta(MetaError::LeaseLost { .. })) => {
                    lease = None;
                    continue;
                }
                Err(error @ MembershipError::Taken(_)) if !was_member => return Err(error),
                Err(error @ MembershipError::Revoked(_)) => return Err(error),
                Err(error) => {
                    let error = error.to_string();
                    if trouble.is_none() {
                        warn!(
                            error,
                            "not registered with the metastore; continuing without it and trying \
                            again"
                        );
                    }
                    trouble = Some(error);
                    if let Some(finder) = &finder {
                        finder.look().await;
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep(HEARTBEAT_INTERVAL.saturating_sub(begun.elapsed())) => {}
            }
        }
        if let Some(lease) = lease {
            // Else the record lapses by itself.
            let deregister = async {
                let _ = self.metastore.revoke(lease).await;
                let _ = self.metastore.delete(&NodeRecord::member_key(&self.record.id), Expected::Any).await;
            };
            let _ = timeout(DEREGISTER_TIMEOUT, deregister).await;
        }
        Ok(())
    }
}

impl Finder {
    /// Begins with what the last start knew, which `tls` keeps. `shelf` says when another node was promoted.
    pub(crate) fn new(
        transport: Arc<Transport>,
        cluster: Cluster,
        tls: PathBuf,
        shelf: CopyShelf,
        metastore_node: Arc<MetastoreNode>,
        me: NodeId,
    ) -> Arc<Finder> {
        transport.learn(&cluster.first, cluster.quic);
        let (cluster, looked_at) = (Mutex::new(cluster), Mutex::default());
        Arc::new(Finder { transport, cluster, tls, shelf, metastore_node, looked_at, me })
    }

    /// Locates the metadata: checks for a new QUIC address of the first node, and for a promotion of another
    /// node.
    async fn look(&self) {
        self.ask_first().await;
        if self.known().metastore.is_none() {
            self.look_in_store().await;
        }
    }

    /// Reads from the copy in the store which node holds the metadata. That node proves its name by its
    /// certificate.
    async fn look_in_store(&self) {
        let looked_at = self.looked_at.lock().expect("no panic while held").clone();
        let read = timeout(STORE_TIMEOUT, self.shelf.read(looked_at.as_ref())).await;
        let Ok(Ok(copy::Found::Copy(copy, tag))) = read else { return };
        *self.looked_at.lock().expect("no panic while held") = Some(tag);
        let mut known = self.known();
        if let Some(Ok(place)) = copy.moved_to.as_deref().map(str::parse) {
            self.moved(&mut known, place);
        }
        let MetastoreAddress { node, http, quic } = copy.keeper;
        if node == self.me {
            warn!("this node was promoted and has not taken over the metadata yet: start it with --promote");
            return;
        }
        let (scheme, address) = http.split_once("://").unwrap_or_default();
        let Ok(http) = address.parse() else { return };
        match node == known.first {
            true if (http, quic) == (known.http, known.quic) => return,
            true => {
                info!(metastore_node = %node, %http, "the node that keeps the metadata has another address now")
            }
            false => {
                info!(metastore_node = %node, before = %known.first, "another node keeps the metadata now")
            }
        }
        self.transport.learn(&node, quic);
        self.found(Cluster { first: node.clone(), http, tls: scheme == "https", quic, ..known });
        self.metastore_node.set(node);
    }

    /// Asks the first node's HTTP where its QUIC is by now. The server that answers has to show the right
    /// certificate there.
    async fn ask_first(&self) {
        let known = self.known();
        let url = format!("{}/v1/health", known.site());
        let ca = self.tls.join(CA_CERTIFICATE);
        let asked = tokio::task::spawn_blocking(move || {
            identity::ask(&url, &ca, HEARTBEAT_INTERVAL, |client| client.get_json::<Health>(&url))
        });
        let Ok(Ok(health)) = asked.await else { return };
        if health.id == known.first {
            self.found(Cluster { quic: health.quic, ..known });
        }
    }

    /// Takes what the first node's own record says.
    fn learn(&self, record: &NodeRecord) {
        let known = self.known();
        if record.id == known.first {
            let (scheme, address) = record.http.split_once("://").unwrap_or_default();
            let (http, tls) = match address.parse() {
                Ok(http) => (http, scheme == "https"),
                Err(_) => (known.http, known.tls),
            };
            let mut known = known;
            if let Some(Ok(place)) = record.metastore.as_deref().map(str::parse) {
                self.moved(&mut known, place);
            }
            self.found(Cluster { http, tls, quic: record.quic, ..known });
        }
    }

    /// Remembers that the metadata is at another place now.
    fn moved(&self, known: &mut Cluster, place: MetastoreUrl) {
        if known.metastore.as_deref() != Some(&place) {
            info!(metastore = %place, "the metadata has moved: from its next start on, this node uses it directly");
            known.metastore = Some(Box::new(place));
            self.found(known.clone());
        }
    }

    /// Remembers the place that this node uses from now on.
    pub(crate) fn uses(&self, place: &MetastoreUrl) {
        self.found(Cluster { metastore: Some(Box::new(place.clone())), ..self.known() });
    }

    /// The cluster as it is known now.
    pub(crate) fn known(&self) -> Cluster {
        self.cluster.lock().expect("no panic while held").clone()
    }

    fn found(&self, cluster: Cluster) {
        let before =
            std::mem::replace(&mut *self.cluster.lock().expect("no panic while held"), cluster.clone());
        if before == cluster {
            return;
        }
        self.transport.learn(&cluster.first, cluster.quic);
        if let Err(error) = cluster.save(&self.tls) {
            warn!(%error, "the first node's new address cannot be kept for the next start");
        }
    }
}

/// Tells the transport where the nodes are, until `stop`. Addresses once known stay known.
pub(crate) async fn follow_addresses(
    metastore: Arc<dyn Metastore>,
    transport: Arc<Transport>,
    finder: Option<Arc<Finder>>,
    stop: CancellationToken,
) {
    let following = async {
        let mut listings = Following::new(metastore.as_ref(), NodeRecord::PREFIX, HEARTBEAT_INTERVAL);
        loop {
            // Where there is none, membership says that the metastore is unavailable.
            for record in listings.next().await.iter().flat_map(records) {
                transport.learn(&record.id, record.quic);
                if let Some(finder) = &finder {
                    finder.learn(&record);
                }
            }
        }
    };
    stop.run_until_cancelled(following).await;
}

fn records(listing: &Listing) -> impl Iterator<Item = NodeRecord> {
    listing.entries.iter().filter_map(|(_, entry)| serde_json::from_slice(&entry.value).ok())
}

/// Takes the name from its holder.
pub(crate) async fn expel(metastore: &dyn Metastore, id: &NodeId) -> Result<(), MetaError> {
    metastore.delete(&NodeRecord::key(id), Expected::Any).await?;
    metastore.delete(&NodeRecord::member_key(id), Expected::Any).await?;
    metastore.delete(&name_key(id), Expected::Any).await.map(drop)
}

#[cfg(test)]
mod tests {
    use shardd_store::metastore::MemoryMetastore;

    use super::*;

    fn member(metastore: &Arc<dyn Metastore>, key: &[u8], port: u16) -> Membership {
        let record = NodeRecord {
            id: "n1".parse().expect("a good name"),
            http: format!("http://127.0.0.1:{port}"),
            quic: ([127, 0, 0, 1], port).into(),
            cache_bytes: 0,
            started_at: 0,
            socket: None,
            metastore: None,
        };
        let (key, revoked) = (Digest::of(key), Arc::default());
        Membership {
            metastore: Arc::clone(metastore),
            record,
            announced: None,
            key,
            revoked,
            metastore_node: None,
        }
    }

    async fn port(metastore: &Arc<dyn Metastore>) -> Option<u16> {
        let listing = metastore.list(NodeRecord::PREFIX).await.expect("lists");
        records(&listing).next().map(|record| record.quic.port())
    }

    #[tokio::test(start_paused = true)]
    async fn a_restarted_node_takes_over_at_once_and_another_waits_until_the_name_lapses() {
        let metastore: Arc<dyn Metastore> = Arc::new(MemoryMetastore::new());
        member(&metastore, b"key", 1).register().await.expect("the name is free");
        let old = member(&metastore, b"key", 2).register().await.expect("the same key");
        assert_eq!(port(&metastore).await, Some(2));
        let taken = member(&metastore, b"other", 3).register().await.expect_err("taken").to_string();
        assert!(
            taken.contains("n1") && taken.contains("http://127.0.0.1:2") && taken.contains("--id"),
            "{taken}"
        );
        sleep(TTL).await;
        assert_eq!(port(&metastore).await, None);
        member(&metastore, b"other", 3).register().await.expect("the name lapsed");
        assert!(matches!(metastore.renew(old).await, Err(MetaError::LeaseLost { .. })));
        assert_eq!(port(&metastore).await, Some(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kept_name_outlives_its_time_and_is_given_back_at_the_end() {
        let metastore: Arc<dyn Metastore> = Arc::new(MemoryMetastore::new());
        let (one, stop) = (member(&metastore, b"key", 1), CancellationToken::new());
        let lease = one.register().await.expect("the name is free");
        let kept = tokio::spawn(one.keep(Some(lease), None, stop.clone()));
        sleep(TTL * 4).await;
        assert_eq!(port(&metastore).await, Some(1));
        metastore.revoke(lease).await.expect("as if it had lapsed");
        sleep(HEARTBEAT_INTERVAL * 2).await;
        assert_eq!(port(&metastore).await, Some(1), "registered again");
        stop.cancel();
        kept.await.expect("no panic").expect("kept");
        assert_eq!(port(&metastore).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_whose_name_is_taken_gives_up() {
        let metastore: Arc<dyn Metastore> = Arc::new(MemoryMetastore::new());
        member(&metastore, b"key", 1).register().await.expect("the name is free");
        let kept = member(&metastore, b"other", 2).keep(None, None, CancellationToken::new()).await;
        assert!(matches!(kept, Err(MembershipError::Taken(_))));
    }
}
