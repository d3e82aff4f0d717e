//! The exchange: finds the due grains among those that the plan moves while ranks still read the epoch
//! before, takes incoming grains, and drops those that have left. No coordinator, no commit: both ends derive
//! from the plan what moves.
//!
//! `schedule` names the due chunks; `outbox` sends them, at a pace by which they have gone when the next chunk is due. What could
//! not be sent is not an error: the next host will miss it and ask.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use shardd_api::exchange::ExchangeRate;
use shardd_api::node::NodeId;
use shardd_api::protocol::{Placement, RanksRecord};
use shardd_api::timeline::Work;
use shardd_plan::{Epoch, GrainNo, Move, Partition};
use shardfmt::GrainKey;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::run::RunState;
use super::run::outbox::{Outbox, Parcel};
use super::schedule::{Command, Due, Event, Schedule};
use super::{Counters, Engine, blocking};
use crate::cache::Class;
use crate::peers::{Ack, Purpose, SendHeader};

impl Engine {
    /// Follows a run until it has `ended`, and then once more, so that the caches are left as the next epoch wants them; or
    /// until `stop`. Fills, sends due grains, forgets those that have left.
    pub(crate) async fn drive(
        self: Arc<Self>,
        run: Arc<RunState>,
        ended: CancellationToken,
        stop: CancellationToken,
    ) {
        let mut progress = run.ranks.progress.subscribe();
        let mut placements = run.placement.subscribe();
        let mut settings = self.exchange.settings.subscribe();
        // Nothing is sent any more when this ends.
        let sending = stop.child_token();
        let outbox = Outbox::new(&self, &run, sending.clone());
        run.sends_from(&outbox);
        let _sending = sending.clone().drop_guard();
        let mut oldest = outbox.oldest();
        let (mut schedule, began) = (Schedule::new(Arc::clone(&run.plan)), Instant::now());
        loop {
            let furthest = progress.borrow_and_update().furthest();
            if let (Some(furthest), Some(wire)) = (furthest, self.origin.wire()) {
                run.store_epochs.note(furthest, wire);
            }
            let generation = placements.borrow_and_update().now.as_ref().map(|now| now.generation);
            if let (Some((epoch, position)), Some(generation)) = (furthest, generation) {
                let read = Event::Read { at: began.elapsed(), epoch, position, generation };
                self.obey(&run, &outbox, schedule.step(read), &stop).await;
                let queued = Event::Queued {
                    at: began.elapsed(),
                    backlog: outbox.backlog(),
                    is_overdue: outbox.is_overdue(epoch),
                    is_limited: settings.borrow_and_update().rate != ExchangeRate::Unlimited,
                };
                self.obey(&run, &outbox, schedule.step(queued), &stop).await;
                if schedule.is_last() {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = run.removed.cancelled() => sending.cancel(),
                        _ = oldest.wait_for(Option::is_none) => {}
                        _ = settings.wait_for(|settings| settings.paused) => sending.cancel(),
                    }
                }
                if stop.is_cancelled() {
                    return; // not all was sent: nothing is forgotten
                }
                let slowest = run.ranks.progress.borrow().slowest_epoch();
                let sent = Event::Sent { oldest: *oldest.borrow_and_update(), slowest };
                self.obey(&run, &outbox, schedule.step(sent), &stop).await;
            }
            if schedule.is_last() {
                return;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = ended.cancelled() => {
                    let commands = schedule.step(Event::Ended);
                    self.obey(&run, &outbox, commands, &stop).await;
                }
                changed = progress.changed() => if changed.is_err() { return },
                changed = placements.changed() => if changed.is_err() { return },
                // The outbox and the engine are here: these do not end.
                _ = oldest.changed() => {}
                _ = settings.changed() => {}
            }
        }
    }

    /// Carries out what the schedule asks for, in order.
    async fn obey(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        outbox: &Arc<Outbox>,
        commands: Vec<Command>,
        stop: &CancellationToken,
    ) {
        for command in commands {
            match command {
                Command::Fill { epoch, generation, is_new } => {
                    // Worked out here, so that those who wait for an answer find it done.
                    let (engine, state) = (Arc::clone(self), Arc::clone(run));
                    let prepare = move || {
                        engine.find_left(&state, epoch);
                        drop(engine.kept(&state, epoch));
                    };
                    blocking(prepare).await;
                    if is_new {
                        self.spawn_publish(run, epoch, stop);
                    }
                    self.spawn_fill(run, epoch, generation, stop);
                }
                Command::GiveUp { from, epoch } => self.keep_for_those_who_ask(run, from, epoch),
                Command::DropBefore { epoch } => outbox.drop_before(epoch),
                Command::Queue(due) => self.queue_chunk(run, due, outbox),
                Command::Pace { rate, may_fall } => outbox.set_rate(rate, may_fall),
                Command::Forget { through } => self.forget(run, through).await,
                Command::EndSoon => outbox.end_soon(),
            }
        }
    }

    /// Fills for `epoch` beside the exchange; a newer epoch's fill does not wait for an older one's.
    fn spawn_fill(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        epoch: u32,
        generation: u64,
        stop: &CancellationToken,
    ) {
        let (engine, run, stop) = (Arc::clone(self), Arc::clone(run), stop.clone());
        let attempt = run.filling.begin(epoch, generation);
        self.lifecycle.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = run.removed.cancelled() => {}
                filled = engine.ensure(&run, epoch) => match filled {
                    Ok(()) => {
                        run.filling.end(attempt);
                        engine.tell_copied(&run, generation).await;
                        if let Err(error) = engine.scrub(&run, epoch).await {
                            warn!(run = run.name(), epoch, %error, "grains damaged on disk could not be \
                                read again; they will be misses");
                        }
                    }
                    Err(error) => {
                        run.filling.end(attempt);
                        warn!(run = run.name(), epoch, %error, "the cache could not be filled; reads will \
                            miss and ask again");
                    }
                },
            }
        });
    }

    /// Lets the metastore know that the run has reached `epoch`, for nodes that come back later. No caller
    /// waits for it.
    fn spawn_publish(self: &Arc<Self>, run: &Arc<RunState>, epoch: u32, stop: &CancellationToken) {
        let (engine, run, stop) = (Arc::clone(self), Arc::clone(run), stop.clone());
        self.lifecycle.tasks.spawn(async move {
            let publish = engine.change_ranks(&run.record.id, |ranks| {
                ranks.map(|ranks| RanksRecord { reached: ranks.reached.max(epoch), ..ranks })
            });
            tokio::select! {
                () = stop.cancelled() => {}
                published = publish => if let Err(error) = published {
                    debug!(run = run.name(), epoch, %error, "the run's epoch could not be published");
                },
            }
        });
    }

    fn queue_chunk(&self, run: &RunState, due: Due, outbox: &Arc<Outbox>) {
        let Some(placement) = run.placement() else { return };
        let (out, expected) = self.chunk_of_node(run, due, &placement);
        self.counters.exchange(run.name(), due.epoch, |counts| counts.expected_grains += expected);
        for (to, grains) in out {
            let Due { epoch, chunk } = due;
            let generation = placement.generation;
            let together = if self.is_short(run, epoch) { outbox.stream_grains(epoch) } else { grains.len() };
            for grains in grains.chunks(together.max(1)) {
                let parcel = Parcel { epoch, chunk, generation, grains: grains.to_vec(), tries: 0 };
                outbox.put(to.clone(), parcel);
            }
        }
    }

    /// Chunks from `due` up to `epoch` are never sent. The grains of the last epoch among them stay here until their next
    /// hosts have read the epoch that they miss them in.
    fn keep_for_those_who_ask(&self, run: &RunState, due: Due, epoch: u32) {
        let Some(placement) = run.placement() else { return };
        // Grains that left before the last epoch have long been misses, and fetched.
        let last = epoch - 1;
        let first = if last == due.epoch { due.chunk } else { 0 };
        for chunk in first..run.plan.document().chunks {
            let (out, _) = self.chunk_of_node(run, Due { epoch: last, chunk }, &placement);
            let count = out.values().map(Vec::len).sum::<usize>() as u64;
            self.counters.exchange(run.name(), last, |counts| counts.unsent_grains += count);
            run.unacknowledged.add(last, out.into_values().flatten());
        }
    }

    /// The grains of a chunk that leave this node, by their next node, and how many grains should come in.
    fn chunk_of_node(
        &self,
        run: &RunState,
        due: Due,
        placement: &Placement,
    ) -> (BTreeMap<NodeId, Vec<GrainNo>>, u64) {
        let view = run.epochs.view(due.epoch);
        let exchange = run.plan.exchange(Epoch(due.epoch));
        // Where room is short, no node has grains that their host does not keep, and none sends those that
        // their next host does not.
        let (kept, kept_next) = (self.kept(run, due.epoch), self.kept(run, due.epoch.saturating_add(1)));
        let grain_in = |(partition, slot)| view.table.grain(&run.plan, partition, slot);
        let mut out: BTreeMap<NodeId, Vec<GrainNo>> = BTreeMap::new();
        let mut expected = 0;
        for partition in placement.hosted_by(&self.node) {
            for step in exchange.sends(due.chunk, Partition(partition)) {
                let to = placement.host(step.to.0.0);
                if *to == self.node {
                    continue;
                }
                let grain = grain_in(step.from);
                if kept.has(grain) && kept_next.has(grain) {
                    out.entry(to.clone()).or_default().push(grain);
                }
            }
            let comes_in = |step: &Move| {
                let grain = || grain_in(step.from);
                *placement.host(step.from.0.0) != self.node && kept.has(grain()) && kept_next.has(grain())
            };
            expected += exchange.receives(due.chunk, Partition(partition)).filter(comes_in).count() as u64;
        }
        (out, expected)
    }

    /// The bytes of those of `grains` that are in `loose` or in the cache, unverified: the receiver verifies.
    pub(super) async fn read_all_cached(
        self: &Arc<Self>,
        run: &RunState,
        grains: &[GrainNo],
        loose: &HashMap<GrainNo, Bytes>,
    ) -> Vec<(GrainNo, Bytes)> {
        let absent = grains.iter().copied().filter(|grain| !loose.contains_key(grain));
        let mut read = self.read_cached(run, absent).await;
        let bytes =
            |grain: &GrainNo| Some((*grain, loose.get(grain).cloned().or_else(|| read.remove(grain))?));
        grains.iter().filter_map(bytes).collect()
    }

    /// Takes a stream of grains from a peer; the answer promises that the stored grains are durable.
    pub(crate) async fn take_grains(
        self: &Arc<Self>,
        from: &NodeId,
        run: &Arc<RunState>,
        header: &SendHeader,
        mut grains: mpsc::Receiver<(GrainKey, Bytes)>,
    ) -> Ack {
        let (held_in, generation) = match header.purpose {
            Purpose::Exchange { epoch, generation, .. } => (epoch + 1, generation),
            Purpose::Fill { epoch, generation } => (epoch, generation),
        };
        self.know_placement(run, generation).await;
        // Of a run without a placement the hosts are not known.
        let placement = run.placement();
        let view = run.epochs.view(held_in);
        let is_hosted = |grain: &GrainNo| {
            placement.as_ref().is_none_or(|placement| *placement.host(view.partition_of(*grain)) == self.node)
        };
        let mut ack = Ack { stored: 0, refused: 0 };
        let began = Instant::now();
        let mut bytes_in = 0;
        let mut classes: BTreeSet<Class> = BTreeSet::new();
        let mut batch = Vec::new();
        while grains.recv_many(&mut batch, 64).await > 0 {
            let mut taken = Vec::new();
            for (key, bytes) in batch.drain(..) {
                match run.grain(&key) {
                    // A copy that would leave before its next epoch is no answer: it is written again, to
                    // leave later.
                    Some(_) if let Some(class) = self.stays_until(run, &key, held_in) => {
                        classes.insert(class); // perhaps another stream's, not synced yet
                        ack.stored += 1;
                    }
                    Some(grain) if is_hosted(&grain) => taken.push((grain, bytes)),
                    // Of another version, of grains of another size, or another node's.
                    Some(_) | None => ack.refused += 1,
                }
            }
            // Grains not meant for this cache need not be sent again, and its sender may let it go.
            let (taken, passed): (Vec<_>, Vec<_>) =
                taken.into_iter().partition(|(grain, _)| self.keeps(run, held_in, *grain));
            ack.stored += passed.len() as u64;
            let size: usize = taken.iter().map(|(_, bytes)| bytes.len()).sum();
            let absorbed = self.absorb_coming(run, held_in, taken).await;
            for grain in &absorbed.stored {
                classes.insert(self.class(run, *grain, held_in));
            }
            bytes_in += size;
            ack.stored += absorbed.stored.len() as u64;
            ack.refused += (absorbed.corrupt.len() + absorbed.unstored.len()) as u64;
            if let Some(grain) = absorbed.corrupt.first() {
                Counters::add(&self.counters.corrupt_from_peers, absorbed.corrupt.len());
                self.neighbours.health.gave_wrong(from, absorbed.corrupt.len());
                warn!(peer = %from, grain = %run.key(*grain), "a peer sent grains that do not match the manifest; refused");
            }
            run.arrived.notify_waiters();
        }
        if !self.make_durable(classes.into_iter()).await {
            ack = Ack { stored: 0, refused: ack.stored + ack.refused };
        }
        let (Purpose::Exchange { epoch, .. } | Purpose::Fill { epoch, .. }) = header.purpose;
        run.stretches.note(Work::Receive, epoch, Some(from.clone()), ack.stored, began);
        if let Purpose::Exchange { epoch, .. } = header.purpose {
            self.counters.exchange(run.name(), epoch, |counts| {
                counts.received_grains += ack.stored;
                counts.received_bytes += bytes_in as u64;
            });
        }
        ack
    }

    /// The class under which a run that is being read wants a grain kept here, because the node hosts it. `from` is a run that
    /// may just have ended, and the first of its epochs that counts.
    pub(crate) fn hosted_class<'a>(
        &'a self,
        from: Option<(&'a Arc<RunState>, u32)>,
    ) -> impl Fn(&GrainKey) -> Option<Class> + 'a {
        let mut runs = self.active_run_states();
        if let Some((own, _)) = from
            && !runs.iter().any(|run| Arc::ptr_eq(run, own))
        {
            runs.push(Arc::clone(own)); // it has just ended
        }
        move |key| {
            runs.iter().find_map(|run| {
                let grain = run.grain(key)?;
                let first = from.filter(|(own, _)| Arc::ptr_eq(own, run)).map_or(0, |(_, first)| first);
                let is_wanted = |epoch: &u32| {
                    *epoch >= first
                        && run.is_hosted_by(&self.node, grain, *epoch)
                        && self.keeps(run, *epoch, grain)
                };
                let epoch = epochs_in_use(run)?.find(is_wanted)?;
                Some(self.class(run, grain, epoch))
            })
        }
    }

    /// The run's class under which the grain is here, if it is not about to be dropped before `epoch`, or whenever room is wanted.
    fn stays_until(&self, run: &RunState, key: &GrainKey, epoch: u32) -> Option<Class> {
        let stays =
            |class: &Class| class.run == run.name() && class.departs >= epoch && !class.is_of_guests();
        self.cache.class_of(key).filter(stays)
    }

    /// Syncs the segments of `classes`: a caller that arrives while others are being synced shares the next
    /// turn, so that many small streams cost few syncs. False: the disk does not promise.
    async fn make_durable(self: &Arc<Self>, classes: impl Iterator<Item = Class>) -> bool {
        let ticket = {
            let mut waiting = self.exchange.unsynced.lock().expect("no panic while held");
            waiting.classes.extend(classes);
            waiting.round
        };
        // A task of its own: a sender that gives up must not take others' classes with it.
        let engine = Arc::clone(self);
        let synced = self.lifecycle.tasks.spawn(async move { engine.sync_round(ticket).await });
        synced.await.unwrap_or(false)
    }

    async fn sync_round(self: Arc<Self>, ticket: u64) -> bool {
        let mut turn = self.exchange.sync_turn.lock().await;
        if turn.synced > ticket {
            return !turn.failed;
        }
        let (classes, round) = {
            let mut waiting = self.exchange.unsynced.lock().expect("no panic while held");
            waiting.round += 1;
            (std::mem::take(&mut waiting.classes), waiting.round)
        };
        let engine = Arc::clone(&self);
        let began = Instant::now();
        let synced = blocking(move || classes.iter().try_for_each(|class| engine.cache.sync(class))).await;
        self.neighbours.health.sync_took(began.elapsed());
        turn.synced = round;
        if let Err(error) = synced
            && !turn.failed
        {
            warn!(%error, "the cache's disk does not sync; nothing is acknowledged any more");
            turn.failed = true;
        }
        !turn.failed
    }

    /// Drops the segments whose grains have left after `through`, keeping grains that a reader still needs.
    async fn forget(self: &Arc<Self>, run: &Arc<RunState>, through: u32) {
        let (engine, run) = (Arc::clone(self), Arc::clone(run));
        let drop_segments = move || {
            let unacknowledged = run.unacknowledged.take(through);
            let hosted = engine.hosted_class(Some((&run, through + 1)));
            let wanted = |key: &GrainKey| {
                hosted(key).or_else(|| {
                    let missed = unacknowledged.contains(&run.grain(key)?);
                    missed.then(|| Class::until(run.name(), through + 1))
                })
            };
            if let Err(error) = engine.cache.drop_through(run.name(), through, wanted) {
                warn!(run = run.name(), epoch = through, %error, "grains that have left could not be dropped");
            }
            run.keeping.freed.notify_waiters();
        };
        blocking(drop_segments).await;
    }
}

/// Classes with grains that are written and not yet synced, and how many rounds of syncing there have been.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    classes: BTreeSet<Class>,
    round: u64,
}

/// Held by the caller that syncs.
#[derive(Debug, Default)]
pub(super) struct SyncTurn {
    /// Rounds up to here are on disk.
    synced: u64,
    /// A sync failed: a later one that succeeds proves nothing about what came before.
    failed: bool,
}

/// The epochs that a run is being read in, from its slowest rank's to its furthest's; `None`: no rank has
/// reported. What the exchange has brought for later ones is kept under classes that leave later.
pub(super) fn epochs_in_use(run: &RunState) -> Option<RangeInclusive<u32>> {
    let progress = run.ranks.progress.borrow();
    let (furthest, _) = progress.furthest()?;
    Some(progress.slowest_epoch().unwrap_or(furthest)..=furthest)
}
