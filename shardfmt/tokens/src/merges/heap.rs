//! Merging of long words: a heap has all neighbours that merge, so that n bytes take n log n steps.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Merges, NONE};

/// No neighbour.
const END: u32 = u32::MAX;

/// The heap and a list of the tokens in both directions. About 24 bytes for each byte of the word.
#[derive(Debug, Default)]
pub(super) struct Heap {
    /// Rank, and place of the left token: ordered as the merges are.
    queue: BinaryHeap<Reverse<(u32, u32)>>,
    /// The rank of each token and the next one.
    ranks: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
}

impl Heap {
    /// Puts the tokens of `word`, which is not empty, into `ids`, which is.
    pub(super) fn merge(&mut self, merges: &Merges, word: &[u8], ids: &mut Vec<u32>) {
        ids.extend(word.iter().map(|&byte| merges.byte(byte)));
        self.fill(merges, word);
        while let Some(Reverse((rank, at))) = self.queue.pop() {
            let place = at as usize;
            // A token beside the place merged in the meantime: the heap has the new rank, if there is one.
            if self.ranks[place] != rank {
                continue;
            }
            let right = self.next[place] as usize;
            ids[place] = merges.made(rank);
            self.ranks[right] = NONE;
            let after = self.next[right];
            self.next[place] = after;
            if after == END {
                self.ranks[place] = NONE;
            } else {
                self.previous[after as usize] = at;
                self.rank(merges, ids, at, after);
            }
            let before = self.previous[place];
            if before != END {
                self.rank(merges, ids, before, at);
            }
        }
        self.collect(ids);
    }

    /// Sets the rank of two neighbours.
    fn rank(&mut self, merges: &Merges, ids: &[u32], left: u32, right: u32) {
        let rank = merges.pairs.rank(ids[left as usize], ids[right as usize]);
        self.ranks[left as usize] = rank;
        if rank != NONE {
            self.queue.push(Reverse((rank, left)));
        }
    }

    fn fill(&mut self, merges: &Merges, word: &[u8]) {
        let length = word.len() as u32;
        self.ranks.clear();
        self.ranks.extend(word.windows(2).map(|pair| merges.byte_pair(pair[0], pair[1])));
        self.ranks.push(NONE);
        self.next.clear();
        self.next.extend(1..length);
        self.next.push(END);
        self.previous.clear();
        self.previous.push(END);
        self.previous.extend(0..length - 1);
        let mut queue = std::mem::take(&mut self.queue).into_vec();
        queue.clear();
        let merging = (0u32..).zip(&self.ranks).filter(|&(_, &rank)| rank != NONE);
        queue.extend(merging.map(|(at, &rank)| Reverse((rank, at))));
        self.queue = BinaryHeap::from(queue);
    }

    /// Leaves the tokens of the list in `ids`.
    fn collect(&self, ids: &mut Vec<u32>) {
        let (mut at, mut count) = (0, 0);
        while at != END {
            ids[count] = ids[at as usize];
            count += 1;
            at = self.next[at as usize];
        }
        ids.truncate(count);
    }
}
