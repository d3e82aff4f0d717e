//! The addresses at which a node answers: HTTP for everyone, QUIC for other nodes.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::ServeError;
use super::role::NodeRole;
use crate::config::Config;
use crate::http::HttpListener;
use crate::https;
use crate::identity::{Identity, Revoked, Site};
use crate::transport::{Datagrams, Transport};

/// The file in `<data>/tls` that remembers which keys are revoked.
const REVOKED: &str = "revoked.json";

/// The open addresses of a node.
pub(super) struct Network {
    pub(super) http: HttpListener,
    /// The certificate files of the user's own, which are watched.
    pub(super) files: Option<https::Followed>,
    /// The bound address of HTTP.
    pub(super) bound: SocketAddr,
    /// The address at which others reach HTTP.
    pub(super) site: Site,
    pub(super) transport: Arc<Transport>,
    pub(super) revoked: Arc<Revoked>,
}

impl Network {
    /// Opens the node's addresses. `listener` is bound to HTTP's.
    pub(super) async fn open(
        config: &Config,
        role: &NodeRole,
        listener: TcpListener,
    ) -> Result<Self, ServeError> {
        let bound =
            listener.local_addr().map_err(|source| ServeError::Http { address: config.http, source })?;
        let identity = role.identity();
        let revoked = Arc::new(Revoked::remembered(&config.data.join("tls").join(REVOKED)));
        let datagrams = Datagrams::probe_mtu(config.quic.ip(), identity).await;
        let transport = bind_quic(config, identity, &revoked, datagrams)?;
        // A wildcard is no address to reach; the peers' address is one of this machine.
        let address = match bound.ip().is_unspecified() {
            true => SocketAddr::new(transport.address().ip(), bound.port()),
            false => bound,
        };
        let tls = config.tls.unwrap_or_else(|| role.cluster().is_some_and(|cluster| cluster.tls));
        let (http, files) = open_http(config, identity, listener, tls)?;
        Ok(Self { http, files, bound, site: Site { address, tls }, transport, revoked })
    }

    /// Whether only this machine reaches the node.
    pub(super) fn is_alone(&self) -> bool {
        self.bound.ip().is_loopback()
    }
}

/// Binds the HTTP address.
pub(super) async fn bind_http(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Http { address, source })
}

/// Adds TLS to the HTTP listener, if asked for. The certificate is the node's own, or comes from two files
/// that are watched for changes.
fn open_http(
    config: &Config,
    identity: &Identity,
    listener: TcpListener,
    tls: bool,
) -> Result<(HttpListener, Option<https::Followed>), ServeError> {
    let (resolver, followed) = match &config.tls_files {
        _ if !tls => return Ok((HttpListener { listener, tls: None }, None)),
        None => (identity.cert_resolver(), None),
        Some(files) => {
            let followed = https::Followed::open(files.clone())?;
            (followed.cert_resolver(), Some(followed))
        }
    };
    Ok((HttpListener { listener, tls: Some(https::settings(resolver)?) }, followed))
}

/// Binds the QUIC address. A free port, once found, is kept over restarts, so that the others find the node again.
fn bind_quic(
    config: &Config,
    identity: &Identity,
    revoked: &Arc<Revoked>,
    datagrams: Datagrams,
) -> Result<Arc<Transport>, ServeError> {
    let bind = |address| Transport::bind_with(address, identity, Arc::clone(revoked), datagrams);
    let kept = config.data.join("quic-port");
    let address = config.quic;
    if address.port() != 0 {
        return Ok(bind(address)?);
    }
    let port = std::fs::read_to_string(&kept).ok().and_then(|port| port.trim().parse().ok());
    let again = port.and_then(|port| bind(SocketAddr::new(address.ip(), port)).ok());
    let transport = match again {
        Some(transport) => transport,
        None => bind(address)?,
    };
    // Only a convenience: without it the others learn the new port from the metastore.
    let _ = std::fs::write(&kept, format!("{}\n", transport.address().port()));
    Ok(transport)
}
