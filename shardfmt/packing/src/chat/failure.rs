//! Reasons of failures: the template's line, the missing name, and the message with which a failure begins.

use std::error::Error as _;

use minijinja::{Error, ErrorKind};

use super::ChatError;
use super::conversation::Conversation;
use super::engine::{Engine, Failure, Refusal};

/// Why a template cannot be read.
pub(super) fn syntax(error: &Error) -> ChatError {
    ChatError::Syntax { line: error.line().unwrap_or(0), reason: reason(error) }
}

/// Why a conversation cannot be rendered.
pub(super) fn explain(engine: &Engine, conversation: &Conversation, failure: Failure) -> ChatError {
    let error = match failure {
        Failure::Output => return ChatError::Output(engine.settings.output_bytes),
        Failure::Engine(error) => error,
    };
    if error.kind() == ErrorKind::OutOfFuel {
        return ChatError::Fuel(engine.settings.fuel);
    }
    if let Some(Refusal::NoDate(format)) = refusal(&error) {
        return ChatError::NoDate(format.clone());
    }
    let (error, message) = examine(engine, conversation).unwrap_or((error, None));
    match refusal(&error) {
        Some(Refusal::Raised(reason)) => ChatError::Refused { message, reason: reason.clone() },
        _ => ChatError::Evaluation { line: error.line().unwrap_or(0), message, reason: reason(&error) },
    }
}

/// The failure with the names of undefined values, and the message with which it begins.
fn examine(engine: &Engine, conversation: &Conversation) -> Option<(Error, Option<usize>)> {
    let engine = engine.with_names();
    let error = evaluate(&engine, conversation)?;
    // The first `fails` messages fail in the same way, and the first `passes` do not.
    let (mut passes, mut fails) = (0, conversation.len());
    while passes + 1 < fails {
        let middle = usize::midpoint(passes, fails);
        let other = evaluate(&engine, &conversation.up_to(middle, false));
        if other.is_some_and(|other| is_same(&error, &other)) { fails = middle } else { passes = middle }
    }
    Some((error, fails.checked_sub(1)))
}

fn evaluate(engine: &Engine, conversation: &Conversation) -> Option<Error> {
    match engine.evaluate(conversation.variables()) {
        Err(Failure::Engine(error)) => Some(error),
        Err(Failure::Output) | Ok(_) => None,
    }
}

fn is_same(left: &Error, right: &Error) -> bool {
    (left.kind(), left.line(), left.detail()) == (right.kind(), right.line(), right.detail())
}

fn refusal(error: &Error) -> Option<&Refusal> {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(refusal) = cause.downcast_ref() {
            return Some(refusal);
        }
        source = cause.source();
    }
    None
}

fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) if error.kind() == ErrorKind::SyntaxError => detail.to_owned(),
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
