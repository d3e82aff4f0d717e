//! A plan's order over numbers: of samples that lie anywhere, such as a map-style dataset.

use std::sync::Mutex;

use pyo3::prelude::*;
use shardd_plan::{Epoch, Plan, PlanDocument, PlanOptions, Read, Shape, SlotTable};
use shardfmt::VersionId;

use crate::errors;
use crate::store::schedule;

/// The order in which `samples` numbered samples are read.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Order {
    plan: Plan,
    table: Mutex<Option<SlotTable>>,
}

/// Rows of each part that the numbers are cut into: as those of a shard, of which there is none.
const PART: u64 = 1 << 20;

#[pymethods]
impl Order {
    #[new]
    #[pyo3(signature = (samples, *, q, seed, partitions=None, grain_rows=1))]
    fn new(samples: u64, q: Vec<f64>, seed: u64, partitions: Option<u32>, grain_rows: u32) -> PyResult<Self> {
        let parts = (0..samples.div_ceil(PART)).map(|part| (samples - part * PART).min(PART) as u32);
        let shape = Shape { shard_rows: parts.collect(), row_bytes: 0 };
        // Numbered samples are named by their count.
        let version = VersionId::of(format!("{samples} samples by number").as_bytes());
        let options = PlanOptions {
            q: schedule(&q)?,
            seed,
            partitions,
            grain_rows: Some(grain_rows),
            ..PlanOptions::default()
        };
        let document =
            PlanDocument::with_defaults(version, &shape, options).map_err(|error| errors::value(&error))?;
        let plan = Plan::new(document, &shape.shard_rows).map_err(|error| errors::value(&error))?;
        Ok(Self { plan, table: Mutex::new(None) })
    }

    /// The plan's id.
    #[getter]
    fn id(&self) -> String {
        self.plan.id().to_string()
    }

    /// P.
    #[getter]
    fn partitions(&self) -> u32 {
        self.plan.document().partitions
    }

    /// V for a world that says nothing of it.
    fn default_virtual_ranks(&self, world: u32) -> u32 {
        self.plan.fewest_virtual_ranks(world)
    }

    /// Refuses ranks that do not fit.
    fn check_ranks(&self, world: u32, virtual_ranks: u32) -> PyResult<()> {
        self.plan.check_ranks(world, virtual_ranks).map_err(|error| errors::value(&error))
    }

    /// For each virtual rank of `rank` the numbers of the samples that it reads of the step of positions `start..end`, by position.
    #[expect(clippy::too_many_arguments, reason = "where in the order, and who")]
    fn reads(
        &self,
        py: Python<'_>,
        epoch: u32,
        start: u64,
        end: u64,
        rank: u32,
        world: u32,
        virtual_ranks: u32,
    ) -> PyResult<Vec<Vec<u64>>> {
        self.check_ranks(world, virtual_ranks)?;
        py.detach(|| {
            let mut table = self.table.lock().expect("no panic while held");
            let table = match &mut *table {
                Some(table) if table.epoch() <= Epoch(epoch) => table,
                table => table.insert(SlotTable::initial(&self.plan)),
            };
            while table.epoch() < Epoch(epoch) {
                table.advance(&self.plan);
            }
            let own = Plan::virtual_ranks_of(rank, world, virtual_ranks);
            let shares = self.plan.step_shares(table, start..end, virtual_ranks, own);
            let number = |read: &Read| self.plan.sample(read.grain, read.row).0;
            Ok(shares.iter().map(|reads| reads.iter().map(number).collect()).collect())
        })
    }
}
