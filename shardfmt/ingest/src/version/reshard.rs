//! Other shards of the same samples: each sample keeps its number, only the places where one shard ends and the next
//! begins are moved.

use std::ops::Range;

use rayon::prelude::*;
use shardfmt::manifest::{Manifest, ShardEntry};
use shardfmt::shard::Compression;
use shardfmt::size::ByteSize;
use shardfmt::store::Store;

use super::rewrite::Rewrite;
use super::stretch::{Line, Piece, Reader};
use super::{Base, Layout, VersionError, pool, settings};
use crate::{Cut, Progress, Sink};

/// The version cut into shards of about `size` canonical bytes, compressed as they were or as asked. Shards whose samples stay together and
/// are measured stay as they are, and are neither read nor written. Where nothing changes, the base comes back as it is.
///
/// The shards are those that a random or sequential ingest with this size would have made of the rows in the same order.
/// Reads every other shard of the base at most twice; memory holds two shards for each of `threads` threads.
///
/// # Errors
///
/// When a shard or sidecar of the base is missing or damaged, or the sink refuses a shard.
pub fn reshard(
    base: Base<'_>,
    size: ByteSize,
    compression: Option<Compression>,
    store: &dyn Store,
    threads: usize,
    sink: &dyn Sink,
    progress: &dyn Progress,
) -> Result<Manifest, VersionError> {
    let work = Resharding::new(base, size, compression)?;
    let units = 0..work.units();
    let unit = |unit| work.write(unit, store, sink, progress);
    let shards =
        pool(threads)?.install(|| units.into_par_iter().map(unit).collect::<Result<Vec<_>, _>>())?.concat();
    Ok(work.version(shards))
}

/// A [`reshard`] in units that any process can do, each by itself and in any order.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kept.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::version::{Resharding, reshard};
/// use shardd_ingest::{IngestConfig, Inputs, NoProgress, Resources, Source, ingest};
///
/// # let kept = Kept::default();
/// let words: String = (0..1000).fold("word\n".into(), |csv, n| csv + &format!("word {n}\n"));
/// let config = IngestConfig::default();
/// let source = Source::new(Inputs::in_memory("a.csv", words), &config)?;
/// let old = ingest(source, &config, &Resources::threads(1), &kept, &NoProgress)?;
///
/// let work = Resharding::new(old.base(), "1KiB".parse()?, None)?;
/// let mut shards = Vec::new();
/// for unit in 0..work.units() {
///     shards.extend(work.write(unit, &kept, &kept, &NoProgress)?);
/// }
/// let whole = reshard(old.base(), "1KiB".parse()?, None, &kept, 1, &kept, &NoProgress)?;
/// assert_eq!(work.version(shards), whole);
/// # Ok(())
/// # }
/// ```
pub struct Resharding<'a> {
    base: Base<'a>,
    size: ByteSize,
    compression: Compression,
    /// Whether shards that are measured can stay as they are.
    keeps: bool,
    line: Line<'a>,
    units: Vec<Vec<Piece>>,
}

impl<'a> Resharding<'a> {
    /// Reads nothing but the manifest.
    ///
    /// # Errors
    ///
    /// [`VersionError::NoSize`] for a size of 0.
    pub fn new(
        base: Base<'a>,
        size: ByteSize,
        compression: Option<Compression>,
    ) -> Result<Self, VersionError> {
        if size.0 == 0 {
            return Err(VersionError::NoSize);
        }
        let recorded = Layout::recorded(base.manifest).unwrap_or_default().compression;
        let compression = compression.unwrap_or(recorded);
        let line = Line::of(&base.manifest.shards);
        let cut = Cut::new(base.manifest.sample_count(), base.manifest.row_bytes(), Some(size));
        let units = line.units((0..cut.shard_count()).map(|index| cut.positions(index)));
        Ok(Self { base, size, compression, keeps: compression == recorded, line, units })
    }

    /// How many units there are. A unit begins in a shard of the base in which no other begins.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Writes the shards of a unit, in order; those that stay are neither read nor written.
    ///
    /// # Errors
    ///
    /// As for [`reshard`].
    ///
    /// # Panics
    ///
    /// When there is no such unit.
    pub fn write(
        &self,
        unit: usize,
        store: &dyn Store,
        sink: &dyn Sink,
        progress: &dyn Progress,
    ) -> Result<Vec<ShardEntry>, VersionError> {
        let mut reader = Reader::new(store, &self.base.manifest.shards);
        let write = |(index, samples): &Piece| {
            let entry = self.shard(*index, samples.clone(), &mut reader, sink)?;
            progress.advanced(u64::from(entry.rows), entry.row_bytes, "writing");
            Ok(entry)
        };
        self.units[unit].iter().map(write).collect()
    }

    fn shard(
        &self,
        index: usize,
        samples: Range<u64>,
        reader: &mut Reader<'_>,
        sink: &dyn Sink,
    ) -> Result<ShardEntry, VersionError> {
        let old = &self.base.manifest.shards;
        let first = self.line.shard_of(samples.start);
        if self.keeps && old[first].statistics.is_some() && self.line.samples(first) == samples {
            return Ok(old[first].clone());
        }
        let mut rewrite = Rewrite::new(index, self.base.manifest.schema.clone(), self.compression)?;
        for (part, rows) in self.line.parts(samples) {
            let digests = reader.digests(part)?[rows.start as usize..rows.end as usize].to_vec();
            let shard = reader.shard(part)?;
            for (number, digest) in rows.zip(digests) {
                rewrite.push(shard, number, digest)?;
            }
        }
        rewrite.put(sink)
    }

    /// The version of the shards of all units, in order. Where nothing changes, the base itself.
    pub fn version(&self, shards: Vec<ShardEntry>) -> Manifest {
        let manifest = self.base.manifest;
        if shards == manifest.shards {
            return manifest.clone();
        }
        let config = settings::resharded(self.base, self.size, self.compression);
        Manifest { shards, config, ..manifest.clone() }
    }
}
