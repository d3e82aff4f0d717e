//! A stream on which ranks greet each other, before it is put to work: in plaintext, or with the certificates of both
//! ends verified. It blocks, until a deadline that no call passes.

use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::session::Session;
use super::tls::Tls;
use super::wire::{Kind, MAGIC, write_greeting};

/// The type of the first record of TLS, a handshake (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;
/// How long the end of a connection that is refused may take, so that its caller hears the reason.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes that are thrown away for that.
const MOST_THROWN_AWAY: usize = 1 << 20;

const NEEDS_CERTIFICATE: &str = "its ranks show certificates, and this one shows none: give --tls-cert and \
    --tls-key (SHARDD_TLS_CERT and SHARDD_TLS_KEY)";
const ANSWERS_IN_PLAINTEXT: &str = "talks in plaintext, and this rank shows a certificate: give --tls-cert and \
    --tls-key to all ranks, or to none";
const IS_PLAINTEXT: &str = "its ranks talk in plaintext, and this one shows a certificate: give --tls-cert and \
    --tls-key to all ranks, or to none";

/// Why a call came to nothing.
#[derive(Debug)]
pub(super) enum CallError {
    /// No answer, or not all of it: another call may succeed.
    Failed(io::Error),
    /// The other end gave a reason.
    Refused(String),
    /// The other end at this address does not prove that it is a rank, or does not believe that this one is.
    Untrusted(SocketAddr, String),
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> CallError {
        CallError::Failed(error)
    }
}

/// Why a caller is not let in; a stranger that wants nothing of ranks is not worth a word.
#[derive(Debug)]
pub(super) enum Stranger {
    Silent,
    Refused(String),
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    session: Option<Box<Session>>,
    deadline: Instant,
}

impl Connection {
    /// Calls the rank at one of the addresses.
    pub(super) fn call(
        address: impl ToSocketAddrs,
        tls: Option<&Tls>,
        deadline: Instant,
    ) -> Result<Connection, CallError> {
        let stream = connect_any(address, deadline)?;
        let address = stream.peer_addr()?;
        let mut connection = Connection { stream, session: None, deadline };
        let Some(tls) = tls else { return Ok(connection) };
        let broken = |error: rustls::Error| CallError::Untrusted(address, tls.explain(&error));
        let mut session = Box::new(Session::client(tls).map_err(broken)?);
        // One that does not speak TLS answers in plaintext. Anything could be in there: it is not read.
        let mut plaintext = false;
        let shaken = session.shake_hands(&mut connection, |connection| {
            plaintext = connection.peek()? == MAGIC[0];
            if plaintext { Err(ErrorKind::InvalidData.into()) } else { Ok(()) }
        });
        match shaken {
            Err(_) if plaintext => Err(CallError::Untrusted(address, ANSWERS_IN_PLAINTEXT.to_owned())),
            Err(error) => Err(connection.explain(error, Some(tls))),
            Ok(()) => {
                connection.session = Some(session);
                Ok(connection)
            }
        }
    }

    /// Answers a caller, within the deadline.
    pub(super) fn answer(
        stream: TcpStream,
        tls: Option<&Tls>,
        deadline: Instant,
    ) -> Result<Connection, Stranger> {
        let mut connection = Connection { stream, session: None, deadline };
        let first = connection.peek().map_err(|_| Stranger::Silent)?;
        match (tls, first) {
            (None, HANDSHAKE) => Err(connection.turn_away("it speaks TLS", IS_PLAINTEXT)),
            (None, _) => Ok(connection),
            (Some(_), first) if first == MAGIC[0] => {
                Err(connection.turn_away("it shows no certificate", NEEDS_CERTIFICATE))
            }
            (Some(_), first) if first != HANDSHAKE => Err(Stranger::Silent),
            (Some(tls), _) => {
                let broken = |error: rustls::Error| Stranger::Refused(error.to_string());
                let mut session = Box::new(Session::server(tls).map_err(broken)?);
                if let Err(error) = session.shake_hands(&mut connection, |_| Ok(())) {
                    connection.linger();
                    return Err(match rustls_error(&error) {
                        Some(error) => Stranger::Refused(tls.explain(error)),
                        None => Stranger::Silent,
                    });
                }
                connection.session = Some(session);
                Ok(connection)
            }
        }
    }

    /// The failure of a greeting: of the certificates, if they are at fault.
    pub(super) fn explain(&self, error: io::Error, tls: Option<&Tls>) -> CallError {
        match (rustls_error(&error), tls, self.stream.peer_addr()) {
            (Some(fault), Some(tls), Ok(address)) => CallError::Untrusted(address, tls.explain(fault)),
            _ => CallError::Failed(error),
        }
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    pub(super) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// The stream and, if it is not in plaintext, its keys.
    pub(super) fn into_parts(self) -> (TcpStream, Option<Box<Session>>) {
        (self.stream, self.session)
    }

    /// Whether the other end has not hung up; one that waits for an answer has sent nothing since.
    pub(super) fn is_open(&self) -> bool {
        let peek = || -> io::Result<usize> {
            self.stream.set_nonblocking(true)?;
            let peeked = self.stream.peek(&mut [0]);
            self.stream.set_nonblocking(false)?;
            peeked
        };
        match peek() {
            Ok(bytes) => bytes > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }

    /// The first byte of what the other end says next.
    fn peek(&self) -> io::Result<u8> {
        let mut first = [0];
        self.stream.set_read_timeout(Some(remaining(self.deadline)?))?;
        match self.stream.peek(&mut first)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(first[0]),
        }
    }

    /// Refuses a caller in plaintext, which both kinds of callers read.
    fn turn_away(mut self, who: &str, reason: &str) -> Stranger {
        // Whether it hears the refusal is its own affair.
        let _ = write_greeting(&mut self, Kind::Refused, reason.as_bytes());
        self.linger();
        Stranger::Refused(who.to_owned())
    }

    /// Lets the caller read the last bytes sent: a socket that is closed over unread bytes loses them.
    fn linger(&mut self) {
        self.deadline = self.deadline.min(Instant::now() + LINGER);
        if self.stream.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let (mut bytes, mut thrown_away) = ([0; 4096], 0);
        while thrown_away < MOST_THROWN_AWAY
            && let Ok(more @ 1..) = self.read(&mut bytes)
        {
            thrown_away += more;
        }
    }
}

impl Read for Connection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut stream = Until { stream: &self.stream, deadline: self.deadline };
        match &mut self.session {
            Some(session) => session.read(&mut stream, &mut [IoSliceMut::new(into)]),
            None => stream.read(into),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stream = Until { stream: &self.stream, deadline: self.deadline };
        match &mut self.session {
            Some(session) => session.write(&mut stream, bytes, &[]),
            None => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut stream = Until { stream: &self.stream, deadline: self.deadline };
        match &mut self.session {
            Some(session) => session.flush(&mut stream),
            None => stream.flush(),
        }
    }
}

/// A stream whose calls together end by the deadline, however slowly bytes trickle.
struct Until<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(remaining(self.deadline)?))?;
        self.stream.read(into)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(remaining(self.deadline)?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
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

/// The time until a deadline; an error when it has passed.
pub(super) fn remaining(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

pub(super) fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

fn rustls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}
