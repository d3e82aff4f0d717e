//! Answering other nodes: a task per connection and one per stream, all stopped and waited for by [`Transport::serve`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, Incoming, RecvStream, SendStream};
use shardd_api::node::NodeId;
use shardd_api::problem::Kind;
use shardd_certificates::{Host, holder_of};
use shardd_engine::peers::{FetchRequest, PeerError, SendHeader};
use shardfmt::digest::Digest;
use shardfmt::grain::GrainKey;
use tokio::io::BufReader;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, debug_span, warn};

use super::frame::{self, FrameError};
use super::{
    ANSWER_PRIORITY, GRAINS_IN_FLIGHT, READ_BUFFER, REVOKED, Reply, Request, Services, Transport,
    metastore_wire,
};
use crate::identity::Revoked;

/// How long a peer may take for the handshake, and to send its request.
const OPENING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a peer that asked may take nothing of the answer.
const STALL: Duration = Duration::from_secs(30);
/// Connections at once; more are refused.
const MAX_CONNECTIONS: usize = 8192;

impl Transport {
    /// Answers other nodes until `stop`; then ends pending answers and waits for them.
    pub async fn serve(self: Arc<Self>, services: Services, stop: CancellationToken) {
        let services = Arc::new(services);
        let tasks = TaskTracker::new();
        loop {
            let incoming = tokio::select! {
                () = stop.cancelled() => break,
                incoming = self.endpoint.accept() => incoming,
            };
            let Some(incoming) = incoming else { break };
            if self.endpoint.open_connections() > MAX_CONNECTIONS {
                incoming.refuse();
                continue;
            }
            let (services, stop, streams) = (Arc::clone(&services), stop.clone(), tasks.clone());
            let (revoked, answering) = (Arc::clone(&self.revoked), Arc::clone(&self.answering));
            tasks.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = connection(incoming, services, &revoked, &answering, &streams, &stop) => {}
                }
            });
        }
        tasks.close();
        tasks.wait().await;
    }
}

/// Takes the streams of one connection until it ends.
async fn connection(
    incoming: Incoming,
    services: Arc<Services>,
    revoked: &Revoked,
    answering: &Arc<watch::Sender<usize>>,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) {
    let address = incoming.remote_address();
    let connection = match timeout(OPENING_TIMEOUT, incoming).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return warn!(%address, %error, "connection refused"),
        Err(_) => return warn!(%address, "connection refused: no handshake in time"),
    };
    let Some((peer, key)) = peer_of(&connection) else {
        warn!(%address, "connection refused: its certificate names no node");
        return connection.close(1u32.into(), b"your certificate names no node");
    };
    debug!(%peer, %address, "connected");
    // The number of streams, and so of tasks, is bounded by the transport's settings.
    let streams = async {
        while let Ok((send, receive)) = connection.accept_bi().await {
            let (peer, services, stop) = (peer.clone(), Arc::clone(&services), stop.clone());
            let answering = Arc::clone(answering);
            tasks.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    answered = answer(&peer, key, &services, &answering, send, receive) => if let Err(error) = answered {
                        debug!(%peer, %error, "request not answered");
                    }
                }
            });
        }
    };
    tokio::select! {
        biased;
        () = revoked.revoked(key) => {
            warn!(%peer, %address, "connection closed: its key was revoked");
            // All its streams end with it.
            connection.close(REVOKED, b"your key was revoked");
        }
        () = streams => {}
    }
    debug!(%peer, %address, "disconnected");
}

/// The name in the certificate that the handshake has verified, and the digest of its key.
pub(super) fn peer_of(connection: &Connection) -> Option<(NodeId, Digest)> {
    let chain =
        connection.peer_identity()?.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>().ok()?;
    holder_of(chain.first()?)
}

async fn answer(
    peer: &NodeId,
    key: Digest,
    services: &Services,
    answering: &watch::Sender<usize>,
    mut send: SendStream,
    receive: RecvStream,
) -> Result<(), FrameError> {
    let mut receive = BufReader::with_capacity(READ_BUFFER, receive);
    let opening = async {
        let request = frame::read_head(&mut receive, frame::MAX_HEAD).await?;
        match request {
            Request::Fetch { count, .. } => {
                let keys = frame::read_keys(&mut receive, count).await?;
                Ok((request, keys, Bytes::new()))
            }
            Request::Meta { body, .. } => {
                let body = frame::read_bytes(&mut receive, body, frame::MAX_BODY, "a value").await?;
                Ok((request, vec![], body))
            }
            Request::Send { .. } | Request::Certify { .. } | Request::Look { .. } => {
                Ok((request, vec![], Bytes::new()))
            }
        }
    };
    let (request, keys, body) = match timeout(OPENING_TIMEOUT, opening).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return refuse(send, error).await,
        Err(_) => return refuse(send, FrameError::Cut("a request: nothing more came")).await,
    };
    match request {
        Request::Fetch { run, version, epoch, generation, effort, traceparent, .. } => {
            let span = debug_span!("answer_peer", %peer, %run, grains = keys.len());
            if let Some(asking) = traceparent {
                shardd_telemetry::continue_trace(&span, &asking);
            }
            let request = FetchRequest { run, version, epoch, generation, keys: keys.clone(), effort };
            let _ = send.set_priority(ANSWER_PRIORITY);
            let grains = services.peers.fetch(peer, request).instrument(span).await;
            let _answering = Answering::begin(answering);
            write(&mut send, &mut [frame::head(&Reply::Grains)]).await?;
            for (key, bytes) in keys.iter().zip(grains) {
                let Some(bytes) = bytes else { continue };
                write(&mut send, &mut [frame::grain_prefix(key, &bytes), bytes]).await?;
            }
            let _ = send.finish();
            // Written bytes are on their way until they arrive.
            let _ = timeout(STALL, send.stopped()).await;
        }
        Request::Send { header } => {
            let (taken, read) = take(peer, services, header, &mut receive).await;
            let reply = match (taken, read) {
                (_, Err(error)) => return refuse(send, error).await,
                (Ok(ack), Ok(())) => Reply::Ack { ack },
                (Err(error), Ok(())) => {
                    Reply::Refused { problem: Kind::from(&error), reason: error.to_string() }
                }
            };
            write(&mut send, &mut [frame::head(&reply)]).await?;
        }
        Request::Certify { csr, hosts } => {
            let reply = certify(peer, key, services, &csr, &hosts).await;
            write(&mut send, &mut [frame::head(&reply)]).await?;
        }
        Request::Look { look } => {
            let Some(looks) = &services.looks else {
                let reason = "this node does not say how it is".to_owned();
                let problem = Kind::Unavailable;
                return write(&mut send, &mut [frame::head(&Reply::Refused { problem, reason })]).await;
            };
            let body = looks.answer(&look);
            let length = body.len().try_into().unwrap_or(u32::MAX);
            write(&mut send, &mut [frame::head(&Reply::Seen { body: length }), body]).await?;
        }
        Request::Meta { request, .. } => {
            let Some(metastore) = &services.metastore else {
                let reason = "this node does not keep the metadata".to_owned();
                let problem = Kind::Misdirected;
                return write(&mut send, &mut [frame::head(&Reply::Refused { problem, reason })]).await;
            };
            let (result, body) = tokio::select! {
                // The asker has gone: it no longer waits for changes.
                _ = send.stopped() => return Ok(()),
                answer = metastore_wire::answer(metastore.as_ref(), request, body) => answer,
            };
            let length = body.len().try_into().unwrap_or(u32::MAX);
            write(&mut send, &mut [frame::head(&Reply::Meta { result, body: length }), body]).await?;
        }
    }
    let _ = send.finish();
    Ok(())
}

/// One answer with grains, while it is under way.
struct Answering<'a>(&'a watch::Sender<usize>);

impl<'a> Answering<'a> {
    fn begin(answers: &'a watch::Sender<usize>) -> Self {
        answers.send_modify(|count| *count += 1);
        Self(answers)
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The next certificate of a peer, or why it gets none.
async fn certify(peer: &NodeId, key: Digest, services: &Services, csr: &str, hosts: &[Host]) -> Reply {
    let Some(issuer) = &services.issuer else {
        let reason = "this node is not the first one, which signs".to_owned();
        return Reply::Refused { problem: Kind::Misdirected, reason };
    };
    match issuer.renew(peer, key, csr, hosts).await {
        Ok(certificate) => Reply::Certified { certificate },
        Err(error) => Reply::Refused { problem: Kind::from(&error), reason: error.to_string() },
    }
}

/// Hands the grains on the stream to the service as it takes them; ends when the service has answered.
async fn take(
    peer: &NodeId,
    services: &Services,
    header: SendHeader,
    receive: &mut BufReader<RecvStream>,
) -> (Result<shardd_engine::peers::Ack, PeerError>, Result<(), FrameError>) {
    let (sender, grains) = mpsc::channel(GRAINS_IN_FLIGHT);
    let mut taking = services.peers.receive(peer, header, grains);
    let mut reading = std::pin::pin!(read_all(receive, sender));
    tokio::select! {
        taken = &mut taking => (taken, Ok(())),
        read = &mut reading => (taking.await, read),
    }
}

async fn read_all(
    receive: &mut BufReader<RecvStream>,
    sender: mpsc::Sender<(GrainKey, Bytes)>,
) -> Result<(), FrameError> {
    while let Some(grain) = frame::read_grain(receive).await? {
        if sender.send(grain).await.is_err() {
            // The service takes no more; it answers why.
            return Ok(());
        }
    }
    Ok(())
}

/// Tells the peer why its request is not answered, and returns the reason.
async fn refuse(mut send: SendStream, error: FrameError) -> Result<(), FrameError> {
    let (problem, reason) = (Kind::Malformed, error.to_string());
    write(&mut send, &mut [frame::head(&Reply::Refused { problem, reason })]).await?;
    let _ = send.finish();
    Err(error)
}

async fn write(send: &mut SendStream, chunks: &mut [Bytes]) -> Result<(), FrameError> {
    match timeout(STALL, send.write_all_chunks(chunks)).await {
        Ok(written) => written.map_err(|error| FrameError::Broken(error.into())),
        Err(_) => Err(FrameError::Broken(std::io::ErrorKind::TimedOut.into())),
    }
}
