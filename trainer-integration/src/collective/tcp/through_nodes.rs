//! Rendezvous through the nodes: rank 0 chooses an address and publishes it at a node, the other ranks poll for it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use shardd_api::protocol::{Rendezvous as RendezvousAddress, RunId};
use shardd_store::http::{Credentials, HttpClient, HttpError, living_first};

use super::rendezvous::{JoinError, Rendezvous, connect};
use super::{TcpCollective, TcpOptions};

/// How long a node may take for an answer, and rank 0 to take a call.
const ANSWER: Duration = Duration::from_secs(5);
/// How often others ask for rank 0.
const POLL: Duration = Duration::from_millis(100);

/// Connects this process as `rank` of `world` at a place that rank 0 chooses, and the nodes at `servers` tell the others.
///
/// # Errors
/// See [`JoinError`]; nothing waits much longer than `options.join_timeout`.
///
/// # Panics
/// If `rank` is not below `world`.
pub fn connect_through_nodes(
    servers: &[String],
    credentials: &Credentials,
    run: &RunId,
    rank: u32,
    world: u32,
    options: &TcpOptions,
) -> Result<TcpCollective, JoinError> {
    // One that hangs is not asked before one that does not.
    let (mut servers, silent) = living_first(servers, credentials);
    servers.extend(silent);
    let nodes = Nodes { servers: &servers, http: HttpClient::with(ANSWER, credentials), run };
    if rank == 0 { nodes.host(world, options) } else { nodes.join(rank, world, options) }
}

struct Nodes<'a> {
    servers: &'a [String],
    http: HttpClient,
    run: &'a RunId,
}

impl Nodes<'_> {
    fn host(&self, world: u32, options: &TcpOptions) -> Result<TcpCollective, JoinError> {
        let rendezvous = Rendezvous::bind(&SocketAddr::new(self.own_address(), 0).to_string())?;
        let published = RendezvousAddress { address: rendezvous.address().to_owned(), world };
        // Sent to all reachable nodes: without the metadata a node knows only messages to itself.
        self.tell(|http, url| http.put_json(url, &published).map(drop))?;
        let met = rendezvous.host(world, options);
        // No rank waits there any more, after success or failure; if no node is reachable, the next rank 0
        // will replace it.
        let _ = self.tell(|http, url| http.delete(url).map(drop));
        met
    }

    fn join(&self, rank: u32, world: u32, options: &TcpOptions) -> Result<TcpCollective, JoinError> {
        let deadline = Instant::now() + options.join_timeout;
        loop {
            let found = match self.ask(|http, url| http.get_json::<RendezvousAddress>(url)) {
                Err(JoinError::Nodes { source }) if source.status() != Some(404) => {
                    return Err(JoinError::Nodes { source });
                }
                found => found.ok(),
            };
            // A rank 0 that is gone has left its address behind, and another will take its place.
            let found = found.filter(|published| published.world == world && answers(&published.address));
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(published) = found {
                let options = TcpOptions { join_timeout: left.max(POLL), ..options.clone() };
                return connect(&published.address, rank, world, &options);
            }
            if left < POLL {
                return Err(JoinError::NoRendezvous {
                    run: self.run.to_string(),
                    waited: options.join_timeout,
                });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Tells all nodes; one that hears it is enough.
    fn tell(&self, tell: impl Fn(&HttpClient, &str) -> Result<(), HttpError>) -> Result<(), JoinError> {
        let mut outcome = Err(JoinError::NoRendezvous { run: self.run.to_string(), waited: Duration::ZERO });
        for server in self.servers {
            match tell(&self.http, &self.url(server)) {
                Ok(()) => outcome = Ok(()),
                Err(source) if source.is_final() => return Err(JoinError::Nodes { source }),
                Err(source) if outcome.is_err() => outcome = Err(JoinError::Nodes { source }),
                Err(_) => {}
            }
        }
        outcome
    }

    fn url(&self, server: &str) -> String {
        format!("{}/v1/runs/{}/rendezvous", server.trim_end_matches('/'), self.run)
    }

    /// The answer of the first reachable node that knows of a published.
    fn ask<T>(&self, ask: impl Fn(&HttpClient, &str) -> Result<T, HttpError>) -> Result<T, JoinError> {
        let mut last = None;
        for server in self.servers {
            match ask(&self.http, &self.url(server)) {
                Ok(answer) => return Ok(answer),
                // Another node may have it; an answer without one counts for more than missing answers.
                Err(source) if source.status() == Some(404) => last = Some(source),
                Err(_) if last.as_ref().is_some_and(|last: &HttpError| last.status() == Some(404)) => {}
                Err(source) if source.is_final() => return Err(JoinError::Nodes { source }),
                Err(source) => last = Some(source),
            }
        }
        Err(last.map_or_else(
            || JoinError::NoRendezvous { run: self.run.to_string(), waited: Duration::ZERO },
            |source| JoinError::Nodes { source },
        ))
    }

    /// By which others reach this machine: the address it reaches a node from, or else, where that is on this machine itself, the one it
    /// reaches everybody else from.
    fn own_address(&self) -> IpAddr {
        let host = |server: &String| {
            let host = server.split_once("://").map_or(&server[..], |(_, rest)| rest);
            let host = host.split('/').next().unwrap_or_default();
            let with_port =
                if host.rsplit_once(':').is_some() { host.to_owned() } else { format!("{host}:80") };
            with_port.to_socket_addrs().ok()?.next()
        };
        // Of the addresses for documentation; nothing is sent.
        let anybody = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 80));
        let reached = self.servers.iter().filter_map(host).chain([anybody]);
        let own = reached.filter_map(way_to).find(|address| !address.is_loopback());
        own.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }
}

/// The own address on the way to another one.
fn way_to(other: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if other.is_ipv4() { ([0u8; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(other).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn answers(address: &str) -> bool {
    let addresses = address.to_socket_addrs().into_iter().flatten();
    addresses.into_iter().any(|address| TcpStream::connect_timeout(&address, ANSWER).is_ok())
}
