//! Python's methods of strings, lists and dictionaries that chat templates call.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// Calls a method that the engine does not have.
///
/// # Errors
/// [`ErrorKind::UnknownMethod`], and errors of arguments.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = string_method(text, name, arguments).transpose()
    {
        return result;
    }
    if value.kind() == ValueKind::Seq && name == "index" {
        return list_index(value, arguments);
    }
    if value.kind() == ValueKind::Map && name == "copy" {
        let () = from_args(arguments)?;
        return Ok(value.clone());
    }
    pycompat::unknown_method_callback(state, value, name, arguments)
}

/// The methods that pycompat lacks, or that differ from Python's there. `None` for others.
fn string_method(text: &str, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let value = match name {
        "strip" => Value::from(strip(text, arguments, true, true)?),
        "lstrip" => Value::from(strip(text, arguments, true, false)?),
        "rstrip" => Value::from(strip(text, arguments, false, true)?),
        "split" => split(text, arguments, false)?,
        "rsplit" => split(text, arguments, true)?,
        "splitlines" => split_lines(text, arguments)?,
        "partition" => partition(text, arguments, false)?,
        "rpartition" => partition(text, arguments, true)?,
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" => {
            let (part,): (&str,) = from_args(arguments)?;
            let at = text
                .find(part)
                .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}

/// Whether Python's `str.isspace` is true.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// The filter `trim`: the text of a value without white space at its ends.
pub(super) fn trim(value: &Value, characters: Option<&str>) -> String {
    match value.as_str() {
        Some(text) => strip_characters(text, characters, true, true).to_owned(),
        None => strip_characters(&value.to_string(), characters, true, true).to_owned(),
    }
}

/// The filter of a loop's list.
///
/// # Errors
/// For a value that Python cannot loop over; the engine takes none for an empty list.
pub(super) fn looped(value: Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        // The engine does not know the last item of a loop over a text.
        return Ok(text.chars().map(Value::from).collect());
    }
    if is_iterable(&value) {
        return Ok(value);
    }
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("a value that is {} cannot be looped over", value.kind()),
    ))
}

/// The test `iterable`.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The test `sequence`: whether Python's `len` accepts a value, and it has items.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map)
}

fn strip<'a>(text: &'a str, arguments: &[Value], start: bool, end: bool) -> Result<&'a str, Error> {
    let (characters,): (Option<&str>,) = from_args(arguments)?;
    Ok(strip_characters(text, characters, start, end))
}

fn strip_characters<'a>(mut text: &'a str, characters: Option<&str>, start: bool, end: bool) -> &'a str {
    let strips =
        |character: char| characters.map_or_else(|| is_space(character), |set| set.contains(character));
    if start {
        text = text.trim_start_matches(strips);
    }
    if end {
        text = text.trim_end_matches(strips);
    }
    text
}

/// `split` or `rsplit`, by white space if no separator is given.
fn split(text: &str, arguments: &[Value], reverse: bool) -> Result<Value, Error> {
    let (separator, most, named): (Option<Value>, Option<i64>, minijinja::value::Kwargs) =
        from_args(arguments)?;
    let most = if named.has("maxsplit") { named.get("maxsplit")? } else { most };
    let separator = if named.has("sep") { named.get("sep")? } else { separator };
    named.assert_all_used()?;
    let cuts = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let separator = separator.filter(|separator| !separator.is_none());
    let Some(separator) = separator else { return Ok(split_spaces(text, cuts, reverse)) };
    let Some(separator) = separator.as_str().filter(|separator| !separator.is_empty()) else {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "the separator of split is a string that is not empty",
        ));
    };
    let parts = cuts.saturating_add(1);
    let mut values: Vec<Value> = if reverse {
        text.rsplitn(parts, separator).map(Value::from).collect()
    } else {
        text.splitn(parts, separator).map(Value::from).collect()
    };
    if reverse {
        values.reverse();
    }
    Ok(Value::from(values))
}

fn split_spaces(text: &str, cuts: usize, reverse: bool) -> Value {
    let mut values = Vec::new();
    let mut rest = strip_characters(text, None, true, true);
    while !rest.is_empty() {
        let cut = if reverse { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(cut) = cut.filter(|_| values.len() < cuts) else { break };
        let width = rest[cut..].chars().next().map_or(1, char::len_utf8);
        let (before, after) = (&rest[..cut], &rest[cut + width..]);
        let (part, left) = if reverse { (after, before) } else { (before, after) };
        values.push(Value::from(part));
        rest = strip_characters(left, None, !reverse, reverse);
    }
    // With a limit, Python keeps the white space at the far end of the rest.
    if !rest.is_empty() {
        let outer = strip_characters(text, None, reverse && values.is_empty(), !reverse && values.is_empty());
        let kept = if values.is_empty() || cuts == usize::MAX { rest } else { far_end(outer, rest, reverse) };
        values.push(Value::from(kept));
    }
    if reverse {
        values.reverse();
    }
    Value::from(values)
}

/// The rest with the white space beyond it.
fn far_end<'a>(text: &'a str, rest: &'a str, reverse: bool) -> &'a str {
    if reverse {
        let start = strip_characters(text, None, true, false);
        &text[..text.len() - start.len() + rest.len()]
    } else {
        let end = strip_characters(text, None, false, true);
        &text[end.len() - rest.len()..]
    }
}

fn split_lines(text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (keep_ends,): (Option<bool>,) = from_args(arguments)?;
    let is_end = |character: char| {
        matches!(
            character,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let width = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        let end = if keep_ends.unwrap_or(false) { at + width } else { at };
        lines.push(Value::from(&rest[..end]));
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        lines.push(Value::from(rest));
    }
    Ok(Value::from(lines))
}

fn partition(text: &str, arguments: &[Value], reverse: bool) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(arguments)?;
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "the separator of partition is not empty"));
    }
    let found = if reverse { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match found {
        Some((before, after)) => [before, separator, after],
        None if reverse => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from_object(Tuple::from(parts.map(Value::from))))
}

fn list_index(list: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let (item,): (&Value,) = from_args(arguments)?;
    let at = list.try_iter()?.position(|other| other == *item);
    at.map(Value::from).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the list has no such item"))
}
