//! A chat template: rendering, and the assistant's parts.

use std::collections::BTreeMap;
use std::ops::Range;

use minijinja::Value;
use serde_json::{Map, Value as Json};

use super::conversation::{Conversation, messages_of};
use super::engine::Engine;
use super::marks::{Marks, Used};
use super::{Assistant, ChatError, Options, Rendered, Settings, failure, source};

/// A chat template with the special tokens of a tokenizer. It can be shared between threads.
#[derive(Clone, Debug)]
pub struct Template {
    engine: Engine,
    /// Whether it has a generation block.
    generates: bool,
    /// Whether the text of each generation block goes straight to the output.
    direct: bool,
    special_tokens: BTreeMap<String, Value>,
    /// Private characters of the source and the special tokens.
    used: Used,
}

impl Template {
    /// Reads a template in Jinja, the text of `chat_template.jinja` or of the key `chat_template` of
    /// `tokenizer_config.json`.
    ///
    /// Special tokens are variables of the template, such as `("bos_token", "<s>")`.
    ///
    /// # Errors
    /// [`ChatError::Syntax`].
    pub fn new<'a>(
        source: &str,
        special_tokens: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ChatError> {
        Self::with_settings(source, special_tokens, Settings::default())
    }

    /// Reads a template, with other limits.
    ///
    /// # Errors
    /// [`ChatError::Syntax`].
    pub fn with_settings<'a>(
        source: &str,
        special_tokens: impl IntoIterator<Item = (&'a str, &'a str)>,
        settings: Settings,
    ) -> Result<Self, ChatError> {
        let mut used = Used::default();
        used.add_text(source);
        let mut tokens = BTreeMap::new();
        for (name, token) in special_tokens {
            used.add_text(token);
            tokens.insert(name.to_owned(), Value::from(token));
        }
        let source = source::read(source)?;
        let engine = Engine::new(source.text, settings).map_err(|error| failure::syntax(&error))?;
        Ok(Self { engine, generates: source.generates, direct: source.direct, special_tokens: tokens, used })
    }

    /// Whether it has a `{% generation %}` block.
    pub fn has_generation(&self) -> bool {
        self.generates
    }

    /// Renders a conversation: `messages` is a list of objects, mostly with the keys `role` and `content`.
    ///
    /// A message's reasoning under the name `thinking` or `reasoning` is `reasoning_content` as well, as in transformers.
    ///
    /// # Errors
    /// [`ChatError::Messages`] for another value; [`ChatError::Refused`], [`ChatError::Evaluation`], [`ChatError::NoDate`],
    /// [`ChatError::Fuel`] and [`ChatError::Output`] from the template; [`ChatError::NoGeneration`], [`ChatError::Marks`] and
    /// [`ChatError::Prefix`] if the assistant's parts cannot be found.
    pub fn render(&self, messages: &Json, options: &Options) -> Result<Rendered, ChatError> {
        let messages = messages_of(messages)?;
        let conversation = Conversation::new(&self.special_tokens, &messages, options);
        match options.assistant {
            Assistant::None => Ok(Rendered { text: self.text(&conversation)?, assistant: Vec::new() }),
            Assistant::Generation if !self.generates => Err(ChatError::NoGeneration),
            Assistant::Generation => self.render_marked(&conversation, &messages, options),
            Assistant::Auto if self.generates => self.render_marked(&conversation, &messages, options),
            Assistant::Prefixes | Assistant::Auto => self.render_prefixes(&conversation, &messages),
        }
    }

    fn render_marked(
        &self,
        conversation: &Conversation,
        messages: &[Map<String, Json>],
        options: &Options,
    ) -> Result<Rendered, ChatError> {
        let marks = Marks::unused(&self.used(messages, options)).ok_or(ChatError::Marks)?;
        let marked = self.text(&conversation.with_marks(&marks.argument()))?;
        let (text, assistant) = marks.extract(&marked).ok_or(ChatError::Marks)?;
        if !self.direct && text != self.text(conversation)? {
            return Err(ChatError::Marks);
        }
        Ok(Rendered { text, assistant })
    }

    /// The private characters of a rendering.
    fn used(&self, messages: &[Map<String, Json>], options: &Options) -> Used {
        let mut used = self.used.clone();
        messages.iter().for_each(|message| used.add_object(message));
        used.add_object(&options.variables);
        options.tools.iter().chain(&options.documents).for_each(|value| used.add(value));
        used
    }

    fn render_prefixes(
        &self,
        conversation: &Conversation,
        messages: &[Map<String, Json>],
    ) -> Result<Rendered, ChatError> {
        let text = self.text(conversation)?;
        let mut assistant: Vec<Range<usize>> = Vec::new();
        for (index, message) in messages.iter().enumerate() {
            if message.get("role").and_then(Json::as_str) != Some("assistant") {
                continue;
            }
            let start = self.prefix(&text, &conversation.up_to(index, true), index)?;
            let end = self.prefix(&text, &conversation.up_to(index + 1, false), index)?;
            if start < end {
                assistant.push(start..end);
            }
        }
        Ok(Rendered { text, assistant })
    }

    /// The length of a conversation's text, with which `text` begins.
    fn prefix(&self, text: &str, conversation: &Conversation, message: usize) -> Result<usize, ChatError> {
        let prefix = self.text(conversation)?;
        let equal = prefix.bytes().zip(text.bytes()).take_while(|(left, right)| left == right).count();
        if equal < prefix.len() { Err(ChatError::Prefix { message, at: equal }) } else { Ok(equal) }
    }

    fn text(&self, conversation: &Conversation) -> Result<String, ChatError> {
        let failure = match self.engine.evaluate(conversation.variables()) {
            Ok(text) => return Ok(text),
            Err(failure) => failure,
        };
        Err(failure::explain(&self.engine, conversation, failure))
    }
}
