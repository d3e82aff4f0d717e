//! Rows straight from the shards of stores, without any node: how most people start.

mod bring;
mod direct;
mod files;
mod memory;
mod samples;
mod singles;
mod units;

use std::sync::Arc;

use shardd_plan::{Order, Plan, PlanDocument};
use shardfmt::row::Rows;

use super::LoadError;
use super::late::LateFile;
use super::order::SourceRead;
use super::source::{Reads, Ready, RowSource};

use files::{Numbers, Open, Unit};
pub(crate) use files::{ShardFiles, Stored};
pub(crate) use memory::{ahead_of_gathering, for_rows, room};
pub use samples::Samples;

/// The rows of one plan, or of the several of a mixture.
pub(crate) struct Shards {
    files: ShardFiles,
    lying: Arc<Lying>,
}

impl Shards {
    /// Those of `plans`, one for each version that `files` has, in the same order. Not `shuffle`d, they are read as they are stored.
    pub(crate) fn new(files: ShardFiles, plans: Vec<Arc<Plan>>, shuffle: bool) -> Self {
        let numbers = files.numbers();
        let unit = |plan: &Arc<Plan>| {
            let PlanDocument { order, grain_rows, partitions, .. } = plan.document();
            let grain = u64::from(*grain_rows);
            match order {
                _ if !shuffle => Unit { rows: *grain_rows, stay: grain },
                Order::Blocked { slots } => {
                    Unit { rows: *grain_rows, stay: u64::from(*partitions) * u64::from(*slots) * grain }
                }
                Order::Samples => Unit { rows: 1, stay: 1 },
            }
        };
        let files = files.in_units(plans.iter().map(unit));
        Self { files, lying: Arc::new(Lying { plans, numbers }) }
    }

    /// With `memory` for rows that are read past the page cache, where [this is
    /// worthwhile](ShardFiles::past_the_page_cache).
    pub(crate) fn past_the_page_cache(self, memory: u64) -> Result<Self, LoadError> {
        Ok(Self { files: self.files.past_the_page_cache(memory)?, ..self })
    }
}

impl RowSource for Shards {
    fn prepare(&mut self, epoch: u32, window: &[&Reads]) -> Result<Arc<dyn Ready>, LoadError> {
        let lying = &self.lying;
        let rows = window.iter().copied().flatten().flatten().map(|read| lying.place(read));
        let open = self.files.prepare(epoch, rows)?;
        Ok(Arc::new(Window { lying: Arc::clone(lying), open }))
    }

    fn horizon(&mut self) -> u64 {
        self.files.horizon()
    }

    fn looks_beyond_epochs(&self) -> bool {
        self.files.looks_beyond_epochs()
    }

    fn expect(&mut self, epoch: u32, reads: &Reads) {
        let Self { files, lying } = self;
        files.expect(epoch, reads.iter().flatten().map(|read| lying.place(read)));
    }
}

/// The shards that were open when a window was prepared.
struct Window {
    lying: Arc<Lying>,
    open: Open,
}

impl Ready for Window {
    fn rows(&self, reads: &[SourceRead]) -> Rows<'_> {
        let place = |read: &SourceRead| {
            let (shard, row) = self.lying.place(read);
            self.open.place(shard, row)
        };
        Rows::Columns(reads.iter().map(place).collect())
    }

    fn late(&self, reads: &[SourceRead]) -> Vec<Option<Arc<LateFile>>> {
        if !self.open.has_late() {
            return Vec::new();
        }
        let late = |read: &SourceRead| {
            let (shard, row) = self.lying.place(read);
            self.open.late(shard, row).cloned()
        };
        reads.iter().map(late).collect()
    }
}

/// In which shards what plans read lies.
struct Lying {
    plans: Vec<Arc<Plan>>,
    numbers: Arc<Numbers>,
}

impl Lying {
    /// The number of the shard of a row, and the row's there.
    fn place(&self, SourceRead { source, read }: &SourceRead) -> (u32, u32) {
        let plan = &self.plans[source.0 as usize];
        let at = plan.locate_grain(read.grain);
        let shard = self.numbers.of(source.0 as usize, at.shard);
        (shard, at.index * plan.document().grain_rows + read.row)
    }
}
