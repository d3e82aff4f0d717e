//! The pre-tokenizer of a `tokenizer.json`: splits by regex, digits and ByteLevel in a sequence.

use serde::Deserialize;
use serde_json::Value;

use crate::scan::{Pattern, Splitter, Stage};

/// More steps than any file has; each is a level of recursion.
const MOST_STEPS: usize = 16;

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Step {
    ByteLevel {
        add_prefix_space: bool,
        #[serde(default = "yes")]
        use_regex: bool,
    },
    Split {
        pattern: SplitPattern,
        behavior: String,
        invert: bool,
    },
    Digits {
        individual_digits: bool,
    },
}

#[derive(Deserialize)]
enum SplitPattern {
    String(String),
    Regex(String),
}

fn yes() -> bool {
    true
}

/// Reads a pre-tokenizer, or gives the reason why the own path cannot carry it out.
pub(super) fn read(value: &Value) -> Result<Splitter, String> {
    let steps = match value["type"].as_str() {
        Some("Sequence") => value["pretokenizers"].as_array().map_or(&[][..], Vec::as_slice),
        Some(_) => std::slice::from_ref(value),
        None => return Err("no pre-tokenizer".into()),
    };
    let Some((last, steps)) = steps.split_last() else { return Err("no pre-tokenizer".into()) };
    if steps.len() > MOST_STEPS {
        return Err(format!("a pre-tokenizer of {} steps", steps.len() + 1));
    }
    let mut splitter = Splitter { stages: Vec::new(), last: None };
    for (number, value) in steps.iter().enumerate() {
        let step = step(value)?;
        let pattern = known(&step).filter(|_| number + 1 == steps.len());
        match pattern {
            Some(pattern) => splitter.last = Some(pattern),
            None => splitter.stages.push(stage(step)?),
        }
    }
    match step(last)? {
        Step::ByteLevel { add_prefix_space: true, .. } => {
            Err("ByteLevel with a space before each text".into())
        }
        Step::ByteLevel { use_regex: false, .. } => Ok(splitter),
        Step::ByteLevel { .. } => Ok(with_gpt2(splitter)),
        Step::Split { .. } | Step::Digits { .. } => {
            Err("a pre-tokenizer that does not end in ByteLevel".into())
        }
    }
}

/// ByteLevel with its own regex, after all other steps.
fn with_gpt2(mut splitter: Splitter) -> Splitter {
    let before = splitter.last.replace(Pattern::Gpt2);
    splitter.stages.extend(before.map(Stage::Pattern));
    splitter
}

fn step(value: &Value) -> Result<Step, String> {
    Step::deserialize(value).map_err(|_| format!("pre-tokenizer {}", value["type"]))
}

/// The pattern of a split, if it is known and all of its words are kept.
fn known(step: &Step) -> Option<Pattern> {
    let Step::Split { pattern: SplitPattern::Regex(regex), behavior, invert } = step else { return None };
    let pattern = Pattern::of_regex(regex)?;
    match (&behavior[..], invert) {
        ("Isolated", false) => Some(pattern),
        // What the pattern does not match would be lost. Only DeepSeek's leaves anything.
        ("Removed", true) if pattern != Pattern::DeepSeek3 => Some(pattern),
        _ => None,
    }
}

fn stage(step: Step) -> Result<Stage, String> {
    let refused = |error| format!("a regex that is not valid: {error}");
    match step {
        Step::Split { pattern, behavior, invert: false } if behavior == "Isolated" => match pattern {
            SplitPattern::Regex(regex) => Stage::of_regex(&regex).map_err(refused),
            SplitPattern::String(string) => Stage::of_regex(&fancy_regex::escape(&string)).map_err(refused),
        },
        Step::Split { behavior, invert, .. } => Err(format!("a split with {behavior} and invert {invert}")),
        Step::Digits { individual_digits } => Ok(Stage::Digits { individual: individual_digits }),
        Step::ByteLevel { .. } => Err("ByteLevel before other pre-tokenizers".into()),
    }
}
