//! Rules as documents: how a version follows from its parent.

#[cfg(test)]
mod tests;

use std::fmt;

use arrow::datatypes::{DataType, Schema, SchemaRef};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::dedup::{DedupError, MinHash, Unit};
use crate::expr::{Expr, ExprError, Predicate};
use crate::key::{Digest, Key, KeyError};
use crate::projection::{Projection, ProjectionError, fmt_columns};
use crate::sample::{Sample, SampleError};
use crate::split::{Parts, SplitError};

/// The version of documents that this program writes and reads.
const VERSION: u32 = 1;

/// Characters of an expression in a log line.
const SHOWN: usize = 160;

/// One step from a version to another.
///
/// The canonical JSON ([`Rule::to_json`]) has no spaces, its fields in this order, decimals as strings and
/// expressions as canonical text. Equal rules have equal bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Rule {
    /// Keep the rows for which the expression is true.
    Filter {
        /// A predicate.
        expression: Expr,
    },
    /// Keep these columns, in this order.
    Select {
        /// Their names.
        columns: Vec<String>,
    },
    /// Keep the rows of one part of a split.
    SplitPart {
        /// All parts of the split.
        parts: Parts,
        /// The part to keep.
        part: String,
        /// Rows with equal keys share a part.
        by: Key,
        /// Columns within whose values the proportions are exact; see
        /// [`Split::assign_exact`](crate::split::Split::assign_exact).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stratify: Option<Vec<String>>,
        /// The seed of the split.
        seed: u64,
    },
    /// Keep the first of rows that repeat.
    Dedup {
        /// Which rows repeat.
        method: Dedup,
    },
    /// Take each row a number of times.
    Sample {
        /// How often.
        sample: Sample,
        /// The seed of the sample.
        seed: u64,
    },
}

/// Which rows repeat others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Dedup {
    /// Rows with equal keys.
    Exact {
        /// The key.
        by: Key,
    },
    /// Rows with similar texts.
    Minhash {
        /// The column of texts.
        column: String,
        /// How texts are compared.
        parameters: MinHash,
    },
}

/// Why a rule does not fit a schema, or its document cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// The document is no rule, or one of a newer program.
    #[error("the document is no rule that this program knows")]
    Document(#[from] serde_json::Error),
    /// The expression does not fit.
    #[error(transparent)]
    Filter(#[from] ExprError),
    /// The columns do not fit.
    #[error(transparent)]
    Select(#[from] ProjectionError),
    /// The parts do not fit.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The key does not fit.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A parameter is out of range.
    #[error(transparent)]
    Dedup(#[from] DedupError),
    /// The sample cannot be had.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A column has the wrong type for its use.
    #[error("column {column} is {data_type}: {way_out}")]
    Type {
        /// Name of the column.
        column: String,
        /// Its type.
        data_type: DataType,
        /// The types that fit.
        way_out: &'static str,
    },
}

/// A rule as a document of its own.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<R> {
    version: Version,
    rule: R,
}

impl Rule {
    /// The canonical JSON, as in `{"version":1,"rule":{"filter":{"expression":"x > 3"}}}`.
    pub fn to_json(&self) -> String {
        json(&Document { version: Version, rule: self })
    }

    /// Reads a document. Its text need not be canonical.
    ///
    /// # Errors
    /// [`RuleError::Document`] for unknown fields, versions and rules.
    pub fn from_json(text: &str) -> Result<Self, RuleError> {
        parse::<Document<Self>>(text).map(|document| document.rule)
    }

    /// The digest of the canonical JSON.
    pub fn digest(&self) -> Digest {
        digest("shardd-views 1 rule", &self.to_json())
    }

    /// Checks the rule against the schema of the rows that it gets, and returns the schema of those that it
    /// gives.
    ///
    /// # Errors
    /// The reason why the rule does not fit.
    pub fn check(&self, schema: &SchemaRef) -> Result<SchemaRef, RuleError> {
        match self {
            Self::Filter { expression } => {
                Predicate::new(expression, schema)?;
            }
            Self::Select { columns } => {
                return Ok(Projection::new(columns.clone(), schema)?.schema().clone());
            }
            Self::SplitPart { parts, part, by, stratify, .. } => {
                parts.index(part)?;
                by.check(schema)?;
                if let Some(columns) = stratify {
                    Key::Columns(columns.clone()).check(schema)?;
                }
            }
            Self::Dedup { method: Dedup::Exact { by } } => by.check(schema)?,
            Self::Dedup { method: Dedup::Minhash { column, parameters } } => {
                parameters.check()?;
                check_column(
                    schema,
                    column,
                    is_text,
                    "near-duplicates are found in strings, so choose such a column",
                )?;
            }
            Self::Sample { sample, .. } => check_sample(sample, schema)?,
        }
        Ok(schema.clone())
    }
}

fn check_sample(sample: &Sample, schema: &Schema) -> Result<(), RuleError> {
    use crate::decimal::Decimal;
    match sample {
        Sample::Fraction { fraction } | Sample::Bernoulli { fraction } if *fraction > Decimal::ONE => {
            Err(SampleError::Fraction { fraction: *fraction }.into())
        }
        Sample::Fraction { .. } | Sample::Bernoulli { .. } | Sample::Count { .. } => Ok(()),
        Sample::Weighted { weights, .. } => {
            let is_number = |data_type: &DataType| {
                data_type.is_numeric() && !matches!(data_type, DataType::Decimal256(..))
            };
            check_column(schema, weights, is_number, "weights are integers, decimals or floats")
        }
        Sample::Balanced { by, .. } => Ok(Key::Columns(vec![by.clone()]).check(schema)?),
    }
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn check_column(
    schema: &Schema,
    column: &str,
    fits: impl Fn(&DataType) -> bool,
    way_out: &'static str,
) -> Result<(), RuleError> {
    let projection = Projection::new(vec![column.to_string()], schema)?;
    let data_type = projection.schema().field(0).data_type();
    let values = match data_type {
        DataType::Dictionary(_, values) => values,
        other => other,
    };
    if fits(values) {
        return Ok(());
    }
    Err(RuleError::Type { column: column.into(), data_type: data_type.clone(), way_out })
}

/// How a version follows from its parent: the rules, in the order in which they apply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Derivation {
    version: Version,
    /// The name of the version that the rules apply to.
    pub parent: String,
    /// The rules; the first gets the rows of the parent.
    pub rules: Vec<Rule>,
}

impl Derivation {
    /// A derivation from `parent`.
    pub fn new(parent: impl Into<String>, rules: Vec<Rule>) -> Self {
        Self { version: Version, parent: parent.into(), rules }
    }

    /// The canonical JSON, as in `{"version":1,"parent":"3fa9c2","rules":[{"select":{"columns":["text"]}}]}`.
    pub fn to_json(&self) -> String {
        json(self)
    }

    /// Reads a document. Its text need not be canonical.
    ///
    /// # Errors
    /// [`RuleError::Document`] for unknown fields, versions and rules.
    pub fn from_json(text: &str) -> Result<Self, RuleError> {
        parse(text)
    }

    /// The digest of the canonical JSON: parent, rules and seeds decide it.
    pub fn digest(&self) -> Digest {
        digest("shardd-views 1 derivation", &self.to_json())
    }

    /// Checks each rule against the schema that the rules before it leave, and returns the last one.
    ///
    /// # Errors
    /// The number of the first rule that does not fit, from 0, and the reason.
    pub fn check(&self, schema: &SchemaRef) -> Result<SchemaRef, (usize, RuleError)> {
        let mut schema = schema.clone();
        for (index, rule) in self.rules.iter().enumerate() {
            schema = rule.check(&schema).map_err(|error| (index, error))?;
        }
        Ok(schema)
    }
}

/// The number in a document. Only [`VERSION`] can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version;

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(VERSION)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u32::deserialize(deserializer)? {
            VERSION => Ok(Self),
            0 => Err(D::Error::custom("version 0 was never written: the first is 1")),
            newer => {
                Err(D::Error::custom(format!("version {newer} is newer than {VERSION}: update this program")))
            }
        }
    }
}

fn json(document: &impl Serialize) -> String {
    serde_json::to_string(document)
        .expect("the documents have string keys, and nothing in them refuses to be written")
}

fn parse<D: DeserializeOwned>(text: &str) -> Result<D, RuleError> {
    Ok(serde_json::from_str(text)?)
}

fn digest(context: &str, json: &str) -> Digest {
    blake3::derive_key(context, json.as_bytes())
}

/// One line for a log; not a document.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filter { expression } => write!(f, "filter {}", Cut(&expression.to_string())),
            Self::Select { columns } => {
                f.write_str("select ")?;
                fmt_columns(f, columns)
            }
            Self::SplitPart { parts, part, by, stratify, seed } => {
                write!(f, "split {parts} by {by}")?;
                if let Some(columns) = stratify {
                    write!(f, " within {}", Key::Columns(columns.clone()))?;
                }
                write!(f, " seed {seed}, part {part}")
            }
            Self::Dedup { method: Dedup::Exact { by } } => write!(f, "dedup exact by {by}"),
            Self::Dedup { method: Dedup::Minhash { column, parameters } } => {
                let MinHash { num_perm, threshold, ngram, unit, seed } = parameters;
                let unit = if *unit == Unit::Word { "words" } else { "characters" };
                write!(f, "dedup minhash of {}", crate::expr::tree::Identifier(column))?;
                write!(f, " from {threshold} over {ngram} {unit}, {num_perm} values, seed {seed}")
            }
            Self::Sample { sample, seed } => write!(f, "sample {sample} seed {seed}"),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Row => f.write_str("row"),
            Self::Columns(columns) => fmt_columns(f, columns),
        }
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::expr::tree::Identifier;
        match self {
            Self::Fraction { fraction } => write!(f, "fraction {fraction}"),
            Self::Bernoulli { fraction } => write!(f, "bernoulli {fraction}"),
            Self::Count { count } => write!(f, "count {count}"),
            Self::Weighted { weights, total } => write!(f, "{total} weighted by {}", Identifier(weights)),
            Self::Balanced { by, total } => write!(f, "{total} balanced by {}", Identifier(by)),
        }
    }
}

/// One line for a log: the parent, and the rules in order.
impl fmt::Display for Derivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Cut(&self.parent))?;
        self.rules.iter().try_for_each(|rule| write!(f, " | {}", Cut(&rule.to_string())))
    }
}

/// The beginning of a text, on one line.
struct Cut<'a>(&'a str);

impl fmt::Display for Cut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = self.0.chars().map(|c| if c.is_control() { ' ' } else { c });
        chars.by_ref().take(SHOWN).try_for_each(|c| write!(f, "{c}"))?;
        if chars.next().is_some() { f.write_str("…") } else { Ok(()) }
    }
}
