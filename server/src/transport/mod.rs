//! Carries what nodes say to each other over QUIC with mutual TLS: the only module that names quinn.
//!
//! One endpoint per node, one connection per direction and pair of nodes, one bidirectional stream per
//! request (`frame` has the layout). A peer is who its certificate says it is. What the messages mean is the
//! business of the [`PeerService`] and [`Metastore`] behind [`Services`]; every grain is verified by them,
//! not here. [`RemoteMetastore`] is the client of a metastore behind another node.

mod frame;
mod incoming;
mod look;
#[cfg(test)]
pub(crate) mod lossy;
mod metastore_wire;
mod mtu;
mod outgoing;
mod remote_metastore;
mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use quinn::Runtime as _;
use serde::{Deserialize, Serialize};
use shardd_api::node::NodeId;
use shardd_api::problem::Kind;
use shardd_api::protocol::RunId;
use shardd_certificates::Host;
use shardd_engine::peers::{Ack, FetchMode, PeerService, SendHeader};
use shardd_store::metastore::{MetaError, Metastore};
use shardfmt::VersionId;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::ca::CertificateIssuer;
use crate::identity::{Identity, Revoked};

pub use look::{Look, LookService};
use metastore_wire::{MetaReply, MetaRequest};
use outgoing::Peer;
pub use remote_metastore::RemoteMetastore;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The time before the next attempt to reach an unreachable peer. Meanwhile, and during an attempt in the
/// background, callers get the error at once.
const BREAKER: Duration = Duration::from_secs(2);
/// A connection without traffic for this time is dead.
const IDLE: Duration = Duration::from_secs(3);
/// How often a quiet connection proves that it is not dead.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// The largest datagram tried. Larger ones can stall: ten of them exceed what the kernel splits at once (64 KiB).
const LARGEST_DATAGRAM: u16 = 6500;
/// The largest where those do not get through.
const SAFE_DATAGRAM: u16 = 1452;
/// Grains that wait between stream and receiver; the stream stops when they are not taken.
const GRAINS_IN_FLIGHT: usize = 16;
/// The bytes read of a stream at once beside grains: heads, and small grains. The rest of a large one goes to
/// its place directly.
const READ_BUFFER: usize = 4 << 10;
/// After this number of bytes the exchange checks whether a peer waits for an answer...
const TURN: usize = 32 << 10;
/// ...and if so, how long the exchange lets them pass: but the exchange never stands still.
const YIELD: Duration = Duration::from_millis(25);
/// How urgent streams are beside others of their connection, which have 0: moved grains can wait, requested
/// ones cannot.
const EXCHANGE_PRIORITY: i32 = -1;
const ANSWER_PRIORITY: i32 = 1;
/// Sent to a peer whose connection is closed because its key was revoked.
const REVOKED: quinn::VarInt = quinn::VarInt::from_u32(2);
/// Socket buffers asked for; the system may give less.
const SOCKET_BUFFER: usize = 4 << 20;

/// The services of this node to others.
pub struct Services {
    /// Answers for grains.
    pub peers: Arc<dyn PeerService>,
    /// The metadata, on the node that holds it.
    pub metastore: Option<Arc<dyn Metastore>>,
    /// Signs certificates, on the first node.
    pub issuer: Option<Arc<CertificateIssuer>>,
    /// Says how this node is.
    pub looks: Option<Arc<dyn LookService>>,
}

/// A node's end of all its connections. Implements [`Peers`](shardd_engine::peers::Peers); [`Transport::serve`] answers others.
pub struct Transport {
    node: NodeId,
    endpoint: quinn::Endpoint,
    address: SocketAddr,
    addresses: Mutex<BTreeMap<NodeId, SocketAddr>>,
    peers: Mutex<BTreeMap<NodeId, Arc<Peer>>>,
    revoked: Arc<Revoked>,
    /// The peers that have ended a connection because this node's own key was revoked.
    expelled_by: Arc<Mutex<BTreeSet<NodeId>>>,
    probes: TaskTracker,
    /// Answers with grains that are under way: a peer waits for them.
    answering: Arc<watch::Sender<usize>>,
}

/// How large datagrams may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagrams(u16);

impl Default for Datagrams {
    /// The largest size, without a probe.
    fn default() -> Datagrams {
        Datagrams(LARGEST_DATAGRAM)
    }
}

impl Datagrams {
    /// Probes which size gets through the kernel of this machine, on its address `address`. Takes
    /// milliseconds if the largest does; otherwise two seconds, and logs a warning.
    pub async fn probe_mtu(address: IpAddr, identity: &Identity) -> Datagrams {
        Datagrams(mtu::probe(address, identity).await)
    }
}

/// Why there is no transport.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum TransportError {
    /// The address cannot be used.
    #[error("--quic {address} cannot be used; give another address")]
    Bind { address: SocketAddr, source: std::io::Error },
    /// The node's certificate cannot be used.
    #[error("cannot use the node's certificate: {0}")]
    Tls(String),
}

impl Transport {
    /// Binds `address` (port 0: a free one) for the node of `identity`, whatever certificate that shows by
    /// then. The holder of one of the `revoked` keys is no peer. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`TransportError::Bind`] when the address is taken or not of this machine.
    pub fn bind(
        address: SocketAddr,
        identity: &Identity,
        revoked: Arc<Revoked>,
    ) -> Result<Arc<Transport>, TransportError> {
        Transport::bind_with(address, identity, revoked, Datagrams::default())
    }

    /// The same, with datagrams of up to a size that was [probed](Datagrams::probe_mtu).
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_with(
        address: SocketAddr,
        identity: &Identity,
        revoked: Arc<Revoked>,
        datagrams: Datagrams,
    ) -> Result<Arc<Transport>, TransportError> {
        let bind = |source| TransportError::Bind { address, source };
        let socket = socket(address).map_err(bind)?;
        let socket = quinn::TokioRuntime.wrap_udp_socket(socket).map_err(bind)?;
        Transport::over(socket, identity, revoked, datagrams)
    }

    /// The same over any socket.
    pub(crate) fn over(
        socket: Arc<dyn quinn::AsyncUdpSocket>,
        identity: &Identity,
        revoked: Arc<Revoked>,
        Datagrams(largest): Datagrams,
    ) -> Result<Arc<Transport>, TransportError> {
        let unnamed = ([0, 0, 0, 0], 0).into();
        let address = socket.local_addr().unwrap_or(unnamed);
        let bind = |source| TransportError::Bind { address, source };
        let settings = tls::endpoint(identity, largest);
        let runtime = Arc::new(quinn::TokioRuntime);
        let server = Some(tls::server(identity, tls::discovering(largest))?);
        let endpoint = quinn::Endpoint::new_with_abstract_socket(settings, server, socket, runtime);
        let mut endpoint = endpoint.map_err(bind)?;
        endpoint.set_default_client_config(tls::client(identity, tls::discovering(largest))?);
        let address = endpoint.local_addr().map_err(bind)?;
        Ok(Arc::new(Transport {
            node: identity.node().clone(),
            endpoint,
            address,
            addresses: Mutex::default(),
            peers: Mutex::default(),
            revoked,
            expelled_by: Arc::default(),
            probes: TaskTracker::new(),
            answering: Arc::default(),
        }))
    }

    /// Where this node can be reached.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Remembers where `node` can be reached, until the next address: a lapsed record is no reason to forget
    /// it.
    pub fn learn(&self, node: &NodeId, address: SocketAddr) {
        lock(&self.addresses).insert(node.clone(), address);
    }

    /// Whether `peer` has ended a connection because this node's own key was revoked.
    #[must_use]
    pub fn was_expelled_by(&self, peer: &NodeId) -> bool {
        lock(&self.expelled_by).contains(peer)
    }

    /// Closes all connections and waits a moment for the peers to hear of it.
    pub async fn close(&self) {
        self.endpoint.close(0u32.into(), b"stopping");
        self.probes.close();
        self.probes.wait().await;
        // Peers that do not hear of it find out by the idle timeout.
        let _ = tokio::time::timeout(Duration::from_millis(500), self.endpoint.wait_idle()).await;
    }
}

/// The message that opens a stream.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Request {
    /// `count` keys follow; the answer is [`Reply::Grains`].
    Fetch {
        run: RunId,
        version: VersionId,
        epoch: u32,
        generation: u64,
        effort: FetchMode,
        count: u32,
        /// The span that waits for them (W3C Trace Context).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceparent: Option<String>,
    },
    /// Grains follow to the end of the stream; the answer is [`Reply::Ack`].
    Send { header: SendHeader },
    /// The next certificate is wanted; the answer is [`Reply::Certified`].
    Certify { csr: String, hosts: Vec<Host> },
    /// `body` bytes follow; the answer is [`Reply::Meta`].
    Meta { request: MetaRequest, body: u32 },
    /// How the node is; the answer is [`Reply::Seen`].
    Look { look: Look },
}

/// The message that opens the answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Reply {
    /// The grains that there are follow, in the order asked for, to the end of the stream.
    Grains,
    /// The outcome of the grains sent.
    Ack { ack: Ack },
    /// The certificate (PEM).
    Certified { certificate: String },
    /// `body` bytes follow.
    Meta { result: Result<MetaReply, MetaError>, body: u32 },
    /// `body` bytes of JSON follow.
    Seen { body: u32 },
    /// Nothing will be done, and why: a line of the one error table.
    Refused { problem: Kind, reason: String },
}

fn socket(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::DGRAM, None)?;
    // The system may give less: then packets are lost under load and sent again.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while held")
}

#[cfg(test)]
mod tests;
