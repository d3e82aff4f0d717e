//! Laws and stories of expressions. `tests/reference/views.py` compares the meaning with DuckDB.

mod laws;
mod meaning;

use std::sync::Arc;

use arrow::array::*;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type, TimeUnit, TimestampMicrosecondType};

use super::*;

/// Four rows: usual ones, one of NULL, and one of extremes.
fn table() -> RecordBatch {
    let int = Int64Array::from(vec![Some(1), Some(-7), None, Some(i64::MAX)]);
    let small = Int8Array::from(vec![Some(3), Some(-128), None, Some(127)]);
    let unsigned = UInt64Array::from(vec![Some(0), Some(5), None, Some(u64::MAX)]);
    let float = Float64Array::from(vec![Some(-0.0), Some(2.5), None, Some(f64::NAN)]);
    let single = Float32Array::from(vec![Some(0.1), Some(1.5), None, Some(f32::INFINITY)]);
    let money = Decimal128Array::from(vec![Some(150), Some(-25), None, Some(99_999)]);
    let money = money.with_precision_and_scale(7, 2).unwrap();
    let text = StringArray::from(vec![Some("abc"), Some("Ärger"), None, Some("50%_a\\b")]);
    let flag = BooleanArray::from(vec![Some(true), Some(false), None, Some(true)]);
    let day = Date32Array::from(vec![Some(19_723), Some(-1), None, Some(20_000)]);
    let time = cast(&day, &DataType::Timestamp(TimeUnit::Second, None)).unwrap();
    let zone = cast(&day, &DataType::Timestamp(TimeUnit::Microsecond, None)).unwrap();
    let zone: ArrayRef =
        Arc::new(zone.as_primitive::<TimestampMicrosecondType>().clone().with_timezone("UTC"));
    let list = vec![Some(vec![Some(1), None]), Some(vec![]), None, Some(vec![Some(3)])];
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>(list);
    let bytes = BinaryArray::from_opt_vec(vec![Some(b"ab"), Some(b""), None, Some(b"\xff\x00\x01")]);
    let inner: ArrayRef = Arc::new(Int32Array::from(vec![Some(5), None, Some(6), Some(7)]));
    let fields = vec![("b c", inner.clone()), ("d", inner)];
    let nested = StructArray::try_from(fields).unwrap().into_parts();
    let nested = StructArray::new(nested.0, nested.1, Some(vec![true, true, false, true].into()));
    let dictionary =
        cast(&text, &DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8))).unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i", Arc::new(int)),
        ("small", Arc::new(small)),
        ("u", Arc::new(unsigned)),
        ("f", Arc::new(float)),
        ("g", Arc::new(single)),
        ("n", Arc::new(money)),
        ("s", Arc::new(text)),
        ("flag", Arc::new(flag)),
        ("day", Arc::new(day)),
        ("time", time),
        ("zone", zone),
        ("list", Arc::new(list)),
        ("bin", Arc::new(bytes)),
        ("st", Arc::new(nested)),
        ("empty", arrow::array::new_null_array(dictionary.data_type(), 4)),
        ("dict", dictionary),
        ("odd name", Arc::new(Int32Array::from(vec![1, 2, 3, 4]))),
        ("a.b", Arc::new(Int32Array::from(vec![1, 2, 3, 4]))),
        ("in", Arc::new(Int32Array::from(vec![1, 2, 3, 4]))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .unwrap()
}

/// t, f or n for each row.
fn answers(values: &BooleanArray) -> String {
    values.iter().map(|value| value.map_or('n', |value| if value { 't' } else { 'f' })).collect()
}

fn evaluate(text: &str, batch: &RecordBatch) -> Result<String, EvaluateError> {
    let predicate = Predicate::parse(text, &batch.schema()).unwrap_or_else(|error| panic!("{error}"));
    predicate.evaluate(batch).map(|values| answers(&values))
}
