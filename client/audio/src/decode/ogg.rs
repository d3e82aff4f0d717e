//! The packets of an Ogg file (RFC 3533).
//!
//! Read here and not by a container crate, because headers have to be checked before a decoder takes memory for them.

use std::borrow::Cow;

use super::{DecodeError, Format};

/// A page's fixed header.
const HEADER: usize = 27;

/// A page whose checksum is right.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page<'a> {
    pub(super) first: bool,
    pub(super) last: bool,
    /// Samples up to the end of the last packet that ends here; none if no packet does.
    pub(super) end: Option<u64>,
    continued: bool,
    serial: u32,
    sequence: u32,
    segments: &'a [u8],
    body: &'a [u8],
}

/// The pages of a file, one after the other.
#[derive(Debug)]
pub(super) struct Pages<'a> {
    rest: &'a [u8],
}

impl<'a> Pages<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next page; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Page<'a>>, DecodeError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let cut = || DecodeError::truncated(Format::OggVorbis, "its last page is not complete");
        let header = self.rest.get(..HEADER).ok_or_else(cut)?;
        if !header.starts_with(b"OggS\0") {
            return Err(DecodeError::broken(Format::OggVorbis, "there is no page where one has to be"));
        }
        let segments = self.rest.get(HEADER..HEADER + usize::from(header[26])).ok_or_else(cut)?;
        let start = HEADER + segments.len();
        let end = start + segments.iter().map(|&len| usize::from(len)).sum::<usize>();
        let body = self.rest.get(start..end).ok_or_else(cut)?;
        let word = |at: usize| [0, 1, 2, 3].map(|byte| header[at + byte]);
        if u32::from_le_bytes(word(22)) != checksum(&self.rest[..end]) {
            return Err(DecodeError::broken(Format::OggVorbis, "the checksum of a page is wrong"));
        }
        self.rest = &self.rest[end..];
        let granule =
            (u64::from(u32::from_le_bytes(word(10))) << 32) | u64::from(u32::from_le_bytes(word(6)));
        Ok(Some(Page {
            continued: header[5] & 1 != 0,
            first: header[5] & 2 != 0,
            last: header[5] & 4 != 0,
            end: (granule <= i64::MAX as u64).then_some(granule),
            serial: u32::from_le_bytes(word(14)),
            sequence: u32::from_le_bytes(word(18)),
            segments,
            body,
        }))
    }
}

/// Joins the pages of one stream, the first of a file, to packets.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Serial number, and the next page's number.
    place: Option<(u32, u32)>,
    /// The beginning of a packet that goes over to the next page.
    open: Vec<u8>,
}

impl Stream {
    /// The packets that end on a page. None if it is another stream's.
    pub(super) fn packets<'a>(&mut self, page: &Page<'a>) -> Result<Option<Vec<Cow<'a, [u8]>>>, DecodeError> {
        let broken = |detail: &str| Err(DecodeError::broken(Format::OggVorbis, detail));
        match self.place {
            Some((serial, _)) if serial != page.serial => return Ok(None),
            Some((_, next)) if next != page.sequence => return broken("a page is missing"),
            _ => self.place = Some((page.serial, page.sequence.wrapping_add(1))),
        }
        if page.continued == self.open.is_empty() {
            return broken("a packet is not continued where it has to be");
        }
        let mut packets = Vec::new();
        let mut rest = page.body;
        let mut len = 0;
        for &segment in page.segments {
            len += usize::from(segment);
            if segment < 255 {
                let (packet, after) = rest.split_at(len);
                packets.push(self.join(packet));
                (rest, len) = (after, 0);
            }
        }
        self.open.extend_from_slice(rest);
        Ok(Some(packets))
    }

    fn join<'a>(&mut self, end: &'a [u8]) -> Cow<'a, [u8]> {
        if self.open.is_empty() {
            return Cow::Borrowed(end);
        }
        let mut packet = std::mem::take(&mut self.open);
        packet.extend_from_slice(end);
        Cow::Owned(packet)
    }
}

/// The checksum of a page, with its own place as zeros: a CRC of polynomial 0x04C11DB7, highest bit first.
fn checksum(page: &[u8]) -> u32 {
    let (before, rest) = page.split_at(22);
    let crc = |crc: u32, bytes: &[u8]| {
        bytes.iter().fold(crc, |crc, &byte| crc << 8 ^ TABLE[(crc >> 24) as usize ^ usize::from(byte)])
    };
    crc(crc(crc(0, before), &[0; 4]), &rest[4..])
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = crc << 1 ^ if crc >> 31 == 1 { 0x04C1_1DB7 } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};
