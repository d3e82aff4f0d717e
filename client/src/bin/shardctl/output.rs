//! Writes to standard output. A reader that has gone away (`shardctl ls | head -1`) ends the program quietly.

use std::io::{ErrorKind, Write};

use serde::Serialize;

/// Prints the text as it is.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        match error.kind() {
            ErrorKind::BrokenPipe => std::process::exit(0),
            _ => {
                eprintln!("error: cannot write to standard output: {error}");
                std::process::exit(1);
            }
        }
    }
}

/// Prints the value as one line of JSON.
pub(crate) fn json(value: &impl Serialize) {
    let line = serde_json::to_string(value).expect("values printed as JSON have string keys only");
    print(&(line + "\n"));
}
