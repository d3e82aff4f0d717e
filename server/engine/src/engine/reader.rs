//! The reader of a shard: reads it from the store whole, once, keeps the grains it hosts and forwards the others to the nodes
//! that host them, so that over a run every byte leaves the store about once however many nodes there are.

use std::sync::{Arc, Mutex};

use futures::future::join_all;
use shardd_api::node::NodeId;
use shardd_plan::GrainNo;
use shardfmt::Shard;
use shardfmt::merkle::GrainTree;
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, timeout};
use tracing::{Instrument, debug, info, warn};

use super::obtain::{group, permits_of};
use super::run::RunState;
use super::run::reading::{Outcome, Reading, WholeShard};
use super::{Counters, Engine, EngineError, blocking};
use crate::peers::{FetchMode, FetchRequest, PEER_TIMEOUT, Purpose, SendHeader};

/// How soon a peer that could not be reached is probed again.
const PROBE_AGAIN: Duration = Duration::from_millis(50);

impl Engine {
    /// Reads a shard whole if it is new to the cluster, and forwards it; `None` if other nodes already have their parts of it,
    /// so that the missing grains are better read by range. `asker` is a peer and the grains that it gets as
    /// the answer.
    pub(crate) async fn read_as_reader(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        shard: u32,
        epoch: u32,
        asker: Option<(&NodeId, &[GrainNo])>,
    ) -> Option<Arc<WholeShard>> {
        let reading = {
            let mut readings = run.shards.under_way.lock().expect("no panic while held");
            match readings.get(&shard) {
                Some(reading) => Arc::clone(reading),
                None if self.was_read(run, shard) => return None,
                None => {
                    let outcome = watch::Sender::new(Outcome::Pending);
                    let reading = Arc::new(Reading { outcome, answered: Mutex::default() });
                    readings.insert(shard, Arc::clone(&reading));
                    let (engine, run, reading) = (Arc::clone(self), Arc::clone(run), Arc::clone(&reading));
                    let begun = Arc::clone(&reading);
                    let read = async move {
                        tokio::select! {
                            () = engine.lifecycle.stop.cancelled() => {}
                            () = engine.read_and_forward(&run, shard, epoch, &reading) => {}
                        }
                        reading.outcome.send_if_modified(|outcome| {
                            let is_pending = matches!(outcome, Outcome::Pending);
                            if is_pending {
                                *outcome = Outcome::NotWhole;
                            }
                            is_pending
                        });
                        end_reading(&run, shard, &reading);
                    };
                    self.lifecycle.tasks.spawn(read.in_current_span());
                    begun
                }
            }
        };
        if let Some((asker, grains)) = asker {
            let mut answered = reading.answered.lock().expect("no panic while held");
            answered.extend(grains.iter().map(|grain| (asker.clone(), *grain)));
        }
        let mut outcome = reading.outcome.subscribe();
        let known = outcome.wait_for(|outcome| !matches!(outcome, Outcome::Pending)).await.ok()?;
        match &*known {
            Outcome::Whole(whole) => Some(Arc::clone(whole)),
            Outcome::Pending | Outcome::NotWhole => None,
        }
    }

    /// Reads the shard if it is new to the cluster, keeps the grains hosted here and forwards the rest. Until
    /// that is done the shard in memory serves the hosts that its grains have not reached yet.
    async fn read_and_forward(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        shard: u32,
        epoch: u32,
        reading: &Reading,
    ) {
        if !self.is_new(run, shard, epoch).await {
            return;
        }
        let permits = permits_of(run.entry(shard));
        let _permits =
            self.upkeep.whole_shards.acquire_many(permits).await.expect("the semaphore is never closed");
        let whole = match self.read_whole(run, shard).await {
            Ok(whole) => whole,
            Err(error) => {
                let id = run.entry(shard).id;
                warn!(run = run.name(), shard = %id, %error, "a shard could not be read whole; trying its grains");
                return;
            }
        };
        run.shards.whole.lock().expect("no panic while held").insert(shard);
        info!(run = run.name(), shard = %run.entry(shard).id, epoch, "shard read from the store");
        self.keep_own(run, shard, epoch, &whole).await;
        reading.outcome.send_replace(Outcome::Whole(Arc::clone(&whole)));
        join_all(self.forwards(run, shard, epoch, &whole, reading)).await;
    }

    fn was_read(&self, run: &RunState, shard: u32) -> bool {
        run.shards.whole.lock().expect("no panic while held").contains(&shard)
    }

    async fn read_whole(&self, run: &RunState, shard: u32) -> Result<Arc<WholeShard>, EngineError> {
        let bytes = self.origin.shard(run.entry(shard)).await?;
        let grain_rows = run.plan.document().grain_rows;
        let open = move || -> Result<WholeShard, EngineError> {
            let shard = Shard::from_bytes(bytes)?;
            let tree = GrainTree::new(&shard.row_digests()?, grain_rows);
            Ok(WholeShard { shard, tree })
        };
        Ok(Arc::new(blocking(open).await?))
    }

    /// Whether no node has grains of the shard: not this one, nor any other host, each asked for one grain. A host
    /// that is silent may have some. If all are, the shard is not taken to be new: to read it for others, who cannot be
    /// reached, would cost its whole bytes.
    async fn is_new(self: &Arc<Self>, run: &Arc<RunState>, shard: u32, epoch: u32) -> bool {
        let Some(placement) = run.placement() else { return true };
        let view = run.epochs.view(epoch);
        let by_host = group(
            run.grains_of_shard(shard).map(|grain| (placement.host(view.partition_of(grain)).clone(), grain)),
        );
        if let Some(own) = by_host.get(&self.node)
            && own.iter().any(|grain| self.is_resident(run, *grain))
        {
            return false;
        }
        let live = self.live_nodes();
        let (mut silent, mut have_none) = (0, 0);
        for (host, grains) in by_host.iter().filter(|(host, _)| **host != self.node && live.contains(host)) {
            let request = run.request(epoch, &grains[..1], FetchMode::Probe);
            let request = FetchRequest { generation: placement.generation, ..request };
            match self.probe(run, host, request).await {
                Some(true) => return false,
                Some(false) => have_none += 1,
                None => silent += 1,
            }
        }
        have_none > 0 || silent == 0
    }

    /// Whether a node has the grain asked for; `None` if it is silent. A node that was just met may need a moment to be reached.
    async fn probe(self: &Arc<Self>, run: &RunState, host: &NodeId, request: FetchRequest) -> Option<bool> {
        let ask = async {
            loop {
                match self.peers.fetch(host, request.clone()).await {
                    Ok(answer) => return answer.first().is_some_and(Option::is_some),
                    Err(error) => debug!(peer = %host, %error, "a peer could not be probed; trying again"),
                }
                tokio::time::sleep(PROBE_AGAIN).await;
            }
        };
        if !self.talks(host) {
            return None;
        }
        match timeout(PEER_TIMEOUT, ask).await {
            Ok(has) => Some(has),
            Err(_) => {
                self.neighbours.health.unanswered(host, PEER_TIMEOUT);
                self.fell_silent(run, host);
                None
            }
        }
    }

    async fn keep_own(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        shard: u32,
        epoch: u32,
        whole: &Arc<WholeShard>,
    ) {
        let own: Vec<GrainNo> = run
            .grains_of_shard(shard)
            .filter(|grain| run.is_hosted_by(&self.node, *grain, epoch) && !self.is_resident(run, *grain))
            .collect();
        let (engine, run, whole) = (Arc::clone(self), Arc::clone(run), Arc::clone(whole));
        let keep = move || {
            for grain in own {
                let Ok(bytes) = whole.grain(&run, grain) else { break }; // reading it by range will say why
                if engine.keep(&run, epoch, grain, &bytes) {
                    Counters::add(&engine.counters.fill_grains, 1);
                    Counters::add(&engine.counters.fill_bytes, bytes.len());
                }
            }
        };
        blocking(keep).await;
    }

    /// Sends to every other host of its grains, to be awaited together. A host that cannot take them now will miss them and
    /// ask.
    fn forwards(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        shard: u32,
        epoch: u32,
        whole: &Arc<WholeShard>,
        reading: &Reading,
    ) -> Vec<impl Future<Output = ()> + Send + use<>> {
        let live = self.live_nodes();
        let answered = reading.answered.lock().expect("no panic while held").clone();
        let hosts = run.hosts_of_shard(shard, epoch).into_iter();
        hosts
            .filter(|host| *host != self.node && live.contains(host))
            .map(|host| {
                let grains: Vec<GrainNo> = run
                    .grains_of_shard(shard)
                    .filter(|grain| run.is_hosted_by(&host, *grain, epoch))
                    .filter(|grain| !answered.contains(&(host.clone(), *grain)))
                    .collect();
                let (engine, run, whole) = (Arc::clone(self), Arc::clone(run), Arc::clone(whole));
                async move { engine.forward(&run, epoch, &whole, &grains, host).await }
            })
            .collect()
    }

    async fn forward(
        &self,
        run: &RunState,
        epoch: u32,
        whole: &WholeShard,
        grains: &[GrainNo],
        host: NodeId,
    ) {
        let header = SendHeader {
            run: run.record.id.clone(),
            plan: run.record.plan,
            version: run.record.version,
            purpose: Purpose::Fill { epoch, generation: run.generation() },
        };
        let (give, take) = mpsc::channel(16);
        let feed = async {
            for grain in grains {
                let Ok(bytes) = whole.grain(run, *grain) else { break }; // its host will ask again
                if give.send((run.key(*grain), bytes)).await.is_err() {
                    break; // the connection is gone; `send` says why
                }
            }
            drop(give);
        };
        let (sent, ()) = tokio::join!(self.peers.send(&host, header, take, None), feed);
        match sent {
            Ok(ack) => Counters::add(&self.counters.forwarded_grains, ack.stored as usize),
            Err(error) => debug!(peer = %host, %error, "a shard could not be forwarded"),
        }
    }
}

fn end_reading(run: &RunState, shard: u32, reading: &Arc<Reading>) {
    let mut readings = run.shards.under_way.lock().expect("no panic while held");
    if readings.get(&shard).is_some_and(|now| Arc::ptr_eq(now, reading)) {
        readings.remove(&shard);
    }
}
