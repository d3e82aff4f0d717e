//! `shardctl exchange`: shows the exchange of a run, and overrides its rate and pause.

use clap::{Args, Subcommand};
use serde::Serialize;
use shardd_api::exchange::{ChangeExchange, ExchangeNow, ExchangeOverrides, RateOverride};
use shardd_api::node::NodeId;
use shardd_api::protocol::{RunId, RunView};
use shardd_store::connect::{Connect, Servers};
use shardfmt::ByteSize;

use crate::failure::Failure;
use crate::nodes::not_live;
use crate::output;
use crate::status::{Exchanged, NodePicture, exchanged};
use crate::table::Table;

/// Show, pause, resume or limit the exchange
///
/// Only the speed of reading depends on it, never the samples: grains that are not sent in time are
/// requested, as misses.
#[derive(Args)]
pub(crate) struct Exchange {
    #[command(subcommand)]
    command: ExchangeCommand,
}

#[derive(Subcommand)]
enum ExchangeCommand {
    /// Show the settings and the queue of each node, and the sent grains by run and epoch
    Show(Show),
    /// Send nothing until `resume`, at one node or at all; it lasts, also over restarts
    Pause(Whose),
    /// Send due grains again
    Resume(Whose),
    /// Limit how fast nodes send, from now on and also over restarts
    Rate(Rate),
}

#[derive(Args)]
struct Show {
    /// Only this run
    run: Option<RunId>,

    #[command(flatten)]
    whose: Whose,
}

#[derive(Args)]
struct Whose {
    /// Only at this node [default: all; a setting for all replaces those for one]
    #[arg(long, value_name = "NODE")]
    node: Option<NodeId>,
}

#[derive(Args)]
struct Rate {
    /// `auto`: as fast as the ranks read; a size such as 50MiB: the same, and at most this many bytes a
    /// second; `unlimited`: at once; `default`: the start-up setting, or for one node the setting for all
    rate: RateOverride,

    #[command(flatten)]
    whose: Whose,
}

impl Exchange {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let servers = connect.servers()?;
        let say = |change: &ChangeExchange, what: &str| {
            let server = servers.first_that_answers();
            servers.http().put_json(&format!("{server}/v1/exchange"), change)?;
            match (json, &change.node) {
                (true, _) => output::json(change),
                (false, Some(node)) => output::print(&format!("the exchange of {node} {what}\n")),
                (false, None) => output::print(&format!("the exchange of all nodes {what}\n")),
            }
            Ok(())
        };
        let of = |whose: Whose| ChangeExchange { node: whose.node, ..ChangeExchange::default() };
        match self.command {
            ExchangeCommand::Show(show) => show.run(&servers, json),
            ExchangeCommand::Pause(whose) => {
                say(&ChangeExchange { paused: Some(true), ..of(whose) }, "is paused")
            }
            ExchangeCommand::Resume(whose) => {
                say(&ChangeExchange { paused: Some(false), ..of(whose) }, "continues")
            }
            ExchangeCommand::Rate(Rate { rate, whose }) => {
                say(&ChangeExchange { rate: Some(rate), ..of(whose) }, &format!("has the rate {rate}"))
            }
        }
    }
}

/// Everything that is shown.
#[derive(Serialize)]
struct Shown {
    /// The overrides.
    overrides: ExchangeOverrides,
    nodes: Vec<OfNode>,
    /// By run and epoch, added up over the nodes.
    epochs: Vec<Exchanged>,
}

#[derive(Serialize)]
struct OfNode {
    node: NodeId,
    /// `None` if the node did not answer.
    now: Option<ExchangeNow>,
    sent_bytes: u64,
    received_bytes: u64,
}

impl Show {
    fn run(self, servers: &Servers, json: bool) -> Result<(), Failure> {
        let (server, http) = (servers.first_that_answers(), servers.http());
        if let Some(run) = &self.run {
            // Whether there is such a run.
            let _: RunView = http.get_json(&format!("{server}/v1/runs/{run}"))?;
        }
        let mut nodes = NodePicture::all(server, &http)?;
        if let Some(node) = &self.whose.node {
            nodes.retain(|picture| picture.record.record.id == *node);
            if nodes.is_empty() {
                return Err(not_live(node));
            }
        }
        let is_meant = |run: &str| self.run.as_ref().is_none_or(|of| of.as_str() == run);
        for status in nodes.iter_mut().filter_map(|node| node.status.as_mut()) {
            status.counters.exchange.retain(|counted| is_meant(&counted.run));
            status.exchange_now.waiting.retain(|waiting| is_meant(waiting.run.as_str()));
        }
        let shown = Shown {
            overrides: http.get_json(&format!("{server}/v1/exchange"))?,
            epochs: exchanged(&nodes),
            nodes: nodes.into_iter().map(OfNode::from).collect(),
        };
        match json {
            true => output::json(&shown),
            false => output::print(&render(&shown)),
        }
        Ok(())
    }
}

impl From<NodePicture> for OfNode {
    fn from(picture: NodePicture) -> OfNode {
        let epochs = picture.status.iter().flat_map(|status| &status.counters.exchange);
        let sum = |(sent, received), counts: (u64, u64)| (sent + counts.0, received + counts.1);
        let (sent_bytes, received_bytes) =
            epochs.map(|of| (of.counts.sent_bytes, of.counts.received_bytes)).fold((0, 0), sum);
        let now = picture.status.map(|status| status.exchange_now);
        OfNode { node: picture.record.record.id, now, sent_bytes, received_bytes }
    }
}

fn render(shown: &Shown) -> String {
    let mut table = Table::new(&["node", "rate", "set for", "state", "waiting", "sent", "received"]);
    for of in &shown.nodes {
        let mut cells = vec![of.node.to_string()];
        match &of.now {
            None => cells.push("no answer".to_owned()),
            Some(now) => {
                let wanted = shown.overrides.nodes.get(&of.node);
                let said_of = match (wanted.and_then(|wanted| wanted.rate), shown.overrides.all.rate) {
                    (Some(_), _) => "this node",
                    (None, Some(_)) => "all nodes",
                    (None, None) => "its settings",
                };
                let waiting = now.waiting.iter().map(|waiting| waiting.bytes).sum();
                cells.extend([
                    now.rate.to_string(),
                    said_of.to_owned(),
                    if now.paused { "paused" } else { "on" }.to_owned(),
                    ByteSize(waiting).to_string(),
                    ByteSize(of.sent_bytes).to_string(),
                    ByteSize(of.received_bytes).to_string(),
                ]);
            }
        }
        table.row(cells);
    }
    let mut page = table.render();
    for run in shown.epochs.chunk_by(|one, other| one.run == other.run) {
        page.push_str(&format!("\nexchange of {}\n{}", run[0].run, Exchanged::table(run)));
    }
    page
}
