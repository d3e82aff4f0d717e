//! Lays the tokens of documents into samples: one for each document, or sequences of one length, packed without a gap. Pure:
//! tokens in, record batches out.

use std::mem;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, FixedSizeListArray, ListArray, PrimitiveArray, RecordBatch, StringArray,
};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt32Type};

use super::arrays::as_tensors;
use super::{PIECE_BYTES, PIECE_ROWS};

/// The kind of samples made of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Column `text`: a document, whose tokens are its bytes.
    Texts,
    /// Column `tokens`: those of a document.
    Documents,
    /// Column `tokens`: a fixed number of them; `documents`: where in the sequence documents begin.
    Sequences(u32),
}

impl Layout {
    pub(super) fn schema(self, token: &DataType) -> SchemaRef {
        let tokens = |data_type| Field::new("tokens", data_type, false);
        let fields = match self {
            Layout::Texts => vec![Field::new("text", DataType::Utf8, false)],
            Layout::Documents => vec![tokens(DataType::new_list(token.clone(), false))],
            Layout::Sequences(length) => {
                let sequence = DataType::new_fixed_size_list(token.clone(), length as i32, false);
                let starts = DataType::new_list(DataType::UInt32, false);
                vec![
                    as_tensors(tokens(sequence), &[u64::from(length)]),
                    Field::new("documents", starts, false),
                ]
            }
        };
        Arc::new(Schema::new(fields))
    }
}

/// Takes documents in order, and gives samples out.
pub(super) struct Packer<T: ArrowPrimitiveType> {
    layout: Layout,
    schema: SchemaRef,
    /// Of samples that were not given out, and of one that is not complete.
    tokens: Vec<T::Native>,
    /// Where samples end ([`Layout::Sequences`]: where documents begin), counted in `tokens`.
    marks: Vec<usize>,
    document: Document,
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

impl<T: ArrowPrimitiveType> Packer<T> {
    pub(super) fn new(layout: Layout) -> Packer<T> {
        let (schema, tokens, marks) = (layout.schema(&T::DATA_TYPE), Vec::new(), Vec::new());
        Packer { layout, schema, tokens, marks, document: Document::Begun, samples: 0 }
    }

    /// Begins a document.
    pub(super) fn begin(&mut self) {
        self.document = Document::Begun;
    }

    /// The next tokens of the document.
    pub(super) fn add(&mut self, tokens: &[T::Native]) {
        if self.is_sequences() {
            if self.document == Document::Begun && !tokens.is_empty() {
                self.marks.push(self.tokens.len());
                self.document = Document::HasTokens;
            }
        } else if self.document == Document::Broken {
            return;
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// Tokens of the document that is under way, and not yet in a sample: those of a sample may be too many.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.marks.last().copied().filter(|_| !self.is_sequences()).unwrap_or(0)
    }

    /// Part of the document cannot be read. Without it a document is none; a sequence continues behind it.
    pub(super) fn skip(&mut self) {
        if !self.is_sequences() {
            self.tokens.truncate(self.marks.last().copied().unwrap_or(0));
            self.document = Document::Broken;
        }
    }

    /// Ends the document.
    pub(super) fn end(&mut self) {
        if !self.is_sequences() && self.document != Document::Broken {
            self.marks.push(self.tokens.len());
        }
    }

    /// Samples that are complete, if they are enough for a piece or `is_last`.
    pub(super) fn samples(&mut self, is_last: bool) -> Option<RecordBatch> {
        let (count, tokens) = match self.layout {
            Layout::Sequences(length) => {
                let count = self.tokens.len() / length as usize;
                (count, count * length as usize)
            }
            Layout::Texts | Layout::Documents => (self.marks.len(), self.marks.last().copied().unwrap_or(0)),
        };
        let is_enough = (tokens * size_of::<T::Native>()) as u64 >= PIECE_BYTES || count as u64 >= PIECE_ROWS;
        if count == 0 || !(is_enough || is_last) {
            return None;
        }
        let rest = self.tokens.split_off(tokens);
        let tokens = mem::replace(&mut self.tokens, rest);
        self.samples += count as u64;
        Some(match self.layout {
            Layout::Sequences(length) => self.sequences(tokens, count, length),
            Layout::Texts | Layout::Documents => self.documents(tokens),
        })
    }

    /// Tokens that make no sample: fewer than a sequence.
    pub(super) fn rest(&self) -> usize {
        self.tokens.len()
    }

    fn is_sequences(&self) -> bool {
        matches!(self.layout, Layout::Sequences(_))
    }

    fn documents(&mut self, tokens: Vec<T::Native>) -> RecordBatch {
        let mut start = 0;
        let lengths = mem::take(&mut self.marks).into_iter().map(|end| end - mem::replace(&mut start, end));
        let offsets = OffsetBuffer::from_lengths(lengths);
        let column: ArrayRef = match self.layout {
            Layout::Texts => {
                let bytes = Buffer::from_vec(tokens);
                Arc::new(
                    StringArray::try_new(offsets, bytes, None).expect("parts were UTF-8, so is the whole"),
                )
            }
            _ => list::<T>(offsets, tokens),
        };
        RecordBatch::try_new(self.schema.clone(), vec![column]).expect("columns as the schema says")
    }

    fn sequences(&mut self, tokens: Vec<T::Native>, count: usize, length: u32) -> RecordBatch {
        let later = self.marks.split_off(self.marks.partition_point(|&mark| mark < tokens.len()));
        let marks = mem::replace(&mut self.marks, later);
        self.marks.iter_mut().for_each(|mark| *mark -= tokens.len());
        let mut begins = vec![0; count];
        marks.iter().for_each(|mark| begins[mark / length as usize] += 1);
        let starts = marks.iter().map(|mark| (mark % length as usize) as u32).collect();
        let item = Arc::new(Field::new_list_field(T::DATA_TYPE, false));
        let tokens = Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(tokens), None));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(FixedSizeListArray::new(item, length as i32, tokens, None)),
            list::<UInt32Type>(OffsetBuffer::from_lengths(begins), starts),
        ];
        RecordBatch::try_new(self.schema.clone(), columns).expect("columns as the schema says")
    }
}

fn list<T: ArrowPrimitiveType>(offsets: OffsetBuffer<i32>, items: Vec<T::Native>) -> ArrayRef {
    let item = Arc::new(Field::new_list_field(T::DATA_TYPE, false));
    Arc::new(ListArray::new(item, offsets, Arc::new(PrimitiveArray::<T>::new(items.into(), None)), None))
}
