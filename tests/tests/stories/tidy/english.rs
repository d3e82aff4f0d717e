//! Words that stand where a noun or a plain verb would be clearer, counted in texts that people read. Knows no rule.

/// Words and phrases that a reader has to resolve or translate.
const MARKERS: &[&str] = &[
    "told",
    "said",
    "whoever",
    "nobody",
    "somebody",
    "one's own",
    "anew",
    "ere",
    "for ever",
    "as far",
    "no number",
    "asked wrongly",
    "is away",
    "are away",
    "goes on",
    "go on",
    "went on",
    "going on",
    "comes to",
    "come to",
    "came to",
    "so many",
    "so much",
    "so long",
    "what is",
    "what are",
    "what was",
    "what were",
    "what it",
    "what they",
    "what has",
    "what have",
    "what had",
    "what does",
    "what do",
    "what did",
    "what comes",
];

/// A text and how many of its words are markers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) words: usize,
    /// Each marker with the number of its line.
    pub(crate) markers: Vec<(usize, &'static str)>,
}

impl Count {
    /// Whether there is at most one marker in 1,000 words.
    pub(crate) fn is_plain(&self) -> bool {
        self.markers.len() * 1000 <= self.words
    }
}

/// Counts the markers of a Markdown text. Code, in fences and in backticks, is left out.
pub(crate) fn count(text: &str) -> Count {
    let mut count = Count::default();
    // A phrase may be broken over two lines: `last` ends the line before.
    let mut last = String::new();
    for (number, line) in prose(text) {
        let words = words(&without_code(line));
        count.words += words.len();
        let with_last: Vec<&str> =
            std::iter::once(last.as_str()).chain(words.iter().map(String::as_str)).collect();
        for (at, word) in with_last.iter().enumerate() {
            for marker in MARKERS {
                let (first, second) = marker.split_once(' ').map_or((*marker, None), |(a, b)| (a, Some(b)));
                let next = with_last.get(at + 1).copied();
                let is_counted = at > 0 || second.is_some();
                if is_counted && *word == first && second.is_none_or(|second| next == Some(second)) {
                    count.markers.push((number, marker));
                }
            }
        }
        last = words.last().cloned().unwrap_or_default();
    }
    count
}

/// The module documentation of a Rust file.
pub(crate) fn module_docs(text: &str) -> String {
    let lines = text.lines().map(|line| line.trim_start().strip_prefix("//!").unwrap_or_default());
    lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

/// The comments and strings of a Rust file, on their lines. A word stands for the code between them.
pub(crate) fn rust_texts(text: &str) -> String {
    texts(text, rust_piece)
}

/// The comments and strings of a Python file, on their lines. A word stands for the code between them.
pub(crate) fn python_texts(text: &str) -> String {
    texts(text, python_piece)
}

/// Numbered lines outside of code blocks. Indented lines are code only after a blank line, as Markdown has it.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let (mut in_fence, mut in_paragraph) = (false, false);
    text.lines().enumerate().filter_map(move |(at, line)| {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
            return None;
        }
        let is_item = ["- ", "* "].iter().any(|mark| line.trim_start().starts_with(mark));
        if in_fence || line.starts_with("    ") && !in_paragraph && !is_item {
            return None;
        }
        in_paragraph = !line.trim().is_empty();
        Some((at + 1, line))
    })
}

/// A line with a word in the place of each code span.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" x ")
}

/// `piece` gives the length of the first piece of a source, and whether that is a comment or a string.
fn texts(source: &str, piece: fn(&str) -> (usize, bool)) -> String {
    let (mut texts, mut rest, mut is_after_code) = (String::new(), source, false);
    while !rest.is_empty() {
        let (length, is_text) = piece(rest);
        let (first, others) = rest.split_at(length);
        if is_text {
            texts.push_str(if is_after_code { " x " } else { "" });
            texts.push_str(&without_placeholders(first));
            is_after_code = false;
        } else if first == "\n" {
            texts.push('\n');
        } else {
            is_after_code |= !first.trim().is_empty();
        }
        rest = others;
    }
    let is_mark = |c: char| c.is_whitespace() || "/!#\"".contains(c);
    texts.lines().map(|line| line.trim_start_matches(is_mark)).collect::<Vec<_>>().join("\n")
}

fn rust_piece(rest: &str) -> (usize, bool) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), true);
    }
    if let Some(raw) = rest.strip_prefix('r') {
        let marks = raw.len() - raw.trim_start_matches('#').len();
        if raw[marks..].starts_with('"') {
            let (begin, end) = (marks + 2, format!("\"{}", "#".repeat(marks)));
            return (rest[begin..].find(&end).map_or(rest.len(), |at| begin + at + end.len()), true);
        }
    }
    let mut chars = rest.chars();
    match (chars.next(), chars.next(), chars.next()) {
        (Some('"'), _, _) => (quoted(rest, '"'), true),
        (Some('\''), Some('\\'), _) => (quoted(rest, '\''), false),
        (Some('\''), Some(one), Some('\'')) => (one.len_utf8() + 2, false),
        (first, _, _) => (first.map_or(0, char::len_utf8), false),
    }
}

fn python_piece(rest: &str) -> (usize, bool) {
    if rest.starts_with('#') {
        return (rest.find('\n').unwrap_or(rest.len()), true);
    }
    for mark in ["\"\"\"", "'''"] {
        if let Some(inner) = rest.strip_prefix(mark) {
            return (inner.find(mark).map_or(rest.len(), |at| at + 2 * mark.len()), true);
        }
    }
    match rest.chars().next() {
        Some(mark @ ('"' | '\'')) => (quoted(rest, mark), true),
        first => (first.map_or(0, char::len_utf8), false),
    }
}

/// The length of the literal that `rest` begins with, up to the next `mark` without a backslash.
fn quoted(rest: &str, mark: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if c == mark && !is_escaped {
            return at + c.len_utf8();
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    rest.len()
}

/// A literal with a word for each placeholder, and a space for each line break.
fn without_placeholders(literal: &str) -> String {
    let literal = literal.replace("\\n", " ");
    let mut parts = literal.split('{');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('}') {
            Some((name, after)) if !name.contains(char::is_whitespace) => {
                plain.push_str(" x ");
                plain.push_str(after);
            }
            _ => {
                plain.push(' ');
                plain.push_str(part);
            }
        }
    }
    plain
}

fn words(line: &str) -> Vec<String> {
    let is_letter = |c: char| c.is_alphabetic() || c == '\'' || c == '-';
    let words = line.split(|c: char| !is_letter(c)).map(|word| word.trim_matches(['\'', '-']));
    let words = words.filter(|word| word.chars().any(char::is_alphabetic));
    words.map(str::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_found_across_lines_and_not_in_code() {
        let found = count("It is told\nhere. So\nmany say `told` and\n```\nsaid\n```\nno one saidst.");
        assert_eq!(found.markers, [(1, "told"), (3, "so many")]);
        assert!(!found.is_plain());
    }

    #[test]
    fn one_marker_in_a_thousand_words_is_plain() {
        let text = format!("{} nobody", "word ".repeat(999));
        assert!(count(&text).is_plain());
        assert!(!count("nobody").is_plain());
    }

    #[test]
    fn comments_and_strings_are_texts_and_code_is_not() {
        let rust = concat!(
            "/// It is told\n/// once. So\nfn many<'a>() { f(\"so many {said}\", r#\"anew\"#, '\"') }\n",
            "// for\nlet ever = \"\\\"nobody\";\n",
        );
        let found = count(&rust_texts(rust)).markers;
        assert_eq!(found, [(1, "told"), (3, "so many"), (3, "anew"), (5, "nobody")]);
        let python = "said = f('told') # anew\n'''so\nmany'''\n";
        assert_eq!(count(&python_texts(python)).markers, [(1, "told"), (1, "anew"), (3, "so many")]);
    }
}
