use proptest::prelude::*;

use super::*;

fn text(source: &str) -> String {
    read(source).expect("a template").text
}

#[test]
fn only_tags_change() {
    for source in [
        "{# {% generation %} #}",
        "{{ '{% generation %}' }}",
        "{% raw %}{% generation %}{% endraw %}",
        "{% if x == '{% generation %}' %}{% endif %}",
        "{{ {'a': {'b': '}}{% generation %}'}} }}",
        "{% set generation = 1 %}{{ generation }}",
    ] {
        let read = read(source).expect("a template");
        assert_eq!((read.text.as_str(), read.generates), (source, false));
    }
}

#[test]
fn whitespace_control_stays() {
    assert_eq!(
        text("a {%- generation -%} b {%+endgeneration%}"),
        "a {%- filter __generation(__generation_marks) %}{% with -%} b {%+endwith %}{% endfilter%}"
    );
    assert_eq!(text("{% raw %}\n{% endraw %}"), "{% raw +%}\n{% endraw %}");
    assert_eq!(text("{% raw -%}\na\r\nb\r{% endraw %}"), "{% raw -%}\na\nb\n{% endraw %}");
}

#[test]
fn the_list_of_a_loop_is_found() {
    for (source, expected) in [
        ("{% for a in b %}", "{% for a in( b )|__loop %}"),
        ("{%for a,b in c.items() if a in d-%}", "{%for a,b in( c.items() )|__loop if a in d-%}"),
        ("{% for a in [b if c else d] recursive %}", "{% for a in( [b if c else d] )|__loop recursive %}"),
        ("{% for a in 'if' ~ b['in'].if %}", "{% for a in( 'if' ~ b['in'].if )|__loop %}"),
    ] {
        assert_eq!(text(source).replace(" (", "( "), expected.replace(" (", "( "), "{source}");
    }
}

#[test]
fn a_value_for_a_namespace_is_found() {
    assert_eq!(
        text("{%- set a.b = c == 'd' if e else [f] -%}"),
        "{%- set a.b =( c == 'd' if e else [f] )|__kept -%}"
    );
    for source in [
        "{% set a = b.c %}",
        "{% set a %}{{ b.c == 1 }}{% endset %}",
        "{% set a | join(b='.') %}{% endset %}",
    ] {
        assert_eq!(text(source), source);
    }
}

#[test]
fn a_block_that_python_would_refuse_is_refused() {
    for (source, line) in [
        ("{% endgeneration %}", 1),
        ("\n{% for a in b %}{% generation %}\n{% break %}{% endgeneration %}{% endfor %}", 3),
        ("{% generation %}{% if a %}{% endgeneration %}{% endif %}", 1),
    ] {
        assert!(
            matches!(read(source), Err(ChatError::Syntax { line: found, .. }) if found == line),
            "{source}"
        );
    }
    let inside = "{% generation %}{% for a in b %}{% break %}{% endfor %}{% endgeneration %}";
    assert!(read(inside).is_ok());
}

proptest! {
    #[test]
    fn no_text_breaks_the_reader(parts in prop::collection::vec(prop::sample::select(vec![
        "{%", "%}", "{{", "}}", "{#", "#}", "-", "+", " generation ", " endgeneration ", " for ", " in ", " if ", " raw ",
        " endraw ", "'", "\"", "\\", "é", "🦀", "(", ")", "[", "]", "{", "}", "\n", "\r", "a", ".", "=", " recursive ", " set ",
    ]), 0..40)) {
        let _ = read(&parts.concat());
    }
}
