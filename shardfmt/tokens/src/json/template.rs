//! The tokens that are put around a text, and the trimming of offsets: the post-processor of a `tokenizer.json`.

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// The tokens before and after a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Template {
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
}

/// Offsets leave out spaces at both ends of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trim {
    /// The first token keeps one space.
    pub(crate) keep_first_space: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Processor {
    ByteLevel { add_prefix_space: bool, trim_offsets: bool },
    TemplateProcessing { single: Vec<Piece>, special_tokens: BTreeMap<String, Special> },
    Sequence { processors: Vec<Value> },
}

#[derive(Deserialize)]
enum Piece {
    Sequence { id: String },
    SpecialToken { id: String },
}

#[derive(Deserialize)]
struct Special {
    ids: Vec<u32>,
}

/// Reads a post-processor, or gives the reason why the own path cannot carry it out.
pub(super) fn read(processor: &Value) -> Result<(Template, Option<Trim>), String> {
    let mut read = Read::default();
    read.processor(processor, 0)?;
    Ok((read.template.unwrap_or_default(), read.trim))
}

#[derive(Default)]
struct Read {
    template: Option<Template>,
    trim: Option<Trim>,
}

impl Read {
    fn processor(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        if value.is_null() {
            return Ok(());
        }
        let kind = value["type"].as_str().unwrap_or_default();
        let unknown = |_| format!("post-processor {kind:?}");
        match Processor::deserialize(value).map_err(unknown)? {
            // Trimming twice, or after the template, would trim other tokens.
            Processor::ByteLevel { .. } if self.template.is_some() || self.trim.is_some() => {
                Err("a ByteLevel post-processor after another one".into())
            }
            Processor::ByteLevel { add_prefix_space, trim_offsets } => {
                self.trim = trim_offsets.then_some(Trim { keep_first_space: add_prefix_space });
                Ok(())
            }
            Processor::TemplateProcessing { .. } if self.template.is_some() => Err("two templates".into()),
            Processor::TemplateProcessing { single, special_tokens } => {
                self.template = Some(template(&single, &special_tokens)?);
                Ok(())
            }
            Processor::Sequence { .. } if depth > 4 => Err("post-processors in each other".into()),
            Processor::Sequence { processors } => {
                processors.iter().try_for_each(|processor| self.processor(processor, depth + 1))
            }
        }
    }
}

fn template(single: &[Piece], special_tokens: &BTreeMap<String, Special>) -> Result<Template, String> {
    let mut template = Template::default();
    let mut seen = false;
    for piece in single {
        match piece {
            Piece::Sequence { id } if id == "A" && !seen => seen = true,
            Piece::Sequence { id } => {
                return Err(format!("a template with the sequence {id:?} or with two sequences"));
            }
            Piece::SpecialToken { id } => {
                let special =
                    special_tokens.get(id).ok_or_else(|| format!("a template without ids for {id:?}"))?;
                let side = if seen { &mut template.after } else { &mut template.before };
                side.extend(&special.ids);
            }
        }
    }
    if seen { Ok(template) } else { Err("a template without the text".into()) }
}
