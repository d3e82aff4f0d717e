//! What the answers of nodes mean. Pure: answers in, findings out.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use shardd_api::overview::Severity as Found;
use shardd_store::connect::Credential;

use super::certificate::{self, Term};
use super::clock;
use super::cluster::{Address, Cluster, Node, Refusal, Silence};
use super::finding::{Check, Finding, Group, Severity, doc};
use super::shell;
use crate::human::duration;

/// As many questions without an answer lately are worth a word; nodes report three.
const SILENCES: f64 = 1.0;

const HTTP: Check = Check::new(Group::Cluster, "node_http", doc::MACHINES);
const TOKEN: Check = Check::new(Group::Cluster, "token", doc::TOKENS);
const OVERVIEW: Check = Check::new(Group::Cluster, "overview", doc::SLOW);
const RELEASES: Check = Check::new(Group::Cluster, "releases", doc::MACHINES);
const SILENCE: Check = Check::new(Group::Cluster, "silences", doc::SLOW);

/// Findings of the overview about which the doctor knows more.
const ELSEWHERE: [&str; 2] = ["certificate_expiry", "mixed_releases"];

/// The knowledge that the answers lack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    /// The time, in seconds since 1970.
    pub(crate) now: u64,
    /// Whether no setting names nodes, so that the node of this machine was asked.
    pub(crate) is_default: bool,
    /// The token that was sent.
    pub(crate) token: Option<&'a Credential>,
    /// The file with an administrator's token that a node of this machine left.
    pub(crate) admin_token: Option<&'a Path>,
    /// The release of this program.
    pub(crate) release: &'a str,
}

/// All of them.
pub(crate) fn check(cluster: &Cluster, context: Context<'_>) -> Vec<Finding> {
    let is_any_reached = cluster.addresses.iter().any(|address| address.answer.is_ok());
    if !is_any_reached && context.is_default {
        let at = cluster.addresses.first().map_or("", |address| &address.url);
        return vec![
            HTTP.info(format!("no node answers at {at}, and no setting names one"))
                .mend("Name nodes with --server, SHARDD_SERVER or a context, to check them."),
        ];
    }
    let mut found: Vec<Finding> = cluster.addresses.iter().map(|address| reached(address, None)).collect();
    let given = |node: &&Node| cluster.addresses.iter().all(|address| address.url != node.address.url);
    let others = cluster.nodes.iter().filter(given);
    found.extend(others.map(|node| reached(&node.address, Some(node.state.record.id.as_str()))));
    found.extend(cluster.refusal.as_ref().map(|refusal| refused(refusal, context)));
    if let Some((_, overview)) = &cluster.overview {
        let before = found.len();
        for one in overview.findings.iter().filter(|one| !ELSEWHERE.contains(&one.kind.as_str())) {
            let severity = match one.severity {
                Found::Info => Severity::Info,
                Found::Warning => Severity::Warning,
                Found::Critical => Severity::Error,
            };
            let finding = OVERVIEW.finding(severity, format!("{}. {}", capital(&one.title), one.cause));
            found.push(Finding { check: one.kind.clone(), ..finding.mend(one.remedy.clone()) });
        }
        if found.len() == before {
            let evidence =
                format!("{} live nodes report no fault of nodes, disks and metadata", overview.nodes.live);
            found.push(OVERVIEW.ok(evidence));
        }
    }
    found.extend(releases(cluster, context.release));
    found.extend(certificates(cluster, context.now));
    found.extend(silences(&cluster.nodes));
    found.extend(clocks(cluster));
    found
}

/// The addresses to which datagrams can be sent from this machine.
pub(crate) fn to_reach(nodes: &[Node]) -> Vec<(String, SocketAddr)> {
    let is_open = |node: &&Node| !node.state.record.quic.ip().is_loopback() || node.is_here();
    let open = nodes.iter().filter(is_open);
    open.map(|node| (node.state.record.id.to_string(), node.state.record.quic)).collect()
}

/// Whether a node answers; one of `node`'s record, or one that was given.
fn reached(address: &Address, node: Option<&str>) -> Finding {
    let url = &address.url;
    match &address.answer {
        Ok((health, took)) => HTTP.ok(format!("{} answers at {url} in {}", health.id, duration(*took))),
        Err(unanswered) if unanswered.kind == Silence::UnknownAuthority => HTTP
            .error(unanswered.reason.clone())
            .mend("Fetch the authority of the cluster, compare its digest with the administrator's, and name the file with --ca.")
            .run(format!("shardctl --server {} certs authority --to ca.pem", shell::word(url))),
        Err(unanswered) if unanswered.kind == Silence::Unasked => {
            HTTP.error(unanswered.reason.clone()).mend("Correct the setting that the message names.")
        }
        Err(unanswered) => match node {
            None => HTTP.error(unanswered.reason.clone()).mend(format!(
                "Start the node, correct the address, or open its TCP port in firewalls: `curl {url}/v1/health` needs no token."
            )),
            Some(node) => HTTP
                .warning(format!("{node} is live, and this machine does not reach it: {}", unanswered.reason))
                .mend("Open its TCP port in firewalls. Loaders of this machine cannot read there, and use other nodes."),
        },
    }
}

/// A node that says nothing of the cluster.
fn refused(Refusal { url, reason, is_about_token, is_unknown }: &Refusal, context: Context<'_>) -> Finding {
    if *is_unknown {
        return OVERVIEW
            .info(format!("{url} has an older release, which gives no overview"))
            .mend("Upgrade the nodes, one after the other.");
    }
    if !is_about_token {
        return OVERVIEW.error(format!("{url}: {reason}")).mend("Look at the log of the node.");
    }
    let from = match context.token.map(ToString::to_string) {
        None => " (no token was sent)".to_owned(),
        // The message names it already.
        Some(token) if reason.contains(&token) => String::new(),
        Some(token) => format!(" (token of {token})"),
    };
    let finding = TOKEN.error(format!("{url} refuses the request: {reason}{from}"));
    let is_flag = context.token.is_some_and(|token| token.from == "--token-file");
    match context.admin_token {
        Some(file) if !is_flag => finding
            .mend("Send the token that the node left for its administrator, or one of role `read` that an administrator makes.")
            .run(format!("export SHARDD_TOKEN_FILE={}; unset SHARDD_TOKEN", shell::path(file))),
        _ => finding.mend(
            "Have an administrator make one with `shardctl token create NAME --role read --to FILE`, and name the file with \
             --token-file or SHARDD_TOKEN_FILE.",
        ),
    }
}

fn releases(cluster: &Cluster, own: &str) -> Option<Finding> {
    let answers = cluster.addresses.iter().chain(cluster.nodes.iter().map(|node| &node.address));
    let answers = answers.filter_map(|address| address.answer.as_ref().ok());
    let nodes: BTreeSet<(&str, &str)> =
        answers.map(|(health, _)| (health.id.as_str(), health.release.as_str())).collect();
    let releases: BTreeSet<&str> = nodes.iter().map(|(_, release)| *release).collect();
    let first = releases.first()?;
    if releases.len() > 1 {
        let each: Vec<String> = nodes.iter().map(|(node, release)| format!("{node} {release}")).collect();
        return Some(
            RELEASES
                .warning(format!("nodes run different releases: {}", each.join(", ")))
                .mend("Upgrade the others, one after the other."),
        );
    }
    Some(match *first == own {
        true => RELEASES.ok(format!("shardctl and {} nodes have release {own}", nodes.len())),
        false => RELEASES
            .info(format!("shardctl has release {own}, and the nodes have {first}"))
            .mend("Use the shardctl of the nodes' release."),
    })
}

fn certificates(cluster: &Cluster, now: u64) -> Vec<Finding> {
    let ends = cluster.nodes.iter().filter_map(|node| {
        let (_, status) = node.status.as_ref()?;
        Some((&node.state.record.id, status.machine.as_ref()?.certificate_ends?))
    });
    ends.map(|(node, ends)| {
        let mut listed = cluster.certificates.iter();
        let listed = listed.rfind(|listed| listed.node == *node && listed.expires_at == ends);
        certificate::of_node(node.as_str(), Term { made: listed.map(|listed| listed.issued_at), ends }, now)
    })
    .collect()
}

/// Nodes that others do not hear, before that is a fault that they report.
fn silences(nodes: &[Node]) -> Vec<Finding> {
    let statuses = nodes.iter().filter_map(|node| node.status.as_ref().map(|(_, status)| status));
    let silent: Vec<Finding> = statuses
        .clone()
        .flat_map(|status| status.measured.peers.iter().map(move |peer| (&status.node, peer)))
        .filter(|(_, peer)| peer.silences >= SILENCES)
        .map(|(by, peer)| {
            SILENCE
                .info(format!("{} did not answer {by} {:.1} times lately", peer.node, peer.silences))
                .mend("Look at the network between the two: UDP has to pass in both directions.")
        })
        .collect();
    let count = statuses.count();
    match silent.is_empty() && count > 1 {
        true => vec![SILENCE.ok(format!("{count} nodes answer each other"))],
        false => silent,
    }
}

fn clocks(cluster: &Cluster) -> Vec<Finding> {
    let given = cluster.addresses.iter().filter_map(|address| {
        let (health, _) = address.answer.as_ref().ok()?;
        Some((health.id.to_string(), address.skew?))
    });
    let listed = cluster.nodes.iter();
    let listed = listed.filter_map(|node| Some((node.state.record.id.to_string(), node.address.skew?)));
    let mut skews: Vec<_> = given.chain(listed).collect();
    skews.sort_by(|a, b| a.0.cmp(&b.0));
    skews.dedup_by(|a, b| a.0 == b.0);
    let each = skews.iter().map(|(name, skew)| clock::skewed(name, *skew));
    each.chain(clock::between(&skews)).collect()
}

/// The text with a capital at its beginning, unless that is a name.
fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::super::clock::Skew;
    use super::super::cluster::{Listed, Unanswered};
    use super::super::finding::Severity::{Error, Info, Ok as Fine, Warning};
    use super::*;

    const NOW: u64 = 1_790_000_000;
    const DAY: u64 = 24 * 3600;

    fn address(n: u8, release: &str) -> Address {
        let health =
            json!({ "status": "ready", "id": format!("n{n}"), "quic": "10.77.0.1:7701", "release": release });
        Address {
            url: format!("http://10.77.0.{n}:7700"),
            answer: Ok((serde_json::from_value(health).expect("health"), Duration::from_millis(3))),
            skew: Some(Skew { least: -1.0, most: 1.0 }),
        }
    }

    fn silent(n: u8, kind: Silence) -> Address {
        let answer = Err(Unanswered { reason: "no shardd answers".to_owned(), kind });
        Address { answer, skew: None, ..address(n, "1") }
    }

    fn node(n: u8, more: Value) -> Node {
        let state = json!({
            "id": format!("n{n}"), "http": format!("http://10.77.0.{n}:7700"), "quic": format!("10.77.0.{n}:7701"),
            "cache_bytes": 1, "started_at": 1, "hosted": 0, "copying": 0,
        });
        let mut status = json!({
            "node": format!("n{n}"), "cache_used_bytes": 0, "cache_limit_bytes": 0, "cache_grains": 0, "origin_bytes": 0,
            "origin_requests": 0, "fill_grains": 0, "fill_bytes": 0, "forwarded_grains": 0, "misses_from_peers": 0,
            "misses_from_origin": 0, "corrupt_on_disk": 0, "corrupt_from_peers": 0, "served_grains": 0, "stalled_s": 0.0,
            "exchange_s": 0.0, "exchange": [],
        });
        if let (Value::Object(status), Value::Object(more)) = (&mut status, more) {
            status.extend(more);
        }
        let read = serde_json::from_value(status.clone()).expect("a status");
        let state = serde_json::from_value(state).expect("a state");
        Node { state, address: address(n, "1"), status: Some((status, read)) }
    }

    fn context<'a>() -> Context<'a> {
        Context { now: NOW, is_default: false, token: None, admin_token: None, release: "1" }
    }

    fn worst(cluster: &Cluster, context: Context<'_>) -> Finding {
        let found = check(cluster, context);
        found.into_iter().max_by_key(|finding| finding.severity).expect("some")
    }

    fn overview(findings: &Value) -> Option<(Value, shardd_api::overview::Overview)> {
        let sent = json!({
            "at": NOW, "runs": [], "findings": findings,
            "nodes": { "live": 2, "lost": 0, "draining": 0, "unhealthy": 0, "unanswered": 0 },
            "totals": {
                "cache_used_bytes": 0, "cache_limit_bytes": 0, "origin_bytes": 0, "exchange_bytes": 0, "corrupt_grains": 0,
            },
        });
        let read = serde_json::from_value(sent.clone()).expect("an overview");
        Some((sent, read))
    }

    #[test]
    fn an_address_without_an_answer_is_an_error_unless_no_setting_names_it() {
        let cluster = |addresses| Cluster { addresses, ..Cluster::default() };
        let found = worst(&cluster(vec![silent(1, Silence::Unreached)]), context());
        assert_eq!((found.severity, found.check.as_str()), (Error, "node_http"));
        let found =
            worst(&cluster(vec![silent(1, Silence::Unreached)]), Context { is_default: true, ..context() });
        assert_eq!(found.severity, Info);
        let found = worst(&cluster(vec![address(1, "1"), silent(2, Silence::Unreached)]), context());
        assert_eq!(found.severity, Error, "each that is listed has to answer");
        let found = worst(&cluster(vec![silent(1, Silence::UnknownAuthority)]), context());
        assert!(found.command.is_some_and(|command| command.contains("certs authority")));
        let found = worst(&cluster(vec![silent(1, Silence::Unasked)]), context());
        assert!(found.severity == Error && found.command.is_none(), "{found:?}");
        let lost = Node { address: silent(2, Silence::Unreached), ..node(2, json!({})) };
        let both = Cluster { nodes: vec![lost], ..cluster(vec![address(1, "1")]) };
        assert_eq!(worst(&both, context()).severity, Warning);
    }

    #[test]
    fn a_refused_token_is_named_with_its_source() {
        let refusal = Refusal {
            url: "http://a:1".to_owned(),
            reason: "the token is unknown".to_owned(),
            is_about_token: true,
            is_unknown: false,
        };
        let cluster = |refusal| Cluster {
            addresses: vec![address(1, "1")],
            refusal: Some(refusal),
            ..Cluster::default()
        };
        let token = Credential { file: Some("/wrong".into()), from: "SHARDD_TOKEN_FILE".to_owned() };
        let admin = Some(Path::new("/srv/admin-token"));
        let with = Context { token: Some(&token), admin_token: admin, ..context() };
        let found = worst(&cluster(refusal.clone()), with);
        assert!(found.severity == Error && found.check == "token", "{found:?}");
        assert!(found.evidence.contains("/wrong (SHARDD_TOKEN_FILE)"), "{found:?}");
        assert_eq!(
            found.command.as_deref(),
            Some("export SHARDD_TOKEN_FILE=/srv/admin-token; unset SHARDD_TOKEN")
        );
        let flag = Credential { from: "--token-file".to_owned(), ..token.clone() };
        assert_eq!(worst(&cluster(refusal.clone()), Context { token: Some(&flag), ..with }).command, None);
        assert!(worst(&cluster(refusal.clone()), context()).evidence.contains("no token was sent"));
        let unknown = Refusal { is_about_token: false, is_unknown: true, ..refusal };
        assert_eq!(worst(&cluster(unknown), context()).severity, Info);
    }

    #[test]
    fn findings_of_the_overview_are_taken_over() {
        let finding = |kind: &str, severity: &str| json!({ "severity": severity, "kind": kind, "title": "the disk fills up", "cause": "It is small.", "remedy": "Free it." });
        let cluster = |findings| Cluster {
            addresses: vec![address(1, "1")],
            overview: overview(&findings),
            ..Cluster::default()
        };
        let found = worst(&cluster(json!([finding("disk_fills_up", "critical")])), context());
        assert_eq!((found.severity, found.check.as_str()), (Error, "disk_fills_up"));
        assert_eq!(found.evidence, "The disk fills up. It is small.");
        assert_eq!(worst(&cluster(json!([finding("slow_node", "warning")])), context()).severity, Warning);
        assert_eq!(
            worst(&cluster(json!([finding("certificate_expiry", "critical")])), context()).severity,
            Fine
        );
        assert_eq!(worst(&cluster(json!([])), context()).severity, Fine);
    }

    #[test]
    fn releases_are_compared() {
        let of = |own: &str, second: &str| {
            let cluster =
                Cluster { addresses: vec![address(1, "1"), address(2, second)], ..Cluster::default() };
            releases(&cluster, own).map(|found| found.severity)
        };
        assert_eq!(of("1", "1"), Some(Fine));
        assert_eq!(of("2", "1"), Some(Info));
        assert_eq!(of("1", "2"), Some(Warning));
        assert_eq!(releases(&Cluster::default(), "1"), None);
    }

    #[test]
    fn certificates_are_judged_by_their_own_lifetime() {
        let machine = |ends: u64| {
            json!({ "machine": {
                "release": "1", "start": 1, "processors": 0.1, "resident_bytes": 1, "disks": [], "certificate_ends": ends,
            } })
        };
        let soon = Cluster { nodes: vec![node(1, machine(NOW + DAY / 24))], ..Cluster::default() };
        let found = certificates(&soon, NOW);
        assert_eq!(found[0].severity, Error);
        assert_eq!(found[0].command.as_deref(), Some("shardctl certs rotate n1"));
        // An hour is a third of the time of this one.
        let listed = Listed {
            node: "n1".parse().expect("a name"),
            issued_at: NOW - DAY / 12,
            expires_at: NOW + DAY / 24,
        };
        let short = Cluster { certificates: vec![listed], ..soon };
        assert_eq!(certificates(&short, NOW)[0].severity, Fine);
    }

    #[test]
    fn nodes_that_others_do_not_hear_and_clocks_apart_are_shown() {
        let peers = json!({ "measured": { "disk": {}, "peers": [{ "node": "n2", "silences": 1.5, "wrong_grains": 0.0 }] } });
        let found = silences(&[node(1, peers), node(2, json!({}))]);
        assert!(
            found[0].severity == Info && found[0].evidence.contains("n2 did not answer n1 1.5 times"),
            "{found:?}"
        );
        assert_eq!(silences(&[node(1, json!({})), node(2, json!({}))])[0].severity, Fine);
        assert_eq!(silences(&[node(1, json!({}))]), []);
        let ahead = Address { skew: Some(Skew { least: 300.0, most: 302.0 }), ..address(2, "1") };
        let cluster = Cluster { addresses: vec![address(1, "1"), ahead], ..Cluster::default() };
        let found = clocks(&cluster);
        assert_eq!(
            found.iter().map(|found| found.severity).collect::<Vec<_>>(),
            [Fine, Error, Error],
            "{found:?}"
        );
        assert_eq!(
            to_reach(&[node(1, json!({}))]),
            [("n1".to_owned(), "10.77.0.1:7701".parse().expect("an address"))]
        );
    }
}
