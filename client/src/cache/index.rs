//! Where each grain lies, in few bytes per grain: shards are interned, places are 12 bytes. Does no I/O.

use std::collections::HashMap;

use shardfmt::{GrainKey, ShardId};

/// A grain's key with its shard as a number of this index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ShortKey {
    shard: u32,
    rows: u32,
    index: u32,
}

/// Where a grain lies, and whether its bytes are yet to be verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) segment: u32,
    pub(super) offset: u32,
    /// The length; the top bit says that the bytes are suspect.
    len_and_suspect: u32,
}

const SUSPECT: u32 = 1 << 31;

impl Place {
    /// Lengths that a place can express are below this.
    pub(super) const MAX_LEN: u64 = SUSPECT as u64;

    pub(super) fn new(segment: u32, offset: u32, len: u32, suspect: bool) -> Self {
        debug_assert!(u64::from(len) < Self::MAX_LEN);
        Self { segment, offset, len_and_suspect: len | if suspect { SUSPECT } else { 0 } }
    }

    pub(super) fn len(self) -> u32 {
        self.len_and_suspect & !SUSPECT
    }

    pub(super) fn is_suspect(self) -> bool {
        self.len_and_suspect & SUSPECT != 0
    }

    /// Whether both are the same bytes of the same file.
    pub(super) fn is_same(self, segment: u32, offset: u32) -> bool {
        self.segment == segment && self.offset == offset
    }
}

/// Key -> place.
#[derive(Default)]
pub(super) struct Index {
    shards: Vec<ShardId>,
    numbers: HashMap<ShardId, u32>,
    places: HashMap<ShortKey, Place>,
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get(&self, key: &GrainKey) -> Option<Place> {
        self.places.get(&self.known(key)?).copied()
    }

    pub(super) fn get_short(&self, key: ShortKey) -> Option<Place> {
        self.places.get(&key).copied()
    }

    /// Sets the place of a grain; returns the one it had.
    pub(super) fn insert(&mut self, key: ShortKey, place: Place) -> Option<Place> {
        self.places.insert(key, place)
    }

    pub(super) fn remove(&mut self, key: ShortKey) -> Option<Place> {
        self.places.remove(&key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = GrainKey> {
        self.places.keys().map(|key| self.long(*key))
    }

    /// The short form of `key`, if its shard has been seen.
    pub(super) fn known(&self, key: &GrainKey) -> Option<ShortKey> {
        let shard = *self.numbers.get(&key.shard)?;
        Some(ShortKey { shard, rows: key.rows, index: key.index })
    }

    pub(super) fn shorten(&mut self, key: &GrainKey) -> ShortKey {
        let shard = *self.numbers.entry(key.shard).or_insert_with(|| {
            self.shards.push(key.shard);
            u32::try_from(self.shards.len() - 1).expect("fewer than 2^32 shards")
        });
        ShortKey { shard, rows: key.rows, index: key.index }
    }

    pub(super) fn long(&self, key: ShortKey) -> GrainKey {
        GrainKey { shard: self.shards[key.shard as usize], rows: key.rows, index: key.index }
    }
}
