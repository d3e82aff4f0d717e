//! `shardctl balancer`: shows which nodes host less because they are slow, and sets whether nodes do so.

use clap::{Args, Subcommand};
use shardd_api::balancer::{BalancerRecord, Decision, Mode, Settings};
use shardd_store::connect::Connect;
use shardfmt::ByteSize;

use crate::failure::Failure;
use crate::human::date;
use crate::output;
use crate::table::Table;

/// Show and set the balancer, which gives slow nodes fewer partitions to host
///
/// Nodes compare the times of their disks, their answers and the pressure on their machines. A node that is twice
/// as slow as the others gets half of their share, and a full one when it has recovered. Only the speed of reading
/// depends on it, never the samples.
#[derive(Args)]
pub(crate) struct Balancer {
    #[command(subcommand)]
    command: BalancerCommand,
}

#[derive(Subcommand)]
enum BalancerCommand {
    /// Show the mode, the nodes with a smaller share, and the last decisions with their reasons and effects
    Show,
    /// Carry decisions out
    On(Budget),
    /// Make decisions and write them down, but move nothing: the default
    Observe,
    /// Make no decisions
    Off,
}

#[derive(Args)]
struct Budget {
    /// The bytes of partitions that may move in a minute for each node, in the long run [default: as before, at
    /// first 1GiB]
    #[arg(long, value_name = "SIZE")]
    per_minute: Option<ByteSize>,
}

impl Balancer {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let servers = connect.servers()?;
        let http = servers.http();
        let url = format!("{}/v1/balancer", servers.first_that_answers());
        let mut record: BalancerRecord = http.get_json(&url)?;
        let mode = match &self.command {
            BalancerCommand::Show => None,
            BalancerCommand::On(_) => Some(Mode::On),
            BalancerCommand::Observe => Some(Mode::Observe),
            BalancerCommand::Off => Some(Mode::Off),
        };
        if let Some(mode) = mode {
            let mut settings = Settings { mode, ..record.settings };
            if let BalancerCommand::On(Budget { per_minute: Some(budget) }) = self.command {
                settings.bytes_per_minute = budget.0;
            }
            let answer = http.put_json(&url, &settings)?;
            record = serde_json::from_slice(&answer)
                .map_err(|error| Failure::failed(format!("{url}: not the JSON expected: {error}")))?;
        }
        match json {
            true => output::json(&record),
            false => output::print(&render(&record)),
        }
        Ok(())
    }
}

fn render(record: &BalancerRecord) -> String {
    let Settings { mode, bytes_per_minute } = record.settings;
    let means = match mode {
        Mode::Off => "no decisions are made".to_owned(),
        Mode::Observe => {
            "decisions are made and written down; `shardctl balancer on` carries them out".to_owned()
        }
        Mode::On => format!(
            "decisions are carried out, {} a minute for each node at most",
            ByteSize(bytes_per_minute)
        ),
    };
    let mut page = format!("mode {mode}: {means}\n");
    let limited: Vec<String> = record
        .nodes
        .iter()
        .filter(|(_, standing)| !standing.share.is_full())
        .map(|(node, standing)| format!("{node} {}", standing.share))
        .collect();
    let has = if mode == Mode::On { "have" } else { "would have" };
    page.push_str(&match limited.is_empty() {
        true => "all nodes have full shares\n".to_owned(),
        false => format!("{has} smaller shares than the others: {}\n", limited.join(", ")),
    });
    if !record.journal.is_empty() {
        page.push('\n');
        page.push_str(&decisions(&record.journal));
    }
    page
}

fn decisions(journal: &[Decision]) -> String {
    let mut table = Table::new(&[
        "time (UTC)",
        "node",
        "share",
        "reason",
        "moves",
        "slowest node",
        "samples/s",
        "carried out",
    ]);
    for decision in journal.iter().rev() {
        let forecast = decision.forecast;
        let speed = |speed: Option<f64>| speed.map_or("-".to_owned(), |speed| format!("{speed:.0}"));
        let after = decision.outcome.map(|outcome| outcome.samples_per_second);
        table.row(vec![
            date(decision.at),
            decision.node.to_string(),
            format!("{} to {}", decision.from, decision.to),
            format!("{}, {:.1} times", decision.signal, decision.times),
            ByteSize(forecast.bytes).to_string(),
            format!("{:.1} to {:.1}", forecast.time_before, forecast.time_after),
            format!("{} to {}", speed(decision.samples_per_second), speed(after)),
            if decision.carried_out { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table.render()
}
