//! The sequences with room, found by their room: the least that suffices, and of these the first opened.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// The longest sequence with a bucket for each room: 24 bytes per token of its length.
const MOST_BUCKETS: usize = 1 << 20;

/// Sequences with room.
#[derive(Clone, Debug)]
pub(crate) enum Spaces {
    /// A heap per room, and a set of those that are not empty.
    Buckets {
        /// At its room, the sequences.
        heaps: Vec<BinaryHeap<Reverse<u32>>>,
        /// The rooms with sequences.
        used: Bits,
    },
    /// Room and sequence, for very long sequences.
    Tree(BTreeSet<(u32, u32)>),
}

impl Spaces {
    /// For rooms up to `length`; no sequence yet.
    pub(crate) fn new(length: u32) -> Self {
        let rooms = length as usize + 1;
        if rooms > MOST_BUCKETS {
            return Self::Tree(BTreeSet::new());
        }
        Self::Buckets { heaps: vec![BinaryHeap::new(); rooms], used: Bits::new(rooms) }
    }

    /// Removes the sequence with the least room of at least `needed`; its room and its number.
    pub(crate) fn take(&mut self, needed: u32) -> Option<(u32, u32)> {
        match self {
            Self::Buckets { heaps, used } => {
                let room = used.next(needed as usize)?;
                let Reverse(sequence) = heaps[room].pop()?;
                if heaps[room].is_empty() {
                    used.remove(room);
                }
                Some((room as u32, sequence))
            }
            Self::Tree(tree) => {
                let found = *tree.range((needed, 0)..).next()?;
                tree.remove(&found);
                Some(found)
            }
        }
    }

    /// Adds a sequence.
    pub(crate) fn put(&mut self, room: u32, sequence: u32) {
        match self {
            Self::Buckets { heaps, used } => {
                heaps[room as usize].push(Reverse(sequence));
                used.insert(room as usize);
            }
            Self::Tree(tree) => {
                tree.insert((room, sequence));
            }
        }
    }

    /// Removes all sequences, whose rooms these are.
    pub(crate) fn clear(&mut self, rooms: &[u32]) {
        match self {
            Self::Buckets { heaps, used } => {
                for &room in rooms {
                    heaps[room as usize].clear();
                    used.remove(room as usize);
                }
            }
            Self::Tree(tree) => tree.clear(),
        }
    }
}

/// A set of small numbers that finds the next member in a step per factor of 64.
#[derive(Clone, Debug)]
pub(crate) struct Bits {
    /// A bit per number; then a bit per word of the level before, up to a level of one word.
    levels: Vec<Vec<u64>>,
}

impl Bits {
    fn new(numbers: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = numbers.div_ceil(64);
        levels.push(vec![0; words]);
        while words > 1 {
            words = words.div_ceil(64);
            levels.push(vec![0; words]);
        }
        Self { levels }
    }

    fn insert(&mut self, mut number: usize) {
        for level in &mut self.levels {
            level[number / 64] |= 1 << (number % 64);
            number /= 64;
        }
    }

    fn remove(&mut self, mut number: usize) {
        for level in &mut self.levels {
            level[number / 64] &= !(1 << (number % 64));
            if level[number / 64] != 0 {
                return;
            }
            number /= 64;
        }
    }

    /// The least member of at least `from`.
    fn next(&self, from: usize) -> Option<usize> {
        let mut from = from;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level.get(from / 64)? & (u64::MAX << (from % 64));
            if word != 0 {
                let found = from / 64 * 64 + word.trailing_zeros() as usize;
                return Some(self.first_below(height, found));
            }
            from = from / 64 + 1;
        }
        None
    }

    /// The least member below a bit of a level.
    fn first_below(&self, height: usize, bit: usize) -> usize {
        self.levels[..height]
            .iter()
            .rev()
            .fold(bit, |bit, level| bit * 64 + level[bit].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests;
