//! How the ranks of a run find each other: rank 0 listens at an address that all know, every other rank tells it where
//! it listens itself, and rank 0 tells everyone everything. Then each rank connects to those below it.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use shardd_store::http::HttpError;
use thiserror::Error;

use super::wire::{Kind, read_greeting, write_greeting};
use super::{TcpCollective, TcpOptions, assemble};
use crate::collective::names;

/// A caller that says nothing must not keep the others waiting.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);
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
    stream: TcpStream,
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
    let peer_error = |source| JoinError::Peer { rank: 0, source };
    loop {
        match call_master(master, rank, world, options, deadline) {
            Ok((listener, to_master, welcome)) => {
                to_master.set_read_timeout(None).map_err(peer_error)?;
                return join_mesh(listener, to_master, &welcome, rank, world, options, deadline);
            }
            Err(Call::Refused(reason)) => {
                return Err(JoinError::Refused { master: master.to_owned(), rank, reason });
            }
            Err(Call::Failed(source)) if Instant::now() + RETRY >= deadline => {
                let waited = options.join_timeout;
                return Err(JoinError::NoMaster { master: master.to_owned(), waited, source });
            }
            Err(Call::Failed(_)) if is_given_up(options) => return Err(JoinError::GivenUp),
            Err(Call::Failed(_)) => std::thread::sleep(RETRY),
        }
    }
}

enum Call {
    Refused(String),
    Failed(io::Error),
}

impl From<io::Error> for Call {
    fn from(error: io::Error) -> Call {
        Call::Failed(error)
    }
}

/// Connects to rank 0, says hello and waits until all have.
fn call_master(
    master: &str,
    rank: u32,
    world: u32,
    options: &TcpOptions,
    deadline: Instant,
) -> Result<(TcpListener, TcpStream, Welcome), Call> {
    let mut stream = connect_any(master, deadline)?;
    // Peers reach this rank by the interface that reaches rank 0.
    let listener = TcpListener::bind((stream.local_addr()?.ip(), 0))?;
    let port = listener.local_addr()?.port();
    let host = host_name(options);
    let hello = Hello { run: options.run.clone(), rank, world, port, host, session: String::new() };
    write_greeting(&mut stream, Kind::Hello, &json(&hello))?;
    stream.set_read_timeout(Some(remaining(deadline)?))?;
    match read_greeting(&mut stream)? {
        (Kind::Welcome, bytes) => {
            let welcome: Welcome = parse(&bytes)?;
            if welcome.addresses.len() + 1 != world as usize || welcome.hosts.len() != world as usize {
                return Err(invalid("rank 0 names another number of ranks").into());
            }
            Ok((listener, stream, welcome))
        }
        (Kind::Refused, bytes) => Err(Call::Refused(String::from_utf8_lossy(&bytes).into_owned())),
        (kind, _) => Err(invalid(format!("rank 0 answered with {kind:?}")).into()),
    }
}

/// Calls the ranks below (but rank 0, already there) and answers those above.
fn join_mesh(
    listener: TcpListener,
    to_master: TcpStream,
    welcome: &Welcome,
    rank: u32,
    world: u32,
    options: &TcpOptions,
    deadline: Instant,
) -> Result<TcpCollective, JoinError> {
    let mut streams: Vec<Option<TcpStream>> = (0..world).map(|_| None).collect();
    streams[0] = Some(to_master);
    let (run, host, session) = (options.run.clone(), host_name(options), welcome.session.clone());
    let hello = Hello { run, rank, world, port: 0, host, session };
    for below in 1..rank {
        let peer_error = |source| JoinError::Peer { rank: below, source };
        let address = welcome.addresses[below as usize - 1];
        let mut stream = connect_any(address, deadline).map_err(peer_error)?;
        write_greeting(&mut stream, Kind::Hello, &json(&hello)).map_err(peer_error)?;
        streams[below as usize] = Some(stream);
    }
    let mut waiting = (world - 1 - rank) as usize;
    while waiting > 0 {
        let accepted = accept(&listener, deadline, options).and_then(|accepted| match accepted {
            Some(caller) => Ok(caller),
            None => Err(ErrorKind::TimedOut.into()),
        });
        let (mut stream, _) = accepted.map_err(|source| {
            if is_given_up(options) {
                return JoinError::GivenUp;
            }
            let missing = (rank + 1..world).find(|&above| streams[above as usize].is_none());
            JoinError::Peer { rank: missing.unwrap_or(rank), source }
        })?;
        let Ok(caller) = read_hello(&mut stream, deadline) else {
            continue; // a stranger
        };
        let place = (rank + 1..world).contains(&caller.rank).then_some(caller.rank as usize);
        if caller.session == welcome.session
            && let Some(place) = place
            && streams[place].is_none()
        {
            streams[place] = Some(stream);
            waiting -= 1;
        }
    }
    assemble(rank as usize, streams, welcome.hosts.clone(), options.timeout)
        .map_err(|source| JoinError::Peer { rank, source })
}

/// Rank 0's listening socket, for callers that choose port 0 and must know the port before the others start.
#[derive(Debug)]
pub struct Rendezvous {
    listener: TcpListener,
    address: String,
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
        while callers.len() + 1 < world as usize {
            let accepted = accept(&self.listener, deadline, options)
                .map_err(|source| JoinError::Listen { master: self.address.clone(), source })?;
            let Some((mut stream, from)) = accepted else {
                if is_given_up(options) {
                    return Err(JoinError::GivenUp);
                }
                let missing = (1..world).filter(|rank| !callers.contains_key(rank)).collect();
                let waited = options.join_timeout;
                return Err(JoinError::Missing { master: self.address, world, missing, waited });
            };
            let Ok(hello) = read_hello(&mut stream, deadline) else {
                continue; // a stranger
            };
            match why_not(&hello, world, options, &callers) {
                // Whether it hears the refusal is its own affair.
                Some(reason) => drop(write_greeting(&mut stream, Kind::Refused, reason.as_bytes())),
                None => {
                    let address = SocketAddr::new(from.ip(), hello.port);
                    callers.insert(hello.rank, Caller { stream, address, host: hello.host });
                }
            }
        }
        let names = std::iter::once(host_name(options));
        let names: Vec<String> = names.chain(callers.values().map(|caller| caller.host.clone())).collect();
        let hosts = numbered(&names);
        let addresses = callers.values().map(|caller| caller.address).collect();
        let welcome = Welcome { session: session(), addresses, hosts };
        let mut streams = vec![None];
        for (rank, Caller { mut stream, .. }) in callers {
            write_greeting(&mut stream, Kind::Welcome, &json(&welcome))
                .map_err(|source| JoinError::Peer { rank, source })?;
            streams.push(Some(stream));
        }
        assemble(0, streams, welcome.hosts, options.timeout)
            .map_err(|source| JoinError::Peer { rank: 0, source })
    }
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
    let earlier = &callers.get(rank)?.stream;
    // One that was restarted takes its own place again (its old connection is closed), another does not.
    is_open(earlier).then(|| format!("rank {rank} is already there: is it started twice?"))
}

fn is_open(stream: &TcpStream) -> bool {
    let peek = || -> io::Result<usize> {
        stream.set_nonblocking(true)?;
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false)?;
        peeked
    };
    match peek() {
        Ok(bytes) => bytes > 0,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

fn read_hello(stream: &mut TcpStream, deadline: Instant) -> io::Result<Hello> {
    stream.set_read_timeout(Some(remaining(deadline)?.min(HELLO_TIMEOUT)))?;
    match read_greeting(stream)? {
        (Kind::Hello, bytes) => parse(&bytes),
        (kind, _) => Err(invalid(format!("{kind:?} instead of a hello"))),
    }
}

fn is_given_up(options: &TcpOptions) -> bool {
    options.given_up.load(Ordering::Relaxed)
}

/// The next caller, or `None` when the time is up, or all is given up.
fn accept(
    listener: &TcpListener,
    deadline: Instant,
    options: &TcpOptions,
) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, from)) => {
                stream.set_nonblocking(false)?;
                return Ok(Some((stream, from)));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if remaining(deadline).is_err() || is_given_up(options) {
                    return Ok(None);
                }
                std::thread::sleep(POLL);
            }
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
}

fn connect_any(address: impl ToSocketAddrs, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, remaining(deadline)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn remaining(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
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

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain structs serialize")
}

fn parse<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|error| invalid(error.to_string()))
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}
