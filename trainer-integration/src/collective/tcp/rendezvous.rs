//! How the ranks of a run find each other: rank 0 listens at an address that all know, every other rank tells it where
//! it listens itself, and rank 0 tells everyone everything. Then each rank connects to those below it.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use shardd_store::http::HttpError;
use thiserror::Error;
use tracing::warn;

use super::callers::{Callers, is_given_up, parse, reason_of, write_json};
use super::connection::{CallError, Connection, invalid};
use super::tls::TlsError;
use super::wire::{Kind, read_greeting, write_greeting};
use super::{TcpCollective, TcpOptions, assemble};
use crate::collective::names;

const RETRY: Duration = Duration::from_millis(50);

/// Why a world of processes did not come together.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum JoinError {
    /// Rank 0's address cannot be used here; choose another.
    #[error("rank 0 cannot listen at {master}")]
    Listen { master: String, source: io::Error },
    /// Nothing answers as rank 0. Start it, or correct the address.
    #[error("no rank 0 at {master} after {waited:?}: start it, or check --master")]
    NoMaster { master: String, waited: Duration, source: io::Error },
    /// Some ranks did not appear. Start them, or allow more time.
    #[error("rank {} of {world} did not appear at {master} within {waited:?}", names(missing))]
    Missing { master: String, world: u32, missing: Vec<u32>, waited: Duration },
    /// The nodes cannot be asked where rank 0 is.
    #[error("no node tells where the ranks meet; give --master HOST:PORT")]
    Nodes { source: HttpError },
    /// No rank 0 announced where it waits. Start it.
    #[error("no rank 0 of run {run} waits for others after {waited:?}: start it")]
    NoRendezvous { run: String, waited: Duration },
    /// Rank 0 does not take this rank in.
    #[error("rank 0 at {master} refused rank {rank}: {reason}")]
    Refused { master: String, rank: u32, reason: String },
    /// A rank and this one do not believe each other. Give all ranks certificates of one authority.
    #[error("rank {rank} at {address} {reason}")]
    Untrusted { rank: u32, address: String, reason: String },
    /// The certificates cannot be used.
    #[error(transparent)]
    Certificates(#[from] TlsError),
    /// The launcher reports that not all ranks will appear.
    #[error("the group has lost a rank before it had met")]
    GivenUp,
    /// The connection to a rank failed half-way.
    #[error("cannot connect to rank {rank}")]
    Peer { rank: u32, source: io::Error },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hello {
    run: String,
    rank: u32,
    world: u32,
    /// Where the caller listens; to be read with the address it calls from.
    port: u16,
    /// The caller's machine.
    host: String,
    /// Empty when calling rank 0, its answer's when calling another.
    session: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Welcome {
    session: String,
    /// Of ranks 1, 2, …
    addresses: Vec<SocketAddr>,
    /// The machine of every rank, see [`Collective::hosts`](crate::collective::Collective::hosts).
    hosts: Vec<u32>,
}

/// One that is let in.
struct Caller {
    connection: Connection,
    address: SocketAddr,
    host: String,
}

/// Connects this process as `rank` of `world`; rank 0 listens at `master`, the others call it there until it answers.
///
/// # Errors
/// See [`JoinError`]; nothing waits longer than `options.join_timeout`.
///
/// # Panics
/// If `rank` is not below `world`.
pub fn connect(
    master: &str,
    rank: u32,
    world: u32,
    options: &TcpOptions,
) -> Result<TcpCollective, JoinError> {
    assert!(rank < world, "rank {rank} outside world of {world}");
    if rank == 0 {
        return Rendezvous::bind(master)?.host(world, options);
    }
    let deadline = Instant::now() + options.join_timeout;
    loop {
        match call_master(master, rank, world, options, deadline) {
            Ok((listener, to_master, welcome)) => {
                return join_mesh(listener, to_master, &welcome, rank, world, options, deadline);
            }
            Err(CallError::Refused(reason)) => {
                return Err(JoinError::Refused { master: master.to_owned(), rank, reason });
            }
            Err(CallError::Untrusted(address, reason)) => return Err(untrusted(0, address, reason)),
            Err(CallError::Failed(source)) if Instant::now() + RETRY >= deadline => {
                let waited = options.join_timeout;
                return Err(JoinError::NoMaster { master: master.to_owned(), waited, source });
            }
            Err(CallError::Failed(_)) if is_given_up(options) => return Err(JoinError::GivenUp),
            Err(CallError::Failed(_)) => std::thread::sleep(RETRY),
        }
    }
}

fn untrusted(rank: u32, address: SocketAddr, reason: String) -> JoinError {
    JoinError::Untrusted { rank, address: address.to_string(), reason }
}

/// Connects to rank 0, says hello and waits until all have.
fn call_master(
    master: &str,
    rank: u32,
    world: u32,
    options: &TcpOptions,
    deadline: Instant,
) -> Result<(TcpListener, Connection, Welcome), CallError> {
    let tls = options.tls.as_ref();
    let mut connection = Connection::call(master, tls, deadline)?;
    // Peers reach this rank by the interface that reaches rank 0.
    let listener = TcpListener::bind((connection.local_addr()?.ip(), 0))?;
    let port = listener.local_addr()?.port();
    let host = host_name(options);
    let hello = Hello { run: options.run.clone(), rank, world, port, host, session: String::new() };
    write_json(&mut connection, Kind::Hello, &hello)?;
    match read_greeting(&mut connection).map_err(|error| connection.explain(error, tls))? {
        (Kind::Welcome, bytes) => {
            let welcome: Welcome = parse(&bytes)?;
            if welcome.addresses.len() + 1 != world as usize || welcome.hosts.len() != world as usize {
                return Err(invalid("rank 0 names another number of ranks").into());
            }
            Ok((listener, connection, welcome))
        }
        (Kind::Refused, bytes) => Err(CallError::Refused(reason_of(&bytes))),
        (kind, _) => Err(invalid(format!("rank 0 answered with {kind:?}")).into()),
    }
}

/// Calls the ranks below (but rank 0, already there) and answers those above.
fn join_mesh(
    listener: TcpListener,
    to_master: Connection,
    welcome: &Welcome,
    rank: u32,
    world: u32,
    options: &TcpOptions,
    deadline: Instant,
) -> Result<TcpCollective, JoinError> {
    let mut connections: Vec<Option<Connection>> = (0..world).map(|_| None).collect();
    connections[0] = Some(to_master);
    let (run, host, session) = (options.run.clone(), host_name(options), welcome.session.clone());
    let hello = Hello { run, rank, world, port: 0, host, session };
    for below in 1..rank {
        let address = welcome.addresses[below as usize - 1];
        let called = Connection::call(address, options.tls.as_ref(), deadline);
        let mut connection = called.map_err(|error| match error {
            CallError::Failed(source) => JoinError::Peer { rank: below, source },
            CallError::Refused(reason) | CallError::Untrusted(_, reason) => untrusted(below, address, reason),
        })?;
        write_json(&mut connection, Kind::Hello, &hello)
            .map_err(|source| JoinError::Peer { rank: below, source })?;
        connections[below as usize] = Some(connection);
    }
    let mut waiting = (world - 1 - rank) as usize;
    let mut calling = Callers::<Hello>::new(&listener, Kind::Hello);
    while waiting > 0 {
        let accepted = calling.next(deadline, options);
        let accepted = accepted.and_then(|accepted| accepted.ok_or_else(|| ErrorKind::TimedOut.into()));
        let (connection, _, caller) = accepted.map_err(|source| {
            if is_given_up(options) {
                return JoinError::GivenUp;
            }
            let missing = (rank + 1..world).find(|&above| connections[above as usize].is_none());
            JoinError::Peer { rank: missing.unwrap_or(rank), source }
        })?;
        let place = (rank + 1..world).contains(&caller.rank).then_some(caller.rank as usize);
        if caller.session == welcome.session
            && let Some(place) = place
            && connections[place].is_none()
        {
            connections[place] = Some(connection);
            waiting -= 1;
        }
    }
    assemble(rank as usize, connections, welcome.hosts.clone(), options.timeout)
        .map_err(|source| JoinError::Peer { rank, source })
}

/// Rank 0's listening socket, for callers that choose port 0 and must know the port before the others start.
#[derive(Debug)]
pub struct Rendezvous {
    pub(super) listener: TcpListener,
    pub(super) address: String,
}

impl Rendezvous {
    /// Listens at `address`.
    ///
    /// # Errors
    /// [`JoinError::Listen`] when the address is taken or not this machine's.
    pub fn bind(address: &str) -> Result<Rendezvous, JoinError> {
        let listen = || -> io::Result<Rendezvous> {
            let listener = TcpListener::bind(address)?;
            let address = listener.local_addr()?.to_string();
            Ok(Rendezvous { listener, address })
        };
        listen().map_err(|source| JoinError::Listen { master: address.to_owned(), source })
    }

    /// Where it listens, for the others.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Becomes rank 0 of `world` once all others have called.
    ///
    /// # Errors
    /// [`JoinError::Missing`] names the ranks that did not.
    pub fn host(self, world: u32, options: &TcpOptions) -> Result<TcpCollective, JoinError> {
        let deadline = Instant::now() + options.join_timeout;
        let mut callers: BTreeMap<u32, Caller> = BTreeMap::new();
        let mut calling = Callers::<Hello>::new(&self.listener, Kind::Hello);
        while callers.len() + 1 < world as usize {
            let caller = calling
                .next(deadline, options)
                .map_err(|source| JoinError::Listen { master: self.address.clone(), source })?;
            let Some((mut connection, from, hello)) = caller else {
                if is_given_up(options) {
                    return Err(JoinError::GivenUp);
                }
                let missing = (1..world).filter(|rank| !callers.contains_key(rank)).collect();
                let waited = options.join_timeout;
                return Err(JoinError::Missing { master: self.address, world, missing, waited });
            };
            match why_not(&hello, world, options, &callers) {
                // Whether it hears the refusal is its own affair.
                Some(reason) => {
                    drop(write_greeting(&mut connection, Kind::Refused, reason.as_bytes()));
                }
                None => {
                    let address = SocketAddr::new(from.ip(), hello.port);
                    callers.insert(hello.rank, Caller { connection, address, host: hello.host });
                }
            }
        }
        let names = std::iter::once(host_name(options));
        let names: Vec<String> = names.chain(callers.values().map(|caller| caller.host.clone())).collect();
        let hosts = numbered(&names);
        let addresses: Vec<SocketAddr> = callers.values().map(|caller| caller.address).collect();
        if options.tls.is_none() && can_be_overheard(&addresses, &hosts) {
            warn!(
                master = self.address,
                "gradients travel between machines in plaintext, and every program that reaches this address can be a \
                 rank; give all ranks --tls-cert and --tls-key (SHARDD_TLS_CERT and SHARDD_TLS_KEY), with certificates \
                 of `shardctl certs issue`"
            );
        }
        let welcome = Welcome { session: session(), addresses, hosts };
        let mut connections = vec![None];
        for (rank, Caller { mut connection, .. }) in callers {
            write_json(&mut connection, Kind::Welcome, &welcome)
                .map_err(|source| JoinError::Peer { rank, source })?;
            connections.push(Some(connection));
        }
        assemble(0, connections, welcome.hosts, options.timeout)
            .map_err(|source| JoinError::Peer { rank: 0, source })
    }
}

/// Whether what ranks say leaves the machine.
fn can_be_overheard(addresses: &[SocketAddr], hosts: &[u32]) -> bool {
    hosts.iter().any(|host| *host != hosts[0]) && addresses.iter().any(|address| !address.ip().is_loopback())
}

fn why_not(
    hello: &Hello,
    world: u32,
    options: &TcpOptions,
    callers: &BTreeMap<u32, Caller>,
) -> Option<String> {
    let Hello { run, rank, .. } = hello;
    if *run != options.run {
        return Some(format!("it trains run {:?}, not {run:?}", options.run));
    }
    if hello.world != world {
        return Some(format!("its world has {world} ranks, not {}", hello.world));
    }
    if *rank == 0 || *rank >= world {
        return Some(format!("a world of {world} has no further rank {rank}"));
    }
    let earlier = &callers.get(rank)?.connection;
    // One that was restarted takes its own place again (its old connection is closed), another does not.
    earlier.is_open().then(|| format!("rank {rank} is already there: is it started twice?"))
}

/// This machine's id until it is started again; containers on it have the same. Where the system has no such
/// name, every rank is taken for a machine of its own, which costs speed alone.
fn host_name(options: &TcpOptions) -> String {
    let of_system = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    options.host.clone().or_else(of_system).map_or_else(session, |name| name.trim().to_owned())
}

/// Equal names get equal numbers, from 0 in the order in which they first appear.
fn numbered(names: &[String]) -> Vec<u32> {
    let first = |name: &String| names.iter().position(|other| other == name).expect("it is in there");
    let firsts: Vec<usize> = names.iter().map(first).collect();
    let number = |at: &usize| (0..*at).filter(|&before| firsts[before] == before).count() as u32;
    firsts.iter().map(number).collect()
}

/// A name that no earlier world at this address had.
fn session() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", std::process::id(), now.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_on_other_machines_can_be_overheard() {
        let at = |address: &str| -> SocketAddr { address.parse().expect("an address") };
        let (here, there) = (at("127.0.0.1:1"), at("10.77.0.2:1"));
        assert!(can_be_overheard(&[here, there], &[0, 0, 1]));
        assert!(!can_be_overheard(&[there, there], &[0, 0, 0]), "they are on this machine");
        assert!(!can_be_overheard(&[here], &[0, 1]), "containers, or a forwarded port");
        assert!(!can_be_overheard(&[], &[0]));
    }
}
