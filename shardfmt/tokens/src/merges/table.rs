//! A hash table from two tokens to the rank of their merge: eight bytes an entry.
//!
//! Most neighbours don't merge. A bit for each hash tells that of nine in ten of them, from memory so small that it stays
//! in the cache of a core, as the table does not.

/// The largest id of a token that merges: 20 bits, less the one that marks an empty place.
pub(crate) const MAX_ID: u32 = (1 << ID_BITS) - 2;
/// The largest rank of a merge: 24 bits, less the one that would make a number of all ones.
pub(crate) const MAX_RANK: u32 = (1 << RANK_BITS) - 2;
/// The rank of two tokens that don't merge.
pub(crate) const NONE: u32 = u32::MAX;

const ID_BITS: u32 = 20;
const RANK_BITS: u32 = 24;
const RANK: u32 = (1 << RANK_BITS) - 1;
const EMPTY: u64 = u64::MAX;

/// Open addressing with steps of one; at most half of the places are taken.
#[derive(Debug)]
pub(crate) struct Pairs {
    /// Left id, right id and rank, from the highest bit on.
    places: Vec<u64>,
    shift: u32,
    /// A bit for each pair, by the highest bits of its hash: eight times as many bits as pairs, or more.
    bits: Vec<u64>,
    bit_shift: u32,
}

impl Pairs {
    pub(crate) fn with_capacity(pairs: usize) -> Self {
        let places = (pairs * 2).next_power_of_two().max(2);
        let words = (places / 16).max(1);
        Self {
            places: vec![EMPTY; places],
            shift: 64 - places.trailing_zeros(),
            bits: vec![0; words],
            bit_shift: 58 - words.trailing_zeros(),
        }
    }

    /// The rank of `left` and `right`, or `NONE`.
    #[inline(always)]
    pub(crate) fn rank(&self, left: u32, right: u32) -> u32 {
        let key = key(left, right);
        let hash = hash(key);
        let (word, bit) = self.bit(hash);
        if self.bits[word] & bit == 0 {
            return NONE;
        }
        let mut at = self.place(hash);
        loop {
            let place = self.places[at];
            if place >> RANK_BITS == key {
                return place as u32 & RANK;
            }
            if place == EMPTY {
                return NONE;
            }
            at = (at + 1) & (self.places.len() - 1);
        }
    }

    /// Sets the rank of `left` and `right`. No more pairs than the capacity may be set.
    pub(crate) fn insert(&mut self, left: u32, right: u32, rank: u32) {
        assert!(left <= MAX_ID && right <= MAX_ID && rank <= MAX_RANK, "checked when the file was read");
        let key = key(left, right);
        let hash = hash(key);
        let (word, bit) = self.bit(hash);
        self.bits[word] |= bit;
        let mut at = self.place(hash);
        while self.places[at] != EMPTY && self.places[at] >> RANK_BITS != key {
            at = (at + 1) & (self.places.len() - 1);
        }
        self.places[at] = key << RANK_BITS | u64::from(rank);
    }

    #[inline(always)]
    fn place(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    /// The word of `bits` and the bit in it.
    #[inline(always)]
    fn bit(&self, hash: u64) -> (usize, u64) {
        let number = hash >> self.bit_shift;
        ((number >> 6) as usize, 1 << (number & 63))
    }
}

#[inline(always)]
fn hash(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[inline(always)]
fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << ID_BITS | u64::from(right)
}
