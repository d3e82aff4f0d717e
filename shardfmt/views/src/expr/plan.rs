//! A checked expression, and its evaluation over a record batch.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::kernels::{boolean, nullif::nullif, zip::zip};
use arrow::datatypes::DataType;

use super::arith::{self, Active, Domain, OutOfRange};
use super::compare::{Set, compare};
use super::error::EvaluateError;
use super::text::{self, Case, Search};
use super::tree::{Comparison, Operator};
use super::types::Conversion;
use super::value::Value;

/// A node whose operands have the types that it wants.
#[derive(Debug, Clone)]
pub(super) enum Plan {
    /// A column, or a field of its structs. The type is that of the leaf, dictionary included.
    Column {
        path: Vec<String>,
        data_type: DataType,
    },
    Constant(Value),
    Convert {
        input: Box<Plan>,
        conversion: Conversion,
    },
    Not(Box<Plan>),
    /// Terms of AND or OR; `masked` if one but the first can fail, and settled rows must not count.
    Junction {
        all: bool,
        terms: Vec<Plan>,
        masked: bool,
    },
    /// Tests of one value, of which all or any must hold.
    Tests {
        value: Box<Plan>,
        tests: Vec<Test>,
        all: bool,
    },
    IsNull {
        input: Box<Plan>,
        negated: bool,
    },
    Arithmetic {
        operator: Operator,
        domain: Domain,
        left: Box<Plan>,
        right: Box<Plan>,
        text: String,
    },
    Absolute {
        domain: Domain,
        input: Box<Plan>,
        text: String,
    },
    Like {
        input: Box<Plan>,
        pattern: String,
        ignore_case: bool,
    },
    Search {
        search: Search,
        left: Box<Plan>,
        right: Box<Plan>,
    },
    Recase {
        case: Case,
        input: Box<Plan>,
    },
    Length(Box<Plan>),
    /// Two or more items of one type.
    Coalesce(Vec<Plan>),
}

/// One test of a value.
#[derive(Debug, Clone)]
pub(super) enum Test {
    /// Compare with a constant of the value's type.
    Constant(Comparison, Value),
    /// Convert the value, then compare with another plan.
    Against { op: Comparison, conversion: Conversion, other: Plan },
    /// This answer unless the value is NULL.
    Always(bool),
    /// NULL for each row.
    Unknown,
    /// Whether the value is in the set.
    OneOf(Set),
}

type Evaluated = Result<Value, EvaluateError>;

impl Plan {
    /// Values for the rows of `batch`. Failures count in `active` rows only.
    pub(super) fn evaluate(&self, batch: &RecordBatch, active: Active<'_>) -> Evaluated {
        match self {
            Self::Column { path, data_type } => column(batch, path, data_type),
            Self::Constant(value) => Ok(value.clone()),
            Self::Convert { input, conversion } => Ok(input.evaluate(batch, active)?.convert(conversion)?),
            Self::Not(input) => {
                let value = input.evaluate(batch, active)?;
                let not = boolean::not(&value.booleans()?)?;
                Ok(value.with(Arc::new(not)))
            }
            Self::Junction { all, terms, masked } => junction(*all, terms, *masked, batch, active),
            Self::Tests { value, tests, all } => {
                let value = value.evaluate(batch, active)?;
                run_tests(&value, tests, *all, batch, active)
            }
            Self::IsNull { input, negated } => {
                let value = input.evaluate(batch, active)?;
                let test = if *negated { boolean::is_not_null } else { boolean::is_null };
                Ok(value.with(Arc::new(test(&value.array)?)))
            }
            Self::Arithmetic { operator, domain, left, right, text } => {
                let left = left.evaluate(batch, active)?;
                let right = right.evaluate(batch, active)?;
                arith::binary(*operator, domain, &left, &right, active)
                    .map_err(|at| overflow(at, text, domain))
            }
            Self::Absolute { domain, input, text } => {
                let value = input.evaluate(batch, active)?;
                arith::absolute(domain, &value, active).map_err(|at| overflow(at, text, domain))
            }
            Self::Like { input, pattern, ignore_case } => {
                Ok(input.evaluate(batch, active)?.map(|array| text::like(array, pattern, *ignore_case))?)
            }
            Self::Search { search, left, right } => {
                let (left, right) = (left.evaluate(batch, active)?, right.evaluate(batch, active)?);
                Ok(text::search(*search, &left, &right)?)
            }
            Self::Recase { case, input } => {
                Ok(input.evaluate(batch, active)?.map(|array| text::recase(*case, array))?)
            }
            Self::Length(input) => Ok(input.evaluate(batch, active)?.map(text::lengths)?),
            Self::Coalesce(items) => coalesce(items, batch, active),
        }
    }

    /// Whether some row can make the evaluation fail.
    pub(super) fn can_fail(&self) -> bool {
        match self {
            Self::Column { .. } | Self::Constant(_) => false,
            Self::Arithmetic { domain, left, right, .. } => {
                domain.can_fail() || left.can_fail() || right.can_fail()
            }
            Self::Absolute { domain, input, .. } => domain.can_fail() || input.can_fail(),
            Self::Junction { terms, .. } | Self::Coalesce(terms) => terms.iter().any(Self::can_fail),
            Self::Tests { value, tests, .. } => {
                let other = |test: &Test| matches!(test, Test::Against { other, .. } if other.can_fail());
                value.can_fail() || tests.iter().any(other)
            }
            Self::Search { left, right, .. } => left.can_fail() || right.can_fail(),
            Self::Convert { input, .. }
            | Self::Not(input)
            | Self::IsNull { input, .. }
            | Self::Like { input, .. }
            | Self::Recase { input, .. }
            | Self::Length(input) => input.can_fail(),
        }
    }
}

fn overflow(at: OutOfRange, text: &str, domain: &Domain) -> EvaluateError {
    EvaluateError::Overflow { row: at.row, operation: text.to_string(), range: domain.range() }
}

fn column(batch: &RecordBatch, path: &[String], expected: &DataType) -> Evaluated {
    let wrong = |found: String| EvaluateError::Schema {
        column: path.join("."),
        expected: expected.to_string(),
        found,
    };
    let (first, fields) = path.split_first().ok_or_else(|| wrong("missing".into()))?;
    let mut array: ArrayRef = batch.column_by_name(first).ok_or_else(|| wrong("missing".into()))?.clone();
    for field in fields {
        let parent = array.as_struct_opt().ok_or_else(|| wrong(array.data_type().to_string()))?;
        let child = parent.column_by_name(field).ok_or_else(|| wrong("missing".into()))?;
        // A field of a struct that is NULL is NULL.
        array = match parent.nulls() {
            Some(nulls) if nulls.null_count() > 0 => nullif(child, &BooleanArray::from(!nulls.inner()))?,
            _ => child.clone(),
        };
    }
    if array.data_type() != expected {
        return Err(wrong(array.data_type().to_string()));
    }
    Ok(Value::column(array))
}

/// AND or OR of the terms, from left to right. A row that a term has settled is not active in later ones.
fn junction(all: bool, terms: &[Plan], masked: bool, batch: &RecordBatch, active: Active<'_>) -> Evaluated {
    let rows = batch.num_rows();
    let mut result: Option<BooleanArray> = None;
    let mut mask: Option<BooleanBuffer> = active.cloned();
    for (index, term) in terms.iter().enumerate() {
        let next = term.evaluate(batch, mask.as_ref())?.boolean_rows(rows)?;
        let joined = match &result {
            None => next,
            Some(previous) if all => boolean::and_kleene(previous, &next)?,
            Some(previous) => boolean::or_kleene(previous, &next)?,
        };
        if index + 1 == terms.len() || is_settled(&joined, all) {
            return Ok(Value::column(Arc::new(joined)));
        }
        if masked {
            let open = unsettled(&joined, all);
            mask = Some(active.map_or_else(|| open.clone(), |active| active & &open));
        }
        result = Some(joined);
    }
    let result = result.unwrap_or_else(|| BooleanBuffer::new_set(rows).into());
    Ok(Value::column(Arc::new(result)))
}

/// Whether each row is surely false (for AND) or surely true (for OR).
fn is_settled(values: &BooleanArray, all: bool) -> bool {
    values.null_count() == 0 && if all { !values.has_true() } else { !values.has_false() }
}

/// Rows that are neither surely false (for AND) nor surely true (for OR).
fn unsettled(values: &BooleanArray, all: bool) -> BooleanBuffer {
    let open = if all { values.values().clone() } else { !values.values() };
    match values.nulls() {
        Some(nulls) => &open | &!nulls.inner(),
        None => open,
    }
}

fn run_tests(value: &Value, tests: &[Test], all: bool, batch: &RecordBatch, active: Active<'_>) -> Evaluated {
    let mut result: Option<Value> = None;
    for test in tests {
        let next = run_test(value, test, batch, active)?;
        result = Some(match result {
            None => next,
            Some(previous) => kleene(all, &previous, &next, batch.num_rows())?,
        });
    }
    Ok(result.unwrap_or_else(|| Value::scalar(Arc::new(BooleanArray::from(vec![all])))))
}

fn kleene(all: bool, left: &Value, right: &Value, rows: usize) -> Evaluated {
    let is_scalar = left.is_scalar && right.is_scalar;
    let rows = if is_scalar { 1 } else { rows };
    let (l, r) = (left.boolean_rows(rows)?, right.boolean_rows(rows)?);
    let joined = if all { boolean::and_kleene(&l, &r)? } else { boolean::or_kleene(&l, &r)? };
    Ok(Value { array: Arc::new(joined), is_scalar })
}

fn run_test(value: &Value, test: &Test, batch: &RecordBatch, active: Active<'_>) -> Evaluated {
    match test {
        Test::Constant(op, constant) => Ok(compare(*op, value, constant)?),
        Test::Against { op, conversion, other } => {
            let other = other.evaluate(batch, active)?;
            Ok(compare(*op, &value.convert(conversion)?, &other)?)
        }
        Test::Always(answer) => {
            let len = value.array.len();
            let bits = if *answer { BooleanBuffer::new_set(len) } else { BooleanBuffer::new_unset(len) };
            let nulls = value.array.logical_nulls().filter(|nulls: &NullBuffer| nulls.null_count() > 0);
            Ok(value.with(Arc::new(BooleanArray::new(bits, nulls))))
        }
        Test::Unknown => Ok(value.with(Arc::new(BooleanArray::new_null(value.array.len())))),
        Test::OneOf(set) => Ok(value.map(|array| set.contains(array))?),
    }
}

/// The first value of each row that is not NULL. Later items are active only where the earlier ones are NULL.
fn coalesce(items: &[Plan], batch: &RecordBatch, active: Active<'_>) -> Evaluated {
    let mut result: Option<Value> = None;
    let mut mask: Option<BooleanBuffer> = active.cloned();
    for item in items {
        let next = item.evaluate(batch, mask.as_ref())?;
        let filled = match &result {
            None => next,
            Some(previous) => fill(previous, &next, batch.num_rows())?,
        };
        let missing = boolean::is_null(&filled.array)?;
        let missing =
            Value { array: Arc::new(missing), is_scalar: filled.is_scalar }.boolean_rows(batch.num_rows())?;
        mask = Some(active.map_or_else(|| missing.values().clone(), |active| active & missing.values()));
        result = Some(filled);
    }
    Ok(result.unwrap_or_else(|| Value::scalar(arrow::array::new_null_array(&DataType::Null, 1))))
}

/// `value`, with `other` where it is NULL.
fn fill(value: &Value, other: &Value, rows: usize) -> Evaluated {
    if value.is_scalar {
        return Ok(if value.array.is_null(0) { other.clone() } else { value.clone() });
    }
    let present = boolean::is_not_null(&value.array)?;
    if !present.has_false() || rows == 0 {
        return Ok(value.clone());
    }
    Ok(Value::column(zip(&present, value, other)?))
}
