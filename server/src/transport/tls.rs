//! The TLS and QUIC settings of both ends: TLS 1.3 only, both sides show a certificate of the cluster's authority.

use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::crypto::{CryptoError, HmacKey};
use quinn::{ConnectionId, ConnectionIdGenerator};
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;

use super::{IDLE, KEEP_ALIVE, TransportError};
use crate::identity::Identity;

/// The protocol and its format number, agreed on in the handshake.
pub(super) const PROTOCOL: &[u8] = b"shardd/1";
/// Streams that one peer may have open at once.
const MAX_STREAMS: u32 = 256;
/// Bytes under way on one stream, and on all streams of a connection: reads of 4 MiB never wait for credit.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;

pub(super) fn server(
    identity: &Identity,
    transport: quinn::TransportConfig,
) -> Result<quinn::ServerConfig, TransportError> {
    server_of(identity, transport, PROTOCOL)
}

/// One that speaks another protocol, perhaps.
pub(super) fn server_of(
    identity: &Identity,
    transport: quinn::TransportConfig,
    protocol: &[u8],
) -> Result<quinn::ServerConfig, TransportError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(identity)?), provider())
        .build()
        .map_err(|error| TransportError::Tls(error.to_string()))?;
    let mut settings = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(bad)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(identity.cert_resolver());
    // A verified handshake is not trusted again later: a certificate ends, and a key is revoked.
    settings.send_tls13_tickets = 0;
    settings.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    settings.alpn_protocols = vec![protocol.to_vec()];
    let quic =
        QuicServerConfig::try_from(settings).map_err(|error| TransportError::Tls(error.to_string()))?;
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(quic));
    server.transport_config(Arc::new(transport));
    Ok(server)
}

pub(super) fn client(
    identity: &Identity,
    transport: quinn::TransportConfig,
) -> Result<quinn::ClientConfig, TransportError> {
    let mut settings = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(bad)?
        .with_root_certificates(roots(identity)?)
        .with_client_cert_resolver(identity.cert_resolver());
    settings.resumption = rustls::client::Resumption::disabled();
    settings.alpn_protocols = vec![PROTOCOL.to_vec()];
    let quic =
        QuicClientConfig::try_from(settings).map_err(|error| TransportError::Tls(error.to_string()))?;
    let mut client = quinn::ClientConfig::new(Arc::new(quic));
    client.transport_config(Arc::new(transport));
    Ok(client)
}

/// The parts of the socket rather than of a connection. The keys stay the same over restarts: a peer that
/// still writes to a connection of the process before learns at once that it is gone, instead of waiting for
/// the idle timeout.
pub(super) fn endpoint(identity: &Identity, largest: u16) -> quinn::EndpointConfig {
    let secret = identity.private_key();
    let reset = ResetKey(blake3::derive_key("shardd 2026 stateless reset v1", secret.secret_der()));
    let mut settings = quinn::EndpointConfig::new(Arc::new(reset));
    settings.cid_generator(|| Box::new(RandomIds));
    settings.max_udp_payload_size(largest).expect("within what QUIC allows");
    settings
}

/// Names connections at random and takes every name for one of its own: only so is one of the process before answered.
struct RandomIds;

impl ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; 8];
        provider().secure_random.fill(&mut id).expect("the system gives random bytes");
        ConnectionId::new(&id)
    }

    fn cid_len(&self) -> usize {
        8
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Signs what only this node can know of a connection.
struct ResetKey([u8; 32]);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(blake3::keyed_hash(&self.0, data).as_bytes());
    }

    fn signature_len(&self) -> usize {
        blake3::OUT_LEN
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        // In constant time.
        let signature = blake3::Hash::from_slice(signature).map_err(|_| CryptoError)?;
        if blake3::keyed_hash(&self.0, data) == signature { Ok(()) } else { Err(CryptoError) }
    }
}

/// Datagrams are as large as the path takes, up to `largest`.
pub(super) fn discovering(largest: u16) -> quinn::TransportConfig {
    let mut discovery = quinn::MtuDiscoveryConfig::default();
    discovery.upper_bound(largest);
    let mut transport = transport();
    transport.mtu_discovery_config(Some(discovery));
    transport
}

/// All datagrams may be of this size, whatever the path takes.
pub(super) fn fixed(size: u16) -> quinn::TransportConfig {
    let mut transport = transport();
    transport.initial_mtu(size).mtu_discovery_config(None);
    transport
}

fn transport() -> quinn::TransportConfig {
    let mut transport = quinn::TransportConfig::default();
    transport
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(IDLE.try_into().expect("seconds fit")))
        .max_concurrent_bidi_streams(MAX_STREAMS.into())
        .max_concurrent_uni_streams(0u32.into())
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .send_window(u64::from(CONNECTION_WINDOW))
        .datagram_receive_buffer_size(None);
    transport
}

/// Only the cluster's own authority counts.
fn roots(identity: &Identity) -> Result<RootCertStore, TransportError> {
    let mut roots = RootCertStore::empty();
    roots.add(identity.ca().clone()).map_err(bad)?;
    Ok(roots)
}

/// Named explicitly: other crates bring other providers, so there is no default one.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn bad(error: rustls::Error) -> TransportError {
    TransportError::Tls(error.to_string())
}
