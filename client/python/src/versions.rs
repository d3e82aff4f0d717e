//! Versions made of others by the workers of an engine: each makes a part, and one process commits.

use std::sync::Arc;

use pyo3::prelude::*;
use shardd_ingest::NoProgress;
use shardd_ingest::version::{self, Base};
use shardd_store::catalog::{CatalogStore, CommitNote};
use shardfmt::shard::ShardEntry;
use shardfmt::{ByteSize, Compression, Manifest, Operation, Provenance, VersionId};

use crate::errors;
use crate::ingest::Target;
use crate::store::{Store, parse};

/// A version to be cut into shards of another size, in units that any process can do.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Resharding {
    store: Py<Store>,
    base: VersionId,
    manifest: Arc<Manifest>,
    provenance: Option<Provenance>,
    size: ByteSize,
    compression: Option<Compression>,
}

#[pymethods]
impl Resharding {
    /// Of a version. Reads its manifest.
    ///
    /// # Errors
    /// A size or a compression that is none; when the manifest cannot be read.
    #[new]
    #[pyo3(signature = (store, version, *, shard_size, compression=None))]
    fn new(
        py: Python<'_>,
        store: Py<Store>,
        version: &str,
        shard_size: &str,
        compression: Option<&str>,
    ) -> PyResult<Self> {
        let base = VersionId(parse(version)?);
        let size = shard_size.parse::<ByteSize>().map_err(|error| errors::value(&error))?;
        let compression =
            compression.map(str::parse::<Compression>).transpose().map_err(|error| errors::value(&error))?;
        let of = store.get();
        let (manifest, provenance) = py.detach(|| of.base(base))?;
        let made = Self { store, base, manifest, provenance, size, compression };
        made.work().map(drop)?;
        Ok(made)
    }

    /// How many units there are.
    fn units(&self) -> PyResult<usize> {
        Ok(self.work()?.units())
    }

    /// Writes the shards of some units; the entries of all of their shards, in order.
    ///
    /// # Errors
    /// When a shard of the version is missing or damaged, or the store does not take one.
    fn write(&self, py: Python<'_>, first: usize, end: usize) -> PyResult<Vec<String>> {
        let store = self.store.get();
        py.detach(|| {
            let catalog = store.catalog()?;
            let shelf = CatalogStore(&*catalog);
            let work = self.work()?;
            let mut entries = Vec::new();
            for unit in first..end {
                let written = work.write(unit, &shelf, &shelf, &NoProgress);
                for entry in written.map_err(|error| errors::failed(&error))? {
                    entries.push(serde_json::to_string(&entry).map_err(|error| errors::value(&error))?);
                }
            }
            Ok(entries)
        })
    }

    /// Makes the version of the shards of all units, in order, the present one of a dataset in the place of its base; its id. Where
    /// no shard is another, nothing is committed.
    ///
    /// # Errors
    /// When another version took the place of the base, or a shard is not in the store.
    fn commit(&self, py: Python<'_>, name: &str, entries: Vec<String>, message: &str) -> PyResult<String> {
        let target = Target::new(self.store.get(), name, message)?;
        let entries: Result<Vec<ShardEntry>, _> =
            entries.iter().map(|entry| serde_json::from_str(entry)).collect();
        let entries = entries.map_err(|error| errors::value(&error))?;
        py.detach(|| {
            let manifest = self.work()?.version(entries);
            if manifest.shards == self.manifest.shards {
                return Ok(self.base.to_string());
            }
            let note =
                CommitNote { provenance: self.provenance.clone(), ..CommitNote::of(Operation::RESHARD) };
            target.commit_after(self.base, &manifest, note)
        })
    }
}

impl Resharding {
    fn work(&self) -> PyResult<version::Resharding<'_>> {
        let base = Base { id: self.base, manifest: &self.manifest, provenance: self.provenance.as_ref() };
        version::Resharding::new(base, self.size, self.compression).map_err(|error| errors::value(&error))
    }
}
