//! Which rows around a sample's own belong to it, as a setting.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::IngestError;

/// Rows of a window, at most.
const MOST_ROWS: usize = 65_536;
/// How far from a sample's own row another row of its window may be.
const FARTHEST: i32 = 1 << 20;

/// Samples that have some rows of a sequence: of an episode of a robot, or of a time series.
///
/// Rows are in the order of the input. A column in `columns` becomes a tensor with one more dimension in front, of the rows at its
/// offsets. All other columns keep the value of the sample's own row.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::{IngestConfig, Inputs, Source, Windows};
///
/// let windows = Windows {
///     columns: [("x".to_owned(), "-1..2".parse()?)].into(),
///     by: Some("episode".to_owned()),
///     ..Windows::default()
/// };
/// let inputs = Inputs::in_memory("rows.csv", "episode,x\n0,5\n0,6\n0,7\n");
/// let source = Source::new(inputs, &IngestConfig { window: Some(windows), ..IngestConfig::default() })?;
/// let names: Vec<&str> = source.schema().fields().iter().map(|field| field.name().as_str()).collect();
/// assert_eq!(names, ["episode", "x", "x_is_pad"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Windows {
    /// The rows that a sample has of a column, by its name.
    pub columns: BTreeMap<String, Offsets>,
    /// A sequence ends where the value of this column changes. Default: all rows are one sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Every how many rows of a sequence a sample begins. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stride: Option<NonZeroU32>,
    /// What a window has beyond the ends of its sequence. Default: the row at the end, again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub edges: Edges,
}

/// What a window has beyond the ends of its sequence.
///
/// ```
/// use shardd_ingest::Edges;
///
/// assert_eq!(Edges::default(), Edges::Repeat);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Edges {
    /// The first or last row again. A column with `_is_pad` behind its name has a 1 for each such row, and else a 0.
    #[default]
    Repeat,
    /// Nothing: samples whose windows are not whole are left out.
    Drop,
}

/// Rows by their distance from a sample's own: `0..50` for it and the 49 after it, `-1,0` for the one before it and itself.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::Offsets;
///
/// let offsets: Offsets = "-1..2".parse()?;
/// assert_eq!(offsets.rows(), [-1, 0, 1]);
/// assert_eq!("-4,0".parse::<Offsets>()?.to_string(), "-4,0");
/// assert!("1..1".parse::<Offsets>().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<i32>", into = "Vec<i32>")]
pub struct Offsets(Vec<i32>);

impl Windows {
    /// # Errors
    /// If there are no columns.
    pub(super) fn check(&self) -> Result<(), IngestError> {
        if self.columns.is_empty() {
            return Err(IngestError::Config {
                setting: "window",
                reason: "no column has a window".to_owned(),
                way_out: "name the rows of at least one column, such as action=0..50",
            });
        }
        Ok(())
    }
}

impl Offsets {
    /// The distances, in the order of the tensor. There is at least one.
    pub fn rows(&self) -> &[i32] {
        &self.0
    }
}

impl TryFrom<Vec<i32>> for Offsets {
    type Error = String;

    fn try_from(rows: Vec<i32>) -> Result<Self, String> {
        let far = rows.iter().find(|row| row.unsigned_abs() > FARTHEST.unsigned_abs());
        match (rows.len(), far) {
            (0, _) => Err("a window of no rows: write 0..50, or -1,0".to_owned()),
            (count, _) if count > MOST_ROWS => {
                Err(format!("{count} rows are more than the {MOST_ROWS} that a window may have"))
            }
            (_, Some(row)) => Err(format!("row {row} is farther than {FARTHEST} rows from the sample's own")),
            (_, None) => Ok(Self(rows)),
        }
    }
}

impl From<Offsets> for Vec<i32> {
    fn from(offsets: Offsets) -> Self {
        offsets.0
    }
}

impl FromStr for Offsets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            let refused = |_| format!("{text:?} is no list of rows: write 0..50 for 0 to 49, or -1,0");
            part.trim().parse::<i32>().map_err(refused)
        };
        if text.contains("..=") {
            return Err(format!("{text:?}: the end is not part of the rows: write 0..4 for 0 to 3"));
        }
        if let Some((start, end)) = text.split_once("..") {
            let (start, end) = (number(start)?, number(end)?);
            if i64::from(end) - i64::from(start) > MOST_ROWS as i64 {
                return Err(format!("{text} are more rows than the {MOST_ROWS} that a window may have"));
            }
            return (start..end).collect::<Vec<i32>>().try_into();
        }
        text.split(',').map(number).collect::<Result<Vec<i32>, String>>()?.try_into()
    }
}

impl fmt::Display for Offsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<String> = self.0.iter().map(i32::to_string).collect();
        f.write_str(&rows.join(","))
    }
}

fn is_default(edges: &Edges) -> bool {
    *edges == Edges::default()
}
