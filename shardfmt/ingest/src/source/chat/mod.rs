//! Conversations of JSON Lines or of a table, as tokens with a loss mask: a chat template makes one text of each, and the
//! tokenizer one list of tokens of that.

mod loss;
mod messages;
pub(crate) mod template;

use std::fmt;
use std::path::{Path, PathBuf};

use arrow::array::{ArrowPrimitiveType, AsArray, RecordBatch};
use arrow::datatypes::{ArrowNativeType, DataType, UInt8Type, UInt16Type, UInt32Type};
use arrow::json::WriterBuilder;
use arrow::json::writer::LineDelimited;
use serde_json::{Map, Value as Json};
use shardd_packing::chat::{Assistant, ChatError, Now, Options};
use shardd_packing::{Long, PackError};
use shardfmt::InputDigest;
use shardfmt::row::MAX_ROW_BYTES;

use self::template::ChatTemplate;
use super::json::LONGEST_LINE;
use super::lines::{self, Block, Grammar};
use super::pack::{Layout, Packer, too_long};
use super::sequences::sequences;
use super::tokens::{Tokenizer, token_type};
use super::{About, Faults, Feed, Format, Piece, no_column, tokenizer_file};
use crate::config::Loss;
use crate::error::one_line;
use crate::input::InputFile;
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError};

/// A template may make a long text of a short row: fewer rows than of others are a piece.
const LINES: Grammar = Grammar { record: lines::line, has_header: false, rows: 1024, longest: LONGEST_LINE };
/// The reason in the manifest for a conversation that is left out.
const NO_LOSS: &str = "no token of the conversation has a loss";
/// Letters of a reason that come from a template.
const LONGEST_REASON: usize = 400;

/// An input whose rows are conversations.
#[derive(Debug)]
pub(super) struct Conversations {
    about: About,
    path: PathBuf,
    rows: Rows,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    token: DataType,
    layout: Layout,
    /// The column of the messages, if the settings name one.
    column: Option<String>,
    loss: Loss,
    date: Option<Now>,
    /// A conversation of more tokens is an error.
    most_tokens: Option<u32>,
}

#[derive(Debug)]
enum Rows {
    /// Lines of files, as they are written: Arrow has no type for objects whose keys differ.
    Lines(Vec<InputFile>),
    /// The columns of messages and of tools, by their places in a table.
    Table(Box<dyn Format>, Vec<usize>),
}

/// A token, and whether it has a loss.
type Marked = (u32, bool);

/// Why a row has no tokens.
enum Refusal {
    /// The reason lies in the row.
    Row(String),
    /// A setting is missing, for all rows.
    Setting(IngestError),
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal::Row(reason)
    }
}

impl From<ChatError> for Refusal {
    fn from(error: ChatError) -> Refusal {
        match error {
            ChatError::NoDate(_) => Refusal::Setting(IngestError::Config {
                setting: "chat_date",
                reason: "the chat template asks for the present date".to_owned(),
                way_out: "give the date that it gets, such as 2026-07-26",
            }),
            other => Refusal::Row(flat(other)),
        }
    }
}

impl Conversations {
    /// Those of files of JSON Lines.
    ///
    /// # Errors
    /// As for the tokenizer and the template.
    pub(super) fn of_lines(inputs: Inputs, config: &IngestConfig) -> Result<Conversations, IngestError> {
        let path = inputs.path.clone();
        let (files, passed_over) = Kind::JsonLines.files(inputs, config);
        Self::open(&path, Rows::Lines(files), passed_over, config)
    }

    /// Those of another input.
    ///
    /// # Errors
    /// If it has no column of messages; and as for the tokenizer and the template.
    pub(super) fn of_table(
        path: &Path,
        inner: Box<dyn Format>,
        config: &IngestConfig,
    ) -> Result<Conversations, IngestError> {
        let schema = &inner.about().schema;
        let candidates = messages::candidates(config.messages_column.as_deref());
        let found = candidates.iter().find_map(|name| schema.index_of(name).ok());
        let messages = found.ok_or_else(|| no_column(path, candidates[0], schema))?;
        let tools = schema.index_of(messages::TOOLS).ok().filter(|&tools| tools != messages);
        let columns = [messages].into_iter().chain(tools).collect();
        let passed_over = inner.about().passed_over;
        Self::open(path, Rows::Table(inner, columns), passed_over, config)
    }

    fn open(
        path: &Path,
        rows: Rows,
        passed_over: u64,
        config: &IngestConfig,
    ) -> Result<Conversations, IngestError> {
        let (Some(template), Some(file)) = (&config.chat_template, tokenizer_file(config)?) else {
            unreachable!("settings with a template were checked to have a tokenizer");
        };
        let template = ChatTemplate::read(template)?;
        let tokenizer = Tokenizer::read(&file)?;
        let token = token_type(Some(&tokenizer));
        let layout = Layout::new(config, true);
        let most_tokens = config.packed().filter(|packing| packing.long == Long::Raise);
        Ok(Conversations {
            // How many conversations have no loss is known when they are read.
            about: About { schema: layout.schema::<bool>(&token), rows: None, passed_over },
            path: path.to_owned(),
            rows,
            template,
            tokenizer,
            token,
            layout,
            column: config.messages_column.clone(),
            loss: config.loss,
            date: config.chat_date,
            most_tokens: most_tokens.map(|packing| packing.length),
        })
    }

    fn run<'s, T: ArrowPrimitiveType>(
        &'s self,
        feed: &mut Feed<'_, 's>,
    ) -> Result<Vec<InputDigest>, IngestError> {
        let mut digests = match self.layout.length() {
            Some(_) => sequences::<T, bool>(
                self.layout,
                &self.path,
                feed,
                |feed| self.each::<T>(feed),
                |batch, _| Ok(unpacked::<T>(batch)),
            )?,
            None => self.each::<T>(feed)?,
        };
        digests.push(self.tokenizer.input.clone());
        digests.extend(self.template.inputs.iter().cloned());
        Ok(digests)
    }

    /// Lists the conversations, each as a row of its tokens and their marks.
    fn each<'s, T: ArrowPrimitiveType>(
        &'s self,
        feed: &mut Feed<'_, 's>,
    ) -> Result<Vec<InputDigest>, IngestError> {
        let (inner, columns) = match &self.rows {
            Rows::Lines(files) => {
                let digests = files.iter().map(|file| {
                    lines::pieces(file, LINES, feed, move |block, faults| {
                        self.of_block::<T>(file, block, faults)
                    })
                });
                return digests.collect();
            }
            Rows::Table(inner, columns) => (inner, columns),
        };
        let Feed { push, on_error, largest_row } = feed;
        let mut tokenized = |Piece { name, read }: Piece<'s>| {
            let read = move |faults: &mut Faults| {
                let batch = read(faults)?.map(|batch| batch.project(columns).expect("columns of the schema"));
                batch.map(|batch| self.of_batch::<T>(&batch, faults)).transpose()
            };
            push(Piece { name, read: Box::new(read) })
        };
        inner.pieces(&mut Feed { push: &mut tokenized, on_error: *on_error, largest_row: *largest_row })
    }

    fn of_block<T: ArrowPrimitiveType>(
        &self,
        file: &InputFile,
        block: &Block,
        faults: &mut Faults,
    ) -> Result<RecordBatch, IngestError> {
        let records = block.records().iter().filter(|(_, record)| !record.trim_ascii().is_empty());
        let rows = records.map(|(line, record)| {
            let path = &file.path;
            let fault = move |reason| IngestError::Line { path: path.clone(), line, reason };
            (format!("{}, line {line}", file.name), record, fault)
        });
        self.tokens::<T, _>(rows, faults)
    }

    fn of_batch<T: ArrowPrimitiveType>(
        &self,
        batch: &RecordBatch,
        faults: &mut Faults,
    ) -> Result<RecordBatch, IngestError> {
        // Nulls are left out: in a table, a key that only other rows have is null.
        let mut writer = WriterBuilder::new().build::<_, LineDelimited>(Vec::new());
        let written = writer.write(batch).and_then(|()| writer.finish());
        written.map_err(|error| IngestError::Row { path: self.path.clone(), reason: one_line(error) })?;
        let text = writer.into_inner();
        let piece = faults.piece().to_owned();
        let rows = text.split_inclusive(|&byte| byte == b'\n').enumerate().map(|(row, record)| {
            let entry = format!("{piece}, row {row}");
            let (path, member) = (&self.path, entry.clone());
            let fault = move |reason| IngestError::Member {
                path: path.clone(),
                entry: member,
                reason: format!("makes no tokens: {reason}"),
            };
            (entry, record, fault)
        });
        self.tokens::<T, _>(rows, faults)
    }

    /// The tokens of rows. Each is an object of JSON, with its name and the error that a reason makes.
    fn tokens<'r, T: ArrowPrimitiveType, F: FnOnce(String) -> IngestError>(
        &self,
        rows: impl Iterator<Item = (String, &'r [u8], F)>,
        faults: &mut Faults,
    ) -> Result<RecordBatch, IngestError> {
        let native =
            |id: u32| T::Native::from_usize(id as usize).expect("the type has room for the vocabulary");
        let mut packer = Packer::<T, bool>::of(Layout::Documents)?;
        for (name, record, fault) in rows {
            match self.conversation(record) {
                Ok(Some(tokens)) => {
                    packer.begin();
                    packer.add(tokens.into_iter().map(|(id, has_loss)| (native(id), has_loss)));
                    packer.end().expect("no sequence that it could exceed");
                }
                Ok(None) => faults.skipped.push((name, NO_LOSS.to_owned())),
                Err(Refusal::Row(reason)) => faults.add(name, fault(reason))?,
                Err(Refusal::Setting(error)) => return Err(error),
            }
            let (bytes, most) = (packer.held() * size_of::<T::Native>(), MAX_ROW_BYTES);
            if bytes > most {
                let (path, bytes, most) = (self.path.clone(), bytes as u64, most as u64);
                return Err(IngestError::TooLarge { path, bytes, most });
            }
        }
        let schema = Layout::Documents.schema::<bool>(&T::DATA_TYPE);
        Ok(packer.samples(true).unwrap_or_else(|| RecordBatch::new_empty(schema)))
    }

    /// The tokens of a row, or the reason why there are none; `None` if no token has a loss.
    fn conversation(&self, record: &[u8]) -> Result<Option<Vec<Marked>>, Refusal> {
        let row: Map<String, Json> = serde_json::from_slice(record.trim_ascii())
            .map_err(|error| one_line(error).replace(" at line 1 column ", " at byte "))?;
        let messages = messages::of(&row, self.column.as_deref())?;
        let assistant = match self.loss {
            Loss::Assistant => Assistant::Auto,
            Loss::All => Assistant::None,
        };
        let tools = messages::tools(&row, self.column.as_deref())?;
        let options = Options { tools, now: self.date, assistant, ..Options::default() };
        let rendered = self.template.render(&messages, &options)?;
        let (ids, places) = self.tokenizer.with_places(&rendered.text)?;
        let losses = match self.loss {
            Loss::Assistant => loss::of_parts(&places, &rendered.assistant),
            Loss::All => vec![true; ids.len()],
        };
        if !losses.contains(&true) {
            return Ok(None);
        }
        let tokens = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        match self.most_tokens.filter(|&length| tokens > length) {
            Some(length) => Err(too_long(&PackError::Long { document: 0, tokens, length }).into()),
            None => Ok(Some(ids.into_iter().zip(losses).collect())),
        }
    }
}

impl Format for Conversations {
    fn about(&self) -> &About {
        &self.about
    }

    fn turned_out(&self) -> Option<Kind> {
        match &self.rows {
            Rows::Lines(_) => None,
            Rows::Table(inner, _) => inner.turned_out(),
        }
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        match self.token {
            DataType::UInt8 => self.run::<UInt8Type>(feed),
            DataType::UInt16 => self.run::<UInt16Type>(feed),
            _ => self.run::<UInt32Type>(feed),
        }
    }
}

/// The tokens and marks of rows that [`Conversations::tokens`] made.
fn unpacked<T: ArrowPrimitiveType>(batch: &RecordBatch) -> Vec<Vec<(T::Native, bool)>> {
    let rows = batch.column(0).as_list::<i32>().iter().zip(batch.column(1).as_list::<i32>().iter());
    let marked = rows.filter_map(|(tokens, marks)| Some((tokens?, marks?))).map(|(tokens, marks)| {
        let marks = marks.as_primitive::<UInt8Type>().values().iter().map(|&mark| mark == 1);
        tokens.as_primitive::<T>().values().iter().copied().zip(marks).collect()
    });
    marked.collect()
}

/// A message of someone else's template as one line.
fn flat(message: impl fmt::Display) -> String {
    let words = message.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().take(LONGEST_REASON).collect()
}
