//! Merging of short words: all ranks are searched for the lowest one, eight at a time, and nothing is moved.

use super::{Merges, NONE};

/// The longest word, in bytes: places take seven bits.
pub(super) const LONGEST: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 7;
const PLACES: usize = LONGEST - 1;

/// A pair that doesn't merge.
const LAST: i32 = i32::MAX;

/// A list of the tokens of a word in both directions. A token stays at the place of its first byte.
#[derive(Debug)]
pub(super) struct Short {
    ids: [u32; LONGEST],
    /// The rank of the token at a place and the next one, above the place: the lowest number is the first merge.
    order: [i32; LONGEST],
    next: [u8; LONGEST],
    previous: [u8; LONGEST],
}

impl Default for Short {
    fn default() -> Self {
        Self { ids: [0; LONGEST], order: [LAST; LONGEST], next: [0; LONGEST], previous: [0; LONGEST] }
    }
}

impl Short {
    /// Appends the tokens of `word`, which has at most [`LONGEST`] bytes, to `ids`.
    pub(super) fn merge(&mut self, merges: &Merges, word: &[u8], ids: &mut Vec<u32>) {
        let length = word.len();
        self.fill(merges, word);
        let searched = length.next_multiple_of(8).min(LONGEST);
        loop {
            let first = lowest(&self.order[..searched]);
            if first == LAST {
                break;
            }
            let place = first as usize & PLACES;
            self.ids[place] = merges.made(first as u32 >> PLACE_BITS);
            let right = usize::from(self.next[place]);
            self.order[right & PLACES] = LAST;
            let after = usize::from(self.next[right & PLACES]);
            self.next[place] = after as u8;
            if after < length {
                self.previous[after & PLACES] = place as u8;
                self.rank(merges, place, after);
            } else {
                self.order[place] = LAST;
            }
            if place > 0 {
                self.rank(merges, usize::from(self.previous[place]), place);
            }
        }
        let mut at = 0;
        while at < length {
            ids.push(self.ids[at & PLACES]);
            at = usize::from(self.next[at & PLACES]);
        }
    }

    /// Sets the rank of two neighbours.
    #[inline(always)]
    fn rank(&mut self, merges: &Merges, left: usize, right: usize) {
        let rank = merges.pairs.rank(self.ids[left & PLACES], self.ids[right & PLACES]);
        self.order[left & PLACES] = order(rank, left);
    }

    fn fill(&mut self, merges: &Merges, word: &[u8]) {
        let length = word.len();
        for (at, &byte) in word.iter().enumerate().take(LONGEST) {
            self.ids[at] = merges.byte(byte);
            self.next[at] = (at + 1) as u8;
            self.previous[at] = at.wrapping_sub(1) as u8;
            let rank = word.get(at + 1).map_or(NONE, |&next| merges.byte_pair(byte, next));
            self.order[at] = order(rank, at);
        }
        let end = length.next_multiple_of(8).min(LONGEST);
        self.order[length.min(end)..end].fill(LAST);
    }
}

/// A rank, of at most 24 bits, above a place.
#[inline(always)]
fn order(rank: u32, place: usize) -> i32 {
    if rank == NONE { LAST } else { (rank << PLACE_BITS | place as u32) as i32 }
}

/// The lowest of numbers, of which there are a multiple of eight.
#[inline(always)]
fn lowest(order: &[i32]) -> i32 {
    let mut lowest = [LAST; 8];
    for eight in order.as_chunks::<8>().0 {
        for (low, &each) in lowest.iter_mut().zip(eight) {
            *low = each.min(*low);
        }
    }
    lowest.into_iter().fold(LAST, i32::min)
}
