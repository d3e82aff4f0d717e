//! `shardctl metastore`: backups of a cluster's metadata.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use shardd_store::connect::{Connect, Target};
use shardd_store::metastore::Backup;

use crate::failure::Failure;
use crate::human::plural;
use crate::output;
use crate::token::private_file;

/// Back up the metadata of a cluster: names, tags, plans, runs and the digests of tokens
#[derive(Args)]
pub(crate) struct Metastore {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write a backup to a file that only you can read
    ///
    /// The nodes serve meanwhile. The file has no keys: copy tls/ of the first node, with ca.key, too. `shardd metastore restore`
    /// makes the metadata of the file again.
    Backup {
        /// A file that does not exist yet
        file: PathBuf,
    },
}

impl Metastore {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let Command::Backup { file: path } = self.command;
        let Target::Servers(servers) = connect.target()? else {
            return Err(Failure::usage(
                "a directory or bucket without nodes has its metadata in itself, below meta/: copy that; name a node with --server",
            ));
        };
        let server = servers.first_that_answers();
        let bytes = servers.http().get(&format!("{server}/v1/metastore/backup"))?;
        let backup =
            Backup::from_bytes(&bytes).map_err(|error| Failure::failed(format!("{server}: {error}")))?;
        let mut file = private_file(&path)?;
        if let Err(error) = file.write_all(&bytes).and_then(|()| file.sync_all()) {
            let _ = fs::remove_file(&path);
            return Err(Failure::failed(format!("{} cannot be written ({error})", path.display())));
        }
        let (entries, revision) = (backup.entries.len(), backup.revision);
        match json {
            true => output::json(&json!({ "file": path, "entries": entries, "revision": revision })),
            false => output::print(&format!(
                "{} at revision {revision} in {}\n",
                plural(entries as u64, "key"),
                path.display()
            )),
        }
        Ok(())
    }
}
