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
    if size.0 == 0 {
        return Err(VersionError::NoSize);
    }
    let recorded = Layout::recorded(base.manifest).unwrap_or_default().compression;
    let compression = compression.unwrap_or(recorded);
    let old = &base.manifest.shards;
    let line = Line::of(old);
    let cut = Cut::new(base.manifest.sample_count(), base.manifest.row_bytes(), Some(size));
    let units = line.units((0..cut.shard_count()).map(|index| cut.positions(index)));
    let keeps = compression == recorded;
    let write = Write { base, line: &line, compression, keeps, store, sink, progress };
    let shards = pool(threads)?
        .install(|| units.into_par_iter().map(|unit| write.unit(unit)).collect::<Result<Vec<_>, _>>())?
        .concat();
    if shards == *old {
        return Ok(base.manifest.clone());
    }
    let config = settings::resharded(base, size, compression);
    Ok(Manifest { shards, config, ..base.manifest.clone() })
}

struct Write<'a> {
    base: Base<'a>,
    line: &'a Line<'a>,
    compression: Compression,
    /// Whether shards that are measured can stay as they are.
    keeps: bool,
    store: &'a dyn Store,
    sink: &'a dyn Sink,
    progress: &'a dyn Progress,
}

impl Write<'_> {
    fn unit(&self, unit: Vec<Piece>) -> Result<Vec<ShardEntry>, VersionError> {
        let mut reader = Reader::new(self.store, &self.base.manifest.shards);
        unit.into_iter().map(|(index, samples)| self.shard(index, samples, &mut reader)).collect()
    }

    fn shard(
        &self,
        index: usize,
        samples: Range<u64>,
        reader: &mut Reader<'_>,
    ) -> Result<ShardEntry, VersionError> {
        let old = &self.base.manifest.shards;
        let first = self.line.shard_of(samples.start);
        let done = |entry: ShardEntry| {
            self.progress.advanced(u64::from(entry.rows), entry.row_bytes, "writing");
            Ok(entry)
        };
        if self.keeps && old[first].statistics.is_some() && self.line.samples(first) == samples {
            return done(old[first].clone());
        }
        let mut rewrite = Rewrite::new(index, self.base.manifest.schema.clone(), self.compression)?;
        for (part, rows) in self.line.parts(samples) {
            let digests = reader.digests(part)?[rows.start as usize..rows.end as usize].to_vec();
            let shard = reader.shard(part)?;
            for (number, digest) in rows.zip(digests) {
                rewrite.push(shard, number, digest)?;
            }
        }
        done(rewrite.put(self.sink)?)
    }
}
