//! Samples by their numbers.

use std::path::PathBuf;

use arrow::datatypes::FieldRef;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use shardd_client::fork::Own;
use shardd_client::loader::{self, Transformed};
use shardd_transforms::OnError;
use shardfmt::VersionId;
use shardfmt::row::Fresh;

use crate::column::Column;
use crate::errors;
use crate::loader::cache;
use crate::store::{Place, Store, parse};
use crate::transforms::Chain;

/// The samples of one version, or of several one after the other, by their numbers.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Samples {
    inner: Own<loader::Samples>,
}

#[pymethods]
impl Samples {
    #[new]
    #[pyo3(signature = (versions, *, cache_dir=None, cache_limit=None))]
    fn new(
        py: Python<'_>,
        versions: Vec<(Py<Store>, String)>,
        cache_dir: Option<PathBuf>,
        cache_limit: Option<&str>,
    ) -> PyResult<Self> {
        let of = |(store, version): &(Py<Store>, String)| match &store.get().place {
            Place::Store(place) => Ok((place.clone(), VersionId(parse(version)?))),
            Place::Nodes { .. } => Err(PyTypeError::new_err(
                "samples of nodes are read in the order of a plan; open their store for single ones",
            )),
        };
        let versions: Vec<_> = versions.iter().map(of).collect::<PyResult<_>>()?;
        let cache = cache(cache_dir, cache_limit)?;
        let opened = py.detach(|| loader::Samples::open(&versions, &cache));
        Ok(Self { inner: Own::new(opened.map_err(|error| errors::load(&error))?) })
    }

    /// The columns of the samples of these numbers, in this order; their pictures transformed as at the positions of these numbers in
    /// epoch 0.
    #[pyo3(signature = (numbers, transforms=None))]
    fn take(
        &self,
        py: Python<'_>,
        numbers: Vec<u64>,
        transforms: Option<Py<Chain>>,
    ) -> PyResult<Vec<Column>> {
        let forked = || PyRuntimeError::new_err("the samples were opened before this process was forked");
        let inner = self.inner.get().ok_or_else(forked)?;
        let taken = py.detach(|| {
            let batch = inner.take(&numbers)?;
            let Some(chain) = &transforms else { return Ok(batch) };
            let places: Vec<(u32, u64)> = numbers.iter().map(|number| (0, *number)).collect();
            let mut chain = chain.get().inner.clone();
            if chain.on_error() == OnError::Skip {
                // As many rows as were asked for.
                chain.set_on_error(OnError::Zero);
            }
            Ok(Transformed::new(&chain, &batch.schema(), 0)?.apply(&batch, &places, &Fresh)?.batch)
        });
        let batch = taken.map_err(|error| errors::load(&error))?;
        let schema = batch.schema();
        let column = |(field, array): (&FieldRef, _)| Column::new(field, array);
        Ok(schema.fields().iter().zip(batch.columns()).map(column).collect())
    }

    /// Whether it was opened by this process, and not by one that this was forked from.
    fn is_own(&self) -> bool {
        self.inner.get().is_some()
    }
}
