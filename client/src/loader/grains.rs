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
use shardfmt::grain::Layout;
use shardfmt::row::Rows;
use shardfmt::{Grain, GrainKey, Manifest, NodeHash, RowDigest, SparseGrain};

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
        let (key, shard_rows, root) = self.key(grain);
        Grain::parse(bytes).and_then(|grain| grain.verify(key, shard_rows, root)).is_ok()
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

    /// Whether a grain of this layout has rows of these digests.
    fn has_rows(&self, grain: GrainNo, layout: &Layout, rows: &[RowDigest]) -> bool {
        let (key, shard_rows, root) = self.key(grain);
        layout.leads_to(key, shard_rows, root, rows)
    }
}

/// A grain in a mapped file that a node lends.
#[derive(Debug)]
pub(super) struct LentGrain {
    map: Arc<Mmap>,
    /// Where the grain begins in the map.
    start: usize,
    layout: Layout,
    /// The digests of its rows, if they were verified: a single row is not before it is in the batch.
    digests: Option<Box<[RowDigest]>>,
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
        let bytes = &map[range.clone()];
        let layout = Layout::read(bytes).ok()?;
        if layout.row_count() != verifier.rows_of(grain) {
            return None;
        }
        let mut digests = None;
        if at_once || layout.row_count() > 1 {
            let rows: Vec<&[u8]> = (0..layout.row_count()).map(|row| &bytes[layout.row(row)]).collect();
            let of_rows = RowDigest::of_each(&rows);
            if !verifier.has_rows(grain, &layout, &of_rows) {
                return None;
            }
            digests = Some(of_rows.into_boxed_slice());
        }
        Some(Self { start: range.start, layout, digests, map })
    }

    fn row(&self, row: u32) -> &[u8] {
        let Range { start, end } = self.layout.row(row);
        &self.map[self.start + start..self.start + end]
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
    whole: HashMap<GrainNo, GivenGrain>,
    sparse: HashMap<GrainNo, Bytes>,
    has_lent: bool,
    verifier: Verifier,
    asks_again: A,
}

/// Has rows brought again that were wrong where they lay.
pub(super) trait AskAgain: Send + Sync {
    /// The grains of the rows, or the rows as sparse ones, verified and in memory of the loader's own. Blocks until they are here.
    fn again(&self, reads: &[&SourceRead]) -> Result<Grains<()>, LoadError>;
}

impl<A> Grains<A> {
    pub(super) fn new(
        whole: HashMap<GrainNo, GivenGrain>,
        sparse: HashMap<GrainNo, Bytes>,
        verifier: Verifier,
        asks_again: A,
    ) -> Self {
        let has_lent = whole.values().any(|grain| matches!(grain, GivenGrain::Lent(_)));
        Self { whole, sparse, has_lent, verifier, asks_again }
    }

    /// The grain, if its rows lie in a lent file.
    fn lent(&self, grain: GrainNo) -> Option<&LentGrain> {
        match self.whole.get(&grain) {
            Some(GivenGrain::Lent(lent)) if !self.sparse.contains_key(&grain) => Some(lent),
            _ => None,
        }
    }

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

    fn has_changing(&self) -> bool {
        self.has_lent
    }

    fn may_change(&self, SourceRead { read, .. }: &SourceRead) -> bool {
        self.lent(read.grain).is_some()
    }

    fn is_genuine(&self, SourceRead { read, .. }: &SourceRead, row: RowDigest) -> bool {
        self.lent(read.grain).is_none_or(|lent| match &lent.digests {
            Some(digests) => digests[read.row as usize] == row,
            None => self.verifier.has_rows(read.grain, &lent.layout, &[row]),
        })
    }

    fn again(&self, reads: &[&SourceRead]) -> Result<Vec<Bytes>, LoadError> {
        let grains = self.asks_again.again(reads)?;
        Ok(reads.iter().map(|read| Bytes::copy_from_slice(grains.row(read))).collect())
    }
}
