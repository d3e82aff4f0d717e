//! Probes at start whether the largest datagrams get through the kernel of this machine. A kernel that cannot
//! send them reports no error: the connection stalls.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quinn::{Connection, ConnectionError, Endpoint, VarInt};
use shardd_certificates::certificate_name;
use tokio::time::timeout;
use tracing::warn;

use super::{LARGEST_DATAGRAM, SAFE_DATAGRAM, tls};
use crate::identity::Identity;

/// Bytes of a probe: hundreds of datagrams, many in one system call.
const BYTES: usize = 1 << 20;
/// Limit for a probe, which takes milliseconds, or longer on a busy machine. After it the connection has
/// stalled.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The datagram size for sockets on `address`: [`LARGEST_DATAGRAM`], or [`SAFE_DATAGRAM`] if the former
/// stalls.
pub(super) async fn probe(address: IpAddr, identity: &Identity) -> u16 {
    if gets_through(LARGEST_DATAGRAM, address, identity).await {
        return LARGEST_DATAGRAM;
    }
    warn!(
        %address, tried = LARGEST_DATAGRAM, used = SAFE_DATAGRAM,
        "large datagrams do not get through the kernel of this machine; sending to nodes takes more of its \
        processors"
    );
    SAFE_DATAGRAM
}

/// Whether datagrams of this size get from one endpoint of this process to another. What fails for another reason than
/// standing still says nothing about their size.
async fn gets_through(size: u16, address: IpAddr, identity: &Identity) -> bool {
    match timeout(TIMEOUT, push(size, address, identity)).await {
        Ok(Some(ConnectionError::TimedOut)) | Err(_) => false,
        Ok(_) => true,
    }
}

/// Pushes bytes from one endpoint to another; returns how the connection was lost, if it was.
async fn push(size: u16, address: IpAddr, identity: &Identity) -> Option<ConnectionError> {
    let socket = || super::socket(SocketAddr::new(address, 0)).ok();
    let (settings, runtime) = (|| tls::endpoint(identity, size), Arc::new(quinn::TokioRuntime));
    let server = tls::server(identity, tls::fixed(size)).ok()?;
    let taker = Endpoint::new(settings(), Some(server), socket()?, runtime.clone()).ok()?;
    let giver = Endpoint::new(settings(), None, socket()?, runtime).ok()?;
    let client = tls::client(identity, tls::fixed(size)).ok()?;
    let to = taker.local_addr().ok()?;
    let connecting = giver.connect_with(client, to, &certificate_name(identity.node())).ok()?;
    let take = async {
        let connection = taker.accept().await?.await.ok()?;
        let (mut send, mut receive) = connection.accept_bi().await.ok()?;
        receive.read_to_end(BYTES).await.ok()?;
        send.finish().ok()?;
        Some(connection)
    };
    let give = async {
        let connection: Connection = connecting.await?;
        let (mut send, mut receive) = connection.open_bi().await?;
        // An error of the stream is one of the connection, which says it below.
        let _ = send.write_all(&vec![0; BYTES]).await;
        let _ = send.finish();
        let _ = receive.read_to_end(0).await;
        Ok::<_, ConnectionError>(connection)
    };
    let (_taken, given) = tokio::join!(take, give);
    let lost = match given {
        Ok(connection) => connection.close_reason(),
        Err(error) => Some(error),
    };
    taker.close(VarInt::from_u32(0), b"tested");
    lost
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::testing::cluster;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn loopback_takes_the_largest_datagrams_and_none_that_the_kernel_cannot_split() {
        let identity = &cluster(&["a"])[0];
        let address = [127, 0, 0, 1].into();
        assert_eq!(probe(address, identity).await, LARGEST_DATAGRAM);
        // Ten of these are more than 64 KiB, which is all that a socket sends at once.
        assert!(!gets_through(65_000, address, identity).await, "then the limit could be higher");
    }
}
