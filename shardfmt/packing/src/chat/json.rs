//! `tojson` of transformers: Python's `json.dumps` with `ensure_ascii=False`.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// The levels of lists and maps that are written; Python's limit is near 1000.
pub(super) const DEEPEST: usize = 200;
/// Bytes of JSON for a step of fuel.
const STEP_BYTES: u64 = 16;

type Arguments = (Option<Value>, Option<Value>, Option<Value>, Option<Value>, Kwargs);

/// The filter: `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
///
/// # Errors
/// For values that Python cannot write either, such as undefined ones, and for unknown arguments.
pub(super) fn tojson(state: &State, value: Value, arguments: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let arguments = arguments.into_values();
    let (ensure_ascii, indent, separators, sort_keys, named): Arguments = from_args(&arguments)?;
    let argument = |position: Option<Value>, name: &str| -> Result<Option<Value>, Error> {
        let value = if named.has(name) { Some(named.get::<Value>(name)?) } else { position };
        Ok(value.filter(|value| !value.is_none()))
    };
    let indent = argument(indent, "indent")?.as_ref().map(indent_text).transpose()?;
    let (item, key) = match argument(separators, "separators")? {
        Some(pair) => separator_pair(&pair)?,
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let ascii = argument(ensure_ascii, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let sorted = argument(sort_keys, "sort_keys")?.is_some_and(|value| value.is_true());
    named.assert_all_used()?;
    let mut writer = Writer { state, text: String::new(), paid: 0, ascii, sorted, indent, item, key };
    writer.value(&value, 0)?;
    Ok(writer.text)
}

fn indent_text(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_owned());
    }
    let spaces = i64::try_from(indent.clone())?;
    if spaces > 1000 {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson indents by 1000 spaces at most"));
    }
    Ok(" ".repeat(usize::try_from(spaces).unwrap_or(0)))
}

fn separator_pair(pair: &Value) -> Result<(String, String), Error> {
    let parts: Vec<Value> = pair.try_iter()?.collect();
    match parts.as_slice() {
        [item, key] => Ok((item.to_string(), key.to_string())),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "the separators of tojson are two strings")),
    }
}

struct Writer<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    text: String,
    /// Bytes for which fuel was taken.
    paid: usize,
    ascii: bool,
    sorted: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.pay()?;
        if depth > DEEPEST {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                format!("tojson got a value of more than {DEEPEST} levels"),
            ));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq => self.list(value, depth)?,
            ValueKind::Map => self.object(value, depth)?,
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("tojson cannot write a value that is {kind}"),
                ));
            }
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.text.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.separate(empty, depth + 1);
            self.value(&item, depth + 1)?;
            empty = false;
        }
        self.close(']', empty, depth);
        Ok(())
    }

    fn object(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut entries = Vec::new();
        for key in value.try_iter()? {
            entries.push((key_text(&key)?, value.get_item(&key)?));
        }
        if self.sorted {
            entries.sort_by(|left, right| left.0.cmp(&right.0));
        }
        self.text.push('{');
        for (index, (key, item)) in entries.iter().enumerate() {
            self.separate(index == 0, depth + 1);
            self.string(key);
            let separator = std::mem::take(&mut self.key);
            self.text.push_str(&separator);
            self.key = separator;
            self.value(item, depth + 1)?;
        }
        self.close('}', entries.is_empty(), depth);
        Ok(())
    }

    /// Takes fuel for the text since the last time.
    fn pay(&mut self) -> Result<(), Error> {
        let bytes = (self.text.len() - self.paid) as u64 + STEP_BYTES;
        self.paid = self.text.len();
        self.state.consume_fuel(bytes / STEP_BYTES)
    }

    fn separate(&mut self, first: bool, depth: usize) {
        if !first {
            self.text.push_str(&self.item);
        }
        self.line(depth);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.line(depth);
        }
        self.text.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            for _ in 0..depth {
                self.text.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for character in text.chars() {
            match character {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                '\0'..='\u{1f}' => self.escape(character),
                '\u{80}'.. if self.ascii => self.escape(character),
                _ => self.text.push(character),
            }
        }
        self.text.push('"');
    }

    fn escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            self.text.push_str(&format!("\\u{unit:04x}"));
        }
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Number => Ok(number(key)),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        kind => {
            Err(Error::new(ErrorKind::BadSerialization, format!("tojson cannot write a key that is {kind}")))
        }
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        value.to_string()
    } else {
        f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
    }
}

/// A float as Python writes it: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = number.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}
