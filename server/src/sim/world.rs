//! A cluster over the network in memory: each node with a cache on disk, an engine, a transport and a place among the others.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arrow::array::{BinaryArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use async_trait::async_trait;
use bytes::Bytes;
use shardd_api::node::{NodeId, NodeRecord};
use shardd_engine::cache::{Cache, CacheConfig};
use shardd_engine::engine::{Engine, Passes};
use shardd_engine::peers::{Ack, FetchRequest, Pace, PeerError, PeerService, Peers, SendHeader};
use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
use shardd_store::metastore::{
    BucketMetastore, Entry, Expected, LeaseId, Listing, MemoryMetastore, MetaError, Metastore,
};
use shardd_store::origin::Origin;
use shardfmt::{Digest, GrainKey, Manifest, RowDigest, ShardWriter, VersionId};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::identity::testing::cluster;
use crate::identity::{Identity, Revoked};
use crate::membership::{self, Membership};
use crate::metastore::{MetastoreNode, SledMetastore};
use crate::transport::lossy::Net;
use crate::transport::{Datagrams, RemoteMetastore, Services, Transport};

/// The most nodes that a world has.
pub(super) const MOST_NODES: usize = 5;

/// The data set of all worlds: made once, read by all.
pub(super) struct Data {
    pub(super) store: TempDir,
    pub(super) manifest: Manifest,
    pub(super) rows: Vec<RowDigest>,
    version: VersionId,
}

pub(super) static DATA: LazyLock<Data> = LazyLock::new(Data::make);
static IDENTITIES: LazyLock<Vec<Identity>> = LazyLock::new(|| cluster(&["n0", "n1", "n2", "n3", "n4"]));

impl Data {
    fn make() -> Data {
        let store = TempDir::new().expect("a temporary directory");
        let schema = Arc::new(Schema::new(vec![
            Field::new("label", DataType::Int64, false),
            Field::new("blob", DataType::Binary, false),
        ]));
        let (mut shards, mut rows) = (vec![], vec![]);
        for shard in 0..4i64 {
            // Short grains at some ends.
            let count = 90 + shard;
            let labels = Int64Array::from_iter_values((0..count).map(|row| shard * 1000 + row));
            let blobs: Vec<Vec<u8>> = (0..count).map(|row| vec![(row % 251) as u8; 300]).collect();
            let columns: Vec<arrow::array::ArrayRef> =
                vec![Arc::new(labels), Arc::new(BinaryArray::from_iter_values(blobs.iter()))];
            let batch = RecordBatch::try_new(Arc::clone(&schema), columns).expect("fits");
            let mut writer = ShardWriter::new(Arc::clone(&schema)).expect("a good schema");
            writer.push(&batch).expect("fits the schema");
            let finished = writer.finish().expect("a shard");
            rows.extend(finished.sidecar.rows.iter().copied());
            shards.push(finished);
        }
        let entries = shards.iter().map(|shard| shard.entry.clone()).collect();
        let manifest = Manifest::new(schema, entries, serde_json::json!({}));
        let path = store.path().to_owned();
        let written = manifest.clone();
        // In a runtime of its own: the caller may be in one already.
        let version = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let origin = Origin::open_dir(&path).expect("a store");
                for shard in &shards {
                    origin.put_shard(shard).await.expect("stored");
                }
                origin.put_manifest(&written).await.expect("stored")
            })
        });
        Data { store, manifest, rows, version: version.join().expect("no panic") }
    }
}

/// Where a cluster's metadata is.
pub(super) enum Metadata {
    /// In the memory of no node.
    Memory(Arc<MemoryMetastore>),
    /// In an object of a store, as with `--metastore store`: each node reads and replaces it by itself.
    Store(Arc<Origin>),
    /// In sled on the first node, in this directory. The others reach it through that node's transport.
    First(TempDir),
}

impl Metadata {
    pub(super) fn in_memory() -> Metadata {
        Metadata::Memory(Arc::new(MemoryMetastore::new()))
    }

    pub(super) fn in_store() -> Metadata {
        Metadata::Store(Arc::new(Origin::open("memory://").expect("a store in memory")))
    }

    pub(super) fn on_first() -> Metadata {
        Metadata::First(TempDir::new().expect("a temporary directory"))
    }

    /// As the process of a node opens it.
    fn open(&self, number: usize, transport: &Arc<Transport>, first: SocketAddr) -> Arc<dyn Metastore> {
        match self {
            Metadata::Memory(memory) => Arc::clone(memory) as Arc<dyn Metastore>,
            Metadata::Store(origin) => {
                Arc::new(BucketMetastore::of_cluster(Arc::clone(origin), Digest::of(b"simulated")))
            }
            Metadata::First(directory) if number == 0 => {
                Arc::new(SledMetastore::open(directory.path()).expect("no other process has it open"))
            }
            Metadata::First(_) => {
                let node = IDENTITIES[0].node();
                transport.learn(node, first);
                Arc::new(RemoteMetastore::new(Arc::clone(transport), MetastoreNode::new(node.clone())))
            }
        }
    }

    /// Whether this node serves it to the others.
    fn is_served_by(&self, number: usize) -> bool {
        matches!(self, Metadata::First(_)) && number == 0
    }
}

/// A node's way to the metastore.
#[derive(Default)]
struct Way {
    is_cut: AtomicBool,
    /// Of every three changes, one is made and not answered.
    loses_answers: AtomicBool,
    changes: AtomicU64,
}

/// The metastore as one node reaches it.
struct Gate {
    inner: Arc<dyn Metastore>,
    way: Arc<Way>,
}

fn away(reason: &str) -> MetaError {
    MetaError::Unavailable { store: "sim".into(), reason: reason.into() }
}

impl Gate {
    fn open(&self) -> Result<&dyn Metastore, MetaError> {
        match self.way.is_cut.load(Ordering::Relaxed) {
            true => Err(away("cut off")),
            false => Ok(self.inner.as_ref()),
        }
    }

    /// The answer to a change, if it gets through.
    fn answer<T>(&self, answer: Result<T, MetaError>) -> Result<T, MetaError> {
        let number = self.way.changes.fetch_add(1, Ordering::Relaxed);
        match self.way.loses_answers.load(Ordering::Relaxed) && number.is_multiple_of(3) {
            true => Err(away("the answer is lost")),
            false => answer,
        }
    }
}

#[async_trait]
impl Metastore for Gate {
    async fn get(&self, key: &str) -> Result<Option<Entry>, MetaError> {
        self.open()?.get(key).await
    }

    async fn put(
        &self,
        key: &str,
        value: Vec<u8>,
        expected: Expected,
        lease: Option<LeaseId>,
    ) -> Result<u64, MetaError> {
        self.answer(self.open()?.put(key, value, expected, lease).await)
    }

    async fn delete(&self, key: &str, expected: Expected) -> Result<u64, MetaError> {
        self.answer(self.open()?.delete(key, expected).await)
    }

    async fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        self.open()?.list(prefix).await
    }

    async fn lasting(&self) -> Result<Listing, MetaError> {
        self.open()?.lasting().await
    }

    async fn changed(&self, prefix: &str, since: u64) -> Result<u64, MetaError> {
        let changed = self.open()?.changed(prefix, since).await;
        self.open()?;
        changed
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError> {
        self.answer(self.open()?.grant(ttl).await)
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.answer(self.open()?.renew(lease).await)
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.answer(self.open()?.revoke(lease).await)
    }
}

/// Every third grain that passes has a bit flipped, as long as it lies.
struct Liar<T> {
    truth: T,
    lies: Arc<AtomicBool>,
}

impl<T> Liar<T> {
    fn bend(&self, number: usize, bytes: Bytes) -> Bytes {
        if !self.lies.load(Ordering::Relaxed) || !number.is_multiple_of(3) || bytes.is_empty() {
            return bytes;
        }
        let mut bent = bytes.to_vec();
        let at = number * 7919 % bent.len();
        bent[at] ^= 0x10;
        bent.into()
    }
}

#[async_trait]
impl Peers for Liar<Arc<Transport>> {
    async fn fetch(&self, to: &NodeId, request: FetchRequest) -> Result<Vec<Option<Bytes>>, PeerError> {
        self.truth.fetch(to, request).await
    }

    async fn send(
        &self,
        to: &NodeId,
        header: SendHeader,
        mut grains: mpsc::Receiver<(GrainKey, Bytes)>,
        pace: Option<&dyn Pace>,
    ) -> Result<Ack, PeerError> {
        let (give, take) = mpsc::channel(1);
        let bend = async move {
            let mut number = 0;
            while let Some((key, bytes)) = grains.recv().await {
                if give.send((key, self.bend(number, bytes))).await.is_err() {
                    return;
                }
                number += 1;
            }
        };
        tokio::join!(self.truth.send(to, header, take, pace), bend).0
    }
}

#[async_trait]
impl PeerService for Liar<Arc<Engine>> {
    async fn fetch(&self, from: &NodeId, request: FetchRequest) -> Vec<Option<Bytes>> {
        let answer = PeerService::fetch(&self.truth, from, request).await;
        answer.into_iter().enumerate().map(|(number, bytes)| Some(self.bend(number, bytes?))).collect()
    }

    async fn receive(
        &self,
        from: &NodeId,
        header: SendHeader,
        grains: mpsc::Receiver<(GrainKey, Bytes)>,
    ) -> Result<Ack, PeerError> {
        self.truth.receive(from, header, grains).await
    }
}

/// A node, running or not.
pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) address: SocketAddr,
    pub(super) disk: TempDir,
    pub(super) process: Option<Process>,
    way: Arc<Way>,
    /// How often it was started.
    started: u64,
    /// Whether it sends wrong bytes.
    lies: Arc<AtomicBool>,
}

/// The running parts of a node.
pub(super) struct Process {
    pub(super) engine: Arc<Engine>,
    origin: Arc<Origin>,
    transport: Arc<Transport>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

/// A cluster, and the plan that it trains over.
pub(super) struct World {
    pub(super) net: Net,
    pub(super) nodes: Vec<Node>,
    pub(super) plan: Plan,
    meta: Metadata,
    /// Read from the store by processes that have ended.
    read_before: u64,
}

impl World {
    pub(super) async fn new(net: Net, meta: Metadata, nodes: usize, q: &str) -> World {
        let shape = Shape {
            shard_rows: DATA.manifest.shards.iter().map(|shard| shard.rows).collect(),
            row_bytes: DATA.manifest.row_bytes(),
        };
        let options = PlanOptions {
            q: q.parse().expect("a share"),
            partitions: Some(12),
            grain_rows: Some(4),
            chunks: Some(4),
            ..PlanOptions::default()
        };
        let document = PlanDocument::with_defaults(DATA.version, &shape, options).expect("a plan");
        let origin = Origin::open_dir(DATA.store.path()).expect("a store");
        origin.put_plan(&document).await.expect("stored");
        let plan = Plan::new(document, &shape.shard_rows).expect("a plan");
        let node = |number: usize| Node {
            id: IDENTITIES[number].node().clone(),
            address: ([10, 0, 0, number as u8 + 1], 7701).into(),
            disk: TempDir::new().expect("a temporary directory"),
            process: None,
            way: Arc::default(),
            started: 0,
            lies: Arc::default(),
        };
        let nodes = (0..nodes).map(node).collect();
        let mut world = World { net, nodes, plan, meta, read_before: 0 };
        for number in 0..world.nodes.len() {
            world.start(number);
        }
        world
    }

    /// Starts a node over the disk that it has.
    pub(super) fn start(&mut self, number: usize) {
        let first = self.nodes[0].address;
        let node = &mut self.nodes[number];
        assert!(node.process.is_none(), "{} runs", node.id);
        node.started += 1;
        let identity = &IDENTITIES[number];
        let socket = self.net.socket(node.address);
        let transport = Transport::over(socket, identity, Arc::new(Revoked::default()), Datagrams::default())
            .expect("bound");
        let opened = self.meta.open(number, &transport, first);
        let served = self.meta.is_served_by(number).then(|| Arc::clone(&opened));
        let meta: Arc<dyn Metastore> = Arc::new(Gate { inner: opened, way: Arc::clone(&node.way) });
        let origin = Arc::new(Origin::open_dir(DATA.store.path()).expect("a store"));
        let cache = Arc::new(Cache::open(node.disk.path(), CacheConfig::default()).expect("a cache"));
        let peers = Arc::new(Liar { truth: Arc::clone(&transport), lies: Arc::clone(&node.lies) });
        let engine = Engine::new(node.id.clone(), Arc::clone(&origin), cache, Arc::clone(&meta), peers);
        engine.lend(Passes::new([number as u8; 32]));
        let record = NodeRecord {
            id: node.id.clone(),
            http: format!("http://{}", node.address),
            quic: node.address,
            cache_bytes: 1 << 30,
            started_at: node.started,
            socket: None,
            metastore: None,
        };
        let member = Membership {
            metastore: Arc::clone(&meta),
            record,
            announced: None,
            key: identity.key_digest(),
            revoked: Arc::default(),
            metastore_node: None,
        };
        let stop = CancellationToken::new();
        let answers = Liar { truth: Arc::clone(&engine), lies: Arc::clone(&node.lies) };
        let services = Services { peers: Arc::new(answers), metastore: served, issuer: None, looks: None };
        let kept = member.keep(None, None, stop.clone());
        let addresses = membership::follow_addresses(meta, Arc::clone(&transport), None, stop.clone());
        let tasks = vec![
            tokio::spawn(Arc::clone(&transport).serve(services, stop.clone())),
            tokio::spawn(Arc::clone(&engine).run_until(stop.clone())),
            tokio::spawn(addresses),
            tokio::spawn(async move {
                kept.await.expect("no other node has its name");
            }),
        ];
        node.process = Some(Process { engine, origin, transport, stop, tasks });
    }

    /// Ends a node without a word to anybody: the network goes first, and with it the way to the metastore; its cache is left as
    /// a process that is killed leaves it.
    pub(super) async fn kill(&mut self, number: usize) {
        self.isolate(number);
        let Some(process) = self.nodes[number].process.take() else { return };
        process.stop.cancel();
        for task in process.tasks {
            task.await.expect("no panic");
        }
        process.transport.close().await;
        self.read_before += process.origin.bytes_read();
        // Written by an orderly end only.
        let _ = std::fs::remove_file(self.nodes[number].disk.path().join("clean"));
        self.reconnect(number);
    }

    /// From now on a node gives wrong bytes to some who ask, and sends some; or no more.
    pub(super) fn set_lies(&self, number: usize, lies: bool) {
        self.nodes[number].lies.store(lies, Ordering::Relaxed);
    }

    /// Nothing gets to a node or from it, and it cannot reach the metastore.
    pub(super) fn isolate(&self, number: usize) {
        let own = self.nodes[number].address;
        for other in self.nodes.iter().map(|node| node.address).filter(|other| *other != own) {
            self.net.cut(own, other);
            self.net.cut(other, own);
        }
        self.nodes[number].way.is_cut.store(true, Ordering::Relaxed);
    }

    /// A node cannot reach the metastore, and nothing else.
    pub(super) fn lose_metastore(&self, number: usize) {
        self.nodes[number].way.is_cut.store(true, Ordering::Relaxed);
    }

    /// A node hears nothing of some of the changes that it makes in the metastore.
    pub(super) fn lose_answers(&self, number: usize) {
        self.nodes[number].way.loses_answers.store(true, Ordering::Relaxed);
    }

    fn reconnect(&self, number: usize) {
        self.net.heal();
        self.nodes[number].way.is_cut.store(false, Ordering::Relaxed);
    }

    /// No node is cut off, none unreachable, and none lies.
    pub(super) fn heal(&self) {
        self.net.heal();
        for node in &self.nodes {
            node.way.is_cut.store(false, Ordering::Relaxed);
            node.way.loses_answers.store(false, Ordering::Relaxed);
            node.lies.store(false, Ordering::Relaxed);
        }
    }

    /// The nodes that run, by number.
    pub(super) fn running(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|number| self.nodes[*number].process.is_some()).collect()
    }

    pub(super) fn engine(&self, number: usize) -> &Arc<Engine> {
        &self.nodes[number].process.as_ref().expect("it runs").engine
    }

    pub(super) fn number_of(&self) -> BTreeMap<NodeId, usize> {
        (0usize..).zip(&self.nodes).map(|(number, node)| (node.id.clone(), number)).collect()
    }

    /// Bytes that were read from the store by all nodes.
    pub(super) fn origin_bytes(&self) -> u64 {
        let now = self.nodes.iter().filter_map(|node| node.process.as_ref());
        self.read_before + now.map(|process| process.origin.bytes_read()).sum::<u64>()
    }

    /// Ends all nodes.
    pub(super) async fn end(mut self) {
        for number in self.running() {
            self.kill(number).await;
        }
    }
}
