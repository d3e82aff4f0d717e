//! Chat templates, as they are.

use std::sync::LazyLock;

use serde_json::{Value, json};
use shardd_packing::chat::{Assistant, ChatError, Options, Rendered, Settings, Template};

/// Little enough that each template ends soon.
const SETTINGS: Settings = Settings { fuel: 20_000, output_bytes: 1 << 16, strict: false };

static MESSAGES: LazyLock<Value> = LazyLock::new(|| {
    json!([
        {"role": "system", "content": " Be terse. "},
        {"role": "user", "content": "Grüße"},
        {"role": "assistant", "content": "日本", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5}}}]},
        {"role": "user", "content": "?\n"},
        {"role": "assistant", "content": "a b", "reasoning": "<think>"},
    ])
});

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    tools: Some(json!([{"name": "f", "parameters": {"x": ["number", null, true]}}])),
    now: "2026-07-26".parse().ok(),
    ..Options::default()
});

/// A template gives a conversation the same text each time, however the assistant's parts are looked for. They are parts of
/// the text, in order, and none is empty.
pub(crate) fn template(data: &[u8]) -> bool {
    let Ok(source) = std::str::from_utf8(data) else { return false };
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let Ok(template) = Template::with_settings(source, tokens, SETTINGS) else { return false };
    let render = |assistant, add_generation_prompt| {
        template.render(&MESSAGES, &Options { assistant, add_generation_prompt, ..OPTIONS.clone() })
    };
    let plain = render(Assistant::None, false);
    assert_eq!(render(Assistant::None, false), plain);
    check(&render(Assistant::None, true), None);
    check(&plain, None);
    for assistant in [Assistant::Generation, Assistant::Prefixes] {
        check(&render(assistant, false), plain.as_ref().ok());
    }
    plain.is_ok()
}

fn check(rendered: &Result<Rendered, ChatError>, plain: Option<&Rendered>) {
    let Ok(Rendered { text, assistant }) = rendered else { return };
    assert!(text.len() <= SETTINGS.output_bytes);
    // The text with marks may need more fuel, and never less.
    assert!(plain.is_none_or(|plain| plain.text == *text), "{plain:?} and {text:?}");
    assert!(assistant.is_sorted_by(|left, right| left.end <= right.start));
    assert!(assistant.iter().all(|range| !range.is_empty() && text.get(range.clone()).is_some()));
}
