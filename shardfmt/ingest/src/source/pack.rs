//! Lays the tokens of documents into samples: one for each document, or sequences of one length, joined without a gap or packed
//! of whole documents. A token may have a mark: whether it has a loss. Pure: tokens in, record batches out.

use std::mem;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, FixedSizeListArray, ListArray, PrimitiveArray, RecordBatch, StringArray,
};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt8Type, UInt32Type};

use shardd_packing::{PackError, Packing, Stats};

use super::arrays::as_tensors;
use super::window::{Sequences, Window};
use super::{Feed, PIECE_BYTES, PIECE_ROWS};
use crate::{IngestConfig, IngestError};

/// The column of the marks of tokens: 1 where a token has a loss, and 0 elsewhere.
pub(super) const LOSS_MASK: &str = "loss_mask";

/// The mark of a token: none, or whether it has a loss.
pub(super) trait Mark: Copy + Default + Send + 'static {
    /// Whether samples have the column [`LOSS_MASK`].
    const IS_KEPT: bool;

    /// Its value there.
    fn value(self) -> u8;
}

impl Mark for () {
    const IS_KEPT: bool = false;

    fn value(self) -> u8 {
        0
    }
}

impl Mark for bool {
    const IS_KEPT: bool = true;

    fn value(self) -> u8 {
        self.into()
    }
}

/// The kind of samples made of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Column `text`: a document, whose tokens are its bytes.
    Texts,
    /// Column `tokens`: those of a document.
    Documents,
    /// Column `tokens`: a fixed number of them; `documents`: where in the sequence documents begin.
    Sequences(u32),
    /// The same of whole documents, as far as they fit; `length`: how many of the tokens are theirs. Zeros follow.
    Packed(Packing),
}

impl Layout {
    /// As the settings have it.
    pub(super) fn new(config: &IngestConfig, has_tokenizer: bool) -> Layout {
        match (config.packed(), config.sequence_length) {
            (Some(packing), _) => Layout::Packed(packing),
            (None, Some(length)) => Layout::Sequences(length),
            (None, None) if has_tokenizer => Layout::Documents,
            (None, None) => Layout::Texts,
        }
    }

    /// The columns of samples with tokens of this type and marks of the type `M`.
    pub(super) fn schema<M: Mark>(self, token: &DataType) -> SchemaRef {
        let of_each = |name, item: &DataType| match self.length() {
            None => Field::new(name, DataType::new_list(item.clone(), false), false),
            Some(length) => {
                let sequence = DataType::new_fixed_size_list(item.clone(), length as i32, false);
                as_tensors(Field::new(name, sequence, false), &[u64::from(length)])
            }
        };
        let mut fields = match self {
            Layout::Texts => vec![Field::new("text", DataType::Utf8, false)],
            Layout::Documents | Layout::Sequences(_) | Layout::Packed(_) => vec![of_each("tokens", token)],
        };
        if self.length().is_some() {
            fields.push(Field::new("documents", DataType::new_list(DataType::UInt32, false), false));
        }
        if matches!(self, Layout::Packed(_)) {
            fields.push(Field::new("length", DataType::UInt32, false));
        }
        if M::IS_KEPT {
            fields.push(of_each(LOSS_MASK, &DataType::UInt8));
        }
        Arc::new(Schema::new(fields))
    }

    /// The length of its sequences, if it has any.
    pub(super) fn length(self) -> Option<u32> {
        match self {
            Layout::Sequences(length) | Layout::Packed(Packing { length, .. }) => Some(length),
            Layout::Texts | Layout::Documents => None,
        }
    }
}

/// Takes documents in order, and gives samples out.
pub(super) struct Packer<T: ArrowPrimitiveType, M: Mark = ()> {
    layout: Layout,
    schema: SchemaRef,
    /// Of samples that were not given out, and of one that is not complete.
    tokens: Vec<(T::Native, M)>,
    /// Where samples end ([`Layout::Sequences`]: where documents begin), counted in `tokens`.
    bounds: Vec<usize>,
    document: Document,
    /// Where whole documents wait ([`Layout::Packed`]); `tokens` then has those of one document.
    window: Option<Window<(T::Native, M)>>,
    /// Samples that were given out.
    pub(super) samples: u64,
}

/// How far the document is whose tokens come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Document {
    /// It has no tokens so far.
    Begun,
    HasTokens,
    /// Part of it cannot be read.
    Broken,
}

impl<T: ArrowPrimitiveType, M: Mark> Packer<T, M> {
    /// # Errors
    /// [`IngestError::Config`] of sequences without a length.
    pub(super) fn of(layout: Layout) -> Result<Packer<T, M>, IngestError> {
        let (schema, tokens, bounds) = (layout.schema::<M>(&T::DATA_TYPE), Vec::new(), Vec::new());
        let window = match layout {
            Layout::Packed(packing) => Some(Window::new(packing).map_err(no_packing)?),
            Layout::Texts | Layout::Documents | Layout::Sequences(_) => None,
        };
        Ok(Packer { layout, schema, tokens, bounds, document: Document::Begun, window, samples: 0 })
    }

    /// Begins a document.
    pub(super) fn begin(&mut self) {
        self.document = Document::Begun;
    }

    /// The next tokens of the document, each with its mark.
    pub(super) fn add(&mut self, tokens: impl ExactSizeIterator<Item = (T::Native, M)>) {
        if self.is_sequences() {
            if self.document == Document::Begun && tokens.len() > 0 {
                self.bounds.push(self.tokens.len());
                self.document = Document::HasTokens;
            }
        } else if self.document == Document::Broken {
            return;
        }
        self.tokens.extend(tokens);
        // What is cut anyway need not be there as a whole.
        if let Some(window) = &mut self.window
            && let Some(length) = window.cut_at()
        {
            while self.tokens.len() > length {
                let rest = self.tokens.split_off(length);
                window
                    .push(mem::replace(&mut self.tokens, rest))
                    .expect("no document is longer than a sequence");
            }
        }
    }

    /// Tokens of the document that is under way, and not yet in a sample: those of a sample may be too many.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.bounds.last().copied().filter(|_| !self.is_sequences()).unwrap_or(0)
    }

    /// Tokens that are not in a sample yet.
    pub(super) fn held(&self) -> usize {
        self.tokens.len()
    }

    /// Part of the document cannot be read. Without it a document is none; a sequence continues behind it.
    pub(super) fn skip(&mut self) {
        if !self.is_sequences() {
            self.tokens.truncate(self.bounds.last().copied().unwrap_or(0));
            self.document = Document::Broken;
        }
    }

    /// Ends the document.
    ///
    /// # Errors
    /// [`PackError::Long`] if it is too long for a sequence, and that is to be an error.
    pub(super) fn end(&mut self) -> Result<(), PackError> {
        if self.is_sequences() || self.document == Document::Broken {
            return Ok(());
        }
        match &mut self.window {
            Some(window) => window.push(mem::take(&mut self.tokens))?,
            None => self.bounds.push(self.tokens.len()),
        }
        Ok(())
    }

    /// Ends the document, which began in this line of a file.
    ///
    /// # Errors
    /// As [`end`](Self::end), unless such documents are left out.
    pub(super) fn end_in(
        &mut self,
        path: &Path,
        line: u64,
        feed: &mut Feed<'_, '_>,
    ) -> Result<(), IngestError> {
        self.end().or_else(|error| {
            let reason = too_long(&error);
            let name = format!("{}, line {line}", path.display());
            feed.fault(&name, IngestError::Line { path: path.to_owned(), line, reason })
        })
    }

    /// Gives the last samples out, and lists the tokens that are in none. `path` and `name` are those of the last input.
    ///
    /// # Errors
    /// [`IngestError::NoSamples`] if there are fewer tokens than in a sequence.
    pub(super) fn finish(
        &mut self,
        path: &Path,
        name: &str,
        feed: &mut Feed<'_, '_>,
    ) -> Result<(), IngestError> {
        while let Some(batch) = self.samples(true) {
            feed.piece("the last samples", move |_| Ok(batch))?;
        }
        let Some(length) = self.layout.length() else { return Ok(()) };
        let rest = self.rest();
        if self.samples == 0 {
            let found = match self.window {
                Some(_) => format!("no document that fits a sequence of {length}"),
                None => format!("{rest} tokens, fewer than a sequence of {length}"),
            };
            return Err(IngestError::NoSamples { path: path.to_owned(), found });
        }
        if rest > 0 {
            feed.left_out(name, &format!("its last {rest} tokens are fewer than a sequence of {length}"))?;
        }
        let Some(Stats { truncated, truncated_tokens, dropped, dropped_tokens, .. }) =
            self.window.as_ref().map(Window::stats)
        else {
            return Ok(());
        };
        if truncated > 0 {
            let reason = format!(
                "the last {truncated_tokens} tokens of {truncated} documents are beyond a sequence of {length}"
            );
            feed.left_out(name, &reason)?;
        }
        if dropped > 0 {
            let reason = format!(
                "{dropped} documents of {dropped_tokens} tokens are longer than a sequence of {length}"
            );
            feed.left_out(name, &reason)?;
        }
        Ok(())
    }

    /// Samples that are complete, if they are enough for a piece or `is_last`.
    pub(super) fn samples(&mut self, is_last: bool) -> Option<RecordBatch> {
        if self.window.is_some() {
            return self.packed(is_last);
        }
        let (count, tokens) = match self.layout {
            Layout::Sequences(length) => {
                let count = self.tokens.len() / length as usize;
                (count, count * length as usize)
            }
            _ => (self.bounds.len(), self.bounds.last().copied().unwrap_or(0)),
        };
        if count == 0 || !(is_enough::<T>(count, tokens) || is_last) {
            return None;
        }
        let rest = self.tokens.split_off(tokens);
        let tokens = mem::replace(&mut self.tokens, rest);
        self.samples += count as u64;
        Some(match self.layout {
            Layout::Sequences(length) => self.sequences(tokens, count, length),
            _ => self.documents(tokens),
        })
    }

    /// The same of packed sequences.
    fn packed(&mut self, is_last: bool) -> Option<RecordBatch> {
        let (window, length) = (self.window.as_mut()?, self.layout.length()?);
        if is_last && !window.is_closed() {
            window.close();
        }
        let count = window.count();
        if count == 0 || !(is_enough::<T>(count, count * length as usize) || is_last) {
            return None;
        }
        let bytes = u64::from(length) * size_of::<T::Native>() as u64;
        let Sequences { tokens, starts, documents, lengths } =
            window.take((PIECE_BYTES / bytes).clamp(1, PIECE_ROWS) as usize);
        self.samples += lengths.len() as u64;
        Some(self.of_sequences(tokens, length, documents, starts, Some(lengths)))
    }

    /// Tokens that make no sample: fewer than a sequence.
    pub(super) fn rest(&self) -> usize {
        if self.is_sequences() { self.tokens.len() } else { 0 }
    }

    fn is_sequences(&self) -> bool {
        matches!(self.layout, Layout::Sequences(_))
    }

    fn documents(&mut self, tokens: Vec<(T::Native, M)>) -> RecordBatch {
        let mut start = 0;
        let lengths = mem::take(&mut self.bounds).into_iter().map(|end| end - mem::replace(&mut start, end));
        let offsets = OffsetBuffer::from_lengths(lengths);
        let (tokens, mask) = apart(tokens);
        let masks = mask.map(|mask| list::<UInt8Type>(offsets.clone(), mask));
        let column: ArrayRef = match self.layout {
            Layout::Texts => {
                let bytes = Buffer::from_vec(tokens);
                Arc::new(
                    StringArray::try_new(offsets, bytes, None).expect("parts were UTF-8, so is the whole"),
                )
            }
            _ => list::<T>(offsets, tokens),
        };
        let columns = [column].into_iter().chain(masks).collect();
        RecordBatch::try_new(self.schema.clone(), columns).expect("columns as the schema says")
    }

    fn sequences(&mut self, tokens: Vec<(T::Native, M)>, count: usize, length: u32) -> RecordBatch {
        let later = self.bounds.split_off(self.bounds.partition_point(|&bound| bound < tokens.len()));
        let bounds = mem::replace(&mut self.bounds, later);
        self.bounds.iter_mut().for_each(|bound| *bound -= tokens.len());
        let mut begins = vec![0; count];
        bounds.iter().for_each(|bound| begins[bound / length as usize] += 1);
        let starts = bounds.iter().map(|bound| (bound % length as usize) as u32).collect();
        self.of_sequences(tokens, length, begins, starts, None)
    }

    /// Sequences with the places where documents begin in them, how many of these each has, and how many of its tokens are of
    /// documents.
    fn of_sequences(
        &self,
        tokens: Vec<(T::Native, M)>,
        length: u32,
        documents: Vec<usize>,
        starts: Vec<u32>,
        lengths: Option<Vec<u32>>,
    ) -> RecordBatch {
        let (tokens, mask) = apart(tokens);
        let starts = list::<UInt32Type>(OffsetBuffer::from_lengths(documents), starts);
        let mut columns = vec![fixed::<T>(tokens, length), starts];
        columns
            .extend(lengths.map(|lengths| Arc::new(PrimitiveArray::<UInt32Type>::from(lengths)) as ArrayRef));
        columns.extend(mask.map(|mask| fixed::<UInt8Type>(mask, length)));
        RecordBatch::try_new(self.schema.clone(), columns).expect("columns as the schema says")
    }
}

/// Settings are checked before.
fn no_packing(error: PackError) -> IngestError {
    IngestError::Config {
        setting: "sequence_length",
        reason: error.to_string(),
        way_out: "give the number of tokens of a sample, such as 1024",
    }
}

/// Why a document fits no sequence, and the way out.
pub(super) fn too_long(error: &PackError) -> String {
    match error {
        PackError::Long { tokens, length, .. } => format!(
            "the document has {tokens} tokens, and a sequence {length}: choose long_documents = split, truncate or drop"
        ),
        other => other.to_string(),
    }
}

/// Whether samples make a piece.
fn is_enough<T: ArrowPrimitiveType>(count: usize, tokens: usize) -> bool {
    (tokens * size_of::<T::Native>()) as u64 >= PIECE_BYTES || count as u64 >= PIECE_ROWS
}

/// Tokens, and the values of their marks where these are kept.
fn apart<N, M: Mark>(tokens: Vec<(N, M)>) -> (Vec<N>, Option<Vec<u8>>) {
    let mask = M::IS_KEPT.then(|| tokens.iter().map(|(_, mark)| mark.value()).collect());
    (tokens.into_iter().map(|(token, _)| token).collect(), mask)
}

/// Sequences of one length.
fn fixed<T: ArrowPrimitiveType>(items: Vec<T::Native>, length: u32) -> ArrayRef {
    let item = Arc::new(Field::new_list_field(T::DATA_TYPE, false));
    let items = Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(items), None));
    Arc::new(FixedSizeListArray::new(item, length as i32, items, None))
}

fn list<T: ArrowPrimitiveType>(offsets: OffsetBuffer<i32>, items: Vec<T::Native>) -> ArrayRef {
    let item = Arc::new(Field::new_list_field(T::DATA_TYPE, false));
    Arc::new(ListArray::new(item, offsets, Arc::new(PrimitiveArray::<T>::new(items.into(), None)), None))
}
