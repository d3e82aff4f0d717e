//! `shardctl recover`: names, tags and plans brought back after metadata was lost.

use clap::Args;
use shardd_api::duration::{Span, now};
use shardd_store::catalog::{RecoverOptions, RecoverReport, RecoveredDataset};
use shardd_store::connect::Connect;

use crate::failure::Failure;
use crate::human::plural;
use crate::output;
use crate::table::Table;

/// Bring back names, tags, plans and runs that the metadata lost and the store still knows
///
/// They come from the copy of the metadata in the store and from its commits. Entries of the metadata stay
/// unchanged. Names and plans that were removed since the last `gc` come back, too.
#[derive(Args)]
pub(crate) struct Recover {
    /// Write nothing, only list the entries that would come back
    #[arg(long)]
    dry_run: bool,
}

impl Recover {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let report = connect.catalog()?.recover(RecoverOptions { dry_run: self.dry_run })?;
        match json {
            true => output::json(&report),
            false => output::print(&describe(&report)),
        }
        match report.lost.len() {
            0 => Ok(()),
            lost => Err(Failure::failed(format!(
                "{} cannot be brought back: restore the objects that it needs from a backup of the store, and run this again",
                plural(lost as u64, "name")
            ))),
        }
    }
}

fn describe(report: &RecoverReport) -> String {
    let mut page = String::new();
    for copy in &report.copies {
        let age = Span(std::time::Duration::from_secs(now().saturating_sub(copy.taken_at)));
        page.push_str(&format!("copy of the metadata by node {}, {age} old\n", copy.node));
    }
    if !report.datasets.is_empty() {
        let mut table = Table::new(&["dataset", "version", "commits", "known from"]);
        for dataset in &report.datasets {
            let from = if dataset.from_commits { "its commits" } else { "the copy" };
            table.row([
                dataset.name.to_string(),
                dataset.version.short(),
                dataset.commits.to_string(),
                from.to_owned(),
            ]);
        }
        page.push_str(&table.render());
    }
    for RecoveredDataset { name, others, .. } in &report.datasets {
        if !others.is_empty() {
            let others: Vec<String> = others.iter().map(|version| version.short()).collect();
            page.push_str(&format!("{name} was also at {}\n", others.join(", ")));
        }
    }
    for lost in &report.lost {
        page.push_str(&format!("{}: {}\n", lost.key, lost.reason));
    }
    let done = if report.dry_run { "would come back" } else { "came back" };
    page.push_str(&format!(
        "{}, {}, {} and {} {done}\n",
        plural(report.datasets.len() as u64, "dataset"),
        plural(report.tags, "tag"),
        plural(report.plans, "plan"),
        plural(report.runs, "run")
    ));
    page
}
