//! Values as JSON, exactly: every value of every type comes back as it was, to the last bit of a NaN. The rules are in
//! `docs/OPERATIONS.md`. Reading is led by the type, so nothing is ever guessed.

use std::fmt::Debug;
use std::str::FromStr;

use arrow::array::types::ArrowPrimitiveType;
use arrow::datatypes::{DataType, Field, Float16Type, IntervalUnit, i256};

use super::tree::{Reason, Tree, items};
use crate::digest::{from_hex, to_hex};

type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// Appends the value as JSON.
pub(super) fn write(data_type: &DataType, value: &Tree, out: &mut Vec<u8>) -> Result<(), Reason> {
    match value {
        Tree::Null => out.extend_from_slice(b"null"),
        Tree::Fixed(bytes) => out.extend_from_slice(fixed_text(data_type, bytes)?.as_bytes()),
        Tree::Bytes(bytes) if matches!(data_type, DataType::Utf8 | DataType::LargeUtf8) => {
            let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
            out.extend_from_slice(quoted(text).as_bytes());
        }
        Tree::Bytes(bytes) => out.extend_from_slice(quoted(&to_hex(bytes)).as_bytes()),
        Tree::List(values) => {
            let field = list_items(data_type).ok_or_else(|| misfit(data_type))?;
            let write_item = |value: &Tree, out: &mut Vec<u8>| match (data_type, value, field.data_type()) {
                (DataType::Map(..), Tree::Struct(pair), DataType::Struct(fields)) => {
                    let pair = fields.iter().zip(pair);
                    sequence(b"[]", pair, out, |(field, value), out| write(field.data_type(), value, out))
                }
                (_, value, data_type) => write(data_type, value, out),
            };
            sequence(b"[]", values, out, write_item)?;
        }
        Tree::Struct(values) => {
            let DataType::Struct(fields) = data_type else { return Err(misfit(data_type)) };
            sequence(b"{}", fields.iter().zip(values), out, |(field, value), out| {
                out.extend_from_slice(quoted(field.name()).as_bytes());
                out.push(b':');
                write(field.data_type(), value, out)
            })?;
        }
    }
    Ok(())
}

fn sequence<T>(
    brackets: &[u8; 2],
    values: impl IntoIterator<Item = T>,
    out: &mut Vec<u8>,
    write: impl Fn(T, &mut Vec<u8>) -> Result<(), Reason>,
) -> Result<(), Reason> {
    out.push(brackets[0]);
    for (index, value) in values.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(value, out)?;
    }
    out.push(brackets[1]);
    Ok(())
}

fn fixed_text(data_type: &DataType, bytes: &[u8]) -> Result<String, Reason> {
    Ok(match data_type {
        DataType::Boolean => (bytes != [0]).to_string(),
        DataType::FixedSizeBinary(_) => quoted(&to_hex(bytes)),
        DataType::Float16 => {
            let value = Half::from_bits(u16::from_le_bytes(array(bytes)?));
            HALF.text(f32::from(value), value.to_bits().into())
        }
        DataType::Float32 => {
            let value = f32::from_le_bytes(array(bytes)?);
            SINGLE.text(value, value.to_bits().into())
        }
        DataType::Float64 => {
            let value = f64::from_le_bytes(array(bytes)?);
            DOUBLE.text(value, value.to_bits())
        }
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => quoted(&decimal_text(signed(bytes)?, *scale)),
        DataType::Interval(unit @ (IntervalUnit::DayTime | IntervalUnit::MonthDayNano)) => {
            let parts = parts(*unit).iter().scan(bytes, |rest, width| {
                let (part, after) = rest.split_at_checked(*width)?;
                *rest = after;
                Some(part)
            });
            let parts =
                parts.map(|part| Ok(signed(part)?.to_string())).collect::<Result<Vec<_>, Reason>>()?;
            format!("[{}]", parts.join(","))
        }
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => {
            let mut wide = [0; 8];
            wide.get_mut(..bytes.len()).ok_or_else(|| misfit(data_type))?.copy_from_slice(bytes);
            u64::from_le_bytes(wide).to_string()
        }
        _ => signed(bytes)?.to_string(),
    })
}

/// The constants for floats of one width.
struct Floats {
    digits: usize,
    exponent: u64,
    /// The NaN that is written without its bits.
    quiet: u64,
}

const HALF: Floats = Floats { digits: 4, exponent: 0x7c00, quiet: 0x7e00 };
const SINGLE: Floats = Floats { digits: 8, exponent: 0x7f80_0000, quiet: 0x7fc0_0000 };
const DOUBLE: Floats = Floats { digits: 16, exponent: 0x7ff0_0000_0000_0000, quiet: 0x7ff8_0000_0000_0000 };

impl Floats {
    fn text<F: Into<f64> + Copy + Debug>(&self, value: F, bits: u64) -> String {
        let wide: f64 = value.into();
        match wide {
            _ if wide.is_finite() => format!("{value:?}"),
            _ if wide.is_infinite() => quoted(if wide > 0.0 { "Infinity" } else { "-Infinity" }),
            _ if bits == self.quiet => quoted("NaN"),
            _ => quoted(&format!("NaN:{bits:0digits$x}", digits = self.digits)),
        }
    }

    /// The bits of a value that is not a finite number.
    fn read(&self, text: &str) -> Option<u64> {
        let sign = (self.exponent << 1) & !self.exponent;
        match text {
            "NaN" => Some(self.quiet),
            "Infinity" => Some(self.exponent),
            "-Infinity" => Some(self.exponent | sign),
            _ => {
                let digits = text.strip_prefix("NaN:").filter(|digits| digits.len() == self.digits)?;
                let mantissa = (self.exponent & self.exponent.wrapping_neg()) - 1;
                let is_nan = |bits: &u64| bits & self.exponent == self.exponent && bits & mantissa != 0;
                u64::from_str_radix(digits, 16).ok().filter(is_nan)
            }
        }
    }
}

fn decimal_text(value: i256, scale: i8) -> String {
    let text = value.to_string();
    let scale_digits = usize::from(scale.unsigned_abs());
    if scale <= 0 {
        return text + &"0".repeat(scale_digits);
    }
    let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |digits| ("-", digits));
    let digits = format!("{digits:0>width$}", width = scale_digits + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale_digits);
    format!("{sign}{whole}.{fraction}")
}

/// Reads the one value that `text` is.
pub(super) fn read(field: &Field, text: &[u8]) -> Result<Tree, Reason> {
    let text = std::str::from_utf8(text).map_err(|_| "is not UTF-8".to_owned())?;
    let mut rest = Rest(text);
    let value = rest.value(field.data_type())?;
    match rest.peek() {
        None => Ok(value),
        Some(_) => Err(rest.unexpected("the end")),
    }
}

/// The rest of the text.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    fn value(&mut self, data_type: &DataType) -> Result<Tree, Reason> {
        if self.peek() == Some('n') {
            return self.word("null").map(|()| Tree::Null);
        }
        match data_type {
            DataType::Null => Err(self.unexpected("null")),
            DataType::Utf8 | DataType::LargeUtf8 => Ok(Tree::Bytes(self.text()?.into_bytes())),
            DataType::Binary | DataType::LargeBinary => {
                let text = self.text()?;
                let mut bytes = vec![0; text.len() / 2];
                from_hex(&text, &mut bytes).map_err(|error| error.to_string())?;
                Ok(Tree::Bytes(bytes))
            }
            DataType::Map(entries, _) => {
                let DataType::Struct(pair) = entries.data_type() else { return Err(misfit(data_type)) };
                let mut values = Vec::new();
                self.sequence(['[', ']'], |rest| {
                    let mut fields = pair.iter();
                    let mut parts = Vec::with_capacity(pair.len());
                    rest.sequence(['[', ']'], |rest| {
                        let field = fields.next().ok_or_else(|| rest.unexpected("a pair"))?;
                        parts.push(rest.value(field.data_type())?);
                        Ok(())
                    })?;
                    values.push(Tree::Struct(parts));
                    Ok(())
                })?;
                Ok(Tree::List(values))
            }
            DataType::Struct(fields) => {
                let mut values = vec![None; fields.len()];
                self.sequence(['{', '}'], |rest| {
                    let name = rest.text()?;
                    rest.expect(':')?;
                    let Some((index, field)) = fields.find(&name) else {
                        return Err(format!("has a field {name:?}, which its type lacks"));
                    };
                    let value = rest.value(field.data_type())?;
                    match values[index].replace(value) {
                        None => Ok(()),
                        Some(_) => Err(format!("has two fields {name:?}")),
                    }
                })?;
                Ok(Tree::Struct(values.into_iter().map(|value| value.unwrap_or(Tree::Null)).collect()))
            }
            other => match list_items(other) {
                Some(field) => {
                    let mut values = Vec::new();
                    self.sequence(['[', ']'], |rest| {
                        values.push(rest.value(field.data_type())?);
                        Ok(())
                    })?;
                    Ok(Tree::List(values))
                }
                None => self.fixed(other).map(Tree::Fixed),
            },
        }
    }

    fn fixed(&mut self, data_type: &DataType) -> Result<Vec<u8>, Reason> {
        Ok(match data_type {
            DataType::Boolean => match self.peek() {
                Some('t') => self.word("true").map(|()| vec![1])?,
                _ => self.word("false").map(|()| vec![0])?,
            },
            DataType::FixedSizeBinary(width) => {
                let text = self.text()?;
                let mut bytes = vec![0; text.len() / 2];
                from_hex(&text, &mut bytes).map_err(|error| error.to_string())?;
                match usize::try_from(*width) == Ok(bytes.len()) {
                    true => bytes,
                    false => return Err(format!("has {} bytes instead of {width}", bytes.len())),
                }
            }
            DataType::Float16 => {
                let bits = |value: f32| Half::from_f32(value).to_bits().into();
                self.float(&HALF, bits)?.to_le_bytes()[..2].to_vec()
            }
            DataType::Float32 => {
                self.float(&SINGLE, |value: f32| value.to_bits().into())?.to_le_bytes()[..4].to_vec()
            }
            DataType::Float64 => self.float(&DOUBLE, f64::to_bits)?.to_le_bytes().to_vec(),
            DataType::Decimal32(_, scale)
            | DataType::Decimal64(_, scale)
            | DataType::Decimal128(_, scale)
            | DataType::Decimal256(_, scale) => {
                let text = self.text()?;
                let value = read_decimal(&text, *scale);
                let value = value.ok_or_else(|| format!("has {text:?} where {data_type} should be"))?;
                narrow(value, width(data_type)?)
                    .ok_or_else(|| format!("has {text}, too large for {data_type}"))?
            }
            DataType::Interval(unit @ (IntervalUnit::DayTime | IntervalUnit::MonthDayNano)) => {
                let (mut widths, mut bytes) = (parts(*unit).iter(), Vec::new());
                self.sequence(['[', ']'], |rest| {
                    let width = widths.next().ok_or_else(|| rest.unexpected("fewer parts"))?;
                    bytes.extend(rest.integer(*width, data_type)?);
                    Ok(())
                })?;
                match widths.next() {
                    None => bytes,
                    Some(_) => return Err("has too few parts of an interval".to_owned()),
                }
            }
            other => self.integer(width(other)?, other)?,
        })
    }

    fn integer(&mut self, width: usize, data_type: &DataType) -> Result<Vec<u8>, Reason> {
        let number = self.number()?;
        read_integer(number, width, data_type)
    }

    /// The bits of a float: a number, or the text of one that is not finite.
    fn float<F>(&mut self, floats: &Floats, bits: impl Fn(F) -> u64) -> Result<u64, Reason>
    where
        F: FromStr + Into<f64> + Copy,
    {
        if self.peek() == Some('"') {
            let text = self.text()?;
            return floats.read(&text).ok_or_else(|| format!("has {text:?} where a number should be"));
        }
        let number = self.number()?;
        let value = number.parse::<F>().ok().filter(|value| (*value).into().is_finite());
        value.map(bits).ok_or_else(|| format!("has {number:?}, which is not a number of its width"))
    }

    /// `open`, values with commas between them, `close`.
    fn sequence(
        &mut self,
        [open, close]: [char; 2],
        mut value: impl FnMut(&mut Self) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        self.expect(open)?;
        if self.peek() == Some(close) {
            return self.expect(close);
        }
        loop {
            value(self)?;
            match self.peek() {
                Some(',') => self.expect(',')?,
                _ => return self.expect(close),
            }
        }
    }

    fn text(&mut self) -> Result<String, Reason> {
        if self.peek() != Some('"') {
            return Err(self.unexpected("a string"));
        }
        let mut escaped = false;
        let end = self.0[1..].find(|character| match (escaped, character) {
            (true, _) => {
                escaped = false;
                false
            }
            (false, character) => {
                escaped = character == '\\';
                character == '"'
            }
        });
        let end = end.ok_or("has a string without an end")? + 2;
        let (token, rest) = self.0.split_at(end);
        self.0 = rest;
        serde_json::from_str(token).map_err(|error| format!("has a malformed string: {error}"))
    }

    fn number(&mut self) -> Result<&'a str, Reason> {
        self.peek();
        let is_part = |character: char| character.is_ascii_digit() || "+-.eE".contains(character);
        let end = self.0.find(|character| !is_part(character)).unwrap_or(self.0.len());
        if end == 0 {
            return Err(self.unexpected("a number"));
        }
        let (token, rest) = self.0.split_at(end);
        self.0 = rest;
        Ok(token)
    }

    fn word(&mut self, word: &str) -> Result<(), Reason> {
        match self.0.strip_prefix(word) {
            Some(rest) => {
                self.0 = rest;
                Ok(())
            }
            None => Err(self.unexpected(word)),
        }
    }

    fn expect(&mut self, wanted: char) -> Result<(), Reason> {
        self.peek();
        let mut buffer = [0; 4];
        self.word(wanted.encode_utf8(&mut buffer))
    }

    /// The next character that is no space.
    fn peek(&mut self) -> Option<char> {
        self.0 = self.0.trim_start_matches([' ', '\t', '\r', '\n']);
        self.0.chars().next()
    }

    fn unexpected(&self, wanted: &str) -> Reason {
        let found: String = self.0.chars().take(20).collect();
        match found.is_empty() {
            true => format!("ends where {wanted} should be"),
            false => format!("has {found:?} where {wanted} should be"),
        }
    }
}

/// The bytes of an integer, or of what Arrow stores as one.
pub(super) fn read_integer(text: &str, width: usize, data_type: &DataType) -> Result<Vec<u8>, Reason> {
    let refuse = || format!("has {text:?} where {data_type} should be");
    let is_unsigned = data_type.is_unsigned_integer();
    let value: i128 = text.parse().map_err(|_| refuse())?;
    let bits = u32::try_from(width * 8).map_err(|_| refuse())?;
    let (low, high) = match is_unsigned {
        true => (0, (1i128 << bits) - 1),
        false => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
    };
    match (low..=high).contains(&value) {
        true => Ok(value.to_le_bytes()[..width].to_vec()),
        false => Err(format!("has {value}, too large for {data_type}")),
    }
}

fn read_decimal(text: &str, scale: i8) -> Option<i256> {
    let scale_digits = usize::from(scale.unsigned_abs());
    let digits = if scale > 0 {
        let (whole, fraction) = text.split_once('.')?;
        (fraction.len() == scale_digits && !whole.is_empty()).then(|| format!("{whole}{fraction}"))?
    } else {
        text.strip_suffix(&"0".repeat(scale_digits))?.to_owned()
    };
    let unsigned = digits.strip_prefix('-').unwrap_or(&digits);
    let well_formed = !unsigned.is_empty() && unsigned.bytes().all(|digit| digit.is_ascii_digit());
    well_formed.then(|| i256::from_string(&digits))?
}

/// The lowest `width` bytes of the value, if they say all of it.
fn narrow(value: i256, width: usize) -> Option<Vec<u8>> {
    let bytes = value.to_le_bytes();
    let narrow = bytes[..width].to_vec();
    (signed(&narrow).ok()? == value).then_some(narrow)
}

/// A little-endian number in two's complement, of up to 32 bytes.
fn signed(bytes: &[u8]) -> Result<i256, Reason> {
    let fill = if bytes.last().is_some_and(|highest| highest & 0x80 != 0) { 0xff } else { 0 };
    let mut wide = [fill; 32];
    wide.get_mut(..bytes.len()).ok_or("is wider than any number")?.copy_from_slice(bytes);
    Ok(i256::from_le_bytes(wide))
}

/// The widths of the parts of an interval.
fn parts(unit: IntervalUnit) -> &'static [usize] {
    match unit {
        IntervalUnit::YearMonth => &[4],
        IntervalUnit::DayTime => &[4, 4],
        IntervalUnit::MonthDayNano => &[4, 4, 8],
    }
}

fn width(data_type: &DataType) -> Result<usize, Reason> {
    data_type.primitive_width().ok_or_else(|| misfit(data_type))
}

fn list_items(data_type: &DataType) -> Option<&arrow::datatypes::FieldRef> {
    match data_type {
        DataType::FixedSizeList(field, _) => Some(field),
        other => items(other),
    }
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Reason> {
    bytes.try_into().map_err(|_| format!("has {} bytes instead of {N}", bytes.len()))
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a text is JSON")
}

fn misfit(data_type: &DataType) -> Reason {
    format!("has a value that is not {data_type}")
}
