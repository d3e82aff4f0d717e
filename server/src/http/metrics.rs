//! What a node has counted, as Prometheus reads it (text format 0.0.4). Labels have few values: routes, methods, statuses, kinds
//! of miss; never the name of a dataset, run or client.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use shardd_api::exchange::ExchangeNow;
use shardd_api::status::{MetadataStatus, NodeStatus};

use super::{Answer, State};

/// Upper bounds of the classes of latency, in seconds.
const BOUNDS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0];

/// The counts of the HTTP server.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// By route, method and status.
    requests: Mutex<BTreeMap<(String, &'static str, u16), u64>>,
    /// By route.
    latencies: Mutex<BTreeMap<String, Latency>>,
    connections: AtomicU64,
    connections_ended: AtomicU64,
    bytes_received: AtomicU64,
    bytes_sent: AtomicU64,
}

/// How long answers took to begin.
#[derive(Debug, Default)]
struct Latency {
    /// By class; the last is for those above all bounds.
    counts: [u64; BOUNDS.len() + 1],
    seconds: f64,
}

impl Metrics {
    /// A request was answered. The route is one of the router's, so there are few.
    pub(super) fn answered(&self, route: &str, method: &Method, status: u16, took: Duration) {
        let key = (route.to_owned(), method_name(method), status);
        *self.requests.lock().expect("no panic while held").entry(key).or_default() += 1;
        let seconds = took.as_secs_f64();
        let class = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        let mut latencies = self.latencies.lock().expect("no panic while held");
        let latency = latencies.entry(route.to_owned()).or_default();
        latency.counts[class] += 1;
        latency.seconds += seconds;
    }

    pub(super) fn connected(&self) {
        self.connections.fetch_add(1, Relaxed);
    }

    pub(super) fn disconnected(&self) {
        self.connections_ended.fetch_add(1, Relaxed);
    }

    pub(super) fn received(&self, bytes: usize) {
        self.bytes_received.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn sent(&self, bytes: usize) {
        self.bytes_sent.fetch_add(bytes as u64, Relaxed);
    }

    fn write(&self, page: &mut Page) {
        page.family("shardd_http_requests_total", "counter", "Requests answered.");
        for ((route, method, status), count) in self.requests.lock().expect("no panic while held").iter() {
            let labels = format!("route=\"{route}\",method=\"{method}\",status=\"{status}\"");
            page.sample("", &labels, *count);
        }
        page.family(
            "shardd_http_request_duration_seconds",
            "histogram",
            "Time until the answer began, in seconds.",
        );
        for (route, latency) in self.latencies.lock().expect("no panic while held").iter() {
            let mut count = 0;
            for (class, more) in latency.counts.iter().enumerate() {
                count += more;
                let bound = BOUNDS.get(class).map_or_else(|| "+Inf".to_owned(), f64::to_string);
                page.sample("_bucket", &format!("route=\"{route}\",le=\"{bound}\""), count);
            }
            page.sample("_sum", &format!("route=\"{route}\""), latency.seconds);
            page.sample("_count", &format!("route=\"{route}\""), count);
        }
        let (made, ended) = (self.connections.load(Relaxed), self.connections_ended.load(Relaxed));
        page.one("shardd_http_connections_total", "counter", "Connections accepted.", made);
        page.one("shardd_http_connections", "gauge", "Open connections.", made.saturating_sub(ended));
        let received = self.bytes_received.load(Relaxed);
        page.one("shardd_http_received_bytes_total", "counter", "Bytes received over HTTP.", received);
        let sent = self.bytes_sent.load(Relaxed);
        page.one("shardd_http_sent_bytes_total", "counter", "Bytes sent over HTTP.", sent);
    }
}

/// One of the methods that there are; anybody may invent more.
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

/// A page of metrics being written.
#[derive(Default)]
struct Page {
    text: String,
    family: &'static str,
}

impl Page {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, suffix: &str, labels: &str, value: impl std::fmt::Display) {
        let family = self.family;
        let _ = match labels {
            "" => writeln!(self.text, "{family}{suffix} {value}"),
            _ => writeln!(self.text, "{family}{suffix}{{{labels}}} {value}"),
        };
    }

    fn one(&mut self, name: &'static str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, kind, help);
        self.sample("", "", value);
    }
}

/// The metadata that this node keeps, and its copy.
fn write_metadata(page: &mut Page, status: &MetadataStatus) {
    let takes = u8::from(status.trouble.is_none());
    page.one("shardd_metadata_writable", "gauge", "1 if the metadata takes changes.", takes);
    let epoch = "Nodes that have kept the metadata one after the other.";
    page.one("shardd_metadata_epoch", "gauge", epoch, status.epoch);
    let lag = "Seconds for which changes have waited that the copy in the store lacks.";
    page.one("shardd_metadata_copy_lag_seconds", "gauge", lag, status.lag_s);
    let bytes = "Bytes of keys and values in the copy of the metadata.";
    page.one("shardd_metadata_copy_bytes", "gauge", bytes, status.copy_bytes);
}

/// The counts of the engine.
fn write_node(page: &mut Page, status: &NodeStatus, ready: bool) {
    page.one("shardd_ready", "gauge", "1 if the node takes new work.", u8::from(ready));
    let cache = status.cache_used_bytes;
    page.one("shardd_cache_bytes", "gauge", "Bytes of the cache in use.", cache);
    page.one("shardd_cache_limit_bytes", "gauge", "Limit of the cache in bytes.", status.cache_limit_bytes);
    page.one("shardd_cache_grains", "gauge", "Grains in the cache.", status.cache_grains);
    let origin = "Bytes of shard data read from the store.";
    page.one("shardd_origin_read_bytes_total", "counter", origin, status.origin_bytes);
    let requests = "Requests for shard data made to the store.";
    page.one("shardd_origin_requests_total", "counter", requests, status.origin_requests);
    let counters = &status.counters;
    page.one(
        "shardd_fill_grains_total",
        "counter",
        "Grains kept of shards read whole.",
        counters.fill_grains,
    );
    page.one(
        "shardd_fill_bytes_total",
        "counter",
        "Bytes of shards read whole from the store and kept.",
        counters.fill_bytes,
    );
    let forwarded = "Grains of shards read whole that were given to other nodes.";
    page.one("shardd_forwarded_grains_total", "counter", forwarded, counters.forwarded_grains);
    page.family(
        "shardd_misses_total",
        "counter",
        "Grains that were not here when wanted, by where they came from.",
    );
    page.sample("", "from=\"peer\"", counters.misses_from_peers);
    page.sample("", "from=\"origin\"", counters.misses_from_origin);
    page.family("shardd_miss_bytes_total", "counter", "Bytes of missed grains, by source.");
    page.sample("", "from=\"peer\"", counters.miss_bytes_from_peers);
    page.sample("", "from=\"origin\"", counters.miss_bytes_from_origin);
    page.family(
        "shardd_corrupt_grains_total",
        "counter",
        "Grains that did not match the manifest, by where they were.",
    );
    page.sample("", "location=\"disk\"", counters.corrupt_on_disk);
    page.sample("", "location=\"peer\"", counters.corrupt_from_peers);
    page.one(
        "shardd_served_grains_total",
        "counter",
        "Grains given to nodes that asked.",
        counters.served_grains,
    );
    let served = "Bytes of grains given to nodes that asked.";
    page.one("shardd_served_bytes_total", "counter", served, counters.served_bytes);
    let stalled = "Time that loaders waited for the exchange.";
    page.one("shardd_exchange_stalled_seconds_total", "counter", stalled, counters.stalled_s);
    let sending = "Time in which the node was sending a chunk.";
    page.one("shardd_exchange_seconds_total", "counter", sending, counters.exchange_s);
    // Of the epochs that are kept: it falls when the oldest is dropped, so it is no counter.
    let sum = |count: fn(&shardd_api::exchange::EpochExchange) -> u64| {
        counters.exchange.iter().map(|epoch| count(&epoch.counts)).sum::<u64>()
    };
    page.family(
        "shardd_exchange_grains",
        "gauge",
        "Grains of the epochs exchanged lately, by what became of them.",
    );
    page.sample("", "state=\"expected\"", sum(|counts| counts.expected_grains));
    page.sample("", "state=\"received\"", sum(|counts| counts.received_grains));
    page.sample("", "state=\"sent\"", sum(|counts| counts.sent_grains));
    page.sample("", "state=\"unsent\"", sum(|counts| counts.unsent_grains));
    let (received, sent) = (sum(|counts| counts.received_bytes), sum(|counts| counts.sent_bytes));
    page.one(
        "shardd_exchange_received_bytes",
        "gauge",
        "Bytes received of the epochs exchanged lately.",
        received,
    );
    page.one("shardd_exchange_sent_bytes", "gauge", "Bytes sent in recent epochs.", sent);
    let ExchangeNow { paused, waiting, .. } = &status.exchange_now;
    page.one("shardd_exchange_paused", "gauge", "1 if the exchange is paused.", u8::from(*paused));
    let waiting: u64 = waiting.iter().map(|run| run.bytes).sum();
    page.one("shardd_exchange_waiting_bytes", "gauge", "Bytes waiting to be sent.", waiting);
    write_health(page, status);
}

/// The slow, silent or faulty nodes.
fn write_health(page: &mut Page, status: &NodeStatus) {
    let seconds = |micros: u64| micros as f64 / 1e6;
    let (disk, peers) = (status.measured.disk, &status.measured.peers);
    page.family("shardd_disk_seconds", "gauge", "Mean recent latency of the cache's disk, in seconds.");
    for (does, micros) in [("read", disk.read_micros), ("sync", disk.sync_micros)] {
        if let Some(micros) = micros {
            page.sample("", &format!("op=\"{does}\""), seconds(micros));
        }
    }
    page.family("shardd_peer_answer_seconds", "gauge", "Mean recent latency of nodes, in seconds.");
    for peer in peers {
        if let Some(micros) = peer.answer_micros {
            page.sample("", &format!("node=\"{}\"", peer.node), seconds(micros));
        }
    }
    page.family("shardd_peer_timeouts", "gauge", "Requests that nodes did not answer; decays.");
    for peer in peers {
        page.sample("", &format!("node=\"{}\"", peer.node), peer.silences);
    }
    page.family("shardd_peer_wrong_grains", "gauge", "Grains that nodes sent with wrong bytes; decays.");
    for peer in peers {
        page.sample("", &format!("node=\"{}\"", peer.node), peer.wrong_grains);
    }
    page.family(
        "shardd_node_unhealthy",
        "gauge",
        "1 for each node that this one finds slow, silent or wrong.",
    );
    for trouble in &status.troubles {
        page.sample("", &format!("node=\"{}\",reason=\"{}\"", trouble.node, trouble.what.name()), 1);
    }
}

/// The counters of this node since its start, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "node", operation_id = "metrics",
    responses((status = 200, body = String, content_type = "text/plain; version=0.0.4")))]
pub(super) async fn metrics(state: State) -> Answer {
    let mut page = Page::default();
    state.metrics.write(&mut page);
    let able = state.api.engine.unready().is_none() && state.api.metadata_trouble().is_none();
    let ready = able && !state.draining.is_cancelled();
    write_node(&mut page, &state.api.engine.status(), ready);
    if let Some(keeping) = &state.api.keeping {
        write_metadata(&mut page, &keeping.status());
    }
    page.one("shardd_event_followers", "gauge", "Clients that follow events.", state.events.followers());
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4")], page.text).into_response())
}
