//! Text files of records that follow each other, as blocks of whole records that can be read on any thread. Where a block
//! ends depends on the text alone. Knows nothing of what a record means.

use std::io::{self, Read};

use arrow::array::RecordBatch;
use shardfmt::InputDigest;
use shardfmt::size::ByteSize;

use super::compressed::decompressed;
use super::{Faults, Feed, Stopped, unpack};
use crate::config::OnError;
use crate::error::one_line;
use crate::input::InputFile;
use crate::{IngestError, pipeline};

/// The intended size of a block.
const BLOCK_BYTES: usize = 1 << 20;
/// The limit of a record's size, unless its decoded form takes much more.
pub(super) const LONGEST_RECORD: usize = 1 << 30;
/// Blocks that are looked at at a time before their rows are read.
const MOST_IN_FLIGHT: usize = 9;
/// More copies than this would be too many open files.
const MOST_COPIES: usize = 64;

/// How a text is cut into blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grammar {
    /// The length of the first record of a text, with its end; `None` if the text ends before.
    pub(super) record: fn(&[u8]) -> Option<usize>,
    /// Whether the first record that is not blank is no row.
    pub(super) has_header: bool,
    /// The most rows of a block.
    pub(super) rows: usize,
    /// A record of more bytes is refused before it is read to its end.
    pub(super) longest: usize,
}

/// The record of a text whose records are its lines.
pub(super) fn line(text: &[u8]) -> Option<usize> {
    text.iter().position(|&byte| byte == b'\n').map(|end| end + 1)
}

/// Records that follow each other in a file.
pub(super) struct Block {
    text: Vec<u8>,
    /// Where each record ends.
    ends: Vec<usize>,
    /// The line that the first begins in, from 1.
    line: u64,
}

impl Block {
    /// A record by itself.
    pub(super) fn of(record: Vec<u8>) -> Block {
        Block { ends: vec![record.len()], text: record, line: 1 }
    }

    pub(super) fn records(&self) -> Records<'_> {
        Records { text: &self.text, ends: &self.ends, start: 0, line: self.line }
    }
}

/// Some records of a block.
#[derive(Clone, Copy)]
pub(super) struct Records<'b> {
    text: &'b [u8],
    ends: &'b [usize],
    start: usize,
    line: u64,
}

impl<'b> Records<'b> {
    pub(super) fn text(self) -> &'b [u8] {
        &self.text[self.start..self.ends.last().copied().unwrap_or(self.start)]
    }

    pub(super) fn len(self) -> usize {
        self.ends.len()
    }

    /// The line that the first begins in.
    pub(super) fn line(self) -> u64 {
        self.line
    }

    /// One by one, each with the line that it begins in.
    pub(super) fn iter(self) -> impl Iterator<Item = (u64, &'b [u8])> {
        let (mut start, mut line) = (self.start, self.line);
        self.ends.iter().map(move |&end| {
            let (record, of_record) = (&self.text[start..end], line);
            start = end;
            line += newlines(record);
            (of_record, record)
        })
    }

    fn halves(self) -> Option<(Records<'b>, Records<'b>)> {
        let (left, right) = self.ends.split_at(self.ends.len() / 2);
        let &middle = left.last()?;
        let line = self.line + newlines(&self.text[self.start..middle]);
        Some((Records { ends: left, ..self }, Records { ends: right, start: middle, line, ..self }))
    }
}

/// How many lines end in a text.
pub(super) fn newlines(text: &[u8]) -> u64 {
    text.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// Reads records with a reader that takes any number of them and cannot attribute faults to records: by
/// halves, until those it refuses are found. Records that follow each other and are good are read together.
pub(super) fn by_halves<'b, T>(
    records: Records<'b>,
    read: &impl Fn(Records<'b>) -> Result<T, String>,
    good: &mut impl FnMut(T),
    bad: &mut impl FnMut(Records<'b>, String) -> Result<(), IngestError>,
) -> Result<(), IngestError> {
    let reason = match read(records) {
        Ok(read) => {
            good(read);
            return Ok(());
        }
        Err(reason) => reason,
    };
    match records.halves() {
        None => bad(records, reason),
        Some((left, right)) => {
            by_halves(left, read, good, bad)?;
            by_halves(right, read, good, bad)
        }
    }
}

/// The blocks of a file, in order.
pub(super) struct Blocks<'r> {
    text: Text<'r>,
    grammar: Grammar,
    /// The text read and not given out: whole records up to `start`, then one that does not end yet.
    rest: Vec<u8>,
    line: u64,
    /// Why there is no more, to be returned after the rest.
    failed: Option<IngestError>,
}

impl<'r> Blocks<'r> {
    pub(super) fn new(
        file: &'r InputFile,
        stream: impl Read + 'r,
        grammar: Grammar,
    ) -> Result<Blocks<'r>, IngestError> {
        let mut text = Text::new(file, stream)?;
        let mut rest = Vec::new();
        let failed = text.read_to(&mut rest, BLOCK_BYTES).err();
        if rest.starts_with(b"\xef\xbb\xbf") {
            rest.drain(..3);
        }
        Ok(Blocks { text, grammar, rest, line: 1, failed })
    }

    /// The first record that is not blank, if there is one.
    pub(super) fn header(&mut self) -> Result<Option<Block>, IngestError> {
        while let Some(record) = self.next_of(1)? {
            if !record.text.trim_ascii().is_empty() {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// The next block, or `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<Block>, IngestError> {
        self.next_of(self.grammar.rows)
    }

    fn next_of(&mut self, rows: usize) -> Result<Option<Block>, IngestError> {
        let (mut ends, mut start) = (Vec::new(), 0);
        while ends.len() < rows.max(1) && start < BLOCK_BYTES {
            if let Some(length) = (self.grammar.record)(&self.rest[start..]) {
                start += length;
                ends.push(start);
                continue;
            }
            if self.failed.is_some() {
                break;
            }
            let unfinished = self.rest.len() - start;
            let (longest, largest_row) = (self.grammar.longest, self.text.file.largest_row);
            let most = longest.min(usize::try_from(largest_row.bytes).unwrap_or(usize::MAX));
            if unfinished > most {
                let line = self.line + newlines(&self.rest[..start]);
                self.failed = Some(match most < longest {
                    true => {
                        let file = &self.text.file.name;
                        let size = ByteSize(most as u64);
                        largest_row.refusal(&format!("{file}, line {line} has more than {size}"))
                    }
                    false => {
                        let reason = format!("has more than {longest} bytes");
                        IngestError::Line { path: self.text.file.path.clone(), line, reason }
                    }
                });
                break;
            }
            // A record that did not end is looked at again from its beginning: reading as much again keeps that cheap.
            let more = unfinished.max(BLOCK_BYTES).min(most - unfinished + 1);
            match self.text.read_to(&mut self.rest, more) {
                Ok(0) if unfinished > 0 => {
                    start = self.rest.len();
                    ends.push(start);
                    break;
                }
                Ok(0) => break,
                Ok(_) => {}
                // The earlier records stay good.
                Err(error) => self.failed = Some(error),
            }
        }
        if ends.is_empty() {
            return self.failed.take().map_or(Ok(None), Err);
        }
        let text = self.rest[..start].to_vec();
        self.rest.drain(..start);
        let line = self.line;
        self.line += newlines(&text);
        Ok(Some(Block { text, ends, line }))
    }
}

/// The content of a text file, which may be compressed.
pub(super) struct Text<'r> {
    file: &'r InputFile,
    content: Box<dyn Read + 'r>,
    is_compressed: bool,
    /// Bytes that were read of it, and the most there may be.
    read: u64,
    most: u64,
}

impl<'r> Text<'r> {
    pub(super) fn new(file: &'r InputFile, stream: impl Read + 'r) -> Result<Text<'r>, IngestError> {
        let (content, is_compressed) = decompressed(stream).map_err(|error| file.error(error))?;
        let most = if is_compressed { unpack::most_unpacked(file) } else { u64::MAX };
        Ok(Text { file, content, is_compressed, read: 0, most })
    }

    /// Reads exactly this number of further bytes, or to the end of the file; returns how many there were.
    pub(super) fn read_to(&mut self, buffer: &mut Vec<u8>, length: usize) -> Result<usize, IngestError> {
        let read = self.content.by_ref().take(length as u64).read_to_end(buffer);
        let read = read.map_err(|error| self.error(error))?;
        self.read += read as u64;
        if self.read > self.most {
            return Err(unpack::expands(self.file));
        }
        Ok(read)
    }

    fn error(&self, error: io::Error) -> IngestError {
        if !self.is_compressed {
            return self.file.error(error);
        }
        // Or the file cannot be read at all: the input takes note of that itself.
        let reason = match error.kind() {
            io::ErrorKind::UnexpectedEof => "it ends too early".to_owned(),
            _ => one_line(error),
        };
        IngestError::Damaged { path: self.file.path.clone(), kind: "compressed", reason }
    }
}

/// Lists the blocks of a file as pieces that are read with `read`. What cannot be decompressed is left out, if such things
/// are.
pub(super) fn pieces<'s>(
    file: &'s InputFile,
    grammar: Grammar,
    feed: &mut Feed<'_, 's>,
    read: impl Fn(&Block, &mut Faults) -> Result<RecordBatch, IngestError> + Copy + Send + 's,
) -> Result<InputDigest, IngestError> {
    let mut stream = file.stream()?;
    let visited = each_block(file, &mut stream, grammar, &mut |block| {
        let name = format!("{}, from line {}", file.name, block.line);
        feed.piece(name, move |faults| read(&block, faults)).map_err(Stopped::Elsewhere)
    });
    feed.visited(&file.name, visited)?;
    file.finish(stream)
}

/// The files for what reads them twice: copied first, where they lie far away, unless there are many.
pub(super) fn near(files: Vec<InputFile>) -> Result<Vec<InputFile>, IngestError> {
    if files.len() > MOST_COPIES {
        return Ok(files);
    }
    files.iter().map(InputFile::near).collect()
}

/// Looks at all blocks of a file in parallel, and at what `look` says of each in order. A file that cannot be read to its
/// end is read up to there, if such faults are skipped.
pub(super) fn survey<T: Send>(
    file: &InputFile,
    grammar: Grammar,
    on_error: OnError,
    look: impl Fn(Block) -> Result<T, IngestError> + Sync,
    add: impl FnMut(T) -> Result<(), IngestError>,
) -> Result<(), IngestError> {
    survey_blocks(on_error, |visit| each_block(file, file.stream()?, grammar, visit), look, add)
}

/// The same of the blocks that `each` visits.
pub(super) fn survey_blocks<B: Send, T: Send>(
    on_error: OnError,
    each: impl FnOnce(&mut dyn FnMut(B) -> Result<(), Stopped>) -> Result<(), Stopped>,
    look: impl Fn(B) -> Result<T, IngestError> + Sync,
    add: impl FnMut(T) -> Result<(), IngestError>,
) -> Result<(), IngestError> {
    let in_flight = (2 * rayon::current_num_threads() + 1).min(MOST_IN_FLIGHT);
    pipeline::in_order(
        in_flight,
        |push| match each(&mut |block| push(block).map_err(Stopped::Elsewhere)) {
            Err(Stopped::Reading(error)) if on_error == OnError::Fail || !error.is_about_content() => {
                Err(error)
            }
            Err(Stopped::Elsewhere(error)) => Err(error),
            Ok(()) | Err(Stopped::Reading(_)) => Ok(()),
        },
        look,
        add,
    )
}

/// Visits all blocks of a file, in order.
pub(super) fn each_block(
    file: &InputFile,
    stream: impl Read,
    grammar: Grammar,
    visit: &mut dyn FnMut(Block) -> Result<(), Stopped>,
) -> Result<(), Stopped> {
    let mut blocks = Blocks::new(file, stream, grammar)?;
    if grammar.has_header {
        blocks.header()?;
    }
    while let Some(block) = blocks.next()? {
        visit(block)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Inputs;

    const LINES: Grammar = Grammar { record: line, has_header: false, rows: 5, longest: LONGEST_RECORD };

    fn file(text: &[u8]) -> InputFile {
        Inputs::in_memory("a.txt", text.to_vec()).files.remove(0)
    }

    proptest! {
        #[test]
        fn blocks_hold_all_records_with_their_lines(lines in prop::collection::vec("[a-z]{0,9}", 1..60), rows in 1..9usize, ends: bool) {
            let text = lines.join("\n") + if ends { "\n" } else { "" };
            let file = file(text.as_bytes());
            let mut blocks = Blocks::new(&file, text.as_bytes(), Grammar { rows, ..LINES }).unwrap();
            let (mut together, mut line) = (Vec::new(), 1);
            while let Some(block) = blocks.next().unwrap() {
                prop_assert!(block.records().len() <= rows);
                for (at, record) in block.records().iter() {
                    prop_assert_eq!(at, line);
                    line += 1;
                    together.extend_from_slice(record);
                }
            }
            prop_assert_eq!(together, text.as_bytes());
        }

        #[test]
        fn halving_finds_just_what_is_bad(bad in prop::collection::vec(any::<bool>(), 1..40)) {
            let text: String = bad.iter().map(|bad| if *bad { "bad\n" } else { "good\n" }).collect();
            let file = file(text.as_bytes());
            let block = Blocks::new(&file, text.as_bytes(), Grammar { rows: 99, ..LINES }).unwrap().next().unwrap().unwrap();
            let read = |records: Records<'_>| match records.iter().any(|(_, record)| record == b"bad\n") {
                true => Err("is bad".to_owned()),
                false => Ok(records.text().to_vec()),
            };
            let (mut good, mut lines) = (Vec::new(), Vec::new());
            by_halves(block.records(), &read, &mut |text| good.extend(text), &mut |records, _| {
                lines.push(records.line());
                Ok(())
            }).unwrap();
            let expected = bad.iter().zip(1..).filter(|(bad, _)| **bad).map(|(_, line)| line);
            prop_assert_eq!(lines, expected.collect::<Vec<u64>>());
            prop_assert_eq!(good, text.replace("bad\n", "").into_bytes());
        }
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_is_read() {
        // Compressed, a bomb of a few KiB; the bytes read of it are counted.
        let mut text = b"one\n".to_vec();
        text.resize(64 << 20, b'x');
        let bomb = zstd::encode_all(text.as_slice(), 1).unwrap();
        let file = file(&bomb);
        let mut blocks = Blocks::new(&file, bomb.as_slice(), Grammar { longest: 1 << 20, ..LINES }).unwrap();
        assert_eq!(blocks.next().unwrap().unwrap().records().text(), b"one\n");
        let Err(error) = blocks.next() else { panic!("a line of 64 MiB was taken") };
        assert!(matches!(error, IngestError::Line { line: 2, .. }), "{error}");
        assert!(blocks.rest.capacity() <= 4 << 20, "{}", blocks.rest.capacity());
    }
}
