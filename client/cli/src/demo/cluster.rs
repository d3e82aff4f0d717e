//! The demo's nodes: real `shardd serve` processes on loopback, each with its own directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::interrupt::Interrupt;
use super::process::Processes;
use crate::failure::Failure;

/// How long a node may take to say that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// Between two looks at the processes.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A node as the demo knows it.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// Address of its HTTP API.
    pub(crate) url: String,
}

/// The common settings of all nodes of the demo.
pub(crate) struct Ground<'a> {
    pub(crate) shardd: &'a Path,
    pub(crate) home: &'a Path,
    pub(crate) interrupt: &'a Interrupt,
}

impl Ground<'_> {
    /// Starts `count` nodes: the first with the metastore, the others joining it; returns when all are ready.
    pub(crate) fn start_nodes(&self, processes: &mut Processes, count: u32) -> Result<Vec<Node>, Failure> {
        let names: Vec<String> = (1..=count).map(|number| format!("n{number}")).collect();
        let (first, others) = names.split_first().expect("at least one node, checked with the arguments");
        processes.start(first, self.serve(first))?;
        let mut nodes = vec![self.wait_ready(processes, first)?];
        for name in others {
            let mut command = self.serve(name);
            command.arg("--join").arg(format!("@{}", self.home.join(first).join("join-token").display()));
            processes.start(name, command)?;
        }
        for name in others {
            nodes.push(self.wait_ready(processes, name)?);
        }
        Ok(nodes)
    }

    fn serve(&self, name: &str) -> Command {
        let mut command = clean(self.shardd);
        command.arg("serve").args(["--id", name, "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0"]);
        command.arg("--data").arg(self.home.join(name));
        command.arg("--store").arg(self.home.join("store"));
        command.arg("--ready-file").arg(self.ready_file(name));
        command
    }

    fn ready_file(&self, name: &str) -> PathBuf {
        self.home.join(format!("{name}.ready"))
    }

    fn wait_ready(&self, processes: &mut Processes, name: &str) -> Result<Node, Failure> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let said = fs::read_to_string(self.ready_file(name)).unwrap_or_default();
            if let Some(url) = http_address(&said) {
                return Ok(Node { name: name.to_owned(), url });
            }
            self.interrupt.check()?;
            processes.check(|_| false)?;
            if Instant::now() >= deadline {
                let words = processes.last_words(name);
                return Err(Failure::failed(format!(
                    "{name} was not ready within {READY_WITHIN:?}; {words}"
                )));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// A command that no SHARDD_* variable of the user's shell reaches: the demo is the same everywhere.
pub(crate) fn clean(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SHARDD_") {
            command.env_remove(name);
        }
    }
    command
}

/// The address in a node's ready line, once the line is complete.
fn http_address(ready: &str) -> Option<String> {
    let line = ready.split_once('\n')?.0;
    let url = line
        .split(|c: char| c.is_whitespace() || c == '"' || c == ',')
        .find(|word| word.starts_with("http://"))?;
    Some(url.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_tells_the_address_once_it_is_whole() {
        let line = "shardd n1 ready: http http://127.0.0.1:7700, quic 127.0.0.1:41234";
        assert_eq!(http_address(line), None);
        assert_eq!(http_address(&format!("{line}\n")), Some("http://127.0.0.1:7700".into()));
        assert_eq!(http_address(""), None);
    }
}
