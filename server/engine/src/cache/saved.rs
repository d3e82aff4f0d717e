//! The index of a cache as an orderly close leaves it in the file `index`, so that opening reads one file instead of hopping
//! over every record of every segment. The marker `clean` has its digest; without that, or when any segment is not as it was,
//! it counts for nothing.
//!
//! ```text
//! magic "SHARDIDX", u32 format, u32 shards, u32 segments, 32 bytes for each shard, then for each segment:
//! u32 session, u32 number, u64 length of the file, u32 class length, u32 records, u32 stray, class as JSON,
//! and for each record u32 shard (its place in the list), u32 g, u32 index, u32 offset, u32 length, u32 state
//! ```
//!
//! Numbers are little-endian. `stray` is 1 if the file has bytes that belong to no record, else 0. A record's state is 0 if it is to be
//! found, 1 if it is suspect, too, 2 if it is dead.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardd_store::durable;
use shardfmt::{Digest, ShardId};

use super::Class;
use super::index::{Index, Place, ShortKey};
use super::state::{Segment, State, parse_segment_name};

const FILE: &str = "index";
const MAGIC: &[u8; 8] = b"SHARDIDX";
const FORMAT: u32 = 2;
const SUSPECT: u32 = 1;
const DEAD: u32 = 2;
/// Bytes of a record.
const RECORD: usize = 24;
/// Bytes that are hashed and written together.
const WRITTEN_AT_ONCE: usize = 1 << 20;

/// The saved state.
#[derive(Default)]
pub(super) struct Saved {
    pub(super) shards: Vec<ShardId>,
    pub(super) segments: Vec<SavedSegment>,
    /// Where grains are, by the place of their segment among the segments.
    pub(super) places: Vec<(ShortKey, Place)>,
}

/// A segment as it was saved.
pub(super) struct SavedSegment {
    session: u32,
    number: u32,
    pub(super) bytes: u64,
    pub(super) class: Class,
    pub(super) records: Vec<(ShortKey, u32)>,
    pub(super) live: u32,
    pub(super) has_stray_bytes: bool,
}

impl State {
    /// Takes up segments as they were saved, each under its place among them; `paths` are their files.
    pub(super) fn adopt_saved(&mut self, saved: Saved, paths: impl Iterator<Item = Arc<Path>>) {
        let Saved { shards, segments, places } = saved;
        self.index = Index::of(shards, &places);
        for ((number, saved), path) in (0..).zip(segments).zip(paths) {
            let SavedSegment { bytes, class, records, live, has_stray_bytes, .. } = saved;
            let segment =
                Segment { class, path, bytes, records, live, writing: 0, dirty: false, has_stray_bytes };
            self.segments.insert(number, segment);
            self.used += bytes;
        }
    }
}

impl Saved {
    /// Whether these segment files, in their order, are those that were saved. `bytes` are their lengths.
    pub(super) fn is_of(&self, mut files: impl ExactSizeIterator<Item = (u32, u32, u64)>) -> bool {
        files.len() == self.segments.len()
            && self
                .segments
                .iter()
                .all(|saved| files.next() == Some((saved.session, saved.number, saved.bytes)))
    }
}

/// Saves the index of the segments of a cache that takes no more grains; gives the digest of the file.
pub(super) fn write(dir: &Path, state: &State) -> io::Result<Digest> {
    let unfinished = unfinished(dir);
    let written = write_all(&unfinished, state).and_then(|digest| {
        fs::rename(&unfinished, dir.join(FILE))?;
        Ok(digest)
    });
    if written.is_err() {
        let _ = fs::remove_file(&unfinished); // it may have taken the last room there was
    }
    written
}

fn unfinished(dir: &Path) -> PathBuf {
    dir.join(format!("{}{FILE}", durable::UNFINISHED))
}

fn write_all(path: &Path, state: &State) -> io::Result<Digest> {
    let hashed = Hashed { file: File::create(path)?, hasher: blake3::Hasher::new() };
    let mut file = BufWriter::with_capacity(WRITTEN_AT_ONCE, hashed);
    let segments: Vec<(u32, &Segment)> = state.segments.iter().map(|(at, segment)| (*at, segment)).collect();
    let shards = state.index.shards();
    file.write_all(MAGIC)?;
    put(&mut file, &[FORMAT, count(shards.len())?, count(segments.len())?])?;
    shards.iter().try_for_each(|shard| file.write_all(&shard.0.0))?;
    for (at, segment) in segments {
        let name = segment.path.file_name().and_then(|name| name.to_str()).and_then(parse_segment_name);
        let (session, number) = name.ok_or(io::ErrorKind::InvalidData)?;
        let class = serde_json::to_vec(&segment.class).expect("a class is plain data");
        put(&mut file, &[session, number])?;
        file.write_all(&fs::metadata(&segment.path)?.len().to_le_bytes())?;
        let stray = u32::from(segment.has_stray_bytes);
        put(&mut file, &[count(class.len())?, count(segment.records.len())?, stray])?;
        file.write_all(&class)?;
        for (key, offset) in &segment.records {
            let place = state.index.get_short(*key).filter(|place| place.is_same(at, *offset));
            let (len, is) = match place {
                Some(place) => (place.len(), if place.is_suspect() { SUSPECT } else { 0 }),
                None => (0, DEAD),
            };
            put(&mut file, &[key.shard, key.rows, key.index, *offset, len, is])?;
        }
    }
    let Hashed { file, hasher } = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(Digest(*hasher.finalize().as_bytes()))
}

/// Takes the saved state, if its digest is `digest`: the file is gone then.
pub(super) fn take(dir: &Path, digest: Option<Digest>) -> io::Result<Option<Saved>> {
    // Of who was stopped while it wrote.
    durable::remove(&unfinished(dir))?;
    let path = dir.join(FILE);
    let bytes = match digest {
        Some(_) => durable::read(&path)?,
        None => None,
    };
    durable::remove(&path)?;
    Ok(bytes.filter(|bytes| digest == Some(Digest::of(bytes))).and_then(|bytes| parse(&bytes)))
}

fn parse(bytes: &[u8]) -> Option<Saved> {
    let mut rest = bytes.strip_prefix(MAGIC)?;
    let [format, shards, segments] = numbers(&mut rest)?;
    if format != FORMAT {
        return None;
    }
    let (shards, _) = split(&mut rest, (shards as usize).checked_mul(32)?)?.as_chunks::<32>();
    let mut saved =
        Saved { shards: shards.iter().map(|id| ShardId(Digest(*id))).collect(), ..Saved::default() };
    saved.places.reserve_exact(rest.len() / RECORD);
    for at in 0..segments {
        let [session, number, low, high, class, records, stray] = numbers(&mut rest)?;
        let class = serde_json::from_slice(split(&mut rest, class as usize)?).ok()?;
        let (records, _) = split(&mut rest, (records as usize).checked_mul(RECORD)?)?.as_chunks::<RECORD>();
        let (bytes, live_before) = ((u64::from(high) << 32) | u64::from(low), saved.places.len());
        let mut kept = Vec::with_capacity(records.len());
        for record in records {
            let [shard, rows, index, offset, len, is] = numbers(&mut &record[..])?;
            let key = ShortKey { shard, rows, index };
            if shard as usize >= saved.shards.len() || u64::from(len) >= Place::MAX_LEN {
                return None;
            }
            kept.push((key, offset));
            if is != DEAD {
                saved.places.push((key, Place::new(at, offset, len, is == SUSPECT)));
            }
        }
        let live = u32::try_from(saved.places.len() - live_before).ok()?;
        let has_stray_bytes = stray != 0;
        saved.segments.push(SavedSegment {
            session,
            number,
            bytes,
            class,
            records: kept,
            live,
            has_stray_bytes,
        });
    }
    rest.is_empty().then_some(saved)
}

fn split<'b>(rest: &mut &'b [u8], length: usize) -> Option<&'b [u8]> {
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(head)
}

#[inline]
fn numbers<const N: usize>(rest: &mut &[u8]) -> Option<[u32; N]> {
    let (words, _) = split(rest, N * 4)?.as_chunks::<4>();
    Some(std::array::from_fn(|at| u32::from_le_bytes(words[at])))
}

fn count(of: usize) -> io::Result<u32> {
    u32::try_from(of).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// A file whose digest is known when it is written.
struct Hashed {
    file: File,
    hasher: blake3::Hasher,
}

/// Writes up to six numbers.
fn put(file: &mut impl Write, numbers: &[u32]) -> io::Result<()> {
    let mut bytes = [0; RECORD];
    for (to, number) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
        *to = number.to_le_bytes();
    }
    file.write_all(&bytes[..numbers.len() * 4])
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
