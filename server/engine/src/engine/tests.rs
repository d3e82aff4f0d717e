//! Stories of a few engines in one process: real caches on disk, a store in memory, peers that call each other directly.

mod balancer;
mod connections;
mod forgotten;
mod removal;
mod short;
mod steering;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use arrow::array::{BinaryArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use shardd_api::exchange::ExchangeSettings;
use shardd_api::health::Ailment;
use shardd_api::local_transport::Transport;
use shardd_api::loop_time::LoopTime;
use shardd_api::protocol::{LocateRequest, Located};
use shardd_plan::{Epoch, GrainNo, PlanDocument, PlanOptions, Shape, SlotTable, VirtualRank};
use shardd_store::metastore::MemoryMetastore;
use shardfmt::{ByteSize, Grain, Manifest, RowDigest, ShardWriter, SparseGrain};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::cache::CacheConfig;
use crate::peers::{Pace, Purpose};

const VIRTUAL_RANKS: u32 = 4;

/// Direct calls between engines; those that are cut off do not answer.
#[derive(Default)]
struct Network {
    engines: Mutex<BTreeMap<NodeId, Arc<Engine>>>,
    cut: Mutex<BTreeSet<NodeId>>,
    lies: Mutex<BTreeSet<NodeId>>,
    /// Nodes that take what the exchange brings and never answer.
    stuck: Mutex<BTreeSet<NodeId>>,
}

struct Link {
    me: NodeId,
    network: Arc<Network>,
}

impl Link {
    fn peer(&self, to: &NodeId) -> Result<Arc<Engine>, PeerError> {
        let cut = self.network.cut.lock().expect("no panic while held");
        let reachable = !cut.contains(to) && !cut.contains(&self.me);
        let engine = self.network.engines.lock().expect("no panic while held").get(to).cloned();
        engine
            .filter(|_| reachable)
            .ok_or_else(|| PeerError::Unreachable { peer: to.clone(), reason: "cut off".into() })
    }
}

#[async_trait]
impl Peers for Link {
    async fn fetch(&self, to: &NodeId, request: FetchRequest) -> Result<Vec<Option<Bytes>>, PeerError> {
        let mut answer = PeerService::fetch(&self.peer(to)?, &self.me, request).await;
        if self.network.lies.lock().expect("no panic while held").contains(to) {
            for bytes in answer.iter_mut().flatten().filter(|bytes| !bytes.is_empty()) {
                let mut wrong = bytes.to_vec();
                *wrong.last_mut().expect("not empty") ^= 1;
                *bytes = wrong.into();
            }
        }
        Ok(answer)
    }

    async fn send(
        &self,
        to: &NodeId,
        header: SendHeader,
        mut grains: mpsc::Receiver<(GrainKey, Bytes)>,
        pace: Option<&dyn Pace>,
    ) -> Result<Ack, PeerError> {
        let is_exchange = matches!(header.purpose, Purpose::Exchange { .. });
        if is_exchange && self.network.stuck.lock().expect("no panic while held").contains(to) {
            return std::future::pending().await;
        }
        let (give, take) = mpsc::channel(1);
        let peer = self.peer(to)?;
        let paced = async move {
            while let Some((key, bytes)) = grains.recv().await {
                if let Some(pace) = pace {
                    pace.pass(bytes.len() as u64).await;
                }
                if give.send((key, bytes)).await.is_err() {
                    return;
                }
            }
        };
        tokio::join!(peer.receive(&self.me, header, take), paced).0
    }
}

struct World {
    network: Arc<Network>,
    origin_of: BTreeMap<NodeId, Arc<Origin>>,
    engines: Vec<Arc<Engine>>,
    meta: Arc<MemoryMetastore>,
    plan: Plan,
    manifest: Manifest,
    rows: Vec<RowDigest>,
    stop: CancellationToken,
    store: TempDir,
    caches: Vec<TempDir>,
    cache_bytes: u64,
}

/// The parts of a world.
#[derive(Clone, Copy)]
struct Making<'a> {
    nodes: usize,
    q: &'a str,
    /// Bytes of a row, more or less.
    row_bytes: usize,
    /// Rows of a shard, more or less.
    shard_rows: i64,
    grain_rows: u32,
    chunks: u32,
    /// The caches' size, as a part of what the nodes need.
    cache: Option<f64>,
}

impl Default for Making<'_> {
    fn default() -> Self {
        Self { nodes: 1, q: "0.1", row_bytes: 200, shard_rows: 150, grain_rows: 4, chunks: 4, cache: None }
    }
}

fn node(number: usize) -> NodeId {
    format!("n{number}").parse().expect("a good name")
}

impl World {
    async fn new(nodes: usize, q: &str) -> Self {
        Self::of(Making { nodes, q, ..Making::default() }).await
    }

    /// The same, with rows of about `row_bytes` bytes.
    async fn of_rows(nodes: usize, q: &str, row_bytes: usize) -> Self {
        Self::of(Making { nodes, q, row_bytes, ..Making::default() }).await
    }

    async fn of(making: Making<'_>) -> Self {
        let Making { nodes, q, row_bytes, shard_rows, grain_rows, chunks, cache } = making;
        let store = TempDir::new().expect("a temporary directory");
        let origin = Origin::open_dir(store.path()).expect("a store");
        let schema = Arc::new(Schema::new(vec![
            Field::new("label", DataType::Int64, false),
            Field::new("blob", DataType::Binary, false),
        ]));
        let mut shards = Vec::new();
        let mut rows = Vec::new();
        for shard in 0..6i64 {
            let count = shard_rows + shard; // short grains at some ends
            let labels = Int64Array::from_iter_values((0..count).map(|row| shard * 10_000 + row));
            let blobs: Vec<Vec<u8>> =
                (0..count).map(|row| vec![(row % 251) as u8; row_bytes + (row % 7) as usize]).collect();
            let blobs = BinaryArray::from_iter_values(blobs.iter());
            let batch =
                RecordBatch::try_new(schema.clone(), vec![Arc::new(labels), Arc::new(blobs)]).expect("fits");
            let mut writer = ShardWriter::new(schema.clone()).expect("a good schema");
            writer.push(&batch).expect("fits the schema");
            let finished = writer.finish().expect("a shard");
            origin.put_shard(&finished).await.expect("stored");
            rows.extend(finished.sidecar.rows.iter().copied());
            shards.push(finished.entry);
        }
        let manifest = Manifest::new(schema, shards, serde_json::json!({}));
        let version = origin.put_manifest(&manifest).await.expect("stored");
        let shape = Shape {
            shard_rows: manifest.shards.iter().map(|shard| shard.rows).collect(),
            row_bytes: manifest.row_bytes(),
        };
        let options = PlanOptions {
            q: q.parse().expect("a share"),
            partitions: Some(12),
            grain_rows: Some(grain_rows),
            chunks: Some(chunks),
            ..PlanOptions::default()
        };
        let document = PlanDocument::with_defaults(version, &shape, options).expect("a plan");
        origin.put_plan(&document).await.expect("stored");
        let plan = Plan::new(document, &shape.shard_rows).expect("a plan");
        let partitions = u64::from(plan.document().partitions) / nodes as u64;
        let needed =
            capacity::Needs::of(&plan, manifest.shards.iter().map(run::rows_of)).partition_bytes * partitions;
        let cache_bytes = cache.map_or(1 << 30, |part| (needed as f64 * part) as u64);
        let mut world = Self {
            network: Arc::default(),
            origin_of: BTreeMap::new(),
            engines: Vec::new(),
            meta: Arc::new(MemoryMetastore::new()),
            plan,
            manifest,
            rows,
            stop: CancellationToken::new(),
            store,
            caches: Vec::new(),
            cache_bytes,
        };
        for number in 1..=nodes {
            world.caches.push(TempDir::new().expect("a temporary directory"));
            world.start(number).await;
        }
        world
    }

    async fn start(&mut self, number: usize) {
        let id = node(number);
        let origin = Arc::new(Origin::open_dir(self.store.path()).expect("a store"));
        let limit = ByteSize(self.cache_bytes);
        let cache = Cache::open(self.caches[number - 1].path(), CacheConfig { limit }).expect("a cache");
        let link = Link { me: id.clone(), network: Arc::clone(&self.network) };
        let meta: Arc<dyn Metastore> = Arc::clone(&self.meta) as _;
        let engine = Engine::new(id.clone(), Arc::clone(&origin), Arc::new(cache), meta, Arc::new(link));
        engine.lend(Passes::new([7; 32]));
        let record = NodeRecord {
            id: id.clone(),
            http: format!("http://127.0.0.1:{number}"),
            quic: ([127, 0, 0, 1], number as u16).into(),
            cache_bytes: self.cache_bytes,
            started_at: 0,
            socket: None,
            metastore: None,
        };
        let value = serde_json::to_vec(&record).expect("plain data");
        self.meta.put(&NodeRecord::key(&id), value, Expected::Any, None).await.expect("stored");
        self.network.engines.lock().expect("no panic while held").insert(id.clone(), Arc::clone(&engine));
        self.origin_of.insert(id, origin);
        tokio::spawn(Arc::clone(&engine).run_until(self.stop.clone()));
        self.engines.push(engine);
    }

    fn engine(&self, id: &NodeId) -> Arc<Engine> {
        Arc::clone(self.network.engines.lock().expect("no panic while held").get(id).expect("started"))
    }

    /// Waits until every engine knows `count` nodes.
    async fn know_each_other(&self, count: usize) {
        for engine in &self.engines {
            let mut nodes = engine.watched.nodes.subscribe();
            nodes.wait_for(|nodes| nodes.len() == count).await.expect("the engine lives");
        }
    }

    async fn attach(&self, run: &RunId, world: u32, epoch: u32) {
        let create = CreateRun { id: run.clone(), plan: self.plan.id(), virtual_ranks: VIRTUAL_RANKS };
        self.engines[0].create_run(create).await.expect("created");
        let ranks = (0..world).map(|rank| {
            let engine = Arc::clone(&self.engines[rank as usize * self.engines.len() / world as usize]);
            async move { engine.attach(run, rank, Attach { world, epoch }).await.expect("attached") }
        });
        futures::future::join_all(ranks).await;
    }

    /// Reads an epoch as `world` ranks in steps of 40, checking every row; calls `at` after each step.
    async fn read_epoch(&self, run: &RunId, world: u32, epoch: u32, mut at: impl AsyncFnMut(&Self, u64)) {
        let table = SlotTable::at(&self.plan, Epoch(epoch));
        let samples = self.plan.sample_count();
        let mut seen = BTreeSet::new();
        let mut position = 0;
        while position < samples {
            let end = (position + 40).min(samples);
            for rank in 0..world {
                for virtual_rank in Plan::virtual_ranks_of(rank, world, VIRTUAL_RANKS) {
                    let partitions = self.plan.partitions_of(VirtualRank(virtual_rank), VIRTUAL_RANKS);
                    for read in self.plan.step_reads(&table, position..end, partitions) {
                        let sample = self.plan.sample(read.grain, read.row);
                        let expected = self.rows[sample.0 as usize];
                        let ask = request((rank, world), (epoch, position), epoch, Some(read.grain));
                        let ask = LocateRequest { rows: vec![vec![read.row]], ..ask };
                        let mut bytes = self.locate(run, read.partition.0, ask.clone()).await;
                        let digest = |bytes: &[u8]| self.digest(read.grain, read.row, bytes);
                        if digest(&bytes) != Some(expected) {
                            // As a loader that was given wrong bytes asks again.
                            let doubting =
                                LocateRequest { transport: Transport::Stream, doubted: true, ..ask };
                            bytes = self.locate(run, read.partition.0, doubting).await;
                        }
                        assert_eq!(digest(&bytes), Some(expected), "sample {sample} in epoch {epoch}");
                        assert!(seen.insert(sample), "sample {sample} twice in epoch {epoch}");
                    }
                }
            }
            position = end;
            at(self, position).await;
        }
        assert_eq!(seen.len() as u64, samples, "epoch {epoch}");
        for rank in 0..world {
            for engine in self.engines.iter().filter(|engine| !self.is_cut(&engine.node)) {
                let report = request((rank, world), (epoch + 1, 0), epoch + 1, None);
                engine.locate(run, report).await.expect("a report");
            }
        }
    }

    /// The digest of a row in the given part of its grain: all of it, or the row with its proof.
    fn digest(&self, grain: GrainNo, row: u32, bytes: &[u8]) -> Option<RowDigest> {
        if let Ok(grain) = Grain::parse(bytes) {
            return Some(RowDigest::of(grain.row(row)));
        }
        let place = self.plan.locate_grain(grain);
        let shard = &self.manifest.shards[place.shard as usize];
        let key = GrainKey { shard: shard.id, rows: self.plan.document().grain_rows, index: place.index };
        let sparse = SparseGrain::parse(bytes).ok()?;
        sparse.verify(key, shard.rows, shard.root).ok()?;
        sparse.row(row).map(RowDigest::of)
    }

    /// Waits until what the exchange after `epoch` moves into the nodes of these numbers has come.
    async fn has_come(&self, epoch: u32, numbers: &[usize]) {
        let is_through = |number: &usize| {
            let exchange = self.engines[number - 1].counters.view().exchange;
            let counts = exchange.iter().find(|count| count.epoch == epoch).map(|count| count.counts);
            counts.is_some_and(|counts| counts.received_grains >= counts.expected_grains)
        };
        let all = async {
            while !numbers.iter().all(is_through) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("the exchange ends");
    }

    fn is_cut(&self, id: &NodeId) -> bool {
        self.network.cut.lock().expect("no panic while held").contains(id)
    }

    /// The grains that the host of a partition gives, or the first node where it is cut off.
    async fn locate(&self, run: &RunId, partition: u32, ask: LocateRequest) -> Vec<u8> {
        let view = self.engines[0].view(run).await.expect("known");
        let host = view.placement.expect("placed").host(partition).clone();
        let asked = if self.is_cut(&host) { self.engines[0].node.clone() } else { host };
        let engine = self.engine(&asked);
        loop {
            let (reply, inline) = engine.locate(run, ask.clone()).await.expect("any node gives any grain");
            match &reply.grains[0] {
                Located::File { segment, offset, len } => {
                    let mut bytes = vec![0; *len as usize];
                    // A segment may be dropped before it is opened: then a loader asks again.
                    let Ok(file) = engine.open_segment(segment) else { continue };
                    file.read_exact_at(&mut bytes, *offset).expect("a segment is not truncated");
                    return bytes;
                }
                Located::Inline { .. } | Located::Rows { .. } => return inline[0].to_vec(),
            }
        }
    }

    fn origin_bytes(&self) -> u64 {
        self.origin_of.values().map(|origin| origin.bytes_read()).sum()
    }

    async fn end(self) {
        self.stop.cancel();
        for engine in &self.engines {
            engine.lifecycle.tasks.close();
            engine.lifecycle.tasks.wait().await;
        }
    }
}

fn request(rank: (u32, u32), at: (u32, u64), for_epoch: u32, grain: Option<GrainNo>) -> LocateRequest {
    LocateRequest {
        loop_time: None,
        rank: rank.0,
        world: rank.1,
        epoch: at.0,
        position: at.1,
        for_epoch,
        grains: grain.into_iter().map(|grain| grain.0).collect(),
        transport: Transport::Files,
        doubted: false,
        rows: Vec::new(),
    }
}

fn run(name: &str) -> RunId {
    name.parse().expect("a good name")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_epoch_is_read_exactly_once_and_the_store_once() {
    for (nodes, world, q, start) in [(1, 1, "0.3", 0), (3, 3, "0.3", 0), (3, 2, "1", 0), (4, 4, "0.1", 2)] {
        let cluster = World::new(nodes, q).await;
        cluster.know_each_other(nodes).await;
        let name = run("r");
        cluster.attach(&name, world, start).await;
        let all: Vec<usize> = (1..=nodes).collect();
        for epoch in start..start + 4 {
            let samples = cluster.plan.sample_count();
            let at_the_end = async |cluster: &World, position| {
                if position == samples && nodes > 1 {
                    cluster.has_come(epoch, &all).await;
                }
            };
            cluster.read_epoch(&name, world, epoch, at_the_end).await;
        }
        let share = cluster.origin_bytes() as f64 / cluster.manifest.bytes() as f64;
        println!("{nodes} nodes, {world} ranks, Q = {q}, from epoch {start}: {share:.3} x the data set read");
        assert!((1.0..=1.05).contains(&share), "{share}");
        let views: Vec<_> = cluster.engines.iter().map(|engine| engine.counters.view()).collect();
        for count in views.iter().flat_map(|view| &view.exchange).filter(|count| count.epoch < start + 3) {
            assert_eq!(count.counts.unsent_grains, 0, "{count:?}");
        }
        // What was sent by epoch was sent to someone; the last exchange may be under way.
        let sent: u64 =
            views.iter().flat_map(|view| &view.exchange).map(|count| count.counts.sent_bytes).sum();
        let receivers = |engine: &Arc<Engine>| (engine.node.clone(), engine.receivers(&name));
        let pairs: Vec<_> = cluster.engines.iter().map(receivers).collect();
        let to: u64 = pairs.iter().flat_map(|(_, to)| to).map(|to| to.exchange_bytes).sum();
        assert!(to >= sent && (to > 0) == (nodes > 1), "{to} bytes to nodes, and {sent} by epoch");
        assert!(pairs.iter().all(|(from, to)| to.iter().all(|to| to.node != *from)), "{pairs:?}");
        cluster.end().await;
    }
}

/// A loader whose question is late asks another node besides: that is no reason to hold its grains twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_grain_that_its_host_gives_to_another_node_for_a_loader_stays_with_its_host_alone() {
    let cluster = World::new(2, "0.3").await;
    cluster.know_each_other(2).await;
    let name = run("r");
    cluster.attach(&name, 2, 0).await;
    cluster.read_epoch(&name, 2, 0, async |_, _| {}).await;
    cluster.has_come(0, &[1, 2]).await;
    let [first, second] = &cluster.engines[..] else { panic!("two nodes") };
    let state = first.run(&name).await.expect("attached");
    let is_elsewhere =
        |grain: &GrainNo| state.is_hosted_by(&second.node, *grain, 1) && !first.is_resident(&state, *grain);
    let grains: Vec<GrainNo> = (0..cluster.plan.grain_count()).map(GrainNo).filter(is_elsewhere).collect();
    let [asked, read, ..] = grains[..] else { panic!("about half of the grains: {grains:?}") };
    let (reply, given) =
        first.locate(&name, request((0, 2), (1, 0), 1, Some(asked))).await.expect("any node gives any grain");
    assert!(matches!(reply.grains[0], Located::Inline { .. }));
    assert_eq!(state.verify(asked, &given[0]), Ok(()));
    assert!(!first.is_resident(&state, asked), "its host has it");
    // Who reads along over HTTP asks here for every row of it.
    first.bytes_of(&state, 1, &[read]).await.expect("any node gives any grain");
    assert!(first.is_resident(&state, read));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_cut_off_costs_time_only() {
    let cluster = World::new(3, "0.3").await;
    cluster.know_each_other(3).await;
    let name = run("r");
    cluster.attach(&name, 3, 0).await;
    cluster.read_epoch(&name, 3, 0, async |_, _| {}).await;
    let mut lost = false;
    cluster
        .read_epoch(&name, 3, 1, async |cluster: &World, position| {
            if position > 300 && !lost {
                lost = true;
                cluster.network.cut.lock().expect("no panic while held").insert(node(2));
                cluster
                    .meta
                    .delete(&NodeRecord::key(&node(2)), Expected::Any)
                    .await
                    .expect("its lease lapses");
            }
        })
        .await;
    cluster.read_epoch(&name, 3, 2, async |_, _| {}).await;
    let view = cluster.engines[0].view(&name).await.expect("known");
    assert_eq!(
        view.placement.expect("placed").hosted_by(&node(2)).count(),
        0,
        "its partitions are not re-hosted"
    );
    let share = cluster.origin_bytes() as f64 / cluster.manifest.bytes() as f64;
    println!("one node of three lost: {share:.3} x the data set read");
    assert!(share < 1.6, "{share}");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_disk_and_hears_of_no_other_reads_its_own_share() {
    let mut cluster = World::new(2, "0").await;
    cluster.know_each_other(2).await;
    let name = run("r");
    cluster.attach(&name, 2, 0).await;
    cluster.read_epoch(&name, 2, 0, async |_, _| {}).await;

    cluster.caches[1] = TempDir::new().expect("a temporary directory");
    cluster.start(2).await;
    cluster.know_each_other(2).await;
    cluster.network.cut.lock().expect("no panic while held").insert(node(1));
    let second = cluster.engine(&node(2));
    let state = second.run(&name).await.expect("registered");
    second.know_placement(&state, 1).await;
    second.ensure(&state, 1).await.expect("the store is there");
    let share = cluster.origin_of[&node(2)].bytes_read() as f64 / cluster.manifest.bytes() as f64;
    assert!((0.4..0.6).contains(&share), "{share} of the data for a half of the partitions");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_takes_nothing_holds_up_nobody_else() {
    let cluster = World::new(3, "1").await;
    cluster.know_each_other(3).await;
    cluster.network.stuck.lock().expect("no panic while held").insert(node(3));
    let name = run("r");
    cluster.attach(&name, 3, 0).await;
    let samples = cluster.plan.sample_count();
    for epoch in 0..4 {
        let at_the_end = async |cluster: &World, position| {
            if position == samples {
                cluster.has_come(epoch, &[1, 2]).await;
            }
        };
        cluster.read_epoch(&name, 3, epoch, at_the_end).await;
    }
    // Grains that left for it were dropped in the end: of the first epochs nothing is left.
    let forgotten = async {
        while cluster.engines[0].cache.classes().keys().any(|class| class.departs < 2) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), forgotten).await.expect("they are dropped");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_byte_on_disk_is_found_and_fetched_again() {
    let cluster = World::new(2, "0.3").await;
    cluster.know_each_other(2).await;
    let name = run("r");
    cluster.attach(&name, 2, 0).await;
    cluster.read_epoch(&name, 2, 0, async |_, _| {}).await;
    let mut flipped = 0;
    for (_, _, at) in
        crate::cache::scan(cluster.caches[0].path()).expect("a cache directory").into_iter().step_by(5)
    {
        // Grains that leave after epoch 0 are being dropped meanwhile.
        let Ok(file) = File::options().write(true).read(true).open(&at.segment) else { continue };
        let mut byte = [0];
        let last = at.offset + u64::from(at.len) - 1;
        file.read_exact_at(&mut byte, last).expect("readable");
        file.write_all_at(&[byte[0] ^ 0x40], last).expect("writable");
        flipped += 1;
    }
    assert!(flipped > 5);
    cluster.read_epoch(&name, 2, 1, async |_, _| {}).await;
    let found: u64 = cluster
        .engines
        .iter()
        .map(|engine| engine.counters.view())
        .map(|view| view.corrupt_on_disk + view.corrupt_from_peers)
        .sum();
    assert!(found > 0, "{flipped} flipped bytes, none noticed");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lent_grain_is_read_by_its_reader_alone_and_verified_here_when_it_doubts() {
    let cluster = World::new(1, "0").await;
    cluster.know_each_other(1).await;
    let name = run("r");
    cluster.attach(&name, 1, 0).await;
    cluster.read_epoch(&name, 1, 0, async |_, _| {}).await;
    let (key, _, at) = crate::cache::scan(cluster.caches[0].path()).expect("a cache directory").remove(0);
    let engine = &cluster.engines[0];
    let state = engine.run(&name).await.expect("attached");
    let grain = state.grain(&key).expect("of the run");
    let file = File::options().write(true).read(true).open(&at.segment).expect("it is not being dropped");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at.offset + 9).expect("readable");
    file.write_all_at(&[byte[0] ^ 0x40], at.offset + 9).expect("writable");

    let ask = request((0, 1), (1, 0), 1, Some(grain));
    let (reply, _) = engine.locate(&name, ask.clone()).await.expect("located");
    assert!(matches!(&reply.grains[0], Located::File { offset, .. } if *offset == at.offset));
    assert_eq!(engine.counters.view().corrupt_on_disk, 0, "the node has not read what it lends");

    let doubting = LocateRequest { transport: Transport::Stream, doubted: true, ..ask };
    let (_, given) = engine.locate(&name, doubting).await.expect("located");
    assert_eq!(state.verify(grain, &given[0]), Ok(()));
    assert_eq!(engine.counters.view().corrupt_on_disk, 1);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn room_is_made_of_what_others_host_and_of_nothing_else() {
    let cluster = World::new(2, "0.3").await;
    cluster.know_each_other(2).await;
    let name = run("r");
    cluster.attach(&name, 2, 0).await;
    cluster.read_epoch(&name, 2, 0, async |_, _| {}).await;
    let engine = &cluster.engines[0];
    let state = engine.run(&name).await.expect("attached");
    // Both ranks are in epoch 1 by now.
    engine.ensure(&state, 1).await.expect("the other has the missing grains");
    let foreign: Vec<GrainNo> = state.hosted_grains(&node(2), 1).into_iter().take(5).collect();
    let is_here = |grain: &GrainNo| engine.is_resident(&state, *grain);
    // Grains that left after epoch 0 may just be being dropped, and one of these with it.
    while !foreign.iter().all(is_here) {
        engine.obtain(&state, 1, foreign.iter().copied()).await.expect("the other has them");
    }

    engine.make_room(&state, u64::MAX);
    let own = state.hosted_grains(&node(1), 1);
    assert!(own.iter().all(is_here), "what the node hosts was dropped");
    let next = state.hosted_grains(&node(1), 2);
    assert!(foreign.iter().all(|grain| !is_here(grain) || next.contains(grain)), "what others host was kept");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_sends_wrong_bytes_is_not_believed() {
    let cluster = World::new(3, "1").await;
    cluster.know_each_other(3).await;
    cluster.network.lies.lock().expect("no panic while held").insert(node(3));
    let name = run("r");
    cluster.attach(&name, 3, 0).await;
    for epoch in 0..2 {
        cluster.read_epoch(&name, 3, epoch, async |_, _| {}).await;
    }
    cluster.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_disk_is_named_to_all_until_it_is_fast_again_or_its_node_has_gone() {
    let cluster = World::new(3, "1").await;
    cluster.know_each_other(3).await;
    let reads = |millis: [u64; 3]| {
        for (engine, millis) in cluster.engines.iter().zip(millis) {
            (0..9).for_each(|_| engine.neighbours.health.read_took(Duration::from_millis(millis)));
        }
    };
    let named = || {
        let states = cluster.engines[0].node_states();
        let named = states.iter().flat_map(|state| &state.health_issues).map(|t| (t.node.clone(), t.what));
        named.collect::<Vec<_>>()
    };
    let look = || tokio::time::sleep(Duration::from_millis(10_001));
    for _ in 0..3 {
        reads([1, 2, 90]);
        look().await;
    }
    assert_eq!(named(), [(node(3), Ailment::SlowReads)]);
    let said = cluster.engines[0].node_states()[2].health_issues[0].to_string();
    assert!(said.contains("90.0 ms to read a grain, 90 times the median of the others (1.0 ms)"), "{said}");
    assert_eq!(cluster.engines[2].status().health_issues.len(), 1);
    assert_eq!(cluster.engines[0].status().measured.disk.read_micros, Some(1000));
    for _ in 0..30 {
        reads([1, 2, 2]);
        look().await;
    }
    assert_eq!(named(), []);
    assert!(cluster.meta.list("health/").await.expect("listed").entries.is_empty());
    for _ in 0..30 {
        reads([1, 2, 90]);
        look().await;
    }
    assert_eq!(named(), [(node(3), Ailment::SlowReads)]);
    let meta = Arc::clone(&cluster.meta);
    cluster.end().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    for prefix in ["health/", "disks/"] {
        assert!(meta.list(prefix).await.expect("listed").entries.is_empty(), "they go with their node");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grains_on_the_edge_of_record_batches_are_read_from_the_store_too() {
    let cluster = World::of_rows(1, "0.1", 20_000).await;
    let name = run("r");
    cluster.attach(&name, 1, 0).await;
    let engine = &cluster.engines[0];
    let state = engine.run(&name).await.expect("attached");
    let all = (0..cluster.plan.grain_count()).map(GrainNo);
    for (shard, entry) in (0..).zip(&cluster.manifest.shards) {
        let grains: Vec<GrainNo> = all.clone().filter(|grain| state.shard_of(*grain) == shard).collect();
        let read = engine.read_ranges(&state, shard, &grains).await.expect("the store is there");
        assert_eq!(read.iter().map(|(grain, _)| *grain).collect::<Vec<_>>(), grains);
        for (grain, bytes) in read {
            let verified =
                Grain::parse(&bytes).map(|parsed| parsed.verify(state.key(grain), entry.rows, entry.root));
            assert_eq!(verified, Ok(Ok(())), "grain {grain} of shard {shard}");
        }
    }
    cluster.end().await;
}

#[tokio::test]
async fn a_rank_is_of_the_node_that_hears_the_time_of_its_loop() {
    let cluster = World::new(1, "0.1").await;
    cluster.know_each_other(1).await;
    cluster.attach(&run("r"), 1, 0).await;
    let engine = &cluster.engines[0];
    let mut launches = engine.watched.launches.subscribe();
    launches.wait_for(|launches| launches.contains_key(&run("r"))).await.expect("the engine lives");
    let own_ranks = async |loop_time: Option<LoopTime>, grain: Option<GrainNo>| {
        let report = LocateRequest { loop_time, ..request((0, 1), (0, 0), 0, grain) };
        engine.locate(&run("r"), report).await.expect("a rank of the run");
        engine.status().own_ranks()
    };
    assert_eq!(own_ranks(None, None).await, 0, "it has reported no time");
    assert_eq!(own_ranks(Some(LoopTime::default()), None).await, 1);
    assert_eq!(own_ranks(None, Some(GrainNo(0))).await, 1, "a question for grains has no time");
    assert_eq!(own_ranks(None, None).await, 1, "it may know this node by two addresses");
    cluster.end().await;
}

#[tokio::test]
async fn runs_and_ranks_that_do_not_fit_are_refused_by_name() {
    let cluster = World::new(1, "0.1").await;
    cluster.know_each_other(1).await;
    let engine = &cluster.engines[0];
    let says = |error: EngineError| error.to_string();
    let view = engine.view(&run("ghost")).await;
    assert!(says(view.expect_err("no such run")).contains("run ghost does not exist"));
    cluster.attach(&run("r"), 1, 0).await;
    let other = CreateRun { id: run("r"), plan: cluster.plan.id(), virtual_ranks: 2 };
    assert!(says(engine.create_run(other).await.expect_err("another V")).contains("run r exists"));
    let outside = engine.attach(&run("r"), 4, Attach { world: 4, epoch: 0 }).await;
    assert!(says(outside.expect_err("rank 4 of 4")).contains("rank 4 is outside a world of 4"));
    let too_many = engine.attach(&run("r"), 0, Attach { world: 5, epoch: 0 }).await;
    assert!(too_many.is_err(), "W > V");
    let beyond = request((0, 1), (0, 0), 0, Some(GrainNo(1 << 40)));
    assert!(
        says(engine.locate(&run("r"), beyond).await.expect_err("no such grain")).contains("outside the plan")
    );
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grains_that_are_not_what_they_should_be_are_refused_and_change_nothing() {
    let cluster = World::new(2, "1").await;
    cluster.know_each_other(2).await;
    let name = run("r");
    cluster.attach(&name, 2, 0).await;
    let (one, two) = (&cluster.engines[0], &cluster.engines[1]);
    let state = one.run(&name).await.expect("attached");
    // Grains that the plan moves from one node to the other.
    let placement = state.placement().expect("placed");
    let (now, next) = (state.epochs.view(0), state.epochs.view(1));
    let comes = |grain: &GrainNo, from: &NodeId, to: &NodeId| {
        placement.host(now.partition_of(*grain)) == from && placement.host(next.partition_of(*grain)) == to
    };
    let all = || (0..cluster.plan.grain_count()).map(GrainNo);
    let mut moving = all().filter(|grain| comes(grain, &one.node, &two.node));
    let (good, other) = (moving.next().expect("half of them"), moving.next().expect("half of them"));
    let staying = all().find(|grain| comes(grain, &one.node, &one.node)).expect("half of them");
    let mut loose = one.obtain(&state, 0, [good, staying]).await.expect("the store is there");
    let mut bytes = async |grain| match loose.remove(&grain) {
        Some(bytes) => bytes,
        None => one.read_cached(&state, [grain]).await.remove(&grain).expect("just brought here"),
    };
    let (bytes, stays) = (bytes(good).await, bytes(staying).await);
    let key = state.key(good);

    let flipped = |at: usize| {
        let mut wrong = bytes.to_vec();
        wrong[at] ^= 1;
        (key, Bytes::from(wrong))
    };
    let bad = [
        ("too long", (key, Bytes::from([&bytes[..], &[0]].concat()))),
        ("too short", (key, bytes.slice(..bytes.len() - 1))),
        ("empty", (key, Bytes::new())),
        ("a wrong head", flipped(0)),
        ("a wrong row", flipped(bytes.len() / 2)),
        ("a wrong end", flipped(bytes.len() - 1)),
        ("another's bytes", (state.key(other), bytes.clone())),
        ("a grain that is hosted elsewhere", (state.key(staying), stays)),
        ("grains of another size", (GrainKey { rows: key.rows * 2, ..key }, bytes.clone())),
        ("beyond the shard", (GrainKey { index: u32::MAX, ..key }, bytes.clone())),
        ("another version's", (GrainKey { shard: shardfmt::ShardId::of(b"?"), ..key }, bytes.clone())),
    ];
    let header = SendHeader {
        run: name.clone(),
        plan: cluster.plan.id(),
        version: cluster.plan.document().version,
        purpose: Purpose::Exchange { epoch: 0, chunk: 0, generation: 1 },
    };
    let send = async |header: &SendHeader, grains: Vec<(GrainKey, Bytes)>| {
        let (give, take) = mpsc::channel(grains.len());
        for grain in grains {
            give.send(grain).await.expect("there is room");
        }
        drop(give);
        two.receive(&one.node, header.clone(), take).await
    };
    let held = |key: &GrainKey| two.cache.class_of(key).map(|class| class.departs);
    for (what, grain) in bad {
        let key = grain.0;
        let before = held(&key);
        let ack = send(&header, vec![grain]).await.expect("the stream is good");
        assert_eq!(ack, Ack { stored: 0, refused: 1 }, "{what}");
        assert_eq!(held(&key), before, "{what}");
    }
    assert!(two.counters.view().corrupt_from_peers >= 7);

    let (plan, version) = (PlanId::of(b"?"), shardfmt::VersionId::of(b"?"));
    let strange = [
        (SendHeader { run: run("ghost"), ..header.clone() }, "run ghost does not exist".to_owned()),
        (SendHeader { plan, ..header.clone() }, format!("not by plan {plan}")),
        (SendHeader { version, ..header.clone() }, format!("of version {version}")),
    ];
    for (header, says) in strange {
        let refused = send(&header, vec![(key, bytes.clone())]).await.expect_err("not ours");
        assert!(matches!(refused, PeerError::Refused { .. }), "{refused}");
        assert!(refused.to_string().contains(&says), "{refused}");
    }
    // The same grain, twice: kept once, and both times the answer is true.
    let ack = send(&header, vec![(key, bytes.clone()), (key, bytes.clone())]).await.expect("good");
    assert_eq!(ack, Ack { stored: 2, refused: 0 });
    assert!(held(&key).is_some_and(|departs| departs >= 1));
    cluster.end().await;
}
