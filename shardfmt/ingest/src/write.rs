//! The second pass: shards of the rows in their order.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use shardfmt::Provenance;
use shardfmt::manifest::{Manifest, ShardEntry};
use shardfmt::row::RowCodec;
use shardfmt::shard::{Compression, FinishedShard, ShardError, ShardWriter};
use shardfmt::size::ByteSize;

use super::cut::Cut;
use super::ingested::Ingested;
use super::layout::Layout;
use super::permits::Permits;
use super::read::{Ingest, ReadPart, spill_error};
use super::sorter::{Part, Sorted};
use super::work::{StoredShard, Work};
use super::{IngestConfig, IngestError, Mix, Progress, Resources, Sink, pipeline};

/// How many times the size of a shard it takes to make one: its rows, its file, and what lies between.
const SHARD_MEMORY: u64 = 3;
/// Shards that are being stored while others are made: most of that is waiting.
const STORED_AT_ONCE: usize = 4;

/// The result of an ingest: versions of shards that are stored.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kept.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let sink = Kept::default();
/// use shardd_ingest::{Ingest, IngestConfig, Inputs, NoProgress, Resources, Source};
///
/// let config = IngestConfig::default();
/// let source = Source::new(Inputs::in_memory("words.csv", "word\ncat\ndog\n"), &config)?;
/// let read = Ingest::read(source, &config, &[], &Resources::threads(1), &NoProgress)?;
/// let written = read.write(None, &sink, &NoProgress)?;
/// // Commit written.versions() here, and then forget the progress.
/// let versions = written.finish();
/// assert_eq!(versions[0].manifest.sample_count(), 2);
/// # Ok(())
/// # }
/// ```
pub struct Written {
    versions: Vec<Ingested>,
    work: Work,
}

impl Written {
    /// The versions that were asked for.
    pub fn versions(&self) -> &[Ingested] {
        &self.versions
    }

    /// Forgets how they were made: call it when they are committed. An ingest that is killed before has little to do when
    /// it is run again.
    pub fn finish(self) -> Vec<Ingested> {
        self.work.remove();
        self.versions
    }
}

impl Ingest {
    /// Writes the shards of all versions to `sink`, aiming at `shard_size` or, without one, the default for the data.
    ///
    /// # Errors
    /// As [`ingest`](super::ingest); running the same ingest again continues from the stored shards.
    pub fn write(
        self,
        shard_size: Option<ByteSize>,
        sink: &dyn Sink,
        progress: &dyn Progress,
    ) -> Result<Written, IngestError> {
        let Ingest { source, codec, config, resources, work, parts, inputs, skipped, stored } = self;
        let (pool, permits) = (resources.pool(STORED_AT_ONCE)?, Permits::new(resources.threads.max(1)));
        let mut parts = VecDeque::from(parts);
        let mut versions = Vec::new();
        while let Some(part) = parts.pop_front() {
            let cut = Cut::new(part.rows, part.bytes, shard_size);
            let cut = match config.mix {
                Mix::Stratified(_) => cut.dealt(),
                Mix::Hash => cut.by_key(),
                Mix::Random | Mix::Sequential => cut,
            };
            let recorded = IngestConfig {
                shard_size: Some(cut.size),
                under: config.folder()?,
                take: part.take,
                ..config.clone()
            };
            let number = versions.len();
            let writing = Writing {
                codec: &codec,
                compression: config.compression,
                resources: &resources,
                work: &work,
                number,
                cut,
                stored: of_cut(&stored, number, cut),
                permits: &permits,
                waiting: parts.iter().map(ReadPart::held).sum(),
                sink,
                progress,
            };
            let shards = match pool.install(|| writing.run(part, &config)) {
                Ok(shards) => shards,
                Err(error) => return Err(work.end(error)),
            };
            let layout = Layout::of(&recorded).config();
            let manifest = Manifest::new(source.schema().clone(), shards, layout);
            let provenance = Provenance::new(recorded.record(), inputs.clone());
            versions.push(Ingested {
                manifest,
                provenance: Provenance { skipped: skipped.clone(), ..provenance },
            });
        }
        Ok(Written { versions, work })
    }
}

/// The shards of a version that are on the list and hold the rows that this cut puts there, by index.
fn of_cut(stored: &[StoredShard], part: usize, cut: Cut) -> HashMap<usize, ShardEntry> {
    let is_of_cut = |shard: &&StoredShard| shard.part == part && shard.rows_per_shard == cut.rows_per_shard();
    stored.iter().filter(is_of_cut).map(|shard| (shard.index, shard.entry.clone())).collect()
}

/// The writing of one version.
struct Writing<'w> {
    codec: &'w RowCodec,
    compression: Compression,
    resources: &'w Resources,
    work: &'w Work,
    /// Which of the versions of this ingest.
    number: usize,
    cut: Cut,
    /// The stored shards of earlier attempts at this cut, by index.
    stored: HashMap<usize, ShardEntry>,
    /// To make a shard.
    permits: &'w Permits,
    /// Bytes that the rows of versions to come take in memory.
    waiting: u64,
    sink: &'w dyn Sink,
    progress: &'w dyn Progress,
}

/// A shard to be made, of rows of some parts.
struct Job {
    index: usize,
    rows: Vec<(Arc<Part>, Range<usize>)>,
}

impl Writing<'_> {
    fn run(mut self, part: ReadPart, config: &IngestConfig) -> Result<Vec<ShardEntry>, IngestError> {
        self.check_stored()?;
        let failed = |error| spill_error(self.resources, error);
        let rows = Rows::new(part.sorted(config, self.resources, self.work, &self.cut).map_err(failed)?);
        let shard_memory = self.cut.size.0.saturating_mul(SHARD_MEMORY).max(1);
        let free = self.resources.memory.0.saturating_sub(rows.held() + self.waiting);
        let in_flight = (free / 4 * 3 / shard_memory).max(1);
        let in_flight = in_flight.min(rayon::current_num_threads() as u64 + 1) as usize;
        let mut entries = Vec::with_capacity(self.cut.shard_count());
        pipeline::in_order(
            in_flight,
            |push| self.jobs(rows, push),
            |job| self.make(job),
            |entry: ShardEntry| {
                self.progress.advanced(u64::from(entry.rows), entry.row_bytes, "writing");
                entries.push(entry);
                Ok(())
            },
        )?;
        Ok(entries)
    }

    /// Keeps of the shards on the list those that are really stored.
    fn check_stored(&mut self) -> Result<(), IngestError> {
        let (sink, mut failure) = (self.sink, Ok(()));
        self.stored.retain(|_, entry| {
            failure.is_ok()
                && sink.has_shard(&entry.id).unwrap_or_else(|source| {
                    failure = Err(IngestError::Sink { shard: entry.id, source });
                    false
                })
        });
        failure
    }

    /// All shards in order, those that are stored without their rows.
    fn jobs(
        &self,
        mut rows: Rows,
        push: &mut dyn FnMut(Job) -> Result<(), IngestError>,
    ) -> Result<(), IngestError> {
        let failed = |error| spill_error(self.resources, error);
        for index in 0..self.cut.shard_count() {
            if let Some(keys) = self.cut.keys_below(index) {
                let mut own = rows.take_below(keys).map_err(failed)?;
                // Of few rows, a shard may get none.
                if own.is_empty() {
                    continue;
                }
                if self.stored.contains_key(&index) {
                    own.clear();
                }
                push(Job { index, rows: own })?;
                continue;
            }
            let positions = self.cut.positions(index);
            let rows = if self.stored.contains_key(&index) {
                rows.pass(positions.end - positions.start).map_err(failed)?;
                Vec::new()
            } else {
                rows.take(positions.end - positions.start).map_err(failed)?
            };
            push(Job { index, rows })?;
        }
        Ok(())
    }

    fn make(&self, Job { index, rows }: Job) -> Result<ShardEntry, IngestError> {
        if let Some(entry) = self.stored.get(&index) {
            return Ok(entry.clone());
        }
        let shard =
            self.permits.with(|| self.write(rows)).map_err(|source| IngestError::Shard { index, source })?;
        let (id, entry) = (shard.id, shard.entry.clone());
        self.sink.put_shard(shard).map_err(|source| IngestError::Sink { shard: id, source })?;
        let (part, rows_per_shard) = (self.number, self.cut.rows_per_shard());
        self.work
            .shard(StoredShard { part, rows_per_shard, index, entry: entry.clone() })
            .map_err(|error| spill_error(self.resources, error))?;
        Ok(entry)
    }

    fn write(&self, rows: Vec<(Arc<Part>, Range<usize>)>) -> Result<FinishedShard, ShardError> {
        let mut writer = ShardWriter::with_compression(self.codec.schema().clone(), self.compression)?;
        let rows = || rows.iter().flat_map(|(part, range)| part.rows(range.clone())).map(|(_, row)| row);
        if self.compression == Compression::None {
            writer.reserve(rows().map(|row| row.len() as u64).sum());
        }
        writer.push_rows(rows())?;
        writer.finish()
    }
}

/// The rows in order, handed out by number.
struct Rows {
    sorted: Sorted,
    part: Option<(Arc<Part>, usize)>,
    /// Unwanted rows of parts to come.
    passed: u64,
}

impl Rows {
    fn new(sorted: Sorted) -> Rows {
        Rows { sorted, part: None, passed: 0 }
    }

    /// Bytes that the rows take in memory from the beginning.
    fn held(&self) -> u64 {
        self.sorted.held()
    }

    /// Passes over the next rows, reading as few as possible.
    fn pass(&mut self, count: u64) -> std::io::Result<()> {
        self.passed += count;
        if let Some((part, at)) = &mut self.part {
            let step = self.passed.min((part.len() - *at) as u64);
            *at += step as usize;
            self.passed -= step;
            if *at < part.len() {
                return Ok(());
            }
            self.part = None;
        }
        while let Some(rows) = self.sorted.next_rows().filter(|rows| *rows <= self.passed) {
            self.sorted.skip_part();
            self.passed -= rows;
        }
        Ok(())
    }

    /// The next rows whose keys are below that.
    fn take_below(&mut self, keys: u128) -> std::io::Result<Vec<(Arc<Part>, Range<usize>)>> {
        let mut taken = Vec::new();
        loop {
            let (part, start) = match self.part.take() {
                Some(part) => part,
                None => match self.sorted.next_part()? {
                    Some(part) => (Arc::new(part), 0),
                    None => return Ok(taken),
                },
            };
            let end = part.end_below(start, keys);
            if end > start {
                taken.push((part.clone(), start..end));
            }
            if end < part.len() {
                self.part = Some((part, end));
                return Ok(taken);
            }
        }
    }

    /// The next rows.
    fn take(&mut self, count: u64) -> std::io::Result<Vec<(Arc<Part>, Range<usize>)>> {
        let (mut taken, mut missing) = (Vec::new(), count);
        while missing > 0 {
            let (part, at) = match self.part.take() {
                Some(part) => part,
                None => {
                    let part = self.sorted.next_part()?.ok_or(std::io::ErrorKind::UnexpectedEof)?;
                    (Arc::new(part), 0)
                }
            };
            let passed = self.passed.min((part.len() - at) as u64);
            self.passed -= passed;
            let start = at + passed as usize;
            let end = start + missing.min((part.len() - start) as u64) as usize;
            missing -= (end - start) as u64;
            if end > start {
                taken.push((part.clone(), start..end));
            }
            if end < part.len() {
                self.part = Some((part, end));
            }
        }
        Ok(taken)
    }
}
