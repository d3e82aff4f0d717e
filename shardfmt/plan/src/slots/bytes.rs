//! A slot table as bytes: computed once, read in pieces.
//!
//! Opening reads the first page and a digest for every 16 KiB; each of these blocks is compared with its
//! digest at its first use. So a table of hundreds of megabytes is there as soon as it is mapped, and nothing
//! damaged is ever believed. `docs/FORMAT.md` has the layout.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use bytes::Bytes;
use rayon::prelude::*;

use super::{SlotTable, width};
use crate::digest::{Digest, PlanId};
use crate::{Epoch, GrainNo, Plan};

/// Their first bytes.
const MAGIC: [u8; 8] = *b"SHDSLOTS";
/// The layout that is written.
const FORMAT: u32 = 1;
/// The part of the header before the digest of it and of all digests.
const FACTS: usize = 64;
/// The header.
const HEADER: usize = FACTS + DIGEST;
const DIGEST: usize = 32;
/// The unit of comparison.
const BLOCK: usize = 16 << 10;
/// The slots begin at a multiple of this, as memory's pages do.
const PAGE: usize = 4 << 10;
/// How many blocks are written as one.
const ABREAST: usize = 64;

/// Why bytes are not the table that is asked for: make another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotBytesError {
    /// They are something else.
    #[error("these bytes are not a table of slots")]
    NotATable,
    /// A later release wrote them.
    #[error("the table of slots has format {0}, and this release reads {FORMAT}")]
    TooNew(u32),
    /// They are a table, of other slots.
    #[error("the table is of another plan or epoch")]
    Other,
    /// They have changed since they were written.
    #[error("the table of slots is damaged")]
    Damaged,
}

/// The bytes of a slot table, mapped or in memory. Clones share the knowledge of whole blocks.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
/// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// # let version = VersionId::of(b"a manifest");
/// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
/// # let plan = Plan::new(document, &shape.shard_rows)?;
/// use shardd_plan::{Epoch, Partition, SlotBytes, SlotTable};
///
/// let table = SlotTable::at(&plan, Epoch(2));
/// let mut bytes = Vec::new();
/// table.write(&plan, |piece| {
///     bytes.extend_from_slice(piece);
///     Ok::<(), std::io::Error>(())
/// })?;
/// let kept = SlotTable::read(&plan, SlotBytes::open(&plan, Epoch(2), bytes.into())?);
/// assert_eq!(kept.grain(&plan, Partition(0), 5), table.grain(&plan, Partition(0), 5));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SlotBytes {
    plan: PlanId,
    epoch: Epoch,
    /// The most that a grain's number may be.
    grain_count: u64,
    width: usize,
    bytes: Bytes,
    /// Where the slots begin.
    start: usize,
    blocks: Arc<[AtomicU8]>,
}

const UNKNOWN: u8 = 0;
const WHOLE: u8 = 1;
const DAMAGED: u8 = 2;

impl SlotBytes {
    /// The table of a plan and an epoch, if that is what these bytes are. Reads the header and the digests.
    ///
    /// # Errors
    /// [`SlotBytesError`].
    pub fn open(plan: &Plan, epoch: Epoch, bytes: Bytes) -> Result<Self, SlotBytesError> {
        let (slots, width) = (plan.full_grain_count() as usize, width(plan));
        let Some(header) = bytes.get(..HEADER) else { return Err(SlotBytesError::NotATable) };
        if header[..8] != MAGIC {
            return Err(SlotBytesError::NotATable);
        }
        let format = u32::from_le_bytes(header[8..12].try_into().expect("four bytes"));
        if format > FORMAT {
            return Err(SlotBytesError::TooNew(format));
        }
        if header[..FACTS] != facts(plan, epoch) {
            return Err(SlotBytesError::Other);
        }
        let blocks = (slots * width).div_ceil(BLOCK);
        let start = start(blocks);
        if bytes.len() != start + slots * width {
            return Err(SlotBytesError::Damaged);
        }
        let digests = &bytes[HEADER..HEADER + blocks * DIGEST];
        if header[FACTS..] != root(&header[..FACTS], digests).0 {
            return Err(SlotBytesError::Damaged);
        }
        let blocks = (0..blocks).map(|_| AtomicU8::new(UNKNOWN)).collect();
        Ok(Self { plan: plan.id(), epoch, grain_count: plan.grain_count(), width, bytes, start, blocks })
    }

    /// The plan whose table it is.
    pub fn plan(&self) -> PlanId {
        self.plan
    }

    /// The epoch whose table it is.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether something was found to be damaged so far.
    pub fn is_damaged(&self) -> bool {
        self.blocks.iter().any(|block| block.load(Relaxed) == DAMAGED)
    }

    /// The grain in a slot, counted through all partitions; `None` if that is not known any more.
    #[inline]
    pub(super) fn get(&self, slot: u64) -> Option<GrainNo> {
        let at = slot as usize * self.width;
        let block = at / BLOCK;
        match self.blocks[block].load(Relaxed) {
            WHOLE => {}
            UNKNOWN if self.check(block) => {}
            _ => return None,
        }
        Some(GrainNo(number(&self.bytes[self.start + at..][..self.width])))
    }

    fn check(&self, block: usize) -> bool {
        let at = self.start + block * BLOCK;
        let bytes = &self.bytes[at..self.bytes.len().min(at + BLOCK)];
        let is_whole = self.bytes[HEADER + block * DIGEST..][..DIGEST] == *blake3::hash(bytes).as_bytes()
            && bytes.chunks_exact(self.width).all(|grain| number(grain) < self.grain_count);
        self.blocks[block].store(if is_whole { WHOLE } else { DAMAGED }, Relaxed);
        is_whole
    }
}

impl SlotTable {
    /// How many bytes [`write`](Self::write) hands out.
    pub fn written_bytes(&self, plan: &Plan) -> u64 {
        let slots = self.slot_count() as usize * width(plan);
        (start(slots.div_ceil(BLOCK)) + slots) as u64
    }

    /// Hands the bytes of the table to `write`, piece by piece: what [`SlotBytes::open`] opens. Equal tables have equal bytes.
    ///
    /// # Errors
    /// What `write` gives.
    ///
    /// # Panics
    /// If the table is of another plan.
    pub fn write<E>(&self, plan: &Plan, mut write: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        assert_eq!(self.plan_id(), plan.id(), "the table is of another plan");
        let width = width(plan);
        let per_block = (BLOCK / width) as u64;
        let blocks = self.slot_count().div_ceil(per_block);
        let block = |block: u64| -> Vec<u8> {
            let slots = block * per_block..self.slot_count().min((block + 1) * per_block);
            let mut bytes = Vec::with_capacity(BLOCK);
            self.put(plan, slots, &mut bytes);
            bytes
        };
        let digest = |of: u64| *blake3::hash(&block(of)).as_bytes();
        let digests: Vec<[u8; DIGEST]> = (0..blocks).into_par_iter().map(digest).collect();
        let (facts, digests) = (facts(plan, self.epoch()), digests.as_flattened());
        write(&facts)?;
        write(&root(&facts, digests).0)?;
        write(digests)?;
        write(&vec![0; start(blocks as usize) - HEADER - digests.len()])?;
        for first in (0..blocks).step_by(ABREAST) {
            let many = first..blocks.min(first + ABREAST as u64);
            write(&many.into_par_iter().flat_map_iter(block).collect::<Vec<u8>>())?;
        }
        Ok(())
    }
}

fn facts(plan: &Plan, epoch: Epoch) -> [u8; FACTS] {
    let mut facts = [0; FACTS];
    facts[..8].copy_from_slice(&MAGIC);
    facts[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    facts[12..16].copy_from_slice(&(width(plan) as u32).to_le_bytes());
    facts[16..48].copy_from_slice(&plan.id().0.0);
    facts[48..52].copy_from_slice(&epoch.0.to_le_bytes());
    facts[56..64].copy_from_slice(&plan.full_grain_count().to_le_bytes());
    facts
}

fn root(facts: &[u8], digests: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(facts).update(digests);
    Digest(*hasher.finalize().as_bytes())
}

fn start(blocks: usize) -> usize {
    (HEADER + blocks * DIGEST).next_multiple_of(PAGE)
}

fn number(bytes: &[u8]) -> u64 {
    match bytes {
        [a, b, c, d] => u32::from_le_bytes([*a, *b, *c, *d]).into(),
        _ => u64::from_le_bytes(bytes.try_into().expect("four bytes or eight")),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;
    use crate::digest::VersionId;
    use crate::laws::configs;
    use crate::{Partition, PlanDocument, PlanOptions, Shape};

    fn written(plan: &Plan, table: &SlotTable) -> Vec<u8> {
        let mut bytes = Vec::new();
        let Ok(()) = table.write(plan, |piece| {
            bytes.extend(piece);
            Ok::<(), Infallible>(())
        });
        assert_eq!(bytes.len() as u64, table.written_bytes(plan));
        bytes
    }

    fn held(plan: &Plan, table: &SlotTable) -> Vec<GrainNo> {
        plan.partitions().flat_map(|m| table.grains_of(plan, m).collect::<Vec<_>>()).collect()
    }

    fn middling() -> Plan {
        let shape = Shape { shard_rows: vec![9_000; 3], row_bytes: 27_000 };
        let options = PlanOptions { partitions: Some(7), grain_rows: Some(1), ..PlanOptions::default() };
        let document = PlanDocument::with_defaults(VersionId(Digest::of(b"a version")), &shape, options);
        Plan::new(document.expect("defaults fit"), &shape.shard_rows).expect("of this shape")
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        #[test]
        fn read_traced_and_worked_out_tables_are_one(config in configs(), epoch in 0..6u32) {
            let (plan, epoch) = (config.plan(), Epoch(epoch));
            let mut worked_out = SlotTable::at(&plan, epoch);
            let bytes = written(&plan, &worked_out);
            let opened = SlotBytes::open(&plan, epoch, bytes.clone().into()).expect("just written");
            let mut read = SlotTable::read(&plan, opened.clone());
            let mut traced = SlotTable::traced(&plan, epoch);
            prop_assert_eq!(written(&plan, &read), bytes.clone());
            prop_assert_eq!(written(&plan, &traced), bytes);
            for _ in 0..2 {
                prop_assert_eq!(held(&plan, &read), held(&plan, &worked_out));
                prop_assert_eq!(held(&plan, &traced), held(&plan, &worked_out));
                for table in [&mut worked_out, &mut read, &mut traced] {
                    table.advance(&plan);
                }
            }
            prop_assert!(read.is_worked_out() && traced.is_worked_out() && !opened.is_damaged());
        }

        #[test]
        fn whatever_happens_to_the_bytes_no_grain_is_wrong(
            epoch in 0..3u32, at in any::<prop::sample::Index>(), bit in 0..8u32, cut in any::<Option<prop::sample::Index>>(),
        ) {
            let (plan, epoch) = (middling(), Epoch(epoch));
            let worked_out = SlotTable::at(&plan, epoch);
            let mut bytes = written(&plan, &worked_out);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            let start = start((plan.full_grain_count() as usize * 4).div_ceil(BLOCK));
            match SlotBytes::open(&plan, epoch, bytes.into()) {
                Ok(opened) => {
                    let read = SlotTable::read(&plan, opened.clone());
                    prop_assert_eq!(held(&plan, &read), held(&plan, &worked_out));
                    prop_assert_eq!(opened.is_damaged(), at >= start);
                }
                Err(error) => prop_assert!(at < start || cut.is_some(), "{}", error),
            }
        }
    }

    #[test]
    fn other_tables_and_other_things_are_told_apart() {
        let plan = middling();
        let bytes = Bytes::from(written(&plan, &SlotTable::at(&plan, Epoch(2))));
        let open = |epoch, bytes: &[u8]| {
            SlotBytes::open(&plan, Epoch(epoch), Bytes::copy_from_slice(bytes)).map(|_| ())
        };
        assert_eq!(open(2, &bytes), Ok(()));
        assert_eq!(open(3, &bytes), Err(SlotBytesError::Other));
        assert_eq!(open(2, b"PAR1"), Err(SlotBytesError::NotATable));
        assert_eq!(open(2, &[b'x'; 200]), Err(SlotBytesError::NotATable));
        let mut newer = bytes.to_vec();
        newer[8] = 2;
        assert_eq!(open(2, &newer), Err(SlotBytesError::TooNew(2)));
    }

    /// Only the needed blocks are read: damage elsewhere is not met.
    #[test]
    fn a_grain_costs_one_block() {
        let plan = middling();
        let mut bytes = written(&plan, &SlotTable::at(&plan, Epoch(1)));
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let opened = SlotBytes::open(&plan, Epoch(1), bytes.into()).expect("its digests are whole");
        let table = SlotTable::read(&plan, opened.clone());
        let first = plan.partitions().find(|m| table.index((*m, 0)) == 0).unwrap_or(Partition(0));
        assert_eq!(table.grain(&plan, first, 0), plan.grain_in_slot(Epoch(1), first, 0));
        assert!(!opened.is_damaged());
        assert_eq!(opened.get(plan.full_grain_count() - 1), None);
        assert!(opened.is_damaged());
    }

    /// Tables of earlier releases stay readable: the bytes of this table never change.
    #[test]
    fn the_bytes_of_a_table_are_settled() {
        let plan = middling();
        let bytes = written(&plan, &SlotTable::at(&plan, Epoch(3)));
        assert_eq!(bytes.len(), 112_096);
        assert_eq!(
            Digest::of(&bytes).to_string(),
            "b2cfa1670b6358dcf53635692b28676148543253de77feeb47a4e772b8dc1258"
        );
    }
}
