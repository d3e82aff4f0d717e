//! `shardctl verify`: reads every shard of a dataset and checks it against the manifest, row by row.

use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use serde::Serialize;
use serde_json::json;
use shardd_client::http::HttpClient;
use shardfmt::shard::{Shard, Sidecar};
use shardfmt::{ByteSize, DatasetRef, Digest, DigestSum, Manifest, ShardEntry, merkle};

use crate::connect::{Connect, Target, first_that_answers, only_dataset};
use crate::failure::{Failure, one_line};
use crate::human::plural;
use crate::output;

/// How long a shard may take to arrive.
const PATIENCE: Duration = Duration::from_secs(300);

/// Read every shard of a dataset and check it against the manifest
#[derive(Args)]
pub(crate) struct Verify {
    /// The dataset, or a version of it such as NAME@TAG or NAME@~1; may be left out if there is only one
    #[arg(value_name = "NAME[@VERSION]")]
    dataset: Option<DatasetRef>,
}

/// Something that is not as the manifest says.
#[derive(Debug, Serialize)]
struct Damage {
    shard: String,
    what: String,
}

/// Where the bytes of shards come from.
enum Bytes {
    Store(PathBuf),
    Server(String, HttpClient),
}

impl Verify {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        let dataset = only_dataset(&*catalog, self.dataset.as_ref(), "verify")?;
        let manifest = catalog.manifest(dataset.version)?;
        let bytes = match connect.target()? {
            Target::Store(dir) => Bytes::Store(dir.join("store")),
            Target::Servers(servers) => {
                Bytes::Server(first_that_answers(&servers).to_owned(), HttpClient::new(PATIENCE))
            }
        };
        let damages = check_all(&manifest, &bytes);
        if json {
            output::json(&json!({
                "dataset": dataset.name,
                "version": dataset.version,
                "shards": manifest.shards.len(),
                "samples": manifest.sample_count(),
                "damaged": damages,
            }));
        } else {
            let lines: Vec<String> =
                damages.iter().map(|d| format!("shard {}: {}\n", d.shard, d.what)).collect();
            output::print(&lines.concat());
        }
        if !damages.is_empty() {
            return Err(Failure::failed(format!(
                "{} of {} of {} damaged: ingest the same source again to write them anew",
                damages.len(),
                plural(manifest.shards.len() as u64, "shard"),
                dataset.name
            )));
        }
        if !json {
            output::print(&format!(
                "{}: {} in {} ({}) are as the manifest says, row by row\n",
                dataset.name,
                plural(manifest.sample_count(), "sample"),
                plural(manifest.shards.len() as u64, "shard"),
                ByteSize(manifest.bytes())
            ));
        }
        Ok(())
    }
}

fn check_all(manifest: &Manifest, bytes: &Bytes) -> Vec<Damage> {
    let bar = if std::io::stderr().is_terminal() {
        let style = ProgressStyle::with_template("verifying {wide_bar} {pos}/{len} shards, {eta} left");
        ProgressBar::new(manifest.shards.len() as u64).with_style(style.expect("the template is well formed"))
    } else {
        ProgressBar::hidden()
    };
    let check_one = |entry: &ShardEntry| {
        let damage = check(entry, bytes).err().map(|what| Damage { shard: entry.id.to_string(), what });
        bar.inc(1);
        damage
    };
    let damages = manifest.shards.par_iter().filter_map(check_one).collect();
    bar.finish_and_clear();
    damages
}

/// Whether a shard and its sidecar are as the manifest says; else what is not.
fn check(entry: &ShardEntry, bytes: &Bytes) -> Result<(), String> {
    let file = bytes.shard(entry)?;
    let found = Digest::of(&file);
    if found != entry.id.0 {
        return Err(format!("its {} hash to {found}", ByteSize(file.len() as u64)));
    }
    let shard = Shard::from_bytes(file).map_err(|error| one_line(&error))?;
    if shard.rows() != entry.rows {
        return Err(format!("it has {} instead of {}", plural(shard.rows().into(), "row"), entry.rows));
    }
    let rows = shard.row_digests().map_err(|error| one_line(&error))?;
    let sum: DigestSum = rows.iter().copied().sum();
    if sum != entry.digest_sum {
        return Err(format!("its rows sum to {sum} instead of {}", entry.digest_sum));
    }
    if merkle::root(&rows) != entry.root {
        return Err("its rows do not lead to the root in the manifest".to_owned());
    }
    let sidecar =
        Sidecar::decode(&bytes.sidecar(entry)?).map_err(|error| format!("sidecar: {}", one_line(&error)))?;
    match sidecar.rows == rows {
        true => Ok(()),
        false => Err("its sidecar lists other rows".to_owned()),
    }
}

impl Bytes {
    fn shard(&self, entry: &ShardEntry) -> Result<Vec<u8>, String> {
        match self {
            Bytes::Store(dir) => read_file(dir.join(format!("shards/{}.arrow", filed(entry)))),
            Bytes::Server(url, http) => download(http, &format!("{url}/v1/shards/{}", entry.id)),
        }
    }

    fn sidecar(&self, entry: &ShardEntry) -> Result<Vec<u8>, String> {
        match self {
            Bytes::Store(dir) => read_file(dir.join(format!("shards/{}.rows", filed(entry)))),
            Bytes::Server(url, http) => download(http, &format!("{url}/v1/shards/{}/rows", entry.id)),
        }
    }
}

/// Shards lie in folders named for the first two digits of their ids.
fn filed(entry: &ShardEntry) -> String {
    let id = entry.id.to_string();
    format!("{}/{id}", &id[..2])
}

fn read_file(path: PathBuf) -> Result<Vec<u8>, String> {
    fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
}

fn download(http: &HttpClient, url: &str) -> Result<Vec<u8>, String> {
    http.get(url).map(Vec::from).map_err(|error| one_line(&error))
}
