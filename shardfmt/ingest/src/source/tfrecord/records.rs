//! The records of a TFRecord file, as blocks that can be read on any thread. Where a block ends depends on the file alone.
//! Does not know the contents of a record.

use std::io::Read;

use super::frame::{self, FOOT, HEAD};
use crate::IngestError;
use crate::input::InputFile;
use crate::source::Stopped;
use crate::source::lines::Text;
use crate::source::tars::LARGEST_MEMBER;

/// The intended size of a block.
const BLOCK_BYTES: usize = 1 << 20;

/// Records that follow each other.
#[derive(Debug)]
pub(super) struct Block {
    bytes: Vec<u8>,
    /// Where each record ends, with its checksum.
    ends: Vec<usize>,
    /// The number of the first in its file, from 0, and where in the uncompressed file it begins.
    pub(super) first: u64,
    offset: u64,
}

/// A record in its block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'b> {
    pub(super) number: u64,
    offset: u64,
    /// The bytes with the checksum behind them.
    framed: &'b [u8],
}

impl<'b> Record<'b> {
    /// Its content, unless that is damaged.
    pub(super) fn content(&self) -> Result<&'b [u8], String> {
        match self.framed.split_last_chunk::<FOOT>() {
            Some((content, checksum)) if frame::is_intact(content, *checksum) => Ok(content),
            _ => Err("is damaged: its bytes have another checksum".to_owned()),
        }
    }

    /// Its name in messages.
    pub(super) fn name(&self) -> String {
        format!("record {} (at byte {})", self.number, self.offset)
    }
}

impl Block {
    fn new(first: u64, offset: u64) -> Block {
        Block { bytes: Vec::new(), ends: Vec::new(), first, offset }
    }

    pub(super) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let framed = starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end]);
        let mut offset = self.offset;
        framed.zip(self.first..).map(move |(framed, number)| {
            let at = offset;
            offset += (HEAD + framed.len()) as u64;
            Record { number, offset: at, framed }
        })
    }
}

/// Visits all blocks of a file in order, each of at most this many records.
pub(super) fn each_block(
    file: &InputFile,
    stream: impl Read,
    most: usize,
    visit: &mut dyn FnMut(Block) -> Result<(), Stopped>,
) -> Result<(), Stopped> {
    let mut text = Text::new(file, stream)?;
    let (mut number, mut offset) = (0, 0);
    let mut block = Block::new(number, offset);
    loop {
        let read = record(file, &mut text, &mut block.bytes, number, offset);
        if let Ok(Some(bytes)) = read {
            (number, offset) = (number + 1, offset + bytes);
            block.ends.push(block.bytes.len());
        }
        let is_full = block.bytes.len() >= BLOCK_BYTES || block.ends.len() >= most.max(1);
        let is_last = !matches!(read, Ok(Some(_)));
        if is_full || is_last && !block.ends.is_empty() {
            // The records before a fault stay good.
            visit(std::mem::replace(&mut block, Block::new(number, offset)))?;
        }
        if is_last {
            return Ok(read.map(drop)?);
        }
    }
}

/// Reads the next record and its checksum behind the others; returns the bytes that it takes in the file, or `None` at
/// the end of the file.
fn record(
    file: &InputFile,
    text: &mut Text<'_>,
    bytes: &mut Vec<u8>,
    number: u64,
    offset: u64,
) -> Result<Option<u64>, IngestError> {
    let damaged = |reason: &str| IngestError::Damaged {
        path: file.path.clone(),
        kind: "TFRecord",
        reason: format!("{reason} record {number}, which begins at byte {offset}"),
    };
    let mut head = Vec::with_capacity(HEAD);
    let read = text.read_to(&mut head, HEAD)?;
    let Ok(head) = <[u8; HEAD]>::try_from(head.as_slice()) else {
        return if read == 0 { Ok(None) } else { Err(damaged("it ends within")) };
    };
    let wrong = match head {
        // As TensorFlow's option ZLIB writes it: nothing tells such a file but that it is no other.
        [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..] if number == 0 => {
            "it is compressed with ZLIB, of which only GZIP and Zstandard are read, or damaged before"
        }
        _ => "another checksum than that of its length lies before",
    };
    let length = frame::length(head).ok_or_else(|| damaged(wrong))?;
    if length > LARGEST_MEMBER {
        return Err(damaged(&format!("a record has at most {LARGEST_MEMBER} bytes, {length} has")));
    }
    file.largest_row.check(format_args!("{}, record {number}", file.name), length)?;
    let framed = length as usize + FOOT;
    let start = bytes.len();
    if text.read_to(bytes, framed)? < framed {
        bytes.truncate(start);
        return Err(damaged("it ends within"));
    }
    Ok(Some((HEAD + framed) as u64))
}
