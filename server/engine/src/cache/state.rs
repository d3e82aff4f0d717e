//! What a cache knows of its segments: index, space, who writes where. Decides; performs no I/O.
//!
//! Space is counted before it is written and given back after it is unlinked, so the files never take more than `used`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardfmt::{GrainKey, ShardId};

use super::format::{self, RECORD_HEADER};
use super::index::{Index, Place, ShortKey};
use super::{Class, Location};

pub(super) struct State {
    pub(super) index: Index,
    pub(super) segments: BTreeMap<u32, Segment>,
    /// The segment that takes the next grain of a class.
    appending: BTreeMap<Class, u32>,
    pub(super) used: u64,
    pub(super) limit: u64,
    pub(super) closed: bool,
    /// Shards of which no grain is taken any more.
    pub(super) forgotten: BTreeSet<ShardId>,
    /// Removed segments whose files may still be there. Their space stays counted.
    pub(super) doomed: Vec<Doomed>,
    names: Names,
    segment_bytes: u64,
}

pub(super) struct Segment {
    pub(super) class: Class,
    pub(super) path: Arc<Path>,
    /// Space counted for the file: all that was reserved, written or not.
    pub(super) bytes: u64,
    /// Every record, also those that the index no longer points at.
    pub(super) records: Vec<(ShortKey, u32)>,
    /// How many records the index points at.
    pub(super) live: u32,
    /// Writes that have begun and not ended.
    pub(super) writing: u32,
    /// Something was written since the last fsync began.
    pub(super) dirty: bool,
    /// The file has bytes that belong to no record: of a write that failed or of an unclean stop.
    pub(super) has_stray_bytes: bool,
}

/// The file of a segment that was removed.
#[derive(Debug, Clone)]
pub(super) struct Doomed {
    pub(super) path: Arc<Path>,
    pub(super) bytes: u64,
}

impl Segment {
    /// How many grains are to be found in it.
    pub(super) fn live(&self) -> u32 {
        self.live
    }
}

/// Gives segments names that were never used before in their directory.
pub(super) struct Names {
    pub(super) dir: PathBuf,
    pub(super) session: u32,
    pub(super) next: u32,
}

/// Space for one record, counted and not yet written.
pub(super) struct Reservation {
    pub(super) segment: u32,
    pub(super) path: Arc<Path>,
    /// Where the record's header goes.
    pub(super) offset: u64,
    /// The header to write first at the start of the file, if this is its first record.
    pub(super) segment_header: Option<Vec<u8>>,
}

/// Why there is no room for a record.
pub(super) struct NoRoom {
    pub(super) needed: u64,
}

/// The bytes of a segment that...
#[derive(Debug, Clone, Copy)]
pub(super) struct Staying {
    /// ...belong to grains that have not left,
    pub(super) staying: u64,
    /// and that would become free if only those were kept.
    pub(super) of_no_use: u64,
}

impl State {
    pub(super) fn new(limit: u64, segment_bytes: u64, names: Names) -> Self {
        Self {
            index: Index::default(),
            segments: BTreeMap::new(),
            appending: BTreeMap::new(),
            used: 0,
            limit,
            closed: false,
            forgotten: BTreeSet::new(),
            doomed: Vec::new(),
            names,
            segment_bytes,
        }
    }

    /// Takes up a segment that was there before, with a file of `bytes` bytes of which the first `recorded` are its header and records.
    /// It takes no more grains.
    pub(super) fn adopt(&mut self, number: u32, class: Class, path: Arc<Path>, bytes: u64, recorded: u64) {
        let segment = Segment {
            class,
            path,
            bytes,
            records: Vec::new(),
            live: 0,
            writing: 0,
            dirty: false,
            has_stray_bytes: recorded < bytes,
        };
        self.segments.insert(number, segment);
        self.used += bytes;
    }

    /// Counts space for a grain of `len` bytes, in the class's open segment or a new one.
    pub(super) fn reserve(&mut self, class: &Class, len: u64) -> Result<Reservation, NoRoom> {
        let record = format::record_bytes(len);
        let open = self.appending.get(class).copied();
        if let Some(number) = open {
            let segment = self.segments.get_mut(&number).expect("open segments exist");
            if segment.bytes + record <= self.segment_bytes {
                if self.used + record > self.limit {
                    return Err(NoRoom { needed: record });
                }
                let offset = segment.bytes;
                segment.bytes += record;
                segment.writing += 1;
                self.used += record;
                let path = segment.path.clone();
                return Ok(Reservation { segment: number, path, offset, segment_header: None });
            }
        }
        let header = format::segment_header(class);
        let (offset, needed) = (header.len() as u64, header.len() as u64 + record);
        if self.used + needed > self.limit {
            return Err(NoRoom { needed });
        }
        let (number, path) = self.names.give();
        let class = class.clone();
        self.appending.insert(class.clone(), number);
        let segment = Segment {
            class,
            path: path.clone(),
            bytes: needed,
            records: vec![],
            live: 0,
            writing: 1,
            dirty: false,
            has_stray_bytes: false,
        };
        self.segments.insert(number, segment);
        self.used += needed;
        Ok(Reservation { segment: number, path, offset, segment_header: Some(header) })
    }

    /// Ends a write that succeeded, without making its record findable.
    pub(super) fn written(&mut self, reservation: &Reservation) {
        let segment = self.segments.get_mut(&reservation.segment).expect("segments outlive their writes");
        segment.writing -= 1;
        segment.dirty = true;
    }

    /// Ends a write that failed. Its space stays counted, for no one knows how much of it was taken; the segment takes
    /// no more grains, for those behind a hole would not be found again.
    pub(super) fn not_written(&mut self, reservation: &Reservation) {
        let segment = self.segments.get_mut(&reservation.segment).expect("segments outlive their writes");
        segment.writing -= 1;
        segment.dirty = true;
        segment.has_stray_bytes = true;
        self.seal(reservation.segment);
    }

    /// Makes the index point at a record; whatever it pointed at before is dead.
    pub(super) fn publish(&mut self, key: &GrainKey, number: u32, record: u64, len: u32, suspect: bool) {
        let short = self.index.shorten(key);
        let offset = u32::try_from(record + RECORD_HEADER).expect("records begin within the first 64 MiB");
        let segment = self.segments.get_mut(&number).expect("records lie in a segment");
        segment.records.push((short, offset));
        segment.live += 1;
        let before = self.index.insert(short, Place::new(number, offset, len, suspect));
        self.died(before);
    }

    /// Notes a record that nothing shall point at.
    pub(super) fn note_dead(&mut self, key: &GrainKey, number: u32, record: u64) {
        let short = self.index.shorten(key);
        let offset = u32::try_from(record + RECORD_HEADER).expect("records begin within the first 64 MiB");
        self.segments.get_mut(&number).expect("records lie in a segment").records.push((short, offset));
    }

    /// Forgets a grain; returns the segment it lay in.
    pub(super) fn forget(&mut self, key: &GrainKey) -> Option<u32> {
        let place = self.index.known(key).and_then(|short| self.index.remove(short));
        self.died(place);
        place.map(|place| place.segment)
    }

    fn died(&mut self, place: Option<Place>) {
        if let Some(segment) = place.and_then(|place| self.segments.get_mut(&place.segment)) {
            segment.live -= 1;
        }
    }

    pub(super) fn mark_verified(&mut self, key: &GrainKey) {
        if let (Some(short), Some(place)) = (self.index.known(key), self.index.get(key)) {
            self.index.insert(short, Place::new(place.segment, place.offset, place.len(), false));
        }
    }

    pub(super) fn find(&self, key: &GrainKey) -> Option<Location> {
        self.index.get(key).map(|place| self.location(place))
    }

    pub(super) fn location(&self, place: Place) -> Location {
        Location {
            segment: self.segments[&place.segment].path.clone(),
            offset: u64::from(place.offset),
            len: place.len(),
            needs_verification: place.is_suspect(),
        }
    }

    /// The segment takes no more grains.
    pub(super) fn seal(&mut self, number: u32) {
        if let Some(segment) = self.segments.get(&number)
            && self.appending.get(&segment.class) == Some(&number)
        {
            self.appending.remove(&segment.class);
        }
    }

    /// Whether nothing can be found in the segment, now or later.
    pub(super) fn is_spent(&self, number: u32) -> bool {
        self.segments.get(&number).is_some_and(|segment| {
            segment.live == 0 && segment.writing == 0 && self.appending.get(&segment.class) != Some(&number)
        })
    }

    /// The grains to be found in a segment, in the order they were written.
    pub(super) fn live_in(&self, number: u32) -> Vec<(GrainKey, Place)> {
        let Some(segment) = self.segments.get(&number) else { return Vec::new() };
        let places = segment.records.iter().filter_map(|(short, offset)| {
            let place = self.index.get_short(*short)?;
            place.is_same(number, *offset).then(|| (self.index.long(*short), place))
        });
        places.collect()
    }

    /// The bytes of a segment that stay, and those that replacing it would free. A segment with writes under way counts as staying whole.
    pub(super) fn staying_in(&self, number: u32, has_left: &impl Fn(&GrainKey) -> bool) -> Staying {
        let segment = self.segments.get(&number).filter(|segment| segment.writing == 0);
        let Some(segment) = segment else { return Staying { staying: u64::MAX, of_no_use: 0 } };
        let staying = self.live_in(number).into_iter().filter(|(key, _)| !has_left(key));
        let staying: u64 = staying.map(|(_, place)| format::record_bytes(place.len().into())).sum();
        let header = format::segment_header(&segment.class).len() as u64;
        Staying { staying, of_no_use: segment.bytes.saturating_sub(staying + header) }
    }

    /// Whether a segment may have bytes of one of some shards, dead or alive.
    pub(super) fn may_hold(&self, segment: &Segment, shards: &BTreeSet<ShardId>) -> bool {
        segment.has_stray_bytes
            || segment.records.iter().any(|(short, _)| shards.contains(&self.index.long(*short).shard))
    }

    /// Offsets of the records in a segment that are dead, and whether any of its grains is suspect.
    pub(super) fn dead_in(&self, number: u32) -> (Vec<u32>, bool) {
        let mut dead = Vec::new();
        let mut suspect = false;
        for (short, offset) in &self.segments[&number].records {
            match self.index.get_short(*short).filter(|place| place.is_same(number, *offset)) {
                Some(place) => suspect |= place.is_suspect(),
                None => dead.push(*offset),
            }
        }
        (dead, suspect)
    }

    /// Removes a sealed segment without writers and all grains in it from what can be found, and dooms its file. Returns the file and
    /// the grains.
    pub(super) fn remove(&mut self, number: u32) -> Option<(Doomed, Vec<GrainKey>)> {
        self.seal(number);
        let live: Vec<GrainKey> = self.live_in(number).into_iter().map(|(key, _)| key).collect();
        for key in &live {
            self.forget(key);
        }
        let segment = self.segments.remove(&number)?;
        let doomed = Doomed { path: segment.path, bytes: segment.bytes };
        self.doomed.push(doomed.clone());
        Some((doomed, live))
    }

    /// The doomed file is gone: gives its space back, once.
    pub(super) fn unlinked(&mut self, path: &Path) {
        if let Some(at) = self.doomed.iter().position(|doomed| *doomed.path == *path) {
            self.used -= self.doomed.swap_remove(at).bytes;
        }
    }
}

impl Names {
    fn give(&mut self) -> (u32, Arc<Path>) {
        let number = self.next;
        self.next = number.checked_add(1).expect("fewer than 2^32 segments per session");
        let name = segment_name(self.session, number);
        (number, self.dir.join(name).into())
    }
}

/// The file name of a segment: its session (one opening of the cache) and number, in the order of their age.
pub(super) fn segment_name(session: u32, number: u32) -> String {
    format!("{session:08x}-{number:08x}.seg")
}

/// The session and number in a segment's file name.
pub(super) fn parse_segment_name(name: &str) -> Option<(u32, u32)> {
    let (session, number) = name.strip_suffix(".seg")?.split_once('-')?;
    let parse = |digits: &str| (digits.len() == 8).then(|| u32::from_str_radix(digits, 16).ok()).flatten();
    Some((parse(session)?, parse(number)?))
}
