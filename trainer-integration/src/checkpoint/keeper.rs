//! Writes checkpoints while training goes on.
//!
//! At a step the numbers of this rank's parts are copied, which is all that training waits for; they are put into the store in the
//! background. After every step the ranks tell each other how far they are ([`Signal`]), and hear it after the next one, so nobody
//! waits for an answer: once all parts are there, rank 0 publishes the manifest. All ranks hear the same in the same step, so all
//! decide alike: when to write, when to stop. At most one checkpoint is under way; the next one waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::warn;

use super::CheckpointError;
use super::load::{Checkpoint, Resume, load};
use super::manifest::{CheckpointId, Manifest};
use super::part::{Part, cut, encode, share};
use super::shelf::Shelf;
use crate::collective::{CollectiveError, Message};
use crate::reduce::{Comm, Pending, VirtualRanks};

/// How long a training that fails waits for a manifest that is being published.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Where checkpoints are kept, and how many. When they are written: whenever one of the two is due, and at the end.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    /// The place.
    pub shelf: Shelf,
    /// After every so many steps of the training; the same on all ranks.
    pub every_steps: Option<u64>,
    /// When so long has passed since the last one, by rank 0's clock.
    pub every: Option<Duration>,
    /// How many stay, at least 1.
    pub keep: usize,
}

impl Checkpoints {
    /// The step to whose checkpoint a training of so many steps goes back: a function of the steps alone, so that an interrupted training
    /// goes back as far as an undisturbed one. `None` if checkpoints are written by the clock.
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

/// What a rank tells the others after a step.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Signal {
    /// It was asked to stop.
    stop: bool,
    /// It is time for a checkpoint; rank 0's counts.
    is_due: bool,
    /// Its parts of the checkpoint under way are in the store, or why not; said once.
    parts: Option<Result<Vec<Part>, String>>,
    /// The manifest is, or why not; rank 0's counts, said once.
    published: Option<Result<(), String>>,
}

/// What a training is at a step, as far as this rank writes it.
pub(crate) struct Snapshot<'a> {
    /// All but the parts.
    pub(crate) manifest: Manifest,
    /// What all ranks have in common, in slices.
    pub(crate) common: Vec<&'a [f32]>,
    /// By virtual rank of this rank.
    pub(crate) statistics: Vec<Vec<f32>>,
    /// Ends when what belongs before the checkpoint is in the store, or cannot be.
    pub(crate) before: Option<oneshot::Receiver<()>>,
}

/// Something that is being done in the background.
#[derive(Debug)]
struct Job<T>(Option<JoinHandle<Result<T, CheckpointError>>>);

impl<T> Job<T> {
    fn is_done(&self) -> bool {
        self.0.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// What came of it, when it has ended; asked once.
    fn outcome(&mut self, shelf: &Shelf) -> Result<T, String> {
        let handle = self.0.take().expect("its outcome is asked for once");
        match shelf.handle().block_on(handle) {
            Ok(outcome) => outcome.map_err(|error| crate::train::chain(&error)),
            Err(error) => Err(error.to_string()),
        }
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
    upload: Option<Job<Vec<Part>>>,
    /// By rank.
    heard: Vec<Option<Result<Vec<Part>, String>>>,
    /// On rank 0, once all parts are there.
    publication: Option<Job<CheckpointId>>,
    /// On rank 0: why it cannot be published.
    refusal: Option<String>,
}

/// What a training does after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It goes on.
    Step,
    /// It was asked to end, and all ranks know.
    Stop,
}

/// Keeps a training's checkpoints, as one rank of it.
#[derive(Debug)]
pub(crate) struct Keeper {
    comm: Arc<Comm>,
    ranks: VirtualRanks,
    checkpoints: Option<Checkpoints>,
    stop: StopFlag,
    /// What was said after the last step.
    said: Option<Pending<Vec<Message>>>,
    under_way: Option<UnderWay>,
    /// When the last one was begun.
    begun: Instant,
    last: Option<CheckpointStep>,
    superseded: Vec<CheckpointId>,
    /// On rank 0, those that were published.
    written: Vec<CheckpointId>,
}

/// A checkpoint that was finished or begun.
#[derive(Clone, Debug)]
struct CheckpointStep {
    step: u64,
    /// Empty until all ranks know how it ended.
    outcome: Option<Result<(), String>>,
}

impl Keeper {
    /// `resumed` is the step of the checkpoint that the training goes on from, which need not be written again.
    pub(crate) fn new(
        comm: Arc<Comm>,
        ranks: VirtualRanks,
        checkpoints: Option<Checkpoints>,
        stop: StopFlag,
        resumed: Option<u64>,
        superseded: Vec<CheckpointId>,
    ) -> Keeper {
        let last = resumed.map(|step| CheckpointStep { step, outcome: Some(Ok(())) });
        let begun = Instant::now();
        let written = Vec::new();
        Keeper {
            comm,
            ranks,
            checkpoints,
            stop,
            said: None,
            under_way: None,
            begun,
            last,
            superseded,
            written,
        }
    }

    /// What comes after the training's first `step` steps. `snapshot` is what it is there.
    ///
    /// # Errors
    /// When another rank is gone; when the training is to stop and its last checkpoint cannot be written.
    pub(crate) fn after_step<'a>(
        &mut self,
        step: u64,
        snapshot: impl FnOnce() -> Result<Snapshot<'a>, CheckpointError>,
    ) -> Result<Next, CheckpointError> {
        let Some(Checkpoints { every_steps, .. }) = self.checkpoints else { return Ok(Next::Step) };
        let (stop, is_due) = match self.said.take() {
            None => (false, false),
            Some(said) => self.hear(&said.wait()?)?,
        };
        if stop || is_due || every_steps.is_some_and(|every| step.is_multiple_of(every)) {
            self.write(step, snapshot)?;
        }
        if stop {
            self.settle()?;
            self.check_last()?;
            return Ok(Next::Stop);
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

    /// Reads the checkpoint that a training of so many steps goes back to, once it is there; all ranks call this together.
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
        let shelf = checkpoints.shelf.clone();
        let found = self.comm.run(move |collective| Ok(load(collective, &shelf, &Resume::Step(step))))??;
        Ok(found.expect("what is asked for by its step is found or an error"))
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
    pub(crate) fn written(&self) -> &[CheckpointId] {
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
        self.settle()?;
        let checkpoints = self.checkpoints.as_ref().expect("asked only where there are some");
        let Snapshot { manifest, common, statistics, before } = snapshot()?;
        let count: usize = common.iter().map(|slice| slice.len()).sum();
        let virtual_ranks = self.ranks.of(self.comm.rank());
        let parts: Vec<(Vec<f32>, Vec<f32>)> = virtual_ranks
            .zip(statistics)
            .map(|(rank, statistics)| (cut(&common, share(count, self.ranks.count, rank)), statistics))
            .collect();
        let objects = checkpoints.shelf.objects();
        let upload = checkpoints.shelf.handle().spawn(async move {
            if let Some(before) = before {
                let _ = before.await; // in vain, perhaps: this does not depend on it
            }
            let mut put = Vec::with_capacity(parts.len());
            for (common, statistics) in parts {
                put.push(objects.put_part(encode(&common, &statistics)).await?);
            }
            Ok(put)
        });
        self.begun = Instant::now();
        self.last = Some(CheckpointStep { step, outcome: None });
        self.under_way = Some(UnderWay {
            manifest,
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
            let signal = self.signal(true);
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
        let signal = self.signal(false);
        Ok(self.send(&signal))
    }

    fn send(&self, signal: &Signal) -> Pending<Vec<Message>> {
        let bytes = serde_json::to_vec(signal).expect("numbers and text serialize");
        self.comm.submit(move |collective| collective.all_gather(&bytes))
    }

    /// What this rank has to say; of what is under way, once it has ended, which is waited for if so told.
    fn signal(&mut self, waits: bool) -> Signal {
        let mut signal = Signal { stop: self.stop.is_raised(), ..Signal::default() };
        let Some(Checkpoints { shelf, every, .. }) = &self.checkpoints else { return signal };
        signal.is_due = every.is_some_and(|every| self.begun.elapsed() >= every);
        let Some(under_way) = &mut self.under_way else { return signal };
        if let Some(upload) = &mut under_way.upload
            && (waits || upload.is_done())
        {
            signal.parts = Some(upload.outcome(shelf));
            under_way.upload = None;
        }
        if let Some(publication) = &mut under_way.publication
            && (waits || publication.is_done())
        {
            signal.published = Some(publication.outcome(shelf).map(|id| self.written.push(id)));
            under_way.publication = None;
        } else if let Some(reason) = under_way.refusal.take() {
            signal.published = Some(Err(reason));
        }
        signal
    }

    /// Takes in what all ranks said: whether to stop, and whether a checkpoint is due.
    fn hear(&mut self, messages: &[Message]) -> Result<(bool, bool), CheckpointError> {
        let mut signals = Vec::with_capacity(messages.len());
        for (rank, message) in messages.iter().enumerate() {
            let signal: Signal = serde_json::from_slice(message.bytes())
                .map_err(|error| CollectiveError::Malformed { rank: rank as u32, what: error.to_string() })?;
            signals.push(signal);
        }
        let stop = signals.iter().any(|signal| signal.stop);
        let is_due = signals[0].is_due;
        let Some(under_way) = &mut self.under_way else { return Ok((stop, is_due)) };
        let published = signals[0].published.take();
        for (heard, signal) in under_way.heard.iter_mut().zip(signals) {
            if signal.parts.is_some() {
                *heard = signal.parts;
            }
        }
        if let Some(outcome) = published {
            if let Err(reason) = &outcome
                && self.comm.rank() == 0
            {
                warn!(
                    step = under_way.manifest.step,
                    reason, "a checkpoint could not be written; training goes on"
                );
            }
            self.last = Some(CheckpointStep { step: under_way.manifest.step, outcome: Some(outcome) });
            self.under_way = None;
        } else if self.comm.rank() == 0 {
            self.publish_if_complete();
        }
        Ok((stop, is_due))
    }

    /// Publishes the manifest once all parts are there, or says why not.
    fn publish_if_complete(&mut self) {
        let (Some(under_way), Some(checkpoints)) = (&mut self.under_way, &self.checkpoints) else { return };
        if under_way.publication.is_some() || under_way.heard.iter().any(Option::is_none) {
            return;
        }
        let mut parts = Vec::with_capacity(self.ranks.count as usize);
        for (rank, heard) in under_way.heard.iter().enumerate() {
            match heard {
                Some(Ok(theirs)) => parts.extend_from_slice(theirs),
                Some(Err(reason)) => under_way.refusal = Some(format!("rank {rank}: {reason}")),
                None => return,
            }
        }
        if under_way.refusal.is_some() {
            return;
        }
        let manifest = Manifest { parts, ..under_way.manifest.clone() };
        let (objects, keep) = (checkpoints.shelf.objects(), checkpoints.keep.max(1));
        let back_to = checkpoints.back_to(manifest.step);
        let superseded = std::mem::take(&mut self.superseded);
        let publication = checkpoints.shelf.handle().spawn(async move {
            let id = objects.publish(&manifest).await?;
            // The checkpoint is there; what is left over of others does no harm but to the space it takes.
            if let Err(error) = objects.tidy(id, keep, back_to, &superseded).await {
                warn!(%error, "old checkpoints could not be removed");
            }
            Ok(id)
        });
        under_way.publication = Some(Job(Some(publication)));
    }
}

impl Drop for Keeper {
    /// A manifest whose parts are all there is worth a moment, whatever has become of the training.
    fn drop(&mut self) {
        let publication = self.under_way.as_mut().and_then(|under_way| under_way.publication.as_mut());
        let Some(handle) = publication.and_then(|job| job.0.as_mut()) else { return };
        let Some(Checkpoints { shelf, .. }) = &self.checkpoints else { return };
        let _ = shelf.handle().block_on(async { tokio::time::timeout(LAST_WORDS, handle).await });
    }
}
