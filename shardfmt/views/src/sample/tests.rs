//! Laws and stories of samples.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::{DataType, Float16Type};
use proptest::prelude::*;

use super::*;

fn digest(number: u64) -> Digest {
    *blake3::hash(&number.to_le_bytes()).as_bytes()
}

fn digests(count: usize) -> Vec<Digest> {
    (0..count as u64).map(digest).collect()
}

fn times(multiplicities: &Multiplicities) -> Vec<u32> {
    multiplicities.iter().collect()
}

#[test]
fn the_sample_of_a_release_stays() {
    let rows = digests(16);
    let taken = times(&count(7, &rows, 5).unwrap());
    let weighted = times(&weighted(7, &rows, &[1; 16], 5).unwrap());
    let labels: Vec<_> = rows.iter().enumerate().map(|(row, _)| rows[usize::from(row % 5 == 0)]).collect();
    let balanced = times(&balanced(7, &rows, &labels, 20).unwrap());
    let by_kind = Sample::Balanced { by: "label".into(), total: 20 }.draw(7, &rows, &labels, &[]).unwrap();
    assert_eq!(times(&by_kind), balanced);
    assert_eq!([taken, weighted, balanced], GOLDEN);
}

const GOLDEN: [[u32; 16]; 3] = [
    [0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0],
    [0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0],
    [3, 1, 1, 1, 1, 2, 1, 1, 1, 1, 3, 1, 0, 0, 1, 2],
];

#[test]
fn samples_that_cannot_be_had_are_refused() {
    let rows = digests(3);
    let message = |error: SampleError| error.to_string();
    assert_eq!(
        message(count(1, &rows, 4).unwrap_err()),
        "4 rows are wanted of 3: take fewer, or a balanced or weighted sample to repeat rows"
    );
    assert!(
        message(fraction(1, &rows, "1.01".parse().unwrap()).unwrap_err())
            .starts_with("the fraction is 1.01: take 0 to 1")
    );
    assert!(matches!(weighted(1, &rows, &[0; 3], 1), Err(SampleError::Nothing { total: 1 })));
    assert!(matches!(weighted(1, &rows, &[1; 2], 1), Err(SampleError::Lengths { .. })));
    assert!(matches!(weighted(1, &rows, &[u64::MAX; 3], u64::MAX), Err(SampleError::TooMuch { .. })));
    assert!(matches!(weighted(1, &rows, &[1; 3], u64::MAX), Err(SampleError::TooMuch { .. })));
    assert!(matches!(balanced(1, &rows, &digests(3), u64::MAX), Err(SampleError::TooMuch { .. })));
    assert!(matches!(balanced(1, &[], &[], 1), Err(SampleError::Nothing { .. })));
    assert_eq!(balanced(1, &[], &[], 0).unwrap().rows(), 0);
}

#[test]
fn the_expectation_of_a_weighted_row_is_its_share() {
    let rows = digests(10);
    let weights: Vec<u64> = (1..=10).collect();
    let mut sums = [0u64; 10];
    for seed in 0..4000 {
        for (sum, times) in sums.iter_mut().zip(weighted(seed, &rows, &weights, 7).unwrap().iter()) {
            *sum += u64::from(times);
        }
    }
    for (index, sum) in sums.iter().enumerate() {
        let expected = 4000.0 * 7.0 * (index + 1) as f64 / 55.0;
        assert!((*sum as f64 - expected).abs() < 5.0 * expected.sqrt(), "{index}: {sum} for {expected}");
    }
}

#[test]
fn weights_of_all_numeric_types_are_read() {
    let finish = |arrays: &[ArrayRef]| {
        let mut weights = Weights::new();
        arrays.iter().try_for_each(|array| weights.push(array)).map(|()| weights.finish())
    };
    assert_eq!(
        finish(&[Arc::new(Int8Array::from(vec![1, 0])), Arc::new(Int8Array::from(vec![3]))]).unwrap(),
        [1, 0, 3]
    );
    let decimals = Decimal128Array::from(vec![150, 25]).with_precision_and_scale(5, 2).unwrap();
    assert_eq!(finish(&[Arc::new(decimals)]).unwrap(), [150, 25]);
    let one = 1u64 << 52;
    assert_eq!(
        finish(&[Arc::new(Float64Array::from(vec![1.0, 0.5, 0.0, 1e-300]))]).unwrap(),
        [one, one / 2, 0, 0]
    );
    assert_eq!(
        finish(&[Arc::new(Float64Array::from(vec![f64::MAX, f64::MAX / 4.0]))]).unwrap(),
        [2 * one - 1, one / 2]
    );
    assert_eq!(finish(&[Arc::new(Float64Array::from(vec![5e-324, 1e-323]))]).unwrap()[1], 2);
    let half = Float16Array::from_iter_values(
        [1.0f32, 2.0].map(<Float16Type as arrow::datatypes::ArrowPrimitiveType>::Native::from_f32),
    );
    assert_eq!(finish(&[Arc::new(half)]).unwrap(), [one / 2, one]);
    let message = |array: ArrayRef| finish(&[array]).unwrap_err().to_string();
    assert_eq!(
        message(Arc::new(Int32Array::from(vec![Some(1), None]))),
        "row 1 has the weight NULL: weights are numbers from 0; filter such rows first"
    );
    assert!(message(Arc::new(Int32Array::from(vec![-1]))).starts_with("row 0 has the weight below 0"));
    assert!(message(Arc::new(Float32Array::from(vec![f32::NAN]))).starts_with("row 0 has the weight NaN"));
    assert!(message(Arc::new(StringArray::from(vec!["1"]))).starts_with("the column of weights is Utf8"));
    let mixed: [ArrayRef; 2] = [Arc::new(Int32Array::from(vec![1])), Arc::new(Int64Array::from(vec![1]))];
    assert!(matches!(finish(&mixed), Err(WeightsError::Type { data_type: DataType::Int64 })));
}

proptest! {
    #[test]
    fn a_fraction_is_exact_and_does_not_depend_on_the_order_of_rows(size in 0usize..200, percent in 0u32..=100, seed: u64) {
        let rows = digests(size);
        let share: Decimal = format!("{}.{:02}", percent / 100, percent % 100).parse().unwrap();
        let taken = fraction(seed, &rows, share).unwrap();
        prop_assert_eq!((taken.rows(), taken.total()), (size as u64, share.of(size as u64)));
        let backwards: Vec<_> = rows.iter().rev().copied().collect();
        let mut reversed = times(&fraction(seed, &backwards, share).unwrap());
        reversed.reverse();
        prop_assert_eq!(times(&taken), reversed);
    }

    #[test]
    fn a_larger_count_takes_the_smaller_one_along(size in 0usize..100, a in 0u64..100, b in 0u64..100) {
        let rows = digests(size);
        let (a, b) = (a.min(b).min(size as u64), a.max(b).min(size as u64));
        let (few, many) = (times(&count(1, &rows, a).unwrap()), times(&count(1, &rows, b).unwrap()));
        prop_assert!(few.iter().zip(&many).all(|(few, many)| few <= many));
    }

    #[test]
    fn bernoulli_looks_at_each_row_alone(size in 0usize..100, cut in 0usize..100, percent in 0u32..=100) {
        let rows = digests(size);
        let share: Decimal = format!("{}.{:02}", percent / 100, percent % 100).parse().unwrap();
        let cut = cut.min(size);
        let mut pieces = times(&bernoulli(3, &rows[..cut], share).unwrap());
        pieces.extend(bernoulli(3, &rows[cut..], share).unwrap().iter());
        let whole = times(&bernoulli(3, &rows, share).unwrap());
        prop_assert_eq!(&whole, &pieces);
        prop_assert!(percent < 100 || whole.iter().all(|times| *times == 1));
    }

    #[test]
    fn a_weighted_row_is_within_one_of_its_share(weights in prop::collection::vec(0u64..1000, 1..50), total in 0u64..500, seed: u64) {
        let rows = digests(weights.len());
        let sum: u64 = weights.iter().sum();
        let taken = weighted(seed, &rows, &weights, total);
        prop_assume!(sum > 0);
        let taken = taken.unwrap();
        prop_assert_eq!(taken.total(), total);
        for (times, weight) in taken.iter().zip(&weights) {
            prop_assert!((u64::from(times) * sum).abs_diff(total * weight) < sum);
        }
    }

    #[test]
    fn a_balanced_row_is_within_one_of_its_share(labels in prop::collection::vec(0u64..5, 1..80), total in 0u64..500, seed: u64) {
        let rows = digests(labels.len());
        let classes: Vec<_> = labels.iter().map(|label| digest(900 + label)).collect();
        let taken = times(&balanced(seed, &rows, &classes, total).unwrap());
        prop_assert_eq!(taken.iter().map(|t| u64::from(*t)).sum::<u64>(), total);
        let mut sizes: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (label, times) in labels.iter().zip(&taken) {
            let entry = sizes.entry(*label).or_default();
            *entry = (entry.0 + 1, entry.1 + u64::from(*times));
        }
        let count = sizes.len() as u64;
        for (label, times) in labels.iter().zip(&taken) {
            let (size, of_class) = sizes[label];
            prop_assert!((of_class * count).abs_diff(total) < count);
            // |times - total / (classes · size)| < 1
            prop_assert!((u64::from(*times) * count * size).abs_diff(total) < count * size);
        }
        let backwards: Vec<_> = rows.iter().rev().copied().collect();
        let classes: Vec<_> = classes.iter().rev().copied().collect();
        let mut reversed = times(&balanced(seed, &backwards, &classes, total).unwrap());
        reversed.reverse();
        prop_assert_eq!(taken, reversed);
    }

    #[test]
    fn runs_give_the_numbers_back(numbers in prop::collection::vec(0u32..3, 0..60)) {
        let runs: Multiplicities = numbers.iter().copied().collect();
        prop_assert_eq!(times(&runs), numbers);
        prop_assert!(runs.runs().windows(2).all(|pair| pair[0].0 != pair[1].0));
    }
}
