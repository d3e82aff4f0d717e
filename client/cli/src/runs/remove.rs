//! Takes a run away, after saying what goes with it.

use clap::Args;
use shardd_api::protocol::RunId;
use shardd_store::catalog::{Catalog, RemoveRun, RunInfo};

use super::list::sized;
use crate::ask::confirmed;
use crate::failure::Failure;
use crate::human::plural;
use crate::output;

#[derive(Args)]
pub(super) struct Remove {
    /// The run
    run: RunId,

    /// Also remove its checkpoints
    #[arg(long)]
    checkpoints: bool,

    /// Remove it even if its ranks sent a report in the last 15 minutes: they were killed
    #[arg(long)]
    force: bool,

    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

impl Remove {
    pub(super) fn run(&self, catalog: &dyn Catalog, json: bool) -> Result<(), Failure> {
        let info = catalog.run_info(&self.run)?;
        let how = RemoveRun { force: self.force, checkpoints: self.checkpoints };
        let question = format!("remove run {} ({})? {}", info.id, info.state, consequences(&info, how));
        confirmed(self.yes, &question, "nothing was removed")?;
        let removed = catalog.remove_run(&self.run, how)?;
        if json {
            output::json(&removed);
            return Ok(());
        }
        let freed = removed.plan.map_or_else(String::new, |plan| {
            format!(
                " `shardctl plan rm --plan {}` takes its plan off the list if no other run trains over it.",
                plan.short()
            )
        });
        output::print(&format!("run {} is removed. {}{freed}\n", removed.id, consequences(&removed, how)));
        Ok(())
    }
}

/// The objects that go with a run and those that stay, in sentences.
pub(super) fn consequences(run: &RunInfo, how: RemoveRun) -> String {
    let details = run.details.unwrap_or_default();
    let stored = details.stored;
    let mut going = Vec::new();
    if details.audits > 0 {
        going.push(format!(
            "{} of {}, which nothing brings back",
            plural(details.audits, "audit"),
            plural(details.epochs.into(), "epoch")
        ));
    }
    if stored.record_bytes > 0 {
        going.push(format!("records: {}", sized(stored.records, stored.record_bytes)));
    }
    let checkpoints = format!("checkpoints: {}", sized(stored.checkpoints, stored.checkpoint_bytes));
    let has_checkpoints = stored.checkpoint_bytes > 0;
    if has_checkpoints && how.checkpoints {
        going.push(checkpoints.clone());
    }
    let goes = match going.is_empty() {
        true => "No audits and no records go with it.".to_owned(),
        false => format!("With it go {}.", going.join("; ")),
    };
    match has_checkpoints && !how.checkpoints {
        true => format!("{goes} What stays are its {checkpoints}; --checkpoints removes them."),
        false => goes,
    }
}
