//! The order of rows in shards. Pure: row numbers and settings in, sort keys out.
//!
//! Every order is a sort: a row gets a key when it is read, or when all are, and rows lie by key, those of equal keys as
//! they were read. So rows can be sorted outside of memory, by parts of the range of keys, and the order does not depend on how.

use std::collections::HashMap;

use shardd_plan::Permutation;
use shardfmt::row::RowDigest;

/// Words of hash that one evaluation gives.
const WORDS: u64 = 8;

/// The keys of [`Mix::Random`](super::Mix::Random): 64 bits for each row, from a keyed hash of its number. Sorted by
/// them, every order of the rows is equally likely, by every test.
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

/// The keys of [`Mix::Hash`](super::Mix::Hash): 128 bits for each row, from a keyed hash of its digest. Rows of equal keys are
/// equal, so that any order of them is the same.
#[derive(Clone, Copy)]
pub(crate) struct HashKeys {
    key: [u8; 32],
}

impl HashKeys {
    pub(crate) fn new(seed: u64) -> HashKeys {
        HashKeys { key: blake3::derive_key("shardfmt 2026 hash mix v1", &seed.to_le_bytes()) }
    }

    /// The key of a row, the words that count most first.
    pub(crate) fn of(&self, row: RowDigest) -> (u64, u64) {
        let hash = blake3::keyed_hash(&self.key, &row.0);
        let word = |at: usize| {
            let bytes = hash.as_bytes()[at..at + 8].try_into().expect("8 of 32 bytes");
            u64::from_le_bytes(bytes)
        };
        (word(0), word(8))
    }
}

/// The classes of a stratified mix, numbered in order of appearance.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Classes {
    index: HashMap<Option<String>, u32>,
    all: Vec<Class>,
}

#[derive(Debug, PartialEq, Eq)]
struct Class {
    name: Option<String>,
    rows: u64,
    /// How many of them are no news.
    known: u64,
}

impl Classes {
    /// Takes in some rows by class, and gives the number of each class.
    pub(super) fn add(&mut self, classes: &[(Option<String>, u64)]) -> Vec<u32> {
        let mut numbers = Vec::with_capacity(classes.len());
        for (name, rows) in classes {
            let next = u32::try_from(self.all.len()).expect("callers stop long before");
            let number = *self.index.entry(name.clone()).or_insert(next);
            if number == next {
                self.all.push(Class { name: name.clone(), rows: 0, known: 0 });
            }
            self.all[number as usize].rows += rows;
            numbers.push(number);
        }
        numbers
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// How many rows each has.
    pub(super) fn sizes(&self) -> Vec<u64> {
        self.all.iter().map(|class| class.rows).collect()
    }

    /// The rows that came since this was asked before: what others have to add to know the same.
    pub(super) fn news(&mut self) -> Vec<(Option<String>, u64)> {
        let mut news = Vec::new();
        for class in self.all.iter_mut().filter(|class| class.rows > class.known) {
            news.push((class.name.clone(), class.rows - class.known));
            class.known = class.rows;
        }
        news
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
        fn whoever_adds_the_news_knows_the_same_classes(batches in prop::collection::vec(prop::collection::vec((prop::option::of("[a-c]"), 1..9u64), 0..9), 0..9)) {
            let (mut told, mut teller) = (Classes::default(), Classes::default());
            for batch in batches {
                teller.add(&batch);
                told.add(&teller.news());
                told.news();
                prop_assert_eq!(&told, &teller);
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
