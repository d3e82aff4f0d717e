//! The callers at a listening socket. Strangers are sent away here.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::TcpOptions;
use super::connection::{Connection, Stranger, invalid, remaining};
use super::wire::{Kind, read_greeting, write_greeting};

/// How long a caller may take to introduce itself.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);
/// How many callers are answered at once. Others wait until one of them is done, or its time is up.
const MOST_AT_ONCE: usize = 256;

/// How many characters of a refusal are printed.
const MOST_OF_REASON: usize = 1024;

/// A caller, where it calls from, and its greeting.
pub(super) type Caller<T> = (Connection, SocketAddr, T);

/// The callers at a listening socket whose greeting is of one kind. Each is answered in a thread of its own, so that one
/// that says nothing keeps no others waiting.
pub(super) struct Callers<'a, T> {
    listener: &'a TcpListener,
    kind: Kind,
    answered: Receiver<Option<Caller<T>>>,
    tell: SyncSender<Option<Caller<T>>>,
    in_work: usize,
}

impl<'a, T: for<'de> Deserialize<'de> + Send + 'static> Callers<'a, T> {
    pub(super) fn new(listener: &'a TcpListener, kind: Kind) -> Self {
        let (tell, answered) = sync_channel(MOST_AT_ONCE);
        Callers { listener, kind, answered, tell, in_work: 0 }
    }

    /// The next one, or `None` when the time is up, or all is given up.
    pub(super) fn next(&mut self, deadline: Instant, options: &TcpOptions) -> io::Result<Option<Caller<T>>> {
        self.listener.set_nonblocking(true)?;
        while remaining(deadline).is_ok() && !is_given_up(options) {
            if self.in_work < MOST_AT_ONCE
                && let Some((stream, from)) = accept(self.listener)?
            {
                self.answer(stream, from, deadline, options)?;
                continue;
            }
            if let Ok(done) = self.answered.recv_timeout(POLL) {
                self.in_work -= 1;
                if let Some((mut connection, from, greeting)) = done {
                    connection.set_deadline(deadline);
                    return Ok(Some((connection, from, greeting)));
                }
            }
        }
        Ok(None)
    }

    /// In a thread that ends within [`HELLO_TIMEOUT`].
    fn answer(
        &mut self,
        stream: TcpStream,
        from: SocketAddr,
        deadline: Instant,
        options: &TcpOptions,
    ) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        let (kind, tell, tls) = (self.kind, self.tell.clone(), options.tls.clone());
        let patience = deadline.min(Instant::now() + HELLO_TIMEOUT);
        thread::Builder::new().name("caller".to_owned()).spawn(move || {
            let caller = match Connection::answer(stream, tls.as_ref(), patience) {
                Ok(mut connection) => {
                    read_json(&mut connection, kind).ok().map(|greeting| (connection, from, greeting))
                }
                Err(Stranger::Silent) => None,
                Err(Stranger::Refused(reason)) => {
                    warn!(%from, "a caller is no rank of this group: it {reason}");
                    None
                }
            };
            // The group may have met without it.
            let _ = tell.send(caller);
        })?;
        self.in_work += 1;
        Ok(())
    }
}

pub(super) fn is_given_up(options: &TcpOptions) -> bool {
    options.given_up.load(Ordering::Relaxed)
}

/// Writes a greeting.
pub(super) fn write_json(to: &mut Connection, kind: Kind, value: &impl Serialize) -> io::Result<()> {
    write_greeting(to, kind, &serde_json::to_vec(value).expect("plain structs serialize"))
}

/// Reads a greeting of this kind.
fn read_json<T: for<'de> Deserialize<'de>>(from: &mut Connection, kind: Kind) -> io::Result<T> {
    match read_greeting(from)? {
        (found, bytes) if found == kind => parse(&bytes),
        (found, _) => Err(invalid(format!("{found:?} instead of {kind:?}"))),
    }
}

pub(super) fn parse<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|error| invalid(error.to_string()))
}

/// A caller that waits to be let in, if there is one.
fn accept(listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    match listener.accept() {
        Ok(caller) => Ok(Some(caller)),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        },
    }
}

/// The reason of a refusal as it can be printed: without control characters, and not too long.
pub(super) fn reason_of(bytes: &[u8]) -> String {
    let printable = |it: char| if it.is_control() { '\u{FFFD}' } else { it };
    String::from_utf8_lossy(bytes).chars().take(MOST_OF_REASON).map(printable).collect()
}
