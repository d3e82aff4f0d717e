//! `shardctl completions`: what a shell needs to complete commands and options.

use clap::Args;
use clap_complete::{Shell, generate};
use serde_json::json;

use crate::output;

/// Print a script that completes commands and options in a shell
///
/// For bash: `shardctl completions bash > ~/.local/share/bash-completion/completions/shardctl`. For zsh, write it to a file
/// `_shardctl` in a directory of $fpath; for fish, to ~/.config/fish/completions/shardctl.fish.
#[derive(Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, mut command: clap::Command, json: bool) {
        let mut script = Vec::new();
        generate(self.shell, &mut command, "shardctl", &mut script);
        match json {
            true => output::json(&json!({
                "shell": self.shell.to_string(),
                "script": String::from_utf8_lossy(&script),
            })),
            false => output::raw(&script),
        }
    }
}
