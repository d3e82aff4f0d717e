//! Asks the nodes how they are: at every address, by the same requests as people and programs make. What the answers mean is
//! in `verdicts.rs`.

use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use shardd_api::drain::NodeState;
use shardd_api::node::NodeId;
use shardd_api::overview::Overview;
use shardd_api::protocol::{Health, host_identity};
use shardd_api::status::NodeStatus;
use shardd_store::connect::{HEALTH_TIMEOUT, Servers};
use shardd_store::http::{HttpClient, HttpError};

use super::clock::{Skew, now};
use crate::nodes::live_nodes;

/// Nodes that are asked at once.
const AT_ONCE: usize = 32;
/// How often a node is asked for its clock, and the time between; once where there are more nodes than the third number.
const TIMES: usize = 3;
const BETWEEN: Duration = Duration::from_millis(350);
const MANY: usize = 64;

/// The answers of the nodes.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// At the addresses that were given.
    pub(crate) addresses: Vec<Address>,
    /// Why the first node that answers tells nothing of the cluster.
    pub(crate) refusal: Option<Refusal>,
    /// Its view of the cluster, as it sent it, and as this program reads it.
    pub(crate) overview: Option<(Value, Overview)>,
    /// The live nodes.
    pub(crate) nodes: Vec<Node>,
    /// The newest certificates of nodes.
    pub(crate) certificates: Vec<Listed>,
}

/// An address and the answer there.
#[derive(Debug)]
pub(crate) struct Address {
    pub(crate) url: String,
    pub(crate) answer: Result<(Health, Duration), Unanswered>,
    pub(crate) skew: Option<Skew>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unanswered {
    pub(crate) reason: String,
    pub(crate) kind: Silence,
}

/// The kind of a missing answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    /// No connection, no answer, or not in time.
    Unreached,
    /// The certificate that is shown comes from an authority that this program does not know.
    UnknownAuthority,
    /// The request was not made, or the answer is none of a node: the message has the way out.
    Unasked,
}

/// Why a node does not say how the cluster is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) url: String,
    pub(crate) reason: String,
    /// Whether it is the token, or the lack of one.
    pub(crate) is_about_token: bool,
    /// Whether it does not know the question.
    pub(crate) is_unknown: bool,
}

/// A live node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) state: NodeState,
    pub(crate) address: Address,
    /// Its state as it sent it, and as this program reads it.
    pub(crate) status: Option<(Value, NodeStatus)>,
}

/// A certificate as nodes list it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Listed {
    pub(crate) node: NodeId,
    pub(crate) issued_at: u64,
    pub(crate) expires_at: u64,
}

impl Node {
    /// Whether it runs on this machine.
    pub(crate) fn is_here(&self) -> bool {
        let host = self.state.record.socket.as_ref().map(|socket| &socket.host);
        host.is_some_and(|host| host_identity().as_ref() == Some(host))
    }
}

/// Asks all of them. It takes some seconds at most for each 32 nodes.
pub(crate) fn ask(servers: &Servers) -> Cluster {
    let http = servers.http_within(HEALTH_TIMEOUT);
    let times = |count| if count > MANY { 1 } else { TIMES };
    let urls: Vec<&str> = servers.urls.iter().map(String::as_str).collect();
    let addresses = at_once(&urls, |url| look(&http, url, times(urls.len())));
    let mut cluster = Cluster { addresses, ..Cluster::default() };
    let first = cluster.addresses.iter().find(|address| address.answer.is_ok());
    let Some(server) = first.map(|address| address.url.clone()) else { return cluster };
    match http.get_json::<Value>(&format!("{server}/v1/overview")) {
        Ok(sent) => {
            let read = serde_json::from_value(sent.clone()).ok();
            cluster.overview = read.map(|read| (sent, read));
        }
        Err(error) => cluster.refusal = Some(refusal(&server, &error)),
    }
    let states = match live_nodes(&http, &server) {
        Ok(states) => states,
        Err(error) => {
            cluster.refusal.get_or_insert_with(|| refusal(&server, &error));
            return cluster;
        }
    };
    let count = states.len();
    cluster.nodes = at_once(&states, |state| {
        let url = &state.record.http;
        let known = cluster.addresses.iter().any(|address| address.url == *url);
        let status = http.get_json::<Value>(&format!("{url}/v1/status")).ok();
        let status = status.and_then(|sent| Some((sent.clone(), serde_json::from_value(sent).ok()?)));
        // Its clock was asked for at an address that was given.
        let address = look(&http, url, if known { 0 } else { times(count) });
        Node { state: state.clone(), address, status }
    });
    // Only an administrator may see them.
    let listed = http.get_list(&format!("{server}/v1/certificates"), usize::MAX);
    cluster.certificates = listed.unwrap_or_default();
    cluster
}

fn look(http: &HttpClient, url: &str, times: usize) -> Address {
    let began = Instant::now();
    let answer = http.get_json::<Health>(&format!("{url}/v1/health"));
    let took = began.elapsed();
    let answer = answer.map(|health| (health, took)).map_err(|error| Unanswered {
        kind: match &error {
            HttpError::Unreachable { .. } => Silence::Unreached,
            HttpError::Untrusted { reason, .. } if reason.contains("issuer") => Silence::UnknownAuthority,
            _ => Silence::Unasked,
        },
        reason: error.to_string(),
    });
    let skew = answer.is_ok().then(|| skew(url, times)).flatten();
    Address { url: url.to_owned(), answer, skew }
}

/// The clock of a node, by the dates of its answers.
fn skew(url: &str, times: usize) -> Option<Skew> {
    let mut found: Option<Skew> = None;
    for number in 0..times {
        if number > 0 {
            thread::sleep(BETWEEN);
        }
        let sent = now();
        let date = shardd_certificates::fetch(url, None, HEALTH_TIMEOUT).ok()?.now?;
        let skew = Skew::of_answer(sent, now(), date);
        found = Some(found.map_or(skew, |found| found.and(skew)));
    }
    found
}

fn refusal(url: &str, error: &HttpError) -> Refusal {
    Refusal {
        url: url.to_owned(),
        reason: error.to_string(),
        is_about_token: matches!(error.status(), Some(401 | 403))
            || matches!(error, HttpError::Credentials(_)),
        is_unknown: error.status() == Some(404),
    }
}

/// Asks all of them, some at once, and keeps their order.
fn at_once<T: Sync, A: Send>(all: &[T], ask: impl Fn(&T) -> A + Sync) -> Vec<A> {
    let mut answers = Vec::new();
    for some in all.chunks(AT_ONCE) {
        answers.extend(thread::scope(|scope| {
            let asked: Vec<_> = some.iter().map(|one| scope.spawn(|| ask(one))).collect();
            let answers = asked.into_iter().map(|one| one.join().expect("asking a node does not panic"));
            answers.collect::<Vec<A>>()
        }));
    }
    answers
}
