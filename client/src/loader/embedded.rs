//! Rows straight from a store's shards, without any node: how most people start.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::{env, fs};

use shardfmt::plan::{GrainNo, Plan};
use shardfmt::{Manifest, Shard};
use tempfile::TempDir;

use super::LoadError;
use super::source::{RowSource, Wanted};
use crate::origin::Origin;

/// Shards of a store, mapped: its own files where it is a directory, else temporary ones, each read once. Each is verified
/// whole when first opened.
pub(crate) struct Shards {
    origin: Arc<Origin>,
    runtime: tokio::runtime::Runtime,
    plan: Arc<Plan>,
    manifest: Arc<Manifest>,
    open: HashMap<u32, Shard>,
    /// Of a store elsewhere.
    kept: Option<TempDir>,
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
        Ok(Self { origin, runtime, plan, manifest, open: HashMap::new(), kept: None })
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
            None => {
                let bytes = self.runtime.block_on(self.origin.shard(entry))?;
                Shard::open(&self.keep(number, &bytes)?)?
            }
        };
        self.open.insert(number, shard);
        Ok(())
    }

    /// Writes a shard to a file that goes with this: a dataset may be larger than the memory.
    fn keep(&mut self, number: u32, bytes: &[u8]) -> Result<PathBuf, LoadError> {
        let dir = env::temp_dir();
        let room = |source| LoadError::Room { dir: dir.clone(), source };
        let kept = match &mut self.kept {
            Some(kept) => kept,
            none => none.insert(tempfile::Builder::new().prefix("shardd-").tempdir_in(&dir).map_err(room)?),
        };
        let path = kept.path().join(number.to_string());
        fs::write(&path, bytes).map_err(room)?;
        Ok(path)
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
