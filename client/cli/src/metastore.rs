//! `shardctl metastore`: backups of a cluster's metadata, and its place.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use shardd_api::protocol::{MigrateReply, MigrateRequest};
use shardd_store::connect::{Connect, Servers, Target};
use shardd_store::metastore::Backup;

use crate::failure::Failure;
use crate::human::plural;
use crate::output;
use crate::token::private_file;

/// How long a move may take: etcd gets one entry after another.
const MOVED_WITHIN: Duration = Duration::from_secs(600);

/// Back up the metadata of a cluster, or move it: names, tags, plans, runs and the digests of tokens
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
    /// Move the metadata of a running cluster between its store and etcd
    ///
    /// Changes wait for some seconds, and training continues. Each node uses the new place from then on. A node that is down uses
    /// it from its next start on. Run the command again after an interruption. To move metadata from sled, use `shardd metastore
    /// migrate`.
    Migrate {
        /// The new place: `store`, or `etcd://HOST:PORT[,HOST:PORT...][/PREFIX]`; the present place gives up an interrupted move
        #[arg(long, value_name = "URL")]
        to: String,
    },
}

impl Metastore {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let Target::Servers(servers) = connect.target()? else {
            return Err(Failure::usage(
                "a directory or bucket without nodes has its metadata in itself, below meta/: copy that; name a node with --server",
            ));
        };
        match self.command {
            Command::Backup { file } => back_up(&servers, file, json),
            Command::Migrate { to } => migrate(&servers, to, json),
        }
    }
}

fn back_up(servers: &Servers, path: PathBuf, json: bool) -> Result<(), Failure> {
    let server = servers.first_that_answers();
    let bytes = servers.http().get(&format!("{server}/v1/metastore/backup"))?;
    let backup = Backup::from_bytes(&bytes).map_err(|error| Failure::failed(format!("{server}: {error}")))?;
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

fn migrate(servers: &Servers, to: String, json: bool) -> Result<(), Failure> {
    let url = format!("{}/v1/metastore/migrate", servers.first_that_answers());
    let moved: MigrateReply = servers.http_within(MOVED_WITHIN).post_json(&url, &MigrateRequest { to })?;
    match (json, moved.entries) {
        (true, _) => output::json(&moved),
        (false, Some(entries)) => output::print(&format!(
            "moved {} to {}; where a setting names the place before, change it\n",
            plural(entries, "key"),
            moved.at
        )),
        (false, None) => output::print(&format!("the metadata stays in {}\n", moved.at)),
    }
    Ok(())
}
