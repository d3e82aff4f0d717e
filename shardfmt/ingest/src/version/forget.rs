//! A version without some of its samples: the shards that have one of them are written again without it, in the same order,
//! and all others stay as they are.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;
use shardfmt::digest::ShardId;
use shardfmt::manifest::{Manifest, ShardEntry};
use shardfmt::row::RowDigest;
use shardfmt::shard::Compression;
use shardfmt::store::Store;

use super::matcher::Matcher;
use super::rewrite::Rewrite;
use super::store::{corrupt, need_shard, need_sidecar};
use super::{Base, File, Layout, VersionError, pool, settings};
use crate::{Progress, Sink};

/// The version without the samples that have one of these digests, each as often as it is there. The others keep their order. A
/// shard without such a sample is neither read nor written, and one with nothing else is left out. Where no sample is meant, the
/// base comes back as it is.
///
/// Reads every sidecar of the base; memory holds two shards for each of `threads` threads.
///
/// # Errors
///
/// [`VersionError::NothingLeft`] when all samples are meant; when a shard or sidecar of the base is missing or damaged, or the sink
/// refuses a shard.
pub fn forget(
    base: Base<'_>,
    rows: &BTreeSet<RowDigest>,
    store: &dyn Store,
    threads: usize,
    sink: &dyn Sink,
    progress: &dyn Progress,
) -> Result<Manifest, VersionError> {
    let old = &base.manifest.shards;
    let compression = Layout::recorded(base.manifest).unwrap_or_default().compression;
    let write = Write { base, rows, compression, store, sink, progress };
    let written = pool(threads)?.install(|| {
        let shards = old.par_iter().enumerate();
        shards.map(|(index, entry)| write.shard(index, entry)).collect::<Result<Vec<_>, _>>()
    })?;
    let shards: Vec<ShardEntry> = written.into_iter().flatten().collect();
    if shards == *old {
        return Ok(base.manifest.clone());
    }
    if shards.is_empty() {
        return Err(VersionError::NothingLeft);
    }
    Ok(Manifest { shards, config: settings::without(base), ..base.manifest.clone() })
}

/// The samples of some shards that a matcher fits, by their shard and in its order. Shards without one are not among them.
///
/// Reads every shard once; memory holds one for each of `threads` threads.
///
/// # Errors
///
/// When a shard is missing or damaged.
pub fn find_rows(
    shards: &[ShardEntry],
    matcher: &Matcher,
    store: &dyn Store,
    threads: usize,
    progress: &dyn Progress,
) -> Result<BTreeMap<ShardId, Vec<RowDigest>>, VersionError> {
    let find = |entry: &ShardEntry| {
        let found = find_in(entry, matcher, store)?;
        progress.advanced(u64::from(entry.rows), entry.row_bytes, "searching");
        Ok((entry.id, found))
    };
    let found =
        pool(threads)?.install(|| shards.par_iter().map(find).collect::<Result<Vec<_>, VersionError>>())?;
    Ok(found.into_iter().filter(|(_, rows)| !rows.is_empty()).collect())
}

fn find_in(entry: &ShardEntry, matcher: &Matcher, store: &dyn Store) -> Result<Vec<RowDigest>, VersionError> {
    let damaged =
        |error: &dyn std::error::Error| VersionError::damaged(File::Shard, entry.id, corrupt(error));
    let shard = need_shard(store, entry)?;
    let (mut found, mut row, mut first) = (Vec::new(), Vec::new(), 0);
    for batch in shard.record_batches() {
        let fits = matcher.fits(batch).map_err(|error| damaged(&error))?;
        for (number, _) in (first..).zip(fits).filter(|(_, fits)| *fits) {
            row.clear();
            shard.encode_row(number, &mut row).map_err(|error| damaged(&error))?;
            found.push(RowDigest::of(&row));
        }
        // A shard has fewer than 2^32 rows.
        first += batch.num_rows() as u32;
    }
    Ok(found)
}

struct Write<'a> {
    base: Base<'a>,
    rows: &'a BTreeSet<RowDigest>,
    compression: Compression,
    store: &'a dyn Store,
    sink: &'a dyn Sink,
    progress: &'a dyn Progress,
}

impl Write<'_> {
    /// The remaining rows of a shard; `None` if nothing is left of it.
    fn shard(&self, index: usize, entry: &ShardEntry) -> Result<Option<ShardEntry>, VersionError> {
        let done = |kept: Option<ShardEntry>| {
            self.progress.advanced(u64::from(entry.rows), entry.row_bytes, "writing");
            Ok(kept)
        };
        let digests = need_sidecar(self.store, entry)?.rows;
        let stays = |digest: &RowDigest| !self.rows.contains(digest);
        if digests.iter().all(stays) {
            return done(Some(entry.clone()));
        }
        if !digests.iter().any(stays) {
            return done(None);
        }
        let shard = need_shard(self.store, entry)?;
        let mut rewrite = Rewrite::new(index, self.base.manifest.schema.clone(), self.compression)?;
        for (number, digest) in (0u32..).zip(digests).filter(|(_, digest)| stays(digest)) {
            rewrite.push(&shard, number, digest)?;
        }
        done(Some(rewrite.put(self.sink)?))
    }
}
