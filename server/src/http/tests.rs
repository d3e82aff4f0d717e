//! Stories of a real client at a real listening server.

mod api;
mod console;
mod contents;
mod large;
mod plan_labels;
mod records;
mod refusals;
mod same_origin;
mod simulation;

use std::net::SocketAddr;
use std::sync::Arc;

use arrow::array::RecordBatch;
use serde_json::{Value, json};
use shardd_engine::cache::{Cache, CacheConfig};
use shardd_engine::peers::{Alone, Peers};
use shardd_store::catalog::{Catalog, CommitNote, HttpCatalog, conformance, conformance_of_runs};
use shardd_store::metastore::MemoryMetastore;
use shardd_store::origin::Origin;
use shardfmt::{ByteSize, FinishedShard, Manifest, Operation, ShardId, ShardWriter, StrataId, VersionId};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use ureq::http::{Response, StatusCode};

use super::*;
use crate::access::Tokens;
use crate::ca::CertificateIssuer;
use crate::identity::testing::term;
use crate::identity::{Cluster, Identity, JoinToken, Secret, Site, join};
use crate::metastore::{MetastoreUrl, MovableMetastore};
use crate::observe::{Observer, Recorder};
use crate::transport::Transport;

/// A node's API on a free port, over a store in memory or in a directory.
struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    serving: Option<tokio::task::JoinHandle<()>>,
    runtime: Runtime,
    secret: Secret,
    authority: shardfmt::Digest,
    metastore: Arc<dyn shardd_store::metastore::Metastore>,
    directory: TempDir,
}

/// What a server knows of other nodes.
struct Neighbours {
    metastore: Arc<dyn shardd_store::metastore::Metastore>,
    /// The way to them; none where there are none.
    transport: Option<Arc<Transport>>,
}

impl Default for Neighbours {
    fn default() -> Self {
        Self { metastore: Arc::new(MemoryMetastore::new()), transport: None }
    }
}

impl Server {
    fn start() -> Server {
        Server::over(|directory| directory.path().join("store").display().to_string())
    }

    fn over(store: impl FnOnce(&TempDir) -> String) -> Server {
        Server::with(Limits::default(), store)
    }

    fn with(limits: Limits, store: impl FnOnce(&TempDir) -> String) -> Server {
        Server::among(limits, store, |_| Neighbours::default())
    }

    /// Beside other nodes, which `neighbours` starts in the server's runtime.
    fn among(
        limits: Limits,
        store: impl FnOnce(&TempDir) -> String,
        neighbours: impl FnOnce(&TempDir) -> Neighbours,
    ) -> Server {
        let directory = TempDir::new().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let stop = CancellationToken::new();
        let (identity, signer) =
            Identity::found(&directory.path().join("tls"), "n1".parse().unwrap(), &term()).unwrap();
        let origin = Arc::new(Origin::open(&store(&directory)).unwrap());
        let cache = CacheConfig { limit: ByteSize::mib(256) };
        let cache = Arc::new(Cache::open(directory.path().join("cache"), cache).unwrap());
        let around = {
            let _in_it = runtime.enter();
            neighbours(&directory)
        };
        let Neighbours { metastore, transport } = around;
        let node = identity.node().clone();
        let peers: Arc<dyn Peers> = match &transport {
            Some(transport) => Arc::clone(transport) as _,
            None => Arc::new(Alone),
        };
        let engine = Engine::new(node.clone(), Arc::clone(&origin), cache, Arc::clone(&metastore), peers);
        if transport.is_some() {
            runtime.spawn(Arc::clone(&engine).run_until(stop.clone()));
        }
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (secret, authority) = (Secret::random(), signer.digest());
        let cluster = Cluster {
            store: "/store".into(),
            store_options: Default::default(),
            first: node.clone(),
            http: address,
            tls: false,
            quic: address,
            asks_tokens: false,
            metastore: None,
        };
        let record = NodeRecord {
            id: node,
            http: format!("http://{address}"),
            quic: address,
            cache_bytes: 0,
            started_at: 0,
            socket: None,
            metastore: None,
        };
        let pem = signer.pem().to_owned();
        let issuer = CertificateIssuer {
            authority_pem: pem.clone(),
            authority: Some(signer),
            standing: Some(secret.clone()),
            first_key: identity.key_digest(),
            cluster: cluster.clone(),
            metastore: Arc::clone(&metastore),
            lifetime: term().lifetime,
        };
        let issuer = Some(Arc::new(issuer));
        let movable = MovableMetastore::new(MetastoreUrl::Sled, Arc::clone(&metastore));
        let bootstrap =
            Bootstrap { authority: pem, digest: authority, cluster, issuer, finder: None, movable };
        let catalog = CatalogBackend::new(origin, Arc::clone(&metastore));
        let tokens = runtime.block_on(Tokens::open(Arc::clone(&metastore), None));
        let access = Access { tokens, asked: TokensAsked::OnceThereIsOne, hosts: Vec::new() };
        let recorder = Arc::new(Recorder::new(Arc::clone(&engine), Vec::new(), None));
        let observer =
            Arc::new(Observer::new(record.id.clone(), Arc::clone(&engine), None, recorder, transport));
        let api = Api {
            node: record,
            engine,
            catalog,
            bootstrap,
            access,
            keeping: None,
            promotion: None,
            relocator: None,
            observer,
            times: Arc::default(),
            limits,
        };
        let serving = Some(runtime.spawn(serve(HttpListener { listener, tls: None }, api, stop.clone())));
        Server { address, stop, serving, runtime, secret, authority, metastore, directory }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/v1/{path}", self.address)
    }

    /// Its counts, as text.
    fn metrics(&self) -> String {
        let reply = agent().get(format!("http://{}/metrics", self.address)).call().expect("an answer");
        String::from_utf8(bytes(reply)).expect("text")
    }

    fn catalog(&self) -> HttpCatalog {
        HttpCatalog::new(&format!("http://{}", self.address))
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> (StatusCode, Response<ureq::Body>) {
        self.ask(
            headers
                .iter()
                .fold(agent().get(self.url(path)), |ask, (name, value)| ask.header(*name, *value))
                .call(),
        )
    }

    /// The answer to a question that has one.
    fn document(&self, path: &str) -> Value {
        let (status, reply) = self.get(path, &[]);
        assert_eq!(status, 200, "{path}");
        serde_json::from_slice(&bytes(reply)).expect("JSON")
    }

    /// The status and the detail of a refusal.
    fn refused(&self, path: &str) -> (u16, String) {
        let (status, reply) = self.get(path, &[]);
        (status.as_u16(), detail(reply))
    }

    fn put(&self, path: &str, body: &[u8]) -> (StatusCode, Response<ureq::Body>) {
        self.ask(agent().put(self.url(path)).send(body))
    }

    fn send(&self, path: &str, body: &Value) -> (StatusCode, Response<ureq::Body>) {
        self.ask(agent().post(self.url(path)).send_json(body))
    }

    fn ask(&self, reply: Result<Response<ureq::Body>, ureq::Error>) -> (StatusCode, Response<ureq::Body>) {
        let reply = reply.expect("an answer");
        (reply.status(), reply)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            let _ = self.runtime.block_on(serving);
        }
    }
}

/// Stores a version with a shard of each of these rows.
fn version_of(
    catalog: &HttpCatalog,
    name: &str,
    rows: impl IntoIterator<Item = RecordBatch>,
    config: Value,
) -> (VersionId, Manifest, Vec<FinishedShard>) {
    let rows: Vec<RecordBatch> = rows.into_iter().collect();
    let shards: Vec<FinishedShard> = rows.iter().map(finished).collect();
    shards.iter().for_each(|shard| catalog.put_shard(shard).expect("put"));
    let entries = shards.iter().map(|shard| shard.entry.clone()).collect();
    let manifest = Manifest::new(rows[0].schema(), entries, config);
    let note = CommitNote::of(Operation::INGEST);
    let version = catalog.commit(&name.parse().unwrap(), None, &manifest, &note).expect("committed").version;
    (version, manifest, shards)
}

/// A shard of these rows.
fn finished(rows: &RecordBatch) -> FinishedShard {
    let mut writer = ShardWriter::new(rows.schema()).expect("a schema");
    writer.push(rows).expect("pushed");
    writer.finish().expect("a shard")
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).build().into()
}

fn bytes(mut reply: Response<ureq::Body>) -> Vec<u8> {
    reply.body_mut().read_to_vec().expect("the whole body")
}

/// The detail of a problem document, which every refusal has to be.
fn detail(reply: Response<ureq::Body>) -> String {
    let (status, kind) = (reply.status(), reply.headers()["content-type"].clone());
    let document: Value = serde_json::from_slice(&bytes(reply)).expect("a problem document");
    assert_eq!(kind, "application/problem+json");
    assert_eq!(document["status"], status.as_u16());
    assert!(document["type"].is_string() && document["title"].is_string(), "{document}");
    document["detail"].as_str().expect("a detail").to_owned()
}

fn header<'r>(reply: &'r Response<ureq::Body>, name: &str) -> &'r str {
    reply.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

fn shard(first: i64) -> FinishedShard {
    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Schema};
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, false)]));
    let column = Int64Array::from_iter_values(first..first + 1000);
    let batch = RecordBatch::try_new(schema.clone(), vec![Arc::new(column)]).unwrap();
    let mut writer = ShardWriter::new(schema).unwrap();
    writer.push(&batch).unwrap();
    writer.finish().unwrap()
}

#[test]
fn the_http_catalog_keeps_the_promises_of_a_catalog() {
    let server = Server::start();
    conformance(&server.catalog());
    conformance_of_runs(&server.catalog(), &|key, value| {
        let put = server.metastore.put(&key, value, shardd_store::metastore::Expected::Any, None);
        server.runtime.block_on(put).expect("puts");
    });
}

#[test]
fn what_is_named_by_its_digest_is_served_whole_in_parts_and_under_conditions() {
    for store in ["memory", "directory"] {
        let server = match store {
            "memory" => Server::over(|_| "memory://".into()),
            _ => Server::start(),
        };
        let (shard, manifest) = (shard(0), long_manifest());
        server.catalog().put_shard(&shard).expect("put");
        let shard_path = format!("shards/{}", shard.id);
        served_in_parts(&server, &shard_path, &shard.id.to_string(), &shard.bytes);
        let (status, rows) = server.get(&format!("{shard_path}/rows"), &[]);
        assert_eq!((status.as_u16(), bytes(rows)), (200, shard.sidecar.encode()));

        let (version, manifest) = (manifest.id(), manifest.encode());
        let path = format!("manifests/{version}");
        assert_eq!(server.put(&path, &manifest).0, 204);
        served_in_parts(&server, &path, &version.to_string(), &manifest);
        let expected = shardfmt::manifest::tree_of(&manifest).expect("it is long");
        let (status, tree) = server.get(&format!("{path}/tree"), &[]);
        assert_eq!((status.as_u16(), bytes(tree)), (200, expected.clone()));
        let (status, part) = server.get(&format!("{path}/tree"), &[("range", "bytes=20-51")]);
        assert_eq!((status.as_u16(), bytes(part)), (206, expected[20..52].to_vec()));
    }
}

/// A manifest that is long because of its labels.
fn long_manifest() -> Manifest {
    let mut entry = shard(0).entry;
    entry.labels = Some((0..4000).map(|class| (format!("class {class:050}").into(), 1)).collect());
    let schema = arrow::datatypes::Schema::new(vec![arrow::datatypes::Field::new(
        "x",
        arrow::datatypes::DataType::Int64,
        false,
    )]);
    Manifest::new(Arc::new(schema), vec![entry], json!({}))
}

fn served_in_parts(server: &Server, path: &str, id: &str, content: &[u8]) {
    let (etag, size) = (format!("\"{id}\""), content.len());

    let (status, whole) = server.get(path, &[]);
    assert_eq!((status.as_u16(), header(&whole, "etag")), (200, etag.as_str()));
    assert_eq!(
        (header(&whole, "accept-ranges"), header(&whole, "content-length")),
        ("bytes", &*size.to_string())
    );
    assert_eq!(bytes(whole), content);

    let parts = [("bytes=0-9", 0..10), ("bytes=10-", 10..size), ("bytes=-7", size - 7..size)];
    for (range, expected) in parts {
        let (status, part) = server.get(path, &[("range", range)]);
        let content_range = format!("bytes {}-{}/{size}", expected.start, expected.end - 1);
        assert_eq!(
            (status.as_u16(), header(&part, "content-range")),
            (206, content_range.as_str()),
            "{range}"
        );
        assert_eq!(bytes(part), content[expected], "{range}");
    }
    let (status, outside) = server.get(path, &[("range", &format!("bytes={size}-"))]);
    assert_eq!((status.as_u16(), header(&outside, "content-range")), (416, &*format!("bytes */{size}")));
    assert!(detail(outside).contains("begins after"));

    let (status, known) = server.get(path, &[("if-none-match", &etag)]);
    assert_eq!((status.as_u16(), header(&known, "etag")), (304, etag.as_str()));
    assert!(bytes(known).is_empty());
    let (status, _) = server.get(path, &[("if-range", "\"other\""), ("range", "bytes=0-9")]);
    assert_eq!(status, 200);

    let head = agent().head(server.url(path)).call().unwrap();
    assert_eq!((head.status().as_u16(), header(&head, "content-length")), (200, &*size.to_string()));
}

#[test]
fn what_is_put_has_to_be_what_its_name_says() {
    let server = Server::start();
    let (one, other) = (shard(0), shard(5));
    let (status, reply) = server.put(&format!("shards/{}", one.id), &other.bytes);
    assert_eq!(status, 422);
    assert!(detail(reply).contains(&other.id.to_string()));
    let junk = b"no shard at all";
    let (status, reply) = server.put(&format!("shards/{}", ShardId::of(junk)), junk);
    assert_eq!((status.as_u16(), detail(reply).is_empty()), (422, false));
    assert_eq!(server.get(&format!("shards/{}", one.id), &[]).0, 404);

    let rows = format!("shards/{}/rows", one.id);
    assert_eq!(server.put(&rows, &one.sidecar.encode()).0, 422, "the shard comes first");
    assert_eq!(server.put(&format!("shards/{}", one.id), &one.bytes).0, 204);
    assert_eq!(server.put(&format!("shards/{}", one.id), &one.bytes).0, 204, "repeating is harmless");
    let mut wrong = other.sidecar.clone();
    wrong.shard = one.id;
    for wrong in [b"junk".to_vec(), other.sidecar.encode(), wrong.encode()] {
        let (status, reply) = server.put(&rows, &wrong);
        assert_eq!((status.as_u16(), detail(reply).is_empty()), (422, false));
    }
    assert_eq!(server.put(&rows, &one.sidecar.encode()).0, 204);
    let (status, reply) = server.put(&format!("manifests/{}", VersionId::of(b"x")), b"y");
    assert_eq!((status.as_u16(), detail(reply).is_empty()), (422, false));

    let strata = shardd_plan::Strata::new("label", vec!["a".into(), "b".into()], &[0, 1, 1]);
    let encoded = strata.expect("good strata").encode();
    let id = StrataId::of(&encoded);
    for (id, bytes) in [(StrataId::of(b"x"), &encoded[..]), (StrataId::of(b"junk"), b"junk")] {
        let (status, reply) = server.put(&format!("strata/{id}"), bytes);
        assert_eq!((status.as_u16(), detail(reply).contains("strata")), (422, true));
        assert_eq!(server.get(&format!("strata/{id}"), &[]).0, 404);
    }
    let path = format!("strata/{id}");
    for _ in 0..2 {
        assert_eq!(server.put(&path, &encoded).0, 204);
    }
    served_in_parts(&server, &path, &id.to_string(), &encoded);
}

#[test]
fn refusals_are_problem_documents_that_name_the_thing() {
    let server = Server::start();
    let nothing = VersionId::of(b"nothing");
    for (path, status, word) in [
        ("datasets/nowhere".to_owned(), 404, "nowhere"),
        ("datasets/Not%20A%20Name".to_owned(), 400, "Not A Name"),
        (format!("manifests/{nothing}"), 404, "manifest"),
        (format!("plans/{nothing}"), 404, "plan"),
        (format!("strata/{nothing}"), 404, "strata"),
        (format!("shards/{nothing}"), 404, "shard"),
        ("shards/xyz".to_owned(), 400, "xyz"),
        ("runs/nobody".to_owned(), 404, "nobody"),
        ("nothing/of/the/kind".to_owned(), 404, "nothing/of/the/kind"),
    ] {
        let (found, reply) = server.get(&path, &[]);
        assert_eq!(found.as_u16(), status, "{path}");
        let detail = detail(reply);
        assert!(detail.contains(word), "{path}: {detail}");
    }
    for (path, body, status) in [
        ("runs", json!({ "id": "r" }), 400),
        ("runs", json!({ "id": "A B", "plan": nothing, "virtual_ranks": 1 }), 400),
        ("runs", json!({ "id": "r", "plan": nothing, "virtual_ranks": 1 }), 404),
        ("runs/r/ranks/zero", json!({ "world": 1, "epoch": 0 }), 400),
        ("plans", json!({ "surprise": true }), 400),
        ("health", json!({}), 405),
    ] {
        let (found, reply) = server.send(path, &body);
        assert_eq!(found.as_u16(), status, "{path} {body}");
        assert!(!detail(reply).is_empty());
    }
    let change = json!({ "expected": nothing, "version": nothing });
    let (status, reply) = server.ask(agent().put(server.url("datasets/d")).send_json(&change));
    assert_eq!(status, 409);
    assert!(detail(reply).contains("dataset d"));
    let unknown = json!({ "expected": null, "version": nothing });
    assert_eq!(server.ask(agent().put(server.url("datasets/d")).send_json(&unknown)).0, 404);
}

#[test]
fn versions_are_named_told_tagged_and_removed_over_http() {
    let server = Server::start();
    let catalog = server.catalog();
    let manifests: Vec<Manifest> = [vec![shard(0)], vec![shard(0), shard(5)]]
        .map(|shards| {
            shards.iter().for_each(|shard| catalog.put_shard(shard).expect("put"));
            let schema = shardfmt::Shard::from_bytes(shards[0].bytes.clone()).expect("own").schema().clone();
            let entries = shards.iter().map(|shard| shard.entry.clone()).collect();
            Manifest::new(schema, entries, json!({}))
        })
        .into();
    let note = CommitNote::of(Operation::INGEST);
    let first = catalog.commit(&"d".parse().unwrap(), None, &manifests[0], &note).expect("committed");
    let second =
        catalog.commit(&"d".parse().unwrap(), Some(first.version), &manifests[1], &note).expect("committed");
    let found =
        |path: &str| -> Value { serde_json::from_slice(&bytes(server.get(path, &[]).1)).expect("JSON") };
    assert_eq!(found("datasets/d@~1")["commit"], first.commit.to_string());
    assert_eq!(found("datasets/d/log?limit=1")[0]["id"], second.commit.to_string());
    assert_eq!(found("datasets/d/log")[1]["operation"], "ingest");

    let tag = |body: &Value| server.ask(agent().put(server.url("datasets/d/tags/v1")).send_json(body));
    assert_eq!(tag(&json!({ "commit": first.commit })).0, 200);
    assert_eq!(found("datasets/d/tags/v1"), found("tags")[0]);
    assert_eq!(found("datasets/d/tags")[0]["version"], first.version.to_string());
    let (status, reply) = tag(&json!({ "commit": second.commit }));
    let problem: Value = serde_json::from_slice(&bytes(reply)).expect("a problem document");
    assert_eq!((status.as_u16(), &problem["actual"]), (409, &first.version.to_string().into()));
    assert_eq!(tag(&json!({ "commit": second.commit, "expected": "any" })).0, 200);
    assert_eq!(tag(&json!({ "commit": first.commit, "expected": { "at": second.version } })).0, 200);

    for (path, status, word) in [
        ("datasets/d@~x", 400, "not a number of commits"),
        ("datasets/d@~2", 404, "d has 2 in all"),
        ("datasets/d/log?limit=many", 400, "limit"),
        ("datasets/e/log", 404, "dataset e"),
        ("datasets/d/tags/V1", 400, "cannot be a tag"),
        ("datasets/d/tags/v2", 404, "tag v2 of d"),
    ] {
        let (found, reply) = server.get(path, &[]);
        assert_eq!(found.as_u16(), status, "{path}");
        let detail = detail(reply);
        assert!(detail.contains(word), "{path}: {detail}");
    }
    let delete = |path: &str| server.ask(agent().delete(server.url(path)).call());
    for (path, status) in [
        ("datasets/d".to_owned(), 400),
        (format!("datasets/d?expected={}", first.version), 409),
        (format!("datasets/d/tags/v1?expected={}", second.version), 409),
        (format!("plans/{}", first.version), 404),
    ] {
        let (found, reply) = delete(&path);
        assert_eq!((found.as_u16(), detail(reply).is_empty()), (status, false), "{path}");
    }
    assert_eq!(delete(&format!("datasets/d/tags/v1?expected={}", first.version)).0, 204);
    assert_eq!(delete(&format!("datasets/d?expected={}", second.version)).0, 204);

    assert_eq!(server.send("gc", &json!({ "surprise": true })).0, 400);
    let (status, reply) = server.send("gc", &json!({ "older_than_s": 0 }));
    let report: Value = serde_json::from_slice(&bytes(reply)).expect("JSON");
    assert_eq!(
        (status.as_u16(), &report["dry_run"], &report["manifests"]["objects"]),
        (200, &true.into(), &2.into())
    );
    assert_eq!(server.get(&format!("manifests/{}", first.version), &[]).0, 200, "nothing was deleted");
}

#[test]
fn a_body_that_is_too_long_is_refused_at_its_announcement() {
    use std::io::{Read, Write};
    let server = Server::start();
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    write!(stream, "PUT /v1/shards/{} HTTP/1.1\r\nhost: localhost\r\n", ShardId::of(b"")).unwrap();
    write!(stream, "content-length: 99999999999\r\nconnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 413") && reply.contains("application/problem+json"), "{reply}");
}

#[test]
fn joining_needs_the_secret_and_a_free_name() {
    let server = Server::start();
    let tls = server.directory.path().join("joined");
    let site = Site { address: server.address, tls: false };
    let token = JoinToken { site, authority: server.authority, secret: Secret::random() };
    let error =
        join(&tls, &token, Some("n2".parse().unwrap()), &[]).err().expect("the wrong secret").to_string();
    assert!(error.contains("not that of a join token of this cluster"), "{error}");
    let token = JoinToken { secret: server.secret.clone(), ..token };
    let (identity, cluster) = join(&tls, &token, Some("n2".parse().unwrap()), &[]).expect("joined");
    assert_eq!((identity.node().as_str(), cluster.first.as_str()), ("n2", "n1"));
    let (status, reply) =
        server.send("join", &json!({ "secret": server.secret.reveal(), "csr": "x", "id": "n2" }));
    assert_eq!(status, 400);
    assert!(detail(reply).contains("certificate request"));
}

#[test]
fn a_stopping_server_lets_requests_end_and_takes_no_more() {
    let mut server = Server::start();
    let kept = agent();
    assert_eq!(kept.get(server.url("health")).call().unwrap().status(), 200);
    let begun = std::time::Instant::now();
    server.stop.cancel();
    let serving = server.serving.take().expect("running");
    server.runtime.block_on(serving).expect("no panic");
    assert!(begun.elapsed() < std::time::Duration::from_secs(2), "an idle connection holds nothing up");
    assert!(kept.get(server.url("health")).call().is_err());
}
