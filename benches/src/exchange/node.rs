//! A node without the HTTP API; and one of two as a process, which fills its cache, and on a signal reports
//! that its rank has read the whole epoch. All chunks are due then.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use shardd::identity::{ClusterRole, Identity, Revoked};
use shardd::transport::{Services, Transport};
use shardd_api::exchange::{EpochExchange, ExchangeRate, ExchangeSettings};
use shardd_api::local_transport;
use shardd_api::node::NodeRecord;
use shardd_api::protocol::{Attach, CreateRun, LocateRequest, RunId};
use shardd_engine::cache::{Cache, CacheConfig};
use shardd_engine::engine::Engine;
use shardd_plan::{Epoch, Partition, Plan, SlotTable};
use shardd_store::metastore::{Expected, FilesMetastore, Metastore};
use shardd_store::origin::Origin;
use shardfmt::{GrainKey, Manifest};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{command, data};

/// How often a node looks whether something has happened.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// One of two nodes, each of which hosts a partition for a rank of its own.
pub struct Node {
    /// Which of the two it is.
    pub number: usize,
    /// What decides.
    pub engine: Arc<Engine>,
    /// Its sockets.
    pub transport: Arc<Transport>,
    /// The plan that both serve.
    pub plan: Plan,
    /// The run over it.
    pub run: RunId,
    manifest: Arc<Manifest>,
    hosted: Partition,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Node {
    /// The node's address.
    ///
    /// # Errors
    /// When `home` has no identity for the node, or the port is taken.
    pub fn bind(home: &Path, number: usize) -> Result<Arc<Transport>> {
        let identity = match Identity::open(&home.join(format!("tls{number}")))? {
            ClusterRole::Issued(identity) => identity,
            _ => bail!("the identity is not one that was issued"),
        };
        Ok(Transport::bind("127.0.0.1:0".parse()?, &identity, Arc::new(Revoked::default()))?)
    }

    /// Starts the node; the other one is found at `other`. Returns once both are there and their caches full.
    ///
    /// # Errors
    /// When the store, the metadata or the other node cannot be reached.
    pub async fn start(
        home: &Path,
        number: usize,
        transport: Arc<Transport>,
        other: SocketAddr,
    ) -> Result<Node> {
        transport.learn(&data::name(1 - number), other);
        let metastore: Arc<dyn Metastore> = Arc::new(FilesMetastore::open(home.join("meta"))?);
        let origin = Arc::new(Origin::open_dir(&home.join("store"))?);
        let cache = Arc::new(Cache::open(home.join(format!("cache{number}")), CacheConfig::default())?);
        let (name, stop) = (data::name(number), CancellationToken::new());
        let record = NodeRecord {
            id: name.clone(),
            http: "http://127.0.0.1:0".to_owned(),
            quic: transport.address(),
            cache_bytes: 1 << 30,
            started_at: 0,
            socket: None,
            metastore: None,
        };
        metastore.put(&NodeRecord::key(&name), serde_json::to_vec(&record)?, Expected::Any, None).await?;
        let engine = Engine::new(name.clone(), origin, cache, metastore, transport.clone());
        let services =
            Services { peers: Arc::new(Arc::clone(&engine)), metastore: None, issuer: None, looks: None };
        let tasks = vec![
            tokio::spawn(Arc::clone(&transport).serve(services, stop.clone())),
            tokio::spawn(Arc::clone(&engine).run_until(stop.clone())),
        ];
        until(|| engine.nodes().len() == 2).await;

        let run: RunId = "bench".parse()?;
        let id = std::fs::read_to_string(home.join("plan"))?.parse()?;
        engine.create_run(CreateRun { id: run.clone(), plan: id, virtual_ranks: 2 }).await?;
        let view = engine.attach(&run, number as u32, Attach { world: 2, epoch: 0 }).await?;
        let placement = view.placement.context("both ranks are there")?;
        let hosted: Vec<u32> = placement.hosted_by(&name).collect();
        ensure!(hosted.len() == 1, "partitions {hosted:?} of two are hosted here");
        let document = engine.origin().plan(id).await?;
        let manifest = Arc::new(engine.origin().manifest(document.version).await?);
        let rows: Vec<u32> = manifest.shards.iter().map(|shard| shard.rows).collect();
        let plan = Plan::new(document, &rows)?;
        let hosted = Partition(hosted[0]);
        let node = Node { number, engine, transport, plan, run, manifest, hosted, stop, tasks };
        node.report(0, 0).await?;
        let mine = node.plan.grain_count() / 2;
        until(|| node.engine.status().cache_grains >= mine && node.engine.unready().is_none()).await;
        Ok(node)
    }

    /// Reports the position of the node's rank.
    ///
    /// # Errors
    /// When the run is gone.
    pub async fn report(&self, epoch: u32, position: u64) -> Result<()> {
        let request = LocateRequest {
            loop_time: None,
            rank: self.number as u32,
            world: 2,
            epoch,
            position,
            for_epoch: epoch,
            grains: Vec::new(),
            transport: local_transport::Transport::Stream,
            doubted: false,
            rows: Vec::new(),
        };
        self.engine.locate(&self.run, request).await?;
        Ok(())
    }

    /// The grains that it hosts in epoch 0.
    pub fn keys(&self) -> Vec<GrainKey> {
        let table = SlotTable::at(&self.plan, Epoch(0));
        let key = |grain| {
            let place = self.plan.locate_grain(grain);
            let rows = self.plan.document().grain_rows;
            GrainKey { shard: self.manifest.shards[place.shard as usize].id, rows, index: place.index }
        };
        table.grains_of(&self.plan, self.hosted).map(key).collect()
    }

    /// The counts of the exchange after epoch 0.
    pub fn exchanged(&self) -> EpochExchange {
        let exchange = self.engine.status().counters.exchange;
        exchange.iter().find(|count| count.epoch == 0).map(|count| count.counts).unwrap_or_default()
    }

    /// Stops it.
    ///
    /// # Errors
    /// When one of its tasks panicked.
    pub async fn end(self) -> Result<()> {
        self.stop.cancel();
        for task in self.tasks {
            task.await?;
        }
        self.transport.close().await;
        Ok(())
    }
}

/// Plays the node's part as a process: its address, the other's, `ready`, `go`, and then bytes received and seconds of processors.
pub(super) async fn play(home: &Path, number: usize) -> Result<()> {
    let transport = Node::bind(home, number)?;
    println!("{}", transport.address());
    let node = Node::start(home, number, transport, command()?.parse()?).await?;
    node.engine.set_exchange(ExchangeSettings { rate: ExchangeRate::Unlimited, paused: false });
    println!("ready");

    command()?;
    let cpu_before = data::cpu_seconds();
    node.report(0, node.plan.sample_count()).await?;
    let chunks = 0..node.plan.document().chunks;
    let moves = chunks.flat_map(|chunk| node.plan.moves(Epoch(0), chunk));
    // As many come as go: partitions are of one size.
    let moves = moves.filter(|step| step.from.0 != step.to.0).count() as u64;
    until(|| node.exchanged().received_grains + node.exchanged().sent_grains >= moves).await;
    let counts = node.exchanged();
    ensure!(counts.unsent_grains == 0, "{counts:?}");
    println!("{} {}", counts.received_bytes, data::cpu_seconds() - cpu_before);

    command()?;
    node.end().await
}

async fn until(mut happened: impl FnMut() -> bool) {
    while !happened() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
