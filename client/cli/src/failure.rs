//! How a command ends when it does not succeed: one line for a person, one exit code for a script.

use std::fmt;

use shardd_store::connect::ConnectError;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was asked properly and could not do it: exit code 1.
    Failed(String),
    /// The question was wrong or ambiguous: exit code 2.
    Usage(String),
    /// Two things that were compared are not the same, as reported already: exit code 1.
    Differs,
}

impl Failure {
    /// A failure with this message.
    pub(crate) fn failed(message: impl Into<String>) -> Failure {
        Failure::Failed(message.into())
    }

    /// A wrong or ambiguous request with this message.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::Usage(message.into())
    }

    /// A request that says something wrong, in this error's words.
    pub(crate) fn wrong(error: impl std::error::Error) -> Failure {
        Failure::Usage(one_line(&error))
    }

    /// The exit code of the process.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Failed(_) | Failure::Differs => 1,
            Failure::Usage(_) => 2,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Failed(message) | Failure::Usage(message) => f.write_str(message),
            Failure::Differs => f.write_str("they differ"),
        }
    }
}

impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        let line = one_line(&error);
        match (&error as &dyn std::any::Any).downcast_ref::<ConnectError>() {
            Some(error) if error.is_usage() => Failure::Usage(line),
            _ => Failure::Failed(line),
        }
    }
}

/// Settings of an ingest, which errors of the library name as `setting`, and people here know as flags.
const SETTINGS: [&str; 24] = [
    "allow_missing",
    "chat_date",
    "chat_template",
    "columns",
    "decode",
    "follow_symlinks",
    "format",
    "long_documents",
    "loss",
    "memory",
    "messages_column",
    "mix",
    "on_error",
    "packing",
    "resize",
    "sequence_length",
    "shard_size",
    "take",
    "text_column",
    "threads",
    "tokenizer",
    "under",
    "window",
    "work",
];

/// The error and its causes as one line, without saying anything twice.
pub(crate) fn one_line(error: &dyn std::error::Error) -> String {
    with_flags(&said(error))
}

fn with_flags(text: &str) -> String {
    SETTINGS.iter().fold(text.to_owned(), |text, setting| {
        let flag = format!("--{}", setting.replace('_', "-"));
        text.replace(&format!("ingest setting `{setting}`"), &flag)
            .replace(&format!("`{setting}`: "), &format!("{flag} "))
            .replace(&format!("`{setting}`"), &flag)
    })
}

fn said(error: &dyn std::error::Error) -> String {
    let mut line = flat(&error.to_string());
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = flat(&inner.to_string());
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        cause = inner.source();
    }
    line
}

/// The error of clap about a wrong command line, as one line with the way out.
pub(crate) fn usage_line(rendered: &str, help: &str) -> String {
    let (first, rest) = rendered.split_once("\n\n").unwrap_or((rendered, ""));
    let tip = rest.lines().map(str::trim).find_map(|line| line.strip_prefix("tip: "));
    let said = flat(first.strip_prefix("error: ").unwrap_or(first));
    match tip {
        Some(tip) => format!("{said}; {}; see `{help}`", flat(tip)),
        None => format!("{said}; see `{help}`"),
    }
}

fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_and_its_causes_are_one_line_without_repetition() {
        let cause = anyhow::anyhow!("connection\nrefused");
        let error = cause.context("cannot reach http://127.0.0.1:7700");
        let line = one_line(error.as_ref());
        assert_eq!(line, "cannot reach http://127.0.0.1:7700: connection refused");
        let twice = anyhow::anyhow!("no such file").context("data/x: no such file");
        assert_eq!(one_line(twice.as_ref()), "data/x: no such file");
    }

    #[test]
    fn settings_are_named_as_flags() {
        let said = with_flags("ingest setting `shard_size`: a shard of 0 bytes holds no row; leave it out");
        assert_eq!(said, "--shard-size: a shard of 0 bytes holds no row; leave it out");
        let said = with_flags("leave the column out (`columns`) or the samples (`on_error`: skip)");
        assert_eq!(said, "leave the column out (--columns) or the samples (--on-error skip)");
        assert_eq!(with_flags("see `shardctl log under`"), "see `shardctl log under`");
    }

    #[test]
    fn a_usage_error_names_the_option_and_the_help() {
        let rendered =
            "error: the following required arguments were not provided:\n  --name <NAME>\n\nUsage: x\n";
        assert_eq!(
            usage_line(rendered, "shardctl ingest --help"),
            "the following required arguments were not provided: --name <NAME>; see `shardctl ingest --help`"
        );
        let tipped = "error: unexpected argument '--shard' found\n\n  tip: a similar argument exists: '--seed'\n\nUsage: x";
        assert_eq!(
            usage_line(tipped, "shardctl --help"),
            "unexpected argument '--shard' found; a similar argument exists: '--seed'; see `shardctl --help`"
        );
    }
}
