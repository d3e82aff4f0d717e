//! Filter expressions, and rules as documents.

use std::sync::{Arc, LazyLock};

use arrow::array::{
    ArrayRef, AsArray, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
    Float32Array, Float64Array, Int8Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
    StructArray, TimestampMicrosecondArray, TimestampSecondArray, UInt64Array,
};
use arrow::datatypes::{Int8Type, Int32Type};
use shardd_views::dedup::{Clusters, Exact, MinHasher};
use shardd_views::expr::{EvaluateError, Expr, Predicate};
use shardd_views::key::{Digest, Key};
use shardd_views::projection::Projection;
use shardd_views::rule::{Dedup, Derivation, Rule};
use shardd_views::sample::{Sample, Weights};
use shardd_views::split::Split;

/// Four rows: usual ones, one of NULL, and one of extremes.
static TABLE: LazyLock<RecordBatch> = LazyLock::new(|| {
    let text = [Some("abc"), Some("Ärger"), None, Some("50%_a\\b")];
    let money = Decimal128Array::from(vec![Some(150), Some(-25), None, Some(99_999)]);
    let zone = TimestampMicrosecondArray::from(vec![Some(0), Some(-1), None, Some(i64::MAX)]);
    let lists = vec![Some(vec![Some(1), None]), Some(vec![]), None, Some(vec![Some(3)])];
    let bytes: Vec<Option<&[u8]>> = vec![Some(b"ab"), Some(b""), None, Some(b"\xff\x00\x01")];
    let inner: ArrayRef = Arc::new(Int32Array::from(vec![Some(5), None, Some(6), Some(7)]));
    let (fields, columns, _) =
        StructArray::try_from(vec![("b", inner.clone()), ("d", inner)]).expect("two fields").into_parts();
    let nested = StructArray::new(fields, columns, Some(vec![true, true, false, true].into()));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i", Arc::new(Int64Array::from(vec![Some(1), Some(-7), None, Some(i64::MAX)]))),
        ("j", Arc::new(Int8Array::from(vec![Some(3), Some(-128), None, Some(127)]))),
        ("u", Arc::new(UInt64Array::from(vec![Some(0), Some(5), None, Some(u64::MAX)]))),
        ("f", Arc::new(Float64Array::from(vec![Some(-0.0), Some(2.5), None, Some(f64::NAN)]))),
        ("g", Arc::new(Float32Array::from(vec![Some(0.1), Some(1.5), None, Some(f32::INFINITY)]))),
        ("n", Arc::new(money.with_precision_and_scale(7, 2).expect("seven digits"))),
        ("s", Arc::new(StringArray::from(text.to_vec()))),
        ("dict", Arc::new(text.into_iter().collect::<DictionaryArray<Int8Type>>())),
        ("flag", Arc::new(BooleanArray::from(vec![Some(true), Some(false), None, Some(true)]))),
        ("day", Arc::new(Date32Array::from(vec![Some(19_723), Some(-1), None, Some(i32::MAX)]))),
        (
            "time",
            Arc::new(TimestampSecondArray::from(vec![Some(1_700_000_000), Some(-1), None, Some(i64::MIN)])),
        ),
        ("zone", Arc::new(zone.with_timezone("UTC"))),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
        ("bin", Arc::new(BinaryArray::from(bytes))),
        ("st", Arc::new(nested)),
        ("w", Arc::new(Float64Array::from(vec![0.5, 0.0, 3.0, 1e300]))),
    ];
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
});

/// A filter's canonical text is a filter of the same meaning. A row's answer does not depend on the rows beside it.
pub(crate) fn filter(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let Ok(expr) = Expr::parse(text) else { return false };
    let canonical = expr.to_string();
    let again = Expr::parse(&canonical).expect("a canonical text");
    assert_eq!(again, expr);
    assert_eq!(again.to_string(), canonical);
    let parsed = Predicate::parse(text, &TABLE.schema());
    let rewritten = Predicate::new(&expr, &TABLE.schema());
    assert_eq!(parsed.is_ok(), rewritten.is_ok());
    let (Ok(predicate), Ok(rewritten)) = (parsed, rewritten) else { return false };
    answers_of(&predicate, &rewritten)
}

/// Whether the filter can be evaluated over all rows.
fn answers_of(predicate: &Predicate, rewritten: &Predicate) -> bool {
    let whole = answers(predicate, &TABLE);
    assert_eq!(answers(rewritten, &TABLE), whole);
    let rows: Vec<_> = (0..TABLE.num_rows()).map(|row| answers(predicate, &TABLE.slice(row, 1))).collect();
    match whole {
        Ok(whole) => {
            assert_eq!(rows, whole.iter().map(|answer| Ok(vec![*answer])).collect::<Vec<_>>());
            let kept = predicate.filter(&TABLE).expect("it was evaluated");
            assert_eq!(kept.num_rows(), whole.iter().filter(|answer| **answer == Some(true)).count());
            true
        }
        Err(row) => {
            assert!(rows[row].is_err(), "row {row} fails among others only");
            false
        }
    }
}

/// True, false or NULL for each row, or the row that leaves the range.
fn answers(predicate: &Predicate, rows: &RecordBatch) -> Result<Vec<Option<bool>>, usize> {
    match predicate.evaluate(rows) {
        Ok(values) => Ok(values.iter().collect()),
        Err(EvaluateError::Overflow { row, .. }) => Err(row),
        Err(error) => panic!("{predicate}: {error:?}"),
    }
}

/// A rule, or a list of rules with their parent, has one document and is one line of a log. Rules that fit the table can be
/// carried out on it, within what they promise.
pub(crate) fn rule(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let rules = if let Ok(rule) = Rule::from_json(text) {
        let again = Rule::from_json(&rule.to_json()).expect("the written document is read");
        assert_eq!(again, rule);
        assert_eq!(again.digest(), rule.digest());
        vec![rule]
    } else if let Ok(derivation) = Derivation::from_json(text) {
        let again = Derivation::from_json(&derivation.to_json()).expect("the written document is read");
        assert_eq!(again, derivation);
        assert_eq!(again.digest(), derivation.digest());
        assert!(!derivation.to_string().contains('\n'));
        if let Ok(left) = derivation.check(&TABLE.schema()) {
            assert!(!left.fields().is_empty());
        }
        derivation.rules
    } else {
        return false;
    };
    let fitting = rules.iter().filter(|rule| rule.check(&TABLE.schema()).is_ok());
    fitting.map(carry_out).count() > 0
}

fn carry_out(rule: &Rule) {
    let rows = digests();
    match rule {
        Rule::Filter { expression } => {
            let predicate = Predicate::new(expression, &TABLE.schema()).expect("it was checked");
            answers_of(&predicate, &predicate);
        }
        Rule::Select { columns } => {
            let projection = Projection::new(columns.clone(), &TABLE.schema()).expect("it was checked");
            assert_eq!(projection.apply(&TABLE).expect("its own schema").schema(), *projection.schema());
        }
        Rule::SplitPart { parts, by, stratify, seed, .. } => {
            let split = Split { parts: parts.clone(), by: by.clone(), seed: *seed };
            let assigned = split.assign_batch(&TABLE, &rows).expect("it was checked");
            assert!(assigned.iter().all(|part| (*part as usize) < parts.len()));
            if let Some(columns) = stratify {
                let labels =
                    Key::Columns(columns.clone()).digests(&TABLE, &[]).expect("it was checked").into_owned();
                let exact = split.assign_exact(&labels, &rows).expect("one label for each row");
                assert!(exact.iter().all(|part| (*part as usize) < parts.len()));
            }
        }
        Rule::Dedup { method: Dedup::Exact { by } } => {
            let mut exact = Exact::new();
            for key in by.digests(&TABLE, &rows).expect("it was checked").iter() {
                exact.insert(key);
            }
            assert!(exact.finish().kept.value(0));
        }
        Rule::Dedup { method: Dedup::Minhash { column, parameters } } => {
            let hasher = MinHasher::new(parameters.clone()).expect("it was checked");
            let mut clusters = Clusters::new(&hasher);
            let column = TABLE.column_by_name(column).expect("it was checked");
            if let Some(texts) = column.as_string_opt::<i32>() {
                for (row, text) in texts.iter().enumerate() {
                    let signature = hasher.signature(text.unwrap_or_default());
                    clusters.insert(row as u64, &signature).expect("rows in order");
                }
            }
            assert!(clusters.finish(TABLE.num_rows() as u64).expect("its rows").kept.value(0));
        }
        Rule::Sample { sample, seed } => draw(sample, *seed, &rows),
    }
}

/// A sample takes as many rows as it says, if it can be had.
fn draw(sample: &Sample, seed: u64, rows: &[Digest]) {
    let (labels, weights, wanted) = match sample {
        Sample::Fraction { .. } | Sample::Bernoulli { .. } => (Vec::new(), Vec::new(), None),
        Sample::Count { count } => (Vec::new(), Vec::new(), Some(*count)),
        Sample::Weighted { weights, total } => {
            let mut column = Weights::new();
            let read = column.push(TABLE.column_by_name(weights).expect("it was checked"));
            if read.is_err() {
                return;
            }
            (Vec::new(), column.finish(), Some(*total))
        }
        Sample::Balanced { by, total } => {
            let labels = Key::Columns(vec![by.clone()]).digests(&TABLE, &[]).expect("it was checked");
            (labels.into_owned(), Vec::new(), Some(*total))
        }
    };
    let Ok(taken) = sample.draw(seed, rows, &labels, &weights) else { return };
    assert_eq!(taken.rows(), rows.len() as u64);
    assert!(wanted.is_none_or(|wanted| taken.total() == wanted));
}

fn digests() -> Vec<Digest> {
    (0..TABLE.num_rows()).map(|row| [row as u8; 32]).collect()
}
