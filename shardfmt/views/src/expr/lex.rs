//! Cuts the text of an expression into tokens.

use std::ops::Range;

use super::error::{ExprError, Place};
use super::tree::Literal;

/// Most digits of an integer or a decimal: those of Arrow's Decimal128.
pub(super) const MAX_DIGITS: usize = 38;

/// Symbols, longer ones before their beginnings.
const SYMBOLS: [&str; 18] =
    ["==", "!=", "<>", "<=", ">=", "//", "=", "<", ">", "(", ")", ",", ".", "+", "-", "*", "/", "%"];

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// A bare word: a keyword, a function or a column.
    Word(String),
    /// A column in double quotes.
    Quoted(String),
    Literal(Literal),
    Symbol(&'static str),
    End,
}

impl Token {
    /// The token as an error names it.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Word(word) => word.clone(),
            Self::Quoted(name) => format!("column \"{name}\""),
            Self::Literal(literal) => literal.to_string(),
            Self::Symbol(symbol) => (*symbol).to_string(),
            Self::End => "the end".to_string(),
        }
    }
}

/// A token and its bytes in the text.
pub(super) type Located = (Token, Range<usize>);

/// All tokens of `text`, the last one being [`Token::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<Located>, ExprError> {
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        at += text[at..].len() - text[at..].trim_start().len();
        let (token, length) = next(text, at)?;
        let end = token == Token::End;
        found.push((token, at..at + length));
        if end {
            return Ok(found);
        }
        at += length;
    }
}

fn next(text: &str, at: usize) -> Result<(Token, usize), ExprError> {
    let rest = &text[at..];
    let Some(first) = rest.chars().next() else { return Ok((Token::End, 0)) };
    let second_is_digit = rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
    match first {
        '\'' => quoted(text, at, '\'').map(|(s, n)| (Token::Literal(Literal::Text(s)), n)),
        '"' => quoted(text, at, '"').map(|(s, n)| (Token::Quoted(s), n)),
        '0'..='9' => number(text, at),
        '.' if second_is_digit => number(text, at),
        c if is_word_start(c) => {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            Ok((Token::Word(rest[..length].to_string()), length))
        }
        _ if rest.starts_with("--") || rest.starts_with("/*") => Err(syntax(
            text,
            at..at + 2,
            "an expression has no comments",
            "leave the comment out, or write a space between two minus signs",
        )),
        _ => match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            Some(symbol) => Ok((Token::Symbol(symbol), symbol.len())),
            None => Err(syntax(
                text,
                at..at + first.len_utf8(),
                &format!("the character {first:?} has no meaning here"),
                "write strings in 'single quotes' and unusual column names in \"double quotes\"",
            )),
        },
    }
}

/// A text in quotes, in which a doubled quote stands for one.
fn quoted(text: &str, at: usize, quote: char) -> Result<(String, usize), ExprError> {
    let mut value = String::new();
    let mut chars = text[at..].char_indices().skip(1).peekable();
    while let Some((offset, c)) = chars.next() {
        if c != quote {
            value.push(c);
        } else if chars.peek().is_some_and(|&(_, c)| c == quote) {
            chars.next();
            value.push(quote);
        } else if value.is_empty() && quote == '"' {
            return Err(syntax(text, at..at + 2, "a column name is empty", "write it between the quotes"));
        } else {
            return Ok((value, offset + 1));
        }
    }
    let problem =
        if quote == '"' { "a column name has no closing quote" } else { "a string has no closing quote" };
    Err(syntax(
        text,
        at..text.len(),
        problem,
        &format!("end it with {quote}; inside, write {quote}{quote} for {quote}"),
    ))
}

fn number(text: &str, at: usize) -> Result<(Token, usize), ExprError> {
    let rest = &text[at..];
    let whole = digits(rest);
    let mut length = whole;
    let mut fraction = 0;
    if rest[length..].starts_with('.') {
        fraction = digits(&rest[length + 1..]);
        length += 1 + fraction;
    }
    let mantissa = length;
    if rest[length..].starts_with(['e', 'E']) {
        let sign = usize::from(rest[length + 1..].starts_with(['+', '-']));
        let exponent = digits(&rest[length + 1 + sign..]);
        length += if exponent == 0 { 0 } else { 1 + sign + exponent };
    }
    let ends_badly = rest[length..].starts_with(|c| is_word(c) || c == '.') || rest[..length].ends_with('.');
    if ends_badly {
        let tail = rest[length..].find(|c| !is_word(c) && c != '.').unwrap_or(rest[length..].len());
        let way_out = "write 12, 1.25 or 1e-3; put column names that begin with a digit in \"double quotes\"";
        return Err(syntax(text, at..at + length + tail, "this is no number", way_out));
    }
    let literal = if length > mantissa {
        rest[..length].parse().ok().filter(|value: &f64| value.is_finite()).map(Literal::Float)
    } else {
        decimal(&rest[..whole], &rest[whole..mantissa], fraction)
    };
    let Some(literal) = literal else {
        let way_out = format!("write at most {MAX_DIGITS} digits, or an exponent as in 1e40 (up to 1e308)");
        return Err(syntax(text, at..at + length, "the number is too long", &way_out));
    };
    Ok((Token::Literal(literal), length))
}

/// `whole` and `.fraction` as an exact number, if it has at most [`MAX_DIGITS`] digits.
fn decimal(whole: &str, fraction: &str, scale: usize) -> Option<Literal> {
    let fraction = fraction.strip_prefix('.').unwrap_or(fraction);
    let digits = format!("{whole}{fraction}");
    if digits.trim_start_matches('0').len() > MAX_DIGITS || scale > MAX_DIGITS {
        return None;
    }
    let mantissa = digits.parse().ok()?;
    Some(match u8::try_from(scale).ok()? {
        0 => Literal::Integer(mantissa),
        scale => Literal::Decimal { mantissa, scale },
    })
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// Whether a bare word may begin with `c`.
pub(super) fn is_word_start(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

/// Whether a bare word may contain `c`.
pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A [`ExprError::Syntax`].
pub(super) fn syntax(text: &str, bytes: Range<usize>, problem: &str, way_out: &str) -> ExprError {
    ExprError::Syntax { problem: problem.into(), way_out: way_out.into(), place: Place::new(text, bytes) }
}
