//! Operations for the columns of a dataset as data, to be written in a file, sent, compared and recorded.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use shardd_transforms::document::{self, VERSION};
use thiserror::Error;

use crate::op::Op;

/// A chain cannot be read, or cannot change the columns that it gets.
#[derive(Debug, Error)]
pub enum ChainError {
    /// The text is no chain.
    #[error("the transforms are no chain: {0}")]
    Json(#[from] serde_json::Error),
    /// It is of another version.
    #[error("the transforms have version {0}, and this program reads version 1: update it")]
    Version(u32),
    /// It names a column that is not there.
    #[error("the transforms are of column {column:?}, and there are {columns}")]
    Column {
        /// The name.
        column: String,
        /// The names of all columns.
        columns: String,
    },
    /// An operation does not accept the values that it gets, or has arguments without a meaning.
    #[error("operation {index} of the transforms of column {column:?}, {name}, {reason}")]
    Op {
        /// The column.
        column: String,
        /// Its index in the column's list.
        index: usize,
        /// Its name.
        name: &'static str,
        /// The end of the sentence that begins with its name.
        reason: String,
    },
}

/// The operations of each column, one after the other, by the name of the column.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Columns(pub BTreeMap<String, Vec<Op>>);

impl<'de> Deserialize<'de> for Columns {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct EachOnce;

        impl<'de> Visitor<'de> for EachOnce {
            type Value = Columns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("lists of operations by the names of their columns")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Columns, A::Error> {
                let mut columns = BTreeMap::new();
                while let Some((column, ops)) = map.next_entry::<String, Vec<Op>>()? {
                    if columns.contains_key(&column) {
                        return Err(Error::custom(format!(
                            "column {column:?} is there twice: join its lists"
                        )));
                    }
                    columns.insert(column, ops);
                }
                Ok(Columns(columns))
            }
        }

        from.deserialize_map(EachOnce)
    }
}

/// Operations for columns, with all that the values of a batch depend on but the samples.
///
/// ```
/// use shardd_columns::Chain;
///
/// # fn main() -> Result<(), shardd_columns::ChainError> {
/// let chain: Chain = r#"{"columns": {"city": [{"type": "Hash", "bins": 1000}]}}"#.parse()?;
/// assert_eq!(chain.columns.0["city"][0].to_string(), "Hash(bins=1000, seed=0)");
///
/// let mistaken = r#"{"columns": {"city": [{"type": "Hashh", "bins": 1000}]}}"#.parse::<Chain>();
/// assert!(mistaken.is_err_and(|error| error.to_string().contains("the nearest is Hash")));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chain {
    /// The version of this document: 1.
    #[serde(default = "version")]
    pub version: u32,
    /// The operations of each column. A column without operations stays as it is.
    pub columns: Columns,
}

fn version() -> u32 {
    VERSION
}

impl Chain {
    /// Of these operations.
    pub fn new(columns: Columns) -> Self {
        Self { version: VERSION, columns }
    }

    /// The names of the columns that it changes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.0.iter().filter(|(_, ops)| !ops.is_empty()).map(|(name, _)| name.as_str())
    }

    /// The JSON with all defaults written out, in one way for equal chains.
    ///
    /// # Panics
    /// Never: all keys are strings.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a chain is JSON")
    }

    /// The BLAKE3 of its JSON: the name of the chain in records and audits.
    pub fn digest(&self) -> blake3::Hash {
        blake3::hash(self.to_json().as_bytes())
    }
}

impl FromStr for Chain {
    type Err = ChainError;

    fn from_str(json: &str) -> Result<Self, ChainError> {
        let version = document::version(json)?;
        if version == VERSION { Ok(serde_json::from_str(json)?) } else { Err(ChainError::Version(version)) }
    }
}
