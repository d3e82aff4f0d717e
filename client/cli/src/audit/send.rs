//! `shardctl audit send`: gives nodes what ranks had to report when no node could be reached.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use shardd_api::protocol::UnsentReports;
use shardd_store::connect::{Connect, Target};

use crate::failure::{Failure, one_line};
use crate::human::plural;
use crate::output;

/// Arguments of `audit send`.
#[derive(Args)]
pub(super) struct Send {
    /// Files of reports, as `shardtrain` writes them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl Send {
    pub(super) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let servers = match connect.target()? {
            Target::Servers(servers) => servers,
            Target::Store(_) => {
                return Err(Failure::usage("reports go to a node: name one with --server, and not a store"));
            }
        };
        let (server, http) = (servers.first_that_answers(), servers.http());
        // All are read before any is sent.
        let mut all = Vec::new();
        for path in &self.files {
            let shown = path.display();
            let text = std::fs::read(path)
                .map_err(|error| Failure::failed(format!("{shown} cannot be read: {error}")))?;
            let unsent: UnsentReports = serde_json::from_slice(&text)
                .map_err(|error| Failure::failed(format!("{shown} has no reports: {}", one_line(&error))))?;
            all.push(unsent);
        }
        let mut sent = 0;
        for UnsentReports { run, reports } in &all {
            for report in reports {
                http.post_for_bytes(&format!("{server}/v1/runs/{run}/audit"), report)?;
                sent += 1;
            }
        }
        match json {
            true => output::json(&json!({ "sent": Value::from(sent) })),
            false => output::print(&format!("{} sent\n", plural(sent, "report"))),
        }
        Ok(())
    }
}
