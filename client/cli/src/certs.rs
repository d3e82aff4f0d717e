//! `shardctl certs`: the certificates of nodes, and the authority that signs them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use shardd_api::duration::Span;
use shardd_api::node::NodeId;
use shardd_api::suggest::no_such;
use shardd_certificates::{
    self, Authority, CA_CERTIFICATE, CA_KEY, CertificateError, Fetched, Host, LIFETIME,
};
use shardd_store::connect::{Connect, Servers, Target};
use shardd_store::http::HttpClient;
use shardfmt::digest::Digest;

use crate::ask::confirmed;
use crate::failure::Failure;
use crate::human::date;
use crate::output;
use crate::table::{Table, facts};

/// How long nodes may take to renew their certificates.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is looked whether they have.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long a node may take to say what its authority is.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Make, list, renew and revoke the certificates of nodes
#[derive(Args)]
pub(crate) struct Certs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make an authority in a directory of this machine, to found a cluster with, or to keep off all nodes
    ///
    /// The first node makes one by itself where there is none. With an authority made here, put its files into tls/ in the
    /// data directory of the first node before that starts; or keep them, and make every node's certificate with `issue`.
    Init {
        /// The directory; it is made
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Sign a certificate for a node, with the authority of a directory of this machine
    Issue {
        /// The node
        #[arg(value_name = "NODE")]
        node: NodeId,

        /// The directory with the authority's files
        #[arg(long, value_name = "DIR")]
        authority: PathBuf,

        /// The directory to make, or to renew: its files belong into tls/ in the node's data directory
        #[arg(long, value_name = "DIR")]
        to: PathBuf,

        /// A name or address under which clients reach the node over https; may be repeated
        #[arg(long = "host", value_name = "HOST")]
        hosts: Vec<Host>,

        /// How long it is good
        #[arg(long, value_name = "TIME", default_value_t = Span(LIFETIME))]
        expires: Span,
    },
    /// List the newest certificate of each node
    #[command(visible_alias = "list")]
    Ls,
    /// Renew certificates now, and wait for the new ones
    Rotate {
        /// The nodes [default: all]
        #[arg(value_name = "NODE")]
        nodes: Vec<NodeId>,
    },
    /// Revoke the certificates of a node: from now on the others refuse the holder of its keys
    Revoke {
        /// The node
        #[arg(value_name = "NODE")]
        node: NodeId,

        /// Only this key of it, or the one that begins so, as `ls` shows it
        #[arg(long, value_name = "KEY")]
        key: Option<String>,

        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
    },
    /// Print the certificate of the cluster's authority, for --ca, or write it to a file
    ///
    /// The node is asked without proof of its identity: compare the digest with that of the administrator,
    /// or give it.
    Authority {
        /// The digest that it must have
        #[arg(long, value_name = "DIGEST")]
        digest: Option<Digest>,

        /// The file to write
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
    },
}

/// A certificate as nodes list it.
#[derive(Clone, Deserialize, Serialize)]
struct Listed {
    node: NodeId,
    key: Digest,
    hosts: Vec<Host>,
    issued_at: u64,
    expires_at: u64,
}

/// A node's answer to a request to renew certificates.
#[derive(Deserialize)]
struct Rotation {
    issued_until: u64,
}

impl Certs {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        match self.command {
            Command::Init { dir } => init(dir, json),
            Command::Issue { node, authority, to, hosts, expires } => {
                let info = shardd_certificates::issue(&authority, &node, &hosts, expires.0, &to)?;
                let text = format!(
                    "{} holds the key and certificate of {node}, good until {}\n",
                    to.display(),
                    date(info.not_after)
                );
                say(json, json!({ "directory": to, "certificate": info }), &text);
                Ok(())
            }
            Command::Ls => list(&Api::of(connect)?, json),
            Command::Rotate { nodes } => rotate(&Api::of(connect)?, nodes, json),
            Command::Revoke { node, key, yes } => {
                revoke(&Api::of(connect)?, &node, key.as_deref(), yes, json)
            }
            Command::Authority { digest, to } => {
                authority(servers(connect)?.first_that_answers(), digest, to, json)
            }
        }
    }
}

fn init(dir: PathBuf, json: bool) -> Result<(), Failure> {
    for name in [CA_KEY, CA_CERTIFICATE] {
        let path = dir.join(name);
        if path.exists() {
            return Err(CertificateError::Exists { path }.into());
        }
    }
    shardd_certificates::private_directory(&dir)?;
    let digest = Authority::found(&dir)?.digest();
    let text = facts(&[
        ("authority", digest.to_string()),
        ("certificate", format!("{}, for everybody", dir.join(CA_CERTIFICATE).display())),
        ("key", format!("{}: its owner can make nodes; keep it secret", dir.join(CA_KEY).display())),
    ]);
    say(json, json!({ "authority": digest, "directory": dir }), &text);
    Ok(())
}

fn list(api: &Api, json: bool) -> Result<(), Failure> {
    let all = api.known()?;
    if json {
        output::json(&all);
        return Ok(());
    }
    let mut table = Table::new(&["node", "made", "good until", "for", "key"]);
    for Listed { node, key, hosts, issued_at, expires_at, .. } in all {
        let hosts = hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let key = key.to_string()[..12].to_owned();
        table.row([node.to_string(), date(issued_at), date(expires_at), hosts, key]);
    }
    output::print(&table.render());
    Ok(())
}

fn rotate(api: &Api, nodes: Vec<NodeId>, json: bool) -> Result<(), Failure> {
    let nodes = match nodes.is_empty() {
        true => {
            api.known()?.into_iter().map(|listed| listed.node).collect::<BTreeSet<_>>().into_iter().collect()
        }
        false => nodes,
    };
    let mut waiting = BTreeMap::new();
    for node in nodes {
        let asked: Rotation = api.http.post_json(&format!("{}/{node}/rotate", api.url), &json!({}))?;
        waiting.insert(node, asked.issued_until);
    }
    let (until, mut done) = (Instant::now() + WAIT_TIMEOUT, vec![]);
    loop {
        for listed in api.known()? {
            if waiting.get(&listed.node).is_some_and(|until| listed.issued_at > *until) {
                waiting.remove(&listed.node);
                if !json {
                    output::print(&format!("{}: good until {}\n", listed.node, date(listed.expires_at)));
                }
                done.push(listed);
            }
        }
        if waiting.is_empty() {
            break;
        }
        if Instant::now() > until {
            let late: Vec<String> = waiting.keys().map(ToString::to_string).collect();
            return Err(Failure::failed(format!(
                "not renewed within {} s: {}; they will be once they run and reach the first node",
                WAIT_TIMEOUT.as_secs(),
                late.join(", ")
            )));
        }
        sleep(POLL_INTERVAL);
    }
    if json {
        output::json(&done);
    }
    Ok(())
}

fn revoke(api: &Api, node: &NodeId, key: Option<&str>, yes: bool, json: bool) -> Result<(), Failure> {
    let known = api.known()?;
    let keys: Vec<Digest> =
        known.iter().filter(|listed| listed.node == *node).map(|listed| listed.key).collect();
    // A node may be there without a certificate that is listed: after a promotion from an older copy of the metadata.
    if keys.is_empty() && !api.has_node(node)? {
        let names: BTreeSet<String> = known.iter().map(|listed| listed.node.to_string()).collect();
        let names = Vec::from_iter(names);
        return Err(Failure::failed(no_such(&format!("certificate of node {node}"), node.as_str(), &names)));
    }
    let (what, only) = match key {
        None => ("all that was signed for".to_owned(), String::new()),
        Some(key) => match keys.iter().filter(|known| known.to_string().starts_with(key)).collect::<Vec<_>>()
            [..]
        {
            [one] => (format!("key {} of", &one.to_string()[..12]), format!("?key={one}")),
            [] => return Err(Failure::failed(format!("{node} has no key {key}; see `shardctl certs ls`"))),
            _ => {
                return Err(Failure::usage(format!(
                    "{node} has several keys that begin with {key}: give more of it"
                )));
            }
        },
    };
    let question = format!(
        "revoke {what} node {node}? The others stop talking to it at once, and it comes back only with an empty --data directory and \
         a new join token."
    );
    confirmed(yes, &question, "nothing was revoked")?;
    api.http.delete(&format!("{}/{node}{only}", api.url))?;
    let text = format!(
        "revoked for {node}; to let it in again, start it with an empty --data directory and a new join token\n"
    );
    say(json, json!({ "revoked": node }), &text);
    Ok(())
}

fn authority(server: &str, digest: Option<Digest>, to: Option<PathBuf>, json: bool) -> Result<(), Failure> {
    let fetched = shardd_certificates::fetch(server, digest, TIMEOUT);
    let Fetched { pem, digest: found, .. } =
        fetched.map_err(|error| Failure::failed(format!("{server}: {error}")))?;
    let Some(path) = to else {
        match json {
            true => output::json(&json!({ "authority": found, "pem": pem })),
            false => output::print(&pem),
        }
        return Ok(());
    };
    shardd_certificates::write_public(&path, pem.as_bytes())?;
    let compare = if digest.is_none() { "; compare that with what the administrator says" } else { "" };
    let text = format!("{}: authority {found}{compare}\n", path.display());
    say(json, json!({ "authority": found, "file": path }), &text);
    Ok(())
}

/// Where a node tells of certificates.
/// A node of a list, by its name.
#[derive(Deserialize)]
struct Named {
    id: NodeId,
}

struct Api {
    http: HttpClient,
    url: String,
}

impl Api {
    fn of(connect: &Connect) -> Result<Api, Failure> {
        let servers = servers(connect)?;
        let url = format!("{}/v1/certificates", servers.first_that_answers());
        Ok(Api { http: servers.http(), url })
    }

    fn known(&self) -> Result<Vec<Listed>, Failure> {
        Ok(self.http.get_list(&self.url, usize::MAX)?)
    }

    /// Whether a node of this name lives, or has lived.
    fn has_node(&self, node: &NodeId) -> Result<bool, Failure> {
        for list in ["nodes", "lost-nodes"] {
            let url = self.url.replace("/v1/certificates", &format!("/v1/{list}"));
            let nodes: Vec<Named> = self.http.get_list(&url, usize::MAX)?;
            if nodes.iter().any(|named| named.id == *node) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn servers(connect: &Connect) -> Result<Servers, Failure> {
    match connect.target()? {
        Target::Servers(servers) => Ok(servers),
        Target::Store(_) => Err(Failure::usage(
            "a directory or bucket has no nodes, and so no certificates; name a node with --server",
        )),
    }
}

fn say(json: bool, value: Value, text: &str) {
    match json {
        true => output::json(&value),
        false => output::print(text),
    }
}
