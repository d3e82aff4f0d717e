//! `tokenizer.json` of Hugging Face: read for the own path, where that can carry out all that the file asks for.

mod model;
mod pretokenizer;
pub(crate) mod template;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::added::AddedToken;
use crate::error::FileError;
use crate::merges::MAX_ID;
use crate::native::{Core, Parts};
use crate::vocabulary::Vocabulary;

/// A file that was read, or the reason why only the crate `tokenizers` can carry it out.
pub(crate) enum Read {
    Native(Box<Core>),
    Foreign(String),
}

/// The parts of the file. Truncation and padding are not among them: they are for batches, and never applied.
#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(borrow)]
    model: &'a RawValue,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

/// Reads the text of a `tokenizer.json`.
pub(crate) fn read(text: &str) -> Result<Read, FileError> {
    let file: File<'_> = serde_json::from_str(text)?;
    match parts(&file)? {
        Ok(parts) => Ok(Read::Native(Box::new(Core::new(parts)?))),
        Err(reason) => Ok(Read::Foreign(reason)),
    }
}

/// The parts of the own path, or the reason why the file needs another.
fn parts(file: &File<'_>) -> Result<Result<Parts, String>, FileError> {
    let steps = || {
        let compose = composes(&file.normalizer)?;
        let splitter = pretokenizer::read(&file.pre_tokenizer)?;
        let (template, trim) = template::read(&file.post_processor)?;
        match file.decoder["type"].as_str() {
            Some("ByteLevel") => Ok((compose, splitter, template, trim)),
            other => Err(format!("decoder {other:?}")),
        }
    };
    let (compose, splitter, template, trim) = match steps() {
        Ok(steps) => steps,
        Err(reason) => return Ok(Err(reason)),
    };
    let model = match model::read(file.model)? {
        Ok(model) => model,
        Err(reason) => return Ok(Err(reason)),
    };
    let added = match added(&file.added_tokens, &model) {
        Ok(added) => added,
        Err(reason) => return Ok(Err(reason)),
    };
    Ok(Ok(Parts {
        bytes: model.bytes,
        merges: model.merges,
        vocabulary: Vocabulary::new(&model.tokens),
        whole_words: model.ignore_merges,
        splitter,
        compose,
        added,
        template,
        trim,
    }))
}

/// Whether the normalizer brings text into form C. It may also be none.
fn composes(normalizer: &Value) -> Result<bool, String> {
    let steps = match normalizer["type"].as_str() {
        Some("Sequence") => normalizer["normalizers"].as_array().map_or(&[][..], Vec::as_slice),
        _ if normalizer.is_null() => &[],
        _ => std::slice::from_ref(normalizer),
    };
    match steps {
        [] => Ok(false),
        [step] if step["type"] == "NFC" => Ok(true),
        [step, ..] => Err(format!("normalizer {}", step["type"])),
    }
}

/// The added tokens, with the ids that `tokenizers` gives to them: those of the model, or else the next ones.
fn added(tokens: &[Added], model: &model::Model) -> Result<Vec<AddedToken>, String> {
    let mut next = model.ids.len() as u64;
    let mut added: Vec<AddedToken> = Vec::with_capacity(tokens.len());
    for token in tokens.iter().filter(|token| !token.content.is_empty()) {
        let id = model.ids.get(&token.content).map_or(next, |&id| id.into());
        next += u64::from(id == next && !model.ids.contains_key(&token.content));
        if id != u64::from(token.id) || id > u64::from(MAX_ID) {
            return Err(format!("added token {:?} with the id {} instead of {id}", token.content, token.id));
        }
        if added.iter().any(|other| other.content == token.content) {
            return Err(format!("added token {:?} twice", token.content));
        }
        added.push(AddedToken {
            content: token.content.clone(),
            id: token.id,
            single_word: token.single_word,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            normalized: token.normalized,
            special: token.special,
        });
    }
    Ok(added)
}

#[cfg(test)]
mod tests;
