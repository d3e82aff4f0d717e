//! Samples by their numbers, in any order: for people who look, and for evaluation.

use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use shardfmt::row::{Memory, Rows};
use shardfmt::{Manifest, RowCodec, VersionId};
use tokio_util::sync::CancellationToken;

use super::super::pool::Pool;
use super::super::{CacheChoice, LoadError};
use super::ShardFiles;
use crate::catalog::{Catalog, LocalCatalog, StorePlace};

/// A version's samples, by number: they count through the shards in the manifest's order.
pub struct Samples {
    files: Mutex<ShardFiles>,
    /// The number of the first sample of each shard.
    starts: Vec<u64>,
    count: u64,
    codec: RowCodec,
    memory: Pool,
}

impl Samples {
    /// Opens a version of a store. Nothing of its shards is read yet.
    ///
    /// # Errors
    /// A version that does not exist, a store that cannot be read.
    pub fn open(place: &StorePlace, version: VersionId, cache: &CacheChoice) -> Result<Self, LoadError> {
        let catalog = LocalCatalog::open_at(place)?;
        let manifest = Arc::new(catalog.manifest(version)?);
        Self::of(&catalog, manifest, cache)
    }

    fn of(catalog: &LocalCatalog, manifest: Arc<Manifest>, cache: &CacheChoice) -> Result<Self, LoadError> {
        let starts = manifest.shards.iter().scan(0, |next, shard| {
            let start = *next;
            *next += u64::from(shard.rows);
            Some(start)
        });
        Ok(Self {
            starts: starts.collect(),
            count: manifest.sample_count(),
            codec: RowCodec::new(Arc::clone(&manifest.schema))?,
            memory: Pool::new(4),
            files: Mutex::new(ShardFiles::new(
                catalog.origin(),
                Arc::new(cache.open()?),
                manifest,
                Arc::default(),
                CancellationToken::new(),
            )?),
        })
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their columns.
    pub fn schema(&self) -> &SchemaRef {
        self.codec.schema()
    }

    /// The samples of these numbers, in this order; one may be asked for more than once. Blocks until they are read.
    ///
    /// # Errors
    /// A number that no sample has, and what reading gives.
    pub fn take(&self, numbers: &[u64]) -> Result<RecordBatch, LoadError> {
        if let Some(beyond) = numbers.iter().find(|number| **number >= self.count) {
            return Err(LoadError::Config(format!(
                "there is no sample {beyond}; the version has {}",
                self.count
            )));
        }
        let places: Vec<(u32, u32)> = numbers.iter().map(|number| self.place(*number)).collect();
        let open = self.files.lock().expect("no panic while held").prepare(places.iter().copied())?;
        let rows = places.iter().map(|(shard, row)| open.place(*shard, *row));
        let memory: &dyn Memory = &self.memory;
        Ok(self.codec.gather(&Rows::Columns(rows.collect()), memory)?)
    }

    fn place(&self, number: u64) -> (u32, u32) {
        let shard = self.starts.partition_point(|start| *start <= number) - 1;
        (shard as u32, (number - self.starts[shard]) as u32)
    }
}
