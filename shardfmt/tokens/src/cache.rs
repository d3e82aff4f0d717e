//! The tokens of words seen before. It changes how long an answer takes, and never the answer.

mod long;

use long::LongWords;
pub(crate) use long::hash_bytes;

/// The longest word, in bytes, of which the key fits in a place of the table.
pub(crate) const SHORT: usize = 15;
/// The longest word, in bytes, that is kept at all.
pub(crate) const LONGEST: usize = 256;
/// The most tokens that a place of the table has room for.
pub(crate) const INLINE: usize = 3;

/// Tables start with this many buckets of two words, and double while they fill.
const FIRST_BUCKETS: usize = 1 << 8;
/// 4 MiB of buckets: about as much as a core's caches hold.
const MOST_BUCKETS: usize = 1 << 16;

/// The bytes of a word of up to [`SHORT`] bytes, with the length in the highest byte.
pub(crate) type Key = u128;

/// A word of up to [`SHORT`] bytes, and its one to [`INLINE`] tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    key: Key,
    pub(crate) ids: [u32; INLINE],
    /// How many of `ids` count. No word has 0 tokens.
    pub(crate) count: u32,
}

/// A cache of the words of one encoder. At most 4 MiB for short words and 10 MiB for others.
#[derive(Debug)]
pub(crate) struct Cache {
    /// In each bucket the place that was used last is the first.
    buckets: Vec<[Place; 2]>,
    inserted: usize,
    /// Words that are too long for a place, or have too many tokens.
    pub(crate) long: LongWords,
}

impl Cache {
    pub(crate) fn new() -> Self {
        let buckets = vec![[Place::default(); 2]; FIRST_BUCKETS];
        Self { buckets, inserted: 0, long: LongWords::default() }
    }

    /// The tokens of a short word, if they are here.
    #[inline(always)]
    pub(crate) fn get(&mut self, key: Key) -> Option<&Place> {
        let at = self.bucket(key);
        let bucket = &mut self.buckets[at];
        if bucket[0].key == key {
            return Some(&bucket[0]);
        }
        if bucket[1].key == key {
            bucket.swap(0, 1);
            return Some(&bucket[0]);
        }
        None
    }

    /// Keeps the tokens of a short word in the place of the one of its bucket that was used longest ago.
    pub(crate) fn insert(&mut self, key: Key, ids: &[u32]) {
        debug_assert!(!ids.is_empty() && ids.len() <= INLINE);
        self.inserted += 1;
        if self.inserted > self.buckets.len() && self.buckets.len() < MOST_BUCKETS {
            self.grow();
        }
        let mut place = Place { key, ids: [0; INLINE], count: ids.len() as u32 };
        place.ids[..ids.len()].copy_from_slice(ids);
        self.put(place);
    }

    fn put(&mut self, place: Place) {
        let at = self.bucket(place.key);
        let bucket = &mut self.buckets[at];
        let target = usize::from(bucket[0].count != 0);
        bucket[target] = place;
    }

    fn grow(&mut self) {
        let size = self.buckets.len() * 4;
        let old = std::mem::replace(&mut self.buckets, vec![[Place::default(); 2]; size]);
        for place in old.into_iter().flatten().filter(|place| place.count != 0) {
            self.put(place);
        }
    }

    #[inline(always)]
    fn bucket(&self, key: Key) -> usize {
        hash(key as u64, (key >> 64) as u64) as usize & (self.buckets.len() - 1)
    }
}

/// The key of the word of `text` between `start` and `end`, which has at most [`SHORT`] bytes.
#[inline(always)]
pub(crate) fn key(text: &[u8], start: usize, end: usize) -> Key {
    let length = end - start;
    let bytes = match text.get(start..).and_then(|rest| rest.first_chunk::<16>()) {
        Some(chunk) => u128::from_le_bytes(*chunk) & MASKS[length & 15],
        None => tail(&text[start..end]),
    };
    bytes | (length as u128) << 120
}

#[cold]
fn tail(word: &[u8]) -> u128 {
    word.iter().rev().fold(0, |key, &byte| key << 8 | u128::from(byte))
}

/// The bits of the first 0 to 15 bytes.
const MASKS: [u128; 16] = {
    let mut masks = [0; 16];
    let mut length = 1;
    while length < 16 {
        masks[length] = u128::MAX >> (128 - 8 * length);
        length += 1;
    }
    masks
};

/// Mixes two words by one multiplication: both halves of the product, folded together.
#[inline(always)]
pub(crate) fn hash(low: u64, high: u64) -> u64 {
    let product = u128::from(low ^ 0x2d35_8dcc_aa6c_78a5) * u128::from(high ^ 0x8bb8_4b93_962e_acc9);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests;
