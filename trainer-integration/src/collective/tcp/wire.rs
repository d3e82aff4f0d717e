//! Frames on a TCP stream: a 48-byte header, then the payload.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | magic `shdC` |
//! | 4..6 | format, 2 |
//! | 6..8 | [`Kind`] |
//! | 8..16 | the operation that a piece belongs to; of an abort, the rank at fault |
//! | 16..20 | which message to this rank in the transfer the piece is a part of |
//! | 20..24 | bytes of payload |
//! | 24..32 | bytes of the whole message |
//! | 32..40 | where in it the piece begins |
//! | 40..48 | XXH3 of the payload, seeded with XXH3 of the header so far: against accidents, not against people |

use std::io::{self, ErrorKind, Read, Write};

use twox_hash::XxHash3_64;

use crate::collective::PIECE_BYTES;

pub(super) const MAGIC: [u8; 4] = *b"shdC";
const FORMAT: u16 = 2;
pub(super) const HEADER_BYTES: usize = 48;
/// No greeting or reason is longer than this.
pub(super) const MAX_TEXT_BYTES: usize = 1 << 16;

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// First on every connection: who is calling. JSON.
    Hello,
    /// Rank 0's answer: where everyone listens. JSON.
    Welcome,
    /// Rank 0's answer to one that does not fit in. Text.
    Refused,
    /// A piece of a message.
    Data,
    /// The run is over: the rank at fault as the operation number, the reason as text.
    Abort,
    /// The sender is at the operation, and has waited long. Empty.
    Waiting,
    /// First on a connection between launchers: which machine is calling, with how many ranks. JSON.
    Machine,
    /// The answer of the launcher of machine 0: the ranks of all machines. JSON.
    Machines,
}

impl Kind {
    fn from_code(code: u16) -> Option<Kind> {
        let of_ranks = [Kind::Hello, Kind::Welcome, Kind::Refused, Kind::Data, Kind::Abort, Kind::Waiting];
        let all = of_ranks.into_iter().chain([Kind::Machine, Kind::Machines]);
        all.into_iter().find(|&kind| kind as u16 == code)
    }

    fn longest(self) -> usize {
        match self {
            Kind::Data => PIECE_BYTES,
            Kind::Waiting => 0,
            _ => MAX_TEXT_BYTES,
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) operation: u64,
    pub(super) message: u32,
    pub(super) payload: usize,
    pub(super) length: usize,
    pub(super) offset: usize,
    checksum: u64,
    seed: u64,
}

impl Header {
    /// The header of a piece, as it is sent.
    pub(super) fn of_piece(
        operation: u64,
        message: u32,
        length: usize,
        offset: usize,
        payload: &[u8],
    ) -> [u8; HEADER_BYTES] {
        encode(Kind::Data, operation, message, length, offset, payload)
    }

    /// The header of a frame that is a message of its own.
    pub(super) fn of_text(kind: Kind, operation: u64, payload: &[u8]) -> [u8; HEADER_BYTES] {
        encode(kind, operation, 0, payload.len(), 0, payload)
    }

    /// Reads a header; the error names the fault.
    pub(super) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, String> {
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let short = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"));
        if bytes[..4] != MAGIC {
            return Err("it does not speak the collective's protocol".to_owned());
        }
        if short(4) != FORMAT {
            return Err(format!("it speaks format {} of the protocol, this rank format {FORMAT}", short(4)));
        }
        let kind = Kind::from_code(short(6)).ok_or_else(|| format!("unknown kind of frame {}", short(6)))?;
        let payload = word(20) as usize;
        // A stranger's bytes, taken for a length, must not be believed.
        if payload > kind.longest() {
            return Err(format!("a frame of {payload} bytes"));
        }
        let size = |at| usize::try_from(long(at)).map_err(|_| "a length beyond memory".to_owned());
        let (length, offset) = (size(24)?, size(32)?);
        if offset.checked_add(payload).is_none_or(|end| end > length) {
            return Err("a piece beyond the end of its message".to_owned());
        }
        let seed = XxHash3_64::oneshot(&bytes[..40]);
        let message = word(16);
        Ok(Header { kind, operation: long(8), message, payload, length, offset, checksum: long(40), seed })
    }

    /// Checks the payload, and the header with it.
    pub(super) fn check(&self, payload: &[u8]) -> Result<(), String> {
        if XxHash3_64::oneshot_with_seed(self.seed, payload) == self.checksum {
            Ok(())
        } else {
            Err("a frame whose checksum does not match".to_owned())
        }
    }
}

fn encode(
    kind: Kind,
    operation: u64,
    message: u32,
    length: usize,
    offset: usize,
    payload: &[u8],
) -> [u8; HEADER_BYTES] {
    debug_assert!(payload.len() <= kind.longest(), "the sender keeps the limits");
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC);
    header[4..6].copy_from_slice(&FORMAT.to_le_bytes());
    header[6..8].copy_from_slice(&(kind as u16).to_le_bytes());
    header[8..16].copy_from_slice(&operation.to_le_bytes());
    header[16..20].copy_from_slice(&message.to_le_bytes());
    header[20..24].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[24..32].copy_from_slice(&(length as u64).to_le_bytes());
    header[32..40].copy_from_slice(&(offset as u64).to_le_bytes());
    let seed = XxHash3_64::oneshot(&header[..40]);
    header[40..].copy_from_slice(&XxHash3_64::oneshot_with_seed(seed, payload).to_le_bytes());
    header
}

/// Writes a greeting, on a stream that blocks.
pub(super) fn write_greeting(to: &mut impl Write, kind: Kind, bytes: &[u8]) -> io::Result<()> {
    if bytes.len() > kind.longest() {
        return Err(invalid(format!("a greeting of {} bytes", bytes.len())));
    }
    to.write_all(&Header::of_text(kind, 0, bytes))?;
    to.write_all(bytes)?;
    to.flush()
}

/// Reads a greeting from a stream that blocks. `InvalidData` names the fault of the bytes.
pub(super) fn read_greeting(from: &mut impl Read) -> io::Result<(Kind, Vec<u8>)> {
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header)?;
    let header = Header::parse(&header).map_err(invalid)?;
    let mut bytes = Vec::new(); // believed only where bytes arrive
    from.take(header.payload as u64).read_to_end(&mut bytes)?;
    if bytes.len() < header.payload {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    header.check(&bytes).map_err(invalid)?;
    Ok((header.kind, bytes))
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn piece(operation: u64, bytes: &[u8]) -> Vec<u8> {
        let mut written = Header::of_piece(operation, 3, bytes.len() + 7, 5, bytes).to_vec();
        written.extend_from_slice(bytes);
        written
    }

    fn read(bytes: &[u8]) -> Result<Header, String> {
        let (header, payload) = bytes.split_first_chunk().ok_or("too short")?;
        let header = Header::parse(header)?;
        header.check(payload.get(..header.payload).ok_or("too short")?)?;
        Ok(header)
    }

    #[test]
    fn an_empty_frame_has_these_bytes() {
        let golden = [
            "73686443",
            "0200",
            "0300",
            "0700000000000000",
            "03000000",
            "00000000",
            "0700000000000000",
            "0500000000000000",
            "7639032d2f8f1980",
        ];
        let hex: String = piece(7, &[]).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden.concat());
    }

    proptest! {
        #[test]
        fn a_piece_is_read_as_it_was_written(operation: u64, bytes: Vec<u8>) {
            let header = read(&piece(operation, &bytes)).unwrap();
            prop_assert_eq!((header.kind, header.operation, header.message), (Kind::Data, operation, 3));
            prop_assert_eq!((header.payload, header.length, header.offset), (bytes.len(), bytes.len() + 7, 5));
        }

        #[test]
        fn a_changed_or_cut_frame_is_refused(bytes: Vec<u8>, at: prop::sample::Index, flip in 1u8..=255, cut: bool) {
            let mut written = piece(3, &bytes);
            let at = at.index(written.len());
            if cut { written.truncate(at) } else { written[at] ^= flip }
            prop_assert!(read(&written).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = read_greeting(&mut &bytes[..]);
        }
    }
}
