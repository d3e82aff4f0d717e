//! The callers at a listening socket, one after the other. Strangers are sent away here.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::TcpOptions;
use super::connection::{Connection, Stranger, invalid, remaining};
use super::wire::{Kind, read_greeting, write_greeting};

/// A caller that says nothing must not keep the others waiting.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);

/// The next caller whose greeting is of this kind, or `None` when the time is up, or all is given up.
pub(super) fn next_caller<T: for<'de> Deserialize<'de>>(
    listener: &TcpListener,
    kind: Kind,
    deadline: Instant,
    options: &TcpOptions,
) -> io::Result<Option<(Connection, SocketAddr, T)>> {
    while let Some((stream, from)) = accept(listener, deadline, options)? {
        let patience = deadline.min(Instant::now() + HELLO_TIMEOUT);
        match Connection::answer(stream, options.tls.as_ref(), patience) {
            Ok(mut connection) => {
                if let Ok(greeting) = read_json(&mut connection, kind) {
                    connection.set_deadline(deadline);
                    return Ok(Some((connection, from, greeting)));
                }
            }
            Err(Stranger::Silent) => {}
            Err(Stranger::Refused(reason)) => warn!(%from, "a caller is no rank of this group: it {reason}"),
        }
    }
    Ok(None)
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
