//! The counters of a node for Prometheus: the text format 0.0.4, or OpenMetrics, which has exemplars. Labels have few values: routes, methods, statuses, sources of
//! misses, nodes that this one has to do with, and runs with their ranks of this node, at most [`ranks::MOST`] of them; never
//! the name of a dataset or client.

mod machine;
mod ranks;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, Method};
use axum::response::IntoResponse;
use prometheus_client::encoding::{EncodeLabelSet, prometheus_text, text as openmetrics};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use shardd_api::exchange::{EpochExchange, ExchangeNow};
use shardd_api::health::Peer;
use shardd_api::status::{MetadataStatus, NodeStatus};

use super::{Answer, State};

/// Upper bounds of the buckets of latency, in seconds.
const BUCKETS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0];

/// The content type of OpenMetrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A gauge of seconds or of a fraction.
type FloatGauge = Gauge<f64, AtomicU64>;

/// One of the counts of an epoch.
type Count = fn(&EpochExchange) -> u64;

/// The labels of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    method: &'static str,
    status: u16,
}

/// The label of a route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: String,
}

/// One request of those that a bucket counts: its log lines have its id, and a collector may have its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exemplar(Vec<(&'static str, String)>);

impl Exemplar {
    /// The request of this id, and of this trace if it has one.
    pub(super) fn of(id: &str, trace: Option<String>) -> Exemplar {
        let id = ("request_id", id.to_owned());
        Exemplar(std::iter::once(id).chain(trace.map(|trace| ("trace_id", trace))).collect())
    }
}

/// A histogram that shows a request of each bucket.
type Durations = HistogramWithExemplars<Vec<(&'static str, String)>>;

/// The counters of the HTTP server.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<RouteLabel, Durations>,
    connections: Counter,
    open_connections: Gauge,
    received: Counter,
    sent: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Durations::new(BUCKETS.into_iter())),
            connections: Counter::default(),
            open_connections: Gauge::default(),
            received: Counter::default(),
            sent: Counter::default(),
        };
        let mut registry = Registry::default();
        registry.register("shardd_http_requests", "Requests answered", metrics.requests.clone());
        registry.register(
            "shardd_http_request_duration_seconds",
            "Time until the response began, in seconds",
            metrics.durations.clone(),
        );
        registry.register(
            "shardd_http_connections_accepted",
            "Connections accepted",
            metrics.connections.clone(),
        );
        registry.register("shardd_http_connections", "Open connections", metrics.open_connections.clone());
        registry.register("shardd_http_received_bytes", "Bytes received over HTTP", metrics.received.clone());
        registry.register("shardd_http_sent_bytes", "Bytes sent over HTTP", metrics.sent.clone());
        Self { registry, ..metrics }
    }
}

impl Metrics {
    /// Counts a response. The route is one of the router's, so there are few.
    pub(super) fn answered(
        &self,
        route: &str,
        method: &Method,
        status: u16,
        took: Duration,
        Exemplar(one): Exemplar,
    ) {
        let labels = RequestLabels { route: route.to_owned(), method: method_name(method), status };
        self.requests.get_or_create(&labels).inc();
        let durations = self.durations.get_or_create(&RouteLabel { route: labels.route });
        durations.observe(took.as_secs_f64(), Some(one), None);
    }

    pub(super) fn connected(&self) {
        self.connections.inc();
        self.open_connections.inc();
    }

    pub(super) fn disconnected(&self) {
        self.open_connections.dec();
    }

    pub(super) fn received(&self, bytes: usize) {
        self.received.inc_by(bytes as u64);
    }

    pub(super) fn sent(&self, bytes: usize) {
        self.sent.inc_by(bytes as u64);
    }
}

/// One of the standard methods; clients may invent any number of others.
fn method_name(method: &Method) -> &'static str {
    const KNOWN: [Method; 9] = [
        Method::GET,
        Method::HEAD,
        Method::PUT,
        Method::POST,
        Method::DELETE,
        Method::OPTIONS,
        Method::PATCH,
        Method::TRACE,
        Method::CONNECT,
    ];
    const NAMES: [&str; 9] = ["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"];
    KNOWN.iter().position(|known| known == method).map_or("other", |at| NAMES[at])
}

/// The values of one moment, to be read by one scrape.
#[derive(Default)]
struct Snapshot(Registry);

impl Snapshot {
    #[cfg(test)]
    fn text(&self) -> String {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.0).expect("writing to a string succeeds");
        text
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.0.register(name, help, ConstCounter::new(value));
    }

    fn counter_seconds(&mut self, name: &str, help: &str, value: f64) {
        self.0.register(name, help, ConstCounter::new(value));
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.0.register(name, help, ConstGauge::new(value));
    }

    fn flag(&mut self, name: &str, help: &str, value: bool) {
        self.gauge(name, help, value.into());
    }

    /// A counter with one label.
    fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: [(&'static str, u64); N],
    ) {
        let family = Family::<[(&'static str, &'static str); 1], Counter>::default();
        for (value, count) in values {
            family.get_or_create(&[(label, value)]).inc_by(count);
        }
        self.0.register(name, help, family);
    }

    /// A gauge with labels.
    fn gauges<const L: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, String); L], f64)>,
    ) {
        let family = Family::<Vec<(&'static str, String)>, FloatGauge>::default();
        for (labels, value) in values {
            family.get_or_create(&labels.to_vec()).set(value);
        }
        self.0.register(name, help, family);
    }

    /// A counter of seconds with labels.
    fn counters_seconds<const L: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, String); L], f64)>,
    ) {
        let family = Family::<Vec<(&'static str, String)>, Counter<f64, AtomicU64>>::default();
        for (labels, value) in values {
            family.get_or_create(&labels.to_vec()).inc_by(value);
        }
        self.0.register(name, help, family);
    }

    /// The metadata that this node keeps, and its copy.
    fn metadata(&mut self, status: &MetadataStatus) {
        self.flag("shardd_metadata_writable", "1 if the metadata accepts changes", status.trouble.is_none());
        self.gauge(
            "shardd_metadata_epoch",
            "Number of nodes that have kept the metadata, one after the other",
            status.epoch,
        );
        let lag = "Age of the oldest change that the copy in the store lacks, in seconds";
        self.gauges("shardd_metadata_copy_lag_seconds", lag, [([], status.lag_s as f64)]);
        self.gauge(
            "shardd_metadata_copy_bytes",
            "Bytes of keys and values in the copy of the metadata",
            status.copy_bytes,
        );
    }

    /// The counters of the engine.
    fn node(&mut self, status: &NodeStatus, ready: bool) {
        self.flag("shardd_ready", "1 if the node accepts new work", ready);
        self.gauge("shardd_cache_bytes", "Bytes of the cache in use", status.cache_used_bytes);
        self.gauge("shardd_cache_limit_bytes", "Limit of the cache in bytes", status.cache_limit_bytes);
        self.gauge("shardd_cache_grains", "Grains in the cache", status.cache_grains);
        self.gauge(
            "shardd_cache_peak_bytes",
            "Most bytes that the runs take of the cache, computed from plans and placements",
            status.cache_peak_bytes,
        );
        self.counter(
            "shardd_origin_read_bytes",
            "Bytes of shard data read from the store",
            status.origin_bytes,
        );
        self.counter(
            "shardd_origin_requests",
            "Requests for shard data sent to the store",
            status.origin_requests,
        );
        self.counter(
            "shardd_origin_reread",
            "Objects read from the store a second time because their bytes were wrong",
            status.origin_reread,
        );
        let wire = status.origin_wire.unwrap_or_default();
        self.counter(
            "shardd_store_requests",
            "Requests sent to a remote store, repeated ones too",
            wire.requests,
        );
        let classes = [("a", wire.class_a), ("b", wire.class_b), ("free", wire.deletes)];
        let help = "Requests sent to a remote store by billing class: a PUT, COPY, POST, LIST; b GET, HEAD; free DELETE";
        self.counters("shardd_store_billed_requests", help, "class", classes);
        self.counter(
            "shardd_store_throttled_requests",
            "Requests that a remote store refused because there were too many: 429 and 503",
            wire.throttled,
        );
        self.counter("shardd_store_sent_bytes", "Bytes of bodies sent to a remote store", wire.sent);
        self.counter(
            "shardd_store_received_bytes",
            "Bytes of bodies received from a remote store",
            wire.received,
        );
        self.counter(
            "shardd_store_failed_requests",
            "Requests that a remote store did not answer, or answered with 429 or 5xx",
            wire.failed,
        );
        self.counter(
            "shardd_store_hedged_requests",
            "Reads sent to a remote store a second time because the answer was late",
            wire.hedged,
        );
        let counters = &status.counters;
        self.counter(
            "shardd_fill_grains",
            "Grains kept of shards that were read whole",
            counters.fill_grains,
        );
        self.counter("shardd_fill_bytes", "Bytes kept of shards that were read whole", counters.fill_bytes);
        self.counter(
            "shardd_forwarded_grains",
            "Grains of shards read whole that were sent to other nodes",
            counters.forwarded_grains,
        );
        let misses = [("peer", counters.misses_from_peers), ("origin", counters.misses_from_origin)];
        self.counters("shardd_misses", "Grains that the cache lacked, by source", "from", misses);
        let bytes = [("peer", counters.miss_bytes_from_peers), ("origin", counters.miss_bytes_from_origin)];
        self.counters("shardd_miss_bytes", "Bytes of grains that the cache lacked, by source", "from", bytes);
        let corrupt = [("disk", counters.corrupt_on_disk), ("peer", counters.corrupt_from_peers)];
        let help = "Grains that did not match the manifest, by location";
        self.counters("shardd_corrupt_grains", help, "location", corrupt);
        self.counter("shardd_served_grains", "Grains sent to nodes on request", counters.served_grains);
        self.counter(
            "shardd_served_bytes",
            "Bytes of grains sent to nodes on request",
            counters.served_bytes,
        );
        self.exchange(status);
        self.health(status);
        self.ranks(status);
        self.machine(status);
    }

    fn exchange(&mut self, status: &NodeStatus) {
        let counters = &status.counters;
        self.counter_seconds(
            "shardd_exchange_stalled_seconds",
            "Time that loaders waited for the exchange, in seconds",
            counters.stalled_s,
        );
        self.counter_seconds(
            "shardd_exchange_seconds",
            "Time in which the node sent a chunk, in seconds",
            counters.exchange_s,
        );
        // Of the epochs that are kept: it falls when the oldest is dropped, so it is no counter.
        let sum = |count: Count| counters.exchange.iter().map(|epoch| count(&epoch.counts)).sum::<u64>();
        let states: [(&str, Count); 4] = [
            ("expected", |counts| counts.expected_grains),
            ("received", |counts| counts.received_grains),
            ("sent", |counts| counts.sent_grains),
            ("unsent", |counts| counts.unsent_grains),
        ];
        self.gauges(
            "shardd_exchange_grains",
            "Grains of recent epochs, by state",
            states.map(|(state, count)| ([("state", state.to_owned())], sum(count) as f64)),
        );
        let received = sum(|counts| counts.received_bytes);
        self.gauge("shardd_exchange_received_bytes", "Bytes received in recent epochs", received);
        let sent = sum(|counts| counts.sent_bytes);
        self.gauge("shardd_exchange_sent_bytes", "Bytes sent in recent epochs", sent);
        let ExchangeNow { paused, waiting, .. } = &status.exchange_now;
        self.flag("shardd_exchange_paused", "1 if the exchange is paused", *paused);
        let waiting = waiting.iter().map(|run| run.bytes).sum();
        self.gauge("shardd_exchange_waiting_bytes", "Bytes waiting to be sent", waiting);
    }

    /// Slow, silent and corrupt disks and nodes.
    fn health(&mut self, status: &NodeStatus) {
        let seconds = |micros: u64| micros as f64 / 1e6;
        let (disk, peers) = (status.measured.disk, &status.measured.peers);
        let ops = [("read", disk.read_micros), ("sync", disk.sync_micros)];
        self.gauges(
            "shardd_disk_latency_seconds",
            "Mean recent latency of the cache's disk, in seconds",
            ops.into_iter().filter_map(|(op, micros)| Some(([("op", op.to_owned())], seconds(micros?)))),
        );
        let node = |peer: &Peer| [("node", peer.node.to_string())];
        self.gauges(
            "shardd_peer_latency_seconds",
            "Mean recent latency of other nodes, in seconds",
            peers.iter().filter_map(|peer| Some((node(peer), seconds(peer.answer_micros?)))),
        );
        self.gauges(
            "shardd_peer_timeouts",
            "Requests that nodes did not answer; decays",
            peers.iter().map(|peer| (node(peer), peer.silences)),
        );
        self.gauges(
            "shardd_peer_wrong_grains",
            "Grains that nodes sent with wrong bytes; decays",
            peers.iter().map(|peer| (node(peer), peer.wrong_grains)),
        );
        let labels =
            |node: &dyn ToString, reason: &str| [("node", node.to_string()), ("reason", reason.to_owned())];
        self.gauges(
            "shardd_node_unhealthy",
            "1 for each node that this one finds slow, silent or corrupt",
            status.health_issues.iter().map(|issue| (labels(&issue.node, issue.what.name()), 1.0)),
        );
    }
}

/// The counters of this node since its start, for Prometheus
///
/// In OpenMetrics for a client that accepts it, with an exemplar of each bucket: the id of a request, and its trace.
#[utoipa::path(get, path = "/metrics", tag = "node", operation_id = "metrics",
    responses((status = 200, description = "The counters", content(
        (String = "text/plain; version=0.0.4; charset=utf-8"),
        (String = "application/openmetrics-text; version=1.0.0; charset=utf-8")))))]
pub(super) async fn metrics(state: State, headers: HeaderMap) -> Answer {
    let mut snapshot = Snapshot::default();
    let able = state.api.engine.unready().is_none() && state.api.metadata_trouble().is_none();
    let status = state.api.observer.status();
    snapshot.node(&status, able && !state.draining.is_cancelled());
    if let Some(metadata) = &status.metadata {
        snapshot.metadata(metadata);
    }
    snapshot.cluster(state.api.engine.live_nodes().len(), state.api.engine.lost_nodes().len());
    snapshot.metastore(&state.api.times);
    snapshot.process();
    let followers = state.events.followers();
    snapshot.gauge("shardd_event_followers", "Clients that follow events", followers as u64);
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|accepted| accepted.to_str().ok());
    let is_open = accepted.into_iter().any(|accepted| accepted.contains("application/openmetrics-text"));
    let registries = [&state.metrics.registry, &snapshot.0];
    let (content_type, text) = match is_open {
        true => (OPENMETRICS, in_openmetrics(registries)),
        false => (prometheus_text::CONTENT_TYPE, in_text(registries)),
    };
    Ok(([(CONTENT_TYPE, content_type)], text).into_response())
}

fn in_text<'a>(registries: impl IntoIterator<Item = &'a Registry>) -> String {
    let mut text = String::new();
    for registry in registries {
        prometheus_text::encode(&mut text, registry).expect("writing to a string succeeds");
    }
    text
}

fn in_openmetrics<'a>(registries: impl IntoIterator<Item = &'a Registry>) -> String {
    let mut text = String::new();
    for registry in registries {
        openmetrics::encode_registry(&mut text, registry).expect("writing to a string succeeds");
    }
    openmetrics::encode_eof(&mut text).expect("writing to a string succeeds");
    text
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::path::Path;

    use shardd_api::health::{Ailment, Disk, HealthIssue, Measured};
    use shardd_api::status::CounterView;

    use crate::metastore::MetastoreTimes;

    use super::*;

    const LABELS: &str = "\
| label | values |\n\
|---|---|\n\
| `route`, `method`, `status` | those of the API |\n\
| `class`, `from`, `location`, `op`, `reason`, `resource`, `directory`, `stage`, `state` | a few words, fixed in the program |\n\
| `node` | nodes that this one has to do with: at most all of the cluster |\n\
| `run`, `rank` | runs that are being read, with the ranks that report to this node: at most 256 of them |\n\
| `version` | the release of this node |\n";

    /// A node that has every metric: its disk is measured, and a peer is slow.
    pub(super) fn status() -> NodeStatus {
        let node = |name: &str| name.parse().expect("a name");
        let disk = Disk { read_micros: Some(1), sync_micros: Some(1) };
        let peer = Peer { node: node("n2"), answer_micros: Some(1), silences: 0.0, wrong_grains: 0.0 };
        let what = Ailment::SlowReads;
        let issue = HealthIssue { node: node("n2"), what, by: node("n1"), measured: 1, others: 1 };
        NodeStatus {
            node: node("n1"),
            cache_used_bytes: 0,
            cache_limit_bytes: 0,
            cache_grains: 0,
            cache_peak_bytes: 0,
            origin_bytes: 0,
            origin_requests: 0,
            origin_reread: 0,
            origin_wire: None,
            store_epochs: Vec::new(),
            measured: Measured { disk, peers: vec![peer] },
            health_issues: vec![issue],
            exchange_now: ExchangeNow { waiting: vec![ranks::tests::waiting()], ..ExchangeNow::default() },
            readers: vec![ranks::tests::reader()],
            metadata: None,
            machine: Some(machine::tests::machine()),
            counters: CounterView { exchange: vec![ranks::tests::sent()], ..CounterView::default() },
        }
    }

    /// Each family of the text format as a row of a table.
    fn table(text: &str) -> String {
        let mut table = "| metric | type | meaning |\n|---|---|---|\n".to_owned();
        let mut help = "";
        for line in text.lines() {
            if let Some(line) = line.strip_prefix("# HELP ") {
                help = line.split_once(' ').map_or("", |(_, help)| help).trim_end_matches('.');
            } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|it| it.split_once(' '))
            {
                writeln!(table, "| `{name}` | {kind} | {help} |").expect("writes");
            }
        }
        table
    }

    #[test]
    fn openmetrics_names_a_request_of_each_bucket() {
        let metrics = Metrics::default();
        let answered = |millis, id: &str, trace: Option<&str>| {
            let exemplar = Exemplar::of(id, trace.map(str::to_owned));
            metrics.answered("/v1/health", &Method::GET, 200, Duration::from_millis(millis), exemplar);
        };
        answered(2, "fast", None);
        answered(400, "slow", Some("4bf92f3577b34da6a3ce929d0e0e4736"));
        let text = in_openmetrics([&metrics.registry]);
        let bucket = |le: &str| {
            let le = format!("le=\"{le}\"");
            text.lines().find(|line| line.contains(&le)).unwrap_or_else(|| panic!("no {le} in {text}"))
        };
        assert!(bucket("0.0025").contains("# {request_id=\"fast\"} 0.002"), "{text}");
        let slow = "# {request_id=\"slow\",trace_id=\"4bf92f3577b34da6a3ce929d0e0e4736\"} 0.4";
        assert!(bucket("0.5").contains(slow), "{text}");
        assert!(text.contains("shardd_http_requests_total{"), "{text}");
        assert!(text.ends_with("# EOF\n"));
        assert!(!in_text([&metrics.registry]).contains("request_id"), "the text format has none");
    }

    #[test]
    fn the_reference_lists_the_metrics() {
        let metrics = Metrics::default();
        metrics.answered("/v1/health", &Method::GET, 200, Duration::from_millis(1), Exemplar::of("1", None));
        let mut snapshot = Snapshot::default();
        snapshot.node(&status(), true);
        let metadata = MetadataStatus {
            epoch: 1,
            trouble: None,
            copied_at: None,
            copy_bytes: 0,
            is_behind: false,
            lag_s: 0,
            copy_trouble: None,
        };
        snapshot.metadata(&metadata);
        snapshot.cluster(1, 0);
        let times = MetastoreTimes::default();
        times.observe_one();
        snapshot.metastore(&times);
        snapshot.process();
        snapshot.gauge("shardd_event_followers", "Clients that follow events", 0);
        let text = in_text([&metrics.registry, &snapshot.0]);
        let page = format!(
            "# Metrics\n\nEach node serves these at `/metrics`, in the text format of Prometheus, or in OpenMetrics for a client \
             that\naccepts it. The counters begin with the process. Where nodes require tokens, `/metrics` needs one of\nrole \
             `read`.\n\n{}\n## Labels\n\n{LABELS}",
            table(&text)
        );
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
        if std::env::var_os("SHARDD_WRITE_DOCS").is_some() {
            std::fs::create_dir_all(file.parent().expect("a directory")).expect("creates");
            std::fs::write(&file, &page).expect("writes");
        }
        let known = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(known == page, "docs/reference/metrics.md is stale: write it with SHARDD_WRITE_DOCS=1");
    }
}
