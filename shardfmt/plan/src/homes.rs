//! What the slots of the partitions hold in epoch 0. Knows nothing of epochs after that.

use super::grains::Grains;
use super::key::{Tag, key, stratum_key};
use super::members::Members;
use super::split::Split;
use super::{GrainNo, InitialPlacement, Partition, Permutation, PlanDocument};

/// Where every grain is in epoch 0: the full ones in slots, the short ones beside them for good.
#[derive(Clone, Debug)]
pub(crate) struct Homes {
    slots: Split,
    members: Members,
    strata: Vec<Stratum>,
    placement: Placement,
    shorts: Shorts,
}

/// The grains that change places with each other: all of them, if a plan is not stratified.
#[derive(Clone, Debug)]
struct Stratum {
    /// Its slots, dealt on from where those of the strata before end.
    slots: Split,
    /// The slots of the strata before, which come first in each partition.
    before: Split,
}

/// A part of a partition's slots: those of one stratum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) stratum: usize,
    pub(crate) partition: Partition,
    /// Its first slot in the partition.
    pub(crate) start: u64,
    pub(crate) size: u64,
}

/// Of each stratum, which of its grains a slot begins with.
#[derive(Clone, Debug)]
enum Placement {
    /// `first[s][i]` is the first grain of range i of stratum s, which lies in `partition[i]`; `range` is the inverse.
    Shards {
        first: Vec<Vec<u64>>,
        partition: Vec<u32>,
        range: Vec<u32>,
    },
    Random(Vec<Permutation>),
}

/// Short grains of all partitions: `grain[start[m]..start[m + 1]]` are those of m.
#[derive(Clone, Debug)]
struct Shorts {
    start: Vec<usize>,
    grain: Vec<GrainNo>,
    /// Rows of the short grains of the same partition up to and including this one.
    rows_through: Vec<u64>,
}

impl Homes {
    pub(crate) fn new(document: &PlanDocument, grains: &Grains) -> Self {
        let partitions = u64::from(document.partitions);
        let members = Members::new(document, grains.full_count());
        let strata: Vec<Stratum> = (0..members.strata())
            .map(|stratum| Stratum {
                slots: Split::dealt(members.start(stratum), members.len(stratum), partitions),
                before: Split::dealt(0, members.start(stratum), partitions),
            })
            .collect();
        let placement = match document.placement {
            InitialPlacement::Shards => {
                let rho = Permutation::new(&key(document.seed, Tag::Ranges, 0, 0), partitions);
                let partition: Vec<u32> = (0..partitions).map(|i| rho.apply(i) as u32).collect();
                let range = (0..partitions).map(|m| rho.invert(m) as u32).collect();
                let starts = |stratum: &Stratum| {
                    let sizes = partition.iter().map(|m| stratum.slots.of(Partition(*m)));
                    sizes.scan(0, |next, size| Some(std::mem::replace(next, *next + size))).collect()
                };
                Placement::Shards { first: strata.iter().map(starts).collect(), partition, range }
            }
            InitialPlacement::Random => {
                let permutation = |stratum: usize| {
                    let key = stratum_key(document.seed, Tag::Grains, 0, 0, stratum);
                    Permutation::new(&key, members.len(stratum))
                };
                Placement::Random((0..strata.len()).map(permutation).collect())
            }
        };
        let slots = Split::dealt(0, grains.full_count(), partitions);
        let shorts = Shorts { start: vec![0; partitions as usize + 1], grain: vec![], rows_through: vec![] };
        let mut homes = Homes { slots, members, strata, placement, shorts };
        homes.settle_shorts(grains);
        homes
    }

    /// A short grain stays where the last full grain before it begins, so that it is filled with its neighbours.
    fn settle_shorts(&mut self, grains: &Grains) {
        let mut settled: Vec<_> = grains
            .short_grains()
            .map(|(grain, rows, full_before)| (self.slot_of(full_before.saturating_sub(1)).0, grain, rows))
            .collect();
        settled.sort_unstable();
        let mut rows_through = 0;
        for (at, (partition, grain, rows)) in settled.iter().enumerate() {
            let is_first = at == 0 || settled[at - 1].0 != *partition;
            rows_through = u64::from(*rows) + if is_first { 0 } else { rows_through };
            self.shorts.start[partition.0 as usize + 1] += 1;
            self.shorts.grain.push(*grain);
            self.shorts.rows_through.push(rows_through);
        }
        for m in 1..self.shorts.start.len() {
            self.shorts.start[m] += self.shorts.start[m - 1];
        }
    }

    /// The slots of all partitions.
    pub(crate) fn slots(&self) -> &Split {
        &self.slots
    }

    pub(crate) fn strata(&self) -> usize {
        self.strata.len()
    }

    /// The slots of a stratum.
    pub(crate) fn slots_of(&self, stratum: usize) -> &Split {
        &self.strata[stratum].slots
    }

    pub(crate) fn cell(&self, stratum: usize, partition: Partition) -> Cell {
        let Stratum { slots, before } = &self.strata[stratum];
        Cell { stratum, partition, start: before.of(partition), size: slots.of(partition) }
    }

    /// The cell that a slot lies in.
    pub(crate) fn cell_of(&self, partition: Partition, slot: u64) -> Cell {
        self.cell(self.members.stratum_dealt(self.slots.dealt_as(partition, slot)), partition)
    }

    /// The full grain that a slot holds in epoch 0.
    pub(crate) fn full_in(&self, partition: Partition, slot: u64) -> u64 {
        let cell = self.cell_of(partition, slot);
        let slot = slot - cell.start;
        let member = match &self.placement {
            Placement::Shards { first, range, .. } => {
                first[cell.stratum][range[partition.0 as usize] as usize] + slot
            }
            Placement::Random(permutations) => {
                permutations[cell.stratum].apply(self.strata[cell.stratum].slots.start(partition) + slot)
            }
        };
        self.members.full(cell.stratum, member)
    }

    /// The slot that holds a full grain in epoch 0.
    pub(crate) fn slot_of(&self, full: u64) -> (Partition, u64) {
        let (stratum, member) = self.members.find(full);
        self.slot_of_member(stratum, member)
    }

    /// Calls `hold` with every full grain and the slot that holds it in epoch 0.
    pub(crate) fn each(&self, mut hold: impl FnMut(u64, (Partition, u64))) {
        for (stratum, Stratum { slots, .. }) in self.strata.iter().enumerate() {
            match &self.placement {
                Placement::Shards { first, partition, .. } => {
                    for (first, partition) in first[stratum].iter().zip(partition) {
                        let cell = self.cell(stratum, Partition(*partition));
                        for slot in 0..cell.size {
                            hold(
                                self.members.full(stratum, first + slot),
                                (cell.partition, cell.start + slot),
                            );
                        }
                    }
                }
                Placement::Random(_) => {
                    for member in 0..slots.total() {
                        hold(self.members.full(stratum, member), self.slot_of_member(stratum, member));
                    }
                }
            }
        }
    }

    fn slot_of_member(&self, stratum: usize, member: u64) -> (Partition, u64) {
        let Stratum { slots, before } = &self.strata[stratum];
        let (partition, slot) = match &self.placement {
            Placement::Shards { first, partition, .. } => {
                let first = &first[stratum];
                let range = first.partition_point(|start| *start <= member) - 1;
                (Partition(partition[range]), member - first[range])
            }
            Placement::Random(permutations) => slots.find(permutations[stratum].invert(member)),
        };
        (partition, before.of(partition) + slot)
    }

    pub(crate) fn shorts_of(&self, partition: Partition) -> &[GrainNo] {
        let m = partition.0 as usize;
        &self.shorts.grain[self.shorts.start[m]..self.shorts.start[m + 1]]
    }

    pub(crate) fn short_rows(&self, partition: Partition) -> u64 {
        self.rows_through(partition).last().copied().unwrap_or(0)
    }

    fn rows_through(&self, partition: Partition) -> &[u64] {
        let m = partition.0 as usize;
        &self.shorts.rows_through[self.shorts.start[m]..self.shorts.start[m + 1]]
    }

    /// The short grain, and the row in it, of row `row` of all short grains of a partition.
    pub(crate) fn short_at(&self, partition: Partition, row: u64) -> (GrainNo, u32) {
        let through = self.rows_through(partition);
        let at = through.partition_point(|end| *end <= row);
        let before = if at == 0 { 0 } else { through[at - 1] };
        (self.shorts_of(partition)[at], (row - before) as u32)
    }

    /// Rows of the partition's short grains before `grain`, one of them.
    pub(crate) fn short_rows_before(&self, partition: Partition, grain: GrainNo) -> u64 {
        let at = self.shorts_of(partition).partition_point(|other| *other < grain);
        if at == 0 { 0 } else { self.rows_through(partition)[at - 1] }
    }
}
