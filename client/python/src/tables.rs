//! A table that a distributed engine holds in parts: what its workers do with these, and what makes the version.

use arrow::array::RecordBatch;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use shardd_ingest::version::Base;
use shardd_ingest::{Amount, IngestConfig, Ingested, Mix};
use shardd_store::catalog::{Catalog, CommitNote, LocalCatalog};
use shardfmt::shard::ShardEntry;
use shardfmt::{ByteSize, Compression, DigestSum, Manifest, Operation, VersionId};

use crate::batches::Batch;
use crate::errors;
use crate::ingest::Target;
use crate::store::{Place, Store, parse};

/// The columns of a table, and how its rows are laid into shards.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Table {
    table: shardd_ingest::Table,
}

/// Stands for the table in messages.
const NAME: &str = "the table";

#[pymethods]
impl Table {
    /// Of a table with the columns of this batch.
    ///
    /// # Errors
    /// Columns that shards cannot hold, and sizes and compressions that are none.
    #[new]
    #[pyo3(signature = (columns, *, seed=0, shard_size=None, compression=None))]
    fn new(
        columns: &Batch,
        seed: u64,
        shard_size: Option<&str>,
        compression: Option<&str>,
    ) -> PyResult<Self> {
        let shard_size =
            shard_size.map(str::parse::<ByteSize>).transpose().map_err(|error| errors::value(&error))?;
        let compression =
            compression.map(str::parse::<Compression>).transpose().map_err(|error| errors::value(&error))?;
        let compression = compression.unwrap_or_default();
        let config =
            IngestConfig { mix: Mix::Hash, seed, shard_size, compression, ..IngestConfig::default() };
        let table = shardd_ingest::Table::new(NAME, columns.0.schema(), &config);
        Ok(Self { table: table.map_err(|error| errors::value(&error))? })
    }

    /// Of a table with the columns of this batch, whose rows are appended to a version. Reads no shard, and of the manifest only
    /// its footer.
    ///
    /// # Errors
    /// When the version has other columns, or its samples do not lie by a hash of their rows.
    #[staticmethod]
    #[pyo3(signature = (columns, store, version, *, shard_size=None))]
    fn appending(
        py: Python<'_>,
        columns: &Batch,
        store: &Store,
        version: &str,
        shard_size: Option<&str>,
    ) -> PyResult<Self> {
        let shard_size =
            shard_size.map(str::parse::<ByteSize>).transpose().map_err(|error| errors::value(&error))?;
        let id = VersionId(parse(version)?);
        py.detach(|| {
            let file = store.catalog()?.open_manifest(id).map_err(|error| errors::catalog(&error))?;
            let manifest = Manifest::new(file.schema().clone(), Vec::new(), file.config().clone());
            let base = Base { id, manifest: &manifest, provenance: None };
            let table = shardd_ingest::Table::appending(NAME, columns.0.schema(), base, shard_size);
            Ok(Self { table: table.map_err(|error| errors::value(&error))? })
        })
    }

    /// The rows of a part, their canonical bytes, and the sum of their digests modulo 2^128.
    ///
    /// # Errors
    /// When it has other columns.
    fn measure(&self, py: Python<'_>, part: &Batch) -> PyResult<(u64, u64, u128)> {
        let Amount { rows, bytes, sum } =
            py.detach(|| self.table.measure(&part.0)).map_err(|error| errors::value(&error))?;
        Ok((rows, bytes, sum.0))
    }

    /// How many shards rows of these canonical bytes make.
    fn shards(&self, rows: u64, bytes: u64) -> u32 {
        Amount { rows, bytes, ..Amount::default() }.shards(self.table.config())
    }

    /// The shard of each row of a part: 32-bit numbers, the lowest byte first.
    ///
    /// # Errors
    /// When it has other columns.
    fn deal<'py>(&self, py: Python<'py>, part: &Batch, shards: u32) -> PyResult<Bound<'py, PyBytes>> {
        let dealt = py.detach(|| self.table.deal(&part.0, shards)).map_err(|error| errors::value(&error))?;
        let bytes: Vec<u8> = dealt.into_iter().flat_map(u32::to_le_bytes).collect();
        Ok(PyBytes::new(py, &bytes))
    }

    /// Stores the shard of all rows that were dealt to it; its number and its entry. `None` of no rows.
    ///
    /// # Errors
    /// When parts have other columns or rows of another shard, and when the store does not take it.
    fn write(
        &self,
        py: Python<'_>,
        store: &Store,
        parts: Vec<PyRef<'_, Batch>>,
        shards: u32,
    ) -> PyResult<Option<(u32, String)>> {
        let Place::Store(place) = &store.place else { return Err(no_store()) };
        let parts: Vec<RecordBatch> = parts.iter().map(|part| part.0.clone()).collect();
        py.detach(|| {
            let shard = self.table.shard(&parts, shards).map_err(|error| errors::value(&error))?;
            let Some((index, shard)) = shard else { return Ok(None) };
            let catalog = LocalCatalog::open_to_fill(place).map_err(|error| errors::catalog(&error))?;
            catalog.put_shard(&shard).map_err(|error| errors::catalog(&error))?;
            let entry = serde_json::to_string(&shard.entry).map_err(|error| errors::value(&error))?;
            Ok(Some((index, entry)))
        })
    }

    /// Makes the version of these shards the present one of a dataset, in one step; its id.
    ///
    /// # Errors
    /// When the shards do not have the rows that were measured, or one is not in the store; nothing is committed then.
    fn commit(
        &self,
        py: Python<'_>,
        store: &Store,
        name: &str,
        amount: (u64, u64, u128),
        shards: Vec<(u32, String)>,
        message: &str,
    ) -> PyResult<String> {
        let target = Target::new(store, name, message)?;
        let shards = entries(&shards)?;
        py.detach(|| {
            let made = self.table.version(amount_of(amount), shards);
            let Ingested { manifest, provenance } = made.map_err(|error| errors::value(&error))?;
            let note = CommitNote { provenance: Some(provenance), ..CommitNote::of(Operation::INGEST) };
            target.commit(&manifest, note)
        })
    }

    /// Makes a version the present one of a dataset, in one step, in the place of `base`: that with these shards after its own;
    /// its id.
    ///
    /// # Errors
    /// As `commit`, and when another version took the place of `base`.
    #[expect(clippy::too_many_arguments, reason = "each is a part of the version, or of its name")]
    fn append(
        &self,
        py: Python<'_>,
        store: &Store,
        name: &str,
        base: &str,
        amount: (u64, u64, u128),
        shards: Vec<(u32, String)>,
        message: &str,
    ) -> PyResult<String> {
        let target = Target::new(store, name, message)?;
        let shards = entries(&shards)?;
        let id = VersionId(parse(base)?);
        py.detach(|| {
            let (manifest, provenance) = store.base(id)?;
            let base = Base { id, manifest: &manifest, provenance: provenance.as_ref() };
            let made = self.table.appended(base, amount_of(amount), shards);
            let Ingested { manifest, provenance } = made.map_err(|error| errors::value(&error))?;
            let note = CommitNote { provenance: Some(provenance), ..CommitNote::of(Operation::APPEND) };
            target.commit_after(id, &manifest, note)
        })
    }
}

fn amount_of((rows, bytes, sum): (u64, u64, u128)) -> Amount {
    Amount { rows, bytes, sum: DigestSum(sum) }
}

fn entries(shards: &[(u32, String)]) -> PyResult<Vec<(u32, ShardEntry)>> {
    let entries = shards.iter().map(|(index, entry)| Ok((*index, serde_json::from_str(entry)?)));
    entries.collect::<Result<_, serde_json::Error>>().map_err(|error| errors::value(&error))
}

fn no_store() -> PyErr {
    PyValueError::new_err("give a directory or the URL of a store to put shards into")
}
