//! What a command says: results on standard output, errors and notes on standard error; text for people, JSON for
//! scripts. Colours reach terminals only, by the rules of NO_COLOR and CLICOLOR_FORCE.
//!
//! A reader that has gone away (`shardctl ls | head -1`) ends the program quietly.

use std::io::{ErrorKind, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use serde_json::json;

/// How the word `error` looks.
const ERROR: Style = AnsiColor::Red.on_default().bold();
/// How the word `note` looks.
const NOTE: Style = AnsiColor::Yellow.on_default();

/// Prints the text; its colours and other escapes go to terminals only.
pub(crate) fn print(text: &str) {
    write(anstream::stdout().lock(), text.as_bytes());
}

/// Prints bytes as they are.
pub(crate) fn raw(bytes: &[u8]) {
    write(std::io::stdout().lock(), bytes);
}

/// Prints the value as one line of JSON.
pub(crate) fn json(value: &impl Serialize) {
    raw((line(value) + "\n").as_bytes());
}

/// Says why the command failed, and with which exit code.
pub(crate) fn error(json: bool, message: &str, exit: u8) {
    match json {
        true => eprintln!("{}", line(&json!({ "error": message, "exit": exit }))),
        false => anstream::eprintln!("{ERROR}error{ERROR:#}: {message}"),
    }
}

/// Prints a note beside the result.
pub(crate) fn note(json: bool, text: &str) {
    match json {
        true => eprintln!("{}", line(&json!({ "note": text }))),
        false => anstream::eprintln!("{NOTE}note{NOTE:#}: {text}"),
    }
}

fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("values printed as JSON have string keys only")
}

fn write(mut out: impl Write, bytes: &[u8]) {
    if let Err(error) = out.write_all(bytes).and_then(|()| out.flush()) {
        match error.kind() {
            ErrorKind::BrokenPipe => std::process::exit(0),
            _ => {
                eprintln!("error: cannot write to standard output: {error}");
                std::process::exit(1);
            }
        }
    }
}
