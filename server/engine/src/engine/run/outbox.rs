//! What a run has yet to send, by the node it goes to. Each destination has its own queue and sender, so that
//! a blocked one delays no other; chunks for the same node share a stream. Together they send at the run's
//! pace.
//!
//! Knows no positions: due grains go in, and their outcomes are counted.

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use shardd_api::node::NodeId;
use shardd_api::timeline::Work;
use shardd_plan::GrainNo;
use shardfmt::GrainKey;
use tokio::sync::{Notify, OwnedMutexGuard, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::super::counters::micros;
use super::super::gate::Gate;
use super::super::pace::LEAST;
use super::super::{Counters, Engine};
use super::RunState;
use crate::peers::{Pace, Purpose, SendHeader};

/// How many streams to one node are under way at once: while the one before waits for its grains to be made durable, the next
/// is sent.
const STREAMS: usize = 8;
/// The most times that a parcel is sent again after its receiver had no room. The receiver waits for room each time.
const MOST_TRIES: u32 = 8;
/// Chunks share a stream up to this size.
const STREAM_BYTES: u64 = 4 << 20;
/// Grains are read in this number of bytes at once...
const PIECE_BYTES: u64 = 256 << 10;
/// ...and at most this number, or this number of bytes, waits for the stream.
const GRAINS_READ: u64 = 64;
const BYTES_READ: u64 = 1 << 20;

/// A part of a chunk: what goes to one node.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) epoch: u32,
    /// The chunk, or the first of several.
    pub(crate) chunk: u32,
    /// The placement it was addressed by.
    pub(crate) generation: u64,
    pub(crate) grains: Vec<GrainNo>,
    /// How many times the receiver had no room for it.
    pub(crate) tries: u32,
}

/// The queues of one run, while the run is being driven. Queued grains count as unacknowledged from the
/// start, so that it may be forgotten about at any time.
pub(crate) struct Outbox {
    engine: Arc<Engine>,
    run: Arc<RunState>,
    stop: CancellationToken,
    /// The run's pace; the node's own gate comes after it.
    gate: Gate,
    /// Bytes of a grain, on average.
    grain_bytes: u64,
    /// The run has no readers left.
    is_ending: AtomicBool,
    state: Mutex<State>,
    /// The oldest epoch of which something is under way or queued.
    oldest: watch::Sender<Option<u32>>,
}

#[derive(Default)]
struct State {
    lanes: BTreeMap<NodeId, Lane>,
    /// Parcels that are queued or under way, by epoch.
    left: BTreeMap<u32, usize>,
    /// Streams under way, by epoch, and since when there has been one.
    under_way: BTreeMap<u32, (usize, Instant)>,
    /// Bytes that are queued, or under way and have not passed the gate yet, by epoch.
    backlog: BTreeMap<u32, u64>,
}

#[derive(Default)]
struct Lane {
    queue: VecDeque<Parcel>,
    /// It has a sender...
    is_served: bool,
    /// ...which is woken when there is more.
    more: Arc<Notify>,
}

impl Outbox {
    /// Nothing is sent any more after `stop`.
    pub(crate) fn new(engine: &Arc<Engine>, run: &Arc<RunState>, stop: CancellationToken) -> Arc<Self> {
        let partitions = u64::from(run.plan.document().partitions);
        let all_bytes = run.needs.read_bytes.saturating_mul(partitions);
        Arc::new(Self {
            engine: Arc::clone(engine),
            run: Arc::clone(run),
            stop,
            gate: Gate::new(LEAST),
            // With its proof and its key: a record of the cache has about the same beside a grain.
            grain_bytes: (all_bytes / run.plan.grain_count().max(1)).max(1),
            is_ending: AtomicBool::new(false),
            state: Mutex::default(),
            oldest: watch::Sender::new(None),
        })
    }

    /// Queues a part of a chunk and sees that it is sent.
    pub(crate) fn put(self: &Arc<Self>, to: NodeId, parcel: Parcel) {
        self.run.unacknowledged.add(parcel.epoch, parcel.grains.iter().copied());
        let mut state = self.state();
        *state.backlog.entry(parcel.epoch).or_default() += self.bytes_of(&parcel);
        *state.left.entry(parcel.epoch).or_default() += 1;
        let lane = state.lanes.entry(to.clone()).or_default();
        lane.queue.push_back(parcel);
        lane.more.notify_one();
        let is_served = std::mem::replace(&mut lane.is_served, true);
        self.look(&state);
        drop(state);
        if !is_served {
            let outbox = Arc::clone(self);
            self.engine.lifecycle.tasks.spawn(async move { outbox.serve(&to).await });
        }
    }

    /// Queues a refused parcel again. Only the lane's running sender calls this, so the queue is served.
    fn put_back(&self, to: &NodeId, parcel: Parcel) {
        let mut state = self.state();
        *state.backlog.entry(parcel.epoch).or_default() += self.bytes_of(&parcel);
        *state.left.entry(parcel.epoch).or_default() += 1;
        state.lanes.entry(to.clone()).or_default().queue.push_back(parcel);
    }

    /// Drops the queued grains of epochs before `epoch`: hosts will request them, or have done so.
    pub(crate) fn drop_before(&self, epoch: u32) {
        if self.oldest.borrow().is_none_or(|oldest| oldest >= epoch) {
            return;
        }
        let nodes: Vec<NodeId> = self.state().lanes.keys().cloned().collect();
        for node in nodes {
            self.give_up(&node, |parcel| parcel.epoch < epoch);
        }
    }

    /// The oldest epoch of which something is queued or under way.
    pub(crate) fn oldest(&self) -> watch::Receiver<Option<u32>> {
        self.oldest.subscribe()
    }

    /// Bytes that have yet to be sent.
    pub(crate) fn backlog(&self) -> u64 {
        self.state().backlog.values().sum()
    }

    /// Whether bytes of epochs before `epoch` have yet to be sent. Sent bytes that wait for their
    /// acknowledgement do not count.
    pub(crate) fn is_overdue(&self, epoch: u32) -> bool {
        self.state().backlog.first_key_value().is_some_and(|(oldest, _)| *oldest < epoch)
    }

    /// Sends at `rate` bytes a second from now on; a lower one holds only if nothing is left or it `may_fall`.
    pub(crate) fn set_rate(&self, rate: f64, may_fall: bool) {
        if rate > self.gate.rate() || may_fall || self.backlog() == 0 {
            self.gate.set_rate(rate);
        }
    }

    /// Sends all that is queued for a node, until nothing is.
    async fn serve(self: Arc<Self>, to: &NodeId) {
        let (turn, more) = (Arc::new(tokio::sync::Mutex::new(())), self.more(to));
        let mut under_way = FuturesUnordered::new();
        loop {
            // One after the other is read and written; grains queued meanwhile go together.
            while under_way.len() < STREAMS
                && let Ok(turn) = Arc::clone(&turn).try_lock_owned()
                && let Some(parcel) = self.next(to)
            {
                under_way.push(self.send(to, parcel, turn, &more));
            }
            if under_way.is_empty() && self.rests(to) {
                return;
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                Some(()) = under_way.next() => {}
                () = more.notified() => {}
            }
        }
    }

    /// Woken when something is queued for a node.
    fn more(&self, to: &NodeId) -> Arc<Notify> {
        Arc::clone(&self.state().lanes.entry(to.clone()).or_default().more)
    }

    /// Whether nothing is queued for a node: then it has no sender any more.
    fn rests(&self, to: &NodeId) -> bool {
        let mut state = self.state();
        let lane = state.lanes.entry(to.clone()).or_default();
        lane.is_served = !lane.queue.is_empty();
        !lane.is_served
    }

    /// How many grains go in one stream, at least one.
    pub(crate) fn stream_grains(&self, epoch: u32) -> usize {
        let bytes = self.engine.stream_bytes(&self.run, epoch, STREAM_BYTES);
        usize::try_from(bytes / self.grain_bytes).unwrap_or(usize::MAX).max(1)
    }

    /// The next parcel for a node, with those that may go with it.
    fn next(&self, to: &NodeId) -> Option<Parcel> {
        let mut state = self.state();
        let queue = &mut state.lanes.get_mut(to)?.queue;
        let mut parcel = queue.pop_front()?;
        let most = self.stream_grains(parcel.epoch);
        let mut joined = 0;
        while let Some(next) = queue.front()
            && (next.epoch, next.generation, next.tries) == (parcel.epoch, parcel.generation, parcel.tries)
            && parcel.grains.len() + next.grains.len() <= most
        {
            parcel.grains.extend(queue.pop_front().expect("just seen").grains);
            joined += 1;
        }
        if let Some(left) = state.left.get_mut(&parcel.epoch) {
            *left -= joined;
        }
        Some(parcel)
    }

    async fn send(&self, to: &NodeId, parcel: Parcel, turn: OwnedMutexGuard<()>, written: &Notify) {
        let (run, count) = (&self.run, parcel.grains.len() as u64);
        self.begin(parcel.epoch);
        let began = Instant::now();
        // Missing grains, while the cache is still being filled, are fetched first: they are hosted here
        // anyway.
        let leaving = parcel.grains.iter().copied();
        let loose = self.engine.obtain(run, parcel.epoch, leaving).await.unwrap_or_else(|error| {
            debug!(peer = %to, epoch = parcel.epoch, chunk = parcel.chunk, %error, "not all of a chunk \
                could be fetched");
            HashMap::new()
        });
        let (epoch, chunk, generation) = (parcel.epoch, parcel.chunk, parcel.generation);
        let header = SendHeader {
            run: run.record.id.clone(),
            plan: run.record.plan,
            version: run.record.version,
            purpose: Purpose::Exchange { epoch, chunk, generation },
        };
        let (give, take) = mpsc::channel((BYTES_READ / self.grain_bytes).clamp(1, GRAINS_READ) as usize);
        let gates = Gates { outbox: self, epoch, left: self.bytes_of(&parcel).into() };
        let feed = async {
            let bytes = self.feed(&parcel.grains, &loose, give).await;
            drop(turn);
            written.notify_one();
            bytes
        };
        let (ack, (given, bytes)) =
            tokio::join!(self.engine.peers.send(to, header, take, Some(&gates)), feed);
        let stored = match &ack {
            Ok(ack) => ack.stored.min(count),
            Err(error) => {
                debug!(peer = %to, epoch, chunk, %error, "a chunk was not taken");
                0
            }
        };
        if stored == count {
            run.unacknowledged.acknowledge(epoch, &parcel.grains);
            self.engine.let_go(run, epoch, &parcel.grains).await;
        }
        let goes_again =
            ack.is_ok() && stored < given && parcel.tries < MOST_TRIES && self.may_send_again(&parcel);
        if ack.is_ok() {
            self.engine.counters.sent_to(run.name(), to, bytes, 0);
        }
        self.engine.counters.exchange(run.name(), epoch, |counts| {
            if !goes_again {
                counts.sent_grains += stored;
                counts.unsent_grains += count - stored;
            }
            counts.sent_bytes += if ack.is_ok() { bytes } else { 0 };
        });
        run.stretches.note(Work::Send, epoch, Some(to.clone()), stored, began);
        if goes_again {
            self.put_back(to, Parcel { tries: parcel.tries + 1, ..parcel });
        }
        self.end(epoch);
        if ack.is_err() {
            // It takes nothing now. What waits for it is not tried piece by piece: it will ask.
            self.give_up(to, |_| true);
        }
    }

    /// Whether refused grains may find room later: while a rank reads, and by the placement of their address.
    fn may_send_again(&self, parcel: &Parcel) -> bool {
        self.engine.is_short(&self.run, parcel.epoch)
            && parcel.generation == self.run.generation()
            && !self.is_ending.load(Relaxed)
    }

    /// Notes that the run has no readers left. From now on no refused parcel is sent again.
    pub(crate) fn end_soon(&self) {
        self.is_ending.store(true, Relaxed);
    }

    /// Reads grains and gives them to a stream. Returns how many there were, and their bytes.
    async fn feed(
        &self,
        grains: &[GrainNo],
        loose: &HashMap<GrainNo, Bytes>,
        give: mpsc::Sender<(GrainKey, Bytes)>,
    ) -> (u64, u64) {
        let (mut given, mut bytes_out) = (0, 0);
        for piece in grains.chunks((PIECE_BYTES / self.grain_bytes).max(1) as usize) {
            // A grain that could not be had is missed by its next host, which then asks a node that has it.
            for (grain, bytes) in self.engine.read_all_cached(&self.run, piece, loose).await {
                bytes_out += bytes.len() as u64;
                if give.send((self.run.key(grain), bytes)).await.is_err() {
                    return (given, bytes_out); // the connection is gone; `send` says why
                }
                given += 1;
            }
        }
        (given, bytes_out)
    }

    fn give_up(&self, to: &NodeId, is_given_up: impl Fn(&Parcel) -> bool) {
        let mut state = self.state();
        let Some(lane) = state.lanes.get_mut(to) else { return };
        let (dropped, kept): (VecDeque<Parcel>, VecDeque<Parcel>) =
            std::mem::take(&mut lane.queue).into_iter().partition(|parcel| is_given_up(parcel));
        lane.queue = kept;
        for parcel in &dropped {
            let count = parcel.grains.len() as u64;
            state.passed(parcel.epoch, self.bytes_of(parcel));
            state.settle(parcel.epoch);
            self.engine
                .counters
                .exchange(self.run.name(), parcel.epoch, |counts| counts.unsent_grains += count);
        }
        self.look(&state);
    }

    /// The weight of a parcel, estimated before its grains are read.
    fn bytes_of(&self, parcel: &Parcel) -> u64 {
        (parcel.grains.len() as u64).saturating_mul(self.grain_bytes)
    }

    fn begin(&self, epoch: u32) {
        let mut state = self.state();
        state.under_way.entry(epoch).or_insert_with(|| (0, Instant::now())).0 += 1;
    }

    fn end(&self, epoch: u32) {
        let mut state = self.state();
        let (streams, since) = state.under_way.get_mut(&epoch).expect("it began");
        *streams -= 1;
        if *streams == 0 {
            let time = since.elapsed();
            state.under_way.remove(&epoch);
            Counters::add_time(&self.engine.counters.exchange_micros, time);
            self.engine.counters.exchange(self.run.name(), epoch, |counts| {
                counts.sending_micros += micros(time);
            });
        }
        state.settle(epoch);
        self.look(&state);
    }

    /// Publishes the rest to the waiting tasks.
    fn look(&self, state: &State) {
        let oldest = state.left.keys().next().copied();
        self.oldest.send_if_modified(|known| std::mem::replace(known, oldest) != oldest);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }
}

/// The gates of a parcel on its way out: the run's and the node's. Bytes that have passed wait no more, and
/// nor does the rest when the parcel's sending ends.
struct Gates<'a> {
    outbox: &'a Outbox,
    epoch: u32,
    /// Bytes that are thought to be left.
    left: AtomicU64,
}

#[async_trait]
impl Pace for Gates<'_> {
    async fn pass(&self, bytes: u64) {
        self.outbox.gate.pass(bytes).await;
        self.outbox.engine.exchange.gate.pass(bytes).await;
        // One stream asks, piece after piece.
        let left = self.left.load(Relaxed);
        let passed = bytes.min(left);
        self.left.store(left - passed, Relaxed);
        self.outbox.state().passed(self.epoch, passed);
    }
}

impl Drop for Gates<'_> {
    fn drop(&mut self) {
        self.outbox.state().passed(self.epoch, *self.left.get_mut());
    }
}

impl State {
    /// A number of bytes waits no more.
    fn passed(&mut self, epoch: u32, bytes: u64) {
        if let Entry::Occupied(mut backlog) = self.backlog.entry(epoch) {
            *backlog.get_mut() -= bytes;
            if *backlog.get() == 0 {
                backlog.remove();
            }
        }
    }

    /// One parcel less.
    fn settle(&mut self, epoch: u32) {
        let left = self.left.get_mut(&epoch).expect("it was put in");
        *left -= 1;
        if *left == 0 {
            self.left.remove(&epoch);
        }
    }
}
