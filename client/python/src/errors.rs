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
    ("--partitions ", "partitions="),
    ("--grain-rows ", "grain_rows="),
    ("--grain-rows", "grain_rows"),
    ("--block-slots ", "block_slots="),
    ("--shard-size", "shard_size"),
    ("--ca FILE", "ca=FILE"),
    ("cache_dir or SHARDD_CACHE_DIR", "local or SHARDD_CACHE_DIR"),
    ("(--ca, SHARDD_CA)", "(ca, SHARDD_CA)"),
    ("(--token-file, SHARDD_TOKEN_FILE)", "(SHARDD_TOKEN_FILE)"),
    ("(--store-endpoint, ", "(storage_options={\"endpoint\": ...}, "),
];

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
    ARGUMENTS.iter().fold(text, |text, (flag, argument)| text.replace(*flag, argument))
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
