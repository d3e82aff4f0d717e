//! Measures this node's disk and its peers, and exchanges verdicts (slow, silent, wrong) with the other
//! nodes: each reads the others' measurements now and then, and keeps its verdict on a node under
//! `health/<node>/<itself>` while it holds. The balancer decides by the same measurements (`balancer.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use serde::Serialize;
use shardd_api::balancer::{FAST_READ_MICROS, NodeLoad, stretched};
use shardd_api::health::{Disk, HealthIssue, Lately, LatelyByTime, Measured, Peer, judge};
use shardd_api::node::NodeId;
use shardd_plan::GrainNo;
use shardd_store::metastore::{Expected, LeaseId, MetaError};
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::Engine;
use super::keys::entries;
use super::value::parse;
use crate::peers::{FetchMode, PEER_TIMEOUT};

const DISKS: &str = "disks/";
const HEALTH_ISSUES: &str = "health/";

/// How often a node looks, and how often all of them together do, a second: large clusters look less often.
const LOOKS_EVERY: Duration = Duration::from_secs(10);
const LOOKS_A_SECOND: u32 = 10;
/// The reports of a node that has gone are dropped after this number of looks.
const HOLDS_FOR: u32 = 3;
/// After how long measurements count half: of what takes how long, of questions without an answer, of wrong bytes.
const TIMES_HALVE: Duration = Duration::from_secs(60);
const SILENCES_HALVE: Duration = Duration::from_secs(120);
const WRONGS_HALVE: Duration = Duration::from_secs(600);
/// Less than this is nothing.
const FADED: f64 = 0.01;
/// Who was given less time to answer is not silent.
pub(super) const FAIR_TIMEOUT: Duration = Duration::from_secs(1);

/// The measurements of this node, and the reports of others.
pub(super) struct Health {
    started: Instant,
    measuring: Mutex<Measuring>,
    /// The reports of nodes on each other, as of the last look.
    heard: Mutex<Vec<HealthIssue>>,
    /// The reports of this one.
    says: Mutex<Vec<HealthIssue>>,
}

struct Measuring {
    reads: LatelyByTime,
    syncs: LatelyByTime,
    peers: BTreeMap<NodeId, OfPeer>,
}

struct OfPeer {
    answers: Lately,
    silences: Lately,
    wrong: Lately,
}

impl Default for OfPeer {
    fn default() -> OfPeer {
        let [answers, silences, wrong] = [TIMES_HALVE, SILENCES_HALVE, WRONGS_HALVE].map(Lately::new);
        OfPeer { answers, silences, wrong }
    }
}

impl Default for Health {
    fn default() -> Health {
        let [reads, syncs] = [TIMES_HALVE; 2].map(LatelyByTime::new);
        Health {
            started: Instant::now(),
            measuring: Mutex::new(Measuring { reads, syncs, peers: BTreeMap::new() }),
            heard: Mutex::default(),
            says: Mutex::default(),
        }
    }
}

impl Health {
    /// A grain was read from the cache.
    pub(super) fn read_took(&self, took: Duration) {
        self.measure(|measuring, at| measuring.reads.add(at, micros(took)));
    }

    /// Written bytes were made durable.
    pub(super) fn sync_took(&self, took: Duration) {
        self.measure(|measuring, at| measuring.syncs.add(at, micros(took)));
    }

    /// A node has answered, with a number of bytes.
    pub(super) fn answered(&self, node: &NodeId, took: Duration, bytes: usize) {
        let mib = (bytes as f64 / f64::from(1 << 20)).max(1.0);
        self.measure_peer(node, |peer, at| peer.answers.add(at, micros(took) / mib));
    }

    /// A node has not answered in the time that it was given.
    pub(super) fn unanswered(&self, node: &NodeId, patience: Duration) {
        if patience >= FAIR_TIMEOUT {
            self.measure_peer(node, |peer, at| peer.silences.add(at, 1.0));
        }
    }

    /// A node has given grains with wrong bytes.
    pub(super) fn gave_wrong(&self, node: &NodeId, grains: usize) {
        self.measure_peer(node, |peer, at| (0..grains).for_each(|_| peer.wrong.add(at, 1.0)));
    }

    /// The recent measurements.
    pub(super) fn measured(&self) -> Measured {
        let at = self.started.elapsed();
        let mut measuring = self.measuring.lock().expect("no panic while held");
        measuring.peers.retain(|_, peer| {
            [&peer.answers, &peer.silences, &peer.wrong].iter().any(|lately| lately.count(at) > FADED)
        });
        let rounded = |micros: f64| micros.round() as u64;
        let [read_micros, sync_micros] =
            [&measuring.reads, &measuring.syncs].map(|lately| lately.mean(at).map(rounded));
        let disk = Disk { read_micros, sync_micros };
        let peer = |(node, peer): (&NodeId, &OfPeer)| Peer {
            node: node.clone(),
            answer_micros: peer.answers.mean(at).map(rounded),
            silences: peer.silences.count(at),
            wrong_grains: peer.wrong.count(at),
        };
        Measured { disk, peers: measuring.peers.iter().map(peer).collect() }
    }

    /// The reports of this node.
    pub(super) fn says(&self) -> Vec<HealthIssue> {
        self.says.lock().expect("no panic while held").clone()
    }

    /// The reports on `node`.
    pub(super) fn of(&self, node: &NodeId) -> Vec<HealthIssue> {
        let heard = self.heard.lock().expect("no panic while held");
        heard.iter().filter(|trouble| trouble.node == *node).cloned().collect()
    }

    fn measure(&self, measured: impl FnOnce(&mut Measuring, Duration)) {
        let at = self.started.elapsed();
        measured(&mut self.measuring.lock().expect("no panic while held"), at);
    }

    fn measure_peer(&self, node: &NodeId, measured: impl FnOnce(&mut OfPeer, Duration)) {
        self.measure(|measuring, at| {
            if !measuring.peers.contains_key(node) {
                measuring.peers.insert(node.clone(), OfPeer::default());
            }
            measured(measuring.peers.get_mut(node).expect("it was put there"), at);
        });
    }
}

fn micros(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

/// The metastore's copy of this node's reports.
#[derive(Default)]
struct Published {
    lease: Option<LeaseId>,
    load: NodeLoad,
    health_issues: Vec<HealthIssue>,
}

impl Engine {
    /// Looks now and then how this node's disk and peers compare, and says so, until `stop`.
    pub(super) async fn watch_health(self: Arc<Self>, stop: CancellationToken) {
        let mut told = Published::default();
        let watching = async {
            loop {
                let every = self.looks_every();
                sleep(every).await;
                self.ask_around().await;
                if let Err(error) = self.look_at_health(&mut told, every * HOLDS_FOR).await {
                    debug!(%error, "no reports of slow nodes arrive while the metastore is unavailable");
                }
            }
        };
        stop.run_until_cancelled(watching).await;
    }

    fn looks_every(&self) -> Duration {
        let nodes = u32::try_from(self.watched.nodes.borrow().len()).unwrap_or(u32::MAX);
        LOOKS_EVERY.max(Duration::from_secs(u64::from(nodes / LOOKS_A_SECOND)))
    }

    /// Asks some neighbours something small for a run that is being read: so that there is always a node to
    /// compare with.
    async fn ask_around(&self) {
        let Some(run) = self.active_run_states().into_iter().next() else { return };
        let request = run.request(0, &[GrainNo(0)], FetchMode::Probe);
        let asks = self.neighbours().into_iter().map(|node| {
            let request = request.clone();
            async move {
                let began = Instant::now();
                match timeout(PEER_TIMEOUT, self.peers.fetch(&node, request)).await {
                    Ok(Ok(_)) => self.neighbours.health.answered(&node, began.elapsed(), 0),
                    Ok(Err(_)) | Err(_) => self.neighbours.health.unanswered(&node, PEER_TIMEOUT),
                }
            }
        });
        join_all(asks).await;
    }

    async fn look_at_health(&self, told: &mut Published, holds_for: Duration) -> Result<(), MetaError> {
        let live = self.live_nodes();
        let mut measured = self.neighbours.health.measured();
        measured.peers.retain(|peer| live.contains(&peer.node));
        let load = self.load(measured.disk);
        let disks = self.meta.list(DISKS).await?;
        let mut loads: BTreeMap<NodeId, NodeLoad> =
            entries(DISKS, &disks).filter(|(node, _)| live.contains(node)).collect();
        loads.insert(self.node.clone(), load);
        let others: Vec<Disk> =
            loads.iter().filter(|(node, _)| **node != self.node).map(|(_, load)| load.disk).collect();
        let before = self.neighbours.health.says();
        let says = judge(&self.node, &measured, &others, &before);
        report(&before, &says);
        self.neighbours.health.says.lock().expect("no panic while held").clone_from(&says);
        self.tell(told, load, says, holds_for).await?;
        let health_issues = self.meta.list(HEALTH_ISSUES).await?;
        let heard =
            health_issues.entries.iter().filter_map(|(_, entry)| parse::<Vec<HealthIssue>>(entry)).flatten();
        let heard: Vec<HealthIssue> = heard.filter(|trouble| live.contains(&trouble.by)).collect();
        self.neighbours.health.heard.lock().expect("no panic while held").clone_from(&heard);
        self.balance(&loads, &heard).await
    }

    /// Publishes the news.
    async fn tell(
        &self,
        told: &mut Published,
        load: NodeLoad,
        says: Vec<HealthIssue>,
        holds_for: Duration,
    ) -> Result<(), MetaError> {
        if told.lease.is_none() && load == NodeLoad::default() && says.is_empty() {
            return Ok(());
        }
        let lease = match told.lease {
            Some(lease) => match self.meta.renew(lease).await {
                Ok(()) => lease,
                Err(MetaError::LeaseLost { .. }) => {
                    *told = Published::default();
                    self.meta.grant(holds_for).await?
                }
                Err(error) => return Err(error),
            },
            None => self.meta.grant(holds_for).await?,
        };
        told.lease = Some(lease);
        if !is_near(&load, &told.load) {
            self.tell_one(&format!("{DISKS}{}", self.node), &load, lease).await?;
            told.load = load;
        }
        let named = |health_issues: &[HealthIssue]| {
            health_issues.iter().map(|t| t.node.clone()).collect::<BTreeSet<_>>()
        };
        for node in named(&told.health_issues).union(&named(&says)) {
            let of = |health_issues: &[HealthIssue]| {
                health_issues.iter().filter(|t| t.node == *node).cloned().collect::<Vec<_>>()
            };
            let (was, is) = (of(&told.health_issues), of(&says));
            let key = format!("{HEALTH_ISSUES}{node}/{}", self.node);
            if is.is_empty() {
                self.meta.delete(&key, Expected::Any).await?;
            } else if !were_said(&is, &was) {
                self.tell_one(&key, &is, lease).await?;
            } else {
                continue;
            }
            told.health_issues.retain(|trouble| trouble.node != *node);
            told.health_issues.extend(is);
        }
        Ok(())
    }

    async fn tell_one(&self, key: &str, value: &impl Serialize, lease: LeaseId) -> Result<(), MetaError> {
        let value = serde_json::to_vec(value).expect("numbers and names are plain data");
        self.meta.put(key, value, Expected::Any, Some(lease)).await.map(drop)
    }
}

/// Logs the faults that began and those that ended.
fn report(before: &[HealthIssue], now: &[HealthIssue]) {
    let is_in = |health_issues: &[HealthIssue], one: &HealthIssue| {
        health_issues.iter().any(|other| (&other.node, other.what) == (&one.node, one.what))
    };
    for trouble in now.iter().filter(|trouble| !is_in(before, trouble)) {
        warn!(node = %trouble.node, %trouble, "a node is slow, silent or wrong");
    }
    for trouble in before.iter().filter(|trouble| !is_in(now, trouble)) {
        info!(node = %trouble.node, was = %trouble, "a node is healthy again");
    }
}

/// Whether the reports differ from the earlier ones in their numbers only.
fn were_said(now: &[HealthIssue], before: &[HealthIssue]) -> bool {
    let what = |health_issues: &[HealthIssue]| {
        health_issues.iter().map(|trouble| trouble.what).collect::<BTreeSet<_>>()
    };
    what(now) == what(before)
        && now.iter().all(|is| {
            before.iter().any(|was| was.what == is.what && is_close(Some(was.measured), Some(is.measured)))
        })
}

/// Whether the balancer would decide by one as by the other.
fn is_near(one: &NodeLoad, other: &NodeLoad) -> bool {
    let waits = |load: &NodeLoad| {
        let pressure = load.pressure.unwrap_or_default();
        [pressure.cpu, pressure.io, pressure.memory].map(stretched)
    };
    let is_alike = |(one, other): (f64, f64)| one.max(other) / 8.0 * 7.0 <= one.min(other);
    let rate = |load: &NodeLoad| load.samples_per_second.map(|rate| rate.round() as u64);
    let slow = |load: &NodeLoad| load.disk.read_micros.map(|micros| micros.max(FAST_READ_MICROS));
    is_close(one.disk.read_micros, other.disk.read_micros)
        && is_close(one.disk.sync_micros, other.disk.sync_micros)
        && is_closer(slow(one), slow(other))
        && waits(one).into_iter().zip(waits(other)).all(is_alike)
        && is_closer(rate(one), rate(other))
}

/// Whether they differ by less than an eighth.
fn is_closer(one: Option<u64>, other: Option<u64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.max(other) / 8 * 7 <= one.min(other),
        (one, other) => one == other,
    }
}

/// Whether they differ by less than a factor of two.
fn is_close(one: Option<u64>, other: Option<u64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.max(other) / 2 <= one.min(other),
        (one, other) => one == other,
    }
}
