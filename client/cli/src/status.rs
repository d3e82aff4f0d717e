//! `shardctl status`: nodes, runs, caches and exchange of a cluster; or what a store holds.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use serde::Serialize;
use shardd_api::drain::NodeState;
use shardd_api::exchange::{EpochCount, EpochExchange};
use shardd_api::node::{NodeId, NodeRecord};
use shardd_api::protocol::{Health, RunId, RunView};
use shardd_api::status::{Lost, MetadataStatus, NodeStatus, Reader};
use shardd_store::catalog::RunInfo;
use shardd_store::connect::{Connect, HEALTH_TIMEOUT, Target};
use shardd_store::http::{HttpClient, HttpError};
use shardfmt::ByteSize;

use crate::failure::Failure;
use crate::human::{count, date, plural};
use crate::nodes::live_nodes;
use crate::output;
use crate::table::Table;

/// From when on a copy that lags is worth a note: changes are gathered for a second.
const LATE_S: u64 = 10;

/// Show nodes, runs, placement, caches, exchange and reads from the store
#[derive(Args)]
pub(crate) struct Status {
    /// Show all runs, not only those in use and the last few that ended
    #[arg(long)]
    all: bool,
}

/// Everything that is shown.
#[derive(Debug, Serialize)]
struct Picture {
    nodes: Vec<NodePicture>,
    /// Those that are expected and not live.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lost: Vec<Lost>,
    runs: Vec<RunView>,
    /// How many runs are not shown: they have ended.
    #[serde(skip_serializing_if = "is_zero")]
    more_runs: usize,
    /// Why runs are those that one node knows of, and not all.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<String>,
}

/// A node as the cluster knows it and as it sees itself.
#[derive(Debug, Serialize)]
pub(crate) struct NodePicture {
    pub(crate) record: NodeState,
    /// `None` if the node did not answer...
    pub(crate) status: Option<NodeStatus>,
    /// ...which is why.
    #[serde(skip_serializing_if = "Option::is_none")]
    silent: Option<String>,
}

impl Status {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let servers = match connect.target()? {
            Target::Servers(servers) => servers,
            Target::Store(_) => return of_store(connect, json),
        };
        let (server, http) = (servers.first_that_answers(), servers.http());
        let nodes = NodePicture::all(server, &servers.http_within(HEALTH_TIMEOUT))?;
        let (runs, metadata) = match http.get_aged_list::<RunInfo>(&format!("{server}/v1/runs"), usize::MAX) {
            Ok((runs, age)) => {
                let heard = |age| format!("this list is from {} ago", plural(age, "second"));
                (runs, age.map(heard))
            }
            // The node has heard nothing since it started.
            Err(HttpError::Problem { status: 503, detail, .. }) => (Vec::new(), Some(detail)),
            Err(error) => return Err(error.into()),
        };
        let runs = runs.into_iter().map(|run| (run.id, run.began)).collect::<Vec<_>>();
        let (runs, more_runs) = match self.all {
            true => (runs.into_iter().map(|(run, _)| run).collect(), 0),
            false => few(runs, &being_read(&nodes)),
        };
        let views = runs.iter().map(|run| http.get_json(&format!("{server}/v1/runs/{run}")));
        let picture = Picture {
            nodes,
            lost: http.get_list(&format!("{server}/v1/lost-nodes"), usize::MAX)?,
            more_runs,
            runs: match metadata {
                None => views.collect::<Result<_, _>>()?,
                Some(_) => views.filter_map(Result::ok).collect(),
            },
            metadata,
        };
        if json {
            output::json(&picture);
        } else {
            output::print(&render(&picture));
        }
        let back = picture.that_are_back(&servers.http_within(HEALTH_TIMEOUT));
        for note in notes(&picture, &back) {
            output::note(json, &note);
        }
        Ok(())
    }
}

/// How many runs that have ended are shown.
const FEW: usize = 5;

/// The runs that are being read, and of the others those that began last; and how many more there are.
fn few(runs: Vec<(RunId, Option<u64>)>, read: &BTreeSet<RunId>) -> (Vec<RunId>, usize) {
    let (read, mut ended): (Vec<_>, Vec<_>) = runs.into_iter().partition(|(run, _)| read.contains(run));
    ended.sort_by_key(|(_, began)| *began); // stable: by name otherwise
    let more = ended.len().saturating_sub(FEW);
    let last = ended.into_iter().skip(more);
    (read.into_iter().chain(last).map(|(run, _)| run).collect(), more)
}

/// The runs that ranks read at any of these nodes.
fn being_read(nodes: &[NodePicture]) -> BTreeSet<RunId> {
    let statuses = nodes.iter().filter_map(|node| node.status.as_ref());
    statuses.flat_map(|status| &status.readers).map(|reader| reader.run.clone()).collect()
}

impl Picture {
    /// The lost nodes that answer all the same: after a promotion every node registers again.
    fn that_are_back(&self, http: &HttpClient) -> BTreeSet<NodeId> {
        let answers = |record: &NodeRecord| {
            let health = http.get_json::<Health>(&format!("{}/v1/health", record.http));
            health.is_ok_and(|health| health.id == record.id).then(|| record.id.clone())
        };
        std::thread::scope(|scope| {
            let asks: Vec<_> =
                self.lost.iter().map(|lost| scope.spawn(move || answers(&lost.record))).collect();
            asks.into_iter().filter_map(|ask| ask.join().expect("asking a node does not panic")).collect()
        })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl NodePicture {
    /// All nodes that `server` knows.
    pub(crate) fn all(server: &str, http: &HttpClient) -> Result<Vec<NodePicture>, HttpError> {
        let nodes = live_nodes(http, server)?;
        // All at once: one that hangs is waited for, and the others are not asked after it.
        Ok(std::thread::scope(|scope| {
            let asks: Vec<_> =
                nodes.into_iter().map(|record| scope.spawn(move || NodePicture::of(record, http))).collect();
            asks.into_iter().map(|ask| ask.join().expect("asking a node does not panic")).collect()
        }))
    }

    fn of(record: NodeState, http: &HttpClient) -> NodePicture {
        let (status, silent) = match http.get_json(&format!("{}/v1/status", record.record.http)) {
            Ok(status) => (Some(status), None),
            Err(error) => (None, Some(error.to_string())),
        };
        NodePicture { record, status, silent }
    }
}

/// The faults, and their meaning.
fn notes(picture: &Picture, back: &BTreeSet<NodeId>) -> Vec<String> {
    let mut notes = Vec::new();
    for NodePicture { record: NodeState { record, health_issues, .. }, silent, status } in &picture.nodes {
        if let Some(metadata) = status.as_ref().and_then(|status| status.metadata.as_ref()) {
            notes.extend(of_metadata(metadata).map(|note| format!("node {}: {note}", record.id)));
        }
        if let Some(silent) = silent {
            notes.push(format!("node {} cannot be asked: {silent}", record.id));
        }
        notes.extend(health_issues.iter().map(|trouble| match &trouble.by {
            by if *by == record.id => format!("node {}: {trouble}", record.id),
            by => format!("node {}: {trouble}, reported by {by}", record.id),
        }));
    }
    notes.extend(picture.lost.iter().map(|Lost { record, last_seen }| {
        let id = &record.id;
        if back.contains(id) {
            return format!("node {id} answers, and is not registered with the metadata yet");
        }
        let since = last_seen.map_or_else(String::new, |at| format!(" since {} UTC", date(at)));
        format!(
            "node {id} does not answer{since}: start it again, or remove it with `shardctl certs revoke {id}`"
        )
    }));
    if let Some(why) = &picture.metadata {
        notes.push(format!(
            "the metadata is unavailable ({why}): reading, exchange and training continue; new datasets, \
             plans, runs and nodes wait until it is back"
        ));
    }
    notes
}

/// The faults of the metadata that a node keeps.
fn of_metadata(metadata: &MetadataStatus) -> impl Iterator<Item = String> {
    let trouble = metadata.trouble.as_ref().map(|why| format!("the metadata takes no changes: {why}"));
    let copy = metadata
        .copy_trouble
        .as_ref()
        .map(|why| format!("the metadata is not copied to the store, {} s behind: {why}", metadata.lag_s));
    let is_late = copy.is_none() && metadata.lag_s >= LATE_S;
    let lag =
        is_late.then(|| format!("the copy of the metadata in the store is {} s behind", metadata.lag_s));
    trouble.into_iter().chain(copy).chain(lag)
}

/// One line about the metadata: who keeps it, and how old the copy is.
fn metadata(picture: &Picture) -> Option<String> {
    let kept =
        |node: &NodePicture| Some((node.record.record.id.clone(), node.status.as_ref()?.metadata.clone()?));
    let (node, metadata) = picture.nodes.iter().find_map(kept)?;
    let copy = match (metadata.copied_at, metadata.is_behind) {
        (None, _) => "not copied to the store yet".to_owned(),
        (Some(_), false) => "copied to the store whole".to_owned(),
        (Some(_), true) => format!("its copy in the store {} s behind", metadata.lag_s),
    };
    Some(format!("metadata: kept by {node}, {copy}\n"))
}

/// Without nodes there is only the stored state.
fn of_store(connect: &Connect, json: bool) -> Result<(), Failure> {
    let catalog = connect.catalog()?;
    let (datasets, plans) = (catalog.datasets()?, catalog.plans()?);
    if json {
        output::json(&serde_json::json!({ "datasets": datasets, "plans": plans }));
        return Ok(());
    }
    output::print(&format!(
        "no nodes: a store with {} and {}\n",
        plural(datasets.len() as u64, "dataset"),
        plural(plans.len() as u64, "plan")
    ));
    Ok(())
}

fn render(picture: &Picture) -> String {
    let mut page = nodes(picture).render();
    page.push_str(&metadata(picture).unwrap_or_default());
    page.push('\n');
    if picture.runs.is_empty() {
        page.push_str("no runs yet: a run begins when its first trainer attaches\n");
        return page;
    }
    page.push_str(&runs(picture).render());
    if picture.more_runs > 0 {
        let more = plural(picture.more_runs as u64, "more run");
        page.push_str(&format!("and {more} that ended earlier: `shardctl status --all` shows all\n"));
    }
    if let Some(readers) = readers(&picture.nodes) {
        page.push_str(&format!("\n{}", readers.render()));
    }
    for run in exchanged(&picture.nodes).chunk_by(|one, other| one.run == other.run) {
        page.push_str(&format!("\nexchange of {}\n{}", run[0].run, Exchanged::table(run)));
    }
    page
}

fn nodes(picture: &Picture) -> Table {
    let headings = [
        "node",
        "http",
        "state",
        "cache",
        "limit",
        "grains",
        "from store",
        "from peers",
        "missed in store",
        "corrupt",
    ];
    let mut table = Table::new(&headings);
    for NodePicture { record, status, .. } in &picture.nodes {
        let name = match record.draining {
            None => record.record.id.to_string(),
            Some(_) => format!("{} (draining)", record.record.id),
        };
        let state = if status.is_some() { "live" } else { "no answer" };
        let mut cells = vec![name, record.record.http.clone(), state.to_owned()];
        match status {
            None => {}
            Some(status) => cells.extend([
                ByteSize(status.cache_used_bytes).to_string(),
                ByteSize(status.cache_limit_bytes).to_string(),
                count(status.cache_grains),
                ByteSize(status.origin_bytes).to_string(),
                count(status.counters.misses_from_peers),
                count(status.counters.misses_from_origin),
                count(status.counters.corrupt_on_disk),
            ]),
        }
        table.row(cells);
    }
    for Lost { record, last_seen } in &picture.lost {
        let seen = last_seen.map_or_else(|| "not seen".to_owned(), |at| format!("last seen {}", date(at)));
        table.row([record.id.to_string(), record.http.clone(), format!("not ready, {seen}")]);
    }
    table
}

fn runs(picture: &Picture) -> Table {
    let mut table =
        Table::new(&["run", "plan", "virtual ranks", "ranks", "placement", "partitions per node"]);
    for view in &picture.runs {
        let (generation, spread) = match &view.placement {
            None => ("none yet".to_owned(), String::new()),
            Some(placement) => {
                let hosts = placement.hosts.iter();
                let spread = hosts.map(|host| format!("{host}: {}", placement.hosted_by(host).count()));
                (format!("generation {}", placement.generation), spread.collect::<Vec<_>>().join(", "))
            }
        };
        let run = &view.run;
        let ranks = if view.attached == 0 { "-".to_owned() } else { view.attached.to_string() };
        table.row([
            run.id.to_string(),
            run.plan.short(),
            run.virtual_ranks.to_string(),
            ranks,
            generation,
            spread,
        ]);
    }
    table
}

/// The transport of each rank at each node.
fn readers(nodes: &[NodePicture]) -> Option<Table> {
    let mut table = Table::new(&["run", "rank", "reads at", "epoch", "by"]);
    let mut readers: Vec<_> = nodes
        .iter()
        .filter_map(|node| node.status.as_ref())
        .flat_map(|status| status.readers.iter().map(move |reader| (reader, &status.node)))
        .collect();
    readers
        .sort_by(|(one, at), (other, there)| (&one.run, one.rank, at).cmp(&(&other.run, other.rank, there)));
    let any = !readers.is_empty();
    for (Reader { run, rank, epoch, transport, .. }, node) in readers {
        table.row([
            run.to_string(),
            rank.to_string(),
            node.to_string(),
            epoch.to_string(),
            transport.to_string(),
        ]);
    }
    any.then_some(table)
}

/// One epoch's exchange of a run, added up over the nodes.
#[derive(Debug, Serialize)]
pub(crate) struct Exchanged {
    pub(crate) run: String,
    epoch: u32,
    #[serde(flatten)]
    counts: EpochExchange,
}

/// By run and epoch.
pub(crate) fn exchanged(nodes: &[NodePicture]) -> Vec<Exchanged> {
    let mut epochs = BTreeMap::<(&str, u32), EpochExchange>::new();
    let statuses = nodes.iter().filter_map(|node| node.status.as_ref());
    for EpochCount { run, epoch, counts } in statuses.flat_map(|status| &status.counters.exchange) {
        epochs.entry((run, *epoch)).or_default().add_node(counts);
    }
    let line = |((run, epoch), counts): ((&str, u32), _)| Exchanged { run: run.to_owned(), epoch, counts };
    epochs.into_iter().map(line).collect()
}

impl Exchanged {
    /// One line per epoch.
    pub(crate) fn table(epochs: &[Exchanged]) -> String {
        let headings = ["after epoch", "grains due", "received", "size", "not sent", "sending", "hidden"];
        let mut table = Table::new(&headings);
        for Exchanged { epoch, counts, .. } in epochs {
            let hidden = counts.hidden().map(|part| format!("{:.0} %", 100.0 * part)).unwrap_or_default();
            table.row([
                epoch.to_string(),
                count(counts.expected_grains),
                count(counts.received_grains),
                ByteSize(counts.received_bytes).to_string(),
                count(counts.unsent_grains),
                format!("{:.1} s", counts.sending_micros as f64 / 1e6),
                hidden,
            ]);
        }
        table.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_shown_and_the_last_few_that_ended() {
        let run = |name: &str| name.parse::<RunId>().expect("a good name");
        let began: Vec<(RunId, Option<u64>)> =
            (0..9).map(|n| (run(&format!("r{n}")), Some(90 - n))).collect();
        let read = BTreeSet::from([run("r0"), run("r8")]);
        let (shown, more) = few(began, &read);
        assert_eq!(shown, ["r0", "r8", "r5", "r4", "r3", "r2", "r1"].map(run));
        assert_eq!(more, 2);
        assert_eq!(few(vec![(run("a"), None)], &BTreeSet::new()), (vec![run("a")], 0));
    }
}
