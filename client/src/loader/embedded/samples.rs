//! Samples by their numbers, in any order: for people who look, and for evaluation.

use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use shardd_store::catalog::{Catalog, StorePlace};
use shardfmt::row::{Memory, Rows};
use shardfmt::{RowCodec, VersionId};
use tokio_util::sync::CancellationToken;

use super::super::open_stores::Stores;
use super::super::pool::Pool;
use super::super::{CacheChoice, LoadError, columns};
use super::{ShardFiles, Stored, room};

/// The samples of a version, or of several one after the other, by number: they count through the shards in the manifests'
/// order.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_client::CacheChoice;
/// use shardd_client::loader::Samples;
/// use shardfmt::arrow::array::{Array, Int64Array};
///
/// let samples = Samples::open(&[(place, plan.version)], &CacheChoice::default())?;
/// assert_eq!(samples.count(), 300);
/// let rows = samples.take(&[299, 7])?;
/// assert_eq!(rows.column(0).to_data(), Int64Array::from(vec![299, 7]).to_data());
/// # Ok(())
/// # }
/// ```
pub struct Samples {
    files: Mutex<ShardFiles>,
    /// Of each shard the number of its first sample, its version and its number there.
    starts: Vec<(u64, u32, u32)>,
    count: u64,
    codec: RowCodec,
    memory: Pool,
}

impl Samples {
    /// Opens versions of stores, which have the same columns; at least one. Nothing of their shards is read yet.
    ///
    /// # Errors
    /// A version that does not exist, versions of different columns, a store that cannot be read.
    pub fn open(versions: &[(StorePlace, VersionId)], cache: &CacheChoice) -> Result<Self, LoadError> {
        let mut stores = Stores::new(cache);
        let stored = versions.iter().map(|(place, version)| {
            let catalog = stores.at(place)?;
            Ok(Stored { origin: catalog.origin(), manifest: Arc::new(catalog.manifest(*version)?) })
        });
        let stored: Vec<Stored> = stored.collect::<Result<_, LoadError>>()?;
        let names = versions.iter().map(|(_, version)| format!("version {}", version.short()));
        let schemas = stored.iter().map(|stored| &*stored.manifest.schema);
        let schema = columns::common(names.zip(schemas))?;
        let (mut starts, mut count) = (Vec::new(), 0);
        for (version, Stored { manifest, .. }) in (0u32..).zip(&stored) {
            for (number, shard) in (0u32..).zip(&manifest.shards) {
                starts.push((count, version, number));
                count += u64::from(shard.rows);
            }
        }
        let files = ShardFiles::new(
            stored,
            Arc::new(cache.open()?),
            Arc::default(),
            CancellationToken::new(),
            room(),
        )?;
        let files = files.for_some_samples();
        let codec = RowCodec::new(Arc::new(schema))?;
        Ok(Self { files: Mutex::new(files), starts, count, codec, memory: Pool::new(4) })
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
            return Err(LoadError::Config(format!("there is no sample {beyond} of {}", self.count)));
        }
        let mut files = self.files.lock().expect("no panic while held");
        let shards = files.numbers();
        let place = |number: &u64| {
            let (start, version, shard) = self.starts[self.starts.partition_point(|at| at.0 <= *number) - 1];
            (shards.of(version as usize, shard), (*number - start) as u32)
        };
        let places: Vec<(u32, u32)> = numbers.iter().map(place).collect();
        let open = files.prepare(0, places.iter().copied())?;
        drop(files);
        let rows = places.iter().map(|(shard, row)| open.place(*shard, *row));
        let memory: &dyn Memory = &self.memory;
        Ok(self.codec.gather(&Rows::Columns(rows.collect()), memory)?)
    }
}
