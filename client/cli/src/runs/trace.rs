//! Saves what the nodes of a run did as a file for Perfetto.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use serde_json::json;
use shardd_api::protocol::RunId;
use shardd_api::timeline::TraceFacts;
use shardd_store::connect::Connect;
use shardfmt::ByteSize;

use crate::failure::Failure;
use crate::human::{count, plural};
use crate::output;

/// The most hosts that a node asks for one trace.
const HOSTS: usize = 64;

#[derive(Args)]
pub(super) struct Trace {
    /// The run
    run: RunId,

    /// Write the trace to this file
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// The option of the other commands: only nodes have traces
    #[arg(long, hide = true)]
    record: Option<PathBuf>,
}

/// A trace, as far as it matters here.
#[derive(Deserialize)]
struct Traced {
    #[serde(rename = "otherData")]
    facts: TraceFacts,
}

impl Trace {
    pub(super) fn run(&self, connect: &Connect, json: bool) -> Result<(), Failure> {
        if self.record.is_some() {
            return Err(Failure::usage("nodes have traces, records have none: leave out --record"));
        }
        let servers = connect.servers()?;
        let url = format!("{}/v1/runs/{}/trace?limit={HOSTS}", servers.first_that_answers(), self.run);
        let trace = servers.http().get(&url)?;
        let Traced { facts } = serde_json::from_slice(&trace)
            .map_err(|error| Failure::failed(format!("the node answers with no trace: {error}")))?;
        let file = self.out.display();
        fs::write(&self.out, &trace)
            .map_err(|error| Failure::failed(format!("{file} cannot be written: {error}")))?;
        if json {
            output::json(&json!({ "event": "done", "file": self.out, "bytes": trace.len(), "trace": facts }));
            return Ok(());
        }
        let (nodes, size) = (plural(facts.nodes.len() as u64, "node"), ByteSize(trace.len() as u64));
        output::print(&format!(
            "{file} has the trace of {nodes} ({size}); open it at https://ui.perfetto.dev\n"
        ));
        lines(&facts).iter().for_each(|line| output::print(&format!("{line}\n")));
        Ok(())
    }
}

/// What the trace is a part of, and what it lacks.
fn lines(facts: &TraceFacts) -> Vec<String> {
    let TraceFacts { run, hosts, nodes: _, unanswered, left_out, more_ranks } = facts;
    let names: Vec<&str> = unanswered.iter().map(|node| node.as_str()).collect();
    let lines = [
        (*hosts > 0).then(|| format!("hosts of run {run}: {}", plural(*hosts as u64, "node"))),
        (!names.is_empty()).then(|| format!("without {}: no answer", names.join(", "))),
        (*left_out > 0).then(|| {
            let activities = if *left_out == 1 { "activity" } else { "activities" };
            format!("without {} earlier {activities}: no room", count(*left_out as u64))
        }),
        (*more_ranks > 0)
            .then(|| format!("without the counters of {}: no room", plural(*more_ranks as u64, "rank"))),
    ];
    lines.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_trace_lacks_has_a_line_each() {
        let run = "r".parse().expect("a name");
        let whole = TraceFacts {
            run,
            hosts: 3,
            nodes: Vec::new(),
            unanswered: Vec::new(),
            left_out: 0,
            more_ranks: 0,
        };
        assert_eq!(lines(&whole), ["hosts of run r: 3 nodes"]);
        let unanswered = vec!["n2".parse().expect("a name"), "n3".parse().expect("a name")];
        let part = TraceFacts { unanswered, left_out: 7168, more_ranks: 1, ..whole };
        assert_eq!(
            lines(&part),
            [
                "hosts of run r: 3 nodes",
                "without n2, n3: no answer",
                "without 7,168 earlier activities: no room",
                "without the counters of 1 rank: no room",
            ]
        );
    }
}
