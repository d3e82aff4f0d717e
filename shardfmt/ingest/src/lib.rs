//! Turns files into a version: reads a [`Source`], mixes its rows, cuts them into shards, hands those to a [`Sink`]
//! and lists them in a [`Manifest`](shardfmt::Manifest).
//!
//! Two passes. [`Ingest::read`] reads the input in one fixed order, checks it, brings it to plain types and
//! gives each row its sort key; [`Ingest::write`] takes the rows in the order of their keys and writes shards
//! of them, in parallel. Between the two, rows that memory does not hold lie in temporary files
//! (`sorter.rs`), which survive the process (`work.rs`), so that a killed ingest resumes.
//!
//! The version depends on the samples and the layout of the [`IngestConfig`] alone: not on the number of threads, the memory, the
//! machine, the clock, interruptions, or where the input lies (`docs/PROMISES.md` names the tests). This module
//! knows nothing of networks, names of datasets or commits.
//!
//! ```
//! use shardd_ingest::{IngestConfig, Inputs, Mix, NoProgress, Resources, Sink, Source, ingest};
//! use shardfmt::{FinishedShard, ShardId};
//! use std::path::PathBuf;
//!
//! struct Directory(PathBuf);
//!
//! impl Sink for Directory {
//!     fn put_shard(&self, shard: FinishedShard) -> std::io::Result<()> {
//!         std::fs::write(self.0.join(shard.id.to_string()), &shard.bytes)
//!     }
//!     fn has_shard(&self, id: &ShardId) -> std::io::Result<bool> {
//!         self.0.join(id.to_string()).try_exists()
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! let sink = Directory(directory.path().into());
//! let config = IngestConfig { mix: Mix::Sequential, ..IngestConfig::default() };
//! let source = Source::new(Inputs::in_memory("words.csv", "word,label\ncat,0\ndog,1\n"), &config)?;
//! let manifest = ingest(source, &config, &Resources::threads(2), &sink, &NoProgress)?.manifest;
//! assert_eq!(manifest.sample_count(), 2);
//! assert!(sink.has_shard(&manifest.shards[0].id)?);
//! # Ok(())
//! # }
//! ```

mod canonical;
mod config;
mod cut;
mod error;
mod files;
mod image_size;
mod ingested;
mod input;
mod inputs;
mod kind;
mod layout;
mod order;
mod parallel_digest;
mod permits;
mod pipeline;
mod progress;
mod read;
mod sorter;
mod source;
mod spill_file;
#[cfg(test)]
mod stories;
mod tables;
mod tree;
pub mod version;
mod windows;
mod work;
mod write;

use std::fmt::Display;
use std::path::PathBuf;

use rayon::ThreadPool;
use shardfmt::size::ByteSize;

pub use self::config::{Delimiter, Documents, HashRange, IngestConfig, Loss, Mix, OnError};
pub(crate) use self::cut::Cut;
pub use self::cut::default_shard_rows;
pub use self::error::IngestError;
pub use self::image_size::ImageSize;
pub use self::ingested::Ingested;
pub use self::input::{Content, InputFile, Links, ReadAt};
pub use self::inputs::Inputs;
pub use self::kind::Kind;
pub use self::progress::{NoProgress, Progress};
pub use self::read::Ingest;
pub use self::source::Source;
pub use self::source::tfrecord::frame::tfrecord_frame;
pub use self::tables::{Amount, Table};
pub use self::tree::is_hidden;
pub use self::windows::{Edges, Offsets, Windows};
pub use self::work::private_directory;
pub use self::write::Written;
pub use shardd_packing::chat::Now as ChatDate;
pub use shardd_packing::{Long as LongDocuments, Strategy as PackingStrategy};
pub use shardfmt::store::Sink;

/// The resources of an ingest. Nothing of it changes the version.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::Resources;
/// use shardfmt::ByteSize;
///
/// let resources = Resources { memory: ByteSize::mib(256), ..Resources::threads(2) };
/// assert_eq!(resources.install(|| 6 * 7)?, 42);
///
/// let too_little = Resources { memory: ByteSize::mib(1), ..Resources::threads(2) };
/// assert!(too_little.install(|| 6 * 7).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Threads to work with, at least one.
    pub threads: usize,
    /// Memory to work with; the rest lies on disk. Shards in the making count, so there is less to gain by
    /// more threads when shards are large. A row takes up to four times its bytes on its way: one of more
    /// than a quarter of this is refused.
    pub memory: ByteSize,
    /// Where rows lie that memory does not hold, and the progress. The next ingest of the same input with the
    /// same settings continues from there. Without it, the system's directory for temporary files is
    /// used, and nothing is kept.
    pub work: Option<PathBuf>,
}

/// The largest row that memory allows for: it is there as it is read, as a column, encoded, and while one of these grows.
#[derive(Clone, Copy, Debug)]
struct LargestRow {
    bytes: u64,
    memory: ByteSize,
}

impl LargestRow {
    /// How often a row is in memory at most.
    const COPIES: u64 = 4;

    /// Any row.
    const ANY: LargestRow = LargestRow { bytes: u64::MAX, memory: ByteSize(u64::MAX) };

    /// Refuses a row that is larger.
    fn check(self, name: impl Display, bytes: u64) -> Result<(), IngestError> {
        if bytes <= self.bytes {
            return Ok(());
        }
        Err(self.refusal(&format!("{name} has {}", ByteSize(bytes))))
    }

    /// Why a larger row is refused, of which `found` tells the size. The limit depends on the machine, so the row is never left out of
    /// a version.
    fn refusal(self, found: &str) -> IngestError {
        let Self { memory, .. } = self;
        IngestError::Config {
            setting: "memory",
            reason: format!(
                "{found}, and takes up to {} times that while it is read, which is more than {memory}",
                Self::COPIES
            ),
            way_out: "allow for more, or take it out of the input",
        }
    }
}

impl Resources {
    /// The least memory that can be worked with.
    pub const LEAST_MEMORY: ByteSize = ByteSize(64 << 20);

    /// A number of threads, and two GiB of memory.
    pub fn threads(threads: usize) -> Resources {
        Resources { threads, memory: ByteSize(2 << 30), work: None }
    }

    /// The largest row that fits.
    fn largest_row(&self) -> LargestRow {
        LargestRow { bytes: self.memory.0 / LargestRow::COPIES, memory: self.memory }
    }

    /// Does something on these threads, such as opening a source: all that runs in parallel does so on the
    /// caller's threads.
    ///
    /// # Errors
    /// When there can be no such threads.
    pub fn install<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, IngestError> {
        Ok(self.pool(0)?.install(work))
    }

    /// The threads, and `more` that only wait.
    fn pool(&self, more: usize) -> Result<ThreadPool, IngestError> {
        if self.memory < Self::LEAST_MEMORY {
            return Err(IngestError::Config {
                setting: "memory",
                reason: format!("{} are too little to work with", self.memory),
                way_out: "give at least 64MiB",
            });
        }
        rayon::ThreadPoolBuilder::new()
            .num_threads(self.threads.max(1) + more)
            .thread_name(|index| format!("ingest-{index}"))
            .build()
            .map_err(|error| IngestError::Config {
                setting: "threads",
                reason: error::one_line(error),
                way_out: "use fewer threads",
            })
    }
}

/// Makes a version of the source: gives its shards to `sink`, then returns the manifest that lists them, and the provenance. Committing
/// it is up to the caller; until then nothing refers to the shards.
///
/// # Errors
/// At the first fault of the input in input order (unless those are to be skipped), when there is no space for temporary
/// files, or when the sink refuses a shard.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kept.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let sink = Kept::default();
/// use shardd_ingest::{IngestConfig, Inputs, NoProgress, Resources, Source, ingest};
///
/// let config = IngestConfig::default();
/// let source = Source::new(Inputs::in_memory("words.csv", "word,label\ncat,0\ndog,1\n"), &config)?;
/// let manifest = ingest(source, &config, &Resources::threads(1), &sink, &NoProgress)?.manifest;
/// assert_eq!(manifest.sample_count(), 2);
/// # Ok(())
/// # }
/// ```
pub fn ingest(
    source: Source,
    config: &IngestConfig,
    resources: &Resources,
    sink: &dyn Sink,
    progress: &dyn Progress,
) -> Result<Ingested, IngestError> {
    let written =
        Ingest::read(source, config, &[], resources, progress)?.write(config.shard_size, sink, progress)?;
    Ok(written.finish().pop().expect("one version of the whole"))
}
