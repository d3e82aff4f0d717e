//! Errors as Python's own: what a caller can do about them decides which.

use std::error::Error;

use pyo3::PyErr;
use pyo3::exceptions::{PyFileNotFoundError, PyOSError, PyRuntimeError, PyValueError};
use shardd_api::problem::Kind;
use shardd_client::loader::LoadError;
use shardd_store::catalog::CatalogError;

/// Flags and settings that messages name, and the arguments of Python in their place.
const ARGUMENTS: &[(&str, &str)] = &[
    ("--server", "servers=[...]"),
    ("--partitions", "partitions"),
    ("--grain-rows", "grain_rows"),
    ("--block-slots", "block_slots"),
    ("--chunks", "chunks"),
    ("--shard-size", "shard_size"),
    ("--ca FILE", "ca=FILE"),
    ("cache_dir or SHARDD_CACHE_DIR", "local or SHARDD_CACHE_DIR"),
    ("(--ca, SHARDD_CA)", "(ca, SHARDD_CA)"),
    ("(--token-file, SHARDD_TOKEN_FILE)", "(SHARDD_TOKEN_FILE)"),
    ("--store-endpoint", "storage_options={\"endpoint\": ...}"),
];

/// A message with the arguments of Python in the place of flags. Quotes stay as they are, and so do paths.
fn with_arguments(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    let mut rest = message;
    // The mark that ends the quote.
    let mut quote = None;
    while let Some(next) = rest.chars().next() {
        if quote.is_none()
            && !text.ends_with(is_of_word)
            && let Some((argument, after)) = flag_at(rest)
        {
            text.push_str(argument);
            rest = after;
            // Its value: `--partitions 48` is `partitions=48`.
            if let Some(value) = rest.strip_prefix(' ')
                && value.starts_with(|c: char| c.is_ascii_digit())
            {
                text.push('=');
                rest = value;
            }
            continue;
        }
        if matches!(next, '"' | '`') {
            quote = match quote {
                None => Some(next),
                Some(mark) if mark == next => None,
                open => open,
            };
        }
        text.push(next);
        rest = &rest[next.len_utf8()..];
    }
    text
}

/// The argument in the place of the flag that `text` begins with, and the text after the flag.
fn flag_at(text: &str) -> Option<(&'static str, &str)> {
    ARGUMENTS.iter().find_map(|(flag, argument)| {
        let after = text.strip_prefix(flag)?;
        let is_whole = flag.ends_with(')') || !after.starts_with(is_of_word);
        is_whole.then_some((*argument, after))
    })
}

/// Whether a flag beside this character is a part of something else, such as a path.
fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_' | '/' | '\\')
}

/// The error and its sources, in one line.
pub(crate) fn message(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    with_arguments(&text)
}

fn of_kind(kind: Kind, error: &dyn Error) -> PyErr {
    let text = message(error);
    match kind {
        Kind::NotFound => PyFileNotFoundError::new_err(text),
        Kind::Invalid | Kind::Malformed => PyValueError::new_err(text),
        Kind::Unavailable => PyOSError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

pub(crate) fn load(error: &LoadError) -> PyErr {
    of_kind(error.into(), error)
}

pub(crate) fn catalog(error: &CatalogError) -> PyErr {
    of_kind(error.into(), error)
}

pub(crate) fn value(error: &(dyn Error + 'static)) -> PyErr {
    PyValueError::new_err(message(error))
}

/// Of what a store holds or does not take.
pub(crate) fn failed(error: &(dyn Error + 'static)) -> PyErr {
    PyRuntimeError::new_err(message(error))
}
