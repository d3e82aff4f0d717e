//! Rows straight from a store's shards, without any node: how most people start.

mod files;
mod memory;
mod samples;

use std::sync::Arc;

use shardfmt::plan::{Plan, Read};
use shardfmt::row::Rows;

use super::LoadError;
use super::source::{Reads, Ready, RowSource};
use files::Open;

pub(crate) use files::ShardFiles;
pub use samples::Samples;

/// The rows of a plan.
pub(crate) struct Shards {
    files: ShardFiles,
    plan: Arc<Plan>,
}

impl Shards {
    pub(crate) fn new(files: ShardFiles, plan: Arc<Plan>) -> Self {
        Self { files, plan }
    }
}

impl RowSource for Shards {
    fn prepare(&mut self, _epoch: u32, window: &[&Reads]) -> Result<Arc<dyn Ready>, LoadError> {
        let open = self
            .files
            .prepare(window.iter().copied().flatten().flatten().map(|read| lies(&self.plan, read)))?;
        Ok(Arc::new(Window { plan: Arc::clone(&self.plan), open }))
    }
}

/// The shards that were open when a window was prepared.
struct Window {
    plan: Arc<Plan>,
    open: Open,
}

impl Ready for Window {
    fn rows(&self, reads: &[Read]) -> Rows<'_> {
        let place = |read: &Read| {
            let (shard, row) = lies(&self.plan, read);
            self.open.place(shard, row)
        };
        Rows::Columns(reads.iter().map(place).collect())
    }
}

/// The shard of a row, and its number there.
fn lies(plan: &Plan, read: &Read) -> (u32, u32) {
    let at = plan.locate_grain(read.grain);
    (at.shard, at.index * plan.document().grain_rows + read.row)
}
