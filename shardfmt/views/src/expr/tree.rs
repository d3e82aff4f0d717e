//! The tree of an expression and its canonical text.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::ExprError;
use super::lex::{is_word, is_word_start};
use super::parse;

/// Words that are never bare column names.
pub(super) const KEYWORDS: [&str; 11] =
    ["AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL", "LIKE", "ILIKE", "ESCAPE", "TRUE"];

/// Whether `word` is a keyword, in any case.
pub(super) fn is_keyword(word: &str) -> bool {
    word.eq_ignore_ascii_case("FALSE") || KEYWORDS.iter().any(|keyword| keyword.eq_ignore_ascii_case(word))
}

/// An expression that follows the grammar, not yet checked against a schema.
///
/// Its [`Display`](fmt::Display) is the canonical text: keywords in capitals, single spaces, the fewest
/// parentheses. The canonical text parses to an equal tree. In JSON an expression is that text.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Expr {
    pub(super) kind: Kind,
    /// Bytes in the text it was parsed from, for errors only.
    pub(super) span: Range<usize>,
    /// Levels of the tree below and including this one.
    pub(super) depth: usize,
}

impl Expr {
    /// Parses `text` without a schema.
    ///
    /// # Errors
    /// [`ExprError::TooLong`], [`ExprError::TooDeep`] and [`ExprError::Syntax`], with the place.
    pub fn parse(text: &str) -> Result<Self, ExprError> {
        parse::parse(text)
    }

    /// Names of the top-level columns that the expression reads, sorted, each once.
    pub fn columns(&self) -> Vec<&str> {
        let mut names = BTreeSet::new();
        self.visit(&mut |expr| {
            if let Kind::Column(path) = &expr.kind
                && let Some(first) = path.first()
            {
                names.insert(first.as_str());
            }
        });
        names.into_iter().collect()
    }

    fn visit<'a>(&'a self, see: &mut impl FnMut(&'a Self)) {
        see(self);
        for child in self.kind.children() {
            child.visit(see);
        }
    }
}

/// Two expressions are equal if their canonical texts are; places do not count.
impl PartialEq for Expr {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

impl FromStr for Expr {
    type Err = ExprError;

    fn from_str(text: &str) -> Result<Self, ExprError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Expr {
    type Error = ExprError;

    fn try_from(text: String) -> Result<Self, ExprError> {
        Self::parse(&text)
    }
}

impl From<Expr> for String {
    fn from(expr: Expr) -> Self {
        expr.to_string()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Column(Vec<String>),
    Literal(Literal),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    /// Two or more terms, none of them an `And`.
    And(Vec<Expr>),
    /// Two or more terms, none of them an `Or`.
    Or(Vec<Expr>),
    Compare(Comparison, Box<Expr>, Box<Expr>),
    Arithmetic(Operator, Box<Expr>, Box<Expr>),
    IsNull {
        value: Box<Expr>,
        negated: bool,
    },
    In {
        value: Box<Expr>,
        list: Vec<Expr>,
        negated: bool,
    },
    Between {
        value: Box<Expr>,
        low: Box<Expr>,
        high: Box<Expr>,
        negated: bool,
    },
    Like {
        value: Box<Expr>,
        pattern: Box<Expr>,
        escape: Option<char>,
        ignore_case: bool,
        negated: bool,
    },
    Call(Function, Vec<Expr>),
}

impl Kind {
    /// The direct children, in the order of the text.
    pub(super) fn children(&self) -> Vec<&Expr> {
        match self {
            Self::Column(_) | Self::Literal(_) => Vec::new(),
            Self::Not(value) | Self::Negate(value) | Self::IsNull { value, .. } => vec![value],
            Self::And(terms) | Self::Or(terms) | Self::Call(_, terms) => terms.iter().collect(),
            Self::Compare(_, left, right) | Self::Arithmetic(_, left, right) => vec![left, right],
            Self::In { value, list, .. } => std::iter::once(&**value).chain(list).collect(),
            Self::Between { value, low, high, .. } => vec![value, low, high],
            Self::Like { value, pattern, .. } => vec![value, pattern],
        }
    }

    /// How tightly the text holds together. A child with a lower level than its place wants gets parentheses.
    fn level(&self) -> u8 {
        match self {
            Self::Or(_) => 1,
            Self::And(_) => 2,
            Self::Not(_) => 3,
            Self::IsNull { .. } => 4,
            Self::Compare(..) => 5,
            Self::In { .. } | Self::Between { .. } | Self::Like { .. } => 6,
            Self::Arithmetic(Operator::Add | Operator::Subtract, ..) => 7,
            Self::Arithmetic(..) => 8,
            Self::Negate(_) => 9,
            Self::Literal(literal) if literal.is_negative() => 9,
            Self::Column(_) | Self::Literal(_) | Self::Call(..) => 10,
        }
    }
}

/// A constant.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    Null,
    Bool(bool),
    Integer(i128),
    Decimal {
        mantissa: i128,
        scale: u8,
    },
    /// Finite.
    Float(f64),
    Text(String),
}

impl Literal {
    fn is_negative(&self) -> bool {
        match self {
            Self::Integer(value) | Self::Decimal { mantissa: value, .. } => *value < 0,
            Self::Float(value) => value.is_sign_negative(),
            _ => false,
        }
    }

    /// The negated number; `None` for texts and other values.
    pub(super) fn negated(&self) -> Option<Self> {
        match *self {
            Self::Integer(value) => Some(Self::Integer(-value)),
            Self::Decimal { mantissa, scale } => Some(Self::Decimal { mantissa: -mantissa, scale }),
            Self::Float(value) => Some(Self::Float(-value)),
            _ => None,
        }
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Bool(true) => f.write_str("TRUE"),
            Self::Bool(false) => f.write_str("FALSE"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Decimal { mantissa, scale } => {
                let scale = usize::from(*scale);
                let digits = format!("{:0width$}", mantissa.unsigned_abs(), width = scale + 1);
                let (whole, fraction) = digits.split_at(digits.len() - scale);
                write!(f, "{}{whole}.{fraction}", if *mantissa < 0 { "-" } else { "" })
            }
            Self::Float(value) => write!(f, "{value:e}"),
            Self::Text(text) => write!(f, "'{}'", text.replace('\'', "''")),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl Comparison {
    pub(super) fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "<>",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
        }
    }

    /// The comparison with its sides exchanged.
    pub(super) fn flipped(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessEqual => Self::GreaterEqual,
            Self::Greater => Self::Less,
            Self::GreaterEqual => Self::LessEqual,
            same => same,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    DivideWhole,
    Remainder,
}

impl Operator {
    pub(super) fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::DivideWhole => "//",
            Self::Remainder => "%",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Abs,
    Coalesce,
    Contains,
    EndsWith,
    Length,
    Lower,
    StartsWith,
    Upper,
}

impl Function {
    pub(super) const ALL: [Self; 8] = [
        Self::Abs,
        Self::Coalesce,
        Self::Contains,
        Self::EndsWith,
        Self::Length,
        Self::Lower,
        Self::StartsWith,
        Self::Upper,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Abs => "abs",
            Self::Coalesce => "coalesce",
            Self::Contains => "contains",
            Self::EndsWith => "ends_with",
            Self::Length => "length",
            Self::Lower => "lower",
            Self::StartsWith => "starts_with",
            Self::Upper => "upper",
        }
    }

    /// The number of arguments, if there is but one.
    pub(super) fn arity(self) -> Option<usize> {
        match self {
            Self::Coalesce => None,
            Self::Contains | Self::EndsWith | Self::StartsWith => Some(2),
            Self::Abs | Self::Length | Self::Lower | Self::Upper => Some(1),
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Column(path) => join(f, path.iter().map(|name| Identifier(name)), "."),
            Kind::Literal(literal) => literal.fmt(f),
            Kind::Not(value) => write!(f, "NOT {}", At(value, 3)),
            Kind::Negate(value) => write!(f, "-{}", At(value, 10)),
            Kind::And(terms) => join(f, terms.iter().map(|term| At(term, 3)), " AND "),
            Kind::Or(terms) => join(f, terms.iter().map(|term| At(term, 2)), " OR "),
            Kind::Compare(op, left, right) => write!(f, "{} {} {}", At(left, 6), op.symbol(), At(right, 6)),
            Kind::Arithmetic(op, left, right) => {
                let level = self.kind.level();
                write!(f, "{} {} {}", At(left, level), op.symbol(), At(right, level + 1))
            }
            Kind::IsNull { value, negated } => write!(f, "{} IS {}NULL", At(value, 4), not(*negated)),
            Kind::In { value, list, negated } => {
                write!(f, "{} {}IN (", At(value, 7), not(*negated))?;
                join(f, list.iter(), ", ")?;
                f.write_str(")")
            }
            Kind::Between { value, low, high, negated } => {
                write!(f, "{} {}BETWEEN {} AND {}", At(value, 7), not(*negated), At(low, 7), At(high, 7))
            }
            Kind::Like { value, pattern, escape, ignore_case, negated } => {
                let like = if *ignore_case { "ILIKE" } else { "LIKE" };
                write!(f, "{} {}{like} {}", At(value, 7), not(*negated), At(pattern, 7))?;
                match escape {
                    Some(escape) => write!(f, " ESCAPE {}", Literal::Text(escape.to_string())),
                    None => Ok(()),
                }
            }
            Kind::Call(function, arguments) => {
                write!(f, "{}(", function.name())?;
                join(f, arguments.iter(), ", ")?;
                f.write_str(")")
            }
        }
    }
}

/// An expression at a place that wants a level; see [`Kind::level`].
struct At<'a>(&'a Expr, u8);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.kind.level() < self.1 { write!(f, "({})", self.0) } else { self.0.fmt(f) }
    }
}

/// A column's name as an expression has it: bare if that parses, else in double quotes.
pub(crate) struct Identifier<'a>(pub(crate) &'a str);

impl fmt::Display for Identifier<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = self.0.starts_with(is_word_start) && self.0.chars().all(is_word) && !is_keyword(self.0);
        if bare { f.write_str(self.0) } else { write!(f, "\"{}\"", self.0.replace('"', "\"\"")) }
    }
}

fn not(negated: bool) -> &'static str {
    if negated { "NOT " } else { "" }
}

fn join<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    items: impl Iterator<Item = T>,
    separator: &str,
) -> fmt::Result {
    for (index, item) in items.enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        item.fmt(f)?;
    }
    Ok(())
}
