//! Chat templates: conversations as text, with the parts that the assistant wrote.
//!
//! A [`Template`] renders a list of messages as Hugging Face's transformers does: Jinja with `trim_blocks` and
//! `lstrip_blocks`, `{% break %}` and `{% continue %}`, Python's methods of strings and dictionaries, `tojson` as `json.dumps`
//! with `ensure_ascii=False`, `raise_exception`, `strftime_now` and `{% generation %}`. Time is an argument ([`Now`]), and fuel
//! and output have limits ([`Settings`]), so that each template ends and none fills the memory.
//!
//! ```
//! use serde_json::json;
//! use shardd_packing::chat::{Assistant, Options, Template};
//!
//! # fn main() -> Result<(), shardd_packing::chat::ChatError> {
//! let source = "{% for message in messages %}<{{ message.role }}>\
//!     {% if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}\
//!     {% else %}{{ message.content }}{% endif %}{% endfor %}";
//! let template = Template::new(source, [("eos_token", "</s>")])?;
//! let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]);
//! let rendered = template.render(&messages, &Options { assistant: Assistant::Generation, ..Options::default() })?;
//! assert_eq!(rendered.text, "<user>Hi<assistant>Hello</s>");
//! assert_eq!(rendered.assistant.len(), 1);
//! assert_eq!(&rendered.text[rendered.assistant[0].clone()], "Hello</s>");
//! # Ok(())
//! # }
//! ```

use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use thiserror::Error;

mod config;
mod conversation;
mod date;
mod engine;
mod failure;
mod json;
mod marks;
mod python;
mod source;
mod template;

pub use date::{DateError, Now};
pub use template::Template;

/// A template cannot be read, or a conversation cannot be rendered with it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ChatError {
    /// The template is no Jinja.
    #[error("line {line} of the chat template is no Jinja that transformers accepts: {reason}")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// The end of the sentence.
        reason: String,
    },
    /// A tokenizer's configuration has no such template.
    #[error("the tokenizer's configuration has no chat template: {0}")]
    Config(String),
    /// The messages are no list of objects.
    #[error("{place} is no JSON object: give a list of objects with the keys role and content")]
    Messages {
        /// `messages`, or `messages[3]`.
        place: String,
    },
    /// The template refuses the conversation: it called `raise_exception`.
    #[error("the chat template refuses {}: {reason}", place(message))]
    Refused {
        /// The message with which the refusal begins, from 0, if one was found.
        message: Option<usize>,
        /// The template's text.
        reason: String,
    },
    /// The template cannot be evaluated for the conversation, for example since it uses a key that a message lacks.
    #[error("line {line} of the chat template cannot be evaluated for {}: {reason}", place(message))]
    Evaluation {
        /// The line, from 1; 0 if it is unknown.
        line: usize,
        /// The message with which the failure begins, from 0, if one was found.
        message: Option<usize>,
        /// The engine's text; it names the missing key.
        reason: String,
    },
    /// The template takes too many steps.
    #[error(
        "the chat template did not end within its fuel of {0}: look for an endless loop, or raise the fuel"
    )]
    Fuel(u64),
    /// The text is too long.
    #[error(
        "the chat template made more than {0} bytes: shorten the conversation, or raise the limit of output"
    )]
    Output(usize),
    /// The template asks for the date, and none is given.
    #[error(
        "the chat template asks for the date (strftime_now({0:?})), and none was given: set the option now"
    )]
    NoDate(String),
    /// The assistant's parts were to come from generation blocks.
    #[error(
        "the chat template has no {{% generation %}} block: add blocks, or find the assistant's parts by prefixes"
    )]
    NoGeneration,
    /// The parts of generation blocks cannot be found in the text.
    #[error(
        "the chat template changes the text of a generation block after it was made: find the assistant's parts by prefixes"
    )]
    Marks,
    /// The text of a conversation does not begin with that of its first messages.
    #[error(
        "the text up to messages[{message}] is no beginning of the whole text, which differs at byte {at}: \
        the assistant's parts cannot be found by prefixes, so add {{% generation %}} blocks to the chat template"
    )]
    Prefix {
        /// The assistant's message, from 0.
        message: usize,
        /// The first byte that differs.
        at: usize,
    },
}

fn place(message: &Option<usize>) -> String {
    message.map_or_else(|| "the conversation".to_owned(), |message| format!("messages[{message}]"))
}

/// How the assistant's parts are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Assistant {
    /// They are not.
    #[default]
    None,
    /// The text made inside of `{% generation %}` blocks, as with `return_assistant_tokens_mask` in transformers.
    Generation,
    /// By rendering prefixes of the conversation: a part begins behind the text of the messages before, with the generation
    /// prompt, and ends with the text up to the assistant's message. This renders the conversation twice for each of the
    /// assistant's messages, so that the time grows with the square of their number.
    Prefixes,
    /// [`Assistant::Generation`] if the template has such blocks, and else [`Assistant::Prefixes`].
    Auto,
}

/// What a conversation is rendered with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// The functions that the assistant may call, as a list of JSON schemas; `none` in the template if not given.
    pub tools: Option<Json>,
    /// Documents to answer from, as a list of objects; `none` in the template if not given.
    pub documents: Option<Json>,
    /// Whether the text ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Further variables of the template, such as `enable_thinking`. They replace special tokens of the same name.
    pub variables: Map<String, Json>,
    /// The time that `strftime_now` gives.
    pub now: Option<Now>,
    /// How the assistant's parts are found.
    pub assistant: Assistant,
}

/// Limits of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Steps of one rendering. A step is an instruction of the engine or 64 bytes of text that it makes. Default 4,000,000: up
    /// to 256 MB and about a second.
    pub fuel: u64,
    /// Bytes of text of one rendering. Default 64 MiB.
    pub output_bytes: usize,
    /// Whether it is an error to write a key or a variable that does not exist. Default false: as in transformers, it is
    /// written as nothing.
    pub strict: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { fuel: 4_000_000, output_bytes: 64 << 20, strict: false }
    }
}

/// A conversation as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// The assistant's parts as ranges of bytes, in order, none empty and none overlapping another.
    pub assistant: Vec<Range<usize>>,
}

#[cfg(test)]
mod tests;
