//! Rows straight from a store's shards, without any node: how most people start.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use shardfmt::plan::{GrainNo, Plan};
use shardfmt::{Manifest, Shard};

use super::LoadError;
use super::source::{RowSource, Wanted};
use crate::origin::Origin;

/// Shards of a store: mapped where the store is a directory, else held in memory. Each is verified whole when first opened.
pub(crate) struct Shards {
    origin: Arc<Origin>,
    runtime: tokio::runtime::Runtime,
    plan: Arc<Plan>,
    manifest: Arc<Manifest>,
    open: HashMap<u32, Shard>,
}

impl Shards {
    pub(crate) fn new(
        origin: Arc<Origin>,
        plan: Arc<Plan>,
        manifest: Arc<Manifest>,
    ) -> Result<Self, LoadError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| LoadError::Threads { source })?;
        Ok(Self { origin, runtime, plan, manifest, open: HashMap::new() })
    }

    fn open_shard(&mut self, number: u32) -> Result<(), LoadError> {
        if self.open.contains_key(&number) {
            return Ok(());
        }
        let entry = &self.manifest.shards[number as usize];
        let shard = match self.origin.local_path(&entry.id) {
            Some(path) => {
                let shard = Shard::open(&path)?;
                shard.verify(entry.id)?;
                shard
            }
            None => Shard::from_bytes(self.runtime.block_on(self.origin.shard(entry))?)?,
        };
        self.open.insert(number, shard);
        Ok(())
    }
}

impl RowSource for Shards {
    fn prepare(&mut self, _epoch: u32, wanted: &[Wanted]) -> Result<(), LoadError> {
        for wanted in wanted {
            self.open_shard(self.plan.locate_grain(wanted.grain).shard)?;
        }
        Ok(())
    }

    fn row(&self, grain: GrainNo, row: u32) -> Result<Cow<'_, [u8]>, LoadError> {
        let place = self.plan.locate_grain(grain);
        let shard = self.open.get(&place.shard).expect("rows are read after they were prepared");
        let mut bytes = Vec::new();
        shard.encode_row(place.index * self.plan.document().grain_rows + row, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }
}
