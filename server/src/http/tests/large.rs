//! A cluster of a thousand nodes and a version of 100,000 shards behind the real API, and what a page of the console asks of them.
//!
//! All nodes but the first are simulated: engines, caches and QUIC over a network in memory. Where Node.js and Chromium are, a
//! real browser looks at the pages.

use std::path::Path;
use std::process::Command;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use shardd_api::local_transport::Transport as Way;
use shardd_api::loop_time::{LoopTime, Waits};
use shardd_api::protocol::{CreateRun, LocateRequest, RunId};
use shardd_plan::{PlanDocument, PlanOptions, Shape};
use shardd_store::metastore::{Expected, Metastore};
use shardfmt::ShardEntry;
use tokio::time::Instant;

use super::*;
use crate::identity::Revoked;
use crate::identity::testing::cluster;
use crate::transport::lossy::{Dice, Net};
use crate::transport::{Datagrams, Services};

const NODES: usize = 1000;
const SHARDS: u64 = 100_000;
/// The rank that waits for its disk, for half of its time.
const STRAGGLER: u32 = 617;

/// The engines of the simulated nodes.
#[derive(Default)]
struct Others {
    engines: Vec<Arc<Engine>>,
    stop: CancellationToken,
}

impl Others {
    /// Starts nodes n0002 to n1000; the first is the server.
    fn start(&mut self, directory: &Path) -> Neighbours {
        let names: Vec<String> =
            (1..=NODES).map(|n| if n == 1 { "n1".to_owned() } else { format!("n{n:04}") }).collect();
        let identities = cluster(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let net = Net::new(Dice::new(3));
        let metastore: Arc<dyn Metastore> = Arc::new(MemoryMetastore::new());
        let origin = Arc::new(Origin::open_dir(&directory.join("store")).expect("a store"));
        let address = |n: usize| SocketAddr::from(([10, 1, (n / 250) as u8, (n % 250) as u8 + 1], 7701));
        let open = |n: usize| {
            Transport::over(
                net.socket(address(n)),
                &identities[n],
                Arc::new(Revoked::default()),
                Datagrams::default(),
            )
            .expect("bound")
        };
        let first = open(0);
        for (n, identity) in identities.iter().enumerate().skip(1) {
            let id = identity.node().clone();
            let cache = CacheConfig { limit: ByteSize::mib(64) };
            let cache = Arc::new(Cache::open(directory.join(id.as_str()), cache).expect("a cache"));
            let (transport, meta) = (open(n), Arc::clone(&metastore));
            let engine =
                Engine::new(id.clone(), Arc::clone(&origin), cache, meta, Arc::clone(&transport) as _);
            let recorder = Arc::new(Recorder::new(Arc::clone(&engine), Vec::new(), None));
            let looks = Arc::new(Observer::new(id.clone(), Arc::clone(&engine), None, recorder, None));
            let peers = Arc::new(Arc::clone(&engine));
            let services = Services { peers, metastore: None, issuer: None, looks: Some(looks) };
            tokio::spawn(transport.serve(services, self.stop.clone()));
            tokio::spawn(Arc::clone(&engine).run_until(self.stop.clone()));
            first.learn(&id, address(n));
            self.engines.push(engine);
        }
        Neighbours { metastore, transport: Some(first) }
    }

    /// Their places among the nodes.
    async fn register(&self, metastore: &dyn Metastore, first: &str) {
        for (n, identity) in
            std::iter::once("n1".to_owned()).chain((2..=NODES).map(|n| format!("n{n:04}"))).enumerate()
        {
            let record = NodeRecord {
                id: identity.parse().expect("a name"),
                http: if n == 0 { first.to_owned() } else { format!("http://{identity}:7700") },
                quic: ([10, 1, (n / 250) as u8, (n % 250) as u8 + 1], 7701).into(),
                cache_bytes: 64 << 20,
                started_at: 0,
                socket: None,
                metastore: None,
            };
            let value = serde_json::to_vec(&record).expect("plain data");
            let key = NodeRecord::key(&record.id);
            metastore.put(&key, value, Expected::Absent, None).await.expect("put");
        }
    }

    /// A rank on each of them reports where its time goes, all at the same step.
    async fn report(&self, run: &RunId, steps: u64) {
        for (rank, engine) in (0..).zip(&self.engines) {
            let waits = if rank == STRAGGLER { 500 * steps } else { 5 * steps };
            let waits = Waits { disk_ms: waits, ..Waits::default() };
            let compute_ms = 1000 * steps - waits.disk_ms;
            let loop_time = LoopTime { steps, samples: 32 * steps, compute_ms, waits, ..LoopTime::default() };
            let report = LocateRequest {
                rank,
                world: self.engines.len() as u32,
                epoch: 0,
                position: 999 * steps,
                for_epoch: 0,
                grains: Vec::new(),
                transport: Way::Files,
                doubted: false,
                rows: Vec::new(),
                loop_time: Some(loop_time),
            };
            engine.locate(run, report).await.expect("a rank of the run");
        }
    }
}

fn rows(shard: i64) -> RecordBatch {
    let labels: ArrayRef = Arc::new(Int64Array::from_iter_values((0..2048).map(|row| row % 10)));
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..2048).map(|row| 10_000 * shard + row)));
    RecordBatch::try_from_iter([("label", labels), ("n", numbers)]).expect("two columns")
}

/// Stores a small version with a plan for a rank of each node.
fn small(catalog: &HttpCatalog) -> PlanDocument {
    let (version, manifest, _) = version_of(catalog, "small", (0..8).map(rows), json!({}));
    let shape = Shape { shard_rows: manifest.shard_rows(), row_bytes: manifest.row_bytes() };
    let options =
        PlanOptions { partitions: Some(NODES as u32 - 1), grain_rows: Some(1), ..PlanOptions::default() };
    let document = PlanDocument::with_defaults(version, &shape, options).expect("it fits");
    catalog.put_plan(&document).expect("put");
    document
}

/// A version of many shards, whose files are as good as nothing.
fn vast(server: &Server) {
    let store = server.directory.path().join("store");
    let rows = rows(0);
    let one = finished(&rows).entry;
    let entry = |number: u64| {
        let id = ShardId(shardfmt::Digest::of(&number.to_le_bytes()));
        for key in [id.object_key(), id.sidecar_key()] {
            let path = store.join(key);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            std::fs::write(path, b"").expect("written");
        }
        ShardEntry { id, ..one.clone() }
    };
    let entries: Vec<ShardEntry> = (0..SHARDS).map(entry).collect();
    let manifest = Manifest::new(rows.schema(), entries, json!({}));
    let note = CommitNote::of(Operation::INGEST);
    server.catalog().commit(&"vast".parse().unwrap(), None, &manifest, &note).expect("committed");
}

#[test]
fn a_page_of_a_thousand_nodes_and_100_000_shards_asks_for_what_it_shows() {
    let mut others = Others::default();
    let store = |directory: &TempDir| directory.path().join("store").display().to_string();
    let server = Server::among(Limits::default(), store, |directory| others.start(directory.path()));
    let first = format!("http://{}", server.address);
    server.runtime.block_on(others.register(server.metastore.as_ref(), &first));
    let plan = small(&server.catalog());
    vast(&server);

    let run: RunId = "large".parse().expect("a name");
    let virtual_ranks = NODES as u32 - 1;
    let create = json!(CreateRun { id: run.clone(), plan: plan.id(), virtual_ranks });
    assert_eq!(server.send("runs", &create).0, 201);
    let attach = json!({ "world": NODES - 1, "epoch": 0 });
    assert_eq!(server.send("runs/large/ranks/0", &attach).0, 200);
    let began = Instant::now();
    server.runtime.block_on(others.report(&run, 1));
    // Reports of one second count as one.
    server.runtime.block_on(async {
        tokio::time::sleep_until(began + Duration::from_secs(2)).await;
        others.report(&run, 3).await;
    });

    let until = Instant::now() + Duration::from_secs(120);
    let overview = loop {
        let (status, reply) = server.get("overview", &[]);
        let text = bytes(reply);
        let view: Value = serde_json::from_slice(&text).expect("JSON");
        if status == 200 && view["nodes"]["live"] == NODES && view["nodes"]["unanswered"] == 0 {
            break (view, text.len());
        }
        assert!(Instant::now() < until, "{status} {}", view["nodes"]);
        std::thread::yield_now();
    };
    let (view, length) = overview;
    assert_eq!(
        (&view["runs"][0]["ranks"], &view["runs"][0]["waits"]["rank"]),
        (&json!(NODES - 1), &json!(STRAGGLER))
    );
    assert_eq!(view["findings"][0]["kind"], "straggler");
    assert!(length < 64 << 10, "the overview has {length} bytes");
    let (_, reply) = server.get("cluster/nodes?order=cache&limit=50", &[]);
    let length = bytes(reply).len();
    assert!(length < 40 << 10, "50 rows have {length} bytes");

    let browser = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/console/scale.mjs");
    match Command::new("node").arg(browser).arg(&first).output() {
        Ok(output) => {
            let printed = String::from_utf8_lossy(&output.stdout);
            println!("{printed}");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{printed}\n{errors}");
        }
        Err(error) => println!("skipped: no Node.js ({error}), so no browser looks at the pages"),
    }
    others.stop.cancel();
}
