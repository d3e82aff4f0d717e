//! Which part of the data a process reads: decided in Rust for all loaders alike.

use pyo3::prelude::*;
use shardd_client::launcher;
use shardd_client::loader::{DataRank, Layout, WorldRank};

use crate::errors;

/// V of a mixture that is read in steps of `global_batch`, by default.
#[pyfunction]
pub(crate) fn mixture_virtual_ranks(global_batch: u64) -> u32 {
    shardd_client::loader::mixture_virtual_ranks(global_batch)
}

/// The process in its role as a reader of data, and of how many: by its rank, else by what `variable` says of
/// the environment, and by `replication` or `mesh`, which say who reads the same.
#[pyfunction]
#[pyo3(signature = (variable, *, rank=None, world=None, replication=None, mesh=None))]
pub(crate) fn data_rank(
    variable: &Bound<'_, PyAny>,
    rank: Option<u32>,
    world: Option<u32>,
    replication: Option<u32>,
    mesh: Option<(u32, u32)>,
) -> PyResult<(u32, u32)> {
    let look_up = |name: &str| variable.call1((name,)).ok()?.extract().ok();
    let found = match (rank, world) {
        (Some(rank), Some(world)) => WorldRank::new(rank, world, None).map(Some),
        _ => launcher::place(look_up).map(|place| place.map(|place| place.rank)),
    };
    let read = found.and_then(|found| DataRank::new(found, Layout::new(replication, mesh)?));
    let DataRank { index, size } = read.map_err(|error| errors::value(&error))?;
    Ok((index, size))
}
