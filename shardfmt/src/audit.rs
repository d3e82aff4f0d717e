//! The root of an epoch: one hash for all that an epoch's ranks read, each sample with its position and its bytes.
//!
//! It is made of a tree in the shape of a shard's ([`merkle`](crate::merkle)), with a leaf for each sample: partition by
//! partition, and in each as it is read. A rank reads partitions from end to end, but for the surplus of steps, which others
//! read: so each builds its parts of the tree as it goes ([`Consumed`]), in memory that grows with the surplus and not with the
//! epoch, and anyone puts them together ([`put_together`]). What must come out follows from the plan and the manifest's row digests ([`root`]). A [`Proof`]
//! shows one sample with nothing but the root. `docs/FORMAT.md` has it to the bit.
//!
//! Pure: plans, digests and hashes. Knows neither the source of digests nor the reports.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use shardd_plan::{Epoch, Partition, Plan, SampleNo, SlotTable};

use crate::digest::{PlanId, VersionId};
use crate::keyed::KeyedHash;
use crate::merkle::{NodeHash, Part, climb, path_among};
use crate::row::RowDigest;

/// The format of proofs and reports.
pub const FORMAT: u32 = 1;

static LEAF: LazyLock<KeyedHash> = LazyLock::new(|| KeyedHash::new("shardfmt 2026 epoch leaf v1"));
static ROOT: LazyLock<KeyedHash> = LazyLock::new(|| KeyedHash::new("shardfmt 2026 epoch root v1"));

/// The subject of a root.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::{Epoch, Plan, PlanDocument, PlanOptions, SampleNo, Shape, SlotTable};
/// # use shardfmt::{RowDigest, VersionId};
/// # let shape = Shape { shard_rows: vec![300], row_bytes: 300 * 8 };
/// # let version = VersionId::of(b"a manifest");
/// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
/// # let plan = Plan::new(document, &shape.shard_rows)?;
/// # let digests: Vec<RowDigest> = (0..300_u64).map(|n| RowDigest::of(&n.to_le_bytes())).collect();
/// use shardfmt::audit::{Consumed, Subject};
///
/// let subject = Subject::of(&plan, Epoch(3));
/// assert_eq!(subject.samples, 300);
/// assert_eq!(Consumed::new(&plan, Epoch(3)).report().subject, subject);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// The plan that was followed.
    pub plan: PlanId,
    /// The version that it is over.
    pub version: VersionId,
    /// The epoch.
    pub epoch: u32,
    /// How many samples an epoch has.
    pub samples: u64,
}

impl Subject {
    /// An epoch of a plan.
    pub fn of(plan: &Plan, epoch: Epoch) -> Self {
        let version = plan.document().version;
        Self { plan: plan.id(), version, epoch: epoch.0, samples: plan.sample_count() }
    }

    /// The root of the epoch whose tree has this one.
    fn seal(&self, tree: NodeHash) -> NodeHash {
        let (epoch, samples) = (self.epoch.to_le_bytes(), self.samples.to_le_bytes());
        let parts: [&[u8]; 5] = [&self.plan.0.0, &self.version.0.0, &epoch, &samples, &tree.0];
        NodeHash(ROOT.of(&parts.concat()))
    }
}

/// The reads of a rank in an epoch, fed sample by sample.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::{Epoch, Plan, PlanDocument, PlanOptions, SampleNo, Shape, SlotTable};
/// # use shardfmt::{RowDigest, VersionId};
/// # let shape = Shape { shard_rows: vec![300], row_bytes: 300 * 8 };
/// # let version = VersionId::of(b"a manifest");
/// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
/// # let plan = Plan::new(document, &shape.shard_rows)?;
/// # let digests: Vec<RowDigest> = (0..300_u64).map(|n| RowDigest::of(&n.to_le_bytes())).collect();
/// use shardfmt::audit::{self, Consumed};
///
/// let mut consumed = Consumed::new(&plan, Epoch(0));
/// for position in 0..plan.sample_count() {
///     let sample = plan.sample_at(Epoch(0), position);
///     consumed.take(&plan, position, sample, &digests[sample.0 as usize])?;
/// }
/// let root = audit::put_together(&plan, Epoch(0), &[consumed.report()])?;
/// assert_eq!(root, audit::root(&plan, &SlotTable::initial(&plan), &digests));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Consumed {
    subject: Subject,
    firsts: Vec<u64>,
    /// Of each partition, the last one being added to.
    parts: BTreeMap<u32, Vec<Part>>,
}

/// A sample of a partition that was read before, or before one that precedes it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("position {position} was read out of turn: partition {partition} was at position {due}")]
pub struct OutOfTurn {
    position: u64,
    partition: Partition,
    due: u64,
}

impl Consumed {
    /// Nothing yet of an epoch of `plan`.
    pub fn new(plan: &Plan, epoch: Epoch) -> Self {
        Self { subject: Subject::of(plan, epoch), firsts: first_leaves(plan), parts: BTreeMap::new() }
    }

    /// Takes a sample that was read at a position of the plan that this was made for. A partition's samples come in their
    /// order; those between that others read, or that are left out, make another part.
    ///
    /// # Errors
    /// [`OutOfTurn`] when one comes again or too late; nothing is changed then.
    ///
    /// # Panics
    /// If the epoch has no such position.
    pub fn take(
        &mut self,
        plan: &Plan,
        position: u64,
        sample: SampleNo,
        row: &RowDigest,
    ) -> Result<(), OutOfTurn> {
        let (partition, turn) = plan.at_position(position);
        let first = self.firsts[partition.0 as usize];
        let parts = self.parts.entry(partition.0).or_default();
        let due = parts.last().map(|part| part.leaves().end - first);
        if let Some(due) = due.filter(|due| *due > turn) {
            let due = due.min(plan.partition_samples(partition) - 1);
            return Err(OutOfTurn { position, partition, due: plan.position_of(partition, due) });
        }
        let part = match parts.last_mut() {
            Some(part) if due == Some(turn) => part,
            _ => parts.push_mut(Part::at(first + turn)),
        };
        part.push(NodeHash(LEAF.of(&leaf_bytes(sample, position, row))));
        Ok(())
    }

    /// The reads so far, to be merged with those of others.
    pub fn report(&self) -> ConsumedReport {
        let mut parts: Vec<Part> = Vec::new();
        for part in self.parts.values().flatten() {
            if parts.last_mut().is_none_or(|last| last.join(part).is_err()) {
                parts.push(part.clone());
            }
        }
        ConsumedReport { format: FORMAT, subject: self.subject, parts }
    }
}

/// A rank's report on its reads in an epoch: some hashes, for any number of samples.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::{Epoch, Plan, PlanDocument, PlanOptions, SampleNo, Shape, SlotTable};
/// # use shardfmt::{RowDigest, VersionId};
/// # let shape = Shape { shard_rows: vec![300], row_bytes: 300 * 8 };
/// # let version = VersionId::of(b"a manifest");
/// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
/// # let plan = Plan::new(document, &shape.shard_rows)?;
/// # let digests: Vec<RowDigest> = (0..300_u64).map(|n| RowDigest::of(&n.to_le_bytes())).collect();
/// use shardfmt::audit::{Consumed, Incomplete, put_together};
///
/// let mut reports = vec![];
/// for half in [0..150, 150..300] {
///     let mut consumed = Consumed::new(&plan, Epoch(0));
///     for position in half {
///         let sample = plan.sample_at(Epoch(0), position);
///         consumed.take(&plan, position, sample, &digests[sample.0 as usize])?;
///     }
///     reports.push(consumed.report());
/// }
/// assert!(put_together(&plan, Epoch(0), &reports).is_ok());
/// let missing = put_together(&plan, Epoch(0), &reports[..1]);
/// assert!(matches!(missing, Err(Incomplete::Missing { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsumedReport {
    /// [`FORMAT`].
    pub format: u32,
    /// Which epoch.
    pub subject: Subject,
    /// Parts of its tree.
    pub parts: Vec<Part>,
}

/// Why reports make no root.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum Incomplete {
    /// Of another epoch, plan or version, or a format that is not known.
    #[error("a report is of {}", about(found))]
    OtherSubject { found: Box<ConsumedReport> },
    /// Some samples are in no report.
    #[error(
        "{samples} samples are in no report, the first is that of partition {partition} at position {position}"
    )]
    Missing { samples: u64, partition: Partition, position: u64 },
    /// Some samples are in two reports.
    #[error(
        "{samples} samples are in two reports, the first is that of partition {partition} at position {position}"
    )]
    Twice { samples: u64, partition: Partition, position: u64 },
    /// There are no such samples.
    #[error("a report has samples up to the {end}th in the order of partitions, and an epoch has {samples}")]
    Beyond { end: u64, samples: u64 },
}

fn about(report: &ConsumedReport) -> String {
    let Subject { plan, epoch, .. } = &report.subject;
    match report.format {
        FORMAT => format!("epoch {epoch} of plan {plan}"),
        format => format!("format {format}, and this program reads format {FORMAT}: use a newer one"),
    }
}

/// The root of what all `reports` say was read.
///
/// # Errors
/// [`Incomplete`] when that is not each sample exactly once.
pub fn put_together(plan: &Plan, epoch: Epoch, reports: &[ConsumedReport]) -> Result<NodeHash, Incomplete> {
    let subject = Subject::of(plan, epoch);
    if let Some(other) = reports.iter().find(|one| one.subject != subject || one.format != FORMAT) {
        return Err(Incomplete::OtherSubject { found: Box::new(other.clone()) });
    }
    let mut parts: Vec<&Part> = reports.iter().flat_map(|report| &report.parts).collect();
    parts.sort_by_key(|part| (part.leaves().start, part.leaves().end));
    let mut whole = Part::at(0);
    for part in parts {
        let (end, leaves) = (whole.leaves().end, part.leaves());
        if leaves.end > subject.samples {
            return Err(Incomplete::Beyond { end: leaves.end, samples: subject.samples });
        }
        if leaves.start > end {
            let (partition, position) = place(plan, end);
            return Err(Incomplete::Missing { samples: leaves.start - end, partition, position });
        }
        if whole.join(part).is_err() && !leaves.is_empty() {
            let (partition, position) = place(plan, leaves.start);
            let samples = end.min(leaves.end) - leaves.start;
            return Err(Incomplete::Twice { samples, partition, position });
        }
    }
    match subject.samples - whole.leaves().end {
        0 => Ok(subject.seal(whole.root().expect("it begins with the first leaf"))),
        samples => {
            let (partition, position) = place(plan, whole.leaves().end);
            Err(Incomplete::Missing { samples, partition, position })
        }
    }
}

/// The root of the epoch of `table`: the one that must come out. `rows` are the digests of all samples, by their numbers.
///
/// # Panics
/// If there are not as many digests as samples.
pub fn root(plan: &Plan, table: &SlotTable, rows: &[RowDigest]) -> NodeHash {
    assert_eq!(rows.len() as u64, plan.sample_count(), "a digest for each sample");
    let firsts = first_leaves(plan);
    let part = |partition: u32| {
        let mut part = Part::at(firsts[partition as usize]);
        leaves(plan, table, rows, partition).into_iter().for_each(|leaf| part.push(leaf));
        part
    };
    let parts: Vec<Part> = (0..plan.document().partitions).into_par_iter().map(part).collect();
    let mut whole = Part::at(0);
    parts.iter().for_each(|part| whole.join(part).expect("partitions follow each other"));
    Subject::of(plan, table.epoch()).seal(whole.root().expect("it begins with the first leaf"))
}

/// The proof that the epoch of `table` reads `sample`. `rows` as of [`root`].
///
/// # Panics
/// If there is no such sample, or there are not as many digests as samples.
pub fn prove(plan: &Plan, table: &SlotTable, rows: &[RowDigest], sample: SampleNo) -> Proof {
    assert_eq!(rows.len() as u64, plan.sample_count(), "a digest for each sample");
    let position = plan.position_of_sample(table.epoch(), sample);
    let (partition, turn) = plan.at_position(position);
    let index = first_leaves(plan)[partition.0 as usize] + turn;
    let leaves = (0..plan.document().partitions).flat_map(|partition| leaves(plan, table, rows, partition));
    Proof {
        format: FORMAT,
        subject: Subject::of(plan, table.epoch()),
        sample,
        position,
        row: rows[sample.0 as usize],
        leaf: index,
        path: path_among(leaves, index, plan.sample_count()),
    }
}

/// Shows that an epoch read a sample, to a reader who knows the root.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::{Epoch, Plan, PlanDocument, PlanOptions, SampleNo, Shape, SlotTable};
/// # use shardfmt::{RowDigest, VersionId};
/// # let shape = Shape { shard_rows: vec![300], row_bytes: 300 * 8 };
/// # let version = VersionId::of(b"a manifest");
/// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
/// # let plan = Plan::new(document, &shape.shard_rows)?;
/// # let digests: Vec<RowDigest> = (0..300_u64).map(|n| RowDigest::of(&n.to_le_bytes())).collect();
/// use shardfmt::audit;
///
/// let table = SlotTable::at(&plan, Epoch(2));
/// let root = audit::root(&plan, &table, &digests);
/// let proof = audit::prove(&plan, &table, &digests, SampleNo(7));
/// assert_eq!(proof.root(), Some(root));
///
/// let forged = audit::Proof { position: proof.position ^ 1, ..proof };
/// assert_ne!(forged.root(), Some(root));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// [`FORMAT`].
    pub format: u32,
    /// Which epoch.
    pub subject: Subject,
    /// The number of the sample in the order of the version.
    pub sample: SampleNo,
    /// The position at which it was read.
    pub position: u64,
    /// The digest of its canonical bytes.
    pub row: RowDigest,
    /// Which leaf of the tree it is.
    pub leaf: u64,
    /// The hashes that lead from the leaf to the top of the tree, lowest first.
    pub path: Vec<NodeHash>,
}

impl Proof {
    /// The root of which this is a proof, whatever it says; `None` if it can be one of none.
    pub fn root(&self) -> Option<NodeHash> {
        let samples = self.subject.samples;
        if self.format != FORMAT || self.sample.0 >= samples || self.position >= samples {
            return None;
        }
        let leaf = NodeHash(LEAF.of(&leaf_bytes(self.sample, self.position, &self.row)));
        Some(self.subject.seal(climb(leaf, self.leaf, samples, &self.path)?))
    }
}

fn leaf_bytes(sample: SampleNo, position: u64, row: &RowDigest) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&sample.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&position.to_le_bytes());
    bytes[16..].copy_from_slice(&row.0);
    bytes
}

/// The leaves of a partition.
fn leaves(plan: &Plan, table: &SlotTable, rows: &[RowDigest], partition: u32) -> Vec<NodeHash> {
    let reads = plan.step_reads(table, 0..plan.sample_count(), partition..partition + 1);
    let bytes = reads.iter().map(|read| {
        let sample = plan.sample(read.grain, read.row);
        leaf_bytes(sample, read.position, &rows[sample.0 as usize])
    });
    let bytes: Vec<[u8; 32]> = bytes.collect();
    let inputs: Vec<&[u8]> = bytes.iter().map(<[u8; 32]>::as_slice).collect();
    LEAF.of_each(&inputs).into_iter().map(NodeHash).collect()
}

/// Which leaf the first of each partition is.
fn first_leaves(plan: &Plan) -> Vec<u64> {
    let first = |next: &mut u64, partition| {
        let first = *next;
        *next += plan.partition_samples(partition);
        Some(first)
    };
    plan.partitions().scan(0, first).collect()
}

/// The partition and position that a leaf is of.
fn place(plan: &Plan, leaf: u64) -> (Partition, u64) {
    let firsts = first_leaves(plan);
    let number = firsts.partition_point(|first| *first <= leaf) - 1;
    let partition = Partition(u32::try_from(number).expect("partitions are counted in 32 bits"));
    (partition, plan.position_of(partition, leaf - firsts[number]))
}

#[cfg(test)]
mod tests;
