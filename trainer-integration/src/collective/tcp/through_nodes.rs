//! Rendezvous through the nodes: rank 0 chooses an address and publishes it at the nodes, the other ranks poll for it. So do
//! launchers, before they start ranks. Rank 0 repeats its announcement while it waits, for nodes that have restarted since,
//! and for a metastore that was away.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use shardd_api::protocol::{Rendezvous as RendezvousAddress, RunId};
use shardd_store::http::{Credentials, HttpClient, HttpError, living_first};

use super::callers::is_given_up;
use super::connection::CallError;
use super::machines::{Machine, MeetError, call_once, host};
use super::rendezvous::{JoinError, Rendezvous, connect};
use super::{TcpCollective, TcpOptions};

/// How long a node may take for an answer, and rank 0 to take a call.
const ANSWER: Duration = Duration::from_secs(5);
/// How often rank 0 repeats where it waits.
const REPEAT: Duration = Duration::from_secs(2);
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
    let nodes = Nodes::new(servers, credentials, run.clone());
    if rank == 0 {
        return nodes.announce(world, |rendezvous| rendezvous.host(world, options))?;
    }
    let deadline = Instant::now() + options.join_timeout;
    let address = nodes.find(world, deadline, options)?;
    let left = deadline.saturating_duration_since(Instant::now());
    connect(&address, rank, world, &TcpOptions { join_timeout: left.max(POLL), ..options.clone() })
}

/// As [`meet`](super::meet), at a place that machine 0 chooses, and the nodes at `servers` tell the others.
///
/// # Errors
/// See [`MeetError`]; nothing waits much longer than `options.join_timeout`.
pub fn meet_through_nodes(
    servers: &[String],
    credentials: &Credentials,
    run: &RunId,
    machine: Machine,
    options: &TcpOptions,
) -> Result<Vec<u32>, MeetError> {
    let nodes = Nodes::new(servers, credentials, of_launchers(run));
    let failed = |error| match error {
        JoinError::GivenUp => MeetError::GivenUp,
        JoinError::NoRendezvous { waited, .. } => MeetError::Unannounced { run: run.to_string(), waited },
        other => MeetError::Nodes(other),
    };
    if machine.number == 0 {
        let met = nodes.announce(machine.machines, |rendezvous| host(rendezvous, machine, options));
        return met.map_err(failed)?;
    }
    let deadline = Instant::now() + options.join_timeout;
    loop {
        let master = nodes.find(machine.machines, deadline, options).map_err(failed)?;
        match call_once(&master, machine, options, deadline) {
            Ok(ranks) => return Ok(ranks),
            Err(CallError::Refused(reason)) => {
                return Err(MeetError::Refused { master, machine: machine.number, reason });
            }
            Err(CallError::Untrusted(address, reason)) => {
                return Err(MeetError::Untrusted { address, reason });
            }
            Err(CallError::Failed(_)) if Instant::now() < deadline => std::thread::sleep(POLL),
            Err(CallError::Failed(source)) => {
                return Err(MeetError::NoFirst { master, waited: options.join_timeout, source });
            }
        }
    }
}

/// The name under which launchers meet, beside that of their ranks.
fn of_launchers(run: &RunId) -> RunId {
    let digest = blake3::hash(run.as_str().as_bytes()).to_hex();
    format!("launchers-{}", &digest[..32]).parse().expect("letters, digits and a dash")
}

#[derive(Clone)]
struct Nodes {
    servers: Vec<String>,
    http: HttpClient,
    run: RunId,
}

impl Nodes {
    fn new(servers: &[String], credentials: &Credentials, run: RunId) -> Nodes {
        // One that hangs is not asked before one that does not.
        let (mut servers, silent) = living_first(servers, credentials);
        servers.extend(silent);
        Nodes { servers, http: HttpClient::with(ANSWER, credentials), run }
    }

    /// Listens, and lets the nodes tell others where, until `host` is done.
    fn announce<T>(&self, world: u32, host: impl FnOnce(Rendezvous) -> T) -> Result<T, JoinError> {
        let rendezvous = Rendezvous::bind(&SocketAddr::new(self.own_address(), 0).to_string())?;
        let published = RendezvousAddress { address: rendezvous.address().to_owned(), world };
        // Sent to all reachable nodes: without the metadata a node knows only messages to itself.
        self.tell(|http, url| http.put_json(url, &published).map(drop))?;
        let (met, is_met) = sync_channel::<()>(1);
        let (removed, is_removed) = sync_channel::<()>(1);
        let nodes = self.clone();
        // A node that hangs delays the first step by the time of one answer at most.
        let repeat = move || nodes.repeat(&published, &is_met, removed);
        let repeats = std::thread::Builder::new().name("announce".to_owned()).spawn(repeat);
        repeats.map_err(|source| JoinError::Listen { master: rendezvous.address().to_owned(), source })?;
        let outcome = host(rendezvous);
        drop(met);
        let _ = is_removed.recv_timeout(ANSWER);
        Ok(outcome)
    }

    /// Repeats an announcement until the other end of `is_met` is dropped, and removes it then.
    fn repeat(&self, published: &RendezvousAddress, is_met: &Receiver<()>, _removed: SyncSender<()>) {
        while is_met.recv_timeout(REPEAT) == Err(RecvTimeoutError::Timeout) {
            // A node that does not answer now may do so the next time.
            let _ = self.tell(|http, url| http.put_json(url, published).map(drop));
        }
        // No other waits there any more, after success or failure; if no node is reachable, the next who listens
        // will replace it. One that has replaced it already keeps its own.
        let address = published.address.replace('[', "%5B").replace(']', "%5D");
        let _ = self.tell(|http, url| http.delete(&format!("{url}?address={address}")).map(drop));
    }

    /// Where the first of `world` listens.
    fn find(&self, world: u32, deadline: Instant, options: &TcpOptions) -> Result<String, JoinError> {
        loop {
            let found = match self.ask(|http, url| http.get_json::<RendezvousAddress>(url)) {
                Err(JoinError::Nodes { source }) if source.status() != Some(404) => {
                    return Err(JoinError::Nodes { source });
                }
                found => found.ok(),
            };
            // One that is gone has left its address behind, and another will take its place.
            let found = found.filter(|published| published.world == world && answers(&published.address));
            if let Some(published) = found {
                return Ok(published.address);
            }
            if is_given_up(options) {
                return Err(JoinError::GivenUp);
            }
            if deadline.saturating_duration_since(Instant::now()) < POLL {
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
        for server in &self.servers {
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
        for server in &self.servers {
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A node that answers each request with 204: the requests, and their bodies.
    fn node() -> (String, Receiver<(String, String)>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (say, said) = sync_channel(64);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut lines = BufReader::new(stream.expect("a caller"));
                let (mut head, mut length) = (String::new(), 0);
                if lines.read_line(&mut head).unwrap_or(0) == 0 {
                    continue;
                }
                loop {
                    let mut line = String::new();
                    lines.read_line(&mut line).expect("text");
                    if let Some(bytes) = line.to_lowercase().strip_prefix("content-length:") {
                        length = bytes.trim().parse().expect("a number");
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                lines.read_exact(&mut body).expect("a body");
                let answer = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
                lines.get_mut().write_all(answer).expect("it listens");
                if say.send((head, String::from_utf8(body).expect("text"))).is_err() {
                    return;
                }
            }
        });
        (url, said)
    }

    #[test]
    fn rank_0_repeats_where_it_waits_and_removes_its_own_address_only() {
        let (url, said) = node();
        let nodes = Nodes {
            servers: vec![url],
            http: HttpClient::with(ANSWER, &Credentials::default()),
            run: "r".parse().expect("a good name"),
        };
        let next = |method: &str| loop {
            let (head, body) = said.recv_timeout(Duration::from_secs(20)).expect("a request");
            if head.starts_with(method) {
                return (head, body);
            }
        };
        let host = |rendezvous: Rendezvous| {
            let first = next("PUT");
            assert_eq!(next("PUT"), first, "a node that has restarted hears it again");
            assert!(first.1.contains(rendezvous.address()), "{first:?}");
            rendezvous.address().to_owned()
        };
        let address = nodes.announce(2, host).expect("the node answers");
        let (removal, _) = next("DELETE");
        assert!(removal.contains(&format!("/v1/runs/r/rendezvous?address={address} ")), "{removal}");
    }
}
