//! The faults of a cluster, each with its cause and its remedy.

use shardfmt::ByteSize;

use super::{EXPOSED, Finding, NodeReport, Observed, RunOverview, Severity};
use crate::drain::Drain;
use crate::duration::about;
use crate::health::{Ailment, HealthIssue};
use crate::loop_time::Stage;
use crate::machine::{Directory, DiskStatus, Forecast, MachineStatus};
use crate::node::NodeId;
use crate::status::{Lost, MetadataStatus, NodeStatus};

/// A disk that is full within this time is a warning, and within the second one critical, in seconds.
const FULL_SOON: f64 = 4.0 * 3600.0;
const FULL_NOW: f64 = 1800.0;
/// A forecast counts for a disk with less than these parts free: one that is mostly empty takes hours of another trend.
const FREE_SOON: f64 = 0.4;
const FREE_NOW: f64 = 0.2;
/// A disk with less than this part free is critical, whatever the forecast.
const LITTLE_FREE: f64 = 0.02;
/// A certificate of which less than one part in this number is left is a warning, and by the second number critical. Nodes renew
/// one when a third is left.
const ENDS_SOON: u64 = 4;
const ENDS_NOW: u64 = 15;
/// The lifetime of a certificate whose issue is not known, in seconds.
const CERTIFICATE_LIFETIME: u64 = 30 * 86_400;
/// From when on a copy of the metadata is late, in seconds.
const LATE_COPY: u64 = 60;
/// The least part of the sending that is hidden behind reading.
const HIDDEN: f64 = 0.9;

/// What is wrong, the worst first; of equals in the order in which one would look.
pub(super) fn findings(observed: &Observed<'_>, runs: &[RunOverview]) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(observed.metadata_trouble.map(metadata_away));
    found.extend(observed.lost.iter().map(|lost| is_lost(lost, !runs.is_empty())));
    found.extend(runs.iter().filter_map(waits));
    found.extend(runs.iter().filter_map(computes_slowly));
    for node in observed.nodes {
        of_node(node, observed.now, &mut found);
    }
    found.extend(runs.iter().filter_map(exchange_shows));
    found.extend(releases(observed.nodes));
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity)); // stable
    found
}

/// A finding about nothing in particular yet.
fn finding(severity: Severity, kind: &str, title: String, cause: String, remedy: String) -> Finding {
    Finding {
        severity,
        kind: kind.to_owned(),
        title,
        cause,
        remedy,
        node: None,
        run: None,
        rank: None,
        since: None,
    }
}

fn metadata_away(why: &str) -> Finding {
    finding(
        Severity::Critical,
        "metastore_down",
        "the metadata is unavailable".to_owned(),
        format!("{why}. Reading, exchange and training continue; new datasets, plans, runs and nodes wait."),
        "Start the node that keeps the metadata, or make another one the metastore node: `shardctl promote`."
            .to_owned(),
    )
}

fn is_lost(lost: &Lost, is_training: bool) -> Finding {
    let id = &lost.record.id;
    let severity = if is_training { Severity::Critical } else { Severity::Warning };
    Finding {
        node: Some(id.clone()),
        since: lost.last_seen,
        ..finding(
            severity,
            "node_lost",
            format!("node {id} is lost"),
            format!(
                "It is a member of the cluster and does not answer at {}. Other nodes fetch its grains from the store.",
                lost.record.http
            ),
            format!("Start it again, or remove it with `shardctl certs revoke {id}`."),
        )
    }
}

/// A run whose loop waits for data.
fn waits(run: &RunOverview) -> Option<Finding> {
    let waits = run.waits.as_ref().filter(|waits| waits.exposed_share > EXPOSED)?;
    let (id, rank, node) = (&run.run, waits.rank, &waits.node);
    let percent = 100.0 * waits.exposed_share;
    let stage = waits.stage?;
    let (kind, title) = match waits.is_straggler {
        true => ("straggler", format!("rank {rank} of {id} slows every step: it waits for {}", noun(stage))),
        false => ("waits_for_data", format!("run {id} waits for {}", noun(stage))),
    };
    let others =
        if waits.is_straggler { ", several times as long as the other ranks, which wait for it" } else { "" };
    Some(Finding {
        run: Some(id.clone()),
        rank: Some(rank),
        node: Some(node.clone()),
        since: waits.since,
        ..finding(
            Severity::Warning,
            kind,
            title,
            format!(
                "Rank {rank} (node {node}) waits for data {percent:.0} % of its time{others}: {}.",
                cause(stage)
            ),
            remedy(stage).to_owned(),
        )
    })
}

/// A run whose ranks wait for one that has its data.
fn computes_slowly(run: &RunOverview) -> Option<Finding> {
    let slow = run.slow.as_ref()?;
    let (id, rank, node) = (&run.run, slow.rank, &slow.node);
    let (works, wait) = (100.0 * slow.compute_share, 100.0 * slow.others_wait_share);
    Some(Finding {
        run: Some(id.clone()),
        rank: Some(rank),
        node: Some(node.clone()),
        ..finding(
            Severity::Warning,
            "slow_rank",
            format!("rank {rank} of {id} slows every step: its own work takes longer"),
            format!(
                "Rank {rank} (node {node}) has its data and works {works:.0} % of its time. Most of the other ranks wait for ranks \
                 {wait:.0} % of theirs."
            ),
            "Look at the load, the clock rate and the temperature of its processors or its GPU, and at other programs there. Its \
             micro-batches may also be more work than those of the others."
                .to_owned(),
        )
    })
}

fn noun(stage: Stage) -> &'static str {
    match stage {
        Stage::Network => "the network",
        Stage::Disk => "its disk",
        Stage::Decode => "decoding",
        Stage::Transform => "transforms",
        Stage::Python => "Python code",
    }
}

fn cause(stage: Stage) -> &'static str {
    match stage {
        Stage::Network => "grains come from the store or other nodes too slowly",
        Stage::Disk => "files of its machine are read too slowly",
        Stage::Decode => "its threads gather and decode rows too slowly",
        Stage::Transform => "its threads transform pictures and sounds too slowly",
        Stage::Python => "transform or collate_fn take the time",
    }
}

fn remedy(stage: Stage) -> &'static str {
    match stage {
        Stage::Network => {
            "Give the caches more room (`--cache-size`), lower Q, or read further ahead (`prefetch_factor`). \
             `shardctl explain misses RUN` names the sources."
        }
        Stage::Disk => {
            "Use a faster disk, or more memory for the page cache. `iostat -x 1` on the rank's machine shows its load."
        }
        Stage::Decode | Stage::Transform => {
            "Give the loader more threads (`num_workers`), or do the work once, at ingest."
        }
        Stage::Python => {
            "Run the functions in more processes (`transform_processes`), or use transforms of `shardd.transforms.Compose` instead."
        }
    }
}

fn of_node(node: &NodeReport, now: u64, found: &mut Vec<Finding>) {
    let id = &node.state.record.id;
    let mut about = |finding: Finding| found.push(Finding { node: Some(id.clone()), ..finding });
    if let Some(why) = &node.unanswered {
        about(finding(
            Severity::Warning,
            "node_unanswered",
            format!("node {id} did not answer"),
            format!("It is live, and did not say how it is: {why}."),
            "Look at its log and at the network between the nodes. An older release does not know the question.".to_owned(),
        ));
    }
    let Some(status) = &node.status else { return };
    if let Some(finding) = corrupt(id, status) {
        about(finding);
    }
    issues(node).for_each(&mut about);
    let machine = node.machine();
    let mut seen: Vec<&DiskStatus> = Vec::new();
    for disk in machine.iter().flat_map(|machine| &machine.disks) {
        // Directories on one disk are one finding, the first of them.
        if seen.iter().any(|other| is_same_disk(other, disk)) {
            continue;
        }
        seen.push(disk);
        if let Some(finding) = disk_fills(id, disk, status) {
            about(finding);
        }
    }
    if let Some(finding) = cache_too_small(id, status) {
        about(finding);
    }
    if let Some(finding) = machine.and_then(|machine| certificate(id, machine, now)) {
        about(finding);
    }
    if let Some(finding) = status.metadata.as_ref().and_then(|metadata| of_metadata(id, metadata)) {
        about(finding);
    }
    if node.state.draining == Some(Drain::Asked) && node.state.drained.is_done() {
        about(finding(
            Severity::Info,
            "drained",
            format!("node {id} is drained"),
            "It hosts nothing and gets nothing, as an operator asked.".to_owned(),
            format!("Stop it, or let it host again: `shardctl join {id}`."),
        ));
    }
}

/// Grains of its disk that were wrong.
fn corrupt(id: &NodeId, status: &NodeStatus) -> Option<Finding> {
    let grains = status.counters.corrupt_on_disk;
    (grains > 0).then(|| {
        finding(
            Severity::Critical,
            "corrupt_grains",
            format!("the disk of node {id} corrupts data"),
            format!(
                "{grains} {} in its cache did not match the manifest since it started. Each was dropped and fetched again, so no \
                 rank has read one.",
                if grains == 1 { "grain" } else { "grains" }
            ),
            format!(
                "Replace the disk. Drain the node first: `shardctl drain {id}`. `dmesg` and `smartctl` show the disk's errors."
            ),
        )
    })
}

/// What nodes report of it, each fault once.
fn issues(node: &NodeReport) -> impl Iterator<Item = Finding> {
    let id = &node.state.record.id;
    let all = &node.state.health_issues;
    let first = |issue: &HealthIssue| all.iter().find(|other| other.what == issue.what) == Some(issue);
    all.iter().filter(move |issue| first(issue)).map(move |issue| {
        let by = all.iter().filter(|other| other.what == issue.what).count();
        let (severity, kind, title, remedy) = match issue.what {
            Ailment::SlowReads => (
                Severity::Warning,
                "slow_disk",
                format!("the disk of node {id} is slow to read"),
                format!("Look at what else uses the disk (`iostat -x 1`), or drain the node: `shardctl drain {id}`."),
            ),
            Ailment::SlowSyncs => (
                Severity::Warning,
                "slow_disk",
                format!("the disk of node {id} is slow to write"),
                format!("Look at what else uses the disk (`iostat -x 1`), or drain the node: `shardctl drain {id}`."),
            ),
            Ailment::SlowAnswers => (
                Severity::Warning,
                "slow_node",
                format!("node {id} is slow to answer"),
                format!("Look at its load and at the network to it, or drain it: `shardctl drain {id}`."),
            ),
            Ailment::Silence => (
                Severity::Critical,
                "silent_node",
                format!("node {id} does not answer other nodes"),
                "Look at the network between the nodes: UDP has to pass in both directions.".to_owned(),
            ),
            Ailment::WrongGrains => (
                Severity::Critical,
                "wrong_grains",
                format!("node {id} sends wrong bytes"),
                format!("Its disk, memory or network spoils them. They were refused. Drain it: `shardctl drain {id}`."),
            ),
        };
        let cause = match by {
            1 => format!("Node {} reports: {issue}.", issue.by),
            _ => format!("{by} nodes report it; node {}: {issue}.", issue.by),
        };
        finding(severity, kind, title, cause, remedy)
    })
}

/// What frees space on the disk of a cache that has `cached` bytes of the `used` ones.
fn cache_remedy(id: &NodeId, cached: u64, used: u64) -> String {
    let share = format!("The cache has {} of the {} in use.", ByteSize(cached), ByteSize(used));
    match cached < used / 2 {
        true => format!("Free space on the disk: other files take most of it. {share}"),
        false => format!(
            "{share} Start the node with a smaller `--cache-size`. `shardctl evict --all --node {id}` drops the grains that no run needs."
        ),
    }
}

/// Whether two directories are on one disk, by its size and its free space at one moment.
fn is_same_disk(one: &DiskStatus, other: &DiskStatus) -> bool {
    let apart = one.free_bytes.abs_diff(other.free_bytes);
    one.size_bytes == other.size_bytes && apart <= one.size_bytes / 1000
}

fn disk_fills(id: &NodeId, disk: &DiskStatus, status: &NodeStatus) -> Option<Finding> {
    let name = disk.directory.name();
    let (free, size) = (ByteSize(disk.free_bytes), ByteSize(disk.size_bytes));
    let has_less_than = |part: f64| (disk.free_bytes as f64) < part * disk.size_bytes as f64;
    let is_nearly_full = has_less_than(LITTLE_FREE);
    // What the cache will still take of the disk follows from the plans.
    let wanted = match disk.directory {
        Directory::Cache => {
            status.cache_peak_bytes.min(status.cache_limit_bytes).saturating_sub(status.cache_used_bytes)
        }
        Directory::Store | Directory::Data => 0,
    };
    let soon = disk.full.filter(|full| full.in_s < FULL_SOON && has_less_than(FREE_SOON));
    let cause = if is_nearly_full {
        format!("{free} of {size} are free on {}.", disk.path)
    } else if wanted > disk.free_bytes {
        format!(
            "{free} of {size} are free on {}, and its runs will take {} more for their grains, by their plans.",
            disk.path,
            ByteSize(wanted)
        )
    } else if let Some(full) = soon {
        format!(
            "{free} of {size} are free on {}. It will be full {}, by the last minutes.",
            disk.path,
            span(&full)
        )
    } else {
        return None;
    };
    let is_critical =
        is_nearly_full || soon.is_some_and(|full| full.in_s < FULL_NOW && has_less_than(FREE_NOW));
    let remedy = match disk.directory {
        Directory::Cache => {
            cache_remedy(id, status.cache_used_bytes, disk.size_bytes.saturating_sub(disk.free_bytes))
        }
        Directory::Store => {
            "Free space on the disk, or delete what no name reaches: `shardctl gc`.".to_owned()
        }
        Directory::Data => {
            "Free space on the disk: the metadata takes no changes once it is full.".to_owned()
        }
    };
    Some(finding(
        if is_critical { Severity::Critical } else { Severity::Warning },
        "disk_fills_up",
        match is_nearly_full {
            true => format!("the {name} disk of node {id} is nearly full"),
            false => format!("the {name} disk of node {id} fills up"),
        },
        cause,
        remedy,
    ))
}

/// `in 2 h (1 h to 3 h)`.
fn span(full: &Forecast) -> String {
    let Forecast { in_s, earliest_s, latest_s } = *full;
    format!("in {} ({} to {})", about(in_s), about(earliest_s), about(latest_s))
}

fn cache_too_small(id: &NodeId, status: &NodeStatus) -> Option<Finding> {
    let (peak, limit) = (status.cache_peak_bytes, status.cache_limit_bytes);
    (peak > limit).then(|| {
        finding(
            Severity::Warning,
            "cache_too_small",
            format!("the cache of node {id} is too small for its runs"),
            format!(
                "By their plans they take {} of it, and its limit is {}. The rest is read from the store in every epoch.",
                ByteSize(peak),
                ByteSize(limit)
            ),
            "Start the node with a larger `--cache-size`, or add nodes.".to_owned(),
        )
    })
}

fn certificate(id: &NodeId, machine: &MachineStatus, now: u64) -> Option<Finding> {
    let ends = machine.certificate_ends?;
    let lifetime =
        machine.certificate_issued.map_or(CERTIFICATE_LIFETIME, |issued| ends.saturating_sub(issued));
    let left = ends.saturating_sub(now);
    (left < lifetime / ENDS_SOON || left == 0).then(|| {
        let when = if left == 0 { "has ended".to_owned() } else { format!("ends in {}", about(left as f64)) };
        finding(
            if left < lifetime / ENDS_NOW || left == 0 { Severity::Critical } else { Severity::Warning },
            "certificate_expiry",
            format!("the certificate of node {id} {when}"),
            "Nodes renew their certificates by themselves. This one could not: other nodes will refuse its connections.".to_owned(),
            format!("Look for the reason in its log, then renew it: `shardctl certs rotate {id}`."),
        )
    })
}

fn of_metadata(id: &NodeId, metadata: &MetadataStatus) -> Option<Finding> {
    if let Some(why) = &metadata.trouble {
        return Some(finding(
            Severity::Critical,
            "metadata_read_only",
            format!("the metadata on node {id} takes no changes"),
            format!("{why}."),
            "Free space on its disk or mend the disk. Or make another node the metastore node: `shardctl promote`.".to_owned(),
        ));
    }
    let is_late = metadata.copy_trouble.is_some() || metadata.lag_s >= LATE_COPY;
    is_late.then(|| {
        let why = metadata.copy_trouble.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        finding(
            Severity::Warning,
            "metadata_copy_lags",
            "the copy of the metadata in the store is late".to_owned(),
            format!("Changes of the last {} s are on node {id} alone{why}.", metadata.lag_s),
            "Look at the store: its credentials, its space, its limits.".to_owned(),
        )
    })
}

/// An exchange that readers had to wait for.
fn exchange_shows(run: &RunOverview) -> Option<Finding> {
    let exchange = &run.exchange;
    let id = &run.run;
    let about = |finding: Finding| Some(Finding { run: Some(id.clone()), ..finding });
    if exchange.paused_nodes > 0 && exchange.waiting_bytes > 0 {
        return about(finding(
            Severity::Warning,
            "exchange_paused",
            format!("the exchange of {id} is paused"),
            format!(
                "{} wait to be sent before the next epoch, and an operator has paused the exchange on {} of the nodes.",
                ByteSize(exchange.waiting_bytes),
                exchange.paused_nodes
            ),
            "Let it continue: `shardctl exchange resume`.".to_owned(),
        ));
    }
    let hidden = exchange.hidden_share.filter(|hidden| *hidden < HIDDEN)?;
    about(finding(
        Severity::Warning,
        "exchange_not_hidden",
        format!("the exchange of {id} is not hidden behind training"),
        format!("Ranks waited for data during {:.0} % of the latest exchange between nodes.", 100.0 * (1.0 - hidden)),
        "Lower Q, or let the exchange send faster: `shardctl exchange rate auto`. `shardctl plan advise` gives the largest Q whose exchange hides.".to_owned(),
    ))
}

/// Nodes of several releases.
fn releases(nodes: &[NodeReport]) -> Option<Finding> {
    let mut releases: Vec<&str> =
        nodes.iter().filter_map(|node| Some(node.machine()?.release.as_str())).collect();
    releases.sort_unstable();
    releases.dedup();
    (releases.len() > 1).then(|| {
        finding(
            Severity::Info,
            "mixed_releases",
            "nodes run different releases".to_owned(),
            format!("{}.", releases.join(", ")),
            "Upgrade the others, one after the other.".to_owned(),
        )
    })
}
