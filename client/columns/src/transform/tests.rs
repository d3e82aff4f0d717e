use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, Float64Array, Int16Array, Int64Array,
    ListArray, RecordBatch, StringArray, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type, Int64Type, UInt8Type};
use proptest::prelude::*;

use crate::{Chain, ChainError, Transform, ValueError, tensor};

fn changed(column: ArrayRef, ops: &str) -> Result<ArrayRef, ValueError> {
    let batch = RecordBatch::try_from_iter([("a", column)]).unwrap();
    let transform = checked(&batch, ops).unwrap();
    Ok(Arc::clone(transform.apply(&batch)?.column(0)))
}

fn checked(batch: &RecordBatch, ops: &str) -> Result<Transform, ChainError> {
    let chain: Chain = format!(r#"{{"columns": {{"a": {ops}}}}}"#).parse()?;
    Transform::new(chain, &batch.schema())
}

/// The numbers of a column, and of each row of lists, as floats.
fn floats(column: &ArrayRef) -> Vec<f64> {
    let values = match column.data_type() {
        DataType::FixedSizeList(..) => column.as_fixed_size_list().values(),
        DataType::List(_) => column.as_list::<i32>().values(),
        _ => column,
    };
    let values = arrow::compute::cast(values, &DataType::Float64).unwrap();
    values.as_primitive::<Float64Type>().values().to_vec()
}

/// Floats of every sort.
fn any_float() -> impl Strategy<Value = f64> {
    prop_oneof![
        6 => -50.0..50.0f64,
        2 => (-8i32..8).prop_map(f64::from),
        1 => any::<f64>(),
        1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY), Just(-0.0)],
    ]
}

/// Columns of the types that tables have, and a chain for each.
fn any_column() -> impl Strategy<Value = (ArrayRef, &'static str)> {
    let floats = prop::collection::vec(prop::option::of(any_float()), 0..40);
    let floats = floats.prop_map(|floats| {
        (Arc::new(Float64Array::from(floats)) as ArrayRef,
            r#"[{"type": "FillNull", "value": 1.5, "nan": true}, {"type": "Clip", "min": -3, "max": 9}, {"type": "Normalize", "mean": 2, "std": 3}]"#)
    });
    let integers = prop::collection::vec(prop::option::of(any::<i16>()), 0..40);
    let integers = integers.prop_map(|integers| {
        (Arc::new(Int16Array::from(integers)) as ArrayRef,
            r#"[{"type": "FillNull", "value": -1}, {"type": "Bucketize", "boundaries": [-100, 0.5, 7]}, {"type": "OneHot", "classes": 4}]"#)
    });
    let words = prop::collection::vec(prop::option::of("[a-c]{0,2}"), 0..40).prop_map(|words| {
        (Arc::new(StringArray::from(words)) as ArrayRef,
            r#"[{"type": "Vocabulary", "words": ["a", "ab", "c"], "unknown": -1}, {"type": "Hash", "bins": 9}]"#)
    });
    let lists = prop::collection::vec(
        prop::option::of(prop::collection::vec(prop::option::of(0..300i64), 0..5)),
        0..40,
    );
    let lists = lists.prop_map(|lists| {
        (Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists)) as ArrayRef,
            r#"[{"type": "FillNull", "value": 3}, {"type": "Clip", "max": 9}, {"type": "MultiHot", "classes": 10, "dtype": "uint8"}]"#)
    });
    let fixed =
        prop::collection::vec(prop::option::of(prop::array::uniform3(prop::option::of(any_float()))), 0..40);
    let fixed = fixed.prop_map(|rows| {
        let rows = rows.into_iter().map(|row| row.map(|row| row.to_vec()));
        (
            Arc::new(FixedSizeListArray::from_iter_primitive::<Float64Type, _, _>(rows, 3)) as ArrayRef,
            r#"[{"type": "FillNull", "value": 0}, {"type": "MinMaxScale", "min": [0, 1, 2], "max": 4}]"#,
        )
    });
    prop_oneof![floats, integers, words, lists, fixed]
}

proptest! {
    #[test]
    fn a_row_has_the_same_values_in_any_batch((column, ops) in any_column(), start in 0usize..40, len in 0usize..40) {
        let start = start.min(column.len());
        let len = len.min(column.len() - start);
        let whole = changed(Arc::clone(&column), ops).unwrap();
        let part = changed(column.slice(start, len), ops).unwrap();
        prop_assert_eq!(part.to_data(), whole.slice(start, len).to_data());
        prop_assert_eq!(whole.logical_null_count(), 0);
    }

    #[test]
    fn buckets_count_the_boundaries_below(
        values in prop::collection::vec(any_float(), 0..30),
        integers in prop::collection::vec(any::<i64>(), 0..30),
        boundaries in prop::collection::btree_set(-40i32..40, 1..9),
        right in any::<bool>(),
    ) {
        let boundaries: Vec<f64> = boundaries.into_iter().map(|boundary| f64::from(boundary) / 2.0).collect();
        let ops = format!(r#"[{{"type": "Bucketize", "boundaries": {boundaries:?}, "right": {right}}}]"#);
        let bucket = |x: f64| boundaries.iter().filter(|b| if right { **b <= x } else { **b < x } || x.is_nan()).count() as f64;
        let found = changed(Arc::new(Float64Array::from(values.clone())), &ops).unwrap();
        prop_assert_eq!(floats(&found), values.into_iter().map(bucket).collect::<Vec<_>>());
        let found = changed(Arc::new(Int64Array::from(integers.clone())), &ops).unwrap();
        prop_assert_eq!(floats(&found), integers.into_iter().map(|x| bucket(x as f64)).collect::<Vec<_>>());
    }

    #[test]
    fn arithmetic_is_rounded_once(values in prop::collection::vec(any_float(), 0..30), mean in -9.0..9.0f64, std in 0.1..9.0f64) {
        let ops = format!(r#"[{{"type": "Normalize", "mean": {mean}, "std": {std}}}]"#);
        let found = changed(Arc::new(Float64Array::from(values.clone())), &ops).unwrap();
        let bits = |x: f32| x.to_bits();
        let expected: Vec<u32> = values.iter().map(|x| bits(((x - mean) / std) as f32)).collect();
        prop_assert_eq!(found.as_primitive::<Float32Type>().values().iter().copied().map(bits).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn any_text_is_a_chain_or_an_error(text in r#"[\[\]{}:,"a-zA-Z0-9. ]{0,60}"#) {
        if let Ok(chain) = text.parse::<Chain>() {
            prop_assert_eq!(chain.to_json().parse::<Chain>().unwrap(), chain);
        }
    }
}

#[test]
fn the_hash_of_a_word_never_changes() {
    let ops = r#"[{"type": "Hash", "bins": 1000000, "seed": 7}]"#;
    let words = changed(
        Arc::new(StringArray::from(vec!["", "Zürich", "a longer word, of more than sixteen bytes"])),
        ops,
    );
    let integers = changed(Arc::new(UInt64Array::from(vec![5, u64::MAX])), ops);
    let negative = changed(Arc::new(Int16Array::from(vec![5, -1])), ops);
    assert_eq!(integers.as_ref().unwrap().to_data(), negative.unwrap().to_data());
    let found = [floats(&words.unwrap()), floats(&integers.unwrap())].concat();
    // As `xxhash.xxh3_64_intdigest(bytes, 7) % 1_000_000` in Python.
    assert_eq!(found, [353_464.0, 841_090.0, 141_851.0, 155_675.0, 620_865.0]);
}

#[test]
fn words_are_numbered_beside_the_unknown() {
    let words = || Arc::new(StringArray::from(vec![Some("b"), None, Some("a"), Some("x")]));
    let of = |unknown: i64| {
        let ops = format!(r#"[{{"type": "Vocabulary", "words": ["a", "b"], "unknown": {unknown}}}]"#);
        floats(&changed(words(), &ops).unwrap())
    };
    assert_eq!(of(0), [2.0, 0.0, 1.0, 0.0]);
    assert_eq!(of(-1), [1.0, -1.0, 0.0, -1.0]);
    assert_eq!(of(2), [1.0, 2.0, 0.0, 2.0]);
}

#[test]
fn one_hot_keeps_the_shape_and_multi_hot_joins_a_list() {
    let rows = [Some(vec![Some(0), Some(2)]), Some(vec![Some(1), Some(1)])];
    let fixed = FixedSizeListArray::from_iter_primitive::<Int64Type, _, _>(rows, 2);
    let batch = RecordBatch::try_from_iter([("a", Arc::new(fixed) as ArrayRef)]).unwrap();
    let transform = checked(&batch, r#"[{"type": "OneHot", "classes": 3, "dtype": "uint8"}]"#).unwrap();
    assert_eq!(tensor::shape(transform.schema().field(0)), Some(vec![2, 3]));
    assert_eq!(transform.bytes(), 6);
    let found = transform.apply(&batch).unwrap();
    let numbers = found.column(0).as_fixed_size_list().values().as_primitive::<UInt8Type>().values().to_vec();
    assert_eq!(numbers, [1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0]);

    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([
        Some(vec![Some(2), Some(2), Some(0)]),
        Some(vec![]),
    ]);
    let found = changed(Arc::new(lists), r#"[{"type": "MultiHot", "classes": 3, "dtype": "bool"}]"#).unwrap();
    let bits = found.as_fixed_size_list().values().as_boolean().values().iter().collect::<Vec<_>>();
    assert_eq!(bits, [true, false, true, false, false, false]);
}

#[test]
fn a_value_without_a_result_names_its_row_and_the_way_out() {
    let integers = || Arc::new(Int64Array::from(vec![Some(1), Some(300), None])) as ArrayRef;
    let words = || Arc::new(StringArray::from(vec![Some("a"), Some("q"), None])) as ArrayRef;
    for (column, op, row, reason) in [
        (integers(), r#"{"type": "Log1p"}"#, 2, "gets a null: put FillNull before it"),
        (
            integers().slice(0, 2),
            r#"{"type": "OneHot", "classes": 4}"#,
            1,
            "takes 0 to 3, and gets 300: raise classes, or put Clip or Vocabulary before it",
        ),
        (
            integers().slice(0, 2),
            r#"{"type": "Cast", "dtype": "uint8"}"#,
            1,
            "gets 300, which uint8 does not hold: use a wider type, or put Clip before it",
        ),
        (
            Arc::new(Float32Array::from(vec![f32::INFINITY, 7e4])),
            r#"{"type": "Cast", "dtype": "float16"}"#,
            1,
            "gets 70000.0, which float16 does not hold: use a wider type, or put Clip before it",
        ),
        (words(), r#"{"type": "Vocabulary", "words": ["a"]}"#, 2, "gets a null: put FillNull before it"),
        (
            words().slice(0, 2),
            r#"{"type": "Vocabulary", "words": ["a"]}"#,
            1,
            r#"gets "q", which is none of its words: add it, or pass unknown"#,
        ),
        (
            Arc::new(Float32Array::from(vec![0.0, f32::NAN])),
            r#"{"type": "Cast", "dtype": "int64"}"#,
            1,
            "gets NaN, which int64 does not hold: use a wider type, or put Clip before it",
        ),
    ] {
        let error = changed(column, &format!("[{op}]")).unwrap_err();
        assert_eq!((error.row, error.index, error.reason.as_str()), (row, 0, reason));
    }
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([
        Some(vec![]),
        Some(vec![Some(1)]),
        Some(vec![Some(2), Some(9)]),
    ]);
    let error = changed(Arc::new(lists), r#"[{"type": "MultiHot", "classes": 3}]"#).unwrap_err();
    assert_eq!(error.row, 2);
}

#[test]
fn an_impossible_chain_is_refused_before_the_first_sample() {
    let text = || Arc::new(StringArray::from(vec!["a"])) as ArrayRef;
    let integers = || Arc::new(Int64Array::from(vec![1])) as ArrayRef;
    let lists =
        || Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1)])])) as ArrayRef;
    for (column, ops, message) in [
        (
            text(),
            r#"[{"type": "Normalize", "mean": 0, "std": 1}]"#,
            r#"operation 0 of the transforms of column "a", Normalize, takes numbers, and gets text: put Vocabulary or Hash before it"#,
        ),
        (
            text(),
            r#"[{"type": "FillNull", "value": 0}]"#,
            "has the value 0, which text does not hold: give a value of that type",
        ),
        (
            integers(),
            r#"[{"type": "FillNull", "value": 0.5}]"#,
            "has the value 0.5, which int64 does not hold",
        ),
        (
            integers(),
            r#"[{"type": "Normalize", "mean": 0, "std": 0}]"#,
            "divides by std: give numbers over 0",
        ),
        (
            integers(),
            r#"[{"type": "Normalize", "mean": [0, 1], "std": 1}]"#,
            "has a list as mean, and rows have no common length: give one number",
        ),
        (
            integers(),
            r#"[{"type": "Log1p"}, {"type": "OneHot", "classes": 3}]"#,
            r#"operation 1 of the transforms of column "a", OneHot, takes integers, and gets float32: put Cast("int64") before it"#,
        ),
        (integers(), r#"[{"type": "OneHot", "classes": 4000000000}]"#, "give classes for 1 to 1048576"),
        (integers(), r#"[{"type": "OneHot", "classes": 0}]"#, "give classes for 1 to"),
        (integers(), r#"[{"type": "MultiHot", "classes": 3}]"#, "takes lists, and gets int64: use OneHot"),
        (
            lists(),
            r#"[{"type": "OneHot", "classes": 3}]"#,
            "takes values and lists of one length, and gets lists of int64: use MultiHot",
        ),
        (
            integers(),
            r#"[{"type": "Bucketize", "boundaries": [2, 1]}]"#,
            "has the boundary 2 before 1: sort them, each once",
        ),
        (integers(), r#"[{"type": "Bucketize", "boundaries": []}]"#, "has 0 boundaries: give 1 to 65536"),
        (integers(), r#"[{"type": "Hash", "bins": 0}]"#, "has 0 bins: give at least 1"),
        (
            integers(),
            r#"[{"type": "Vocabulary", "words": ["a"]}]"#,
            "takes text, and gets int64: give integers as words",
        ),
        (
            text(),
            r#"[{"type": "Vocabulary", "words": ["a", "a"]}]"#,
            r#"has the word "a" twice: give each once"#,
        ),
        (
            text(),
            r#"[{"type": "Vocabulary", "words": ["a", "b"], "unknown": 1}]"#,
            "has the number 1 for unknown words, which is that of a word",
        ),
        (
            integers(),
            r#"[{"type": "Clip", "min": 3, "max": 1}]"#,
            "has a min of 3 over a max of 1: swap them",
        ),
        (
            integers(),
            r#"[{"type": "Clip", "min": 0.5}]"#,
            "has the bound 0.5, and gets int64: give an integer",
        ),
        (
            text(),
            r#"[{"type": "Cast", "dtype": "int64"}]"#,
            "takes numbers, and gets text: use Vocabulary or Hash",
        ),
        (
            text(),
            r#"[{"type": "Hashh", "bins": 3}]"#,
            "there is no operation Hashh on columns; the nearest is Hash",
        ),
        (text(), r#"[{"type": "Hash", "bins": 3, "salt": 1}]"#, "Hash: unknown field `salt`"),
    ] {
        let batch = RecordBatch::try_from_iter([("a", column)]).unwrap();
        let error = checked(&batch, ops).expect_err(ops).to_string();
        assert!(error.contains(message), "{error}");
    }
    let batch = RecordBatch::try_from_iter([("age", integers()), ("work", text())]).unwrap();
    let error = checked(&batch, "[]").unwrap_err().to_string();
    assert_eq!(error, r#"the transforms are of column "a", and there are age, work"#);
}

#[test]
fn a_hostile_document_is_an_error() {
    let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
    let deep = format!(r#"{{"columns": {{"a": [{{"type": "Hash", "bins": {open}{close}}}]}}}}"#);
    for (json, message) in [
        (r#"{"version": 2, "columns": {}}"#, "have version 2"),
        (r#"{"columns": {"a": [], "a": []}}"#, r#"column "a" is there twice"#),
        (r#"{"columns": {"a": [{"type": "Clip", "min": 1e999}]}}"#, "number out of range"),
        (r#"{"columns": {}, "column": "a"}"#, "unknown field `column`"),
        (r#"{"columns": {"a": [{"bins": 3}]}}"#, "an operation has no \"type\""),
        (&deep, "recursion limit"),
    ] {
        let error = json.parse::<Chain>().expect_err(json).to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn dates_and_decimals_become_numbers_by_a_cast() {
    let days = arrow::array::Date32Array::from(vec![0, 19_000]);
    let found = changed(Arc::new(days), r#"[{"type": "Cast", "dtype": "int64"}]"#).unwrap();
    assert_eq!(floats(&found), [0.0, 19_000.0]);
    let prices = arrow::array::Decimal128Array::from(vec![1250]).with_precision_and_scale(9, 2).unwrap();
    let found = changed(Arc::new(prices), r#"[{"type": "Cast", "dtype": "float64"}]"#).unwrap();
    assert_eq!(floats(&found), [12.5]);
}

#[test]
fn a_batch_without_rows_has_the_types_of_others() {
    let schema = arrow::datatypes::Schema::new(vec![Field::new("a", DataType::Utf8, true)]);
    let batch = RecordBatch::new_empty(Arc::new(schema));
    let transform =
        checked(&batch, r#"[{"type": "Hash", "bins": 3}, {"type": "OneHot", "classes": 3}]"#).unwrap();
    let found = transform.apply(&batch).unwrap();
    assert_eq!((found.num_rows(), found.schema()), (0, Arc::clone(transform.schema())));
}
