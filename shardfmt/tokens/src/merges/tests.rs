//! The two ways of merging against the definition.

use proptest::prelude::*;

use super::*;

/// Bytes are tokens 0 to 255; of the bytes `a` to `d`, some pairs merge, and pairs of the new tokens.
fn rules() -> impl Strategy<Value = Vec<Merge>> {
    let choice = (0usize..64, 0usize..64);
    prop::collection::vec(choice, 1..40).prop_map(|choices| {
        let mut tokens: Vec<u32> = (u32::from(b'a')..=u32::from(b'd')).collect();
        let mut merges = Vec::new();
        for (number, (left, right)) in (0u32..).zip(choices) {
            let (left, right) = (tokens[left % tokens.len()], tokens[right % tokens.len()]);
            merges.push(Merge { left, right, rank: number, made: 256 + number });
            tokens.push(256 + number);
        }
        merges
    })
}

fn by_definition(merges: &[Merge], word: &[u8]) -> Vec<u32> {
    let mut ids: Vec<u32> = word.iter().map(|&byte| byte.into()).collect();
    let rule =
        |left: u32, right: u32| merges.iter().rev().find(|rule| (rule.left, rule.right) == (left, right));
    loop {
        let found =
            (1..ids.len()).filter_map(|at| rule(ids[at - 1], ids[at]).map(|rule| (rule.rank, at, rule.made)));
        let Some((_, at, made)) = found.min() else { return ids };
        ids[at - 1] = made;
        ids.remove(at);
    }
}

proptest! {
    #[test]
    fn words_merge_as_defined(rules in rules(), word in prop::collection::vec(b'a'..=b'd', 1..300)) {
        let merges = Merges::new(std::array::from_fn(|byte| byte as u32), &rules);
        let expected = by_definition(&rules, &word);
        let mut scratch = Scratch::default();
        merges.encode(&word, &mut scratch);
        prop_assert_eq!(&scratch.ids, &expected);

        let mut ids = Vec::new();
        scratch.heap.merge(&merges, &word, &mut ids);
        prop_assert_eq!(&ids, &expected);
    }

    #[test]
    fn a_table_finds_each_pair_and_no_other(pairs in prop::collection::btree_map((0u32..50, 0u32..50), 0..=MAX_RANK, 0..400)) {
        let mut table = Pairs::with_capacity(pairs.len());
        for (&(left, right), &rank) in &pairs {
            table.insert(left, right, rank);
        }
        for (left, right) in (0..50).flat_map(|left| (0..50).map(move |right| (left, right))) {
            prop_assert_eq!(table.rank(left, right), pairs.get(&(left, right)).copied().unwrap_or(NONE));
        }
    }
}

#[test]
fn the_largest_ids_and_ranks_have_room() {
    let mut table = Pairs::with_capacity(2);
    table.insert(MAX_ID, MAX_ID, MAX_RANK);
    table.insert(MAX_ID, 0, 0);
    assert_eq!((table.rank(MAX_ID, MAX_ID), table.rank(MAX_ID, 0)), (MAX_RANK, 0));
    assert_eq!(table.rank(0, MAX_ID), NONE);
}

#[test]
fn a_megabyte_of_one_letter_takes_no_square_of_time() {
    let rule = |left, right, rank| Merge { left, right, rank, made: 256 + rank };
    let a = u32::from(b'a');
    let merges = Merges::new(
        std::array::from_fn(|byte| byte as u32),
        &[rule(a, a, 0), rule(256, 256, 1), rule(257, 257, 2)],
    );
    let mut scratch = Scratch::default();
    merges.encode(&vec![b'a'; 1 << 20], &mut scratch);
    assert_eq!(scratch.ids, vec![258; 1 << 17]);
}
