//! In which order rows come to lie in shards. Pure: row numbers and settings in, sort keys out.
//!
//! Every order is a sort: a row gets a key when it is read, or when all are, and rows lie by key, those of equal keys as
//! they were read. So rows can be sorted outside of memory, by parts of the range of keys, and the order does not depend on how.

use crate::plan::Permutation;

/// Words of hash that one evaluation gives.
const WORDS: u64 = 8;

/// The keys of [`Mix::Random`](super::Mix::Random): 64 bits for each row, from a keyed hash of its number. Sorted by
/// them, every order of the rows is equally likely, as far as anyone can tell.
pub(super) struct RandomKeys {
    key: [u8; 32],
    block: u64,
    words: [u64; WORDS as usize],
}

impl RandomKeys {
    pub(super) fn new(seed: u64) -> RandomKeys {
        let key = blake3::derive_key("shardfmt 2026 mix v2", &seed.to_le_bytes());
        let mut keys = RandomKeys { key, block: 0, words: [0; WORDS as usize] };
        keys.evaluate(0);
        keys
    }

    /// The key of a row. Rows asked for in order cost an eighth of a hash each.
    pub(super) fn of(&mut self, row: u64) -> u64 {
        if row / WORDS != self.block {
            self.evaluate(row / WORDS);
        }
        self.words[(row % WORDS) as usize]
    }

    fn evaluate(&mut self, block: u64) {
        let mut bytes = [0; 8 * WORDS as usize];
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&block.to_le_bytes()).finalize_xof().fill(&mut bytes);
        for (word, bytes) in self.words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("chunks of eight"));
        }
        self.block = block;
    }
}

/// Deals rows to shards so that each class is spread as evenly as it can be.
///
/// All rows are laid in a line, class by class, each class shuffled by a permutation of its own; then they are dealt to
/// the shards in turn, like cards. A class is a stretch of the line, so two shards differ by at most one in it, and by at
/// most one in all.
pub(super) struct Deal {
    shards: u64,
    /// For each class, where its stretch begins, its permutation, and how many of its rows were dealt.
    classes: Vec<(u64, Permutation, u64)>,
    within: RandomKeys,
}

impl Deal {
    /// A deal of classes of the given sizes to `shards` shards.
    pub(super) fn new(seed: u64, class_sizes: &[u64], shards: u64) -> Deal {
        let mut start = 0;
        let classes = class_sizes.iter().enumerate().map(|(class, &size)| {
            let mut material = seed.to_le_bytes().to_vec();
            material.extend((class as u64).to_le_bytes());
            let key = blake3::derive_key("shardfmt 2026 stratified mix v1", &material);
            let dealt = (start, Permutation::new(&key, size), 0);
            start += size;
            dealt
        });
        Deal { shards, classes: classes.collect(), within: RandomKeys::new(seed) }
    }

    /// The shard of the next row of a class, which is number `row` of all, and its key among those of that shard.
    pub(super) fn next(&mut self, class: usize, row: u64) -> (u64, u64) {
        let (start, permutation, dealt) = &mut self.classes[class];
        let place = *start + permutation.apply(*dealt);
        *dealt += 1;
        (place % self.shards, self.within.of(row))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_do_not_depend_on_the_order_of_questions(seed: u64, rows in prop::collection::vec(0..1000u64, 1..50)) {
            let mut keys = RandomKeys::new(seed);
            for row in rows {
                prop_assert_eq!(keys.of(row), RandomKeys::new(seed).of(row));
            }
        }

        #[test]
        fn shards_differ_by_one_in_each_class_and_in_all(seed: u64, sizes in prop::collection::vec(0..60u64, 1..8), shards in 1..12u64) {
            let mut deal = Deal::new(seed, &sizes, shards);
            let mut counts = vec![vec![0u64; sizes.len()]; shards as usize];
            let mut row = 0;
            for (class, &size) in sizes.iter().enumerate() {
                for _ in 0..size {
                    counts[deal.next(class, row).0 as usize][class] += 1;
                    row += 1;
                }
            }
            let differ = |of: &dyn Fn(&Vec<u64>) -> u64| {
                counts.iter().map(of).max().unwrap() - counts.iter().map(of).min().unwrap()
            };
            for class in 0..sizes.len() {
                prop_assert!(differ(&|shard| shard[class]) <= 1);
            }
            prop_assert!(differ(&|shard| shard.iter().sum()) <= 1);
        }
    }
}
