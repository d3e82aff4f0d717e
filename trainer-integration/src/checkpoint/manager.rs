//! Writes checkpoints in the background.
//!
//! Training blocks only for the copy of this rank's objects in memory; hashing and upload run in the
//! background, and skip objects of the previous checkpoint. After every step the ranks send each other their
//! progress ([`Signal`]), and receive it after the next one, so none waits for an answer: once all objects
//! are stored, rank 0 publishes the manifest. All ranks hear the same in the same step, so all decide alike:
//! when to write, when to stop. At most one checkpoint is under way; the next one waits for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use shardd_store::record::CheckpointWritten;
use shardfmt::Digest;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::CheckpointError;
use super::capture::{Captured, Held};
use super::checkpoint_store::CheckpointStore;
use super::load::{Checkpoint, Resume, load};
use super::manifest::{CheckpointId, Manifest, RESIDUALS};
use super::pieces::pieces;
use super::plan::{Holding, Plan};
use super::upload::{Upload, Written};
use crate::collective::{CollectiveError, Message};
use crate::compress::Residual;
use crate::ledger::Ledger;
use crate::reduce::{Comm, Pending, VirtualRanks};
use crate::zero::Slicing;

/// How long a training that fails waits for a manifest that is being published.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a rank waits for the store before it lets the others know that it is still there: a store may be slower than ranks wait for each other.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Where checkpoints are kept, and how many. When they are written: whenever one of the two is due, and at the end.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    /// The place.
    pub shelf: CheckpointStore,
    /// After every this many steps of the training; the same on all ranks.
    pub every_steps: Option<u64>,
    /// When this time has passed since the last one, by rank 0's clock.
    pub every: Option<Duration>,
    /// How many stay, at least 1.
    pub keep: usize,
}

impl Checkpoints {
    /// The step to whose checkpoint a training of `step` steps goes back: a function of the steps alone, so
    /// that an interrupted training goes back to the same step as an undisturbed one. `None` if checkpoints
    /// are written by the clock.
    pub(crate) fn back_to(&self, step: u64) -> Option<u64> {
        self.every_steps.map(|every| step - step % every)
    }
}

/// Asks a training that keeps checkpoints to end after the step it is at, with a checkpoint. Shared by its clones.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Asks; twice is once.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A rank's message to the others after a step.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Signal {
    /// It was asked to stop.
    stop: bool,
    /// It was asked to pause.
    pause: bool,
    /// It is time for a checkpoint; rank 0's counts.
    is_due: bool,
    /// Its objects of the checkpoint under way are in the store, or why not; reported once.
    written: Option<Result<Written, String>>,
    /// The manifest is, or why not; rank 0's counts, reported once.
    published: Option<Result<(), String>>,
}

/// The joint message of all ranks about the next action.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    stop: bool,
    pause: bool,
    is_due: bool,
}

/// The state of a training at a step, the part that this rank writes.
pub(crate) struct Snapshot<'a> {
    /// All but the objects.
    pub(crate) manifest: Manifest,
    /// The holders of the common state: the same on all ranks, and in the whole training.
    pub(crate) holding: Holding,
    /// This rank's part: no less than that.
    pub(crate) held: Vec<Held<'a>>,
    /// By virtual rank of this rank; empty ones if the model has none.
    pub(crate) statistics: Vec<Vec<f32>>,
    /// Of this rank, if gradients are compressed; then the manifest's format says so on all ranks.
    pub(crate) residual: Option<Residual>,
    /// Where copies of it are counted.
    pub(crate) ledger: Ledger,
    /// Ends when what belongs before the checkpoint is in the store, or cannot be.
    pub(crate) before: Option<oneshot::Receiver<()>>,
}

/// A checkpoint whose manifest is there.
#[derive(Debug)]
struct Published {
    id: CheckpointId,
    /// When it was.
    at: SystemTime,
    /// The same by the clock that its beginning is known by.
    ended: Instant,
    /// Whether those that are not kept are removed.
    is_tidy: bool,
}

/// Something that is being done in the background.
#[derive(Debug)]
struct Job<T>(Option<JoinHandle<Result<T, CheckpointError>>>);

impl<T> Job<T> {
    /// The outcome, if it ends within this time; reported once.
    fn outcome(&mut self, shelf: &CheckpointStore, within: Duration) -> Option<Result<T, String>> {
        let handle = self.0.as_mut()?;
        let ended = shelf.handle().block_on(async { tokio::time::timeout(within, handle).await }).ok()?;
        self.0 = None;
        Some(match ended {
            Ok(outcome) => outcome.map_err(|error| crate::causes::chain(&error)),
            Err(error) => Err(error.to_string()),
        })
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            handle.abort();
        }
    }
}

/// A checkpoint that is being written.
#[derive(Debug)]
struct UnderWay {
    manifest: Manifest,
    /// When it was begun, after the one before was complete.
    begun: Instant,
    plan: Arc<Plan>,
    upload: Option<Job<Written>>,
    /// By rank.
    heard: Vec<Option<Result<Written, String>>>,
    /// On rank 0, once all objects are there.
    publication: Option<Job<Published>>,
    /// On rank 0: why it cannot be published.
    refusal: Option<String>,
}

impl UnderWay {
    /// The manifest with all objects, once all ranks have reported their objects; else why it cannot be.
    fn whole(&self, ranks: VirtualRanks) -> Option<Result<Manifest, String>> {
        let mut manifest = self.manifest.clone();
        let mut found = vec![None; self.plan.pieces.len()];
        for (rank, heard) in (0..).zip(&self.heard) {
            let written = match heard.as_ref()? {
                Ok(written) => written,
                Err(reason) => return Some(Err(format!("rank {rank}: {reason}"))),
            };
            let mut parts = written.parts.iter().copied();
            for index in self.plan.of_rank(rank) {
                found[index] = parts.next();
            }
            let own = if manifest.layout.statistics() > 0 { ranks.of(rank).len() } else { 0 };
            let residuals = usize::from(manifest.format == RESIDUALS);
            let asked = self.plan.of_rank(rank).count() + own + residuals;
            if written.parts.len() != asked {
                return Some(Err(format!("rank {rank} wrote {} objects of {asked}", written.parts.len())));
            }
            manifest.statistics.extend(parts.by_ref().take(own));
            manifest.residuals.extend(parts);
        }
        manifest.pieces = found.into_iter().flatten().collect(); // one rank wrote each
        Some(Ok(manifest))
    }

    /// Bytes that all ranks put, and those that were there.
    fn bytes(&self) -> (u64, u64) {
        let written = self.heard.iter().flatten().flatten();
        written.fold((0, 0), |(put, there), written| (put + written.put, there + written.there))
    }
}

/// The cost of a training's checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CheckpointCosts {
    /// How many were published.
    pub count: u64,
    /// Bytes of objects that all ranks wrote.
    pub written_bytes: u64,
    /// Bytes of objects that the checkpoint before had already.
    pub present_bytes: u64,
    /// Seconds that this rank's training was held up: for copies, and for checkpoints before that were still being written.
    pub held_up_s: f64,
    /// Of these, seconds for copies.
    pub copied_s: f64,
}

/// The bytes of one checkpoint, over all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CheckpointBytes {
    /// Steps that were trained before it.
    pub step: u64,
    /// Bytes of objects that were written.
    pub written_bytes: u64,
    /// Bytes of objects that the checkpoint before had already.
    pub present_bytes: u64,
}

/// The action of a training after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It continues.
    Step,
    /// It was asked to end, and all ranks know.
    Stop,
    /// It was asked to continue in another group, and all ranks know.
    Pause,
}

/// Keeps a training's checkpoints, as one rank of it.
#[derive(Debug)]
pub(crate) struct CheckpointManager {
    comm: Arc<Comm>,
    ranks: VirtualRanks,
    /// By which ranks go back.
    slicing: Slicing,
    checkpoints: Option<Checkpoints>,
    stop: StopFlag,
    pause: Option<StopFlag>,
    /// Who wrote what of the last one.
    plan: Option<Arc<Plan>>,
    /// The objects of the last one that all ranks know to be there.
    known: Arc<BTreeSet<Digest>>,
    costs: CheckpointCosts,
    /// Of those that were published, in order.
    bytes: Vec<CheckpointBytes>,
    /// Of these, how many were reported as new.
    reported: usize,
    /// Since it was last asked.
    held_up: Duration,
    /// The messages after the last step.
    said: Option<Pending<Vec<Message>>>,
    under_way: Option<UnderWay>,
    /// When the last one was begun.
    begun: Instant,
    last: Option<CheckpointStep>,
    superseded: Vec<CheckpointId>,
    /// On rank 0, those that were published.
    written: Vec<CheckpointWritten>,
}

/// A checkpoint that was finished or begun.
#[derive(Clone, Debug)]
struct CheckpointStep {
    step: u64,
    /// Empty until all ranks know how it ended.
    outcome: Option<Result<(), String>>,
}

/// The checkpoint from which a training resumes.
#[derive(Clone, Debug)]
pub(crate) struct Resumed {
    /// Need not be written again.
    step: u64,
    /// Later ones, which are given up.
    superseded: Vec<CheckpointId>,
    /// Its objects, which were read.
    known: BTreeSet<Digest>,
}

impl Checkpoint {
    /// As a keeper has to know it; one that is in no store is nothing to it.
    pub(crate) fn resumed(&self) -> Option<Resumed> {
        if !self.is_stored {
            return None;
        }
        let known = self.manifest.objects().map(|part| part.digest).collect();
        Some(Resumed { step: self.manifest.step, superseded: self.superseded.clone(), known })
    }
}

impl CheckpointManager {
    /// Keeps the checkpoints of a training whose ranks have what `slicing` says.
    pub(crate) fn new(
        comm: Arc<Comm>,
        ranks: VirtualRanks,
        slicing: Slicing,
        checkpoints: Option<Checkpoints>,
        stop: StopFlag,
        resumed: Option<Resumed>,
    ) -> CheckpointManager {
        let last = resumed.as_ref().map(|it| CheckpointStep { step: it.step, outcome: Some(Ok(())) });
        let (superseded, known) = resumed.map(|it| (it.superseded, it.known)).unwrap_or_default();
        CheckpointManager {
            comm,
            ranks,
            slicing,
            checkpoints,
            stop,
            pause: None,
            plan: None,
            known: Arc::new(known),
            costs: CheckpointCosts::default(),
            bytes: Vec::new(),
            reported: 0,
            held_up: Duration::ZERO,
            said: None,
            under_way: None,
            begun: Instant::now(),
            last,
            superseded,
            written: Vec::new(),
        }
    }

    /// Of a training that pauses when this is raised; all ranks have one, or none.
    pub(crate) fn with_pause(mut self, pause: Option<StopFlag>) -> CheckpointManager {
        self.pause = pause;
        self
    }

    /// Their costs up to now.
    pub(crate) fn costs(&self) -> CheckpointCosts {
        self.costs
    }

    /// The bytes of each of them up to now.
    pub(crate) fn bytes(&self) -> &[CheckpointBytes] {
        &self.bytes
    }

    /// Those of the last one, if one was completed since this was last asked.
    pub(crate) fn new_bytes(&mut self) -> Option<CheckpointBytes> {
        let reported = std::mem::replace(&mut self.reported, self.bytes.len());
        self.bytes[reported..].last().copied()
    }

    /// How long they have held training up since this was last asked.
    pub(crate) fn held_up(&mut self) -> Duration {
        std::mem::take(&mut self.held_up)
    }

    /// The next action after the training's first `step` steps. `snapshot` gives its state there.
    ///
    /// # Errors
    /// When another rank is gone; when the training is to stop and its last checkpoint cannot be written.
    pub(crate) fn after_step<'a>(
        &mut self,
        step: u64,
        snapshot: impl FnOnce() -> Result<Snapshot<'a>, CheckpointError>,
    ) -> Result<Next, CheckpointError> {
        if self.checkpoints.is_none() && self.pause.is_none() {
            return Ok(Next::Step);
        }
        let Heard { stop, pause, is_due } = match self.said.take() {
            None => Heard::default(),
            Some(said) => self.hear(&said.wait()?)?,
        };
        if let Some(Checkpoints { every_steps, .. }) = self.checkpoints {
            if stop || is_due || every_steps.is_some_and(|every| step.is_multiple_of(every)) {
                self.write(step, snapshot)?;
            }
            if stop {
                self.settle()?;
                self.check_last()?;
                return Ok(Next::Stop);
            }
        }
        if pause {
            // Its ranks have its state; a checkpoint on its way to the store is still worth having.
            self.settle()?;
            return Ok(Next::Pause);
        }
        self.said = Some(self.say()?);
        Ok(Next::Step)
    }

    /// Begins to write what the training is before its first step, to go back to.
    ///
    /// # Errors
    /// When another rank is gone.
    pub(crate) fn begin<'a>(
        &mut self,
        snapshot: impl FnOnce() -> Result<Snapshot<'a>, CheckpointError>,
    ) -> Result<(), CheckpointError> {
        self.write(0, snapshot)
    }

    /// Reads the checkpoint that a training of this number of steps goes back to, once it is there; all ranks
    /// call this together.
    ///
    /// # Errors
    /// When it is not there or cannot be read, and when another rank is gone.
    ///
    /// # Panics
    /// If no checkpoints are kept, or by the clock alone.
    pub(crate) fn go_back(&mut self, step: u64) -> Result<Checkpoint, CheckpointError> {
        if let Some(said) = self.said.take() {
            self.hear(&said.wait()?)?;
        }
        self.settle()?;
        let checkpoints = self.checkpoints.as_ref().expect("asked only where there are some");
        let step = checkpoints.back_to(step).expect("asked only where they are written by steps");
        let (shelf, slicing) = (checkpoints.shelf.clone(), self.slicing);
        let found =
            self.comm.run(move |collective| Ok(load(collective, &shelf, &Resume::Step(step), slicing)))??;
        Ok(found.expect("a checkpoint named by its step is found, or it is an error"))
    }

    /// Writes what the training is at its end, `step` steps from its beginning, and waits until it is there. A training that has
    /// ended well is not undone by a store that does not take its last checkpoint: that is a warning.
    ///
    /// # Errors
    /// When another rank is gone.
    pub(crate) fn finish<'a>(
        &mut self,
        step: u64,
        snapshot: impl FnOnce() -> Result<Snapshot<'a>, CheckpointError>,
    ) -> Result<(), CheckpointError> {
        if let Some(said) = self.said.take() {
            self.hear(&said.wait()?)?;
        }
        if self.checkpoints.is_some() {
            self.write(step, snapshot)?;
        }
        self.settle()
    }

    /// On rank 0, the checkpoints that this process is known to have published.
    pub(crate) fn written(&self) -> &[CheckpointWritten] {
        &self.written
    }

    /// The step of the last checkpoint that all ranks know to be there.
    #[cfg(test)]
    pub(crate) fn last_step(&self) -> Option<u64> {
        self.last.as_ref().filter(|last| matches!(last.outcome, Some(Ok(())))).map(|last| last.step)
    }

    /// Begins to write a checkpoint, unless that step's is there or under way.
    fn write<'a>(
        &mut self,
        step: u64,
        snapshot: impl FnOnce() -> Result<Snapshot<'a>, CheckpointError>,
    ) -> Result<(), CheckpointError> {
        if self.last.as_ref().is_some_and(|last| last.step == step && !matches!(last.outcome, Some(Err(_)))) {
            return Ok(());
        }
        let asked = Instant::now();
        self.settle()?;
        let waited = asked.elapsed();
        let checkpoints = self.checkpoints.as_ref().expect("asked only where there are some");
        let Snapshot { manifest, holding, held, statistics, residual, ledger, before } = snapshot()?;
        let layout = &manifest.layout;
        let pieces = pieces(layout);
        // The same for the whole training, but that moments come with the first step.
        let plan = match self.plan.take().filter(|plan| plan.pieces == pieces) {
            Some(plan) => plan,
            None => Arc::new(Plan::of(&holding, layout, pieces)),
        };
        let captured = Captured::of(&plan, held, &self.comm, &ledger);
        let statistics = if layout.statistics() > 0 { statistics } else { Vec::new() };
        let (plan_of_upload, known) = (Arc::clone(&plan), Arc::clone(&self.known));
        let upload = Upload { plan: plan_of_upload, captured, statistics, residual, known, before };
        let upload = checkpoints.shelf.handle().spawn(upload.run(checkpoints.shelf.objects()));
        let held_up = asked.elapsed();
        let copied = held_up.saturating_sub(waited);
        info!(
            step,
            held_up_s = held_up.as_secs_f64(),
            copied_s = copied.as_secs_f64(),
            "a checkpoint is begun"
        );
        self.held_up += held_up;
        self.costs.held_up_s += held_up.as_secs_f64();
        self.costs.copied_s += copied.as_secs_f64();
        self.begun = Instant::now();
        self.last = Some(CheckpointStep { step, outcome: None });
        self.plan = Some(Arc::clone(&plan));
        self.under_way = Some(UnderWay {
            manifest,
            begun: asked + waited,
            plan,
            upload: Some(Job(Some(upload))),
            heard: vec![None; self.comm.world() as usize],
            publication: None,
            refusal: None,
        });
        Ok(())
    }

    /// Waits until nothing is under way.
    fn settle(&mut self) -> Result<(), CheckpointError> {
        while self.under_way.is_some() {
            let signal = self.signal(PROGRESS_INTERVAL);
            let heard = self.send(&signal).wait()?;
            self.hear(&heard)?;
        }
        Ok(())
    }

    /// Why the last checkpoint is not there.
    fn check_last(&self) -> Result<(), CheckpointError> {
        match &self.last {
            Some(CheckpointStep { step, outcome: Some(Err(reason)) }) => {
                let reason = format!("the checkpoint of step {step} could not be written: {reason}");
                Err(CheckpointError::Elsewhere { rank: self.comm.rank(), reason })
            }
            _ => Ok(()),
        }
    }

    fn say(&mut self) -> Result<Pending<Vec<Message>>, CheckpointError> {
        let signal = self.signal(Duration::ZERO);
        Ok(self.send(&signal))
    }

    fn send(&self, signal: &Signal) -> Pending<Vec<Message>> {
        let bytes = serde_json::to_vec(signal).expect("numbers and text serialize");
        self.comm.submit(move |collective| collective.all_gather(&bytes))
    }

    /// This rank's message; about a pending checkpoint once it has ended, for which it waits at most this
    /// time.
    fn signal(&mut self, within: Duration) -> Signal {
        let pause = self.pause.as_ref().is_some_and(StopFlag::is_raised);
        let mut signal = Signal { stop: self.stop.is_raised(), pause, ..Signal::default() };
        let Some(Checkpoints { shelf, every, .. }) = &self.checkpoints else { return signal };
        signal.is_due = every.is_some_and(|every| self.begun.elapsed() >= every);
        let Some(under_way) = &mut self.under_way else { return signal };
        if let Some(written) = under_way.upload.as_mut().and_then(|job| job.outcome(shelf, within)) {
            signal.written = Some(written);
            under_way.upload = None;
        }
        let published = under_way.publication.as_mut().and_then(|job| job.outcome(shelf, within));
        let (begun, (put, there)) = (under_way.begun, under_way.bytes());
        if let Some(published) = published {
            signal.published = Some(published.map(|Published { id, at, ended, is_tidy }| {
                // A checkpoint given up is not forgotten until it is removed; one trained again to the same
                // bits has its name again.
                self.superseded.retain(|other| !is_tidy && *other != id);
                self.written.push(CheckpointWritten {
                    name: id.to_string(),
                    step: id.step,
                    at: at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
                    bytes: put + there,
                    written_bytes: put,
                    millis: u64::try_from((ended - begun).as_millis()).unwrap_or(u64::MAX),
                });
            }));
            under_way.publication = None;
        } else if let Some(reason) = under_way.refusal.take() {
            signal.published = Some(Err(reason));
        }
        signal
    }

    /// Takes in the messages of all ranks.
    fn hear(&mut self, messages: &[Message]) -> Result<Heard, CheckpointError> {
        let mut signals = Vec::with_capacity(messages.len());
        for (rank, message) in messages.iter().enumerate() {
            let signal: Signal = serde_json::from_slice(message.bytes())
                .map_err(|error| CollectiveError::Malformed { rank: rank as u32, what: error.to_string() })?;
            signals.push(signal);
        }
        let heard = Heard {
            stop: signals.iter().any(|signal| signal.stop),
            pause: signals.iter().any(|signal| signal.pause),
            is_due: signals[0].is_due,
        };
        let Some(under_way) = &mut self.under_way else { return Ok(heard) };
        let published = signals[0].published.take();
        for (written, signal) in under_way.heard.iter_mut().zip(signals) {
            if signal.written.is_some() {
                *written = signal.written;
            }
        }
        if let Some(outcome) = published {
            if let Err(reason) = &outcome
                && self.comm.rank() == 0
            {
                warn!(
                    step = under_way.manifest.step,
                    reason, "a checkpoint could not be written; training continues"
                );
            }
            let (step, (put, there)) = (under_way.manifest.step, under_way.bytes());
            if outcome.is_ok() {
                if let Some(Ok(manifest)) = under_way.whole(self.ranks) {
                    self.known = Arc::new(manifest.objects().map(|part| part.digest).collect());
                }
                self.costs.count += 1;
                self.costs.written_bytes += put;
                self.costs.present_bytes += there;
                self.bytes.push(CheckpointBytes { step, written_bytes: put, present_bytes: there });
                info!(step, written_bytes = put, present_bytes = there, "a checkpoint is complete");
            }
            self.last = Some(CheckpointStep { step, outcome: Some(outcome) });
            self.under_way = None;
        } else if self.comm.rank() == 0 {
            self.publish_if_complete();
        }
        Ok(heard)
    }

    /// Publishes the manifest once all objects are there, or says why not.
    fn publish_if_complete(&mut self) {
        let (Some(under_way), Some(checkpoints)) = (&mut self.under_way, &self.checkpoints) else { return };
        if under_way.publication.is_some() || under_way.heard.iter().any(Option::is_none) {
            return;
        }
        let manifest = match under_way.whole(self.ranks) {
            Some(Ok(manifest)) => manifest,
            Some(Err(reason)) => {
                under_way.refusal = Some(reason);
                return;
            }
            None => return,
        };
        let (objects, keep) = (checkpoints.shelf.objects(), checkpoints.keep.max(1));
        let back_to = checkpoints.back_to(manifest.step);
        let superseded = self.superseded.clone();
        let publication = checkpoints.shelf.handle().spawn(async move {
            let id = objects.publish(&manifest).await?;
            let (at, ended) = (SystemTime::now(), Instant::now());
            // The checkpoint is there; the remains of others do no harm but to the space it takes.
            let tidied = objects.tidy(id, keep, back_to, &superseded).await;
            if let Err(error) = &tidied {
                warn!(%error, "old checkpoints could not be removed");
            }
            Ok(Published { id, at, ended, is_tidy: tidied.is_ok() })
        });
        under_way.publication = Some(Job(Some(publication)));
    }
}

impl Drop for CheckpointManager {
    /// A manifest whose objects are all there is worth a moment, whatever has become of the training.
    fn drop(&mut self) {
        let publication = self.under_way.as_mut().and_then(|under_way| under_way.publication.as_mut());
        let Some(handle) = publication.and_then(|job| job.0.as_mut()) else { return };
        let Some(Checkpoints { shelf, .. }) = &self.checkpoints else { return };
        let _ = shelf.handle().block_on(async { tokio::time::timeout(FINAL_WRITE_TIMEOUT, handle).await });
    }
}
