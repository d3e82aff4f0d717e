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
use crate::human::plural;
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
}

/// A trace, as far as it matters here.
#[derive(Deserialize)]
struct Traced {
    #[serde(rename = "otherData")]
    facts: TraceFacts,
}

impl Trace {
    pub(super) fn run(&self, connect: &Connect, json: bool) -> Result<(), Failure> {
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
        if !facts.unanswered.is_empty() {
            let names: Vec<&str> = facts.unanswered.iter().map(|node| node.as_str()).collect();
            output::print(&format!("without {}: no answer\n", names.join(", ")));
        }
        Ok(())
    }
}
