//! Asking other nodes: one connection each, made when first needed, and a short memory of those that failed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream, TransportErrorCode, WriteError};
use serde::de::DeserializeOwned;
use shardd_api::node::NodeId;
use shardd_api::problem::Kind;
use shardd_certificates::{Host, certificate_name};
use shardd_engine::peers::{Ack, FetchRequest, Pace, PeerError, Peers, SendHeader};
use shardd_store::metastore::MetaError;
use shardfmt::grain::GrainKey;
use tokio::io::BufReader;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, timeout};
use tracing::instrument;

use super::frame::{self, FrameError};
use super::incoming::peer_of;
use super::metastore_wire::{MetaReply, MetaRequest};
use super::tls::PROTOCOL;
use super::{
    BREAKER, CONNECT_TIMEOUT, EXCHANGE_PRIORITY, Look, READ_BUFFER, REVOKED, Reply, Request, TURN, Transport,
    YIELD, lock,
};
use crate::identity::Revoked;

/// How long a peer may take before an answer begins: as a shard's reader it may have to read the store first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a begun answer, or a peer that takes grains, may stand still.
const STALL: Duration = Duration::from_secs(30);
/// How long a peer may take to make the sent grains durable.
const ACK_TIMEOUT: Duration = Duration::from_secs(60);

/// The state of the way to one other node. The lock is held while connecting: other callers for the peer wait
/// for the one attempt instead of making another.
#[derive(Default)]
pub(super) struct Peer(Mutex<Way>);

#[derive(Default)]
struct Way {
    connection: Option<Connection>,
    address: Option<SocketAddr>,
    failed: Option<Failure>,
}

/// A peer that could not be reached: no caller waits for it again until an attempt in the background has
/// found it.
struct Failure {
    since: Instant,
    reason: String,
    probed: bool,
}

impl Transport {
    /// One message to the metastore that `to` keeps, and its answer.
    ///
    /// # Errors
    /// The outer error when there is no answer; the inner one is the answer.
    pub(super) async fn ask_metastore(
        &self,
        to: &NodeId,
        request: MetaRequest,
        body: Bytes,
    ) -> Result<Result<(MetaReply, Bytes), MetaError>, PeerError> {
        let length =
            body.len().try_into().map_err(|_| refused(to, Kind::TooLong, "the value is too long"))?;
        let (mut send, mut receive) = self.open(to).await?;
        let head = frame::head(&Request::Meta { request, body: length });
        self.write(to, &mut send, &mut [head, body]).await?;
        let _ = send.finish();
        // Whether to wait is the caller's business: some answers come when something changes.
        match self.reply(to, &mut receive).await? {
            Reply::Meta { result: Ok(reply), body } => {
                let body = frame::read_bytes(&mut receive, body, frame::MAX_REPLY_BODY, "values").await;
                Ok(Ok((reply, body.map_err(|error| self.broken(to, &error))?)))
            }
            Reply::Meta { result: Err(error), .. } => Ok(Err(error)),
            other => Err(unexpected(to, &other)),
        }
    }

    /// The next certificate (PEM) of this node, from the first one.
    ///
    /// # Errors
    /// No answer, or why there is none.
    pub(crate) async fn ask_certificate(
        &self,
        first: &NodeId,
        csr: String,
        hosts: Vec<Host>,
    ) -> Result<String, PeerError> {
        let (mut send, mut receive) = self.open(first).await?;
        self.write(first, &mut send, &mut [frame::head(&Request::Certify { csr, hosts })]).await?;
        let _ = send.finish();
        let late = |_| PeerError::TimedOut { peer: first.clone(), waited: ANSWER_TIMEOUT };
        match timeout(ANSWER_TIMEOUT, self.reply(first, &mut receive)).await.map_err(late)?? {
            Reply::Certified { certificate } => Ok(certificate),
            other => Err(unexpected(first, &other)),
        }
    }

    /// How another node is, as JSON.
    ///
    /// # Errors
    /// No answer, or why there is none.
    pub(crate) async fn ask_look(&self, to: &NodeId, look: Look) -> Result<Bytes, PeerError> {
        let (mut send, mut receive) = self.open(to).await?;
        self.write(to, &mut send, &mut [frame::head(&Request::Look { look })]).await?;
        let _ = send.finish();
        match self.reply(to, &mut receive).await? {
            Reply::Seen { body } => {
                let body = frame::read_bytes(&mut receive, body, frame::MAX_REPLY_BODY, "a view of it").await;
                body.map_err(|error| self.broken(to, &error))
            }
            other => Err(unexpected(to, &other)),
        }
    }

    /// A new stream to `to`, over the connection that is there or a new one.
    async fn open(&self, to: &NodeId) -> Result<(SendStream, RecvStream), PeerError> {
        let connection = self.connection(to).await?;
        connection.open_bi().await.map_err(|error| self.lost(to, &error))
    }

    async fn connection(&self, to: &NodeId) -> Result<Connection, PeerError> {
        if *to == self.node {
            return Err(unreachable(to, "that is this node itself"));
        }
        let address = lock(&self.addresses).get(to).copied();
        let address = address.ok_or_else(|| unreachable(to, "its address is not known"))?;
        let peer = Arc::clone(lock(&self.peers).entry(to.clone()).or_default());
        let mut way = peer.0.lock().await;
        if way.address != Some(address) {
            *way = Way { address: Some(address), ..Way::default() };
        }
        if let Some(connection) = &way.connection {
            match connection.close_reason() {
                None => return Ok(connection.clone()),
                Some(reason) => way.fell(&reason),
            }
        }
        if let Some(failure) = &mut way.failed {
            if failure.since.elapsed() >= BREAKER && !failure.probed {
                failure.probed = true;
                self.probe(to, address, Arc::clone(&peer));
            }
            return Err(unreachable(to, &failure.reason));
        }
        way.connection = match connect(&self.endpoint, &self.revoked, to, address).await {
            Ok(connection) => {
                self.probes.spawn(self.heed(to, &connection));
                Some(connection)
            }
            Err(reason) => {
                let error = unreachable(to, &reason);
                way.failed = Some(Failure::now(reason));
                return Err(error);
            }
        };
        Ok(way.connection.clone().expect("just made"))
    }

    fn heed(&self, to: &NodeId, connection: &Connection) -> impl Future<Output = ()> + use<> {
        heed(to.clone(), connection.clone(), Arc::clone(&self.revoked), Arc::clone(&self.expelled_by))
    }

    /// Looks in the background whether `to` is back.
    fn probe(&self, to: &NodeId, address: SocketAddr, peer: Arc<Peer>) {
        let (endpoint, to) = (self.endpoint.clone(), to.clone());
        let (revoked, expelled_by) = (Arc::clone(&self.revoked), Arc::clone(&self.expelled_by));
        let probes = self.probes.clone();
        self.probes.spawn(async move {
            let connected = connect(&endpoint, &revoked, &to, address).await;
            let mut way = peer.0.lock().await;
            if way.address != Some(address) {
                return;
            }
            match connected {
                Ok(connection) => {
                    probes.spawn(heed(to, connection.clone(), revoked, expelled_by));
                    (way.connection, way.failed) = (Some(connection), None);
                }
                Err(reason) => way.failed = Some(Failure::now(reason)),
            }
        });
    }

    /// Writes chunks, but does not wait without limit for a peer that takes nothing.
    async fn write(&self, to: &NodeId, send: &mut SendStream, chunks: &mut [Bytes]) -> Result<(), PeerError> {
        match timeout(STALL, send.write_all_chunks(chunks)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(WriteError::ConnectionLost(error))) => Err(self.lost(to, &error)),
            Ok(Err(error)) => Err(unreachable(to, error)),
            Err(_) => Err(PeerError::TimedOut { peer: to.clone(), waited: STALL }),
        }
    }

    /// Waits while answers with grains are under way, but not for long.
    async fn let_answers_pass(&self) {
        if *self.answering.borrow() > 0 {
            let _ = timeout(YIELD, self.answering.subscribe().wait_for(|answers| *answers == 0)).await;
        }
    }

    async fn reply<T: DeserializeOwned>(
        &self,
        to: &NodeId,
        receive: &mut (impl tokio::io::AsyncRead + Unpin),
    ) -> Result<T, PeerError> {
        frame::read_head(receive, frame::MAX_REPLY_HEAD).await.map_err(|error| self.broken(to, &error))
    }

    fn broken(&self, to: &NodeId, error: &FrameError) -> PeerError {
        match error {
            // It went away, in the middle of something or not.
            FrameError::Broken(_) | FrameError::Cut(_) => unreachable(to, error),
            _ => PeerError::Protocol { peer: to.clone(), reason: error.to_string() },
        }
    }

    fn lost(&self, to: &NodeId, error: &ConnectionError) -> PeerError {
        unreachable(to, format!("connection lost: {error}"))
    }
}

#[async_trait]
impl Peers for Transport {
    #[instrument(name = "ask_peer", level = "debug", skip_all, fields(peer = %to, run = %request.run, grains = request.keys.len()))]
    async fn fetch(&self, to: &NodeId, request: FetchRequest) -> Result<Vec<Option<Bytes>>, PeerError> {
        let FetchRequest { run, version, epoch, generation, keys, effort } = request;
        // Only requested grains are taken, and once.
        let mut wanted: BTreeMap<GrainKey, Option<Bytes>> = keys.iter().map(|key| (*key, None)).collect();
        let count = u32::try_from(wanted.len()).ok().filter(|count| *count <= frame::MAX_KEYS);
        let count = count.ok_or_else(|| {
            refused(to, Kind::TooLong, format!("{} grains are too many at once", keys.len()))
        })?;
        let (mut send, receive) = self.open(to).await?;
        let traceparent = shardd_telemetry::traceparent();
        let fetch = Request::Fetch { run, version, epoch, generation, effort, count, traceparent };
        let head = frame::head(&fetch);
        self.write(to, &mut send, &mut [head, frame::keys(wanted.keys())]).await?;
        let _ = send.finish();

        let mut receive = BufReader::with_capacity(READ_BUFFER, receive);
        let late = |waited| PeerError::TimedOut { peer: to.clone(), waited };
        match timeout(ANSWER_TIMEOUT, self.reply(to, &mut receive))
            .await
            .map_err(|_| late(ANSWER_TIMEOUT))??
        {
            Reply::Grains => {}
            other => return Err(unexpected(to, &other)),
        }
        loop {
            let next = timeout(STALL, frame::read_grain(&mut receive)).await.map_err(|_| late(STALL))?;
            let Some((key, bytes)) = next.map_err(|error| self.broken(to, &error))? else { break };
            match wanted.get_mut(&key) {
                Some(slot @ None) => *slot = Some(bytes),
                _ => {
                    let reason = format!("it sent grain {key}, which was not asked for");
                    return Err(PeerError::Protocol { peer: to.clone(), reason });
                }
            }
        }
        Ok(keys.iter().map(|key| wanted[key].clone()).collect())
    }

    async fn send(
        &self,
        to: &NodeId,
        header: SendHeader,
        mut grains: mpsc::Receiver<(GrainKey, Bytes)>,
        pace: Option<&dyn Pace>,
    ) -> Result<Ack, PeerError> {
        let (mut send, mut receive) = self.open(to).await?;
        if pace.is_some() {
            let _ = send.set_priority(EXCHANGE_PRIORITY);
        }
        self.write(to, &mut send, &mut [frame::head(&Request::Send { header })]).await?;
        // The receiver may answer before it has taken everything: it refuses, or it stops.
        let mut reply = std::pin::pin!(self.reply::<Reply>(to, &mut receive));
        let mut early = None;
        'grains: while early.is_none() {
            let grain = tokio::select! {
                answer = &mut reply => {
                    early = Some(answer);
                    break;
                }
                grain = grains.recv() => grain,
            };
            let Some((key, bytes)) = grain else { break };
            if bytes.len() > frame::MAX_GRAIN as usize {
                let reason = format!("grain {key} of {} bytes is too long to send", bytes.len());
                return Err(refused(to, Kind::TooLong, reason));
            }
            let mut prefix = frame::grain_prefix(&key, &bytes);
            // Paced grains go in turns, between which others may pass.
            let turn = if pace.is_some() { TURN } else { bytes.len() };
            let mut rest = bytes;
            while !prefix.is_empty() || !rest.is_empty() {
                let mut chunks = [std::mem::take(&mut prefix), rest.split_to(turn.min(rest.len()))];
                let written = async {
                    if let Some(pace) = pace {
                        self.let_answers_pass().await;
                        pace.pass(chunks.iter().map(|chunk| chunk.len() as u64).sum()).await;
                    }
                    timeout(STALL, send.write_all_chunks(&mut chunks)).await
                };
                tokio::select! {
                    answer = &mut reply => {
                        early = Some(answer);
                        break;
                    }
                    written = written => match written {
                        Ok(Ok(())) => {}
                        // It takes no more; its answer says why.
                        Ok(Err(WriteError::Stopped(_))) => break 'grains,
                        Ok(Err(WriteError::ConnectionLost(error))) => return Err(self.lost(to, &error)),
                        Ok(Err(error)) => return Err(unreachable(to, error)),
                        Err(_) => return Err(PeerError::TimedOut { peer: to.clone(), waited: STALL }),
                    },
                }
            }
        }
        let answer = match early {
            Some(answer) => answer?,
            None => {
                let _ = send.finish();
                let late = |_| PeerError::TimedOut { peer: to.clone(), waited: ACK_TIMEOUT };
                timeout(ACK_TIMEOUT, &mut reply).await.map_err(late)??
            }
        };
        match answer {
            Reply::Ack { ack } => Ok(ack),
            other => Err(unexpected(to, &other)),
        }
    }
}

async fn connect(
    endpoint: &Endpoint,
    revoked: &Revoked,
    to: &NodeId,
    address: SocketAddr,
) -> Result<Connection, String> {
    // The certificate must name `to`: another server at its address is not taken for it.
    let connecting = endpoint.connect(address, &certificate_name(to)).map_err(|error| error.to_string())?;
    match timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(connection)) if peer_of(&connection).is_none_or(|(_, key)| revoked.contains(key)) => {
            connection.close(REVOKED, b"your key was revoked");
            Err(format!("{address}: its key was revoked"))
        }
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) if speaks_otherwise(&error) => {
            let ours = String::from_utf8_lossy(PROTOCOL);
            Err(format!("{address}: it does not speak {ours}; run the same release on all nodes"))
        }
        Ok(Err(error)) => Err(format!("{address}: {error}")),
        Err(_) => Err(format!("{address}: no answer within {CONNECT_TIMEOUT:?}")),
    }
}

/// Whether the handshake failed because there is no protocol that both ends speak (RFC 7301, `no_application_protocol`).
fn speaks_otherwise(error: &ConnectionError) -> bool {
    let code = TransportErrorCode::crypto(120);
    match error {
        ConnectionError::ConnectionClosed(closed) => closed.error_code == code,
        ConnectionError::TransportError(error) => error.code == code,
        _ => false,
    }
}

/// Ends a connection when its peer's key is revoked, and hears it when the peer ends it because this node's own was.
async fn heed(
    to: NodeId,
    connection: Connection,
    revoked: Arc<Revoked>,
    expelled_by: Arc<std::sync::Mutex<BTreeSet<NodeId>>>,
) {
    let Some((_, key)) = peer_of(&connection) else { return };
    let ended = tokio::select! {
        ended = connection.closed() => ended,
        () = revoked.revoked(key) => return connection.close(REVOKED, b"your key was revoked"),
    };
    if let ConnectionError::ApplicationClosed(closed) = ended
        && closed.error_code == REVOKED
    {
        lock(&expelled_by).insert(to);
    }
}

impl Failure {
    fn now(reason: String) -> Failure {
        Failure { since: Instant::now(), reason, probed: false }
    }
}

impl Way {
    /// The connection is gone. A peer that fell silent is not tried again at once; one that closed in order
    /// may be back.
    fn fell(&mut self, reason: &ConnectionError) {
        self.connection = None;
        if matches!(reason, ConnectionError::TimedOut) {
            self.failed = Some(Failure::now("it fell silent".into()));
        }
    }
}

fn unreachable(peer: &NodeId, reason: impl ToString) -> PeerError {
    PeerError::Unreachable { peer: peer.clone(), reason: reason.to_string() }
}

fn refused(peer: &NodeId, kind: Kind, reason: impl ToString) -> PeerError {
    PeerError::Refused { peer: peer.clone(), kind, reason: reason.to_string() }
}

fn unexpected(peer: &NodeId, reply: &Reply) -> PeerError {
    match reply {
        Reply::Refused { problem, reason } => refused(peer, *problem, reason),
        _ => PeerError::Protocol { peer: peer.clone(), reason: "an answer to another question".into() },
    }
}
