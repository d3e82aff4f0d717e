//! A batch's way from the store to a rank, as a collector of OpenTelemetry gets it: spans of the trainer and of both nodes in one
//! trace, decoded by the project's own schema.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use shardd_tests::{Cluster, binary, ended, error_line, run};
use tokio::net::TcpListener;

/// Takes spans and log records over HTTP, as collectors do.
struct Collector {
    endpoint: String,
    taken: Arc<Mutex<Taken>>,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Default)]
struct Taken {
    spans: Vec<Span>,
    /// The bodies of log records, with the trace of each.
    records: Vec<(String, Vec<u8>)>,
}

#[derive(Debug, Clone)]
struct Span {
    trace: Vec<u8>,
    id: Vec<u8>,
    parent: Vec<u8>,
    name: String,
    kind: i32,
    service: String,
    instance: String,
    attributes: BTreeMap<String, String>,
}

impl Collector {
    fn start() -> Collector {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime starts");
        let taken = Arc::<Mutex<Taken>>::default();
        let router =
            Router::new().route("/v1/traces", post(take_spans)).route("/v1/logs", post(take_records));
        let router = router.with_state(Arc::clone(&taken));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        runtime.spawn(async move { axum::serve(listener, router).await });
        Collector { endpoint, taken, _runtime: runtime }
    }

    /// The variables that send everything here, soon.
    fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("OTEL_EXPORTER_OTLP_ENDPOINT", self.endpoint.clone()),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test".to_owned()),
        ]
    }
}

async fn take_spans(State(taken): State<Arc<Mutex<Taken>>>, body: Bytes) -> &'static [u8] {
    let request = ExportTraceServiceRequest::decode(body).expect("spans as the schema has them");
    for resource in request.resource_spans {
        let of = resource.resource.unwrap_or_default();
        let found = resource.scope_spans.into_iter().flat_map(|scope| scope.spans).map(|span| Span {
            trace: span.trace_id,
            id: span.span_id,
            parent: span.parent_span_id,
            name: span.name,
            kind: span.kind,
            service: attribute(&of, "service.name"),
            instance: attribute(&of, "service.instance.id"),
            attributes: span.attributes.iter().map(|own| (own.key.clone(), text(own))).collect(),
        });
        taken.lock().expect("no panic while held").spans.extend(found);
        assert_eq!(attribute(&of, "deployment.environment.name"), "test");
    }
    b""
}

async fn take_records(State(taken): State<Arc<Mutex<Taken>>>, body: Bytes) -> &'static [u8] {
    let request = ExportLogsServiceRequest::decode(body).expect("log records as the schema has them");
    let scopes = request.resource_logs.into_iter().flat_map(|resource| resource.scope_logs);
    let records = scopes.flat_map(|scope| scope.log_records).map(|record| {
        let body = record.body.and_then(|body| body.value);
        let Some(Value::StringValue(text)) = body else { panic!("{body:?} is no text") };
        (text, record.trace_id)
    });
    taken.lock().expect("no panic while held").records.extend(records);
    b""
}

fn attribute(of: &Resource, key: &str) -> String {
    of.attributes.iter().find(|own| own.key == key).map(text).unwrap_or_default()
}

fn text(own: &KeyValue) -> String {
    match own.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        other => format!("{other:?}"),
    }
}

/// The spans from one to the first of its trace, without it.
fn above<'s>(spans: &'s [Span], of: &Span) -> Vec<&'s Span> {
    let mut above: Vec<&Span> = Vec::new();
    let mut parent = &of.parent;
    while let Some(span) = spans.iter().find(|span| span.id == *parent) {
        assert_eq!(span.trace, of.trace, "a parent of another trace");
        above.push(span);
        parent = &span.parent;
    }
    above
}

/// Two nodes over one store, with 27 shards, and a rank that trains for two epochs.
fn train(collector: &Collector) {
    let store = tempfile::TempDir::new().expect("a temporary directory can be made");
    let mut variables = collector.variables();
    let nodes = [variables.clone(), vec![("SHARDD_STORE", format!("file://{}", store.path().display()))]];
    let mut cluster = Cluster::start_with(2, &nodes.concat());
    let data = format!("{}/../client/data/digits/train.parquet", env!("CARGO_MANIFEST_DIR"));
    run(cluster.shardctl().args(["ingest", &data, "--name", "digits", "--shard-size", "4KiB"]));
    variables.push(("OTEL_SERVICE_NAME", "my-training".to_owned()));
    let mut train = Command::new(binary("shardtrain"));
    train.args(["--server", &cluster.nodes[0].http, "--dataset", "digits", "--epochs", "2"]);
    run(train.envs(variables));
    // A node sends what is left when it stops.
    for node in &mut cluster.nodes {
        node.stop();
    }
}

#[test]
fn a_trace_leads_from_a_rank_through_nodes_to_the_store() {
    let collector = Collector::start();
    train(&collector);
    let taken = collector.taken.lock().expect("no panic while held");
    let spans = &taken.spans;
    let named = |name: &str| spans.iter().filter(|span| span.name == name).cloned().collect::<Vec<_>>();
    let leads_to = |span: &Span, name: &str| above(spans, span).into_iter().any(|above| above.name == name);
    let summary: BTreeMap<(&str, &str), usize> = spans.iter().fold(BTreeMap::new(), |mut counts, span| {
        *counts.entry((span.service.as_str(), span.name.as_str())).or_default() += 1;
        counts
    });

    // The trainer: each step is gathered under the span that loaded it.
    let gathered = named("gather");
    assert!(!gathered.is_empty(), "{summary:?}");
    assert!(gathered.iter().all(|span| leads_to(span, "load_steps")), "{summary:?}");
    assert!(gathered.iter().all(|span| span.service == "my-training" && span.instance == "rank-0"));
    assert!(gathered.iter().any(|span| span.attributes.contains_key("shardd.step")));

    // The node: a question of the trainer, under the names of the conventions.
    let asked = named("POST /v1/runs/{id}/locate");
    let of_loader: Vec<&Span> = asked.iter().filter(|span| leads_to(span, "load_steps")).collect();
    assert!(!of_loader.is_empty(), "{summary:?}");
    for span in of_loader {
        assert_eq!((span.service.as_str(), span.kind), ("shardd", SERVER));
        assert_eq!(span.attributes["http.response.status_code"], "200");
        assert_eq!(above(spans, span)[0].name, "locate");
        assert_eq!(above(spans, span)[0].kind, CLIENT);
    }

    // Between nodes: who answers is another than who asks.
    let answered = named("answer_peer");
    assert!(!answered.is_empty(), "{summary:?}");
    for span in &answered {
        let asking = above(spans, span).first().copied().cloned().expect("a peer asks within a span");
        assert_eq!(asking.name, "ask_peer");
        assert_eq!(asking.attributes["shardd.peer"], span.instance);
        assert_ne!(asking.instance, span.instance);
    }

    // The store: read by nodes for what was wanted of them.
    let reads = named("read_store");
    assert!(reads.iter().any(|span| leads_to(span, "obtain")), "{summary:?}");

    // Log records: those of a request have its trace.
    let of_join = taken.records.iter().find(|(text, _)| text.contains("a node joined"));
    let (_, trace) = of_join.expect("the first node logs who joins");
    assert!(named("POST /v1/join").iter().any(|span| span.trace == *trace), "{summary:?}");
}

#[test]
fn a_protocol_that_is_not_spoken_is_refused_at_the_start() {
    for (program, arguments) in [("shardd", &["serve"][..]), ("shardtrain", &["--dataset", "digits"])] {
        let mut command = Command::new(binary(program));
        command.args(arguments).env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
        let output = ended(command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"));
        assert_eq!(output.status.code(), Some(2), "{program}");
        let line = error_line(&output);
        assert!(line.contains("OTEL_EXPORTER_OTLP_PROTOCOL is grpc"), "{line}");
        assert!(line.contains("http/protobuf"), "{line}");
    }
}

/// Numbers of `SpanKind` in the schema.
const SERVER: i32 = 2;
const CLIENT: i32 = 3;
