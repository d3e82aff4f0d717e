//! A column of text of another kind of input, as tokens: beside its other columns, or packed into sequences.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, ListArray, PrimitiveArray, RecordBatch,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{cast, filter_record_batch};
use arrow::datatypes::{ArrowNativeType, DataType, Field, Schema, UInt8Type, UInt16Type, UInt32Type};
use shardfmt::InputDigest;

use super::pack::Layout;
use super::sequences::sequences;
use super::tokens::{Tokenizer, token_type};
use super::{About, Faults, Feed, Format, Piece, no_column, tokenizer_file};
use crate::config::OnError;
use crate::error::one_line;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError};

/// Another input, of which one column has text.
#[derive(Debug)]
pub(super) struct TextColumn {
    about: About,
    path: PathBuf,
    inner: Box<dyn Format>,
    column: usize,
    tokenizer: Option<Tokenizer>,
    token: DataType,
    layout: Layout,
}

/// The tokens of rows, and which rows have some.
type Tokenized<T> = (Vec<Vec<T>>, BooleanArray);

impl TextColumn {
    /// # Errors
    /// If there is no such column, or it has no text; and as for the tokenizer.
    pub(super) fn open(
        path: &Path,
        inner: Box<dyn Format>,
        column: &str,
        config: &IngestConfig,
    ) -> Result<TextColumn, IngestError> {
        let schema = &inner.about().schema;
        let index = schema.index_of(column).map_err(|_| no_column(path, column, schema))?;
        let found = schema.field(index).data_type();
        if !matches!(found, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) {
            return Err(IngestError::Config {
                setting: "text_column",
                reason: format!("column {column:?} is {found}, not text"),
                way_out: "name a column of text",
            });
        }
        let tokenizer = tokenizer_file(config)?.map(|file| Tokenizer::read(&file)).transpose()?;
        let token = token_type(tokenizer.as_ref());
        let layout = Layout::new(config, tokenizer.is_some());
        let passed_over = inner.about().passed_over;
        let about = match layout.length() {
            Some(_) => About { schema: layout.schema::<()>(&token), rows: None, passed_over },
            None => {
                let mut fields = schema.fields().to_vec();
                fields[index] = Arc::new(Field::new(column, DataType::new_list(token.clone(), false), false));
                let rows = inner.about().rows.filter(|_| config.on_error == OnError::Fail);
                About {
                    schema: Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())),
                    rows,
                    passed_over,
                }
            }
        };
        Ok(TextColumn { about, path: path.to_owned(), inner, column: index, tokenizer, token, layout })
    }

    fn run<'s, T: ArrowPrimitiveType>(
        &'s self,
        feed: &mut Feed<'_, 's>,
    ) -> Result<Vec<InputDigest>, IngestError> {
        let mut digests = match self.layout.length() {
            Some(_) => sequences::<T, ()>(
                self.layout,
                &self.path,
                feed,
                |feed| self.inner.pieces(feed),
                |batch, faults| Ok(self.tokens::<T>(batch, faults)?.0.into_iter().map(unmarked).collect()),
            )?,
            None => self.beside::<T>(feed)?,
        };
        digests.extend(self.tokenizer.iter().map(|tokenizer| tokenizer.input.clone()));
        Ok(digests)
    }

    /// The tokens beside the other columns.
    fn beside<'s, T: ArrowPrimitiveType>(
        &'s self,
        feed: &mut Feed<'_, 's>,
    ) -> Result<Vec<InputDigest>, IngestError> {
        let Feed { push, on_error, largest_row } = feed;
        let mut tokenized = |Piece { name, read }: Piece<'s>| {
            let read = move |faults: &mut Faults| {
                let batch = read(faults)?;
                batch.map(|batch| self.with_tokens::<T>(batch, faults)).transpose()
            };
            push(Piece { name, read: Box::new(read) })
        };
        self.inner.pieces(&mut Feed { push: &mut tokenized, on_error: *on_error, largest_row: *largest_row })
    }

    fn with_tokens<T: ArrowPrimitiveType>(
        &self,
        batch: RecordBatch,
        faults: &mut Faults,
    ) -> Result<RecordBatch, IngestError> {
        let (tokens, kept) = self.tokens::<T>(&batch, faults)?;
        let batch = match kept.true_count() == kept.len() {
            true => batch,
            false => filter_record_batch(&batch, &kept).expect("a mask of its length"),
        };
        let offsets = OffsetBuffer::from_lengths(tokens.iter().map(Vec::len));
        let item = Arc::new(Field::new_list_field(T::DATA_TYPE, false));
        let values = Arc::new(PrimitiveArray::<T>::new(tokens.concat().into(), None));
        let mut columns: Vec<ArrayRef> = batch.columns().to_vec();
        columns[self.column] = Arc::new(ListArray::new(item, offsets, values, None));
        Ok(RecordBatch::try_new(self.about.schema.clone(), columns).expect("columns as the schema says"))
    }

    /// The tokens of each row that has some, and which these are; a row without text has none. Rows that cannot be tokenized are
    /// faults.
    fn tokens<T: ArrowPrimitiveType>(
        &self,
        batch: &RecordBatch,
        faults: &mut Faults,
    ) -> Result<Tokenized<T::Native>, IngestError> {
        let native = |id: usize| T::Native::from_usize(id).expect("the type has room for the vocabulary");
        let texts = cast(batch.column(self.column), &DataType::LargeUtf8).expect("text becomes text");
        let (mut tokens, mut kept) = (Vec::with_capacity(texts.len()), Vec::with_capacity(texts.len()));
        for (row, text) in texts.as_string::<i64>().iter().enumerate() {
            let Some(text) = text.map(str::as_bytes) else {
                tokens.push(Vec::new());
                kept.push(true);
                continue;
            };
            let document = match &self.tokenizer {
                Some(tokenizer) => tokenizer.document(text),
                None => Ok(text.iter().map(|&byte| u32::from(byte)).collect()),
            };
            kept.push(document.is_ok());
            match document {
                Ok(document) => tokens.push(document.into_iter().map(|id| native(id as usize)).collect()),
                Err(reason) => {
                    let path = self.path.clone();
                    faults.row(
                        row,
                        IngestError::Row { path, reason: format!("the text {}", one_line(reason)) },
                    )?;
                }
            }
        }
        Ok((tokens, BooleanArray::from(kept)))
    }
}

/// Tokens without a loss mask.
fn unmarked<N>(tokens: Vec<N>) -> Vec<(N, ())> {
    tokens.into_iter().map(|token| (token, ())).collect()
}

impl Format for TextColumn {
    fn about(&self) -> &About {
        &self.about
    }

    fn turned_out(&self) -> Option<Kind> {
        self.inner.turned_out()
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        match self.token {
            DataType::UInt8 => self.run::<UInt8Type>(feed),
            DataType::UInt16 => self.run::<UInt16Type>(feed),
            _ => self.run::<UInt32Type>(feed),
        }
    }
}
