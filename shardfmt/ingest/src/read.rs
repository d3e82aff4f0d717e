//! The first pass: all rows of the input, checked, encoded, and sorted into their order.

use std::io;
use std::mem;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use shardfmt::row::{RowCodec, RowDigest};
use shardfmt::{InputDigest, Skipped, SkippedList};

use super::cut::Cut;
use super::files::FileChain;
use super::order::{Classes, Deal, HashKeys, RandomKeys};
use super::sorter::{Block, Buckets, LARGEST_BLOCK, Sorted, Sorter};
use super::source::{Faults, Piece};
use super::work::{Checkpoint, Left, NAME_DIGITS, PartCheckpoint, PartSoFar, ReadSoFar, StoredShard, Work};
use super::{
    HashRange, IngestConfig, IngestError, LargestRow, Mix, Progress, Resources, Source, canonical, pipeline,
};

/// The largest memory of a piece on its way: as it is read, decoded, and encoded.
const PIECE_MEMORY: u64 = 16 << 20;
/// What a value takes in a canonical row besides its bytes: its presence, and its length or that of its items.
const CELL_OVERHEAD: usize = 6;
/// A column with more different values than this is no label to stratify by.
const MOST_CLASSES: usize = 1 << 20;
/// Expected rows per byte of input, for inputs that are compressed.
const EXPANSION: u64 = 3;

/// An ingest whose input is read: its rows lie ready, in their order, in memory or on disk.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kept.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let sink = Kept::default();
/// use shardd_ingest::{HashRange, Ingest, IngestConfig, Inputs, NoProgress, Resources, Source};
///
/// // A training set and its hold-out, of one reading.
/// let (config, resources) = (IngestConfig::default(), Resources::threads(1));
/// let csv: String = (0..1000).fold("n\n".into(), |csv, n| csv + &format!("{n}\n"));
/// let source = Source::new(Inputs::in_memory("n.csv", csv), &config)?;
/// let parts = [HashRange::parts(7, 0, 9, 10), HashRange::parts(7, 9, 10, 10)];
/// let read = Ingest::read(source, &config, &parts, &resources, &NoProgress)?;
///
/// let versions = read.write(None, &sink, &NoProgress)?.finish();
/// let samples: Vec<u64> = versions.iter().map(|version| version.manifest.sample_count()).collect();
/// assert!(samples[0] > samples[1] && samples.iter().sum::<u64>() == 1000);
/// # Ok(())
/// # }
/// ```
pub struct Ingest {
    pub(super) source: Source,
    pub(super) codec: RowCodec,
    pub(super) config: IngestConfig,
    pub(super) resources: Resources,
    pub(super) work: Work,
    pub(super) parts: Vec<ReadPart>,
    pub(super) inputs: Vec<InputDigest>,
    pub(super) skipped: SkippedList,
    /// Shards that earlier attempts stored, of whatever cut.
    pub(super) stored: Vec<StoredShard>,
}

/// The rows of one version.
pub(super) struct ReadPart {
    pub(super) take: Option<HashRange>,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    sorter: Sorter,
    classes: Classes,
}

impl Ingest {
    /// Reads all of the source. `parts` are the versions to make of it, each of its own range of rows; without any there
    /// is one, of the range that `config` says.
    ///
    /// # Errors
    /// As [`ingest`](super::ingest); nothing was written to a sink.
    pub fn read(
        source: Source,
        config: &IngestConfig,
        parts: &[HashRange],
        resources: &Resources,
        progress: &dyn Progress,
    ) -> Result<Ingest, IngestError> {
        config.check()?;
        let takes: Vec<Option<HashRange>> = match parts {
            [] => vec![config.take],
            parts if config.take.is_none() => parts.iter().copied().map(Some).collect(),
            _ => {
                return Err(IngestError::Config {
                    setting: "take",
                    reason: "the input is split already".to_owned(),
                    way_out: "use one of the two",
                });
            }
        };
        if let Mix::Stratified(label) = &config.mix {
            check_label(&source, label)?;
        }
        let codec = RowCodec::new(source.schema().clone())
            .map_err(|error| canonical::row_error(source.path(), error))?;
        let pool = resources.pool(0)?;
        // Rows in no file cannot be requested again, so there is nothing to continue.
        let kept = resources.work.as_deref().filter(|_| source.bytes().is_some());
        let (work, left) = Work::open(kept, &name(&source, config, &takes))?;
        let Left { read, shards: stored } = left;
        if let Some(read) = &read {
            progress.resumed(read.rows, stored.len() as u64);
        }
        let reading = Reading::new(&source, &codec, config, &takes, resources, &work, read)
            .map_err(|error| spill_error(resources, error))?;
        let read = pool.install(|| reading.run(progress));
        let ReadInput { parts, inputs, skipped, rows } = match read {
            Ok(read) => read,
            Err(error) => return Err(work.end(error)),
        };
        if let Some(empty) = parts.iter().find(|part| part.rows == 0) {
            let path = source.path().to_owned();
            return Err(work.end(match empty.take {
                Some(_) => IngestError::NothingTaken { path, rows },
                None => IngestError::NoSamples { path, found: nothing_left(&skipped) },
            }));
        }
        let (config, resources) = (config.clone(), resources.clone());
        Ok(Ingest { source, codec, config, resources, work, parts, inputs, skipped, stored })
    }

    /// How many samples the versions will have, in all.
    pub fn sample_count(&self) -> u64 {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// The canonical bytes of their samples, in all.
    pub fn row_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

impl ReadPart {
    /// Bytes that its rows take in memory.
    pub(super) fn held(&self) -> u64 {
        self.sorter.held()
    }

    /// The rows in their order, cut as `cut` says.
    pub(super) fn sorted(
        self,
        config: &IngestConfig,
        resources: &Resources,
        work: &Work,
        cut: &Cut,
    ) -> io::Result<Sorted> {
        let ReadPart { sorter, classes, rows: _, bytes, .. } = self;
        if !matches!(config.mix, Mix::Stratified(_)) {
            return sorter.finish();
        }
        let shards = cut.shard_count() as u64;
        let mut deal = Deal::new(config.seed, &classes.sizes(), shards);
        let width = (1u128 << 64) / u128::from(shards);
        let buckets = Buckets::spread(bytes, resources.memory);
        let mut dealt = Sorter::new(buckets, resources.memory, resources.memory.0 / 4, work.unkept());
        let mut sorted = sorter.finish()?;
        while let Some(part) = sorted.next_part()? {
            let mut block = Block::default();
            for (row, bytes) in part.rows(0..part.len()) {
                if (block.bytes.len() + bytes.len()) as u64 > PIECE_MEMORY {
                    dealt.add_or_spill(mem::take(&mut block))?;
                }
                let (shard, within) = deal.next(row.key as usize, row.number);
                let key = u128::from(shard) * width + ((u128::from(within) * width) >> 64);
                block.bytes.extend_from_slice(bytes);
                block.rows.push((key as u64, row.number, block.bytes.len()));
            }
            dealt.add_or_spill(block)?;
        }
        dealt.finish()
    }
}

/// All of the input.
struct ReadInput {
    parts: Vec<ReadPart>,
    inputs: Vec<InputDigest>,
    skipped: SkippedList,
    /// Its rows, kept or not.
    rows: u64,
}

/// The reading under way.
struct Reading<'r> {
    source: &'r Source,
    codec: &'r RowCodec,
    config: &'r IngestConfig,
    resources: &'r Resources,
    work: &'r Work,
    parts: Vec<ReadPart>,
    keys: RandomKeys,
    pieces: u64,
    /// Rows of the input, kept or not.
    rows: u64,
    skipped: SkippedList,
    /// How much of that list the last checkpoint has.
    skipped_known: usize,
    /// The files that pieces read.
    files: FileChain,
    /// Of an earlier attempt that had read everything.
    inputs: Option<Vec<InputDigest>>,
}

impl<'r> Reading<'r> {
    fn new(
        source: &'r Source,
        codec: &'r RowCodec,
        config: &'r IngestConfig,
        takes: &[Option<HashRange>],
        resources: &'r Resources,
        work: &'r Work,
        left: Option<ReadSoFar>,
    ) -> io::Result<Reading<'r>> {
        // The rest is for pieces on their way and for shards in the making.
        let pieces = pieces_in_flight(resources) as u64 * PIECE_MEMORY;
        let free = resources.memory.0 - pieces - resources.memory.0 / 8;
        let share = if matches!(config.mix, Mix::Stratified(_)) { free / 2 } else { free };
        let limit = share / takes.len() as u64;
        let memory = resources.memory;
        let begin = |(index, take): (usize, &Option<HashRange>)| {
            // Of rows in no file any number may come: they get as many buckets as there can be.
            let expected = source.bytes().map_or(u64::MAX, |bytes| bytes.saturating_mul(EXPANSION));
            let expected = expected / takes.len() as u64;
            let buckets = match config.mix {
                Mix::Random | Mix::Hash => Buckets::spread(expected, memory),
                Mix::Sequential | Mix::Stratified(_) => Buckets::as_they_come(memory),
            };
            let sorter = Sorter::new(buckets, memory, limit, work.rows(index));
            ReadPart { take: *take, rows: 0, bytes: 0, sorter, classes: Classes::default() }
        };
        let go_on = |((index, take), left): ((usize, &Option<HashRange>), PartSoFar)| {
            let PartSoFar { buckets, rows, bytes, spilled, classes } = left;
            let sorter = Sorter::resume(buckets, memory, limit, work.rows(index), spilled)?;
            Ok(ReadPart { take: *take, rows, bytes, sorter, classes })
        };
        let takes = takes.iter().enumerate();
        let mut reading = Reading {
            source,
            codec,
            config,
            resources,
            work,
            parts: Vec::new(),
            keys: RandomKeys::new(config.seed),
            pieces: 0,
            rows: 0,
            skipped: SkippedList::default(),
            skipped_known: 0,
            files: FileChain::new(),
            inputs: None,
        };
        let Some(left) = left else {
            reading.parts = takes.map(begin).collect();
            return Ok(reading);
        };
        let ReadSoFar { pieces, rows, files, inputs, skipped, parts } = left;
        let parts = takes.zip(parts).map(go_on).collect::<io::Result<_>>()?;
        let skipped_known = skipped.first.len();
        Ok(Reading { parts, pieces, rows, skipped, skipped_known, files, inputs, ..reading })
    }

    fn run(mut self, progress: &dyn Progress) -> Result<ReadInput, IngestError> {
        let (rows, bytes) =
            self.parts.iter().fold((0, 0), |sum, part| (sum.0 + part.rows, sum.1 + part.bytes));
        progress.advanced(rows, bytes, "reading");
        if let Some(inputs) = self.inputs.take() {
            return Ok(self.done(inputs));
        }
        let in_flight = pieces_in_flight(self.resources);
        let (source, done) = (self.source, self.pieces);
        let encoder = PieceEncoder {
            source,
            codec: self.codec,
            largest_row: self.resources.largest_row(),
            takes: self.parts.iter().map(|part| part.take).collect(),
            label: match &self.config.mix {
                Mix::Stratified(label) => Some(label),
                Mix::Random | Mix::Sequential | Mix::Hash => None,
            },
            hashes: (self.config.mix == Mix::Hash).then(|| HashKeys::new(self.config.seed)),
        };
        let inputs = pipeline::in_order(
            in_flight,
            |push| {
                let mut seen = 0;
                source.pieces(self.resources.largest_row(), &mut |piece| {
                    seen += 1;
                    if seen <= done { Ok(()) } else { push(piece) }
                })
            },
            |piece| encoder.encode(piece),
            |piece| self.take(piece, progress),
        )?;
        let inputs = source.inputs(inputs, self.files.clone());
        if self.parts.iter().any(|part| part.sorter.has_spilled()) {
            self.checkpoint(Some(inputs.clone()))?;
        }
        Ok(self.done(inputs))
    }

    fn done(self, inputs: Vec<InputDigest>) -> ReadInput {
        ReadInput { parts: self.parts, inputs, skipped: self.skipped, rows: self.rows }
    }

    /// Takes in a piece, after all that were before it in the input.
    fn take(&mut self, piece: EncodedPiece, progress: &dyn Progress) -> Result<(), IngestError> {
        let is_full = |(part, rows): (&ReadPart, &EncodedRows)| {
            !part.sorter.has_room(rows.rows.len(), rows.bytes.len())
        };
        if self.parts.iter().zip(&piece.parts).any(is_full) {
            self.checkpoint(None)?;
        }
        for (part, rows) in self.parts.iter_mut().zip(piece.parts) {
            let count = rows.rows.len() as u64;
            progress.advanced(count, rows.bytes.len() as u64, "reading");
            part.rows += count;
            part.bytes += rows.bytes.len() as u64;
            let classes = part.classes.add(&rows.classes);
            if part.classes.len() > MOST_CLASSES {
                return Err(IngestError::Config {
                    setting: "mix",
                    reason: format!("the label has more than {MOST_CLASSES} different values"),
                    way_out: "stratify by a column of classes",
                });
            }
            let (mut of_rows, mut hashes) = (rows.of_rows.into_iter(), rows.hashes.into_iter());
            let keyed = rows.rows.into_iter().map(|(row, end)| {
                let number = self.rows + u64::from(row);
                let (key, number) = match self.config.mix {
                    Mix::Random => (self.keys.of(number), number),
                    Mix::Sequential => (number, number),
                    // Its second word stands for the number, as what comes first has no meaning.
                    Mix::Hash => hashes.next().expect("one hash for each row"),
                    Mix::Stratified(_) => {
                        let class = of_rows.next().expect("one class for each row");
                        (u64::from(classes[class as usize]), number)
                    }
                };
                (key, number, end)
            });
            part.sorter.add(Block { rows: keyed.collect(), bytes: rows.bytes });
        }
        self.pieces += 1;
        self.rows += u64::from(piece.seen);
        let skipped = piece.skipped.into_iter().map(|(name, reason)| Skipped { name, reason });
        let first: Vec<Skipped> = skipped.collect();
        self.skipped.extend(SkippedList { count: first.len() as u64, first });
        piece.files.iter().for_each(|file| self.files.add(file));
        Ok(())
    }

    /// Writes all rows to disk, so that another attempt can continue from here.
    fn checkpoint(&mut self, inputs: Option<Vec<InputDigest>>) -> Result<(), IngestError> {
        let failed = |error| spill_error(self.resources, error);
        let mut parts = Vec::new();
        for part in &mut self.parts {
            parts.push(PartCheckpoint {
                buckets: part.sorter.buckets(),
                rows: part.rows,
                bytes: part.bytes,
                spill: part.sorter.spill().map_err(failed)?,
                classes: part.classes.news(),
            });
        }
        let (count, first) = (self.skipped.count, self.skipped.first[self.skipped_known..].to_vec());
        self.skipped_known = self.skipped.first.len();
        let (pieces, rows, files) = (self.pieces, self.rows, self.files.clone());
        let skipped = SkippedList { count, first };
        self.work.checkpoint(Checkpoint { pieces, rows, files, inputs, skipped, parts }).map_err(failed)
    }
}

/// How many pieces may be under way.
fn pieces_in_flight(resources: &Resources) -> usize {
    let fitting = (resources.memory.0 / 4 / PIECE_MEMORY).max(1) as usize;
    fitting.min(2 * resources.threads.max(1) + 1)
}

/// Reads and encodes pieces; shared by all threads.
struct PieceEncoder<'r> {
    source: &'r Source,
    codec: &'r RowCodec,
    largest_row: LargestRow,
    takes: Vec<Option<HashRange>>,
    label: Option<&'r String>,
    hashes: Option<HashKeys>,
}

/// The rows of a piece, by the version they are for.
struct EncodedPiece {
    seen: u32,
    parts: Vec<EncodedRows>,
    skipped: Vec<(String, String)>,
    files: Vec<InputDigest>,
}

#[derive(Default)]
struct EncodedRows {
    bytes: Vec<u8>,
    /// Number within the piece and end of each row.
    rows: Vec<(u32, usize)>,
    /// For a stratified mix: the classes in the piece with their number of rows, and which of them each row is of.
    classes: Vec<(Option<String>, u64)>,
    of_rows: Vec<u32>,
    /// For a mix by hash: the key of each row.
    hashes: Vec<(u64, u64)>,
}

impl PieceEncoder<'_> {
    fn encode(&self, piece: Piece<'_>) -> Result<EncodedPiece, IngestError> {
        let (batch, mut faults) = self.source.read(piece)?;
        let mut parts = Vec::new();
        parts.resize_with(self.takes.len(), EncodedRows::default);
        let mut seen = 0;
        if let Some(batch) = batch {
            seen = u32::try_from(batch.num_rows()).expect("a piece has few rows");
            if let Err(error) = self.encode_rows(&batch, &mut parts, &mut faults) {
                faults.add(format!("a piece of {seen} rows"), error)?;
            }
        }
        Ok(EncodedPiece { seen, parts, skipped: faults.skipped, files: faults.files })
    }

    fn encode_rows(
        &self,
        batch: &RecordBatch,
        parts: &mut [EncodedRows],
        faults: &mut Faults,
    ) -> Result<(), IngestError> {
        let failed = |error| canonical::row_error(self.source.path(), error);
        let encoder = self.codec.encoder(batch).map_err(failed)?;
        let classes = self.label.map(|label| PieceClasses::new(self.source, batch, label)).transpose()?;
        if let ([part], [None]) = (&mut *parts, self.takes.as_slice()) {
            // Growing would copy all rows into memory that was never touched, the dearest there is.
            part.bytes.reserve(canonical_bytes(batch).min(PIECE_MEMORY as usize));
        }
        for row in 0..batch.num_rows() {
            // Most rows are for the first part, and stay where they are encoded.
            let start = parts[0].bytes.len();
            if let Err(error) = encoder.encode(row, &mut parts[0].bytes) {
                faults.row(row, failed(error))?;
                continue;
            }
            let bytes = (parts[0].bytes.len() - start) as u64;
            if bytes > PIECE_MEMORY {
                self.largest_row.check(format_args!("{}, row {row}", faults.piece()), bytes)?;
            }
            let taken = self.part_of(&parts[0].bytes[start..]);
            if taken != Some(0) {
                let (first, others) = parts.split_at_mut(1);
                if let Some(other) = taken.and_then(|part| others.get_mut(part - 1)) {
                    other.bytes.extend_from_slice(&first[0].bytes[start..]);
                }
                first[0].bytes.truncate(start);
            }
            let Some(part) = taken.map(|part| &mut parts[part]) else { continue };
            if part.bytes.len() > LARGEST_BLOCK {
                part.bytes.truncate(part.rows.last().map_or(0, |(_, end)| *end));
                let (path, reason) = (self.source.path().to_owned(), "it is too large".to_owned());
                faults.row(row, IngestError::Row { path, reason })?;
                continue;
            }
            if let Some(hashes) = self.hashes {
                let start = part.rows.last().map_or(0, |(_, end)| *end);
                part.hashes.push(hashes.of(RowDigest::of(&part.bytes[start..])));
            }
            part.rows.push((row as u32, part.bytes.len()));
            if let Some(classes) = &classes {
                let class = classes.of(row);
                let known = part.classes.iter().position(|(known, _)| known.as_deref() == class);
                let class = known.unwrap_or_else(|| {
                    part.classes.push((class.map(str::to_owned), 0));
                    part.classes.len() - 1
                });
                part.classes[class].1 += 1;
                part.of_rows.push(class as u32);
            }
        }
        Ok(())
    }

    /// The first version that takes the row.
    fn part_of(&self, row: &[u8]) -> Option<usize> {
        if let [None] = self.takes.as_slice() {
            return Some(0);
        }
        let digest = RowDigest::of(row);
        self.takes.iter().position(|take| take.is_none_or(|take| take.holds(&digest)))
    }
}

/// About how many bytes the canonical rows of a record batch have, or somewhat more.
fn canonical_bytes(batch: &RecordBatch) -> usize {
    let values = |column: &ArrayRef| column.to_data().get_slice_memory_size().unwrap_or(0);
    let values = batch.columns().iter().map(values).fold(0, usize::saturating_add);
    let cells = batch.num_rows().saturating_mul(batch.num_columns());
    values.saturating_add(cells.saturating_mul(CELL_OVERHEAD))
}

/// The labels of the rows of a piece, as text.
struct PieceClasses(ArrayRef);

impl PieceClasses {
    fn new(source: &Source, batch: &RecordBatch, label: &str) -> Result<PieceClasses, IngestError> {
        let column = batch.column_by_name(label).expect("checked when the reading began");
        let text = cast(column, &DataType::Utf8).map_err(|error| IngestError::Row {
            path: source.path().to_owned(),
            reason: super::error::one_line(error),
        })?;
        Ok(PieceClasses(text))
    }

    fn of(&self, row: usize) -> Option<&str> {
        let text = self.0.as_string::<i32>();
        text.is_valid(row).then(|| text.value(row))
    }
}

/// Why there is no sample although some were looked for.
fn nothing_left(skipped: &SkippedList) -> String {
    match skipped.first.first() {
        Some(first) => {
            format!("all was left out, {} in all, such as {}: {}", skipped.count, first.name, first.reason)
        }
        None => "none of it could be read".to_owned(),
    }
}

/// Whether the source can be stratified by a column.
fn check_label(source: &Source, label: &str) -> Result<(), IngestError> {
    let schema = source.schema();
    let Ok(field) = schema.field_with_name(label) else {
        let there: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        let (path, there) = (source.path().to_owned(), there.join(", "));
        return Err(IngestError::NoColumn { path, column: label.to_owned(), there });
    };
    let is_class = |data_type: &DataType| {
        data_type.is_integer()
            || matches!(data_type, DataType::Boolean | DataType::Utf8 | DataType::LargeUtf8)
    };
    if is_class(field.data_type()) {
        return Ok(());
    }
    Err(IngestError::Config {
        setting: "mix",
        reason: format!("column {label:?} is {}, which is no class", field.data_type()),
        way_out: "stratify by a column of integers, texts or booleans",
    })
}

/// Names the work on this input with these settings. Into how large shards its rows go is left open until they are read.
fn name(source: &Source, config: &IngestConfig, takes: &[Option<HashRange>]) -> String {
    let config = IngestConfig { shard_size: None, ..config.clone() };
    let settings = serde_json::to_vec(&(config, takes)).expect("settings are plain values");
    let mut hasher = blake3::Hasher::new_derive_key("shardfmt 2026 ingest work v3");
    hasher.update(env!("CARGO_PKG_VERSION").as_bytes()).update(source.stamp().as_bytes()).update(&settings);
    hasher.finalize().to_hex()[..NAME_DIGITS].to_owned()
}

/// Says what went wrong with rows on disk.
pub(super) fn spill_error(resources: &Resources, source: io::Error) -> IngestError {
    let directory = resources.work.clone().unwrap_or_else(std::env::temp_dir);
    match source.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            IngestError::Spoiled { directory, source }
        }
        _ => IngestError::Spill { directory, source },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::FixedSizeListArray;
    use arrow::array::{BinaryArray, FixedSizeBinaryArray, Int64Array, UInt8Array};
    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn the_room_that_is_made_for_rows_is_enough_and_not_twice_too_much() {
        let columns: [ArrayRef; 4] = [
            Arc::new(FixedSizeBinaryArray::try_new(3000, vec![1u8; 300_000].into(), None).unwrap()),
            Arc::new(BinaryArray::from_iter_values((0..100usize).map(|row| vec![1u8; 40 * row]))),
            Arc::new(Int64Array::from_iter_values(0..100)),
            Arc::new(FixedSizeListArray::new(
                Arc::new(Field::new("item", DataType::UInt8, true)),
                50,
                Arc::new(UInt8Array::from(vec![1u8; 5000])),
                None,
            )),
        ];
        let named = columns.iter().enumerate().map(|(at, column)| (format!("x{at}"), column.clone()));
        let all = RecordBatch::try_from_iter(named).unwrap();
        let each = columns.iter().map(|column| RecordBatch::try_from_iter([("x", column.clone())]).unwrap());
        for whole in each.chain([all]) {
            for batch in [whole.clone(), whole.slice(30, 60)] {
                let encoder = RowCodec::new(batch.schema()).unwrap();
                let mut rows = Vec::new();
                (0..batch.num_rows()).for_each(|row| encoder.encode(&batch, row, &mut rows).unwrap());
                let room = canonical_bytes(&batch);
                assert!((rows.len()..2 * rows.len()).contains(&room), "{room} for {}", rows.len());
            }
        }
    }
}
