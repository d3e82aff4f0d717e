//! Laws and stories of duplicates. `tests/reference/views.py` compares the quality with datasketch.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::minhash::equal_values;
use super::*;
use crate::key::Digest;

fn hasher(ngram: u16, unit: Unit) -> MinHasher {
    MinHasher::new(MinHash { ngram, unit, ..MinHash::default() }).unwrap()
}

fn report(hasher: &MinHasher, texts: &[&str]) -> Report {
    let mut clusters = Clusters::new(hasher);
    for (row, text) in (0..).zip(texts) {
        clusters.insert(row, &hasher.signature(text)).unwrap();
    }
    clusters.finish(texts.len() as u64).unwrap()
}

fn kept(report: &Report) -> Vec<usize> {
    report.kept.set_indices().collect()
}

/// Words from a vocabulary, by number.
fn words(numbers: &[u32]) -> String {
    numbers.iter().map(|number| format!("w{number}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_first_of_equal_rows_stays() {
    let digest = |number: u8| -> Digest { [number; 32] };
    let mut exact = Exact::new();
    let seen: Vec<_> = [1, 2, 1, 3, 2, 1].into_iter().map(|number| exact.insert(&digest(number))).collect();
    assert_eq!(seen, [None, None, Some(0), None, Some(1), Some(0)]);
    let report = exact.finish();
    assert_eq!(kept(&report), [0, 1, 3]);
    assert_eq!(
        report.duplicates.iter().map(|d| (d.removed, d.kept)).collect::<Vec<_>>(),
        [(2, 0), (4, 1), (5, 0)]
    );
}

#[test]
fn spelling_of_spaces_case_and_accents_does_not_count() {
    for unit in [Unit::Word, Unit::Character] {
        let hasher = hasher(3, unit);
        let composed = hasher.signature("Caf\u{e9} au  lait, s'il vous pla\u{ee}t");
        let decomposed = hasher.signature("\tcafe\u{301} AU lait, s'il vous plai\u{302}t\n");
        assert_eq!(composed, decomposed);
    }
    let words = hasher(3, Unit::Word);
    assert_eq!(words.signature("a-b, c! d"), words.signature("A b (c) d."));
}

#[test]
fn texts_without_words_are_like_no_other() {
    let hasher = hasher(5, Unit::Word);
    let report = report(&hasher, &["", "...", "", "one", "One!", "two", "one two three four five"]);
    assert_eq!(kept(&report), [0, 1, 2, 3, 5, 6]);
    assert!(hasher.signature("").is_empty());
    assert_eq!(hasher.signature("").similarity(&hasher.signature("")), 0.0);
}

#[test]
fn a_near_duplicate_goes_with_its_similarity() {
    let base: Vec<u32> = (0..200).collect();
    let mut edited = base.clone();
    edited[100] = 999;
    let other: Vec<u32> = (300..500).collect();
    let texts = [words(&other), words(&base), words(&edited), words(&other)];
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let report = report(&hasher(5, Unit::Word), &texts);
    assert_eq!(kept(&report), [0, 1]);
    let pairs: Vec<_> = report.duplicates.iter().map(|d| (d.removed, d.kept)).collect();
    assert_eq!(pairs, [(2, 1), (3, 0)]);
    // 196 n-grams each, of which 191 are in both: 191 / 201.
    assert!((report.duplicates[0].similarity - 191.0 / 201.0).abs() < 0.05);
    assert_eq!(report.duplicates[1].similarity, 1.0);
}

#[test]
fn many_equal_rows_take_linear_time() {
    let texts = vec!["the same short text again and again"; 20_000];
    let report = report(&hasher(5, Unit::Word), &texts);
    assert_eq!(kept(&report), [0]);
    assert!(report.comparisons < 20_000, "{}", report.comparisons);
}

#[test]
fn rows_out_of_order_and_other_lengths_are_refused() {
    let hasher = hasher(5, Unit::Word);
    let signature = hasher.signature("a b c d e f");
    let mut clusters = Clusters::new(&hasher);
    clusters.insert(3, &signature).unwrap();
    assert_eq!(clusters.insert(3, &signature), Err(DedupError::Order { row: 3, after: 3 }));
    let small = MinHasher::new(MinHash { num_perm: 16, ..MinHash::default() }).unwrap();
    let short = small.signature("a b c d e f");
    assert_eq!(clusters.insert(4, &short), Err(DedupError::Signature { found: 16, expected: 256 }));
    assert_eq!(clusters.finish(3), Err(DedupError::Rows { row: 3, rows: 3 }));
    for (parameters, message) in [
        (MinHash { num_perm: 0, ..MinHash::default() }, "num_perm is 0: take 1 to 1024, usually 128 or 256"),
        (MinHash { ngram: 0, ..MinHash::default() }, "ngram is 0: take 1 to 256, usually 5"),
        (
            MinHash { threshold: "1.1".parse().unwrap(), ..MinHash::default() },
            "threshold is 1.1: take more than 0 and at most 1, usually 0.7",
        ),
    ] {
        assert_eq!(MinHasher::new(parameters).map(|_| ()).unwrap_err().to_string(), message);
    }
}

#[test]
fn bands_suit_the_threshold() {
    for (threshold, num_perm) in
        [("0.5", 128), ("0.7", 128), ("0.7", 256), ("0.8", 256), ("0.9", 256), ("1", 256), ("0.7", 1)]
    {
        let threshold: crate::decimal::Decimal = threshold.parse().unwrap();
        let banding = Banding::for_threshold(threshold, num_perm);
        assert!(
            banding.bands * banding.rows <= usize::from(num_perm) && banding.bands > 0 && banding.rows > 0
        );
        if num_perm >= 128 {
            assert!(banding.chance(threshold.to_f64() + 0.05) > 0.9, "{banding:?}");
            assert!(banding.chance(threshold.to_f64() - 0.3) < 0.4, "{banding:?}");
        }
    }
}

#[test]
fn signatures_of_a_release_stay() {
    let signature =
        hasher(5, Unit::Word).signature("The quick brown fox jumps over the lazy dog, and then rests.");
    let characters = hasher(5, Unit::Character).signature("Straße");
    assert_eq!((&signature.values()[..8], &characters.values()[..4]), (&GOLDEN[..], &GOLDEN_CHARACTERS[..]));
}

const GOLDEN: [u16; 8] = [26813, 14400, 40868, 54579, 19505, 26813, 44286, 43611];
const GOLDEN_CHARACTERS: [u16; 4] = [25412, 14027, 14027, 14027];

fn jaccard(a: &[u32], b: &[u32], n: usize) -> f64 {
    let grams = |words: &[u32]| -> BTreeSet<Vec<u32>> {
        words.windows(n.min(words.len())).map(<[u32]>::to_vec).collect()
    };
    let (a, b) = (grams(a), grams(b));
    a.intersection(&b).count() as f64 / a.union(&b).count() as f64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_estimate_is_near_the_jaccard_index(size in 8usize..400, edits in prop::collection::vec((0usize..400, 1000u32..2000), 0..12)) {
        let base: Vec<u32> = (0..size as u32).collect();
        let mut edited = base.clone();
        for (place, word) in edits {
            edited[place % size] = word;
        }
        let hasher = MinHasher::new(MinHash { num_perm: 1024, ngram: 3, ..MinHash::default() }).unwrap();
        let estimate = hasher.signature(&words(&base)).similarity(&hasher.signature(&words(&edited)));
        // Six standard deviations, those of classic MinHash over the n-grams that there are.
        let exact = jaccard(&base, &edited, 3);
        let bound = 6.0 * (exact * (1.0 - exact) / 1024.0f64).sqrt() + 6.0 * (0.25 / size as f64).sqrt() * (1.0 - exact) + 0.01;
        prop_assert!((estimate - exact).abs() <= bound, "{estimate} for {exact}");
    }

    #[test]
    fn ascii_and_other_texts_have_one_meaning(text in "[a-zA-Z0-9_ .,\\-\\n]{0,80}") {
        // The added word makes the text take the other way; it is its own last word.
        for unit in [Unit::Word, Unit::Character] {
            let grams = |text: &str| {
                let mut all = Vec::new();
                super::shingles::each(text, unit, 1, |gram| all.push(gram));
                all
            };
            let plain = grams(&format!("{text} x"));
            let mut other = grams(&format!("{text} x \u{e9}"));
            other.truncate(plain.len());
            prop_assert_eq!(plain, other);
        }
    }

    #[test]
    fn each_removed_row_has_an_earlier_one_that_stays(texts in prop::collection::vec(prop::collection::vec(0u32..4, 0..8), 0..60), threshold in 1u32..=10) {
        let parameters = MinHash { num_perm: 64, ngram: 2, threshold: format!("{}.{}", threshold / 10, threshold % 10).parse().unwrap(), ..MinHash::default() };
        let hasher = MinHasher::new(parameters).unwrap();
        let texts: Vec<String> = texts.iter().map(|numbers| words(numbers)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let report = report(&hasher, &texts);
        prop_assert_eq!(report.kept.len(), texts.len());
        prop_assert_eq!(report.kept.count_set_bits() + report.duplicates.len(), texts.len());
        for duplicate in &report.duplicates {
            prop_assert!(duplicate.kept < duplicate.removed);
            prop_assert!(report.kept.value(duplicate.kept as usize) && !report.kept.value(duplicate.removed as usize));
        }
        // Equal texts never both stay.
        let mut first = BTreeMap::new();
        for (row, text) in texts.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            if *first.entry(*text).or_insert(row) != row {
                prop_assert!(!report.kept.value(row));
            }
        }
        prop_assert_eq!(report, super::tests::report(&hasher, &texts));
    }

    #[test]
    fn exact_duplicates_are_those_that_a_map_finds(numbers in prop::collection::vec(0u8..10, 0..100)) {
        let mut exact = Exact::new();
        let mut first = BTreeMap::new();
        for (row, number) in (0u64..).zip(&numbers) {
            let before = exact.insert(&[*number; 32]);
            let kept = *first.entry(*number).or_insert(row);
            prop_assert_eq!(before, (kept != row).then_some(kept));
        }
        prop_assert_eq!(exact.finish().kept.count_set_bits(), first.len());
    }

    #[test]
    fn equal_values_are_counted_by_place(a in prop::collection::vec(0u16..3, 0..300)) {
        let b: Vec<u16> = a.iter().rev().copied().collect();
        prop_assert_eq!(equal_values(&a, &b), a.iter().zip(&b).filter(|(a, b)| a == b).count());
    }
}
