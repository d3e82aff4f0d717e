//! Plain text: documents, as they are, as tokens, or packed into sequences of tokens.
//!
//! Documents are tokenized in parallel, a stretch at a time, and packed in order.

use std::io::Read;
use std::mem;

use arrow::array::ArrowPrimitiveType;
use arrow::datatypes::{ArrowNativeType, DataType, UInt8Type, UInt16Type, UInt32Type};
use shardfmt::InputDigest;
use shardfmt::row::MAX_ROW_BYTES;

use super::lines::{self, Block, Grammar, Text};
use super::pack::{Layout, Packer};
use super::tokens::{self, STRETCH, Tokenizer, token_type};
use super::{About, Feed, Format, PIECE_ROWS, Stopped, tokenizer_file};
use crate::config::{Documents, OnError};
use crate::input::InputFile;
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError, pipeline};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

#[derive(Debug)]
pub(super) struct TextSource {
    about: About,
    files: Vec<InputFile>,
    documents: Documents,
    tokenizer: Option<Tokenizer>,
    token: DataType,
    layout: Layout,
}

/// Some text without tokens yet.
struct Work<'s> {
    file: &'s InputFile,
    text: Stretch,
}

enum Stretch {
    /// Documents.
    Records(Block),
    /// Part of a file that is a document.
    Part { text: Vec<u8>, line: u64, begins: bool, ends: bool },
    /// The rest of a file, which cannot be read.
    Unreadable(IngestError),
}

/// Tokens of a document, or of a part of one; or why there are none.
struct Part<T> {
    /// Where it begins; `None` for the rest of a file that cannot be read.
    line: Option<u64>,
    begins: bool,
    ends: bool,
    tokens: Result<Vec<T>, IngestError>,
}

impl TextSource {
    pub(super) fn open(inputs: Inputs, config: &IngestConfig) -> Result<TextSource, IngestError> {
        let (files, passed_over) = Kind::Text.files(inputs, config);
        let tokenizer = tokenizer_file(config)?.map(|file| Tokenizer::read(&file)).transpose()?;
        let token = token_type(tokenizer.as_ref());
        let layout = Layout::new(config, tokenizer.is_some());
        let is_known = config.documents == Documents::File
            && layout.length().is_none()
            && config.on_error == OnError::Fail;
        let rows = is_known.then_some(files.len() as u64);
        let about = About { schema: layout.schema::<()>(&token), rows, passed_over };
        Ok(TextSource { about, files, documents: config.documents, tokenizer, token, layout })
    }

    fn run<'s, T: ArrowPrimitiveType>(
        &'s self,
        feed: &mut Feed<'_, 's>,
    ) -> Result<Vec<InputDigest>, IngestError> {
        let mut packer = Packer::<T>::of(self.layout)?;
        let mut digests = pipeline::in_order(
            2 * rayon::current_num_threads() + 1,
            |push| self.files.iter().map(|file| self.list(file, push)).collect::<Result<Vec<_>, _>>(),
            |work: Work<'s>| Ok((work.file, self.encode(work))),
            |(file, parts)| self.pack(&mut packer, file, parts, feed),
        )?;
        if let Some(last) = self.files.last() {
            packer.finish(&last.path, &last.name, feed)?;
        }
        digests.extend(self.tokenizer.iter().map(|tokenizer| tokenizer.input.clone()));
        Ok(digests)
    }

    /// Lists the text of a file.
    fn list<'s>(
        &'s self,
        file: &'s InputFile,
        push: &mut dyn FnMut(Work<'s>) -> Result<(), IngestError>,
    ) -> Result<InputDigest, IngestError> {
        let mut stream = file.stream()?;
        let mut visit = |text| push(Work { file, text }).map_err(Stopped::Elsewhere);
        let (rows, longest) = (PIECE_ROWS as usize, lines::LONGEST_RECORD);
        let lines = Grammar { record: lines::line, has_header: false, rows, longest };
        let records = |visit: &mut dyn FnMut(Stretch) -> Result<(), Stopped>, stream, grammar| {
            lines::each_block(file, stream, grammar, &mut |block| visit(Stretch::Records(block)))
        };
        let visited = match self.documents {
            Documents::File => each_part(file, &mut stream, &mut visit),
            Documents::Line => records(&mut visit, &mut stream, lines),
            Documents::BlankLine => records(&mut visit, &mut stream, Grammar { record: paragraph, ..lines }),
        };
        match visited {
            Ok(()) => {}
            Err(Stopped::Reading(error)) => push(Work { file, text: Stretch::Unreadable(error) })?,
            Err(Stopped::Elsewhere(error)) => return Err(error),
        }
        file.finish(stream)
    }

    /// The tokens of some text; on any thread.
    fn encode<T: ArrowNativeType>(&self, work: Work<'_>) -> Vec<Part<T>> {
        let Work { file, text } = work;
        let block = match text {
            Stretch::Unreadable(error) => {
                return vec![Part { line: None, begins: false, ends: false, tokens: Err(error) }];
            }
            Stretch::Part { text, line, begins, ends } => {
                return vec![self.part(file, &text, line, begins, ends)];
            }
            Stretch::Records(block) => block,
        };
        let mut parts = Vec::new();
        for (mut line, record) in block.records().iter() {
            let Some(mut text) = self.document(record) else { continue };
            let mut begins = true;
            while let Some(at) = tokens::stretch(text) {
                let (part, rest) = text.split_at(at);
                parts.push(self.part(file, part, line, begins, false));
                (text, begins) = (rest, false);
                line += lines::newlines(part);
            }
            parts.push(self.part(file, text, line, begins, true));
        }
        parts
    }

    /// The document of a record, if there is one.
    fn document<'r>(&self, record: &'r [u8]) -> Option<&'r [u8]> {
        if self.documents != Documents::BlankLine {
            return Some(without_end(record));
        }
        let (mut range, mut at) = (None, 0);
        for line in record.split_inclusive(|&byte| byte == b'\n') {
            if !line.trim_ascii().is_empty() {
                let (start, _) = range.unwrap_or((at, at));
                range = Some((start, at + without_end(line).len()));
            }
            at += line.len();
        }
        range.map(|(start, end)| &record[start..end])
    }

    fn part<T: ArrowNativeType>(
        &self,
        file: &InputFile,
        text: &[u8],
        line: u64,
        begins: bool,
        ends: bool,
    ) -> Part<T> {
        let native = |id: usize| T::from_usize(id).expect("the type has room for the vocabulary");
        let checked = match std::str::from_utf8(text) {
            Err(error) if self.tokenizer.is_some() || self.layout == Layout::Texts => {
                Err((lines::newlines(&text[..error.valid_up_to()]), "is not UTF-8".to_owned()))
            }
            _ => Ok(()),
        };
        let tokens = checked.and_then(|()| {
            let Some(tokenizer) = &self.tokenizer else {
                return Ok(text.iter().map(|&byte| native(usize::from(byte))).collect());
            };
            let before = tokenizer.before.iter().filter(|_| begins);
            let after = tokenizer.after.iter().filter(|_| ends);
            let ids = tokenizer.encode(text).map_err(|reason| (0, reason))?;
            Ok(before.chain(&ids).chain(after).map(|&id| native(id as usize)).collect())
        });
        let tokens = tokens.map_err(|(lines, reason)| IngestError::Line {
            path: file.path.clone(),
            line: line + lines,
            reason,
        });
        Part { line: Some(line), begins, ends, tokens }
    }

    /// Takes in the next tokens, and gives out the samples that are complete.
    fn pack<T: ArrowPrimitiveType>(
        &self,
        packer: &mut Packer<T>,
        file: &InputFile,
        parts: Vec<Part<T::Native>>,
        feed: &mut Feed<'_, '_>,
    ) -> Result<(), IngestError> {
        for part in parts {
            if part.begins {
                packer.begin();
            }
            match part.tokens {
                Ok(tokens) => packer.add(tokens.into_iter().map(|token| (token, ()))),
                Err(error) => {
                    let name = part.line.map(|line| format!("{}, line {line}", file.name));
                    feed.fault(name.as_ref().unwrap_or(&file.name), error)?;
                    packer.skip();
                }
            }
            let bytes = packer.pending() * size_of::<T::Native>();
            if !matches!(self.layout, Layout::Sequences(_)) {
                // Nothing is pending of a part without a line.
                let place = format_args!("{}, line {}", file.name, part.line.unwrap_or(1));
                file.largest_row.check(place, bytes as u64)?;
                if bytes > MAX_ROW_BYTES {
                    let (path, most) = (file.path.clone(), MAX_ROW_BYTES as u64);
                    feed.fault(&file.name, IngestError::TooLarge { path, bytes: bytes as u64, most })?;
                    packer.skip();
                }
            }
            if part.ends {
                packer.end_in(&file.path, part.line.unwrap_or(1), feed)?;
            }
            while let Some(batch) = packer.samples(false) {
                feed.piece(file.name.clone(), move |_| Ok(batch))?;
            }
        }
        Ok(())
    }
}

impl Format for TextSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        match self.token {
            DataType::UInt8 => self.run::<UInt8Type>(feed),
            DataType::UInt16 => self.run::<UInt16Type>(feed),
            _ => self.run::<UInt32Type>(feed),
        }
    }
}

/// Visits a file that is one document, part by part.
fn each_part(
    file: &InputFile,
    stream: impl Read,
    visit: &mut dyn FnMut(Stretch) -> Result<(), Stopped>,
) -> Result<(), Stopped> {
    let mut content = Text::new(file, stream)?;
    let mut read = |text: &mut Vec<u8>, length: usize| {
        content.read_to(text, length.saturating_sub(text.len())).map_err(Stopped::Reading)
    };
    let mut rest = Vec::new();
    read(&mut rest, BYTE_ORDER_MARK.len())?;
    if rest == BYTE_ORDER_MARK {
        rest.clear();
    }
    let (mut line, mut begins) = (1, true);
    loop {
        // One byte more than a stretch tells whether it is the last.
        read(&mut rest, STRETCH + 1)?;
        let cut = tokens::stretch(&rest);
        let after = rest.split_off(cut.unwrap_or(rest.len()));
        let text = mem::replace(&mut rest, after);
        let newlines = lines::newlines(&text);
        visit(Stretch::Part { text, line, begins, ends: cut.is_none() })?;
        line += newlines;
        begins = false;
        if cut.is_none() {
            return Ok(());
        }
    }
}

/// The length of the first paragraph of a text, with the blank line that ends it.
fn paragraph(text: &[u8]) -> Option<usize> {
    let (mut at, mut has_text) = (0, false);
    while let Some(length) = lines::line(&text[at..]) {
        let is_blank = text[at..at + length].trim_ascii().is_empty();
        at += length;
        if is_blank && has_text {
            return Some(at);
        }
        has_text |= !is_blank;
    }
    None
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}
