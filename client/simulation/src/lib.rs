//! What a plan costs on a cluster, found out by playing it: the plan itself says what moves, the placement itself says
//! between which nodes, and here it is only counted. Knows no network, no disk and no time but what bytes over a link take.
//!
//! All numbers of an epoch that was played are counts, not formulas; beside them stand the formulas of `docs/PLAN.md`. An
//! epoch that was not played, because there would be too much to count, says so.
//!
//! ```
//! use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
//! use shardd_simulation::{Scenario, simulate};
//! use shardfmt::{VersionId, digest::Digest};
//!
//! let shape = Shape { shard_rows: vec![4000; 4], row_bytes: 16_000 * 1024 };
//! let options = PlanOptions { q: "0.1".parse()?, partitions: Some(16), ..PlanOptions::default() };
//! let version = VersionId(Digest::of(b"a dataset"));
//! let plan = Plan::new(PlanDocument::with_defaults(version, &shape, options)?, &shape.shard_rows)?;
//! let scenario = Scenario::healthy(4, 10, "10Gbit/s".parse()?);
//! let report = simulate(&plan, shape.row_bytes, &scenario, &|_, _| {})?;
//! assert!((report.summary.moved_share - 0.1 * 15.0 / 16.0).abs() < 0.01);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cluster;
pub mod hiding;
mod matrix;
mod mixing;
mod report;
mod scenario;
mod traffic;

#[cfg(test)]
mod laws;

use std::sync::atomic::{AtomicU64, Ordering};

use shardd_plan::{Epoch, Plan};

pub use cluster::Change;
use cluster::Cluster;
pub use matrix::{MOST_GROUPS, MixingMatrix};
use mixing::Homes;
pub use mixing::{Mixing, fraction, unexchanged};
use report::Recorder;
pub use report::{EpochReport, NodeReport, Peers, Report, Summary};
pub use scenario::{Event, EventKind, LinkRate, Scenario, ScenarioError};
use traffic::Traffic;

/// The bounds of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Moves that are counted at most; a core counts some millions in a second. Of a larger plan, some epochs are
    /// left out.
    pub moves: u64,
    /// Grains that are all followed; of more, some are looked up. A followed one costs 4 bytes, and 16 while it moves.
    pub followed: u64,
}

impl Default for Effort {
    /// Minutes, and a gigabyte.
    fn default() -> Self {
        Self { moves: 1 << 29, followed: 1 << 24 }
    }
}

/// Plays `scenario` over `plan`, whose samples have `row_bytes` canonical bytes in all. `progress` gets, from
/// any thread, how many moves were counted and how many there will be.
///
/// # Errors
/// [`ScenarioError`] if the scenario does not fit the plan or itself; the message says what would.
pub fn simulate(
    plan: &Plan,
    row_bytes: u64,
    scenario: &Scenario,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Report, ScenarioError> {
    Ok(simulate_within(Effort::default(), plan, row_bytes, scenario, None, progress)?.0)
}

/// The same within bounds; and, if an epoch is given, the matrix of its mixing.
///
/// # Errors
/// As [`simulate`], and [`ScenarioError::MatrixEpoch`].
pub fn simulate_within(
    effort: Effort,
    plan: &Plan,
    row_bytes: u64,
    scenario: &Scenario,
    matrix_of: Option<u32>,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<(Report, Option<MixingMatrix>), ScenarioError> {
    scenario.check(plan)?;
    if let Some(epoch) = matrix_of.filter(|epoch| *epoch >= scenario.epochs) {
        return Err(ScenarioError::MatrixEpoch { epoch, epochs: scenario.epochs });
    }
    let stride = stride(effort.moves, plan, scenario.epochs);
    let is_counted = |epoch: &u32| epoch.is_multiple_of(stride);
    let all = (0..scenario.epochs).filter(is_counted).map(|epoch| exchanged(plan, Epoch(epoch))).sum();
    let done = AtomicU64::new(0);
    let advance = |moves: u64| progress(done.fetch_add(moves, Ordering::Relaxed) + moves, all);

    let mut cluster = Cluster::new(plan, scenario.nodes);
    let mut homes = Homes::following(plan, if stride == 1 { effort.followed } else { 0 });
    let mut recorder = Recorder::new(plan, row_bytes, scenario);
    let mut matrix = None;
    for epoch in 0..scenario.epochs {
        let change = cluster.change(scenario.events_at(epoch), plan.document().seed, epoch);
        let epoch = Epoch(epoch);
        if matrix_of == Some(epoch.0) {
            matrix = Some(homes.matrix(epoch));
        }
        if is_counted(&epoch.0) {
            let mixing = homes.mixing(epoch);
            let traffic = Traffic::count(plan, epoch, cluster.placement(), &mut homes, &advance);
            recorder.counted(epoch, &cluster, change, &traffic, mixing);
        } else {
            recorder.estimated(epoch, exchanged(plan, epoch), &cluster, change);
        }
    }
    Ok((recorder.finish(), matrix))
}

/// Every how many epochs one is played, so that not many more than `most_moves` are counted.
fn stride(most_moves: u64, plan: &Plan, epochs: u32) -> u32 {
    let all: u64 = (0..epochs).map(|epoch| exchanged(plan, Epoch(epoch))).sum();
    u32::try_from(all.div_ceil(most_moves)).unwrap_or(u32::MAX).clamp(1, epochs)
}

/// The grains exchanged after an epoch, those that stay by chance included.
fn exchanged(plan: &Plan, epoch: Epoch) -> u64 {
    plan.partitions().map(|partition| plan.exchange_count(epoch, partition)).sum()
}
