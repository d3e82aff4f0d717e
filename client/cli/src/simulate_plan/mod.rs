//! What a plan costs on a cluster, found out by playing it: the plan itself says what moves, the placement itself says
//! between which nodes, and here it is only counted. Knows no network, no disk and no time but what bytes over a link take.
//!
//! All numbers of an epoch that was played are counts, not formulas; beside them stand the formulas of `docs/PLAN.md`. An
//! epoch that was not played, because there would be too much to count, says so.

mod cluster;
mod mixing;
mod report;
mod scenario;
mod traffic;

#[cfg(test)]
mod laws;

use std::sync::atomic::{AtomicU64, Ordering};

use shardd_plan::{Epoch, Plan};

pub(crate) use cluster::Change;
use cluster::Cluster;
use mixing::Homes;
pub(crate) use mixing::Mixing;
pub(crate) use mixing::fraction;
use report::Recorder;
pub(crate) use report::{EpochReport, Report};
pub(crate) use scenario::{Event, EventKind, LinkRate, Scenario, ScenarioError, shape};
use traffic::Traffic;

/// Moves that are counted at most; a core counts some millions in a second. Of a larger plan, some epochs are
/// left out.
pub(crate) const MOST_MOVES: u64 = 1 << 29;

/// Plays `scenario` over `plan`, whose samples have `row_bytes` canonical bytes in all. `progress` gets, from
/// any thread, how many moves were counted and how many there will be.
///
/// # Errors
/// [`ScenarioError`] if the scenario does not fit the plan or itself; the message says what would.
pub(crate) fn simulate(
    plan: &Plan,
    row_bytes: u64,
    scenario: &Scenario,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Report, ScenarioError> {
    simulate_within(MOST_MOVES, plan, row_bytes, scenario, progress)
}

fn simulate_within(
    most_moves: u64,
    plan: &Plan,
    row_bytes: u64,
    scenario: &Scenario,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Report, ScenarioError> {
    scenario.check(plan)?;
    let stride = stride(most_moves, plan, scenario.epochs);
    let is_counted = |epoch: &u32| epoch.is_multiple_of(stride);
    let all = (0..scenario.epochs).filter(is_counted).map(|epoch| exchanged(plan, Epoch(epoch))).sum();
    let done = AtomicU64::new(0);
    let advance = |moves: u64| progress(done.fetch_add(moves, Ordering::Relaxed) + moves, all);

    let mut cluster = Cluster::new(plan, scenario.nodes);
    let mut homes = Homes::new(plan, stride == 1);
    let mut recorder = Recorder::new(plan, row_bytes, scenario);
    for epoch in 0..scenario.epochs {
        let change = cluster.change(scenario.events_at(epoch), plan.document().seed, epoch);
        let epoch = Epoch(epoch);
        if is_counted(&epoch.0) {
            let mixing = homes.mixing(epoch);
            let traffic = Traffic::count(plan, epoch, cluster.placement(), &mut homes, &advance);
            recorder.counted(epoch, &cluster, change, &traffic, mixing);
        } else {
            recorder.estimated(epoch, exchanged(plan, epoch), &cluster, change);
        }
    }
    Ok(recorder.finish())
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
