//! The ranks that read at this node: how far each has come, and when it was heard of.

use std::collections::BTreeMap;
use std::sync::Mutex;

use shardd_api::duration::now;
use shardd_api::local_transport::Transport;
use shardd_api::loop_time::LoopTime;
use shardd_api::protocol::{RanksRecord, RunId};
use shardd_api::status::{Reader, RunRate};
use tokio::sync::watch;
use tokio::time::{Duration, Instant};

use super::rank_pace::RankPace;

/// A rank that reports its place and, for this time, not where the time of its loop goes, has another node. Loaders report that
/// every five seconds.
const LEFT: Duration = Duration::from_secs(15);

/// How far each rank that reads here has come, and where the launch began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    world: u32,
    /// The launch that the reports belong to.
    launch: u64,
    /// The furthest that any rank has come; ranks that leave do not turn it back.
    furthest: Option<(u32, u64)>,
    ranks: BTreeMap<u32, (u32, u64)>,
}

impl Progress {
    fn of_launch(launch: u64, world: u32, epoch: u32) -> Self {
        Self { world, launch, furthest: Some((epoch, 0)), ranks: BTreeMap::new() }
    }

    /// The (epoch, position) of the rank that is ahead: what the exchange is timed by.
    pub(crate) fn furthest(&self) -> Option<(u32, u64)> {
        self.furthest
    }

    /// The epoch of the rank that is behind: what came before may be forgotten.
    /// A rank that asked here once, when its own node was away, holds nothing up: the one before the furthest counts at least.
    pub(crate) fn slowest_epoch(&self) -> Option<u32> {
        let slowest = self.ranks.values().map(|(epoch, _)| *epoch).min()?;
        Some(slowest.max(self.furthest.map_or(0, |(epoch, _)| epoch.saturating_sub(1))))
    }

    pub(crate) fn rank(&self, rank: u32) -> Option<(u32, u64)> {
        self.ranks.get(&rank).copied()
    }
}

/// The ranks that read at this node.
pub(crate) struct Ranks {
    pub(crate) progress: watch::Sender<Progress>,
    /// When a rank was last heard of.
    heard: Mutex<Instant>,
    /// How the ranks get their grains.
    transports: Mutex<BTreeMap<u32, Transport>>,
    /// How fast they read, and where the time of their loops goes.
    paces: Mutex<BTreeMap<u32, RankPace>>,
}

impl Ranks {
    /// None has been heard of.
    pub(crate) fn new() -> Self {
        Self {
            progress: watch::Sender::new(Progress::default()),
            heard: Mutex::new(Instant::now()),
            transports: Mutex::default(),
            paces: Mutex::default(),
        }
    }

    /// A launch began, or came further: forget what ranks of an earlier one reported. `begun` is called if it began, before
    /// others see it.
    pub(crate) fn launched(&self, ranks: &RanksRecord, begun: impl FnOnce()) {
        self.progress.send_if_modified(|progress| {
            let begins = progress.launch < ranks.launch;
            // Where no rank reports, the others' word counts.
            let moves = progress.ranks.is_empty() && progress.furthest < Some((ranks.reached, 0));
            if begins || moves {
                *progress = Progress::of_launch(ranks.launch, ranks.world, ranks.reached);
            }
            if begins {
                begun();
            }
            begins || moves
        });
    }

    /// A rank says how far it has come. Late reports change nothing; one of another world is the first that is heard of its
    /// launch.
    pub(crate) fn report(&self, rank: u32, world: u32, epoch: u32, position: u64) {
        *self.heard.lock().expect("no panic while held") = Instant::now();
        self.progress.send_if_modified(|progress| {
            if progress.world != world {
                *progress = Progress::of_launch(progress.launch, world, epoch);
            }
            let before = progress.ranks.get(&rank).copied();
            let now = before.max(Some((epoch, position)));
            progress.ranks.insert(rank, now.expect("Some is the greater"));
            progress.furthest = progress.furthest.max(now);
            now != before
        });
    }

    /// How a rank gets its grains from here, as it says itself.
    pub(crate) fn note_transport(&self, rank: u32, transport: Transport) {
        self.transports.lock().expect("no panic while held").insert(rank, transport);
    }

    /// Where the time of a rank's loop went, as it reports from a position; an epoch has `samples`.
    pub(crate) fn note_loop_time(
        &self,
        rank: u32,
        time: LoopTime,
        samples: u64,
        (epoch, position): (u32, u64),
    ) {
        let reached = u64::from(epoch).saturating_mul(samples).saturating_add(position);
        let mut paces = self.paces.lock().expect("no panic while held");
        paces.entry(rank).or_default().report(Instant::now(), now(), time, reached);
    }

    /// A rank reports to this node without the time of its loop. It has another node, if it has not reported the time here for
    /// some reports: the user may have given this node by another address than other nodes know.
    pub(crate) fn reported_without_time(&self, rank: u32) {
        let mut paces = self.paces.lock().expect("no panic while held");
        if paces.get(&rank).is_some_and(|pace| pace.is_silent_for(Instant::now(), LEFT)) {
            paces.remove(&rank);
        }
    }

    /// How long ago a rank was heard of on this node.
    pub(crate) fn quiet_for(&self) -> Duration {
        self.heard.lock().expect("no panic while held").elapsed()
    }

    /// Whether ranks that read here were heard of within this time.
    pub(crate) fn was_heard_within(&self, time: Duration) -> bool {
        !self.progress.borrow().ranks.is_empty() && self.quiet_for() < time
    }

    /// A rank has gone: no node waits for it any more.
    pub(crate) fn leave(&self, rank: u32) {
        self.progress.send_if_modified(|progress| progress.ranks.remove(&rank).is_some());
        self.paces.lock().expect("no panic while held").remove(&rank);
    }

    /// The ranks of which was heard here, in their order; an epoch has `samples`.
    pub(crate) fn readers(&self, run: &RunId, samples: u64) -> Vec<Reader> {
        let transports = self.transports.lock().expect("no panic while held").clone();
        let paces = self.paces.lock().expect("no panic while held");
        let at = Instant::now();
        let reader = |(rank, (epoch, position)): (&u32, &(u32, u64))| {
            // Of a rank that is silent, the old numbers say nothing any more.
            let pace = paces.get(rank).filter(|pace| !pace.is_silent(at));
            let recent = pace.and_then(|pace| pace.recent());
            let pace_now = pace.filter(|_| recent.is_some());
            Reader {
                run: run.clone(),
                rank: *rank,
                epoch: *epoch,
                transport: transports.get(rank).copied().unwrap_or_default(),
                position: *position,
                epoch_samples: samples,
                loop_time: pace.and_then(RankPace::time),
                run_rate: pace_now.and_then(RankPace::run_rate).map(|(least, most)| RunRate { least, most }),
                exposed_since: pace_now.and_then(RankPace::exposed_since),
                recent,
            }
        };
        self.progress.borrow().ranks.iter().map(reader).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_rank_that_reports_its_times_elsewhere_is_no_longer_timed_here() {
        let run: RunId = "r".parse().expect("a name");
        let ranks = Ranks::new();
        ranks.report(0, 1, 0, 0);
        ranks.note_loop_time(0, LoopTime { steps: 5, ..LoopTime::default() }, 100, (0, 10));
        let timed = |ranks: &Ranks| ranks.readers(&run, 100)[0].loop_time.map(|time| time.steps);
        assert_eq!(timed(&ranks), Some(5));
        // The same node by another address.
        ranks.reported_without_time(0);
        assert_eq!(timed(&ranks), Some(5));
        tokio::time::advance(LEFT + Duration::from_secs(1)).await;
        ranks.reported_without_time(0);
        assert_eq!((timed(&ranks), ranks.readers(&run, 100).len()), (None, 1), "it still holds grains here");
    }
}
