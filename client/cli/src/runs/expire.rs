//! Removes finished runs by age. Which, is a pure decision.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use shardd_api::duration::now;
use shardd_store::catalog::{Catalog, CatalogError, RUN_IDLE_TIMEOUT, RemoveRun, RunInfo, RunState};
use shardfmt::DatasetName;

use super::list::table;
use crate::failure::Failure;
use crate::human::{parse_duration, plural};
use crate::output;

#[derive(Args)]
pub(super) struct Expire {
    /// Keep this many ended runs, the last ones seen; with --older-than, the removed ones are also older than
    /// that
    #[arg(long, value_name = "N", required_unless_present = "older_than")]
    keep: Option<usize>,

    /// Remove runs that were last seen before this age, such as 30d
    #[arg(long, value_name = "AGE", value_parser = parse_duration)]
    older_than: Option<Duration>,

    /// Only runs over this dataset
    #[arg(long, value_name = "DATASET")]
    dataset: Option<DatasetName>,

    /// Also remove their checkpoints
    #[arg(long)]
    checkpoints: bool,

    /// Remove them instead of showing them
    #[arg(long)]
    delete: bool,
}

impl Expire {
    pub(super) fn run(&self, catalog: &dyn Catalog, json: bool) -> Result<(), Failure> {
        let mut runs = catalog.runs()?;
        if let Some(dataset) = &self.dataset {
            runs.retain(|run| run.dataset.as_ref() == Some(dataset));
        }
        let all = runs.len() as u64;
        let going = expired(runs, self.keep, self.older_than, now());
        let staying = all - going.len() as u64;
        let mut gone = Vec::new();
        for run in going {
            if self.delete {
                let how = RemoveRun { force: false, checkpoints: self.checkpoints };
                match catalog.remove_run(&run.id, how) {
                    Ok(removed) => gone.push(removed),
                    // It began again meanwhile, or another one removed it.
                    Err(error @ (CatalogError::Running { .. } | CatalogError::NotFound { .. })) => {
                        output::note(json, &crate::failure::one_line(&error));
                    }
                    Err(error) => return Err(error.into()),
                }
            } else {
                gone.push(run);
            }
        }
        if json {
            output::json(&json!({ "dry_run": !self.delete, "runs": gone, "staying": staying }));
            return Ok(());
        }
        let runs = plural(gone.len() as u64, "run");
        let said = match (gone.is_empty(), self.delete) {
            (true, _) => "nothing to remove".to_owned(),
            (false, true) => format!("\n{runs} removed"),
            (false, false) => {
                format!("\n{runs} would go, with their cursors, audits and records: --delete removes them")
            }
        };
        if !gone.is_empty() {
            output::print(&table(&gone).render());
        }
        output::print(&format!("{said}; {} kept\n", plural(staying, "run")));
        Ok(())
    }
}

/// The runs that go, the oldest first. Unfinished runs stay; so do newly registered ones, whose ranks may be
/// about to attach. A run of which no time is known is older than any.
fn expired(
    mut runs: Vec<RunInfo>,
    keep: Option<usize>,
    older_than: Option<Duration>,
    now: u64,
) -> Vec<RunInfo> {
    let at = |run: &RunInfo| run.seen.or(run.began).unwrap_or(0);
    let age = |run: &RunInfo| Duration::from_secs(now.saturating_sub(at(run)));
    let is_over = |run: &RunInfo| match run.state {
        RunState::Created => age(run) >= RUN_IDLE_TIMEOUT,
        state => state.is_over(),
    };
    runs.retain(is_over);
    runs.sort_by_key(|run| (at(run), run.id.clone()));
    runs.truncate(runs.len().saturating_sub(keep.unwrap_or(0)));
    runs.retain(|run| older_than.is_none_or(|limit| age(run) >= limit));
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 10_000_000;

    fn run(name: &str, state: RunState, seen: Option<u64>) -> RunInfo {
        RunInfo {
            id: name.parse().expect("a name"),
            state,
            dataset: None,
            plan: None,
            version: None,
            virtual_ranks: None,
            world: None,
            began: Some(1),
            seen: seen.map(|ago| NOW - ago),
            details: None,
        }
    }

    fn names(runs: &[RunInfo]) -> Vec<&str> {
        runs.iter().map(|run| run.id.as_str()).collect()
    }

    #[test]
    fn what_is_over_goes_the_oldest_first_and_what_runs_never_does() {
        let just_made = RunInfo { began: Some(NOW - 60), ..run("made", RunState::Created, None) };
        let runs = || {
            vec![
                run("new", RunState::Finished, Some(10)),
                run("live", RunState::Running, Some(1_000_000)),
                run("old", RunState::Failed, Some(500_000)),
                run("cut", RunState::Interrupted, Some(90_000)),
                run("half", RunState::Removing, Some(80_000)),
                just_made.clone(),
            ]
        };
        let day = Duration::from_secs(86_400);
        assert_eq!(names(&expired(runs(), Some(0), None, NOW)), ["old", "cut", "half", "new"]);
        assert_eq!(names(&expired(runs(), Some(3), None, NOW)), ["old"]);
        assert_eq!(names(&expired(runs(), Some(4), None, NOW)), [""; 0]);
        assert_eq!(names(&expired(runs(), None, Some(day), NOW)), ["old", "cut"]);
        assert_eq!(names(&expired(runs(), Some(3), Some(day), NOW)), ["old"]);
        let forgotten = RunInfo { began: None, ..run("older", RunState::Finished, None) };
        assert_eq!(names(&expired(vec![forgotten], None, Some(day), NOW)), ["older"]);
    }
}
