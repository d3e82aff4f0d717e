//! The causes of an error.

use std::error::Error as StdError;

/// An error and its sources.
pub(crate) fn causes<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// The error and its causes in one line.
pub(crate) fn in_a_line(error: &(dyn StdError + 'static)) -> String {
    causes(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The first cause: without URLs, which may hold secrets.
pub(crate) fn last_cause(error: &(dyn StdError + 'static)) -> String {
    causes(error).last().map(|cause| short(&cause.to_string())).unwrap_or_default()
}

/// The first line, as far as a person reads it.
pub(crate) fn short(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim_end_matches(['.', ' ']);
    line.chars().take(160).collect()
}
