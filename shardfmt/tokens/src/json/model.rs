//! The BPE model of a `tokenizer.json`: its vocabulary in bytes, and its merges in ids.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::error::FileError;
use crate::merges::{MAX_ID, MAX_RANK, Merge};

/// A model of which every text becomes tokens.
pub(super) struct Model {
    pub(super) ids: HashMap<String, u32>,
    pub(super) bytes: [u32; 256],
    /// Id, bytes, and whether text can become the token.
    pub(super) tokens: Vec<(u32, Vec<u8>, bool)>,
    pub(super) merges: Vec<Merge>,
    pub(super) ignore_merges: bool,
}

#[derive(Deserialize)]
struct Head {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Bpe {
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    ignore_merges: bool,
    vocab: HashMap<String, u32>,
    merges: Vec<Pair>,
}

/// A merge, from a string with a space or a list of two strings. None is a comment, which old files may have.
struct Pair(Option<(String, String)>);

/// Reads a model, or gives the reason why the own path cannot carry it out.
pub(super) fn read(model: &RawValue) -> Result<Result<Model, String>, FileError> {
    let head: Head = serde_json::from_str(model.get())?;
    if head.kind.as_deref() != Some("BPE") {
        return Ok(Err(format!("model {}", head.kind.as_deref().unwrap_or("without a type"))));
    }
    let bpe: Bpe = serde_json::from_str(model.get())?;
    if let Some(reason) = refusal(&bpe) {
        return Ok(Err(reason));
    }
    let mut bytes = [0; 256];
    for (byte, id) in (0..=255u8).zip(&mut bytes) {
        match bpe.vocab.get(&letter(byte).to_string()) {
            Some(&of_byte) => *id = of_byte,
            None => return Ok(Err(format!("a model without the byte {byte:#04x}"))),
        }
    }
    let merges = merges(&bpe)?;
    let tokens = tokens(&bpe.vocab);
    Ok(Ok(Model { ids: bpe.vocab, bytes, tokens, merges, ignore_merges: bpe.ignore_merges }))
}

fn refusal(bpe: &Bpe) -> Option<String> {
    if bpe.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Some("a model with dropout".into());
    }
    let affixes = [&bpe.continuing_subword_prefix, &bpe.end_of_word_suffix];
    if affixes.into_iter().flatten().any(|affix| !affix.is_empty()) {
        return Some("a model with a prefix or suffix of subwords".into());
    }
    let mut ids: Vec<_> = bpe.vocab.values().collect();
    ids.sort_unstable();
    if ids.windows(2).any(|pair| pair[0] == pair[1]) {
        return Some("a model with two tokens of one id".into());
    }
    if ids.last().is_some_and(|&&id| id > MAX_ID) || bpe.merges.len() > MAX_RANK as usize {
        return Some("a model of more than a million tokens".into());
    }
    None
}

fn merges(bpe: &Bpe) -> Result<Vec<Merge>, FileError> {
    let pairs = bpe.merges.iter().filter_map(|Pair(pair)| pair.as_ref()).enumerate();
    pairs
        .map(|(number, (left, right))| {
            let id = |token: &str| {
                bpe.vocab
                    .get(token)
                    .copied()
                    .ok_or_else(|| FileError::Merge { number, token: token.to_owned() })
            };
            let made = id(&format!("{left}{right}"))?;
            Ok(Merge { left: id(left)?, right: id(right)?, rank: number as u32, made })
        })
        .collect()
}

/// Tokens by id. One with a character that stands for no byte is never the token of a text, and stays as it is.
fn tokens(vocab: &HashMap<String, u32>) -> Vec<(u32, Vec<u8>, bool)> {
    let byte_of: HashMap<char, u8> = (0..=255).map(|byte| (letter(byte), byte)).collect();
    let of = |(token, &id): (&String, &u32)| {
        let bytes: Option<Vec<u8>> = token.chars().map(|c| byte_of.get(&c).copied()).collect();
        match bytes {
            Some(bytes) => (id, bytes, true),
            None => (id, token.clone().into_bytes(), false),
        }
    };
    let mut tokens: Vec<_> = vocab.iter().map(of).collect();
    tokens.sort_unstable_by_key(|(id, ..)| *id);
    tokens
}

/// The character that stands for a byte in byte-level tokens: itself if it is visible, else one from U+0100 on.
fn letter(byte: u8) -> char {
    let visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if visible(byte) {
        return byte.into();
    }
    let hidden_before = (0..byte).filter(|&byte| !visible(byte)).count() as u32;
    char::from_u32(0x100 + hidden_before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairVisitor;

        impl<'de> Visitor<'de> for PairVisitor {
            type Value = Pair;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens, as a list or with a space between them")
            }

            fn visit_str<E: Error>(self, pair: &str) -> Result<Pair, E> {
                if pair.starts_with("#version") {
                    return Ok(Pair(None));
                }
                match pair.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => {
                        Ok(Pair(Some((left.to_owned(), right.to_owned()))))
                    }
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(pair), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut tokens: A) -> Result<Pair, A::Error> {
                let missing = |count| A::Error::invalid_length(count, &"two tokens");
                let left = tokens.next_element()?.ok_or_else(|| missing(0))?;
                let right = tokens.next_element()?.ok_or_else(|| missing(1))?;
                match tokens.next_element::<String>()? {
                    None => Ok(Pair(Some((left, right)))),
                    Some(_) => Err(missing(3)),
                }
            }
        }

        deserializer.deserialize_any(PairVisitor)
    }
}
