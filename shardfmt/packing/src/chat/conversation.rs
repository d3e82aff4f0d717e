//! The variables of a rendering: messages, options and special tokens as values of the engine.

use std::collections::BTreeMap;

use minijinja::Value;
use serde_json::{Map, Value as Json};

use super::{ChatError, Options, engine, source};

/// The names under which messages have their reasoning; the first is the one that templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The variables of a rendering.
#[derive(Clone, Debug)]
pub(super) struct Conversation {
    messages: Vec<Value>,
    variables: BTreeMap<String, Value>,
}

impl Conversation {
    /// With these special tokens.
    pub(super) fn new(
        special_tokens: &BTreeMap<String, Value>,
        messages: &[Map<String, Json>],
        options: &Options,
    ) -> Self {
        let messages: Vec<Value> = messages.iter().map(object_value).collect();
        let mut variables = special_tokens.clone();
        variables.insert("strftime_now".to_owned(), engine::clock(options.now));
        variables.extend(options.variables.iter().map(|(name, value)| (name.clone(), value_of(value))));
        variables.insert("tools".to_owned(), options.tools.as_ref().map_or(Value::from(()), value_of));
        variables
            .insert("documents".to_owned(), options.documents.as_ref().map_or(Value::from(()), value_of));
        variables.insert("add_generation_prompt".to_owned(), Value::from(options.add_generation_prompt));
        variables.insert("messages".to_owned(), Value::from(messages.clone()));
        variables.insert(source::MARKS.to_owned(), Value::from(""));
        Self { messages, variables }
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn variables(&self) -> &BTreeMap<String, Value> {
        &self.variables
    }

    /// With the marks of generation blocks.
    pub(super) fn with_marks(&self, marks: &str) -> Self {
        let mut marked = self.clone();
        marked.variables.insert(source::MARKS.to_owned(), Value::from(marks));
        marked
    }

    /// Its first messages.
    pub(super) fn up_to(&self, count: usize, add_generation_prompt: bool) -> Self {
        let messages = self.messages[..count].to_vec();
        let mut variables = self.variables.clone();
        variables.insert("messages".to_owned(), Value::from(messages.clone()));
        variables.insert("add_generation_prompt".to_owned(), Value::from(add_generation_prompt));
        Self { messages, variables }
    }
}

/// The messages as objects.
///
/// # Errors
/// [`ChatError::Messages`].
pub(super) fn messages_of(messages: &Json) -> Result<Vec<Map<String, Json>>, ChatError> {
    let Json::Array(messages) = messages else {
        return Err(ChatError::Messages { place: "messages".to_owned() });
    };
    let object = |(index, message): (usize, &Json)| {
        let refusal = || ChatError::Messages { place: format!("messages[{index}]") };
        message.as_object().cloned().map(with_reasoning).ok_or_else(refusal)
    };
    messages.iter().enumerate().map(object).collect()
}

/// A message with its reasoning under the names that templates read.
fn with_reasoning(mut message: Map<String, Json>) -> Map<String, Json> {
    let Some(reasoning) =
        REASONING.iter().find_map(|name| message.get(*name).filter(|value| !value.is_null())).cloned()
    else {
        return message;
    };
    if !message.contains_key("thinking") {
        let mut first = Map::new();
        first.insert("thinking".to_owned(), reasoning.clone());
        first.extend(message);
        message = first;
    }
    message.insert(REASONING[0].to_owned(), reasoning);
    message
}

fn object_value(object: &Map<String, Json>) -> Value {
    Value::from_pairs(object.iter().map(|(key, value)| (key.as_str(), value_of(value))))
}

/// JSON as a value of the engine; the keys of objects keep their order.
fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value_of).collect(),
        Json::Object(object) => object_value(object),
    }
}
