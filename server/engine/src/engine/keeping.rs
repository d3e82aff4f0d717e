//! What of a run this node keeps where its cache has no room for all that it hosts: chosen once for an epoch (`kept.rs` says how),
//! and let go of as soon as its next host has it. The rest is read past the cache (`past.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use shardd_api::capacity::{self, Kept};
use shardd_api::node::{NodeId, NodeRecord};
use shardd_api::protocol::Placement;
use shardd_plan::GrainNo;
use shardfmt::GrainKey;
use tokio::time::{Duration, Instant, timeout_at};
use tracing::warn;

use super::obtain::Absorbed;
use super::run::RunState;
use super::{Engine, blocking};
use crate::cache::Class;

/// How long arriving grains wait for room. Their sender may be waiting for the same.
const ROOM_TIMEOUT: Duration = Duration::from_secs(2);

/// A cache's room for grains on their way is enough for this number of streams.
const STREAMS_A_SPARE: u64 = 16;

/// A part of it is kept free: while less is, grains that have yet to leave are moved together. Room that is
/// taken up by grains that have left already would in the end keep every node from taking the grains that the
/// others wait to send.
const SPARES_A_MOVE: u64 = 4;

impl Engine {
    /// Which grains this node keeps of those that it hosts in `epoch`. Worked out once, and again when the placement or what else
    /// the caches are for has changed.
    pub(super) fn kept(&self, run: &RunState, epoch: u32) -> Arc<Kept> {
        let news = (self.runs.news.load(Relaxed), run.generation());
        if let Some(kept) = run.keeping.chosen(epoch, news) {
            return kept;
        }
        let kept = Arc::new(self.choose(run, epoch));
        run.keeping.choose(epoch, news, &kept);
        kept
    }

    fn choose(&self, run: &RunState, epoch: u32) -> Kept {
        // Also where there is room for all: who waits for an answer finds the epoch worked out.
        let view = run.epochs.view(epoch);
        let Some(placement) = run.placement() else {
            return Kept::default().with_spare(u64::MAX);
        };
        let share = self.share_for(run, &placement);
        let count = placement.hosts.len() as u64;
        let free = |host: &NodeId| {
            let free = share.get(host).copied().unwrap_or(u64::MAX);
            if *host == self.node { free.min(self.cache.limit()) } else { free }
        };
        let room =
            |host: &NodeId| run.needs.kept_bytes(placement.hosted_by(host).count() as u64, free(host), count);
        let rooms: Vec<Option<u64>> = placement.hosts.iter().map(room).collect();
        let number = |node: &NodeId| placement.hosts.iter().position(|host| host == node);
        let hosts: Vec<usize> = (0..run.plan.document().partitions)
            .map(|partition| number(placement.host(partition)).expect("a placement lists its hosts"))
            .collect();
        let host = |grain| hosts[view.partition_of(grain) as usize];
        let own = number(&self.node);
        let spare = own.and_then(|own| Some(free(&self.node).saturating_sub(rooms[own]?)));
        let kept = Kept::of(&run.plan, host, &rooms, |grain| run.resting_bytes(grain), own);
        kept.with_spare(spare.unwrap_or(u64::MAX))
    }

    /// The room of each live node's cache for a run, by its placement: the rest that other runs leave, and
    /// where there is not enough for all of them, as much as the others have for their needs.
    pub(super) fn share_for(&self, run: &RunState, placement: &Placement) -> BTreeMap<NodeId, u64> {
        let (reserved, nodes) = (self.reserved_beside(run), self.nodes());
        let share = |node: NodeRecord| {
            let needed =
                run.needs.partition_bytes.saturating_mul(placement.hosted_by(&node.id).count() as u64);
            let others = reserved.get(&node.id).copied().unwrap_or(0);
            (node.id, capacity::share(node.cache_bytes, needed, others))
        };
        nodes.into_iter().map(share).collect()
    }

    /// Whether there is not room for all that this node hosts of the run.
    pub(super) fn is_short(&self, run: &RunState, epoch: u32) -> bool {
        self.kept(run, epoch).is_short()
    }

    /// Whether the cache is for this grain.
    pub(super) fn keeps(&self, run: &RunState, epoch: u32, grain: GrainNo) -> bool {
        let kept = self.kept(run, epoch);
        let has_gone = || run.keeping.has_left(epoch, grain) || run.keeping.has_ended(epoch, grain);
        let is_own = || run.is_hosted_by(&self.node, grain, epoch) && !has_gone();
        !kept.is_short() || (kept.has(grain) && is_own())
    }

    /// Whether the grain's rows are read past the cache: this node is the one to have it, and does not; nor does its next host.
    pub(super) fn passes_by(&self, run: &RunState, epoch: u32, grain: GrainNo) -> bool {
        let kept = self.kept(run, epoch);
        let has_gone = || run.keeping.has_ended(epoch, grain);
        kept.is_short()
            && (!kept.has(grain) || run.keeping.found_no_room(epoch, grain) || has_gone())
            && run.is_hosted_by(&self.node, grain, epoch)
    }

    /// The most that is sent in one stream, in bytes: where room is short, little beside the others' room for
    /// it, so that grains that have arrived soon make room here.
    pub(super) fn stream_bytes(&self, run: &RunState, epoch: u32, most: u64) -> u64 {
        most.min(self.kept(run, epoch).spare_bytes / STREAMS_A_SPARE)
    }

    /// Puts grains for the epoch after this one into the cache. Where room is short, arriving grains may be a
    /// little ahead of leaving ones: they wait for them, within bounds.
    pub(super) async fn absorb_coming(
        self: &Arc<Self>,
        run: &Arc<RunState>,
        epoch: u32,
        grains: Vec<(GrainNo, Bytes)>,
    ) -> Absorbed {
        let (deadline, is_short) = (Instant::now() + ROOM_TIMEOUT, self.is_short(run, epoch));
        let (mut all, mut left) = (Absorbed::default(), grains);
        loop {
            let mut freed = std::pin::pin!(run.keeping.freed.notified());
            freed.as_mut().enable();
            let Absorbed { stored, unstored, corrupt } = self.absorb(run, epoch, left).await;
            all.stored.extend(stored);
            all.corrupt.extend(corrupt);
            if unstored.is_empty() || !is_short || timeout_at(deadline, freed).await.is_err() {
                return Absorbed { unstored, ..all };
            }
            left = unstored;
        }
    }

    /// The class under which a grain is kept for `epoch`.
    pub(super) fn class(&self, run: &RunState, grain: GrainNo, epoch: u32) -> Class {
        let is_guest = run.placement().is_some() && !run.is_hosted_by(&self.node, grain, epoch);
        match self.is_short(run, epoch) {
            _ if is_guest => run.class(grain, epoch).of_guests(),
            true => run.class_on(&self.node, grain, epoch),
            false => run.class(grain, epoch),
        }
    }

    /// Their next hosts have these grains. Where room is short they make room at once for arriving grains: a
    /// rank that still reads them in `epoch` gets them from there.
    pub(super) async fn let_go(self: &Arc<Self>, run: &Arc<RunState>, epoch: u32, grains: &[GrainNo]) {
        if !self.is_short(run, epoch) {
            return;
        }
        run.keeping.leave(epoch, grains);
        let (engine, run) = (Arc::clone(self), Arc::clone(run));
        let drop_segments = move || {
            let kept_next = engine.kept(&run, epoch + 1);
            let has_left =
                |key: &GrainKey| run.grain(key).is_none_or(|grain| run.keeping.has_left(epoch, grain));
            let may_go = |key: &GrainKey| {
                let Some(grain) = run.grain(key) else { return true };
                let ends = !kept_next.has(grain);
                if ends {
                    run.keeping.may_end(epoch, grain);
                }
                ends || run.keeping.has_left(epoch, grain)
            };
            let need = engine.kept(&run, epoch).spare_bytes / SPARES_A_MOVE;
            let _one_after_the_other = run.keeping.letting_go.lock().expect("no panic while held");
            if let Err(error) = engine.cache.drop_left(run.name(), epoch, need, may_go, has_left) {
                warn!(run = run.name(), epoch, %error, "grains that have left could not be dropped");
            }
            run.keeping.freed.notify_waiters();
        };
        blocking(drop_segments).await;
    }
}
