//! The cost of a plan on a cluster, and its requests to the store, found out by playing it: the plan itself says what moves,
//! the placement itself says between which nodes, and here it is only counted. Knows no network, no disk and no time but what bytes over a link take.
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
pub mod fleet;
pub mod hiding;
mod matrix;
mod mixing;
mod report;
mod scenario;
mod store_reads;
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
pub use store_reads::{
    Asked, KeptIn, RowsRead, StoreReads, StoreReadsError, StoreScenario, StoredShard, store_reads,
};
use traffic::Traffic;

/// The bounds of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Moves that are counted at most; a core counts some millions in a second. Of a larger plan, some epochs are
    /// left out.
    pub moves: u64,
    /// Moves of one exchange at most: a plan with a larger one is refused. No less than an exchange is counted.
    pub moves_of_epoch: u64,
    /// Grains that are all followed; of more, some are looked up. A followed one costs 4 bytes, and 16 while it moves.
    pub followed: u64,
    /// Exchanges at most through which grains are looked up, over all grains: the fewer, the fewer grains are looked up. A core
    /// does about half a million in a second.
    pub lookups: u64,
}

impl Default for Effort {
    /// Minutes, and a gigabyte.
    fn default() -> Self {
        Self { moves: 1 << 29, moves_of_epoch: 1 << 32, followed: 1 << 24, lookups: u64::MAX }
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
    scenario.check(plan, effort.moves_of_epoch)?;
    if let Some(epoch) = matrix_of.filter(|epoch| *epoch >= scenario.epochs) {
        return Err(ScenarioError::MatrixEpoch { epoch, epochs: scenario.epochs });
    }
    let moves: Vec<u64> = (0..scenario.epochs).map(|epoch| exchanged(plan, Epoch(epoch))).collect();
    let is_counted = counted(&moves, effort.moves);
    let all = moves.iter().zip(&is_counted).filter(|(_, counted)| **counted).map(|(moves, _)| moves).sum();
    let done = AtomicU64::new(0);
    let advance = |moves: u64| progress(done.fetch_add(moves, Ordering::Relaxed) + moves, all);

    let mut cluster = Cluster::new(plan, scenario.nodes);
    let is_whole = is_counted.iter().all(|counted| *counted);
    let lookups = (0_u64..).zip(&is_counted).filter(|(_, counted)| **counted).map(|(epoch, _)| epoch).sum();
    let looked_up = effort.lookups / u64::max(lookups, 1);
    let mut homes = Homes::following(plan, if is_whole { effort.followed } else { 0 }, looked_up);
    let mut recorder = Recorder::new(plan, row_bytes, scenario);
    let mut matrix = None;
    for epoch in 0..scenario.epochs {
        let change = cluster.change(scenario.events_at(epoch), plan.document().seed, epoch);
        let epoch = Epoch(epoch);
        if matrix_of == Some(epoch.0) {
            matrix = Some(homes.matrix(epoch));
        }
        if is_counted[epoch.0 as usize] {
            let mixing = homes.mixing(epoch);
            let traffic = Traffic::count(plan, epoch, cluster.placement(), &mut homes, &advance);
            recorder.counted(epoch, &cluster, change, &traffic, mixing);
        } else {
            recorder.estimated(epoch, moves[epoch.0 as usize], &cluster, change);
        }
    }
    Ok((recorder.finish(), matrix))
}

/// The epochs that are played, by the moves of each: the one with the most, and others evenly apart, as long as they have no more
/// than `most` together.
fn counted(moves: &[u64], most: u64) -> Vec<bool> {
    let all: u64 = moves.iter().sum();
    let stride = usize::try_from(all.div_ceil(most.max(1))).unwrap_or(usize::MAX).max(1);
    // The first, if several are.
    let largest = (0..moves.len()).rev().max_by_key(|epoch| moves[*epoch]);
    let (mut is_counted, mut sum) = (vec![false; moves.len()], 0);
    for epoch in largest.into_iter().chain((0..moves.len()).step_by(stride)) {
        if !is_counted[epoch] && (sum == 0 || sum + moves[epoch] <= most) {
            is_counted[epoch] = true;
            sum += moves[epoch];
        }
    }
    is_counted
}

/// The grains exchanged after an epoch, those that stay by chance included.
fn exchanged(plan: &Plan, epoch: Epoch) -> u64 {
    plan.partitions().map(|partition| plan.exchange_count(epoch, partition)).sum()
}
