//! The differences of templates for transformers and for the engine, which are changed in the template's text.
//!
//! - `{% generation %}` becomes a filter block around a scope.
//! - The list of a loop passes a filter, since Python refuses to loop over none.
//! - A value for a namespace passes a filter that limits its nesting. A template cannot nest values without end in another
//!   way, and the engine drops them by recursion.
//! - A line break behind `{% raw %}` is kept.
//!
//! Only insides of tags change, so that whitespace control, comments, raw blocks and line numbers stay as they are.

use std::ops::Range;

use super::ChatError;

/// The filter of generation blocks; its argument is the variable with the marks.
pub(super) const FILTER: &str = "__generation";
/// The filter of a loop's list.
pub(super) const LOOP: &str = "__loop";
/// The filter of a value for a namespace.
pub(super) const KEPT: &str = "__kept";
/// The variable with the marks: empty, or the two characters around a part.
pub(super) const MARKS: &str = "__generation_marks";

const OPEN: &str = "filter __generation(__generation_marks) %}{% with";
const CLOSE: &str = "endwith %}{% endfilter";

/// A template for the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) text: String,
    /// Whether there is a generation block.
    pub(super) generates: bool,
    /// Whether the text of each generation block goes straight to the output.
    pub(super) direct: bool,
}

/// Reads a template.
///
/// # Errors
/// [`ChatError::Syntax`] if a block ends that did not begin, or a loop's `break` leaves a generation block.
pub(super) fn read(source: &str) -> Result<Source, ChatError> {
    // As Jinja, which knows one kind of line end.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut reader = Reader {
        source: &source,
        text: String::new(),
        copied: 0,
        open: Vec::new(),
        generates: false,
        direct: true,
    };
    for tag in tags(&source) {
        reader.tag(&tag)?;
    }
    reader.text.push_str(&source[reader.copied..]);
    // A template could make marks from escapes; then a rendering without marks has to confirm the text.
    let escapes = ["\\u", "\\U", "\\x", "\\N", "%c", ":c}"].iter().any(|escape| source.contains(escape));
    Ok(Source { text: reader.text, generates: reader.generates, direct: reader.direct && !escapes })
}

struct Reader<'a> {
    source: &'a str,
    text: String,
    /// The source before this byte is in `text`.
    copied: usize,
    /// Names of the open blocks.
    open: Vec<&'a str>,
    generates: bool,
    direct: bool,
}

impl<'a> Reader<'a> {
    fn tag(&mut self, tag: &Tag<'a>) -> Result<(), ChatError> {
        match tag.name {
            "generation" if tag.bare => {
                self.generates = true;
                // In any other block, the text is a value before it is output.
                self.direct &=
                    self.open.iter().all(|name| matches!(*name, "for" | "if" | "with" | "generation"));
                self.replace(tag, OPEN);
                self.open.push(tag.name);
            }
            "endgeneration" if tag.bare => {
                if self.open.pop() != Some("generation") {
                    return Err(self.refusal(tag, "endgeneration does not close a generation block"));
                }
                self.replace(tag, CLOSE);
            }
            "break" | "continue" if self.leaves_generation() => {
                return Err(self.refusal(tag, "break and continue cannot leave a generation block"));
            }
            "for" => {
                if let Some(list) = &tag.list {
                    self.insert(list.start, "(");
                    self.insert(list.end, ")|__loop ");
                }
                self.open.push(if tag.recursive { "recursive for" } else { "for" });
            }
            // Jinja keeps the line break behind this tag, whatever trim_blocks is.
            "raw" if tag.bare && self.source[tag.end..].starts_with("%}\n") => self.insert(tag.end, "+"),
            "if" | "with" | "macro" | "call" | "filter" | "autoescape" => self.open.push(tag.name),
            "set" => match tag.assigned {
                Some(at) if self.source[tag.start..at].contains('.') => {
                    self.insert(at + 1, "(");
                    self.insert(tag.end, ")|__kept ");
                }
                Some(_) => {}
                None => self.open.push(tag.name),
            },
            "endfor" | "endif" | "endwith" | "endmacro" | "endcall" | "endfilter" | "endautoescape"
            | "endset" => {
                self.open.pop();
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the innermost loop is around the innermost generation block.
    fn leaves_generation(&self) -> bool {
        self.open.iter().rev().find(|name| name.ends_with("for") || **name == "generation")
            == Some(&"generation")
    }

    fn replace(&mut self, tag: &Tag<'_>, name: &str) {
        self.insert(tag.start, name);
        self.copied = tag.start + tag.name.len();
    }

    fn insert(&mut self, at: usize, text: &str) {
        self.text.push_str(&self.source[self.copied..at]);
        self.text.push_str(text);
        self.copied = at;
    }

    fn refusal(&self, tag: &Tag<'_>, reason: &str) -> ChatError {
        let line = self.source[..tag.start].matches('\n').count() + 1;
        ChatError::Syntax { line, reason: reason.to_owned() }
    }
}

/// A `{% … %}`.
#[derive(Clone, Debug)]
struct Tag<'a> {
    name: &'a str,
    /// The byte at which the name starts.
    start: usize,
    /// The byte at which its last sign starts.
    end: usize,
    /// Whether nothing follows the name.
    bare: bool,
    /// Its first `=` outside of brackets.
    assigned: Option<usize>,
    recursive: bool,
    /// The list of a loop.
    list: Option<Range<usize>>,
}

/// The tags outside of comments, expressions and raw blocks.
fn tags(source: &str) -> impl Iterator<Item = Tag<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            at += source[at..].find('{')?;
            let rest = &source[at..];
            if let Some(comment) = rest.strip_prefix("{#") {
                at += 2 + comment.find("#}")? + 2;
            } else if rest.starts_with("{{") {
                at = Expression::read(source, at + 2, "}}").end;
            } else if rest.starts_with("{%") {
                let (tag, end) = tag(source, at + 2);
                at = if tag.name == "raw" && tag.bare { raw_end(source, end) } else { end };
                return Some(tag);
            } else {
                at += 1;
            }
        }
    })
}

/// The tag whose sign ends before `at`, and the byte behind it.
fn tag(source: &str, at: usize) -> (Tag<'_>, usize) {
    let unsigned = source[at..].strip_prefix(['-', '+']).unwrap_or(&source[at..]).trim_start();
    let start = source.len() - unsigned.len();
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    let name = &unsigned[..unsigned.find(|character| !is_name(character)).unwrap_or(unsigned.len())];
    let body = Expression::read(source, start + name.len(), "%}");
    let inside = source[start + name.len()..body.inside_end].trim();
    let recursive = inside.ends_with(" recursive");
    let list = if name == "for" { list(source, start + name.len()..body.inside_end) } else { None };
    let tag = Tag {
        name,
        start,
        end: body.inside_end,
        bare: inside.is_empty(),
        assigned: body.assigned,
        recursive,
        list,
    };
    (tag, body.end)
}

/// The list of a loop with this head: from the word `in` to `if`, `recursive` or the end.
fn list(source: &str, head: Range<usize>) -> Option<Range<usize>> {
    let bytes = &source.as_bytes()[..head.end];
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
    let (mut at, mut depth, mut start) = (head.start, 0usize, None);
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'') => at = string_end(bytes, at, quote),
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            byte if is_word(byte) => {
                let end = at + bytes[at..].iter().take_while(|&&byte| is_word(byte)).count();
                let is_attribute = source[..at].trim_end().ends_with('.');
                match (&bytes[at..end], start) {
                    (b"in", None) if depth == 0 => start = Some(end + 1),
                    (b"if" | b"recursive", Some(start)) if depth == 0 && !is_attribute => {
                        return Some(start..at);
                    }
                    _ => {}
                }
                at = end - 1;
            }
            _ => {}
        }
        at += 1;
    }
    start.filter(|&start| start < head.end).map(|start| start..head.end)
}

/// The byte behind the `{% endraw %}` that follows `at`.
fn raw_end(source: &str, mut at: usize) -> usize {
    while let Some(found) = source[at..].find("{%") {
        let (tag, end) = tag(source, at + found + 2);
        if tag.name == "endraw" && tag.bare {
            return end;
        }
        at += found + 2;
    }
    source.len()
}

/// The rest of an expression.
struct Expression {
    /// The byte before its end sign.
    inside_end: usize,
    /// The byte behind its end sign.
    end: usize,
    /// Its first `=` outside of brackets.
    assigned: Option<usize>,
}

impl Expression {
    /// Reads on to `close` outside of strings and brackets, or to the end of the source.
    fn read(source: &str, from: usize, close: &str) -> Self {
        let bytes = source.as_bytes();
        let (mut at, mut depth, mut assigned) = (from, 0usize, None);
        while at < bytes.len() {
            if depth == 0 && source.is_char_boundary(at) && source[at..].starts_with(close) {
                let signed = at > from && matches!(bytes[at - 1], b'-' | b'+');
                return Self { inside_end: at - usize::from(signed), end: at + close.len(), assigned };
            }
            match bytes[at] {
                quote @ (b'"' | b'\'') => at = string_end(bytes, at, quote),
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                b'=' if depth == 0 => assigned = assigned.or(Some(at)),
                _ => {}
            }
            at += 1;
        }
        Self { inside_end: source.len(), end: source.len(), assigned }
    }
}

/// The last byte of the string that begins at `from`.
fn string_end(bytes: &[u8], from: usize, quote: u8) -> usize {
    let mut at = from + 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at.min(bytes.len())
}

#[cfg(test)]
mod tests;
