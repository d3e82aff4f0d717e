//! Sorts rows by key in bounded memory: keeps them where they were encoded until they are too many, then writes them to
//! disk by parts of the key range, and gives them back part by part, each sorted. Knows nothing of what rows are.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use shardfmt::size::ByteSize;

use super::spill_file::Place;

/// Before each row on disk: its key, its number, its length.
const HEADER: usize = 20;
const MOST_BUCKETS: u64 = 4096;
/// Bytes that a block may have: 32 bits address its contents.
pub(super) const LARGEST_BLOCK: usize = u32::MAX as usize;
/// Rows that come back together take at most this, so that offsets stay small and shards overlap.
const LARGEST_PART: u64 = 1 << 30;

/// A row among some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) key: u64,
    /// Its number in input order.
    pub(super) number: u64,
    block: u32,
    start: u32,
    length: u32,
}

/// Encoded rows, one after the other, and the key, number and end of each.
#[derive(Default)]
pub(super) struct Block {
    pub(super) bytes: Vec<u8>,
    pub(super) rows: Vec<(u64, u64, usize)>,
}

/// Rows that lie next to each other in the order.
pub(super) struct Part {
    blocks: Arc<Vec<Vec<u8>>>,
    rows: Vec<Row>,
}

impl Part {
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Where the rows from `from` on whose keys are below that end.
    pub(super) fn end_below(&self, from: usize, keys: u128) -> usize {
        from + self.rows[from..].partition_point(|row| u128::from(row.key) < keys)
    }

    /// The rows in order: for each its key, number and bytes.
    pub(super) fn rows(&self, range: Range<usize>) -> impl Iterator<Item = (Row, &[u8])> {
        self.rows[range].iter().map(|row| {
            let start = row.start as usize;
            (*row, &self.blocks[row.block as usize][start..start + row.length as usize])
        })
    }
}

/// How the range of keys is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Buckets {
    /// Keys are spread over all 64 bits: each bucket is a part of equal width.
    Spread {
        /// How many; a power of two.
        count: u64,
    },
    /// Rows keep the order in which they come, whatever their keys: a bucket takes rows until it holds this
    /// many bytes.
    AsTheyCome {
        /// Bytes of one bucket.
        bytes: u64,
    },
}

impl Buckets {
    /// Buckets of a size that fits memory several times, for rows of about `expected` bytes in all.
    pub(super) fn spread(expected: u64, memory: ByteSize) -> Buckets {
        let count = expected.div_ceil(part_bytes(memory)).clamp(16, MOST_BUCKETS).next_power_of_two();
        Buckets::Spread { count }
    }

    pub(super) fn as_they_come(memory: ByteSize) -> Buckets {
        Buckets::AsTheyCome { bytes: part_bytes(memory) }
    }

    fn sort(self, rows: &mut [Row]) {
        match self {
            Buckets::Spread { .. } => rows.par_sort_unstable_by_key(|row| (row.key, row.number)),
            Buckets::AsTheyCome { .. } => {}
        }
    }
}

/// The memory of rows.
fn weight(rows: usize, bytes: usize) -> u64 {
    (rows * size_of::<Row>()) as u64 + bytes as u64
}

/// The share of `memory` for the rows of a part.
fn part_bytes(memory: ByteSize) -> u64 {
    (memory.0 / 16).clamp(1 << 20, LARGEST_PART)
}

/// Where rows of a bucket lie on disk: from where, how many bytes, how many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    offset: u64,
    bytes: u64,
    rows: u64,
}

/// The part written to disk at once: the rows of some buckets, one after the other. Bucket, bytes and rows of
/// each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Spill(Vec<(usize, u64, u64)>);

/// Rows that were written to disk, spill by spill, in one file: enough to read them again in another process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spilled {
    /// For each bucket its extents, oldest first.
    buckets: Vec<Vec<Extent>>,
    /// Bytes of the file.
    length: u64,
}

impl Spilled {
    /// Takes in what follows all others in the file.
    pub(super) fn add(&mut self, spill: &Spill) {
        for &(bucket, bytes, rows) in &spill.0 {
            if self.buckets.len() <= bucket {
                self.buckets.resize(bucket + 1, Vec::new());
            }
            self.buckets[bucket].push(Extent { offset: self.length, bytes, rows });
            self.length += bytes;
        }
    }

    /// Bytes of the file that holds the rows.
    pub(super) fn length(&self) -> u64 {
        self.length
    }
}

/// Rows being collected.
pub(super) struct Sorter {
    buckets: Buckets,
    memory: ByteSize,
    limit: u64,
    blocks: Vec<Vec<u8>>,
    rows: Vec<Row>,
    held: u64,
    spilled: Spilled,
    /// Of the rows on disk; made for the first.
    file: Option<File>,
    place: Place,
}

impl Sorter {
    /// An empty sorter that holds at most about `limit` bytes in memory while rows are added.
    pub(super) fn new(buckets: Buckets, memory: ByteSize, limit: u64, place: Place) -> Sorter {
        Sorter {
            buckets,
            memory,
            limit,
            blocks: Vec::new(),
            rows: Vec::new(),
            held: 0,
            spilled: Spilled::default(),
            file: None,
            place,
        }
    }

    /// A sorter with the rows that an earlier one left at the same place.
    pub(super) fn resume(
        buckets: Buckets,
        memory: ByteSize,
        limit: u64,
        place: Place,
        spilled: Spilled,
    ) -> io::Result<Sorter> {
        let file = if spilled.length > 0 { Some(place.open(spilled.length)?) } else { None };
        Ok(Sorter { spilled, file, ..Sorter::new(buckets, memory, limit, place) })
    }

    /// Whether `rows` and `bytes` more fit memory. The first always do.
    pub(super) fn has_room(&self, rows: usize, bytes: usize) -> bool {
        self.held == 0 || self.held.saturating_add(weight(rows, bytes)) <= self.limit
    }

    /// Adds rows, whether or not there is room.
    ///
    /// # Panics
    /// When the block has more than [`LARGEST_BLOCK`] bytes.
    pub(super) fn add(&mut self, mut block: Block) {
        if block.rows.is_empty() {
            return;
        }
        block.bytes.shrink_to_fit();
        self.held += weight(block.rows.len(), block.bytes.len());
        let number = small(self.blocks.len());
        let mut start = 0;
        self.rows.reserve(block.rows.len());
        for (key, row, end) in block.rows {
            self.rows.push(Row {
                key,
                number: row,
                block: number,
                start: small(start),
                length: small(end - start),
            });
            start = end;
        }
        self.blocks.push(block.bytes);
    }

    /// Adds rows, after writing to disk what there is when there is no room.
    pub(super) fn add_or_spill(&mut self, block: Block) -> io::Result<()> {
        if !self.has_room(block.rows.len(), block.bytes.len()) {
            self.spill()?;
        }
        self.add(block);
        Ok(())
    }

    pub(super) fn buckets(&self) -> Buckets {
        self.buckets
    }

    /// Bytes of the rows in memory.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Whether rows were written to disk.
    pub(super) fn has_spilled(&self) -> bool {
        self.spilled.length > 0
    }

    /// Writes all rows in memory to disk, bucket by bucket.
    pub(super) fn spill(&mut self) -> io::Result<Spill> {
        let mut spill = Spill::default();
        if self.rows.is_empty() {
            return Ok(spill);
        }
        if self.file.is_none() {
            self.file = Some(self.place.create()?);
        }
        let mut file = self.file.as_ref().expect("made just now");
        file.seek(SeekFrom::Start(self.spilled.length))?;
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        self.buckets.sort(&mut self.rows);
        let mut at = 0;
        while at < self.rows.len() {
            let (bucket, end) = self.next_bucket(at, spill.0.len());
            let mut bytes = 0;
            for row in &self.rows[at..end] {
                let start = row.start as usize;
                writer.write_all(&row.key.to_le_bytes())?;
                writer.write_all(&row.number.to_le_bytes())?;
                writer.write_all(&row.length.to_le_bytes())?;
                writer.write_all(&self.blocks[row.block as usize][start..start + row.length as usize])?;
                bytes += HEADER as u64 + u64::from(row.length);
            }
            spill.0.push((bucket, bytes, (end - at) as u64));
            at = end;
        }
        writer.flush()?;
        if self.place.is_kept() {
            file.sync_data()?;
        }
        drop(writer);
        self.spilled.add(&spill);
        self.blocks = Vec::new();
        self.rows = Vec::new();
        self.held = 0;
        Ok(spill)
    }

    /// The bucket of the sorted row at `at`, and where the rows of that bucket end. It is the number of
    /// buckets in this spill already.
    fn next_bucket(&self, at: usize, already: usize) -> (usize, usize) {
        let rest = &self.rows[at..];
        match self.buckets {
            Buckets::Spread { count } => {
                let shift = 64 - count.ilog2();
                let bucket = rest[0].key >> shift;
                (bucket as usize, at + rest.partition_point(|row| row.key >> shift <= bucket))
            }
            Buckets::AsTheyCome { bytes: most } => {
                let mut bytes = 0;
                let fits = |row: &&Row| {
                    bytes += HEADER as u64 + u64::from(row.length);
                    bytes <= most
                };
                (self.spilled.buckets.len() + already, at + rest.iter().take_while(fits).count().max(1))
            }
        }
    }

    /// Ends the adding: the rows can be read in order.
    pub(super) fn finish(mut self) -> io::Result<Sorted> {
        if self.has_spilled() {
            self.spill()?;
        }
        self.buckets.sort(&mut self.rows);
        let most = part_bytes(self.memory);
        let spilled = self.spilled.buckets;
        let mut parts = VecDeque::new();
        for (bucket, extents) in spilled.into_iter().enumerate() {
            let bytes: u64 = extents.iter().map(|extent| extent.bytes).sum();
            let extents: Arc<[Extent]> = extents.into();
            match self.buckets {
                Buckets::Spread { count } => {
                    let width = 1u128 << (64 - count.ilog2());
                    let pieces = u128::from(bytes.div_ceil(most).next_power_of_two()).min(width);
                    let first = bucket as u128 * width;
                    for piece in 0..pieces {
                        let keys = first + piece * (width / pieces)..first + (piece + 1) * (width / pieces);
                        parts.push_back(PartOnDisk { extents: extents.clone(), keys, share: pieces as u64 });
                    }
                }
                Buckets::AsTheyCome { .. } => {
                    parts.push_back(PartOnDisk { extents, keys: 0..1 << 64, share: 1 });
                }
            }
        }
        let held = (!self.rows.is_empty()).then(|| Part { blocks: Arc::new(self.blocks), rows: self.rows });
        Ok(Sorted { held_bytes: self.held, held, parts, file: self.file, buckets: self.buckets })
    }
}

struct PartOnDisk {
    extents: Arc<[Extent]>,
    keys: Range<u128>,
    /// Of how many parts of the same extents this is one.
    share: u64,
}

/// All rows, in order, part by part.
pub(super) struct Sorted {
    held: Option<Part>,
    held_bytes: u64,
    parts: VecDeque<PartOnDisk>,
    file: Option<File>,
    buckets: Buckets,
}

impl Sorted {
    /// The next rows in order, read from disk if they are there.
    pub(super) fn next_part(&mut self) -> io::Result<Option<Part>> {
        if let Some(part) = self.held.take() {
            return Ok(Some(part));
        }
        let Some(part) = self.parts.pop_front() else { return Ok(None) };
        self.load(&part).map(Some)
    }

    /// The bytes of the rows that never left memory.
    pub(super) fn held(&self) -> u64 {
        self.held_bytes
    }

    /// How many rows the next part has, if they are on disk and that is known without reading them.
    pub(super) fn next_rows(&self) -> Option<u64> {
        let part = self.parts.front().filter(|part| self.held.is_none() && part.share == 1)?;
        Some(part.extents.iter().map(|extent| extent.rows).sum())
    }

    /// Passes over the next part, which is on disk.
    pub(super) fn skip_part(&mut self) {
        self.parts.pop_front();
    }

    fn load(&self, part: &PartOnDisk) -> io::Result<Part> {
        let file = self.file.as_ref().expect("rows on disk are in a file");
        let count: u64 = part.extents.iter().map(|extent| extent.rows).sum();
        let mut rows = Vec::with_capacity((count / part.share) as usize);
        let mut blocks = Vec::with_capacity(part.extents.len());
        for extent in &*part.extents {
            let kept = if part.share == 1 {
                let mut bytes = vec![0; usize::try_from(extent.bytes).map_err(io::Error::other)?];
                file.read_exact_at(&mut bytes, extent.offset)?;
                bytes
            } else {
                keep_keys(file, extent, &part.keys)?
            };
            index(&kept, blocks.len() as u32, &mut rows)?;
            blocks.push(kept);
        }
        self.buckets.sort(&mut rows);
        Ok(Part { blocks: Arc::new(blocks), rows })
    }
}

/// The rows of an extent whose keys lie in a range, and their headers.
fn keep_keys(file: &File, extent: &Extent, keys: &Range<u128>) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    let (mut at, end) = (extent.offset, extent.offset + extent.bytes);
    let mut buffer = Vec::new();
    while at < end {
        // Large enough for many rows, and for a whole one when that is larger.
        let want = (end - at).min((1 << 20).max(buffer.capacity() as u64)) as usize;
        buffer.resize(want, 0);
        file.read_exact_at(&mut buffer, at)?;
        let mut used = 0;
        while let Some((key, _, length)) = header(&buffer[used..]) {
            let Some(row) = buffer.get(used..used + HEADER + length) else {
                buffer.reserve(HEADER + length);
                break;
            };
            if keys.contains(&u128::from(key)) {
                kept.extend_from_slice(row);
            }
            used += row.len();
        }
        if used == 0 && want as u64 == end - at {
            return Err(cut_off());
        }
        at += used as u64;
    }
    Ok(kept)
}

fn index(bytes: &[u8], block: u32, rows: &mut Vec<Row>) -> io::Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        let (key, number, length) = header(&bytes[at..]).ok_or_else(cut_off)?;
        let start = at + HEADER;
        at = start + length;
        if at > bytes.len() {
            return Err(cut_off());
        }
        let start = u32::try_from(start).map_err(io::Error::other)?;
        rows.push(Row { key, number, block, start, length: length as u32 });
    }
    Ok(())
}

fn header(bytes: &[u8]) -> Option<(u64, u64, usize)> {
    let (key, rest) = bytes.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    let (length, _) = rest.split_first_chunk()?;
    Some((u64::from_le_bytes(*key), u64::from_le_bytes(*number), u32::from_le_bytes(*length) as usize))
}

/// Blocks count in 32 bits: callers keep them small.
fn small(number: usize) -> u32 {
    u32::try_from(number).expect("blocks have less than 4 GiB, and there are fewer than 2^32")
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a temporary file of rows is damaged")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Rows = Vec<(u64, Vec<u8>)>;

    fn blocks(rows: &Rows, each: usize) -> Vec<Block> {
        let mut number = 0;
        let block = |rows: &[(u64, Vec<u8>)]| {
            let mut block = Block::default();
            for (key, bytes) in rows {
                block.bytes.extend(bytes);
                block.rows.push((*key, number, block.bytes.len()));
                number += 1;
            }
            block
        };
        rows.chunks(each).map(block).collect()
    }

    fn sort(rows: &Rows, each: usize, buckets: Buckets, limit: u64) -> Rows {
        let mut sorter = Sorter::new(buckets, ByteSize(1), limit, Place::unlinked());
        for block in blocks(rows, each) {
            sorter.add_or_spill(block).unwrap();
        }
        in_order(sorter)
    }

    fn in_order(sorter: Sorter) -> Rows {
        let mut sorted = sorter.finish().unwrap();
        let mut out = Vec::new();
        while let Some(part) = sorted.next_part().unwrap() {
            out.extend(part.rows(0..part.len()).map(|(row, bytes)| (row.key, bytes.to_vec())));
        }
        out
    }

    proptest! {
        #[test]
        fn rows_come_back_sorted_whatever_fits_memory(
            rows in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..50)), 0..200),
            each in 1..20usize,
            limit in 0..4000u64,
            count in 0..6u32,
        ) {
            let mut expected = rows.clone();
            expected.sort_by_key(|row| row.0); // stable: as they came
            prop_assert_eq!(sort(&rows, each, Buckets::Spread { count: 2 << count }, limit), expected);
        }

        #[test]
        fn rows_on_disk_are_found_by_who_adds_up_the_spills(
            rows in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..50)), 0..200),
            each in 1..20usize,
            stops in prop::collection::btree_set(0..20usize, 0..5),
            is_spread: bool,
        ) {
            let directory = tempfile::tempdir().unwrap();
            let place = Place::Kept(directory.path().join("rows"));
            let buckets = if is_spread { Buckets::Spread { count: 8 } } else { Buckets::AsTheyCome { bytes: 300 } };
            let mut sorter = Sorter::new(buckets, ByteSize(1), u64::MAX, place.clone());
            let mut spills: Vec<Spill> = Vec::new();
            for (number, block) in blocks(&rows, each).into_iter().enumerate() {
                sorter.add(block);
                if stops.contains(&number) {
                    spills.push(sorter.spill().unwrap());
                    let mut spilled = Spilled::default();
                    spills.iter().for_each(|spill| spilled.add(spill));
                    // The unfinished write when the other process ended.
                    let mut file = File::options().append(true).open(directory.path().join("rows")).unwrap();
                    file.write_all(b"half a spill").unwrap();
                    sorter = Sorter::resume(buckets, ByteSize(1), u64::MAX, place.clone(), spilled).unwrap();
                }
            }
            let mut expected = rows.clone();
            if is_spread {
                expected.sort_by_key(|row| row.0); // stable: as they came
            }
            prop_assert_eq!(in_order(sorter), expected);
        }

        #[test]
        fn rows_come_back_as_they_came(
            bytes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..200),
            each in 1..20usize,
            limit in 0..4000u64,
            bucket in 1..500u64,
        ) {
            let rows: Rows = bytes.into_iter().enumerate().map(|(key, bytes)| (key as u64, bytes)).collect();
            prop_assert_eq!(sort(&rows, each, Buckets::AsTheyCome { bytes: bucket }, limit), rows);
        }
    }

    #[test]
    fn a_bucket_that_does_not_fit_is_read_in_parts() {
        // All keys in one bucket of two, six MiB where a part may have one.
        let rows: Rows = (0..600u64)
            .map(|row| (row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1, vec![row as u8; 10_000]))
            .collect();
        let mut expected = rows.clone();
        expected.sort_by_key(|row| row.0);
        assert_eq!(sort(&rows, 7, Buckets::Spread { count: 2 }, 1 << 20), expected);
    }
}
