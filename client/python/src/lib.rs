//! The part of the Python package `shardd` that is not Python: stores, plans, loaders and the columns of batches. What a
//! user sees is made of these in `python/shardd`.

mod batches;
mod column;
mod dlpack;
mod errors;
mod exchange;
mod ingest;
mod loader;
mod memory;
mod mixture;
mod order;
mod ranks;
mod samples;
mod schema;
mod shared;
mod store;
mod tables;
mod tensor;
mod tokenizer;
mod transforms;
mod versions;

use pyo3::prelude::*;

#[pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use super::batches::{Batch, BatchStream, Batches};
    #[pymodule_export]
    use super::column::Column;
    #[pymodule_export]
    use super::exchange::{exchanged, moves};
    #[pymodule_export]
    use super::ingest::Rows;
    #[pymodule_export]
    use super::loader::{Loader, Step};
    #[pymodule_export]
    use super::mixture::Mixture;
    #[pymodule_export]
    use super::order::Order;
    #[pymodule_export]
    use super::ranks::{data_rank, mixture_virtual_ranks};
    #[pymodule_export]
    use super::samples::Samples;
    #[pymodule_export]
    use super::shared::SharedBlocks;
    #[pymodule_export]
    use super::store::Store;
    #[pymodule_export]
    use super::tables::Table;
    #[pymodule_export]
    use super::tokenizer::Tokenizer;
    #[pymodule_export]
    use super::transforms::Chain;
    #[pymodule_export]
    use super::versions::Resharding;
}
