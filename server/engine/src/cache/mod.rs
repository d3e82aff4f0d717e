//! A node's evictable copy of grains, on local disk. Losing it costs time, never data.
//!
//! Grains that leave together share **segments**: files that are appended to up to 64 MiB, never truncated or
//! rewritten, and unlinked whole. An index in memory says where each grain lies; it is rebuilt from the record headers
//! when the cache is opened. The byte limit holds at every instant: space is counted before it is written.
//!
//! The cache does not know the meaning of a grain and never verifies one: its owner verifies grains before it
//! puts them, and after an unclean stop when it reads them ([`Location::needs_verification`]).
//!
//! All operations take `&self`, block, and may be used from many threads. What a crash leaves behind is a prefix of
//! each segment; half-written records are not found again.

mod clear;
mod error;
mod files;
mod forget;
mod format;
mod index;
mod open;
mod saved;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use shardd_store::reserve::Reserve;
use shardfmt::{ByteSize, GrainKey};
use tracing::warn;

pub use error::CacheError;
use files::OpenFiles;
pub use files::SegmentReader;
use index::Place;
use open::Marker;
pub use open::scan;
use state::{Doomed, Reservation, State, Staying};

/// How many segment files may be open at once.
const MAX_OPEN_FILES: usize = 128;

/// Grains up to this size are copied behind their header, so that one write does for both: a write takes a file's lock, and several
/// streams may write to a segment at once.
const COPIED_BYTES: usize = 64 << 10;

/// Settings of a cache.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CacheConfig {
    /// Space the segments may take. Default `"64GiB"`; never exceeded, not even for an instant. (Beside the segments
    /// the directory holds two small files, and from an orderly stop to the next start one with 24 bytes for each grain.)
    pub limit: ByteSize,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self { limit: ByteSize::mib(64 << 10) }
    }
}

impl CacheConfig {
    /// A segment takes no more grains from this size on: 64 MiB, less in small caches so that dropping one frees a
    /// small part only.
    fn segment_bytes(&self) -> u64 {
        (self.limit.0 / 16).clamp(64 << 10, 64 << 20)
    }
}

/// A segment is replaced if the freed bytes are at least such a part of the bytes to write again.
const LEAST_GAIN: u64 = 8;

/// The unit of eviction: grains of one class share segments.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Class {
    /// The run that wants the grains.
    pub run: String,
    /// The epoch after which they leave; [`Class::NEVER`] when that is not known.
    pub departs: u32,
    /// The chunk of the exchange that takes them away, where they are not waited for until the epoch ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<u32>,
}

impl Class {
    /// The epoch of departure of grains that stay, or of which it is unknown when they leave.
    pub const NEVER: u32 = u32::MAX;

    /// In place of a chunk: the grains are of partitions that another node hosts, and are here while it lacks them. Whatever this
    /// node hosts goes before them, so they share no segments with it.
    const GUEST: u32 = u32::MAX;

    /// Of grains that a run wants until an epoch ends.
    pub fn until(run: &str, departs: u32) -> Self {
        Self { run: run.to_owned(), departs, chunk: None }
    }

    /// The same of grains that another node hosts.
    pub fn of_guests(self) -> Self {
        Self { chunk: Some(Self::GUEST), ..self }
    }

    /// Whether another node hosts its grains.
    pub fn is_of_guests(&self) -> bool {
        self.chunk == Some(Self::GUEST)
    }
}

/// Where the bytes of a grain lie. They stay readable there until their segment is dropped, and in files that are
/// open or mapped even then.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Location {
    /// The segment file.
    pub segment: Arc<Path>,
    /// Where in it the grain begins; a multiple of 8.
    pub offset: u64,
    /// The length of the grain in bytes.
    pub len: u32,
    /// The last stop was unclean and no one has verified the bytes since: verify them, then call
    /// [`Cache::mark_verified`] or [`Cache::discard`].
    pub needs_verification: bool,
}

/// The result of dropping or evicting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Segments unlinked.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Grains that were still wanted and moved to other segments.
    pub relocated: u64,
    /// Grains that were still wanted and could not be moved: misses later.
    pub lost: u64,
}

/// A cache's grains of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassUse {
    /// Grains to be found.
    pub grains: u64,
    /// Space their segments take.
    pub bytes: u64,
}

/// Where the bytes of a record come from.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// The owner, who has verified them.
    Verified,
    /// A place in the cache, if the grain is still there.
    Moved(Place),
    /// The owner, who has verified them; the grain is at this place meanwhile.
    Replaces(Place),
    /// A segment that is unlinked. Meanwhile the owner may have found the grain to be corrupt.
    Unlinked,
}

/// A cache of grains in a directory. Dropped without [`close`](Self::close), it counts as stopped uncleanly.
pub struct Cache {
    dir: PathBuf,
    state: Mutex<State>,
    /// Signalled when a write ends.
    write_ended: Condvar,
    files: OpenFiles,
    /// One fsync round at a time, so that a caller who finds nothing left to sync knows it is done.
    syncing: Mutex<()>,
    unclean: bool,
    reserve: Reserve,
    _lock: File,
}

impl Cache {
    /// Opens the cache in `dir`, which is created when missing, and finds again what lies there.
    ///
    /// # Errors
    ///
    /// [`CacheError::InUse`] when another cache has it open, [`CacheError::TooNew`] when a later release wrote it.
    pub fn open(dir: impl AsRef<Path>, config: CacheConfig) -> Result<Self, CacheError> {
        let dir =
            std::path::absolute(dir.as_ref()).map_err(|error| CacheError::io("find", dir.as_ref(), error))?;
        let opened = open::open(&dir, &config)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        Ok(Self {
            dir,
            state: Mutex::new(opened.state),
            write_ended: Condvar::new(),
            files: OpenFiles::new(MAX_OPEN_FILES, options),
            syncing: Mutex::new(()),
            unclean: opened.unclean,
            reserve: Reserve::default(),
            _lock: opened.lock,
        })
    }

    /// Keeps the verified `bytes` of a grain with others of `class`. A grain that is there already stays where it is,
    /// whatever its class. Returns after the write, before it is durable ([`sync`](Self::sync)).
    ///
    /// # Errors
    ///
    /// [`CacheError::Full`] when the limit leaves no room; see [`CacheError::is_full`] for full disks.
    pub fn put(&self, key: GrainKey, class: &Class, bytes: &[u8]) -> Result<Location, CacheError> {
        if let Some(kept) = self.get(&key) {
            if !kept.needs_verification {
                return Ok(kept);
            }
            if self.read(&kept).is_ok_and(|kept| kept == bytes) {
                self.mark_verified(&key);
                return Ok(Location { needs_verification: false, ..kept });
            }
            self.discard(&key);
        }
        self.write(&key, class, bytes, Source::Verified)
    }

    /// As [`put`](Self::put), but a grain that is there already moves to `class`. Where there is no room it stays under its own.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put).
    pub fn put_under(&self, key: GrainKey, class: &Class, bytes: &[u8]) -> Result<Location, CacheError> {
        let place = {
            let state = self.state();
            let place = state.index.get(&key);
            place.filter(|place| state.segments[&place.segment].class != *class)
        };
        let Some(place) = place else { return self.put(key, class, bytes) };
        let location = self.write(&key, class, bytes, Source::Replaces(place))?;
        self.unlink_if_spent(place.segment)?;
        Ok(location)
    }

    /// From now on a put leaves `bytes` free on the disk, as others write there too: one that would not is refused as if the
    /// cache were full. Without a number, the cache leaves [`Disk::default_reserve`](shardd_store::reserve::Disk::default_reserve)
    /// of its disk.
    pub fn keep_free(&self, bytes: Option<u64>) {
        self.reserve.set(bytes);
    }

    /// Where the grain lies, if it is here.
    pub fn get(&self, key: &GrainKey) -> Option<Location> {
        self.state().find(key)
    }

    /// The class under which the grain is kept, if it is here.
    pub fn class_of(&self, key: &GrainKey) -> Option<Class> {
        let state = self.state();
        let place = state.index.get(key)?;
        Some(state.segments[&place.segment].class.clone())
    }

    /// The bytes that segments of `run` take beside the grains `counted` elsewhere, by the epoch after which they leave.
    pub(crate) fn bytes_beside(&self, run: &str, counted: impl Fn(&GrainKey) -> bool) -> BTreeMap<u32, u64> {
        let mut beside = BTreeMap::new();
        for number in self.segments_where(|class| class.run == run) {
            let (departs, bytes, live) = {
                let state = self.state();
                let Some(segment) = state.segments.get(&number) else { continue };
                (segment.class.departs, segment.bytes, state.live_in(number))
            };
            let live = live.iter().filter(|(key, _)| counted(key));
            let counted: u64 = live.map(|(_, place)| format::record_bytes(place.len().into())).sum();
            *beside.entry(departs).or_default() += bytes.saturating_sub(counted);
        }
        beside
    }

    /// The bytes at `location`, as they are on disk.
    ///
    /// # Errors
    ///
    /// [`CacheError::Gone`] when the segment has been dropped since: treat it as a miss.
    pub fn read(&self, location: &Location) -> Result<Bytes, CacheError> {
        self.files.read(location)
    }

    /// Asks the disk for the bytes at `location`, which will be read next. Does not wait, and an error shows when
    /// they are read.
    pub fn will_need(&self, location: &Location) {
        self.files.will_need(location);
    }

    /// The owner has verified the grain: it needs no verification until the next unclean stop.
    pub fn mark_verified(&self, key: &GrainKey) {
        self.state().mark_verified(key);
    }

    /// Forgets a grain, because its bytes are corrupt or no one wants it. Its space comes back with its segment.
    /// Returns whether it was there.
    pub fn discard(&self, key: &GrainKey) -> bool {
        let mut state = self.state();
        let Some(segment) = state.forget(key) else { return false };
        let closed = state.closed;
        drop(state);
        // Forgotten it is; what the disk may refuse is only to tidy up.
        let tidied = if closed { open::remove_marker(&self.dir) } else { Ok(()) };
        if let Err(error) = tidied.and_then(|()| self.unlink_if_spent(segment)) {
            warn!(grain = %key, error = &error as &dyn std::error::Error, "space of a discarded grain not freed");
        }
        true
    }

    /// Makes every grain of `class` whose put has returned durable.
    pub fn sync(&self, class: &Class) -> Result<(), CacheError> {
        self.sync_where(|candidate| candidate == class)
    }

    /// Drops what leaves with or before `epoch` in `run`: every grain of its classes departing then. Grains for which
    /// `still_wanted` gives a class are first copied to segments of that class, durably, while there is room.
    pub fn drop_through(
        &self,
        run: &str,
        epoch: u32,
        still_wanted: impl Fn(&GrainKey) -> Option<Class>,
    ) -> Result<Dropped, CacheError> {
        let departing = self.segments_where(|class| class.run == run && class.departs <= epoch);
        let mut dropped = Dropped::default();
        // First those that are wanted no more: they make room for the copies.
        let (wanted, unwanted): (Vec<u32>, Vec<u32>) = departing.into_iter().partition(|number| {
            let live = self.seal(*number).live_in(*number);
            live.iter().any(|(key, _)| still_wanted(key).is_some())
        });
        for number in unwanted.into_iter().chain(wanted) {
            self.empty_segment(number, &still_wanted, true, &mut dropped)?;
        }
        Ok(dropped)
    }

    /// Makes room of what leaves with `epoch` in `run`. Drops the segments of which every grain `may_go`. Then, until `need` bytes are
    /// free, replaces others by their remaining grains, beginning with those that have the least of it: only
    /// where a good part `has_left`.
    pub fn drop_left(
        &self,
        run: &str,
        epoch: u32,
        need: u64,
        may_go: impl Fn(&GrainKey) -> bool,
        has_left: impl Fn(&GrainKey) -> bool,
    ) -> Result<Dropped, CacheError> {
        let mut dropped = Dropped::default();
        let mut partly_left = Vec::new();
        for number in self.segments_where(|class| class.run == run && class.departs == epoch) {
            let goes = |state: &State| state.live_in(number).iter().all(|(key, _)| may_go(key));
            // Sealing it makes the next grain of its class open another: only where it is of use.
            let goes_now = goes(&self.state());
            if goes_now && goes(&self.seal(number)) {
                self.empty_segment(number, &|_| None, true, &mut dropped)?;
                continue;
            }
            let Staying { staying, of_no_use } = self.state().staying_in(number, &has_left);
            partly_left.extend((of_no_use >= staying / LEAST_GAIN).then_some((staying, number)));
        }
        partly_left.sort_unstable();
        for (_, number) in partly_left {
            if self.free() >= need {
                break;
            }
            let Some(class) = self.state().segments.get(&number).map(|segment| segment.class.clone()) else {
                continue;
            };
            let stays = |key: &GrainKey| (!has_left(key)).then(|| class.clone());
            self.empty_segment(number, &stays, true, &mut dropped)?;
        }
        Ok(dropped)
    }

    /// Evicts segments of runs that are not `active`, the oldest first, until a grain of `need` bytes fits.
    pub fn evict_runs_except(&self, active: &BTreeSet<String>, need: u64) -> Dropped {
        self.evict(active, need, |_| None)
    }

    /// As [`evict_runs_except`](Self::evict_runs_except), keeping the grains for which `still_wanted` gives a class:
    /// an active run may want what an earlier one brought here. A segment that the disk does not give up is skipped.
    pub fn evict(
        &self,
        active: &BTreeSet<String>,
        need: u64,
        still_wanted: impl Fn(&GrainKey) -> Option<Class>,
    ) -> Dropped {
        self.evict_where(|class| !active.contains(&class.run), need, still_wanted)
    }

    /// Evicts grains that other nodes host, the oldest first, until a grain of `need` bytes fits. Those for which `still_wanted`
    /// gives a class are kept under it. A segment that the disk does not give up is skipped.
    pub fn evict_guests(&self, need: u64, still_wanted: impl Fn(&GrainKey) -> Option<Class>) -> Dropped {
        self.evict_where(Class::is_of_guests, need, still_wanted)
    }

    fn evict_where(
        &self,
        goes: impl Fn(&Class) -> bool,
        need: u64,
        still_wanted: impl Fn(&GrainKey) -> Option<Class>,
    ) -> Dropped {
        let need = need.saturating_add(format::MOST_OVERHEAD);
        let mut dropped = Dropped::default();
        if self.free() < need
            && let Err(error) = self.unlink_doomed()
        {
            warn!(
                error = &error as &dyn std::error::Error,
                "a segment cannot be unlinked; its space stays taken"
            );
        }
        for number in self.segments_where(goes) {
            if self.free() >= need {
                break;
            }
            if let Err(error) = self.empty_segment(number, &still_wanted, true, &mut dropped) {
                warn!(error = &error as &dyn std::error::Error, "a segment could not be evicted");
            }
        }
        dropped
    }

    /// Makes everything durable and leaves the directory in order: the next opening trusts verified grains.
    /// Puts are refused from here on; reads continue.
    pub fn close(&self) -> Result<(), CacheError> {
        let mut state = self.state();
        state.closed = true;
        while state.segments.values().any(|segment| segment.writing > 0) {
            state = self.write_ended.wait(state).expect("no panic while held");
        }
        drop(state);
        self.sync_where(|_| true)?;
        let state = self.state();
        let mut marker = Marker::new();
        for (number, segment) in &state.segments {
            let name = segment.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let (dead, suspect) = state.dead_in(*number);
            if suspect {
                marker.suspect.push(name.clone());
            }
            if !dead.is_empty() {
                marker.dead.insert(name, dead);
            }
        }
        // Should its file outlive this, its grains were discarded for a reason.
        let doomed = state.doomed.iter().filter_map(|doomed| doomed.path.file_name());
        marker.suspect.extend(doomed.map(|name| name.to_string_lossy().into_owned()));
        // First what makes the stop an orderly one: the index may take longer than there is time, or more room than there is.
        open::write_marker(&self.dir, &marker)?;
        match saved::write(&self.dir, &state) {
            Ok(index) => open::write_marker(&self.dir, &marker.with(index)),
            Err(error) => {
                warn!(dir = %self.dir.display(), %error, "the index of the cache cannot be saved; the next start reads all segments");
                Ok(())
            }
        }
    }

    /// Bytes that the segments take, as counted against the limit.
    pub fn used(&self) -> u64 {
        self.state().used
    }

    /// The limit on [`used`](Self::used) in bytes.
    pub fn limit(&self) -> u64 {
        self.state().limit
    }

    /// Bytes left under the limit.
    pub fn free(&self) -> u64 {
        let state = self.state();
        state.limit.saturating_sub(state.used)
    }

    /// Bytes that the disk has beside its reserve; `None` if none is set, and of a disk that does not say.
    pub fn disk_room(&self) -> Option<u64> {
        self.reserve.room(&self.dir)
    }

    /// How many grains are here.
    pub fn len(&self) -> usize {
        self.state().index.len()
    }

    /// Whether no grain is here.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The grains that are here, in order.
    pub fn keys(&self) -> Vec<GrainKey> {
        let mut keys: Vec<_> = self.state().index.keys().collect();
        keys.sort_unstable();
        keys
    }

    /// The cached grains of each class.
    pub fn classes(&self) -> BTreeMap<Class, ClassUse> {
        let state = self.state();
        let mut classes = BTreeMap::<Class, ClassUse>::new();
        for segment in state.segments.values() {
            let class = classes.entry(segment.class.clone()).or_default();
            class.grains += u64::from(segment.live());
            class.bytes += segment.bytes;
        }
        classes
    }

    /// Where a segment of this file name lies, or lay.
    pub(crate) fn segment_path(&self, name: &str) -> PathBuf {
        self.dir.join("segments").join(name)
    }

    /// The directory of this cache.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether the last holder of the directory stopped without closing it.
    pub fn was_unclean(&self) -> bool {
        self.unclean
    }

    /// Writes a record and makes it findable, unless the grain is elsewhere by now.
    fn write(
        &self,
        key: &GrainKey,
        class: &Class,
        bytes: &[u8],
        from: Source,
    ) -> Result<Location, CacheError> {
        if bytes.len() as u64 >= Place::MAX_LEN {
            return Err(CacheError::TooLarge { key: *key, bytes: bytes.len() as u64 });
        }
        if !format::class_fits(class) {
            return Err(CacheError::ClassTooLong { bytes: class.run.len() });
        }
        let len = u32::try_from(bytes.len()).expect("checked above");
        let reservation = self.reserve(key, class, bytes.len() as u64)?;
        let written = self.write_record(&reservation, key, class, len, bytes);

        let mut state = self.state();
        match &written {
            Ok(()) => state.written(&reservation),
            Err(_) => state.not_written(&reservation),
        }
        let (segment, offset) = (reservation.segment, reservation.offset);
        if written.is_ok() {
            let present = state.index.get(key);
            match (from, present) {
                (Source::Moved(from), Some(place)) if place.is_same(from.segment, from.offset) => {
                    state.publish(key, segment, offset, len, place.is_suspect());
                }
                (Source::Replaces(from), Some(place)) if place.is_same(from.segment, from.offset) => {
                    state.publish(key, segment, offset, len, false);
                }
                (Source::Verified | Source::Replaces(_), None) => {
                    state.publish(key, segment, offset, len, false)
                }
                (Source::Unlinked, None) => state.publish(key, segment, offset, len, true),
                // Someone else was faster, or has discarded the grain to be moved.
                _ => state.note_dead(key, segment, offset),
            }
        }
        let location = state.find(key);
        drop(state);
        self.write_ended.notify_all();
        self.unlink_if_spent(segment)?;
        written?;
        location.ok_or(CacheError::Gone { segment: reservation.path.to_path_buf() })
    }

    fn reserve(&self, key: &GrainKey, class: &Class, len: u64) -> Result<Reservation, CacheError> {
        if !self.reserve.admits(&self.dir, len) {
            return Err(CacheError::DiskFull { dir: self.dir.clone(), needed: len });
        }
        let mut state = self.state();
        if state.closed {
            return Err(CacheError::Closed { dir: self.dir.clone() });
        }
        if state.forgotten.contains(&key.shard) {
            return Err(CacheError::Forgotten { key: *key });
        }
        let (used, limit) = (ByteSize(state.used), ByteSize(state.limit));
        let full = |needed| CacheError::Full { dir: self.dir.clone(), needed, used, limit };
        state.reserve(class, len).map_err(|no_room| full(no_room.needed))
    }

    /// Writes the header and the grain behind it. A process that is killed on the way leaves a header whose
    /// grain is not whole; after an unclean stop no grain is taken for what its header says.
    fn write_record(
        &self,
        reservation: &Reservation,
        key: &GrainKey,
        class: &Class,
        len: u32,
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        let write = || {
            // Others may write to a new segment before its opener has written its header.
            let file = self.files.file_or_create(&reservation.path)?;
            if let Some(header) = &reservation.segment_header {
                file.write_all_at(header, 0)?;
            }
            let header = format::record_header(class, key, len);
            if bytes.len() > COPIED_BYTES {
                file.write_all_at(&header, reservation.offset)?;
                return file.write_all_at(bytes, reservation.offset + format::RECORD_HEADER);
            }
            file.write_all_at(&[&header, bytes].concat(), reservation.offset)
        };
        write().map_err(|error| CacheError::io("write", &reservation.path, error))
    }

    fn sync_where(&self, wanted: impl Fn(&Class) -> bool) -> Result<(), CacheError> {
        let _round = self.syncing.lock().expect("no panic while held");
        let mut dirty = Vec::new();
        for (number, segment) in &mut self.state().segments {
            if segment.dirty && wanted(&segment.class) {
                // A write while the fsync runs makes it dirty again.
                segment.dirty = false;
                dirty.push((*number, segment.path.clone()));
            }
        }
        if dirty.is_empty() {
            return Ok(());
        }
        let synced =
            dirty.iter().try_for_each(|(_, path)| match self.files.file(path).and_then(|f| f.sync_all()) {
                // Dropped meanwhile: there is nothing left to keep.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other.map_err(|error| CacheError::io("sync", path, error)),
            });
        let segments = self.dir.join("segments");
        let synced = synced.and_then(|()| {
            shardd_store::durable::sync_dir(&segments)
                .map_err(|error| CacheError::io("sync", &segments, error))
        });
        if synced.is_err() {
            let mut state = self.state();
            for (number, _) in &dirty {
                if let Some(segment) = state.segments.get_mut(number) {
                    segment.dirty = true;
                }
            }
        }
        synced
    }

    fn segments_where(&self, wanted: impl Fn(&Class) -> bool) -> Vec<u32> {
        let state = self.state();
        state
            .segments
            .iter()
            .filter(|(_, segment)| wanted(&segment.class))
            .map(|(number, _)| *number)
            .collect()
    }

    /// Moves the wanted grains out of a segment, then unlinks it; where not all can be moved, only if it
    /// `may_lose` the rest.
    fn empty_segment(
        &self,
        number: u32,
        still_wanted: &impl Fn(&GrainKey) -> Option<Class>,
        may_lose: bool,
        dropped: &mut Dropped,
    ) -> Result<(), CacheError> {
        let live = self.seal(number).live_in(number);
        let (mut classes, mut without_room) = (BTreeSet::new(), BTreeMap::new());
        for (key, place) in live {
            let Some(class) = still_wanted(&key) else { continue };
            let Some(location) = self.get(&key) else { continue };
            let Ok(bytes) = self.read(&location) else {
                dropped.lost += 1;
                continue;
            };
            match self.write(&key, &class, &bytes, Source::Moved(place)) {
                Ok(_) => {
                    dropped.relocated += 1;
                    classes.insert(class);
                }
                Err(error) if may_lose && error.is_full() => _ = without_room.insert(key, (class, bytes)),
                Err(_) => dropped.lost += 1,
            }
        }
        if dropped.lost > 0 && !may_lose {
            return Ok(());
        }
        // The owner knows these grains to be durable: they stay so.
        self.sync_where(|class| classes.contains(class))?;
        let Some((doomed, live)) = self.state().remove(number) else { return Ok(()) };
        if let Err(error) = self.unlink(&doomed) {
            dropped.lost += live.iter().filter(|key| without_room.contains_key(*key)).count() as u64;
            return Err(error);
        }
        dropped.segments += 1;
        dropped.bytes += doomed.bytes;
        // Its own space is free now. After a crash here these grains are misses.
        classes.clear();
        for key in live {
            let Some((class, bytes)) = without_room.remove(&key) else { continue };
            match self.write(&key, &class, &bytes, Source::Unlinked) {
                Ok(_) => {
                    dropped.relocated += 1;
                    classes.insert(class);
                }
                Err(_) => dropped.lost += 1,
            }
        }
        self.sync_where(|class| classes.contains(class))
    }

    /// Lets no more grains into a segment and waits for those being written.
    fn seal(&self, number: u32) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.seal(number);
        while state.segments.get(&number).is_some_and(|segment| segment.writing > 0) {
            state = self.write_ended.wait(state).expect("no panic while held");
        }
        state
    }

    fn unlink_if_spent(&self, number: u32) -> Result<(), CacheError> {
        let mut state = self.state();
        let removed = if state.is_spent(number) { state.remove(number) } else { None };
        drop(state);
        removed.map_or(Ok(()), |(doomed, _)| self.unlink(&doomed))
    }

    /// Unlinks the file of a removed segment, and gives its space back. Where that fails, it stays doomed.
    fn unlink(&self, doomed: &Doomed) -> Result<(), CacheError> {
        self.files.forget(&doomed.path);
        open::unlink(&doomed.path)?;
        self.state().unlinked(&doomed.path);
        Ok(())
    }

    /// Unlinks the files that could not be unlinked when their segments were removed.
    fn unlink_doomed(&self) -> Result<(), CacheError> {
        let doomed = self.state().doomed.clone();
        doomed.iter().try_for_each(|doomed| self.unlink(doomed))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }
}

#[cfg(test)]
mod tests;
