//! Asks for confirmation before an irreversible removal.

use std::io::{IsTerminal, Write};

use crate::failure::Failure;

/// Has the user confirm on a terminal, unless `--yes` did; elsewhere `--yes` must say so. `otherwise` is the error when the
/// answer is no.
pub(crate) fn confirmed(yes: bool, question: &str, otherwise: &str) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!("{question} There is no terminal to ask at: give --yes")));
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim().eq_ignore_ascii_case("y") || answer.trim().eq_ignore_ascii_case("yes") {
        true => Ok(()),
        false => Err(Failure::failed(otherwise)),
    }
}
