//! Renders conversations from lines of JSON, for comparisons with transformers: `tests/reference/packing.py` drives it.
//!
//! A line is `{"source", "special_tokens", "messages", "options"}`; the answer is `{"text", "assistant"}` or `{"error"}`.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufWriter, Write};

use serde::Deserialize;
use serde_json::{Value, json};
use shardd_packing::chat::{ChatError, Options, Rendered, Template};

#[derive(Deserialize)]
struct Line {
    source: String,
    special_tokens: BTreeMap<String, String>,
    messages: Value,
    options: Options,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut templates: BTreeMap<String, Result<Template, ChatError>> = BTreeMap::new();
    for line in io::stdin().lock().lines() {
        let line: Line = serde_json::from_str(&line?)?;
        let template = templates.entry(line.source).or_insert_with_key(|source| {
            let tokens = line.special_tokens.iter().map(|(name, token)| (name.as_str(), token.as_str()));
            Template::new(source, tokens)
        });
        let started = std::time::Instant::now();
        let rendered = template
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|template| template.render(&line.messages, &line.options));
        let seconds = started.elapsed().as_secs_f64();
        let answer = match rendered {
            Ok(Rendered { text, assistant }) => {
                let assistant: Vec<[usize; 2]> =
                    assistant.iter().map(|range| [range.start, range.end]).collect();
                json!({"text": text, "assistant": assistant, "seconds": seconds})
            }
            Err(error) => json!({"error": error.to_string(), "seconds": seconds}),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(())
}
