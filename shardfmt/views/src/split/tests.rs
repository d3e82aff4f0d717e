//! Laws and stories of splits.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn digest(number: u64) -> Digest {
    *blake3::hash(&number.to_le_bytes()).as_bytes()
}

fn split(parts: &str) -> Split {
    Split { parts: Parts::parse(parts).unwrap(), by: Key::Row, seed: 7 }
}

fn parts() -> impl Strategy<Value = Parts> {
    prop::collection::vec((1u64..2000, 0usize..4), 1..6).prop_map(|weights| {
        let text: Vec<_> = weights
            .iter()
            .enumerate()
            .map(|(index, (weight, scale))| {
                let digits = format!("{weight:05}");
                let (whole, fraction) = digits.split_at(5 - scale);
                format!("p{index}={whole}.{fraction}0")
            })
            .collect();
        Parts::parse(&text.join(",")).unwrap()
    })
}

#[test]
fn the_first_rows_of_seed_7_never_change_their_parts() {
    let keys: Vec<_> = (0..24).map(digest).collect();
    let assigned = split("train=0.5,val=0.25,test=0.25").assign(&keys);
    assert_eq!(assigned, GOLDEN, "a released split must stay");
}

const GOLDEN: [u32; 24] = [2, 0, 0, 1, 0, 0, 1, 2, 2, 0, 2, 0, 1, 2, 1, 1, 1, 0, 2, 0, 1, 2, 0, 0];

#[test]
fn proportions_hold_for_many_keys() {
    let keys: Vec<_> = (0..100_000).map(digest).collect();
    let assigned = split("train=0.9,test=0.1").assign(&keys);
    let test = assigned.iter().filter(|part| **part == 1).count();
    assert!((9_700..10_300).contains(&test), "{test}");
}

#[test]
fn parts_that_make_no_split_are_refused() {
    for (text, message) in [
        ("train", "\"train\" is no part: write name=weight, as in train=0.9,test=0.1"),
        ("a=1,a=2", "two parts are named a: join them, or rename one"),
        ("a=0", "no part gets a row: give at least one part a weight above 0"),
        ("a b=1", "\"a b\" is no name of a part: use letters, digits, - _ and . without spaces"),
        ("a=x", "the weight of part a cannot be read"),
        (
            "a=999999999999999999,b=0.000000000000000001",
            "the weights add up to more than 10^19 steps of the finest one: use fewer digits",
        ),
    ] {
        assert_eq!(Parts::parse(text).unwrap_err().to_string(), message);
    }
    let missing = split("train=1,test=1").parts.index("tset").unwrap_err();
    assert_eq!(missing.to_string(), "there is no part tset: did you mean test?");
}

#[test]
fn a_tenth_moves_when_a_tenth_is_carved() {
    let before = split("train=0.9,test=0.1");
    let after = before.carve("train", "val", "0.1".parse().unwrap()).unwrap();
    assert_eq!(after.parts.to_string(), "train=0.8,val=0.1,test=0.1");
    let share = before.moved(&after) as f64 / CIRCLE as f64;
    assert!((share - 0.1).abs() < 1e-15, "{share}");
    assert!(before.carve("test", "val", "0.2".parse().unwrap()).is_err());
    assert_eq!(before.moved(&before), 0);
    assert_eq!(before.moved(&Split { seed: 8, ..before.clone() }), CIRCLE);
}

proptest! {
    #[test]
    fn a_part_follows_from_its_key_alone(parts in parts(), keys in prop::collection::vec(0u64..50, 1..100), cut in 0usize..100) {
        let split = Split { parts, by: Key::Row, seed: 3 };
        let digests: Vec<_> = keys.iter().map(|key| digest(*key)).collect();
        let all = split.assign(&digests);
        let cut = cut.min(keys.len());
        let mut pieces = split.assign(&digests[..cut]);
        pieces.extend(split.assign(&digests[cut..]));
        prop_assert_eq!(&all, &pieces);
        let mut seen = BTreeMap::new();
        for (key, part) in keys.iter().zip(&all) {
            prop_assert_eq!(*seen.entry(key).or_insert(*part), *part);
            prop_assert!((*part as usize) < split.parts.len());
        }
    }

    #[test]
    fn intervals_are_as_long_as_their_weights(parts in parts()) {
        let weights = whole_weights(&parts.parts).unwrap();
        let total: u128 = weights.iter().map(|w| u128::from(*w)).sum();
        let mut start = 0;
        for (end, weight) in parts.ends.iter().zip(&weights) {
            let length = end - start;
            let exact = u128::from(*weight) * CIRCLE / total;
            prop_assert!(length.abs_diff(exact) <= 1);
            start = *end;
        }
        prop_assert_eq!(start, CIRCLE);
        prop_assert_eq!(Parts::parse(&parts.to_string()).unwrap(), parts);
    }

    #[test]
    fn exact_counts_are_within_one_row_for_each_label(
        parts in parts(),
        labels in prop::collection::vec(0u64..4, 0..200),
    ) {
        let split = Split { parts, by: Key::Row, seed: 5 };
        let rows: Vec<_> = (0..labels.len() as u64).map(digest).collect();
        let digests: Vec<_> = labels.iter().map(|label| digest(1000 + label)).collect();
        let assigned = split.assign_exact(&digests, &rows).unwrap();
        let weights = whole_weights(&split.parts.parts).unwrap();
        let total: u64 = weights.iter().sum();
        for label in 0..4 {
            let size = labels.iter().filter(|l| **l == label).count() as u64;
            for (part, weight) in weights.iter().enumerate() {
                let count = (0..rows.len()).filter(|&row| labels[row] == label && assigned[row] as usize == part).count() as u64;
                prop_assert!((count * total).abs_diff(size * weight) < total);
            }
        }
        // Rows in another order get the same parts.
        let backwards: Vec<_> = rows.iter().rev().copied().collect();
        let labels_backwards: Vec<_> = digests.iter().rev().copied().collect();
        let mut reversed = split.assign_exact(&labels_backwards, &backwards).unwrap();
        reversed.reverse();
        prop_assert_eq!(assigned, reversed);
    }

    #[test]
    fn carving_moves_only_the_new_part(parts in parts(), keys in prop::collection::vec(any::<u64>(), 1..100)) {
        let split = Split { parts, by: Key::Row, seed: 3 };
        let (from, weight) = split.parts.iter().map(|(name, weight)| (name.to_string(), weight)).next().unwrap();
        let carved = split.carve(&from, "new", weight).unwrap();
        let digests: Vec<_> = keys.iter().map(|key| digest(*key)).collect();
        for (before, after) in split.assign(&digests).into_iter().zip(carved.assign(&digests)) {
            let name = |split: &Split, part: u32| split.parts.iter().nth(part as usize).unwrap().0.to_string();
            let (before, after) = (name(&split, before), name(&carved, after));
            prop_assert!(after == before || (after == "new" && before == from));
        }
    }
}
