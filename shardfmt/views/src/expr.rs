//! Predicates over the columns of a record batch, written as in SQL.
//!
//! # Grammar
//!
//! Columns are bare words or `"anything in double quotes"`, case-sensitive; `a.b` is the field `b` of the
//! struct `a`. Keywords and functions have any case. Constants: `12`, `0.25` (exact), `1e-3` (a float),
//! `'text'` with `''` for a quote, `TRUE`, `FALSE`, `NULL`. From the loosest to the tightest:
//!
//! | operators | |
//! |---|---|
//! | `OR`, then `AND`, then `NOT` | three-valued logic; `AND` and `OR` look at their terms from left to right |
//! | `IS NULL`, `IS NOT NULL` | for columns of any type |
//! | `=` `==` `<>` `!=` `<` `<=` `>` `>=` | no chains: write `1 < x AND x < 5` |
//! | `[NOT] IN (…)`, `[NOT] BETWEEN a AND b` | |
//! | `[NOT] LIKE 'p%'`, `[NOT] ILIKE` | `_` is one character; `ESCAPE '!'` names an escape character |
//! | `+` `-`, then `*` `/` `//` `%`, then the sign | |
//! | `abs` `coalesce` `contains` `ends_with` | |
//! | `length` `lower` `starts_with` `upper` | `length` counts characters, items or bytes |
//!
//! # Meaning
//!
//! A predicate keeps the rows for which it is true, and drops those for which it is false or NULL. The
//! meaning is DuckDB's, with these decisions:
//!
//! - Integers are computed in 64 bits whatever the width of the column, in 38 digits if a UInt64 takes part.
//!   Decimals are computed in 38 digits. A result out of range is [`EvaluateError::Overflow`], which names
//!   the row. Rows that an earlier term of `AND`, `OR` or `coalesce` has settled do not fail.
//! - `/` gives a float and `//` an integer. `/`, `//` and `%` by zero give NULL, for floats too. DuckDB 2 needs
//!   `SET error_on_division_by_zero = false` and `SET ieee_floating_point_ops = false` for that.
//! - Comparing an integer, decimal, date or timestamp column with a constant is exact: `i > 2.5` and `day <
//!   '2024-01-01 12:00'` mean what mathematics says. Comparing with a float column rounds the constant to the
//!   column's type.
//! - -0 equals 0. NaN equals NaN and is greater than all other floats.
//! - Strings compare by their UTF-8 bytes. `lower`, `upper` and `ILIKE` map each character to one character.
//! - A date or timestamp is compared with a string, whose form is ISO 8601. Without an offset the string is
//!   in UTC, or in the column's own time if that has no zone. An offset needs a column with a time zone.
//! - A number is never compared with a string: the error names the way out.
//!
//! ```
//! use std::sync::Arc;
//!
//! use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
//! use shardd_views::expr::Predicate;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let age: ArrayRef = Arc::new(Int64Array::from(vec![Some(31), None, Some(7)]));
//! let name: ArrayRef = Arc::new(StringArray::from(vec!["Ada", "Bo", "Cy"]));
//! let batch = RecordBatch::try_from_iter([("age", age), ("name", name)])?;
//! let predicate = Predicate::parse("age>=18 and not name like 'B%'", &batch.schema())?;
//! assert_eq!(predicate.to_string(), "age >= 18 AND NOT name LIKE 'B%'");
//! assert_eq!(predicate.filter(&batch)?.num_rows(), 1);
//! # Ok(())
//! # }
//! ```

mod arith;
mod check;
mod compare;
mod error;
mod fold;
mod instant;
mod lex;
pub(crate) mod nearest;
mod operations;
mod parse;
mod plan;
#[cfg(test)]
mod tests;
pub(crate) mod text;
pub(crate) mod tree;
mod types;
mod value;

use std::fmt;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Schema;

pub use error::{EvaluateError, ExprError, Place};
pub use tree::Expr;

/// Most bytes of an expression's text.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// Most levels of an expression's tree, and of its parentheses. `AND`, `OR` and `IN` lists count as one level
/// each.
pub const MAX_DEPTH: usize = 100;

/// An expression that was checked against a schema: true, false or NULL for each row.
#[derive(Debug, Clone)]
pub struct Predicate {
    expr: Expr,
    plan: plan::Plan,
}

impl Predicate {
    /// Parses `text` and checks names and types against `schema`.
    ///
    /// # Errors
    /// [`ExprError`], with the place in the text and the way out.
    pub fn parse(text: &str, schema: &Schema) -> Result<Self, ExprError> {
        let expr = Expr::parse(text)?;
        let plan = check::predicate(text, schema, &expr)?;
        Ok(Self { expr, plan })
    }

    /// Checks an expression against `schema`. Places in errors refer to the canonical text.
    ///
    /// # Errors
    /// As [`Predicate::parse`].
    pub fn new(expr: &Expr, schema: &Schema) -> Result<Self, ExprError> {
        Self::parse(&expr.to_string(), schema)
    }

    /// The expression, of which the text is the rule's record.
    pub fn expr(&self) -> &Expr {
        &self.expr
    }

    /// Names of the top-level columns that a record batch must have, sorted.
    pub fn columns(&self) -> Vec<&str> {
        self.expr.columns()
    }

    /// The predicate's value for each row: true, false or NULL. Columns are found by name; others may be
    /// there, or not.
    ///
    /// # Errors
    /// [`EvaluateError::Overflow`] with the row, or [`EvaluateError::Schema`] if a column is missing or of
    /// another type.
    pub fn evaluate(&self, batch: &RecordBatch) -> Result<BooleanArray, EvaluateError> {
        Ok(self.plan.evaluate(batch, None)?.boolean_rows(batch.num_rows())?)
    }

    /// The rows for which the predicate is true, in their order.
    ///
    /// # Errors
    /// As [`Predicate::evaluate`].
    pub fn filter(&self, batch: &RecordBatch) -> Result<RecordBatch, EvaluateError> {
        Ok(filter_record_batch(batch, &self.evaluate(batch)?)?)
    }
}

/// The canonical text; see [`Expr`].
impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.expr.fmt(f)
    }
}
