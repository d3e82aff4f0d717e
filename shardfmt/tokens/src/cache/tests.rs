//! The cache against a map that forgets nothing.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn a_key_is_the_word(text in prop::collection::vec(any::<u8>(), 1..40), start in 0usize..40, length in 1usize..=SHORT) {
        let start = start % text.len();
        let end = (start + length).min(text.len());
        let word = &text[start..end];
        let bytes = key(&text, start, end).to_le_bytes();
        prop_assert_eq!(&bytes[..word.len()], word);
        prop_assert!(bytes[word.len()..15].iter().all(|&byte| byte == 0));
        prop_assert_eq!(usize::from(bytes[15]), word.len());
    }
}

#[test]
fn a_short_word_comes_back_with_its_tokens_or_not_at_all() {
    let (mut cache, mut known) = (Cache::new(), HashMap::new());
    for number in 0..300_000u32 {
        let word = format!("w{}", number.wrapping_mul(2_654_435_761) % 200_000);
        let key = key(word.as_bytes(), 0, word.len());
        let ids = known.entry(word).or_insert(vec![number; 1 + number as usize % INLINE]);
        match cache.get(key) {
            Some(place) => assert_eq!(place.ids[..place.count as usize], ids[..]),
            None => cache.insert(key, ids),
        }
    }
    assert_eq!(cache.buckets.len(), MOST_BUCKETS);
    assert_eq!(size_of::<[Place; 2]>(), 64);
}

#[test]
fn a_long_word_comes_back_with_its_tokens_or_not_at_all() {
    let (mut words, mut hits) = (LongWords::default(), 0);
    for number in 0..200_000u32 {
        let word = format!("a word of more than fifteen bytes, number {}", number % 30_000);
        let ids = [number % 30_000; 7];
        match words.get(word.as_bytes()) {
            Some(found) => {
                assert_eq!(found, ids);
                hits += 1;
            }
            None => words.insert(word.as_bytes(), &ids),
        }
        assert!(words.get(&word.as_bytes()[1..]).is_none());
    }
    assert!(hits > 50_000, "{hits}");
}
