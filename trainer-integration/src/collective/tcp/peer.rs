//! One rank's stream, which never blocks: frames are read in two steps, header and payload, and the payload goes straight to
//! where it is wanted.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::ops::Range;

use mio::net::TcpStream;

use super::connection::Connection;
use super::session::Session;
use super::wire::{HEADER_BYTES, Header, Kind};
use crate::collective::{CollectiveError, PIECE_BYTES};

/// Bytes read before their purpose is known: a header with a small message.
const AHEAD_BYTES: usize = 8 << 10;

/// Bytes kept at most while an abort is looked for behind them: more than sockets hold.
const MOST_AHEAD_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Peer {
    rank: u32,
    pub(super) stream: TcpStream,
    /// The keys of the stream, if it is not in plaintext.
    session: Option<Box<Session>>,
    /// By the last look; the stream itself is asked only then.
    pub(super) is_readable: bool,
    pub(super) is_writable: bool,
    /// The last operation in which the rank reported that it waits.
    pub(super) waiting_in: Option<u64>,
    ahead: Vec<u8>,
    unread: Range<usize>,
    /// The next frame, once its header is here.
    header: Option<Header>,
    /// How much of the next frame's payload has been read.
    got: usize,
    text: Vec<u8>,
    /// The fault found: nothing more will come.
    ended: Option<CollectiveError>,
    scratch: Vec<u64>,
}

impl Peer {
    pub(super) fn new(rank: usize, connection: Connection) -> io::Result<Peer> {
        let (stream, session) = connection.into_parts();
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Peer {
            rank: rank as u32,
            stream: TcpStream::from_std(stream),
            session,
            is_readable: true,
            is_writable: true,
            waiting_in: None,
            ahead: vec![0; AHEAD_BYTES],
            unread: 0..0,
            header: None,
            got: 0,
            text: Vec::new(),
            ended: None,
            scratch: Vec::new(),
        })
    }

    /// The header of the next piece, if it is here already. The rank's aborts and its end are found here.
    pub(super) fn header(&mut self) -> Result<Option<Header>, CollectiveError> {
        loop {
            if let Some(header) = self.header {
                match header.kind {
                    Kind::Data => return Ok(Some(header)),
                    Kind::Waiting => {
                        self.check(&header, &[])?;
                        self.waiting_in = Some(header.operation);
                        self.header = None;
                        continue;
                    }
                    Kind::Abort => return self.read_abort(&header).map(|()| None),
                    kind => return Err(self.nonsense(format!("{kind:?} in the middle of a run"))),
                }
            }
            if let Some(bytes) = self.ahead[self.unread.clone()].first_chunk::<HEADER_BYTES>() {
                let header = Header::parse(bytes);
                self.unread.start += HEADER_BYTES;
                self.header = Some(header.map_err(|what| self.nonsense(what))?);
                self.got = 0;
            } else if self.fill_ahead()? == 0 {
                return Ok(None);
            }
        }
    }

    /// Whether the rank is known to be at the operation, or beyond it.
    pub(super) fn is_at(&self, operation: u64) -> bool {
        let is_early =
            self.header.is_some_and(|header| header.kind == Kind::Data && header.operation >= operation);
        self.waiting_in == Some(operation) || is_early
    }

    /// Reads the present bytes of the current piece's payload; whether it is complete, and then verified.
    pub(super) fn read_payload(&mut self, into: &mut [u8]) -> Result<bool, CollectiveError> {
        let header = self.header.expect("a header was read before its payload");
        debug_assert_eq!(into.len(), header.payload, "the place is as long as the piece");
        while self.got < into.len() {
            match self.read(&mut into[self.got..])? {
                0 => return Ok(false),
                bytes => self.got += bytes,
            }
        }
        self.check(&header, into)?;
        Ok(true)
    }

    /// As [`Peer::read_payload`], into memory of this peer's, aligned for any number.
    pub(super) fn read_to_scratch(&mut self) -> Result<bool, CollectiveError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(PIECE_BYTES / size_of::<u64>(), 0);
        let length = self.header.expect("a header was read before its payload").payload;
        let outcome = self.read_payload(&mut bytemuck::cast_slice_mut(&mut scratch)[..length]);
        self.scratch = scratch;
        outcome
    }

    /// The payload that [`Peer::read_to_scratch`] has read.
    pub(super) fn scratch(&self, length: usize) -> &[u8] {
        &bytemuck::cast_slice(&self.scratch)[..length]
    }

    /// The current piece is dealt with.
    pub(super) fn next_frame(&mut self) {
        self.header = None;
    }

    /// Whether everything that was written is with the system: an encrypted stream may hold the last of it.
    pub(super) fn is_flushed(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.is_flushed())
    }

    /// Writes the bytes that fit of the two buffers, one after the other: how many. Writing none sends those that are held.
    pub(super) fn write(&mut self, first: &[u8], then: &[u8]) -> Result<usize, CollectiveError> {
        loop {
            let written = match &mut self.session {
                Some(session) => session.write(&mut self.stream, first, then),
                None => self.stream.write_vectored(&[IoSlice::new(first), IoSlice::new(then)]),
            };
            match written {
                Ok(bytes) => return Ok(bytes),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.is_writable = false;
                    return if error.kind() == ErrorKind::WouldBlock {
                        Ok(0)
                    } else {
                        Err(self.gone(&error))
                    };
                }
            }
        }
    }

    /// Looks behind a piece whose time has not come for an abort. The bytes in front of it are kept.
    pub(super) fn find_abort(&mut self) -> Result<(), CollectiveError> {
        let Some(early) = self.header.filter(|_| self.is_readable && self.ended.is_none()) else {
            return Ok(());
        };
        while self.is_readable && self.unread.len() < MOST_AHEAD_BYTES {
            if self.unread.end == self.ahead.len() {
                self.ahead.resize(2 * self.ahead.len(), 0);
            }
            match self.fill_ahead() {
                Ok(_) => {}
                Err(CollectiveError::Gone { .. }) => break,
                Err(why) => return Err(why),
            }
        }
        let mut rest = self.ahead[self.unread.clone()].get(early.payload - self.got..);
        while let Some((header, payload)) = rest.and_then(|rest| rest.split_first_chunk()) {
            let Ok(header) = Header::parse(header) else { break };
            if header.kind == Kind::Abort
                && let Some(text) = payload.get(..header.payload)
                && header.check(text).is_ok()
            {
                let reason = String::from_utf8_lossy(text).into_owned();
                return Err(CollectiveError::Aborted { rank: header.operation as u32, reason });
            }
            rest = payload.get(header.payload..);
        }
        Ok(())
    }

    /// Why the rank can no longer be written to, by its last message if there is one.
    pub(super) fn last_word(&mut self, otherwise: CollectiveError) -> CollectiveError {
        self.is_readable = true;
        match self.header() {
            Err(why @ CollectiveError::Aborted { .. }) => why,
            _ => otherwise,
        }
    }

    fn read_abort(&mut self, header: &Header) -> Result<(), CollectiveError> {
        let mut text = std::mem::take(&mut self.text);
        text.resize(header.payload, 0);
        let is_complete = self.read_payload(&mut text);
        let reason = String::from_utf8_lossy(&text).into_owned();
        self.text = text;
        if is_complete? {
            let why = CollectiveError::Aborted { rank: header.operation as u32, reason };
            self.ended = Some(why.clone());
            return Err(why);
        }
        Ok(())
    }

    fn check(&mut self, header: &Header, payload: &[u8]) -> Result<(), CollectiveError> {
        header.check(payload).map_err(|what| self.nonsense(what))
    }

    /// Bytes from ahead or from the stream; 0 when there are none now.
    fn read(&mut self, into: &mut [u8]) -> Result<usize, CollectiveError> {
        if self.unread.is_empty() {
            if into.len() >= AHEAD_BYTES {
                return self.read_through(into);
            }
            if self.fill_ahead()? == 0 {
                return Ok(0);
            }
        }
        let bytes = self.unread.len().min(into.len());
        into[..bytes].copy_from_slice(&self.ahead[self.unread.start..][..bytes]);
        self.unread.start += bytes;
        Ok(bytes)
    }

    /// Past the buffer, but for the next header, which comes in the same call.
    fn read_through(&mut self, into: &mut [u8]) -> Result<usize, CollectiveError> {
        let wanted = into.len();
        let mut ahead = std::mem::take(&mut self.ahead);
        let buffers = &mut [IoSliceMut::new(into), IoSliceMut::new(&mut ahead[..HEADER_BYTES])];
        let outcome = self.read_stream(buffers);
        self.ahead = ahead;
        let bytes = outcome?;
        self.unread = 0..bytes.saturating_sub(wanted);
        Ok(bytes.min(wanted))
    }

    fn fill_ahead(&mut self) -> Result<usize, CollectiveError> {
        if self.unread.start > 0 {
            self.ahead.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        if self.unread.is_empty() && self.ahead.len() > AHEAD_BYTES {
            self.ahead.truncate(AHEAD_BYTES);
            self.ahead.shrink_to_fit();
        }
        let mut ahead = std::mem::take(&mut self.ahead);
        let space = &mut ahead[self.unread.end..];
        let outcome = self.read_stream(&mut [IoSliceMut::new(space)]);
        self.ahead = ahead;
        let bytes = outcome?;
        self.unread.end += bytes;
        Ok(bytes)
    }

    fn read_stream(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize, CollectiveError> {
        if let Some(why) = &self.ended {
            return Err(why.clone());
        }
        if !self.is_readable {
            return Ok(0);
        }
        let error = loop {
            let read = match &mut self.session {
                Some(session) => session.read(&mut self.stream, into),
                None => self.stream.read_vectored(into),
            };
            match read {
                Ok(0) => break ErrorKind::UnexpectedEof.into(),
                Ok(bytes) => return Ok(bytes),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break error,
            }
        };
        self.is_readable = false;
        if error.kind() == ErrorKind::WouldBlock {
            return Ok(0);
        }
        let why = self.gone(&error);
        self.ended = Some(why.clone());
        Err(why)
    }

    fn gone(&self, error: &io::Error) -> CollectiveError {
        let how = match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe => "it closed the connection".to_owned(),
            ErrorKind::ConnectionReset => "its connection was reset".to_owned(),
            _ => error.to_string(),
        };
        CollectiveError::Gone { rank: self.rank, how }
    }

    pub(super) fn nonsense(&mut self, what: impl Into<String>) -> CollectiveError {
        let why = CollectiveError::Malformed { rank: self.rank, what: what.into() };
        self.ended.get_or_insert(why).clone()
    }
}
