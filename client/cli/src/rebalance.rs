//! `shardctl rebalance`: what the placement of a run would move, and moving it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use shardd_api::explain::{PlacementExplained, Waits};
use shardd_api::node::NodeId;
use shardd_api::protocol::RunId;
use shardd_store::connect::Connect;
use shardfmt::ByteSize;

use crate::explain::moves;
use crate::failure::Failure;
use crate::human::{parse_duration, plural};
use crate::output;

/// How often it is looked how far it is.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Move partitions of a run to where its ranks read and shares are even, a few at a time, and wait until that is done
///
/// Nodes do so by themselves when ranks or nodes come or go: this command shows it, and makes sure. Training
/// continues meanwhile.
#[derive(Args)]
pub(crate) struct Rebalance {
    /// The run
    run: RunId,

    /// Only show the moves, the copies they need, and their saving
    #[arg(long)]
    dry_run: bool,

    /// With --dry-run: as if this node were drained
    #[arg(long, value_name = "NODE", requires = "dry_run")]
    without: Option<NodeId>,

    /// Wait at most this time, such as 90s, 10m or 1h; the moves continue in any case
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_duration, conflicts_with = "dry_run")]
    timeout: Duration,
}

impl Rebalance {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let servers = connect.servers()?;
        let (server, http) = (servers.first_that_answers(), servers.http());
        let url = format!("{server}/v1/runs/{}", self.run);
        if self.dry_run {
            let what_if = self.without.map(|node| format!("?without={node}")).unwrap_or_default();
            let explained: PlacementExplained = http.get_json(&format!("{url}/placement{what_if}"))?;
            match json {
                true => output::json(&explained),
                false => output::print(&moves(&explained)),
            }
            return Ok(());
        }
        let until = Instant::now() + self.timeout;
        let mut explained: PlacementExplained = http.post_json(&format!("{url}/rebalance"), &json!({}))?;
        let mut last = None;
        loop {
            match (&explained.waits, explained.moves.len()) {
                (Some(Waits::NoRanks), _) => {
                    return Err(Failure::failed(format!(
                        "no rank of run {} is attached: nothing moves until one is; `shardctl warm {}` fills caches before",
                        self.run, self.run
                    )));
                }
                (Some(Waits::Copying), _) | (_, 1..) => {}
                (_, 0) => break,
            }
            if Instant::now() > until {
                return Err(Failure::failed(format!(
                    "run {} still has {} to move after {:?}; the move continues; `shardctl rebalance {} \
                    --dry-run` shows its progress",
                    self.run,
                    plural(explained.moves.len() as u64, "partition"),
                    self.timeout,
                    self.run
                )));
            }
            if last != Some(explained.moves.len()) {
                last = Some(explained.moves.len());
                say(&explained, json);
            }
            sleep(POLL_INTERVAL);
            explained = http.get_json(&format!("{url}/placement"))?;
        }
        let (run, elsewhere) = (&explained.run, explained.remote_bytes_per_epoch);
        match json {
            true => output::json(&json!({ "run": run, "done": true, "remote_bytes_per_epoch": elsewhere })),
            false => output::print(&format!(
                "{run} is placed as it should be; {} an epoch are read elsewhere than where they are hosted\n",
                ByteSize(elsewhere)
            )),
        }
        Ok(())
    }
}

fn say(explained: &PlacementExplained, json: bool) {
    let (run, left) = (&explained.run, explained.moves.len());
    match json {
        true => output::json(&json!({ "run": run, "to_move": left })),
        false => output::print(&format!("{run}: {} to move\n", plural(left as u64, "partition"))),
    }
}
