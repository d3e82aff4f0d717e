//! Frames on a TCP stream: a 32-byte header (magic, format, kind, operation, length, checksum), then the payload.

use std::io::{self, ErrorKind, Read, Write};

const MAGIC: [u8; 4] = *b"shdC";
const FORMAT: u16 = 1;
const HEADER_BYTES: usize = 32;
/// No rank sends more at once; a longer one is a stranger's bytes taken for a length.
const MAX_PAYLOAD_BYTES: u64 = 1 << 34;
/// No greeting is longer than this.
const MAX_GREETING_BYTES: u64 = 1 << 16;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// First on every connection: who is calling. JSON.
    Hello,
    /// Rank 0's answer: where everyone listens. JSON.
    Welcome,
    /// Rank 0's answer to one that does not fit in. Text.
    Refused,
    /// A message of an operation.
    Data,
    /// The run is over: the rank at fault as the operation number, the reason as text.
    Abort,
}

impl Kind {
    fn from_code(code: u16) -> Option<Kind> {
        [Kind::Hello, Kind::Welcome, Kind::Refused, Kind::Data, Kind::Abort]
            .into_iter()
            .find(|&kind| kind as u16 == code)
    }
}

/// One frame as it was read.
#[derive(Debug)]
pub(super) struct WireFrame {
    pub(super) kind: Kind,
    pub(super) operation: u64,
    pub(super) bytes: Vec<u8>,
}

pub(super) fn write_frame(to: &mut impl Write, kind: Kind, operation: u64, bytes: &[u8]) -> io::Result<()> {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC);
    header[4..6].copy_from_slice(&FORMAT.to_le_bytes());
    header[6..8].copy_from_slice(&(kind as u16).to_le_bytes());
    header[8..16].copy_from_slice(&operation.to_le_bytes());
    header[16..24].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    header[24..].copy_from_slice(&checksum(bytes));
    to.write_all(&header)?;
    to.write_all(bytes)?;
    to.flush()
}

/// Reads one frame. `InvalidData` says what is wrong with the bytes; `UnexpectedEof` means that the peer closed.
pub(super) fn read_frame(from: &mut impl Read) -> io::Result<WireFrame> {
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header)?;
    let field = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    let short = |at: usize| u16::from_le_bytes(header[at..at + 2].try_into().expect("two bytes"));
    if header[..4] != MAGIC {
        return Err(invalid("it does not speak the collective's protocol"));
    }
    if short(4) != FORMAT {
        return Err(invalid(format!(
            "it speaks format {} of the protocol, this rank format {FORMAT}",
            short(4)
        )));
    }
    let kind =
        Kind::from_code(short(6)).ok_or_else(|| invalid(format!("unknown kind of frame {}", short(6))))?;
    let length = field(16);
    // A stranger's greeting is short; only those who have been let in may send more.
    let limit = if kind == Kind::Hello { MAX_GREETING_BYTES } else { MAX_PAYLOAD_BYTES };
    if length > limit {
        return Err(invalid(format!("a frame of {length} bytes")));
    }
    let mut bytes = Vec::with_capacity(length.min(64 << 20) as usize); // believed only as far as bytes arrive
    from.take(length).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    if header[24..] != checksum(&bytes) {
        return Err(invalid("a frame whose checksum does not match"));
    }
    Ok(WireFrame { kind, operation: field(8), bytes })
}

fn checksum(bytes: &[u8]) -> [u8; 8] {
    *blake3::hash(bytes).as_bytes().first_chunk().expect("a digest has 32 bytes")
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(operation: u64, bytes: &[u8]) -> Vec<u8> {
        let mut written = Vec::new();
        write_frame(&mut written, Kind::Data, operation, bytes).unwrap();
        written
    }

    #[test]
    fn an_empty_frame_has_these_bytes() {
        let golden = ["73686443", "0100", "0300", "0700000000000000", "0000000000000000", "af1349b9f5f9a1a6"];
        let hex: String = frame(7, &[]).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden.concat());
    }

    proptest! {
        #[test]
        fn a_frame_is_read_as_it_was_written(operation: u64, bytes: Vec<u8>) {
            let read = read_frame(&mut &frame(operation, &bytes)[..]).unwrap();
            prop_assert_eq!((read.kind, read.operation, read.bytes), (Kind::Data, operation, bytes));
        }

        #[test]
        fn a_changed_or_cut_frame_is_refused(bytes: Vec<u8>, at: prop::sample::Index, flip in 1u8..=255, cut: bool) {
            let mut written = frame(3, &bytes);
            // Kind and operation are judged by the receiver, which knows what it expects.
            let at = at.index(written.len());
            prop_assume!(cut || !(6..16).contains(&at));
            if cut { written.truncate(at) } else { written[at] ^= flip }
            prop_assert!(read_frame(&mut &written[..]).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = read_frame(&mut &bytes[..]);
        }
    }
}
