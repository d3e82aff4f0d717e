//! The samples of a version as one long line of rows, whichever shards they lie in.

use std::ops::Range;

use shardfmt::manifest::ShardEntry;
use shardfmt::row::RowDigest;
use shardfmt::shard::{Shard, Sidecar};
use shardfmt::store::Store;

use super::VersionError;
use super::store::{need_shard, need_sidecar};

/// Where each shard begins in the line.
pub(super) struct Line<'a> {
    shards: &'a [ShardEntry],
    /// The first sample of each shard, and how many there are.
    starts: Vec<u64>,
}

impl<'a> Line<'a> {
    pub(super) fn of(shards: &'a [ShardEntry]) -> Self {
        let mut starts = Vec::with_capacity(shards.len() + 1);
        let mut next = 0u64;
        starts.push(next);
        for shard in shards {
            // Fewer than 2^32 shards of fewer than 2^32 rows.
            next += u64::from(shard.rows);
            starts.push(next);
        }
        Self { shards, starts }
    }

    /// The samples of a shard.
    pub(super) fn samples(&self, shard: usize) -> Range<u64> {
        self.starts[shard]..self.starts[shard + 1]
    }

    /// The shard that a sample is in.
    pub(super) fn shard_of(&self, sample: u64) -> usize {
        self.starts.partition_point(|start| *start <= sample) - 1
    }

    /// The shards that have some of the samples, with their rows among them.
    pub(super) fn parts(&self, samples: Range<u64>) -> impl Iterator<Item = (usize, Range<u32>)> {
        let first = if samples.is_empty() { self.shards.len() } else { self.shard_of(samples.start) };
        (first..self.shards.len()).map_while(move |shard| {
            let all = self.samples(shard);
            let (start, end) = (all.start.max(samples.start), all.end.min(samples.end));
            // A shard has fewer than 2^32 rows.
            (start < end).then(|| (shard, (start - all.start) as u32..(end - all.start) as u32))
        })
    }
}

/// A part of the line that is written as one: its number and its samples.
pub(super) type Piece = (usize, Range<u64>);

impl Line<'_> {
    /// Pieces that should be written one after the other, since they begin in the same shard: so no shard is read more
    /// than twice, whether the pieces are larger or smaller.
    pub(super) fn units(&self, pieces: impl Iterator<Item = Range<u64>>) -> Vec<Vec<Piece>> {
        let mut units: Vec<(usize, Vec<Piece>)> = Vec::new();
        for piece in pieces.enumerate() {
            let begins_in = self.shard_of(piece.1.start);
            match units.last_mut().filter(|(shard, _)| *shard == begins_in) {
                Some((_, unit)) => unit.push(piece),
                None => units.push((begins_in, vec![piece])),
            }
        }
        units.into_iter().map(|(_, unit)| unit).collect()
    }
}

/// Reads shards one after the other, and keeps the last one for when it is asked for again.
pub(super) struct Reader<'a> {
    store: &'a dyn Store,
    shards: &'a [ShardEntry],
    last: Option<(usize, Shard)>,
    last_sidecar: Option<(usize, Sidecar)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(store: &'a dyn Store, shards: &'a [ShardEntry]) -> Self {
        Self { store, shards, last: None, last_sidecar: None }
    }

    /// The shard at `index`, verified.
    pub(super) fn shard(&mut self, index: usize) -> Result<&Shard, VersionError> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != index) {
            self.last = None; // room for the next
            self.last = Some((index, need_shard(self.store, &self.shards[index])?));
        }
        Ok(&self.last.as_ref().expect("just read").1)
    }

    /// The digests of the rows of the shard at `index`, verified.
    pub(super) fn digests(&mut self, index: usize) -> Result<&[RowDigest], VersionError> {
        if self.last_sidecar.as_ref().is_none_or(|(last, _)| *last != index) {
            self.last_sidecar = Some((index, need_sidecar(self.store, &self.shards[index])?));
        }
        Ok(&self.last_sidecar.as_ref().expect("just read").1.rows)
    }
}
