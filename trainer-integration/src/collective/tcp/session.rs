//! TLS records (RFC 8446) over a stream that may block or not: bytes of the caller in, records out, and back. It
//! knows nothing of the stream but reading and writing.
//!
//! rustls keeps the secrets and the rules. The buffers are here: a record goes straight into the caller's memory, and
//! one call of the system carries several records.

use std::fmt;
use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};

use super::tls::{PROTOCOL, Tls};

/// Bytes of a whole record at most, with its header and tag.
const RECORD_BYTES: usize = (16 << 10) + 256 + 5;
/// Records received with one call of the system at most.
const INCOMING_BYTES: usize = 16 * RECORD_BYTES;
/// Bytes of the caller that become records before they are sent.
const CHUNK_BYTES: usize = 128 << 10;
/// Bytes that are sent as one record although they come from two places.
const SMALL_BYTES: usize = 16 << 10;

/// One end of a TLS connection.
pub(super) struct Session {
    side: Side,
    /// Received, and not decrypted yet.
    incoming: Vec<u8>,
    undecrypted: Range<usize>,
    /// Decrypted, and not taken yet.
    plain: Vec<u8>,
    taken: usize,
    /// Encrypted, and not sent yet.
    outgoing: Vec<u8>,
    unsent: Range<usize>,
    small: Vec<u8>,
    /// A handshake message has begun in a record and not ended: rustls then counts on the bytes received so far.
    is_split: bool,
    is_closed: bool,
}

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// Where rustls is after one turn.
enum Turn {
    /// There is more to do.
    Again,
    /// Data was decrypted.
    Decrypted,
    /// It wants more of the other end.
    Blocked,
    /// The handshake is over; data was encrypted, if there was any.
    Ready,
    /// The other end has said that nothing more comes.
    Closed,
}

impl Session {
    /// The end that calls.
    pub(super) fn client(tls: &Tls) -> Result<Session, rustls::Error> {
        // Which host it is does not matter, and is not sent.
        let anyone = ServerName::try_from("rank.invalid").expect("a name");
        UnbufferedClientConnection::new(Arc::clone(&tls.client), anyone)
            .map(|it| Session::of(Side::Client(it)))
    }

    /// The end that is called.
    pub(super) fn server(tls: &Tls) -> Result<Session, rustls::Error> {
        UnbufferedServerConnection::new(Arc::clone(&tls.server)).map(|it| Session::of(Side::Server(it)))
    }

    fn of(side: Side) -> Session {
        Session {
            side,
            incoming: vec![0; INCOMING_BYTES],
            undecrypted: 0..0,
            plain: Vec::new(),
            taken: 0,
            outgoing: Vec::new(),
            unsent: 0..0,
            small: Vec::new(),
            is_split: false,
            is_closed: false,
        }
    }

    /// Shakes hands over a stream that blocks. A [`rustls::Error`] is the source of the error if the other end is at
    /// fault, and has then been sent the alert. `first` is called once this end waits for the other the first time.
    pub(super) fn shake_hands<S: Read + Write>(
        &mut self,
        stream: &mut S,
        mut first: impl FnMut(&mut S) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut has_waited = false;
        loop {
            let turn = self.turn(None, &mut Spaces::none());
            if turn.is_err() {
                self.queue_alert();
            }
            let sent = self.flush(stream);
            match turn? {
                Turn::Ready => {
                    sent?;
                    break;
                }
                Turn::Again | Turn::Decrypted => sent?,
                Turn::Closed => return Err(ErrorKind::UnexpectedEof.into()),
                Turn::Blocked => {
                    sent?;
                    if !std::mem::replace(&mut has_waited, true) {
                        first(stream)?;
                    }
                    if self.receive(stream)? == 0 {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        }
        let protocol = match &self.side {
            Side::Client(client) => client.alpn_protocol(),
            Side::Server(server) => server.alpn_protocol(),
        };
        match protocol {
            Some(PROTOCOL) => Ok(()),
            _ => Err(fault(rustls::Error::NoApplicationProtocol)),
        }
    }

    /// Reads data: 0 bytes when no more will come. Waits for the other end, or returns `WouldBlock`, as the stream does.
    pub(super) fn read(&mut self, from: &mut impl Read, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut spaces = Spaces { into, at: 0, filled: 0 };
        loop {
            self.taken += spaces.fill(&self.plain[self.taken..]);
            while !spaces.is_full() && !self.undecrypted.is_empty() {
                match self.turn(None, &mut spaces)? {
                    Turn::Again | Turn::Decrypted => {}
                    Turn::Blocked | Turn::Ready => break,
                    Turn::Closed => {
                        self.is_closed = true;
                        break;
                    }
                }
            }
            if spaces.filled > 0 || self.is_closed || self.receive(from)? == 0 {
                return Ok(spaces.filled);
            }
        }
    }

    /// Takes bytes of one slice after the other, until the stream would block: how many. Some of them may wait to be
    /// [sent](Session::flush). `WouldBlock` when none were taken.
    pub(super) fn write(&mut self, to: &mut impl Write, first: &[u8], then: &[u8]) -> io::Result<usize> {
        self.flush(to)?;
        let all = first.len() + then.len();
        let mut taken = 0;
        while taken < all {
            let (first, then) =
                (&first[taken.min(first.len())..], &then[taken.saturating_sub(first.len())..]);
            if first.len() + then.len() <= SMALL_BYTES {
                let mut small = std::mem::take(&mut self.small);
                small.clear();
                small.extend_from_slice(first);
                small.extend_from_slice(then);
                let sealed = self.seal(&small);
                taken += small.len();
                self.small = small;
                sealed?;
            } else {
                let first = &first[..first.len().min(CHUNK_BYTES)];
                let then = &then[..then.len().min(CHUNK_BYTES - first.len())];
                for part in [first, then].into_iter().filter(|part| !part.is_empty()) {
                    self.seal(part)?;
                    taken += part.len();
                }
            }
            match self.flush(to) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                sent => sent?,
            }
        }
        Ok(taken)
    }

    /// Sends bytes that have been taken; `WouldBlock` when some are left.
    pub(super) fn flush(&mut self, to: &mut impl Write) -> io::Result<()> {
        while !self.is_flushed() {
            match to.write(&self.outgoing[self.unsent.clone()]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => self.unsent.start += bytes,
                // Taken bytes must not be taken again.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.unsent = 0..0;
        Ok(())
    }

    /// Whether all bytes that were taken have been sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.unsent.is_empty()
    }

    fn seal(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_split {
            return Err(io::Error::new(ErrorKind::InvalidData, "it sends handshake messages in parts"));
        }
        loop {
            match self.turn(Some(bytes), &mut Spaces::none())? {
                Turn::Ready => return Ok(()),
                Turn::Again | Turn::Decrypted => {}
                Turn::Blocked | Turn::Closed => return Err(ErrorKind::BrokenPipe.into()),
            }
        }
    }

    fn receive(&mut self, from: &mut impl Read) -> io::Result<usize> {
        if self.undecrypted.is_empty() {
            self.undecrypted = 0..0;
        } else if self.incoming.len() - self.undecrypted.end < RECORD_BYTES {
            self.incoming.copy_within(self.undecrypted.clone(), 0);
            self.undecrypted = 0..self.undecrypted.len();
        }
        loop {
            match from.read(&mut self.incoming[self.undecrypted.end..]) {
                Ok(bytes) => {
                    self.undecrypted.end += bytes;
                    return Ok(bytes);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn turn(&mut self, seal: Option<&[u8]>, spaces: &mut Spaces<'_, '_>) -> io::Result<Turn> {
        if seal.is_none() && self.taken == self.plain.len() {
            self.plain.clear();
            self.taken = 0;
        }
        // To seal, nothing is read: that is for a caller with room for it.
        let incoming = match seal {
            Some(_) => &mut [][..],
            None => &mut self.incoming[self.undecrypted.clone()],
        };
        let mut buffers = Buffers {
            outgoing: &mut self.outgoing,
            unsent: &mut self.unsent,
            plain: &mut self.plain,
            spaces,
        };
        let (discarded, turn) = match &mut self.side {
            Side::Client(client) => buffers.perform(client.process_tls_records(incoming), seal),
            Side::Server(server) => buffers.perform(server.process_tls_records(incoming), seal),
        };
        self.undecrypted.start += discarded;
        if seal.is_none() {
            let is_through = matches!(turn, Ok(Turn::Ready | Turn::Blocked));
            self.is_split = is_through && begins_with_record(&self.incoming[self.undecrypted.clone()]);
        }
        turn.map_err(fault)
    }

    /// Has the alert that a fault calls for ready to be sent.
    fn queue_alert(&mut self) {
        while self.side.wants_write() && self.turn(Some(&[]), &mut Spaces::none()).is_ok() {}
    }
}

impl Side {
    /// Whether rustls has bytes of its own to send.
    fn wants_write(&self) -> bool {
        match self {
            Side::Client(client) => client.wants_write(),
            Side::Server(server) => server.wants_write(),
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("unsent", &self.unsent.len()).finish_non_exhaustive()
    }
}

/// The memory that one turn of rustls reads and writes.
struct Buffers<'b, 's, 'i> {
    outgoing: &'b mut Vec<u8>,
    unsent: &'b mut Range<usize>,
    plain: &'b mut Vec<u8>,
    spaces: &'b mut Spaces<'s, 'i>,
}

impl Buffers<'_, '_, '_> {
    /// One turn, whichever end it is: how many received bytes are done with, and the outcome.
    fn perform<D>(
        &mut self,
        status: UnbufferedStatus<'_, '_, D>,
        seal: Option<&[u8]>,
    ) -> (usize, Result<Turn, rustls::Error>) {
        let UnbufferedStatus { mut discard, state, .. } = status;
        let state = match state {
            Ok(state) => state,
            Err(error) => return (discard, Err(error)),
        };
        let turn = match state {
            ConnectionState::ReadTraffic(mut traffic) => loop {
                match traffic.next_record() {
                    None => break Ok(Turn::Decrypted),
                    Some(Err(error)) => break Err(error),
                    Some(Ok(record)) => {
                        discard += record.discard;
                        let used = self.spaces.fill(record.payload);
                        self.plain.extend_from_slice(&record.payload[used..]);
                    }
                }
            },
            ConnectionState::EncodeTlsData(mut data) => self
                .append(0, |space| match data.encode(space) {
                    Ok(bytes) => Ok(bytes),
                    Err(EncodeError::InsufficientSize(size)) => Err(Some(size.required_size)),
                    Err(EncodeError::AlreadyEncoded) => Err(None),
                })
                .map(|()| Turn::Again),
            ConnectionState::TransmitTlsData(data) => {
                // The bytes are in this end's care.
                data.done();
                Ok(Turn::Again)
            }
            ConnectionState::WriteTraffic(mut traffic) => match seal {
                None => Ok(Turn::Ready),
                Some(bytes) => {
                    let records = bytes.len().div_ceil(16 << 10) + 1;
                    let likely = bytes.len() + records * (RECORD_BYTES - (16 << 10));
                    self.append(likely, |space| match traffic.encrypt(bytes, space) {
                        Ok(bytes) => Ok(bytes),
                        Err(EncryptError::InsufficientSize(size)) => Err(Some(size.required_size)),
                        Err(EncryptError::EncryptExhausted) => Err(None),
                    })
                    .map(|()| Turn::Ready)
                }
            },
            ConnectionState::BlockedHandshake => Ok(Turn::Blocked),
            // Neither end sends or takes early data.
            _ => Ok(Turn::Closed),
        };
        (discard, turn)
    }

    /// Lets `write` append to the bytes to send; it returns how many it has written, or how much room it wants.
    fn append(
        &mut self,
        likely: usize,
        mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<usize>>,
    ) -> Result<(), rustls::Error> {
        let mut room = likely;
        loop {
            let end = self.unsent.end;
            if self.outgoing.len() < end + room {
                self.outgoing.resize(end + room, 0);
            }
            match write(&mut self.outgoing[end..]) {
                Ok(bytes) => {
                    self.unsent.end += bytes;
                    return Ok(());
                }
                Err(Some(required)) if required > self.outgoing.len() - end => room = required,
                Err(_) => return Err(rustls::Error::EncryptError),
            }
        }
    }
}

/// The caller's memory, filled from its beginning.
struct Spaces<'s, 'i> {
    into: &'s mut [IoSliceMut<'i>],
    /// The slice that is filled, and the bytes in all of them.
    at: usize,
    filled: usize,
}

impl Spaces<'_, '_> {
    fn none() -> Spaces<'static, 'static> {
        Spaces { into: &mut [], at: 0, filled: 0 }
    }

    fn is_full(&self) -> bool {
        self.into[self.at..].iter().all(|space| space.is_empty())
    }

    /// Copies as much as there is room for.
    fn fill(&mut self, mut bytes: &[u8]) -> usize {
        let before = self.filled;
        while let Some(space) = self.into.get_mut(self.at)
            && !bytes.is_empty()
        {
            let part = bytes.len().min(space.len());
            space[..part].copy_from_slice(&bytes[..part]);
            bytes = &bytes[part..];
            self.filled += part;
            if part == space.len() {
                self.at += 1;
            } else {
                space.advance(part);
            }
        }
        self.filled - before
    }
}

/// Whether a whole record is there: a type, a version, two bytes of length, and the rest.
fn begins_with_record(bytes: &[u8]) -> bool {
    let length = bytes.get(3..5).map(|length| usize::from(u16::from_be_bytes([length[0], length[1]])));
    length.is_some_and(|length| bytes.len() >= 5 + length)
}

fn fault(error: rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}
