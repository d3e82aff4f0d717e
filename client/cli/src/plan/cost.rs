//! `shardctl plan cost`: what an existing plan costs on a number of nodes.

use clap::Args;
use shardd_store::catalog::Catalog;
use shardfmt::ByteSize;

use super::PlanArg;
use crate::failure::Failure;
use crate::output;
use crate::simulate::{Pace, play, render};
use crate::table::Table;
use shardd_simulation::Report;

/// Nodes that are listed one by one.
const LISTED: usize = 32;

/// Arguments of `plan cost`.
#[derive(Args)]
pub(super) struct Cost {
    #[command(flatten)]
    plan: PlanArg,

    /// Nodes that share the partitions evenly, each with one rank of the run
    #[arg(long)]
    nodes: u32,

    /// Epochs to simulate
    #[arg(long, default_value_t = 10)]
    epochs: u32,

    #[command(flatten)]
    pace: Pace,
}

impl Cost {
    pub(super) fn run(self, catalog: &dyn Catalog, json: bool) -> Result<(), Failure> {
        let (plan, manifest) = self.plan.open(catalog)?;
        let row_bytes = manifest.totals().row_bytes;
        let report = play(&plan, row_bytes, &self.pace.scenario(self.nodes, self.epochs, vec![]))?;
        if json {
            output::json(&report);
            return Ok(());
        }
        output::print(&format!("{}\n{}", render(&report), nodes(&report)));
        Ok(())
    }
}

/// The nodes and what each has to do with an epoch.
fn nodes(report: &Report) -> String {
    let mut table = Table::new(&[
        "node",
        "partitions",
        "holds",
        "sends",
        "receives",
        "peers",
        "reads elsewhere",
        "peak disk",
    ]);
    let size = |bytes: u64| ByteSize(bytes).to_string();
    for node in report.nodes.iter().take(LISTED) {
        table.row([
            node.node.to_string(),
            node.partitions.to_string(),
            size(node.held_bytes),
            size(node.sent_bytes),
            size(node.received_bytes),
            node.most_peers.to_string(),
            size(node.remote_read_bytes),
            size(node.peak_bytes),
        ]);
    }
    match report.nodes.len().saturating_sub(LISTED) {
        0 => table.render(),
        more => format!("{}and {more} more nodes: --json lists all\n", table.render()),
    }
}
