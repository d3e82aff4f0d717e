//! Statistics are what slow and plain arithmetic says, and those of parts add up to those of the whole.

use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::{Field, Int32Type};
use proptest::prelude::*;
use shardd_strategies::record_batch;

use super::*;

fn gathered(columns: Vec<(&str, ArrayRef)>, ends: &[usize]) -> Statistics {
    let batch = RecordBatch::try_from_iter(columns).expect("equal lengths");
    let mut gatherer = Gatherer::new(batch.schema_ref());
    let starts = [0].into_iter().chain(ends.iter().copied());
    gatherer.add(&batch, starts.zip(ends).map(|(start, end)| end - start));
    gatherer.finish()
}

fn close(left: f64, right: f64, scale: f64) -> bool {
    (left - right).abs() <= 1e-9 * scale.abs().max(1.0)
}

#[test]
fn every_kind_of_column_is_measured_as_it_should_be() {
    let items = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
        Some(vec![Some(1); 4]),
    ]);
    let vectors =
        FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1)]), None, None, None], 1);
    let prices = Decimal128Array::from(vec![Some(150), None, Some(-50), Some(200)]);
    let wide = Decimal256Array::from(vec![Some(i256::from_i128(-5)), None, None, Some(i256::MAX)]);
    type Expected = (&'static str, ArrayRef, u64, Option<(f64, f64, f64)>);
    let columns: Vec<Expected> = vec![
        ("whole", Arc::new(Int64Array::from(vec![3, -1, 4, 2])), 4, Some((-1.0, 4.0, 2.0))),
        ("small", Arc::new(UInt8Array::from(vec![None, Some(8), Some(8), None])), 2, Some((8.0, 8.0, 8.0))),
        ("truth", Arc::new(BooleanArray::from(vec![true, false, true, true])), 4, Some((0.0, 1.0, 0.75))),
        (
            "real",
            Arc::new(Float32Array::from(vec![f32::NAN, 1.0, f32::INFINITY, 2.0])),
            2,
            Some((1.0, 2.0, 1.5)),
        ),
        (
            "text",
            Arc::new(StringArray::from(vec![Some("é"), None, Some(""), Some("four")])),
            3,
            Some((0.0, 4.0, 2.0)),
        ),
        ("items", Arc::new(items), 3, Some((0.0, 4.0, 2.0))),
        ("time", Arc::new(TimestampSecondArray::from(vec![10, 20, 30, 40])), 4, Some((10.0, 40.0, 25.0))),
        (
            "price",
            Arc::new(prices.with_precision_and_scale(9, 2).expect("they fit")),
            3,
            Some((-0.5, 2.0, 1.0)),
        ),
        (
            "wide",
            Arc::new(wide.with_precision_and_scale(76, 0).expect("a precision")),
            2,
            Some((-5.0, 2f64.powi(255), 2f64.powi(254))),
        ),
        ("vector", Arc::new(vectors), 1, None),
        ("nothing", Arc::new(NullArray::new(4)), 0, None),
        ("missing", Arc::new(Int16Array::from(vec![None; 4])), 0, None),
    ];
    let all =
        gathered(columns.iter().map(|(name, array, ..)| (*name, array.clone())).collect(), &[3, 4, 14, 20]);
    assert_eq!(all.row_bytes, Quantiles { min: 1, p25: 1, p50: 3, p75: 6, p99: 6, max: 10 });
    for ((name, array, count, spread), found) in columns.iter().zip(&all.columns) {
        assert_eq!(found.count, *count, "{name}");
        assert_eq!(found.spread.map(|found| (found.min, found.max, found.mean)), *spread, "{name}");
        let measured = Measure::of(array.data_type()) != Measure::Nothing;
        assert_eq!(found.spread.is_some(), measured && *count > 0, "{name}");
    }
    assert_eq!(all.columns[0].spread.expect("numbers").variance, 3.5);
}

#[test]
fn columns_of_a_wide_table_are_measured_up_to_a_limit() {
    let fields: Vec<Field> =
        (0..2 * MEASURED_COLUMNS).map(|at| Field::new(at.to_string(), DataType::Int8, true)).collect();
    let schema = Arc::new(Schema::new(fields));
    let mut gatherer = Gatherer::new(&schema);
    gatherer.add(&RecordBatch::new_empty(schema), [].into_iter());
    assert_eq!(gatherer.finish().columns.len(), MEASURED_COLUMNS);
}

#[test]
fn lengths_of_parts_that_are_alike_are_those_of_each() {
    let part = Statistics { row_bytes: [2, 3, 5, 5, 90, 91].into(), columns: Vec::new() };
    let merged = Statistics::merged([(10, &part), (1_000_000, &part), (3, &part)].into_iter());
    assert_eq!(merged, Some(part.clone()));
    let long = Statistics { row_bytes: [100, 101, 102, 103, 104, 105].into(), columns: Vec::new() };
    let merged = Statistics::merged([(75, &part), (25, &long)].into_iter()).expect("parts").row_bytes;
    assert_eq!((merged.min, merged.p75, merged.max), (2, 91, 105));
    let other = Statistics { columns: vec![ColumnStatistics::default()], ..part.clone() };
    assert_eq!(Statistics::merged([(1, &part), (1, &other)].into_iter()), None, "of other columns");
    assert_eq!(Statistics::merged(std::iter::empty()), None);
}

proptest! {
    #[test]
    fn numbers_are_those_of_plain_arithmetic(numbers in prop::collection::vec(-1e6..1e6f64, 1..200), cut: prop::sample::Index) {
        let spread = Spread::of(&numbers).expect("there are some");
        let count = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / count;
        let variance = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / count;
        prop_assert_eq!(spread.min, numbers.iter().copied().fold(f64::INFINITY, f64::min));
        prop_assert_eq!(spread.max, numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        prop_assert!(close(spread.mean, mean, 1e6) && close(spread.variance, variance, 1e12), "{spread:?}");

        let (left, right) = numbers.split_at(cut.index(numbers.len()));
        let of = |part: &[f64]| ColumnStatistics { count: part.len() as u64, spread: Spread::of(part) };
        let mut merged = of(left);
        merged.merge(&of(right));
        prop_assert_eq!(merged.count, numbers.len() as u64);
        let merged = merged.spread.expect("there are some");
        prop_assert_eq!((merged.min, merged.max), (spread.min, spread.max));
        prop_assert!(close(merged.mean, mean, 1e6) && close(merged.variance, variance, 1e12), "{merged:?}");
    }

    #[test]
    fn numbers_stay_finite_however_large(parts in prop::collection::vec(prop::collection::vec(
        prop_oneof![Just(f64::MAX), Just(f64::MIN), Just(0.0), any::<f64>().prop_filter("finite", |x| x.is_finite())], 1..9), 1..9))
    {
        let mut all = ColumnStatistics::default();
        for part in &parts {
            all.merge(&ColumnStatistics { count: part.len() as u64, spread: Spread::of(part) });
        }
        let spread = all.spread.expect("there are some");
        prop_assert!([spread.min, spread.max, spread.mean, spread.variance].iter().all(|x| x.is_finite()), "{spread:?}");
        prop_assert!(spread.min <= spread.mean && spread.mean <= spread.max && spread.variance >= 0.0, "{spread:?}");
    }

    #[test]
    fn lengths_are_those_at_their_places(mut lengths in prop::collection::vec(0..1000u32, 1..300)) {
        let quantiles = Quantiles::of(&mut lengths.clone()).to_array();
        lengths.sort_unstable();
        let at = |part: usize| lengths[(lengths.len() - 1) * part / 100];
        prop_assert_eq!(quantiles, [0, 25, 50, 75, 99, 100].map(at));
        prop_assert!(quantiles.is_sorted());
    }

    #[test]
    fn lengths_of_parts_lie_within_those_of_the_parts(
        parts in prop::collection::vec(prop::collection::vec(0..1000u32, 1..50), 1..6)
    ) {
        let parts: Vec<_> = parts
            .into_iter()
            .map(|mut part| (part.len() as u64, Statistics { row_bytes: Quantiles::of(&mut part), columns: vec![] }))
            .collect();
        let merged = Statistics::merged(parts.iter().map(|(rows, part)| (*rows, part))).expect("parts").row_bytes;
        let merged = merged.to_array();
        prop_assert!(merged.is_sorted(), "{merged:?}");
        for (at, found) in merged.iter().enumerate() {
            let each = || parts.iter().map(|(_, part)| part.row_bytes.to_array()[at]);
            prop_assert!(each().min() <= Some(*found) && Some(*found) <= each().max(), "{at}: {merged:?}");
        }
    }

    #[test]
    fn any_samples_have_statistics(batch in record_batch(20)) {
        let codec = crate::RowCodec::new(batch.schema()).expect("plain columns");
        let encoder = codec.encoder(&batch).expect("its own schema");
        let length = |row| {
            let mut canonical = Vec::new();
            encoder.encode(row, &mut canonical).expect("small rows");
            canonical.len()
        };
        let mut gatherer = Gatherer::new(batch.schema_ref());
        gatherer.add(&batch, (0..batch.num_rows()).map(length));
        let found = gatherer.finish();
        prop_assert_eq!(found.columns.len(), batch.num_columns());
        for (column, array) in found.columns.iter().zip(batch.columns()) {
            let present = (array.len() - array.logical_null_count()) as u64;
            prop_assert!(column.count == present || array.data_type().is_floating() && column.count < present);
        }
        let text = serde_json::to_string(&found).expect("plain data");
        let back: Statistics = serde_json::from_str(&text).expect("own JSON");
        prop_assert_eq!(back, found);
    }
}
