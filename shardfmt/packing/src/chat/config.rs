//! The chat template and the special tokens of a `tokenizer_config.json`.

use serde_json::Value as Json;

use super::{ChatError, Settings, Template};

impl Template {
    /// Reads the template and the special tokens of a `tokenizer_config.json`.
    ///
    /// A configuration may have several templates with names; `name` is one of them, `default` if not given. A special token
    /// is a key that ends with `_token`, with a text or an object with the key `content`.
    ///
    /// # Errors
    /// [`ChatError::Config`] if there is no such template, and [`ChatError::Syntax`].
    pub fn from_tokenizer_config(
        config: &Json,
        name: Option<&str>,
        settings: Settings,
    ) -> Result<Self, ChatError> {
        let source = template_of(config, name)?;
        let tokens = config.as_object().into_iter().flatten().filter_map(|(key, value)| {
            let token = value.as_str().or_else(|| value.get("content")?.as_str())?;
            key.ends_with("_token").then_some((key.as_str(), token))
        });
        Self::with_settings(source, tokens, settings)
    }
}

fn template_of<'a>(config: &'a Json, name: Option<&str>) -> Result<&'a str, ChatError> {
    let templates = match config.get("chat_template") {
        Some(Json::String(source)) if name.is_none_or(|name| name == "default") => return Ok(source),
        Some(Json::Array(templates)) => templates.as_slice(),
        Some(Json::String(_)) => {
            return Err(ChatError::Config("it has one template without a name".to_owned()));
        }
        _ => {
            return Err(ChatError::Config(
                "its key chat_template is missing; look for chat_template.jinja".to_owned(),
            ));
        }
    };
    let name = name.unwrap_or("default");
    let named = |template: &&Json| template.get("name").and_then(Json::as_str) == Some(name);
    let source = templates.iter().find(named).and_then(|template| template.get("template")?.as_str());
    source.ok_or_else(|| {
        let names: Vec<&str> =
            templates.iter().filter_map(|template| template.get("name")?.as_str()).collect();
        ChatError::Config(format!("none has the name {name}; there are {}", names.join(", ")))
    })
}
