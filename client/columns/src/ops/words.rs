//! Words, and integers that stand for things, to numbers.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::kind::Kind;
use crate::operation::{Fitted, Operation, integers, shown, takes};
use crate::values::Values;

/// The most words of a vocabulary.
const MOST_WORDS: usize = 1 << 24;

/// The way from other values to words.
const TO_WORDS: &str = "put Bucketize or Cast(\"int64\") before it";

/// The remainder of a hash by `bins`: `int64`.
///
/// The hash is XXH3 of 64 bits with the seed, of these bytes: UTF-8 of text, binary values as they are, and integers as
/// 8 bytes, little-endian, in two's complement. It is the same on every machine and in every release. In Python:
/// `xxhash.xxh3_64_intdigest(word.encode(), seed) % bins`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hash {
    /// How many results there are, from 0.
    pub bins: u32,
    /// The seed of the hash.
    #[serde(default)]
    pub seed: u64,
}

impl Operation for Hash {
    fn fit(&self, input: &Kind) -> Result<Fitted, String> {
        let Self { bins, seed } = *self;
        if bins == 0 {
            return Err("has 0 bins: give at least 1".into());
        }
        if !input.is_words() && !input.is_integer() {
            return Err(takes("text, binary and integers", input, TO_WORDS));
        }
        let hash = move |bytes: &[u8]| (XxHash3_64::oneshot_with_seed(seed, bytes) % u64::from(bins)) as i64;
        Ok(Fitted::each(input.with_item(DataType::Int64), move |items| {
            let mut hashes = Vec::with_capacity(items.len());
            if items.data_type().is_integer() {
                let low = |integer: i128| (integer as u64).to_le_bytes();
                integers(items, |integer| hashes.push(integer.map_or(0, |integer| hash(&low(integer)))))?;
            } else {
                words(items, |word| hashes.push(word.map_or(0, hash)));
            }
            Ok(Arc::new(Int64Array::from(hashes)))
        }))
    }
}

/// The words of a vocabulary, of one type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Words {
    /// Of text; of binary values these are UTF-8.
    Text(Vec<String>),
    /// Of integers.
    Integers(Vec<i64>),
}

/// The number of each word: `int64`.
///
/// Words are numbered from 0, or from 1 if `unknown` is 0, as those of Keras' `StringLookup`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vocabulary {
    /// The words, each once.
    pub words: Words,
    /// The number of nulls and all other words: 0, a negative number, or one behind all words. Without it they are errors.
    #[serde(default)]
    pub unknown: Option<i64>,
}

impl Operation for Vocabulary {
    fn fit(&self, input: &Kind) -> Result<Fitted, String> {
        let count = match &self.words {
            Words::Text(words) => words.len(),
            Words::Integers(words) => words.len(),
        };
        if count == 0 || count > MOST_WORDS {
            return Err(format!("has {count} words: give 1 to {MOST_WORDS}"));
        }
        if let Some(unknown @ 1..) = self.unknown
            && unknown < count as i64
        {
            return Err(format!(
                "has the number {unknown} for unknown words, which is that of a word: give 0, a negative number, or at least {count}"
            ));
        }
        let is_known = match &self.words {
            Words::Text(_) if input.is_integer() => {
                return Err(takes("text", input, "give integers as words"));
            }
            Words::Integers(_) if input.is_words() => {
                return Err(takes("integers", input, "give text as words"));
            }
            Words::Text(_) => input.is_words(),
            Words::Integers(_) => input.is_integer(),
        };
        if !is_known {
            return Err(takes("text, binary and integers", input, TO_WORDS));
        }
        let unknown = self.unknown;
        let numbers = Numbered::new(&self.words, i64::from(unknown == Some(0)))?;
        let change = move |values: Values| {
            let values = values.with_nulls_of_rows_in_values()?;
            let mut found = Vec::with_capacity(values.items.len());
            for (item, number) in numbers.of(&values.items)?.into_iter().enumerate() {
                found.push(number.or(unknown).ok_or_else(|| {
                    let word = shown(&values.items, item);
                    values.bad(
                        item,
                        format!("gets {word}, which is none of its words: add it, or pass unknown"),
                    )
                })?);
            }
            Ok(values.with_items(Arc::new(Int64Array::from(found))))
        };
        Ok(Fitted { output: input.with_item(DataType::Int64), change: Box::new(change) })
    }

    fn takes_nulls(&self) -> bool {
        self.unknown.is_some()
    }
}

/// The number of each word of a vocabulary.
enum Numbered {
    Text(HashMap<Box<[u8]>, i64>),
    Integers(HashMap<i128, i64>),
}

impl Numbered {
    /// The words, numbered from `first` on.
    ///
    /// # Errors
    /// A word that is there twice.
    fn new(words: &Words, first: i64) -> Result<Self, String> {
        fn numbered<K: Eq + std::hash::Hash>(
            words: impl Iterator<Item = K>,
            first: i64,
        ) -> Result<HashMap<K, i64>, usize> {
            let mut numbers = HashMap::new();
            for (at, word) in words.enumerate() {
                if numbers.insert(word, first + at as i64).is_some() {
                    return Err(at);
                }
            }
            Ok(numbers)
        }
        let twice = |word: &dyn std::fmt::Debug| format!("has the word {word:?} twice: give each once");
        match words {
            Words::Text(words) => numbered(words.iter().map(|word| Box::from(word.as_bytes())), first)
                .map(Self::Text)
                .map_err(|at| twice(&words[at])),
            Words::Integers(words) => numbered(words.iter().map(|word| i128::from(*word)), first)
                .map(Self::Integers)
                .map_err(|at| twice(&words[at])),
        }
    }

    /// The number of each of some words; none of nulls and unknown words.
    fn of(&self, items: &ArrayRef) -> Result<Vec<Option<i64>>, ArrowError> {
        let mut found = Vec::with_capacity(items.len());
        match self {
            Self::Text(numbers) => {
                words(items, |word| found.push(word.and_then(|word| numbers.get(word).copied())))
            }
            Self::Integers(numbers) => {
                integers(items, |word| found.push(word.and_then(|word| numbers.get(&word).copied())))?;
            }
        }
        Ok(found)
    }
}

/// Passes on the bytes of each word.
fn words(items: &ArrayRef, mut take: impl FnMut(Option<&[u8]>)) {
    match items.data_type() {
        DataType::Utf8 => items.as_string::<i32>().iter().for_each(|word| take(word.map(str::as_bytes))),
        DataType::LargeUtf8 => items.as_string::<i64>().iter().for_each(|word| take(word.map(str::as_bytes))),
        DataType::Binary => items.as_binary::<i32>().iter().for_each(take),
        DataType::LargeBinary => items.as_binary::<i64>().iter().for_each(take),
        _ => items.as_fixed_size_binary().iter().for_each(take),
    }
}
