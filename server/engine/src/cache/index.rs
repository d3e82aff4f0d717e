//! Where each grain lies, in few bytes per grain: shards are interned, places are 12 bytes. Many small maps, of which each fits
//! into the cache of a processor while it is filled, instead of a large one. Does no I/O.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use shardfmt::{GrainKey, ShardId};

/// A grain's key with its shard as a number of this index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShortKey {
    pub(super) shard: u32,
    pub(super) rows: u32,
    pub(super) index: u32,
}

impl ShortKey {
    /// Its bits, mixed (the finaliser of splitmix64; Steele, Lea and Flood, OOPSLA 2014). No user chooses
    /// keys to collide: they are those of a manifest.
    fn mixed(self) -> u64 {
        let mut z = (u64::from(self.shard) << 32) ^ (u64::from(self.rows) << 20) ^ u64::from(self.index);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The map that it is in: bits that maps look at last.
    fn map(self) -> usize {
        (self.mixed() >> 40) as usize % MAPS
    }
}

impl Hash for ShortKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.mixed());
    }
}

/// Takes one number that is mixed already.
#[derive(Default)]
pub(super) struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys of the index are hashed as one number");
    }

    fn write_u64(&mut self, mixed: u64) {
        self.0 = mixed;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Places = HashMap<ShortKey, Place, BuildHasherDefault<Mixed>>;

/// How many maps there are.
const MAPS: usize = 256;
/// Places that are sorted by map before they are put there.
const SORTED_AT_ONCE: usize = 1 << 20;

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
pub(super) struct Index {
    shards: Vec<ShardId>,
    numbers: HashMap<ShardId, u32>,
    places: Vec<Places>,
    len: usize,
}

impl Default for Index {
    fn default() -> Self {
        Self { shards: Vec::new(), numbers: HashMap::new(), places: vec![Places::default(); MAPS], len: 0 }
    }
}

impl Index {
    /// An index of these places, of which each names a shard by its place in the list. None is there twice.
    pub(super) fn of(shards: Vec<ShardId>, places: &[(ShortKey, Place)]) -> Self {
        let numbers = shards.iter().copied().zip(0..).collect();
        let mut index = Self { shards, numbers, ..Self::default() };
        index.places.iter_mut().for_each(|map| map.reserve(places.len() / MAPS));
        let mut sorted = places[..SORTED_AT_ONCE.min(places.len())].to_vec();
        for some in places.chunks(SORTED_AT_ONCE) {
            let mut ends = [0; MAPS];
            some.iter().for_each(|(key, _)| ends[key.map()] += 1);
            let mut end = 0;
            for count in &mut ends {
                (end, *count) = (end + *count, end);
            }
            for place in some {
                let at = &mut ends[place.0.map()];
                sorted[*at] = *place;
                *at += 1;
            }
            let mut start = 0;
            for (map, end) in index.places.iter_mut().zip(ends) {
                map.extend(sorted[start..end].iter().copied());
                start = end;
            }
        }
        index.len = index.places.iter().map(HashMap::len).sum();
        index
    }

    /// The shards, by their numbers.
    pub(super) fn shards(&self) -> &[ShardId] {
        &self.shards
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, key: &GrainKey) -> Option<Place> {
        self.get_short(self.known(key)?)
    }

    pub(super) fn get_short(&self, key: ShortKey) -> Option<Place> {
        self.places[key.map()].get(&key).copied()
    }

    /// Sets the place of a grain; returns the one it had.
    pub(super) fn insert(&mut self, key: ShortKey, place: Place) -> Option<Place> {
        let before = self.places[key.map()].insert(key, place);
        self.len += usize::from(before.is_none());
        before
    }

    pub(super) fn remove(&mut self, key: ShortKey) -> Option<Place> {
        let removed = self.places[key.map()].remove(&key);
        self.len -= usize::from(removed.is_some());
        removed
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = GrainKey> {
        self.places.iter().flat_map(HashMap::keys).map(|key| self.long(*key))
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
