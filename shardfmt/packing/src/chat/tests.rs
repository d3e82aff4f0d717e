use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Marked, with a date, in the way of most templates.
const MARKED: &str = r#"
{{- bos_token }}
{%- if messages[0].role == "system" %}
    {{- "<system>" + messages[0].content | trim + "</system>\n" }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {{- "<assistant>" }}
        {%- generation %}
        {{- message.content + eos_token }}
        {%- endgeneration %}
        {{- "\n" }}
    {%- else %}
        {{- "<" + message.role + ">" + message.content + "\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<assistant>" }}
{%- endif %}
"#;

/// The same without generation blocks.
fn unmarked() -> String {
    MARKED.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
}

const TOOLS: &str = r#"{% for tool in tools %}
{{ tool | tojson }}
{% endfor %}
{%- for message in messages recursive %}
{%- for call in message.tool_calls or [] %}
{%- set call = call.function %}
{{- call.name }}({% for key, value in call.arguments.items() %}{{ key }}={{ value | tojson(indent=none) }}{{ ", " if not loop.last }}{% endfor %})
{% endfor -%}
{%- endfor %}"#;

const LOOPS: &str = r#"{%- set ns = namespace(users=0) -%}
{%- for message in messages -%}
    {%- if message.role == "system" %}{% continue %}{% endif -%}
    {%- if message.role == "user" %}{% set ns.users = ns.users + 1 %}{% endif -%}
    {%- if ns.users > 2 %}{% break %}{% endif -%}
    {{ loop.index0 }}{{ message.role[0] | upper }}:{{ message.content.split("</think>")[-1].lstrip("\n") }};
{%- endfor -%}
{{ none }} {{ true }} {{ [1, "a", none] }} {{ 1.0 }}"#;

const CHECKS: &str = r#"{% for message in messages %}
{% if (message.role == "user") != (loop.index0 % 2 == 0) %}
{{ raise_exception("roles must alternate") }}
{% endif %}
{{ message.content }} {{ strftime_now("%d %b %Y") }}
{% endfor %}"#;

fn template(source: &str) -> Template {
    Template::new(source, [("bos_token", "<s>"), ("eos_token", "</s>")]).expect("a template")
}

fn options(assistant: Assistant) -> Options {
    Options { assistant, ..Options::default() }
}

fn conversation() -> Json {
    json!([
        {"role": "system", "content": " Be terse. "},
        {"role": "user", "content": "Grüße"},
        {"role": "assistant", "content": "日本"},
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "!"}
    ])
}

fn parts(rendered: &Rendered) -> Vec<&str> {
    rendered.assistant.iter().map(|range| &rendered.text[range.clone()]).collect()
}

/// By transformers 5.23, as all texts here: `tests/reference/packing.py` compares more of them.
const TEXT: &str =
    "<s><system>Be terse.</system>\n<user>Grüße\n<assistant>日本</s>\n<user>?\n<assistant>!</s>\n";

#[test]
fn generation_blocks_give_text_and_parts() {
    let rendered = template(MARKED).render(&conversation(), &options(Assistant::Auto)).expect("renders");
    assert_eq!(rendered.text, TEXT);
    assert_eq!(parts(&rendered), ["日本</s>", "!</s>"]);
    let text = template(MARKED).render(&conversation(), &Options::default()).expect("renders");
    assert_eq!(text, Rendered { text: TEXT.to_owned(), assistant: Vec::new() });
}

#[test]
fn prefixes_give_the_parts_of_templates_without_blocks() {
    let template = template(&unmarked());
    let rendered = template.render(&conversation(), &options(Assistant::Auto)).expect("renders");
    assert_eq!(rendered.text, TEXT);
    assert_eq!(parts(&rendered), ["日本</s>\n", "!</s>\n"]);
    assert_eq!(
        template.render(&conversation(), &options(Assistant::Generation)),
        Err(ChatError::NoGeneration)
    );
}

#[test]
fn a_template_that_rewrites_earlier_messages_has_no_prefixes() {
    let last =
        template("{% for m in messages %}{{ m.role }}{{ m.content if loop.last else '' }}{% endfor %}");
    let refused = last.render(&conversation(), &options(Assistant::Prefixes));
    assert!(matches!(refused, Err(ChatError::Prefix { message: 2, .. })), "{refused:?}");
}

#[test]
fn a_generation_prompt_is_no_part() {
    let options = Options { add_generation_prompt: true, ..options(Assistant::Auto) };
    for source in [MARKED, &unmarked()] {
        let rendered = template(source).render(&conversation(), &options).expect("renders");
        assert_eq!(rendered.text, format!("{TEXT}<assistant>"));
        assert_eq!(rendered.assistant.len(), 2);
    }
}

#[test]
fn texts_may_have_the_characters_that_mark_parts() {
    let first = "\u{F0000}\u{F0001}";
    let messages =
        json!([{"role": "user", "content": first}, {"role": "assistant", "content": format!("{first}x")}]);
    let rendered = template(MARKED).render(&messages, &options(Assistant::Generation)).expect("renders");
    assert_eq!(rendered.text, format!("<s><user>{first}\n<assistant>{first}x</s>\n"));
    assert_eq!(parts(&rendered), [format!("{first}x</s>")]);
    // Made by the template, where no input shows it.
    let source = r#"{% generation %}{{ "\udb80\udc00" }}a{% endgeneration %}"#;
    let made = template(source).render(&json!([]), &options(Assistant::Generation));
    assert_eq!(made, Err(ChatError::Marks));
}

#[test]
fn blocks_inside_of_macros_sets_and_blocks_are_found() {
    let source = r#"{% macro say(text) %}{% generation %}{{ text }}{% endgeneration %}{% endmacro %}
{%- set saved %}{% generation %}b{% generation %}c{% endgeneration %}{% set d = 1 %}{% endgeneration %}{% endset -%}
{{ say("a") }}-{{ saved }}-{{ d }}{% generation %}{% endgeneration %}"#;
    let rendered = template(source).render(&json!([]), &options(Assistant::Generation)).expect("renders");
    assert_eq!(rendered.text, "a-bc-");
    assert_eq!(parts(&rendered), ["a", "bc"]);
    let changed = "{% set x %}{% generation %} a {% endgeneration %}{% endset %}{{ x | trim }}";
    assert_eq!(template(changed).render(&json!([]), &options(Assistant::Generation)), Err(ChatError::Marks));
}

#[test]
fn tools_are_json_as_python_writes_it() {
    let tools = json!([{"name": "f", "b": [1, 2.0, 1e-7, 1e16], "a": {"é<>&'\"": null, "t": true}, "empty": [[], {}]}]);
    let call = json!({"function": {"name": "f", "arguments": {"z": [1], "a": "\u{7f}\u{1}\n"}}});
    let messages = json!([{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "x"}]);
    let rendered = template(TOOLS).render(&messages, &Options { tools: Some(tools), ..Options::default() });
    assert_eq!(
        rendered.expect("renders").text,
        "{\"name\": \"f\", \"b\": [1, 2.0, 1e-07, 1e+16], \"a\": {\"é<>&'\\\"\": null, \"t\": true}, \
         \"empty\": [[], {}]}\nf(z=[1], a=\"\u{7f}\\u0001\\n\")\n"
    );
    let indented = template(
        "{{ messages | tojson(indent=2, ensure_ascii=True, sort_keys=True, separators=(',', ':')) }}",
    );
    let rendered = indented.render(&json!([{"b": "é🦀", "a": []}]), &Options::default()).expect("renders");
    assert_eq!(rendered.text, "[\n  {\n    \"a\":[],\n    \"b\":\"\\u00e9\\ud83e\\udd80\"\n  }\n]");
}

#[test]
fn loops_end_and_values_are_written_as_by_python() {
    let messages = json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "<think>\nhm</think>\n\na"},
        {"role": "user", "content": "v"},
        {"role": "user", "content": "w"}
    ]);
    let rendered = template(LOOPS).render(&messages, &Options::default()).expect("renders");
    assert_eq!(rendered.text, "1U:u;2A:a;3U:v;None True [1, 'a', None] 1.0");
}

#[test]
fn methods_are_those_of_python() {
    for (expression, expected) in [
        ("' a  b '.split()", "['a', 'b']"),
        ("' a  b c '.split(none, 1)", "['a', 'b c ']"),
        ("' a b  c '.rsplit(none, 1)", "[' a b', 'c']"),
        ("'a,b,c'.rsplit(',', 1)", "['a,b', 'c']"),
        ("'a\\nb\\r\\n'.splitlines()", "['a', 'b']"),
        ("'a=b=c'.partition('=')", "('a', '=', 'b=c')"),
        ("'abc'.removeprefix('a').removesuffix('c')", "b"),
        ("'xxaxx'.strip('x') + ' b\\x1c'.strip()", "ab"),
        ("{'items': 1}.items() | list", "[('items', 1)]"),
        ("{'a': 1}.get('b', 2)", "2"),
        ("none | trim", "None"),
        ("'ab'[::-1]", "ba"),
        ("(none is iterable, 'a' is iterable, {} is sequence)", "(False, True, True)"),
    ] {
        let rendered = template(&format!("{{{{ {expression} }}}}")).render(&json!([]), &Options::default());
        assert_eq!(rendered.map(|rendered| rendered.text), Ok(expected.to_owned()), "{expression}");
    }
}

#[test]
fn an_error_names_the_message_and_the_key() {
    let template = template("{% for message in messages %}\n{{ message.content.text | upper }}{% endfor %}");
    let messages =
        json!([{"content": {"text": "a"}}, {"content": {}}, {"role": "user"}, {"content": {"text": "b"}}]);
    let error = template.render(&messages, &Options::default()).expect_err("a key is missing").to_string();
    assert!(error.contains("messages[2]") && error.contains("`message.content` is undefined"), "{error}");
    let strict = Settings { strict: true, ..Settings::default() };
    let template = Template::with_settings("{% for m in messages %}{{ m.content }}{% endfor %}", [], strict)
        .expect("a template");
    let error =
        template.render(&json!([{"content": "a"}, {}]), &Options::default()).expect_err("strict").to_string();
    assert!(error.contains("messages[1]") && error.contains("`m.content` is undefined"), "{error}");
    let error = template.render(&json!([{"content": "a"}, 7]), &Options::default());
    assert_eq!(error, Err(ChatError::Messages { place: "messages[1]".to_owned() }));
}

#[test]
fn a_refusal_is_the_templates_and_a_date_is_given() {
    let template = template(CHECKS);
    let user = json!({"role": "user", "content": "u"});
    let dated = Options { now: "2026-07-26".parse().ok(), ..Options::default() };
    assert_eq!(template.render(&json!([user]), &dated).expect("renders").text, "u 26 Jul 2026\n");
    assert_eq!(
        template.render(&json!([user]), &Options::default()),
        Err(ChatError::NoDate("%d %b %Y".to_owned()))
    );
    let refused = template.render(&json!([user, user, user]), &dated);
    assert_eq!(
        refused,
        Err(ChatError::Refused { message: Some(1), reason: "roles must alternate".to_owned() })
    );
}

#[test]
fn templates_that_do_not_end_or_fill_the_memory_are_stopped() {
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let doubling =
        "{% set ns = namespace(t='x') %}{% for a in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}";
    let recursion = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    let repeated = "{{ 'x' * 999999999999 }}";
    let json = "{% set ns = namespace(t=[1]) %}{% for a in range(99) %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.t | tojson }}";
    // A value that the engine could not drop without a large stack.
    let nested =
        "{% set ns = namespace(t=[]) %}{% for a in range(99999) %}{% set ns.t = [ns.t] %}{% endfor %}";
    let chained =
        "{% set ns = namespace() %}{% for a in range(99999) %}{% set ns.t = namespace(t=ns.t) %}{% endfor %}";
    let settings = Settings { fuel: 100_000, ..Settings::default() };
    let render =
        |source| Template::with_settings(source, [], settings)?.render(&conversation(), &Options::default());
    for source in [endless, doubling, recursion, repeated, json, nested, chained] {
        assert!(render(source).is_err(), "{source}");
    }
    assert_eq!(render(endless), Err(ChatError::Fuel(100_000)));
    let small = Settings { output_bytes: 1000, ..Settings::default() };
    let long =
        Template::with_settings("{% for a in range(9999) %}xx{% endfor %}", [], small).expect("a template");
    assert_eq!(long.render(&json!([]), &Options::default()), Err(ChatError::Output(1000)));
}

#[test]
fn a_tokenizers_configuration_has_the_template_and_the_tokens() {
    let config = json!({
        "eos_token": {"content": "</s>", "lstrip": false},
        "chat_template": [{"name": "default", "template": "d{{ eos_token }}"}, {"name": "tool_use", "template": "t"}]
    });
    let text = |name| {
        let template = Template::from_tokenizer_config(&config, name, Settings::default())?;
        template.render(&json!([]), &Options::default()).map(|rendered| rendered.text)
    };
    assert_eq!(text(None), Ok("d</s>".to_owned()));
    assert_eq!(text(Some("tool_use")), Ok("t".to_owned()));
    assert_eq!(
        text(Some("rag")),
        Err(ChatError::Config("none has the name rag; there are default, tool_use".to_owned()))
    );
    assert!(Template::from_tokenizer_config(&json!({}), None, Settings::default()).is_err());
}

#[test]
fn reasoning_has_the_names_that_templates_read() {
    let template = template("{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }};{% endfor %}");
    let messages =
        json!([{"reasoning": "a"}, {"thinking": "b"}, {"reasoning_content": "c"}, {"reasoning": null}]);
    let rendered = template.render(&messages, &Options::default()).expect("renders");
    assert_eq!(rendered.text, "a|a;b|b;c|c;|;");
}

proptest! {
    #[test]
    fn no_template_panics(parts in prop::collection::vec(prop::sample::select(vec![
        "{% for m in messages %}", "{% endfor %}", "{% if m.content %}", "{% endif %}", "{{ m.content", "}}", " | trim", " | tojson",
        "{% generation %}", "{% endgeneration %}", "{%- set ns = namespace(a=[]) -%}", "{% set ns.a = ns.a + [m] %}", "{{ ns.a", "\n",
        "{% break %}", "{% macro f(x) %}", "{% endmacro %}", "{{ f(m", ")", ".split('x')", "[::-1]", "[0]", "a\u{F0000}", "{#", "#}",
        "{% raw %}", "{% endraw %}", "{{ loop.last", "{{ strftime_now('%Y')", "{{ raise_exception('x')", " ~ ", "'", "\"",
    ]), 0..14)) {
        let settings = Settings { fuel: 10_000, ..Settings::default() };
        if let Ok(template) = Template::with_settings(&parts.concat(), [], settings) {
            for assistant in [Assistant::None, Assistant::Generation, Assistant::Prefixes] {
                if let Ok(rendered) = template.render(&conversation(), &options(assistant)) {
                    prop_assert!(rendered.assistant.is_sorted_by(|left, right| left.end <= right.start));
                    prop_assert!(rendered.assistant.iter().all(|range| rendered.text.get(range.clone()).is_some()));
                }
            }
        }
    }
}
