//! Grains that nodes gave, and the check of their rows.
//!
//! The bytes of a grain are the loader's own, or lie in a file that a node lends. Those of a file may change after they were
//! verified: the kernel drops a page and reads it again from a disk that has gone bad since. So rows of lent files are
//! checked where they are delivered, in the batch, and a wrong one is [asked for again](Grains::again).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::Mmap;
use shardd_plan::{GrainNo, Plan};
use shardfmt::row::Rows;
use shardfmt::{Grain, GrainError, GrainKey, Manifest, NodeHash, RowDigest, SparseGrain, merkle};

use super::LoadError;
use super::order::SourceRead;
use super::source::Ready;

/// Tells the rows of a plan from others, by the manifest: no other word is taken, not a file's either.
#[derive(Debug, Clone)]
pub(super) struct Verifier {
    pub(super) plan: Arc<Plan>,
    pub(super) manifest: Arc<Manifest>,
}

impl Verifier {
    /// How many rows a grain has.
    pub(super) fn rows_of(&self, grain: GrainNo) -> u32 {
        self.plan.locate_grain(grain).rows
    }

    /// The key of a grain, and the rows and the root of its shard.
    fn key(&self, grain: GrainNo) -> (GrainKey, u32, NodeHash) {
        let place = self.plan.locate_grain(grain);
        let shard = &self.manifest.shards[place.shard as usize];
        let key = GrainKey { shard: shard.id, rows: self.plan.document().grain_rows, index: place.index };
        (key, shard.rows, shard.root)
    }

    /// Whether these bytes are the grain.
    pub(super) fn is_genuine(&self, grain: GrainNo, bytes: &[u8]) -> bool {
        self.digests(grain, bytes).is_ok()
    }

    /// The digests of the rows of these bytes, if they are the grain.
    fn digests(&self, grain: GrainNo, bytes: &[u8]) -> Result<Vec<RowDigest>, GrainError> {
        let (key, shard_rows, root) = self.key(grain);
        Grain::parse(bytes)?.verified_digests(key, shard_rows, root)
    }

    /// Whether these bytes are the wanted rows of the grain.
    pub(super) fn are_genuine(&self, grain: GrainNo, wanted: &[u32], bytes: &[u8]) -> bool {
        let (key, shard_rows, root) = self.key(grain);
        let parsed = SparseGrain::parse(bytes).and_then(|sparse| {
            sparse.verify(key, shard_rows, root)?;
            Ok(!wanted.is_empty() && wanted.iter().all(|row| sparse.row(*row).is_some()))
        });
        parsed.unwrap_or(false)
    }

    /// Whether a grain of one row has this row, by the path in its bytes.
    fn leads_to_root(&self, grain: GrainNo, row: RowDigest, path: &[NodeHash]) -> bool {
        let (key, shard_rows, root) = self.key(grain);
        merkle::verify(root, shard_rows, key.rows, key.index, &[row], path)
    }
}

/// A grain in a mapped file that a node lends.
#[derive(Debug)]
pub(super) struct LentGrain {
    map: Arc<Mmap>,
    /// Where its rows begin in the map, and where each ends behind that. Read once: what the file says later is not believed.
    start: usize,
    ends: Box<[u32]>,
    proof: Proof,
}

/// By which the rows of a lent grain are known.
#[derive(Debug)]
enum Proof {
    /// The grain was verified, and these are its rows.
    Digests(Box<[RowDigest]>),
    /// Its one row was not verified yet.
    Path(Box<[NodeHash]>),
}

impl LentGrain {
    /// The grain in this range of a map, or `None` if the bytes there are not the grain. One of a single row is verified now if
    /// `at_once`, and else in the batch alone.
    pub(super) fn in_map(
        verifier: &Verifier,
        grain: GrainNo,
        (map, range): (Arc<Mmap>, Range<usize>),
        at_once: bool,
    ) -> Option<Self> {
        let parsed = Grain::parse(&map[range.clone()]).ok()?;
        if parsed.row_count() != verifier.rows_of(grain) {
            return None;
        }
        let mut end = 0;
        let ends: Box<[u32]> = parsed
            .rows()
            .map(|row| {
                end += row.len() as u32; // it was read from 32 bits
                end
            })
            .collect();
        let proof = match at_once || parsed.row_count() > 1 {
            true => Proof::Digests(verifier.digests(grain, &map[range.clone()]).ok()?.into()),
            false => Proof::Path(parsed.path().collect()),
        };
        Some(Self { start: range.end - end as usize, ends, proof, map })
    }

    fn row(&self, row: u32) -> &[u8] {
        let row = row as usize;
        let begin = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.map[self.start + begin as usize..self.start + self.ends[row] as usize]
    }
}

/// A grain's bytes, wherever they are.
#[derive(Debug, Clone)]
pub(super) enum GivenGrain {
    Lent(Arc<LentGrain>),
    /// Verified, and the loader's own.
    Owned(Bytes),
}

/// The grains of a window, or the wanted rows of them.
pub(super) struct Grains<A> {
    pub(super) whole: HashMap<GrainNo, GivenGrain>,
    pub(super) sparse: HashMap<GrainNo, Bytes>,
    pub(super) verifier: Verifier,
    pub(super) asks_again: A,
}

/// Has a row brought again that was wrong where it lay.
pub(super) trait AskAgain: Send + Sync {
    /// The grain of the row, or the row as a sparse one, verified and in memory of the loader's own. Blocks until it is here.
    fn again(&self, read: &SourceRead) -> Result<Grains<()>, LoadError>;
}

impl<A> Grains<A> {
    fn row(&self, SourceRead { read, .. }: &SourceRead) -> &[u8] {
        if let Some(bytes) = self.sparse.get(&read.grain) {
            let sparse = SparseGrain::parse(bytes).expect("parsed when it came in");
            return sparse.row(read.row).expect("it was looked for when it came in");
        }
        match &self.whole[&read.grain] {
            GivenGrain::Lent(lent) => lent.row(read.row),
            GivenGrain::Owned(bytes) => Grain::parse(bytes).expect("parsed when it came in").row(read.row),
        }
    }
}

impl<A: AskAgain> Ready for Grains<A> {
    fn rows(&self, reads: &[SourceRead]) -> Rows<'_> {
        Rows::Canonical(reads.iter().map(|read| self.row(read)).collect())
    }

    fn may_change(&self) -> bool {
        self.whole.values().any(|grain| matches!(grain, GivenGrain::Lent(_)))
    }

    fn is_genuine(&self, SourceRead { read, .. }: &SourceRead, row: RowDigest) -> bool {
        if self.sparse.contains_key(&read.grain) {
            return true;
        }
        let GivenGrain::Lent(lent) = &self.whole[&read.grain] else { return true };
        match &lent.proof {
            Proof::Digests(digests) => digests[read.row as usize] == row,
            Proof::Path(path) => self.verifier.leads_to_root(read.grain, row, path),
        }
    }

    fn again(&self, read: &SourceRead) -> Result<Bytes, LoadError> {
        Ok(Bytes::copy_from_slice(self.asks_again.again(read)?.row(read)))
    }
}
