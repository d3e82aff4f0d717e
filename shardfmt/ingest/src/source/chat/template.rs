//! A chat template and the special tokens that it writes, from the files of a model: `tokenizer_config.json`,
//! `chat_template.jinja` or `chat_template.json`.

use std::path::Path;

use serde_json::{Map, Value as Json};
use shardd_packing::chat::{ChatError, Options, Rendered, Settings, Template};
use shardfmt::InputDigest;
use shardfmt::digest::Digest;

use super::super::setting_file;
use super::flat;
use crate::IngestError;
use crate::input::InputFile;

const LARGEST_FILE: u64 = 16 << 20;
/// Where a model has its special tokens, and its template if [`TEMPLATE`] is not there.
const CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
const WAY_OUT: &str = "give the tokenizer_config.json or the chat_template.jinja of the model";
/// Variables that most templates write, and that are nothing without a configuration.
const TOKENS: [&str; 2] = ["bos_token", "eos_token"];

/// A template, ready for use.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    template: Template,
    /// Renders conversations that have tools, if the model has such a template.
    tool_use: Option<Template>,
    pub(crate) inputs: Vec<InputDigest>,
}

/// The files that the setting stands for.
pub(crate) struct TemplateFiles {
    /// The one that was given, and the one beside it that completes it.
    pub(crate) files: Vec<InputFile>,
    inputs: Vec<InputDigest>,
    /// As a `tokenizer_config.json` has them.
    config: Map<String, Json>,
}

impl ChatTemplate {
    /// Reads a template from this file, and from one beside it if the file has no template or no special tokens.
    ///
    /// # Errors
    /// [`IngestError::Config`] for files without a template, and for a template that is no Jinja.
    pub(crate) fn read(path: &Path) -> Result<ChatTemplate, IngestError> {
        let TemplateFiles { inputs, config, .. } = TemplateFiles::read(path)?;
        let config = Json::Object(config);
        let of_name = |name| Template::from_tokenizer_config(&config, name, Settings::default());
        let refused = |error: ChatError| refused(path, flat(error));
        let template = of_name(None).map_err(refused)?;
        let tool_use = match of_name(Some("tool_use")) {
            Ok(template) => Some(template),
            Err(ChatError::Config(_)) => None,
            Err(error) => return Err(refused(error)),
        };
        Ok(ChatTemplate { template, tool_use, inputs })
    }

    /// The text of a conversation, by the template that transformers takes.
    pub(super) fn render(&self, messages: &Json, options: &Options) -> Result<Rendered, ChatError> {
        let of_tools = self.tool_use.as_ref().filter(|_| options.tools.is_some());
        of_tools.unwrap_or(&self.template).render(messages, options)
    }
}

impl TemplateFiles {
    /// # Errors
    /// [`IngestError::Config`] for files without a template.
    pub(crate) fn read(path: &Path) -> Result<TemplateFiles, IngestError> {
        let mut found = TemplateFiles { files: Vec::new(), inputs: Vec::new(), config: Map::new() };
        let text = found.add(path)?;
        if path.extension().is_some_and(|extension| extension == "json") {
            found.config = object(path, &text)?;
            let beside = path.with_file_name(TEMPLATE);
            if found.template().is_null() && beside.exists() {
                let template = found.add(&beside)?;
                found.config.insert("chat_template".to_owned(), template.into());
            }
        } else {
            found.config.insert("chat_template".to_owned(), text.into());
        }
        if !found.config.iter().any(is_token) {
            found.add_tokens(path)?;
        }
        Ok(found)
    }

    /// The special tokens of the configuration beside a file.
    fn add_tokens(&mut self, path: &Path) -> Result<(), IngestError> {
        let beside = path.with_file_name(CONFIG);
        if beside != path && beside.exists() {
            let text = self.add(&beside)?;
            self.config
                .extend(object(&beside, &text)?.into_iter().filter(|(key, value)| is_token((key, value))));
            return Ok(());
        }
        let template = self.template().to_string();
        match TOKENS.iter().find(|token| template.contains(**token)) {
            None => Ok(()),
            Some(token) => Err(IngestError::Config {
                setting: "chat_template",
                reason: format!("{}: it writes {token}, and the file has no special tokens", path.display()),
                way_out: "put the tokenizer_config.json of the model beside it",
            }),
        }
    }

    fn template(&self) -> &Json {
        self.config.get("chat_template").unwrap_or(&Json::Null)
    }

    /// Reads a file, which is an input of the version.
    fn add(&mut self, path: &Path) -> Result<String, IngestError> {
        let file = setting_file("chat_template", path, WAY_OUT)?;
        let bytes = file.read_all(LARGEST_FILE)?;
        let (name, digest) = (file.name.clone(), Digest::of(&bytes));
        self.inputs.push(InputDigest { name, bytes: bytes.len() as u64, digest });
        self.files.push(file);
        String::from_utf8(bytes).map_err(|_| refused(path, "it is not UTF-8".to_owned()))
    }

    /// The digests of the files.
    pub(crate) fn digests(&self) -> impl Iterator<Item = Digest> {
        self.inputs.iter().map(|input| input.digest)
    }
}

/// Whether an entry of a configuration is about a special token, which it may lack.
fn is_token((key, value): (&String, &Json)) -> bool {
    key.ends_with("_token") && (value.is_string() || value.is_object() || value.is_null())
}

fn object(path: &Path, text: &str) -> Result<Map<String, Json>, IngestError> {
    serde_json::from_str(text).map_err(|error| refused(path, format!("it is no object of JSON: {error}")))
}

fn refused(path: &Path, reason: String) -> IngestError {
    IngestError::Config {
        setting: "chat_template",
        reason: format!("{}: {reason}", path.display()),
        way_out: WAY_OUT,
    }
}
