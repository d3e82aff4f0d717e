//! The steps of a training, from the first to the last: read, compute, judge, note, report, checkpoint.

use std::time::{Duration, Instant};

use shardd_client::loader::TrainerNotes;
use shardd_store::record::Digest128;
use tracing::{info, warn};

use super::agree::{compare, kept};
use super::feed::{Feed, Prepared};
use super::guard::Verdict;
use super::step_losses::StepLosses;
use super::tell::tell;
use super::train_state::TrainState;
use super::{Progress, StepTime, Training};
use crate::checkpoint::{CheckpointError, CheckpointManager, Next, Place, Settings, Snapshot};
use crate::collective::{Straggler, StragglerWatch, waited_for};
use crate::engine::{StepLoss, StepPlan};
use crate::error::TrainError;
use crate::ledger::Usage;
use crate::models::InputShape;
use crate::optim::Schedule;
use crate::progress::ProgressSoFar;
use crate::record::{Noted, Recorder};
use crate::reduce::{Comm, VirtualRanks};
use crate::scaling::LossScale;
use crate::source::{Step, StepSource};
use crate::trace::{Lane, Tracer};
use crate::zero::mesh::Mesh;

/// How often the waits for other ranks are noted: nodes hear of them every few seconds.
const NOTED_EVERY: Duration = Duration::from_secs(1);

/// A training under way, on one rank.
pub(super) struct Steps<'a> {
    pub(super) training: &'a Training<'a>,
    pub(super) settings: &'a Settings,
    pub(super) state: &'a mut TrainState,
    pub(super) recorder: &'a mut Option<Recorder>,
    pub(super) observe: &'a mut (dyn FnMut(Progress) + Send),
    pub(super) keeper: CheckpointManager,
    pub(super) schedule: Schedule,
    pub(super) ranks: VirtualRanks,
    /// Of a sample.
    pub(super) shape: InputShape,
    pub(super) tracer: Tracer,
    pub(super) mesh: Option<Mesh>,
    pub(super) most: Usage,
    pub(super) started: Instant,
    pub(super) laps: Laps,
    /// Steps and samples of the processes before this one.
    pub(super) before: (u64, u64),
    pub(super) stragglers: StragglerWatch,
    pub(super) rank_clock: RankClock,
    pub(super) straggler: Option<Straggler>,
}

/// Notes for the source how the steps go: their loss, and how long this rank waits for others.
pub(super) struct RankClock {
    notes: Option<TrainerNotes>,
    /// How long it had waited when that was noted last, and when.
    noted: (Duration, Instant),
}

impl RankClock {
    /// The waits so far do not count.
    pub(super) fn of(source: &dyn StepSource) -> RankClock {
        RankClock { notes: source.notes(), noted: (Duration::MAX, Instant::now()) }
    }

    /// Notes a step's loss, and the waits since the last time, if that is a while ago.
    fn note(&mut self, comm: &Comm, loss: f64) -> Result<(), TrainError> {
        let Some(notes) = &self.notes else { return Ok(()) };
        notes.loss(loss);
        let (before, at) = self.noted;
        if before != Duration::MAX && at.elapsed() < NOTED_EVERY {
            return Ok(());
        }
        let so_far = comm.run(|collective| Ok(collective.waited()))?;
        // A group that formed again begins at nothing.
        notes.waited_for_ranks(so_far.saturating_sub(before));
        self.noted = (so_far, Instant::now());
        Ok(())
    }
}

/// A step that is computed, and judged.
struct Computed {
    plan: StepPlan,
    loss: StepLoss,
    verdict: Verdict,
    inputs: Vec<Digest128>,
    time: StepTime,
}

impl Steps<'_> {
    /// Trains until the data ends, or the training is asked to stop or to pause.
    pub(super) fn run(&mut self, feed: &mut Feed<'_, '_>) -> Result<Next, TrainError> {
        loop {
            let waiting = self.tracer.span(Lane::Data, || "wait for samples");
            let Some((step, prepared)) = feed.next()? else { return Ok(Next::Step) };
            drop(waiting);
            let wait_s = self.laps.next();
            let computed = self.compute(feed, &step, prepared, wait_s)?;
            self.account(&step, &computed)?;
            self.compare(&step)?;
            self.rank_clock.note(&self.training.comm, computed.loss.mean())?;
            self.report(&step, &computed);
            let next = self.checkpoint()?;
            if next != Next::Step {
                return Ok(next);
            }
        }
    }

    /// Lets the time of the training begin now.
    pub(super) fn restart_clocks(&mut self) {
        self.started = Instant::now();
        self.laps = Laps(self.started);
    }

    /// Seconds from the beginning of the training to the end of the last step: the sum of all laps.
    pub(super) fn train_s(&self) -> f64 {
        (self.laps.0 - self.started).as_secs_f64()
    }

    /// Computes the step, and applies its update if the guard takes it.
    fn compute(
        &mut self,
        feed: &Feed<'_, '_>,
        step: &Step,
        prepared: Prepared,
        wait_s: f64,
    ) -> Result<Computed, TrainError> {
        let decoding = self.tracer.span(Lane::Data, || "decode");
        let TrainState { engine, account, guard, plateau, place, is_whole } = &mut *self.state;
        let number = u64::from(step.epoch) * self.schedule.steps_per_epoch + step.step;
        let start = Place { epoch: step.start.0, position: step.start.1 };
        if let Some(place) = place.filter(|place| *place != start) {
            return Err(TrainError::Share(format!(
                "a step begins at {start}, the one before ended at {place}"
            )));
        }
        let rate = self.schedule.rate(number);
        let rate = plateau.as_ref().map_or(rate, |plateau| plateau.limit(rate));
        let plan = StepPlan { number, epoch: step.epoch, rate };
        let (shares, inputs) = feed.shares(step, prepared)?;
        let shares = match &self.training.persistence.step_losses {
            Some(losses) if losses.step() == number => losses.watch(step, shares),
            _ => shares,
        };
        engine.digest_gradients(self.recorder.as_ref().is_some_and(|it| it.wants_digests(number)));
        drop(decoding);
        let decode_s = self.laps.next();
        let delivering = tell(&self.training.comm, self.ranks, step);
        let mut verdict = Verdict::Overflow;
        let loss = engine.step(shares, plan, |loss| {
            verdict = guard.judge(loss);
            verdict == Verdict::Take
        })?;
        let (update_s, reduce_s) = (engine.updating().as_secs_f64(), engine.reducing().as_secs_f64());
        let compute_s = self.laps.next() - update_s;
        *is_whole = false;
        let delivered = delivering.heard()?; // it was sent before the present sums
        *is_whole = true;
        let answers = step.global_samples * self.shape.answers() as u64;
        // How many tokens end a document, only the ranks that have them know.
        let fits = match self.shape {
            InputShape::PackedTokens(_) => loss.samples <= answers,
            _ => loss.samples == answers,
        };
        if !fits {
            let message = format!("{} answers to a step that asks for {answers}", loss.samples);
            return Err(TrainError::Share(message));
        }
        *place = Some(Place { epoch: step.next.0, position: step.next.1 });
        account.deliver(step, delivered.as_deref());
        let time = StepTime { wait_s, decode_s, compute_s, update_s, reduce_s };
        Ok(Computed { plan, loss, verdict, inputs, time })
    }

    /// Counts the step by its verdict, and notes it in the record.
    fn account(&mut self, step: &Step, computed: &Computed) -> Result<(), TrainError> {
        let TrainState { engine, account, guard, is_whole, .. } = &mut *self.state;
        match computed.verdict {
            Verdict::Take => account.add(step, &computed.loss),
            Verdict::Overflow => {
                let next = engine.loss_scale().map(LossScale::factor);
                info!(
                    epoch = step.epoch,
                    step = step.step,
                    next,
                    "gradients exceed the range of the loss scale or of exact sums; the step is skipped, and the range is wider for the next"
                );
                account.overflow(step);
            }
            Verdict::Skip(what) => {
                warn!(epoch = step.epoch, step = step.step, %what, "a step is skipped");
                account.skip(step);
            }
            Verdict::RollBack(what) => {
                *is_whole = false;
                let mut to = self.keeper.go_back(account.steps)?;
                let (undone, id) = (account.steps - to.manifest.step, to.id.short());
                warn!(epoch = step.epoch, step = step.step, %what, undone, to = id, "going back to a checkpoint");
                engine.resume(&mut to)?;
                guard.go_back(&to.manifest.progress);
                account.skip(step);
                account.undone += undone;
                *is_whole = true;
            }
            Verdict::Stop(_) => {}
        }
        if step.step + 1 == self.schedule.steps_per_epoch {
            self.end_epoch(step.epoch);
        }
        self.note(computed)?;
        match computed.verdict {
            Verdict::Stop(what) => Err(TrainError::BadStep { epoch: step.epoch, step: step.step, what }),
            _ => Ok(()),
        }
    }

    /// Lets the learning rate fall, if the mean loss of the epoch says so. The data of an epoch is not read again after
    /// going back to a checkpoint, so each epoch is taken in once.
    fn end_epoch(&mut self, epoch: u32) {
        let TrainState { account, plateau, .. } = &mut *self.state;
        let Some((plateau, loss)) = plateau.as_mut().zip(account.mean(epoch)) else { return };
        if plateau.observe(loss) && self.training.comm.rank() == 0 {
            info!(
                epoch,
                loss,
                rate = plateau.rate(),
                "the loss has stopped falling; the learning rate falls"
            );
        }
    }

    fn note(&mut self, computed: &Computed) -> Result<(), TrainError> {
        let Some(recorder) = self.recorder.as_mut() else { return Ok(()) };
        recorder.note(Noted {
            plan: computed.plan,
            loss: computed.loss,
            is_skipped: computed.verdict != Verdict::Take,
            inputs: &computed.inputs,
            engine: &mut self.state.engine,
        })
    }

    /// Compares the weights of all ranks, if that is due.
    fn compare(&mut self, step: &Step) -> Result<(), TrainError> {
        let every = self.training.config.compare_every;
        if every == 0 || !self.state.account.steps.is_multiple_of(every) {
            return Ok(());
        }
        let moment = format!("after step {} of epoch {}", step.step, step.epoch);
        compare(&self.training.comm, &self.state.engine.digests()?, &moment)?;
        self.name_straggler()
    }

    /// Names the rank that the others have waited for since the last comparison.
    fn name_straggler(&mut self) -> Result<(), TrainError> {
        let waited_for = self.training.comm.run(waited_for)?;
        self.straggler = self.stragglers.look(Instant::now(), waited_for);
        if let Some(Straggler { rank, wait_share }) = self.stragglers.warning()
            && self.training.comm.rank() == 0
        {
            warn!(
                rank,
                wait_share = format_args!("{:.0} %", 100.0 * wait_share),
                "the other ranks wait for this rank"
            );
        }
        Ok(())
    }

    fn report(&mut self, step: &Step, computed: &Computed) {
        let Computed { loss, plan, .. } = computed;
        let account = &self.state.account;
        let (steps_before, samples_before) = self.before;
        let elapsed_s = self.started.elapsed().as_secs_f64();
        let memory = self.state.engine.most_memory();
        self.most = self.most.with(memory);
        self.tracer.count("bytes held", memory.by_kind());
        (self.observe)(Progress {
            rank: self.training.comm.rank(),
            epoch: step.epoch,
            step: step.step,
            steps: self.schedule.steps_per_epoch,
            loss: loss.mean(),
            accuracy: loss.correct as f64 / loss.samples.max(1) as f64,
            is_skipped: computed.verdict != Verdict::Take,
            loss_scale: loss.scale.map(LossScale::factor),
            gradient_norm: loss.gradient_norm,
            rate: plan.rate,
            memory,
            groups_inside_machines: self.mesh.as_ref().map(Mesh::are_inside_hosts),
            samples_per_s: (account.samples - samples_before) as f64 / elapsed_s,
            left_s: elapsed_s / (account.steps - steps_before) as f64
                * (self.schedule.steps.saturating_sub(account.steps)) as f64,
            checkpoint_s: self.keeper.held_up().as_secs_f64(),
            checkpoint: self.keeper.new_bytes(),
            straggler: self.straggler,
            time: computed.time,
        });
    }

    /// Writes a checkpoint if one is due, and finds whether the training ends here.
    fn checkpoint(&mut self) -> Result<Next, TrainError> {
        let steps = self.state.account.steps;
        let by_steps = self.training.persistence.checkpoints.as_ref().and_then(|it| it.every_steps);
        if by_steps.is_some_and(|every| steps.is_multiple_of(every)) {
            self.state.guard.passes_checkpoint();
        }
        let draft = Draft { training: self.training, settings: self.settings };
        let (state, recorder) = (&mut *self.state, &mut *self.recorder);
        let mut next = self.keeper.after_step(steps, || draft.snapshot(state, recorder.as_mut()))?;
        if let Some(recorder) = self.recorder.as_mut() {
            recorder.note_checkpoints(self.keeper.written());
            let wanted = self.training.persistence.step_losses.as_ref().map(StepLosses::step);
            if recorder.is_over(steps, wanted) && steps < self.schedule.steps {
                next = Next::Stop;
            }
            if next != Next::Step {
                recorder.stop()?;
            }
        }
        Ok(next)
    }

    /// The checkpoint that a rollback returns to before any other is written.
    pub(super) fn first_checkpoint(&mut self) -> Result<(), TrainError> {
        let draft = Draft { training: self.training, settings: self.settings };
        let (state, recorder) = (&mut *self.state, &mut *self.recorder);
        Ok(self.keeper.begin(|| draft.snapshot(state, recorder.as_mut()))?)
    }

    /// The checkpoint at the end.
    pub(super) fn last_checkpoint(&mut self) -> Result<(), TrainError> {
        let draft = Draft { training: self.training, settings: self.settings };
        let steps = self.state.account.steps;
        let (state, recorder) = (&mut *self.state, &mut *self.recorder);
        Ok(self.keeper.finish(steps, || draft.snapshot(state, recorder.as_mut()))?)
    }

    /// Samples that this process trained.
    pub(super) fn samples_here(&self) -> u64 {
        self.state.account.samples - self.before.1
    }
}

/// The common facts of every checkpoint of a training.
struct Draft<'a> {
    training: &'a Training<'a>,
    settings: &'a Settings,
}

impl Draft<'_> {
    fn snapshot<'a>(
        &self,
        state: &'a mut TrainState,
        recorder: Option<&mut Recorder>,
    ) -> Result<Snapshot<'a>, CheckpointError> {
        let before = recorder.map(Recorder::draft).transpose()?.flatten();
        let run = self.training.persistence.checkpoints.as_ref().map(|it| it.shelf.run().to_string());
        let TrainState { engine, account, guard, plateau, place, .. } = state;
        let progress = ProgressSoFar { plateau: *plateau, ..guard.remember(account.so_far()) };
        let place = place.unwrap_or_default();
        let snapshot = engine.snapshot(run.unwrap_or_default(), kept(self.settings), place, progress)?;
        Ok(Snapshot { before, ..snapshot })
    }
}

/// Times that follow each other without a gap, in seconds; holds when the last one ended.
pub(super) struct Laps(pub(super) Instant);

impl Laps {
    fn next(&mut self) -> f64 {
        let now = Instant::now();
        (now - std::mem::replace(&mut self.0, now)).as_secs_f64()
    }
}
