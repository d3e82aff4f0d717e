//! Laws and stories of keys.

use std::sync::Arc;

use arrow::array::*;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int32Type, TimeUnit};
use proptest::prelude::*;

use super::*;

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .unwrap()
}

fn digests(array: ArrayRef) -> Vec<Digest> {
    Key::Columns(vec!["a".into()]).digests(&batch(vec![("a", array)]), &[]).unwrap().into_owned()
}

#[test]
fn the_way_that_arrow_stores_a_value_does_not_count() {
    let texts: ArrayRef =
        Arc::new(StringArray::from(vec![Some("a"), None, Some(""), Some("longer than twelve bytes")]));
    let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    for other in [DataType::LargeUtf8, DataType::Utf8View, dictionary] {
        assert_eq!(digests(texts.clone()), digests(cast(&texts, &other).unwrap()), "{other}");
    }
    let numbers: ArrayRef = Arc::new(Int8Array::from(vec![Some(-3), None, Some(7)]));
    assert_eq!(digests(numbers.clone()), digests(cast(&numbers, &DataType::Int64).unwrap()));
    let seconds = DataType::Timestamp(TimeUnit::Second, None);
    let times: ArrayRef = cast(&Int64Array::from(vec![5, -9]), &seconds).unwrap();
    let nanos = cast(&times, &DataType::Timestamp(TimeUnit::Nanosecond, None)).unwrap();
    assert_eq!(digests(times), digests(nanos));
    let decimals: ArrayRef = cast(&Int64Array::from(vec![5, 0, 120]), &DataType::Decimal128(9, 2)).unwrap();
    assert_eq!(digests(decimals.clone()), digests(cast(&decimals, &DataType::Decimal128(20, 5)).unwrap()));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
    ]));
    let large = DataType::LargeList(Arc::new(Field::new_list_field(DataType::Int32, true)));
    assert_eq!(digests(lists.clone()), digests(cast(&lists, &large).unwrap()));
}

#[test]
fn zeros_are_equal_and_so_are_nans() {
    let found = digests(Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, -f64::NAN, 1.0])));
    assert_eq!(found[0], found[1]);
    assert_eq!(found[2], found[3]);
    assert_ne!(found[0], found[4]);
}

#[test]
fn the_border_between_columns_counts() {
    let a: ArrayRef = Arc::new(StringArray::from(vec!["ab", "a"]));
    let b: ArrayRef = Arc::new(StringArray::from(vec!["c", "bc"]));
    let key = Key::Columns(vec!["a".into(), "b".into()]);
    let found = key.digests(&batch(vec![("a", a), ("b", b)]), &[]).unwrap().into_owned();
    assert_ne!(found[0], found[1]);
}

#[test]
fn a_key_that_does_not_fit_is_refused() {
    let rows = batch(vec![("patient", Arc::new(Int32Array::from(vec![1])))]);
    let missing = Key::Columns(vec!["pateint".into()]).digests(&rows, &[]).unwrap_err();
    assert_eq!(missing.to_string(), "there is no column pateint: did you mean patient?");
    assert!(matches!(Key::Columns(vec![]).digests(&rows, &[]), Err(KeyError::Empty)));
    assert!(matches!(Key::Row.digests(&rows, &[]), Err(KeyError::Digests { rows: 1, digests: 0 })));
    let intervals: ArrayRef = Arc::new(IntervalYearMonthArray::from(vec![1]));
    let batch = batch(vec![("a", intervals)]);
    assert!(matches!(Key::Columns(vec!["a".into()]).check(&batch.schema()), Err(KeyError::Type { .. })));
}

#[test]
fn digests_of_a_release_stay() {
    let found = digests(Arc::new(StringArray::from(vec![Some("patient 1"), None])));
    let hex: Vec<_> =
        found.iter().map(|digest| blake3::Hash::from(*digest).to_hex()[..16].to_string()).collect();
    let position = Order::new(Purpose::Sample, 7).position(&[0; 32]);
    assert_eq!((hex, position), (GOLDEN.map(String::from).to_vec(), GOLDEN_POSITION));
}

const GOLDEN: [&str; 2] = ["ec6a607601adce3b", "85f75f66a7148034"];
const GOLDEN_POSITION: u64 = 2_883_653_035_846_144_115;

proptest! {
    #[test]
    fn keys_are_equal_if_and_only_if_the_values_are(
        rows in prop::collection::vec((prop::option::of(0i32..3), prop::option::of("[ab]{0,2}")), 0..30),
        cut in 0usize..30,
    ) {
        let a: ArrayRef = Arc::new(rows.iter().map(|row| row.0).collect::<Int32Array>());
        let b: ArrayRef = Arc::new(rows.iter().map(|row| row.1.clone()).collect::<StringArray>());
        let whole = batch(vec![("a", a), ("b", b)]);
        let key = Key::Columns(vec!["b".into(), "a".into()]);
        let found = key.digests(&whole, &[]).unwrap().into_owned();
        for i in 0..rows.len() {
            for j in 0..i {
                prop_assert_eq!(found[i] == found[j], rows[i] == rows[j]);
            }
        }
        let cut = cut.min(rows.len());
        let tail = key.digests(&whole.slice(cut, rows.len() - cut), &[]).unwrap().into_owned();
        prop_assert_eq!(&found[cut..], &tail[..]);
    }
}
