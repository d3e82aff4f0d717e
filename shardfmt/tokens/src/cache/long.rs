//! Words of more bytes or tokens than a place of the cache has room for, in two arenas.

use super::{LONGEST, hash};

/// Words at most.
const PLACES: usize = 1 << 16;
/// Bytes of words at most: with their tokens and places, 10 MiB in all.
const MOST_BYTES: usize = 1 << 22;
const MOST_IDS: usize = 1 << 20;

/// A table with one place for each hash. When an arena is full, all of it is forgotten.
#[derive(Debug, Default)]
pub(crate) struct LongWords {
    places: Vec<Place>,
    bytes: Vec<u8>,
    ids: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    hash: u64,
    bytes_at: u32,
    ids_at: u32,
    length: u16,
    /// 0 in a place that is free.
    count: u16,
}

impl LongWords {
    /// The tokens of `word`, if they are here.
    #[inline]
    pub(crate) fn get(&self, word: &[u8]) -> Option<&[u32]> {
        let hash = hash_bytes(word);
        let place = self.places.get(hash as usize & (PLACES - 1))?;
        let known = place.hash == hash && place.count != 0 && usize::from(place.length) == word.len();
        if !known || self.bytes[place.bytes_at as usize..][..word.len()] != *word {
            return None;
        }
        Some(&self.ids[place.ids_at as usize..][..usize::from(place.count)])
    }

    /// Keeps the tokens of `word` of up to [`LONGEST`] bytes.
    pub(crate) fn insert(&mut self, word: &[u8], ids: &[u32]) {
        debug_assert!(word.len() <= LONGEST && !ids.is_empty() && ids.len() <= word.len());
        if self.bytes.len() + word.len() > MOST_BYTES || self.ids.len() + ids.len() > MOST_IDS {
            self.clear();
        }
        if self.places.is_empty() {
            self.places.resize(PLACES, Place::default());
        }
        let hash = hash_bytes(word);
        self.places[hash as usize & (PLACES - 1)] = Place {
            hash,
            bytes_at: self.bytes.len() as u32,
            ids_at: self.ids.len() as u32,
            length: word.len() as u16,
            count: ids.len() as u16,
        };
        self.bytes.extend_from_slice(word);
        self.ids.extend_from_slice(ids);
    }

    fn clear(&mut self) {
        self.places.clear();
        self.bytes.clear();
        self.ids.clear();
    }
}

/// A hash of all bytes of a word, eight at a time.
#[inline]
pub(crate) fn hash_bytes(word: &[u8]) -> u64 {
    let (eights, rest) = word.as_chunks::<8>();
    let last = rest.iter().rev().fold(0u64, |last, &byte| last << 8 | u64::from(byte));
    let mixed = eights
        .iter()
        .fold(word.len() as u64, |mixed, &eight| hash(mixed, u64::from_le_bytes(eight)).rotate_left(23));
    hash(mixed, last)
}
