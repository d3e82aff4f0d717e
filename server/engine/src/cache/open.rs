//! Opening and closing a cache directory: who holds it, what lies in it, whether it was left in order.
//!
//! ```text
//! lock                     flock held while open; the holder's process id and session
//! clean                    written by an orderly close, removed by opening: what to know beyond the files
//! index                    the same, of the places of all grains: `saved.rs`
//! segments/<session>-<number>.seg
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardd_store::durable;
use shardfmt::{Digest, GrainKey};
use tracing::warn;

use super::format::{self, Contents};
use super::state::{Doomed, Names, State, parse_segment_name};
use super::{CacheConfig, CacheError, Class, Location, saved};

const CLEAN: &str = "clean";
const LOCK: &str = "lock";
const MARKER_FORMAT: u32 = 1;

/// The state that an orderly close leaves for the next opening.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Marker {
    format: u32,
    /// Segments with grains that were still unverified, by file name.
    pub(super) suspect: Vec<String>,
    /// Records that must not be found again: segment -> offsets.
    pub(super) dead: BTreeMap<String, Vec<u32>>,
    /// The digest of the saved index.
    #[serde(default)]
    index: Option<Digest>,
}

impl Marker {
    /// One that says nothing yet.
    pub(super) fn new() -> Marker {
        Marker { format: MARKER_FORMAT, ..Marker::default() }
    }

    /// The same, with a saved index.
    pub(super) fn with(self, index: Digest) -> Marker {
        Marker { index: Some(index), ..self }
    }
}

/// A directory opened for one cache.
pub(super) struct Opened {
    pub(super) lock: File,
    pub(super) state: State,
    /// The last holder did not close it.
    pub(super) unclean: bool,
}

pub(super) fn open(dir: &Path, config: &CacheConfig) -> Result<Opened, CacheError> {
    let segments = dir.join("segments");
    fs::create_dir_all(&segments).map_err(|error| CacheError::io("create", &segments, error))?;
    let (lock, last_session) = take_lock(dir)?;
    let found = list_segments(&segments)?;
    let newest = found.last().map_or(0, |(session, ..)| *session);
    let session = last_session.max(newest) + 1;
    let named = |error| CacheError::io("write", &dir.join(LOCK), error);
    sign_lock(&lock, session).and_then(|()| durable::sync_dir(dir)).map_err(named)?;

    let marker = take_marker(dir)?;
    let unclean = marker.is_none() && !found.is_empty();
    let names = Names { dir: segments, session, next: u32::try_from(found.len()).unwrap_or(u32::MAX) };
    let mut state = State::new(config.limit.0, config.segment_bytes(), names);
    let digest = marker.as_ref().and_then(|marker| marker.index);
    let saved = saved::take(dir, digest).unwrap_or_else(|error| {
        warn!(dir = %dir.display(), %error, "the saved index of the cache cannot be read; reading all segments");
        None
    });
    let length = |path: &Path| path.metadata().map_or(u64::MAX, |file| file.len());
    let as_found = found.iter().map(|(session, number, path)| (*session, *number, length(path)));
    if let Some(saved) = saved.filter(|saved| saved.is_of(as_found)) {
        state.adopt_saved(saved, found.into_iter().map(|(_, _, path)| path.into()));
        let numbers: Vec<u32> = state.segments.keys().copied().collect();
        numbers.into_iter().try_for_each(|number| unlink_if_spent(&mut state, number))?;
    } else {
        for (number, (_, _, path)) in found.into_iter().enumerate() {
            let number = u32::try_from(number).expect("fewer than 2^32 files");
            take_up(&mut state, number, &path, marker.as_ref())?;
        }
    }
    shrink_to_limit(&mut state)?;
    Ok(Opened { lock, state, unclean })
}

/// Every grain on disk in `dir` with its class and place, oldest segment first, whether or not a cache has it open.
/// Read-only; grains that the cache has discarded may be among them, and one grain may appear twice (the later counts).
///
/// # Errors
///
/// When the directory cannot be read.
pub fn scan(dir: impl AsRef<Path>) -> Result<Vec<(GrainKey, Class, Location)>, CacheError> {
    let mut grains = Vec::new();
    for (_, _, path) in list_segments(&dir.as_ref().join("segments"))? {
        // A segment may be unlinked meanwhile, by the cache that owns it.
        let Some((file, _)) = open_existing(&path)? else { continue };
        let Contents::Segment { class, records, .. } = read_contents(&file, &path)? else { continue };
        let segment: Arc<Path> = path.into();
        grains.extend(records.into_iter().map(|found| {
            let (offset, len) = (found.offset, found.len);
            let location = Location { segment: segment.clone(), offset, len, needs_verification: true };
            (found.key, class.clone(), location)
        }));
    }
    Ok(grains)
}

/// Leaves the directory in order. Everything in its segments is durable already.
pub(super) fn write_marker(dir: &Path, marker: &Marker) -> Result<(), CacheError> {
    let bytes = serde_json::to_vec(marker).expect("a marker is plain data");
    durable::replace(dir, CLEAN, &bytes).map_err(|error| CacheError::io("write", &dir.join(CLEAN), error))
}

/// From here on, a stop is unclean.
pub(super) fn remove_marker(dir: &Path) -> Result<(), CacheError> {
    let path = dir.join(CLEAN);
    durable::remove(&path).map_err(|error| CacheError::io("remove", &path, error))
}

fn take_marker(dir: &Path) -> Result<Option<Marker>, CacheError> {
    let path = dir.join(CLEAN);
    let bytes = durable::read(&path).map_err(|error| CacheError::io("read", &path, error))?;
    remove_marker(dir)?;
    let marker = bytes.and_then(|bytes| serde_json::from_slice::<Marker>(&bytes).ok());
    Ok(marker.filter(|marker| marker.format == MARKER_FORMAT))
}

/// Locks the directory against other caches; gives the lock and the number of the last session.
fn take_lock(dir: &Path) -> Result<(File, u32), CacheError> {
    let path = dir.join(LOCK);
    let io = |error| CacheError::io("lock", &path, error);
    let mut lock =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
    let locked = lock.try_lock();
    let mut text = String::new();
    lock.read_to_string(&mut text).map_err(io)?;
    let mut words = text.split_whitespace();
    let holder = words.next().and_then(|word| word.parse().ok());
    match locked {
        Ok(()) => Ok((lock, words.next().and_then(|word| word.parse().ok()).unwrap_or(0))),
        Err(TryLockError::WouldBlock) => Err(CacheError::InUse { dir: dir.into(), pid: holder }),
        Err(TryLockError::Error(error)) => Err(io(error)),
    }
}

fn sign_lock(mut lock: &File, session: u32) -> io::Result<()> {
    lock.rewind()?;
    let text = format!("{} {session}\n", std::process::id());
    lock.write_all(text.as_bytes())?;
    lock.set_len(text.len() as u64)?;
    lock.sync_all()
}

/// The segment files in age order.
fn list_segments(segments: &Path) -> Result<Vec<(u32, u32, PathBuf)>, CacheError> {
    let list = || -> io::Result<Vec<_>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(segments)? {
            let entry = entry?;
            if let Some((session, number)) = entry.file_name().to_str().and_then(parse_segment_name) {
                found.push((session, number, entry.path()));
            }
        }
        found.sort();
        Ok(found)
    };
    list().map_err(|error| CacheError::io("list", segments, error))
}

fn open_existing(path: &Path) -> Result<Option<(File, u64)>, CacheError> {
    let open = || -> io::Result<(File, u64)> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        Ok((file, bytes))
    };
    match open() {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CacheError::io("open", path, error)),
    }
}

fn read_contents(file: &File, path: &Path) -> Result<Contents, CacheError> {
    format::read_contents(file).map_err(|error| CacheError::io("read", path, error))
}

/// Indexes the records of the segment at `path`; unlinks it when nothing can be found in it.
fn take_up(state: &mut State, number: u32, path: &Path, marker: Option<&Marker>) -> Result<(), CacheError> {
    let read = || -> Result<Option<(Contents, u64)>, CacheError> {
        let Some((file, bytes)) = open_existing(path)? else { return Ok(None) };
        Ok(Some((read_contents(&file, path)?, bytes)))
    };
    let (class, records, bytes, end) = match read() {
        Ok(None) => return Ok(()),
        Ok(Some((Contents::Segment { class, records, end }, bytes))) => (class, records, bytes, end),
        Ok(Some((Contents::Torn, _))) => return unlink(path),
        Ok(Some((Contents::TooNew(found), _))) => {
            return Err(CacheError::TooNew { path: path.into(), found });
        }
        Err(error) => {
            // A bad place on the disk costs what lay there.
            warn!(
                error = &error as &dyn std::error::Error,
                "a segment of the cache cannot be read; continuing without it"
            );
            if unlink(path).is_err() {
                state.doomed.push(Doomed { path: path.into(), bytes: 0 });
            }
            return Ok(());
        }
    };
    state.adopt(number, class, path.into(), bytes, end);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let dead = marker.and_then(|marker| marker.dead.get(name)).map_or(&[][..], Vec::as_slice);
    let suspect = marker.is_none_or(|marker| marker.suspect.iter().any(|suspect| suspect == name));
    for found in records {
        let record = found.offset - format::RECORD_HEADER;
        if dead.iter().any(|offset| u64::from(*offset) == found.offset) {
            state.note_dead(&found.key, number, record);
        } else if let Some(older) = state.index.get(&found.key).map(|place| place.segment) {
            state.publish(&found.key, number, record, found.len, suspect);
            unlink_if_spent(state, older)?;
        } else {
            state.publish(&found.key, number, record, found.len, suspect);
        }
    }
    unlink_if_spent(state, number)
}

fn unlink_if_spent(state: &mut State, number: u32) -> Result<(), CacheError> {
    if state.is_spent(number) { unlink_segment(state, number) } else { Ok(()) }
}

/// A limit lowered since the last opening holds at once: the oldest segments go.
fn shrink_to_limit(state: &mut State) -> Result<(), CacheError> {
    while state.used > state.limit {
        let (oldest, segment) = state.segments.iter().next().expect("each used byte is in a segment");
        warn!(segment = %segment.path.display(), limit = state.limit, "cache above its limit, dropping its oldest segment");
        unlink_segment(state, *oldest)?;
    }
    Ok(())
}

fn unlink_segment(state: &mut State, number: u32) -> Result<(), CacheError> {
    let Some((doomed, _)) = state.remove(number) else { return Ok(()) };
    unlink(&doomed.path)?;
    state.unlinked(&doomed.path);
    Ok(())
}

/// Removes a segment file. It need not be there.
pub(super) fn unlink(path: &Path) -> Result<(), CacheError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CacheError::io("remove", path, error)),
        _ => Ok(()),
    }
}
