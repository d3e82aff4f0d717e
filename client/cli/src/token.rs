//! `shardctl token`: who may ask the nodes over HTTP, and what.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde::Deserialize;
use serde_json::{Value, json};
use shardd_store::connect::{Connect, Target};
use shardd_store::http::{HttpClient, HttpError};
use shardfmt::DatasetName;

use crate::failure::Failure;
use crate::human::{date, parse_duration};
use crate::output;
use crate::table::Table;

/// Make, list and revoke tokens: those that nodes started with --auth tokens ask for, and those that nodes join with
#[derive(Args)]
pub(crate) struct Token {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a token; it is printed once, and cannot be shown again
    Create {
        /// The person or program that gets it
        #[arg(value_name = "NAME", required_unless_present = "join", conflicts_with = "join")]
        name: Option<String>,

        /// Make a join token instead: the line with which one new node is started, as `shardd serve --join`
        #[arg(long)]
        join: bool,

        /// Rights of its bearer: read and train; also add and remove; also make tokens and collect garbage
        #[arg(long, value_enum, default_value = "read", conflicts_with = "join")]
        role: RoleArg,

        /// Only on this dataset; may be repeated [default: all]
        #[arg(long = "dataset", value_name = "NAME", conflicts_with = "join")]
        datasets: Vec<DatasetName>,

        /// How long it is good, such as 90d or 12h [default: until it is revoked; of a join token: 1h]
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        expires: Option<Duration>,

        /// Write it to a file that only you can read, instead of printing it
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
    },
    /// List tokens, without their secrets
    #[command(visible_alias = "list")]
    Ls,
    /// Revoke a token: from now on it is invalid
    Revoke {
        /// Its id, as `ls` shows it
        #[arg(value_name = "ID")]
        id: String,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum RoleArg {
    Read,
    Write,
    Admin,
}

/// A token as nodes list it.
#[derive(Deserialize)]
struct Listed {
    id: String,
    name: String,
    role: String,
    datasets: Option<Vec<DatasetName>>,
    created_at: u64,
    expires_at: Option<u64>,
}

impl Token {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let servers = match connect.target()? {
            Target::Servers(servers) => servers,
            Target::Store(_) => {
                return Err(Failure::usage(
                    "a directory or bucket has no tokens: file permissions decide who reads it; name a node \
                    with --server",
                ));
            }
        };
        let server = servers.first_that_answers();
        let (url, http) = (format!("{server}/v1/tokens"), servers.http());
        match self.command {
            Command::Create { join: true, expires, to, .. } => {
                let file = to.as_deref().map(private_file).transpose()?;
                let asked = json!({ "lifetime_seconds": expires.map(|lifetime| lifetime.as_secs()) });
                let made = or_remove(&to, http.post_json(&format!("{server}/v1/join-tokens"), &asked))?;
                hand_out(made, file.zip(to), "use it once, with `shardd serve --join @`, and this path", json)
            }
            Command::Create { name, role, datasets, expires, to, join: false } => {
                let role = match role {
                    RoleArg::Read => "read",
                    RoleArg::Write => "write",
                    RoleArg::Admin => "admin",
                };
                let file = to.as_deref().map(private_file).transpose()?;
                let asked = json!({
                    "name": name,
                    "role": role,
                    "datasets": datasets,
                    "lifetime_seconds": expires.map(|lifetime| lifetime.as_secs()),
                });
                let made = or_remove(&to, http.post_json(&url, &asked))?;
                hand_out(made, file.zip(to), "use it with --token-file or SHARDD_TOKEN_FILE", json)
            }
            Command::Ls => list(&http, &url, json),
            Command::Revoke { id } => {
                http.delete(&format!("{url}/{id}"))?;
                match json {
                    true => output::json(&json!({ "revoked": id })),
                    false => output::print(&format!("{id} is revoked\n")),
                }
                Ok(())
            }
        }
    }
}

/// Gives the token only to the caller.
fn hand_out(mut made: Value, file: Option<(File, PathBuf)>, usage: &str, json: bool) -> Result<(), Failure> {
    let token = made["token"].as_str().unwrap_or_default().to_owned();
    let Some((mut file, path)) = file else {
        match json {
            true => output::json(&made),
            false => output::print(&format!("{token}\n")),
        }
        return Ok(());
    };
    writeln!(file, "{token}")?;
    file.sync_all()?;
    match json {
        true => {
            made["token"] = Value::Null;
            made["file"] = json!(path);
            output::json(&made);
        }
        false => output::print(&format!("{}: {usage}\n", path.display())),
    }
    Ok(())
}

/// A file for a token that there is not is none either.
fn or_remove(file: &Option<PathBuf>, made: Result<Value, HttpError>) -> Result<Value, HttpError> {
    if let (Err(_), Some(path)) = (&made, file) {
        // It is empty; that it could not be removed says nothing of why there is no token.
        let _ = std::fs::remove_file(path);
    }
    made
}

/// Makes a file that only the user can read.
pub(crate) fn private_file(path: &Path) -> Result<File, Failure> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    opened.map_err(|error| {
        let reason = match error.kind() {
            ErrorKind::AlreadyExists => "exists; remove it, or name another file".to_owned(),
            _ => format!("cannot be made ({error}); name another file"),
        };
        Failure::failed(format!("{} {reason}", path.display()))
    })
}

fn list(http: &HttpClient, url: &str, json: bool) -> Result<(), Failure> {
    let tokens: Vec<Value> = http.get_list(url, usize::MAX)?;
    if json {
        output::json(&tokens);
        return Ok(());
    }
    let mut table = Table::new(&["id", "name", "role", "datasets", "made", "expires"]);
    for token in tokens {
        let Listed { id, name, role, datasets, created_at, expires_at } = serde_json::from_value(token)?;
        let datasets = datasets.map_or_else(
            || "all".to_owned(),
            |names| names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        );
        let expires = expires_at.map_or_else(|| "never".to_owned(), date);
        table.row([id, name, role, datasets, date(created_at), expires]);
    }
    output::print(&table.render());
    Ok(())
}
