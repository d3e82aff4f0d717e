//! Byte-pair encoding of one word: of all neighbours, those of the lowest rank merge first, the leftmost of equals.
//!
//! Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words with Subword Units (ACL 2016).

mod heap;
mod short;
mod table;

pub(crate) use table::{MAX_ID, MAX_RANK, NONE, Pairs};

/// The rules of merging.
#[derive(Debug)]
pub(crate) struct Merges {
    /// The token of each byte.
    bytes: Box<[u32; 256]>,
    /// The ranks of two bytes, by the first and the second one.
    byte_pairs: Box<[u32]>,
    pairs: Pairs,
    /// The token that a merge of each rank makes.
    made: Vec<u32>,
}

/// Memory for the merging of one word, kept for the next one.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The tokens of the last word.
    pub(crate) ids: Vec<u32>,
    short: short::Short,
    heap: heap::Heap,
}

/// One rule: the tokens `left` and `right` become `made`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Merge {
    pub(crate) left: u32,
    pub(crate) right: u32,
    pub(crate) rank: u32,
    pub(crate) made: u32,
}

impl Merges {
    /// Ids may be up to `MAX_ID`, ranks up to `MAX_RANK`. Of two rules for one pair, the later one holds.
    pub(crate) fn new(bytes: [u32; 256], merges: &[Merge]) -> Self {
        let mut made = Vec::new();
        let mut pairs = Pairs::with_capacity(merges.len());
        for merge in merges {
            let rank = merge.rank as usize;
            if rank >= made.len() {
                made.resize(rank + 1, 0);
            }
            made[rank] = merge.made;
            pairs.insert(merge.left, merge.right, merge.rank);
        }
        let byte_pairs = bytes.iter().flat_map(|&left| bytes.iter().map(move |&right| (left, right)));
        let byte_pairs = byte_pairs.map(|(left, right)| pairs.rank(left, right)).collect();
        Self { bytes: Box::new(bytes), byte_pairs, pairs, made }
    }

    /// Puts the tokens of `word` into `scratch.ids`.
    pub(crate) fn encode(&self, word: &[u8], scratch: &mut Scratch) {
        scratch.ids.clear();
        if word.len() <= short::LONGEST {
            scratch.short.merge(self, word, &mut scratch.ids);
        } else {
            scratch.heap.merge(self, word, &mut scratch.ids);
        }
    }

    /// The token of a byte.
    #[inline(always)]
    fn byte(&self, byte: u8) -> u32 {
        self.bytes[usize::from(byte)]
    }

    /// The rank of the tokens of two bytes.
    #[inline(always)]
    fn byte_pair(&self, left: u8, right: u8) -> u32 {
        self.byte_pairs[usize::from(left) << 8 | usize::from(right)]
    }

    /// The token that a merge of `rank` makes.
    #[inline(always)]
    fn made(&self, rank: u32) -> u32 {
        self.made[rank as usize]
    }
}

#[cfg(test)]
mod tests;
