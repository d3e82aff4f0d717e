//! What all ranks do after a step for its record: each tells rank 0 of its virtual ranks.
//!
//! Rank 0 receives the digests of a step during the next one, so no rank waits for an answer.

use std::sync::Arc;

use shardd_store::record::{CheckpointWritten, Digest128, ShareRow, StepRow};
use shardfmt::Digest;
use tokio::sync::oneshot;

use super::check::Check;
use super::machine::Resident;
use super::writer::{Beginning, Writer};
use super::{Purpose, Recording, weights_digest};
use crate::checkpoint::{CheckpointError, Settings};
use crate::collective::{Among, Collective, CollectiveError, Incoming, Message, Outgoing, Place};
use crate::engine::{Engine, StepLoss, StepPlan};
use crate::error::TrainError;
use crate::reduce::{Comm, Pending, VirtualRanks};

/// Bytes that a rank tells of a virtual rank: three numbers, whether there are digests, and these.
const SHARE_BYTES: usize = 3 * 8 + 1 + 2 * 16;

/// Bytes that a rank tells of itself, after those of its virtual ranks: the memory of its process.
const MEMORY_BYTES: usize = 8;

/// Notes the outcome of a training's steps, as one rank of it.
pub(crate) struct Recorder {
    comm: Arc<Comm>,
    ranks: VirtualRanks,
    every: u64,
    /// After how many steps of the training there is nothing more to compare.
    until: Option<u64>,
    /// The last step, until all ranks have reported it.
    told: Option<(StepRow, Pending<Vec<Message>>)>,
    resident: Resident,
    /// On rank 0, the most memory that a rank's process has had, as far as it was heard; 0 if it is not known.
    memory_bytes: u64,
    sink: Sink,
}

/// Where rank 0 keeps the reports.
enum Sink {
    /// It is not rank 0.
    Nowhere,
    Writer(Box<Writer>),
    Check(Box<Check>),
}

/// A rank's facts about a finished step.
pub(crate) struct Noted<'a> {
    pub(crate) plan: StepPlan,
    pub(crate) loss: StepLoss,
    pub(crate) is_skipped: bool,
    /// By virtual rank of this rank, in steps with digests.
    pub(crate) inputs: &'a [Digest128],
    pub(crate) engine: &'a mut Engine,
}

impl Recorder {
    /// Begins to note steps, from `beginning` on. All ranks call this alike; rank 0 asks the store.
    ///
    /// # Errors
    /// When the training is not that of the record that it is to be compared with.
    pub(crate) fn begin(
        recording: &Recording,
        comm: &Arc<Comm>,
        ranks: VirtualRanks,
        settings: &Settings,
        may_change: &[&str],
        beginning: Beginning,
    ) -> Result<Recorder, TrainError> {
        let until = match &recording.purpose {
            Purpose::Write(_) => None,
            Purpose::Compare(_, record) => Some(record.steps.end),
        };
        let sink = match &recording.purpose {
            _ if comm.rank() > 0 => Sink::Nowhere,
            Purpose::Write(about) => {
                let writer = Writer::begin(recording, about, ranks, settings, may_change, beginning);
                Sink::Writer(Box::new(writer))
            }
            Purpose::Compare(id, record) => {
                let begins = (beginning.step, beginning.weights);
                let check = Check::begin(&recording.shelf, *id, record, settings, may_change, begins)?;
                Sink::Check(Box::new(check))
            }
        };
        let every = recording.every.max(1);
        Ok(Recorder {
            comm: Arc::clone(comm),
            ranks,
            every,
            until,
            told: None,
            resident: Resident::default(),
            memory_bytes: 0,
            sink,
        })
    }

    /// Whether step `number` has digests.
    pub(crate) fn wants_digests(&self, number: u64) -> bool {
        (number + 1).is_multiple_of(self.every)
    }

    /// Whether nothing is left to be compared after `steps` steps, or step `wanted` is done, which is all that a replay is for.
    pub(crate) fn is_over(&self, steps: u64, wanted: Option<u64>) -> bool {
        self.until.is_some_and(|until| steps >= until || wanted.is_some_and(|wanted| steps > wanted))
    }

    /// After how many steps there are digests.
    pub(crate) fn every(&self) -> u64 {
        self.every
    }

    /// Notes a step, and takes in the one before it.
    ///
    /// # Errors
    /// When another rank is gone; when a step is not that of the record.
    pub(crate) fn note(&mut self, noted: Noted<'_>) -> Result<(), TrainError> {
        self.take_in()?;
        let Noted { plan, loss, is_skipped, inputs, engine } = noted;
        // Where parameters are sliced, all ranks have to ask for their digests.
        let weights = if self.wants_digests(plan.number) && (self.comm.rank() == 0 || engine.gathers()) {
            Some(digest_of(engine)?)
        } else {
            None
        };
        let row = StepRow {
            step: plan.number,
            epoch: plan.epoch,
            rate: plan.rate,
            samples: loss.samples,
            loss: loss.sum,
            correct: loss.correct,
            gradient_norm: loss.gradient_norm,
            is_skipped,
            weights,
            shares: Vec::new(),
        };
        let inputs = inputs.iter().copied().map(Some).chain(std::iter::repeat(None));
        let mut bytes = Vec::with_capacity(engine.shares().len() * SHARE_BYTES + MEMORY_BYTES);
        for (share, input) in engine.shares().iter().zip(inputs) {
            let [loss, correct, samples] = share.scalars;
            for number in [samples as u64, loss.to_bits(), correct as u64] {
                bytes.extend(number.to_le_bytes());
            }
            let digests = input.zip(share.gradient);
            bytes.push(u8::from(digests.is_some()));
            let (input, gradient) =
                digests.map_or(([0; 16], [0; 16]), |(input, gradient)| (input.0, gradient.0));
            bytes.extend(input);
            bytes.extend(gradient);
        }
        bytes.extend(self.resident.most().to_le_bytes());
        self.told = Some((row, self.comm.submit(move |collective| gather(collective, &bytes))));
        Ok(())
    }

    /// Checkpoints that are in the store.
    pub(crate) fn note_checkpoints(&mut self, written: &[CheckpointWritten]) {
        if let Sink::Writer(writer) = &mut self.sink {
            writer.note_checkpoints(written);
        }
    }

    /// Has the record up to now written in the background. The returned receiver ends with that: a checkpoint
    /// of this place is published after it.
    ///
    /// # Errors
    /// When another rank is gone.
    pub(crate) fn draft(&mut self) -> Result<Option<oneshot::Receiver<()>>, CheckpointError> {
        if !matches!(self.sink, Sink::Writer(_)) {
            return Ok(None);
        }
        let row = self.heard()?;
        let Sink::Writer(writer) = &mut self.sink else { return Ok(None) };
        row.into_iter().for_each(|row| writer.take(row));
        Ok(Some(writer.draft()))
    }

    /// The training was asked to stop, or has reached the end of the record it is compared with.
    ///
    /// # Errors
    /// As [`Recorder::note`].
    pub(crate) fn stop(&mut self) -> Result<(), TrainError> {
        self.take_in()?;
        if let Sink::Writer(writer) = &mut self.sink {
            writer.stop();
        }
        Ok(())
    }

    /// All steps were trained, and this is what came of it.
    ///
    /// # Errors
    /// As [`Recorder::note`], and when the weights are not those of the record.
    pub(crate) fn finish(&mut self, weights: Digest) -> Result<(), TrainError> {
        self.take_in()?;
        match &mut self.sink {
            Sink::Nowhere => Ok(()),
            Sink::Writer(writer) => {
                writer.finish(weights);
                Ok(())
            }
            Sink::Check(check) => check.end(Some(weights)),
        }
    }

    /// The training cannot continue.
    pub(crate) fn fail(&mut self, reason: String) {
        // The reports of others on the last step may be lost with them.
        let row = self.heard().ok().flatten();
        if let Sink::Writer(writer) = &mut self.sink {
            row.into_iter().for_each(|row| writer.take(row));
            writer.fail(reason);
        }
    }

    fn take_in(&mut self) -> Result<(), TrainError> {
        let Some(row) = self.heard()? else { return Ok(()) };
        match &mut self.sink {
            Sink::Nowhere => Ok(()),
            Sink::Writer(writer) => {
                writer.take(row);
                Ok(())
            }
            Sink::Check(check) => check.take(&row),
        }
    }

    /// On rank 0 the last step with the reports of all ranks.
    fn heard(&mut self) -> Result<Option<StepRow>, CollectiveError> {
        let Some((mut row, told)) = self.told.take() else { return Ok(None) };
        let told = told.wait()?;
        if self.comm.rank() > 0 {
            return Ok(None);
        }
        for (rank, message) in told.iter().enumerate() {
            let rank = rank as u32;
            let (bytes, shares) = (message.bytes(), self.ranks.of(rank).len() * SHARE_BYTES);
            let Some((shares, memory)) =
                bytes.split_at_checked(shares).filter(|(_, rest)| rest.len() == MEMORY_BYTES)
            else {
                let (found, expected) = (bytes.len(), shares + MEMORY_BYTES);
                let what = format!("{found} bytes about its virtual ranks instead of {expected}");
                return Err(CollectiveError::Malformed { rank, what });
            };
            row.shares.extend(shares.chunks_exact(SHARE_BYTES).map(share));
            self.memory_bytes = self.memory_bytes.max(number(memory, 0));
        }
        if let Sink::Writer(writer) = &mut self.sink {
            writer.note_memory(self.memory_bytes);
        }
        Ok(Some(row))
    }
}

/// The number at a place of numbers.
fn number(bytes: &[u8], place: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[place * 8..][..8]);
    u64::from_le_bytes(number)
}

/// The report on a virtual rank.
fn share(bytes: &[u8]) -> ShareRow {
    let digest = |place: usize| {
        let mut digest = [0; 16];
        digest.copy_from_slice(&bytes[25 + place * 16..][..16]);
        (bytes[24] == 1).then_some(Digest128(digest))
    };
    ShareRow {
        samples: number(bytes, 0),
        loss: f64::from_bits(number(bytes, 1)),
        correct: number(bytes, 2),
        input: digest(0),
        gradient: digest(1),
    }
}

/// The messages of all ranks, on rank 0; nothing elsewhere.
fn gather(collective: &mut dyn Collective, mine: &[u8]) -> Result<Vec<Message>, CollectiveError> {
    collective.begin(Among::All);
    if collective.rank() > 0 {
        collective.transfer(&[Outgoing { to: 0, bytes: mine }], &mut [], &mut |_| {})?;
        return Ok(Vec::new());
    }
    let mut received = vec![Vec::new(); collective.world() as usize];
    received[0] = mine.to_vec();
    let mut places: Vec<_> = (received.iter_mut().enumerate().skip(1))
        .map(|(from, bytes)| Incoming { from: from as u32, into: Place::Whole(bytes) })
        .collect();
    collective.transfer(&[], &mut places, &mut |_| {})?;
    Ok(received.into_iter().map(Message::new).collect())
}

/// The weights that a digest in a record is of.
///
/// # Errors
/// When another rank is gone or late.
pub(crate) fn digest_of(engine: &mut Engine) -> Result<Digest, CollectiveError> {
    Ok(weights_digest(&engine.digests()?))
}
