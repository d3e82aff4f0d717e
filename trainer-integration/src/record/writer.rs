//! The record of a training, as rank 0 writes it: whole parts of its steps once, the last part and the
//! document again each time, in the background. One publication is under way at most; the next one waits for
//! it. If the store fails, training continues with a warning, and the next publication writes the missing
//! parts.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use shardd_store::record::{
    CheckpointWritten, Ending, FORMAT, Launch, Record, RecordError, RecordId, Records, STEPS_PER_PART,
    StepRow, StepsTable, encode_part,
};
use shardfmt::Digest;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::warn;

use super::{About, Recording, machine};
use crate::checkpoint::{CheckpointId, CheckpointStore, Settings, differences};
use crate::reduce::VirtualRanks;

/// Where a training begins, in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning {
    /// Steps before it.
    pub(crate) step: u64,
    /// The checkpoint it resumes from.
    pub(crate) checkpoint: Option<CheckpointId>,
    /// The weights there.
    pub(crate) weights: Digest,
    /// Steps of the whole training.
    pub(crate) of: u64,
    /// Whether the same training gives the same bits.
    pub(crate) is_exact: bool,
    /// Where it is computed.
    pub(crate) device: &'static str,
}

/// Writes a record.
pub(super) struct Writer {
    shelf: CheckpointStore,
    records: Records,
    /// Without the part in the making; steps end where it begins.
    record: Record,
    /// The part in the making.
    open: Vec<StepRow>,
    /// Whole parts that are perhaps not in the store.
    unsent: Vec<Bytes>,
    /// The record to remove when the next one is there: it has fewer steps.
    superseded: Vec<(RecordId, Record)>,
    under_way: Option<UnderWay>,
    /// Checkpoints that were noted of those that this process has written.
    noted: usize,
    /// Everything is in a record that was finished before.
    is_told: bool,
}

/// The earlier records of a training in a store.
struct SoFar {
    /// Records that tell less than this one will: one run has one training at a time.
    unfinished: Vec<(RecordId, Record)>,
    /// The record of the steps before this one's first, and those of its steps that are in the part that this one begins in.
    told: Option<(Record, Vec<StepRow>)>,
}

/// A publication in the background.
struct UnderWay {
    /// Gives the records that are superseded by the next one.
    job: JoinHandle<Result<Vec<(RecordId, Record)>, RecordError>>,
    /// Of the parts that were unsent.
    parts: usize,
}

impl Writer {
    /// A record of a training of these settings, which continues the one of the steps before it, if there is
    /// one.
    pub(super) fn begin(
        recording: &Recording,
        about: &About,
        ranks: VirtualRanks,
        settings: &Settings,
        may_change: &[&str],
        beginning: Beginning,
    ) -> Writer {
        let shelf = recording.shelf.clone();
        let Beginning { step, checkpoint, weights, of, is_exact, device } = beginning;
        let now = now();
        let launch = Launch {
            first_step: step,
            world: ranks.world,
            started: now,
            until: now,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program: machine::program(),
            device: device.to_owned(),
            processor: machine::processor(),
            memory_bytes: None,
        };
        let record = Record {
            format: FORMAT,
            run: shelf.run().clone(),
            data: about.data.clone(),
            virtual_ranks: ranks.count,
            arguments: about.arguments.clone(),
            settings: settings.clone(),
            is_exact,
            steps: StepsTable {
                first: step,
                end: step,
                of,
                digests_every: recording.every,
                parts: Vec::new(),
            },
            first_weights: weights,
            weights: None,
            checkpoints: checkpoint.iter().map(ToString::to_string).collect(),
            checkpoint_writes: Vec::new(),
            launches: vec![launch],
            ending: Ending::Underway,
        };
        let records = shelf.records();
        let mut writer = Writer {
            shelf,
            records,
            record,
            open: Vec::new(),
            unsent: Vec::new(),
            superseded: Vec::new(),
            under_way: None,
            noted: 0,
            is_told: false,
        };
        let handle = writer.shelf.handle().clone();
        match handle.block_on(writer.so_far(may_change)) {
            Ok(SoFar { unfinished, told }) => {
                writer.superseded = unfinished;
                match told {
                    Some((record, open)) => writer.go_on(record, open),
                    None if step > 0 => warn!(step, "there is no record of the steps before; it begins here"),
                    None => {}
                }
            }
            Err(error) => warn!(step, %error, "records cannot be read; this one begins here"),
        }
        writer
    }

    /// The present records of this training.
    async fn so_far(&self, may_change: &[&str]) -> Result<SoFar, RecordError> {
        let (ours, step) = (&self.record, self.record.steps.first);
        let firm = |settings: &Settings| -> Settings {
            let kept = settings.iter().filter(|(name, _)| !may_change.contains(&name.as_str()));
            kept.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        let is_of_this = |record: &Record| {
            (&record.data.version, &record.data.plan) == (&ours.data.version, &ours.data.plan)
                && (record.virtual_ranks, record.steps.digests_every)
                    == (ours.virtual_ranks, ours.steps.digests_every)
                && (record.steps.of, record.is_exact) == (ours.steps.of, ours.is_exact)
                && differences(&firm(&ours.settings), &firm(&record.settings)).is_empty()
        };
        let mut found = Vec::new();
        for listed in self.records.list(Some(&ours.run)).await? {
            match self.records.read(&listed).await {
                Ok(record) if is_of_this(&record) => found.push((listed.id, record)),
                Ok(_) => {}
                Err(error) => warn!(record = listed.id.short(), %error, "a record is passed over"),
            }
        }
        // The one that was written last comes first.
        found.sort_by_key(|(id, record)| (std::cmp::Reverse(record.written()), *id));
        let mut told = None;
        for (id, record) in &found {
            let Some(last) =
                step.checked_sub(1).filter(|last| (record.steps.first..record.steps.end).contains(last))
            else {
                continue;
            };
            let rows = match self.records.steps(record, last / STEPS_PER_PART).await {
                Ok(rows) => rows,
                Err(error) => {
                    warn!(record = id.short(), %error, "a record is passed over");
                    continue;
                }
            };
            let open: Vec<StepRow> = rows.into_iter().filter(|row| row.step < step).collect();
            let weights = open.last().and_then(|row| row.weights);
            if weights.is_none_or(|weights| weights == ours.first_weights) {
                told = Some((record.clone(), open));
                break;
            }
        }
        found.retain(|(_, record)| record.ending != Ending::Trained);
        Ok(SoFar { unfinished: found, told })
    }

    /// Continues a record, of whose last part these steps are still true.
    fn go_on(&mut self, so_far: Record, mut open: Vec<StepRow>) {
        let step = self.record.steps.first;
        let ours = &mut self.record;
        ours.steps.first = so_far.steps.first;
        ours.first_weights = so_far.first_weights;
        let whole = step / STEPS_PER_PART;
        if step.is_multiple_of(STEPS_PER_PART) {
            open.clear(); // of a part that is whole
        }
        let first = so_far.steps.first / STEPS_PER_PART;
        ours.steps.parts =
            so_far.steps.parts.iter().copied().take(whole.saturating_sub(first) as usize).collect();
        ours.steps.end = open.first().map_or(step, |row| row.step);
        let is_kept =
            |name: &str| name.parse::<CheckpointId>().is_ok_and(|checkpoint| checkpoint.step <= step);
        let mut checkpoints: Vec<String> =
            so_far.checkpoints.iter().filter(|name| is_kept(name)).cloned().collect();
        ours.checkpoints.retain(|name| !checkpoints.contains(name));
        checkpoints.append(&mut ours.checkpoints);
        ours.checkpoints = checkpoints;
        ours.checkpoint_writes =
            so_far.checkpoint_writes.iter().filter(|it| is_kept(&it.name)).cloned().collect();
        let before = so_far.launches.iter().filter(|launch| launch.first_step < step).cloned();
        ours.launches = before.chain(ours.launches.drain(..)).collect();
        self.open = open;
        // A finished record stays unchanged.
        self.is_told = so_far.ending == Ending::Trained && so_far.steps.end == step;
    }

    pub(super) fn take(&mut self, row: StepRow) {
        let next = row.step + 1;
        self.is_told = false;
        self.open.push(row);
        if next.is_multiple_of(STEPS_PER_PART) {
            let part = encode_part(&self.open);
            self.open.clear();
            self.record.steps.parts.push(Digest::of(&part));
            self.record.steps.end = next;
            self.unsent.push(part);
            // The steps before are safe from later faults; no caller waits for it.
            if self.under_way.as_ref().is_none_or(|under_way| under_way.job.is_finished()) {
                drop(self.draft());
            }
        }
    }

    /// Checkpoints that this process has written: a list that only grows.
    pub(super) fn note_checkpoints(&mut self, written: &[CheckpointWritten]) {
        let Record { checkpoints, checkpoint_writes, .. } = &mut self.record;
        for one in written.iter().skip(self.noted) {
            if !checkpoints.contains(&one.name) {
                checkpoints.push(one.name.clone());
            }
            // After going back, one is written again to the same bits: that was the last time.
            checkpoint_writes.retain(|other| other.name != one.name);
            checkpoint_writes.push(one.clone());
        }
        self.noted = written.len();
    }

    /// The most memory that a rank's process of this launch has had, in bytes; 0 if it is not known.
    pub(super) fn note_memory(&mut self, bytes: u64) {
        if let Some(launch) = self.record.launches.last_mut() {
            launch.memory_bytes = (bytes > 0).then_some(bytes);
        }
    }

    /// Has it written as it is; the returned receiver ends with that.
    pub(super) fn draft(&mut self) -> oneshot::Receiver<()> {
        let (done, receiver) = oneshot::channel();
        if !self.is_told {
            self.publish(Ending::Underway, None, Some(done));
        }
        receiver
    }

    pub(super) fn finish(&mut self, weights: Digest) {
        self.end(Ending::Trained, Some(weights));
    }

    pub(super) fn stop(&mut self) {
        self.end(Ending::Stopped, None);
    }

    pub(super) fn fail(&mut self, reason: String) {
        self.end(Ending::Failed { reason }, None);
    }

    fn end(&mut self, ending: Ending, weights: Option<Digest>) {
        if !self.is_told {
            self.publish(ending, weights, None);
            self.conclude();
        }
    }

    fn publish(&mut self, ending: Ending, weights: Option<Digest>, done: Option<oneshot::Sender<()>>) {
        self.conclude();
        let mut record = Record { ending, weights, ..self.record.clone() };
        if let Some(launch) = record.launches.last_mut() {
            launch.until = now();
        }
        let (mut parts, open) = (self.unsent.clone(), self.open.clone());
        let (records, superseded, count) = (self.records.clone(), self.superseded.clone(), parts.len());
        let job = self.shelf.handle().spawn(async move {
            if let Some(last) = open.last() {
                let part = encode_part(&open);
                record.steps.parts.push(Digest::of(&part));
                record.steps.end = last.step + 1;
                parts.push(part);
            }
            for part in parts {
                records.put_part(&record.run, part).await?;
            }
            let id = records.publish(&record).await?;
            drop(done);
            let mut left = Vec::new();
            for (old, earlier) in superseded.into_iter().filter(|(old, _)| *old != id) {
                let tells_less =
                    record.steps.first <= earlier.steps.first && earlier.steps.end <= record.steps.end;
                if !tells_less {
                    left.push((old, earlier));
                } else if let Err(error) = records.remove(old, &earlier).await {
                    // It does no harm but to the space it takes.
                    warn!(record = old.short(), %error, "an older, shorter record could not be removed");
                }
            }
            left.push((id, record));
            Ok(left)
        });
        self.under_way = Some(UnderWay { job, parts: count });
    }

    /// Waits for a pending write.
    fn conclude(&mut self) {
        let Some(UnderWay { job, parts }) = self.under_way.take() else { return };
        let run = &self.record.run;
        match self.shelf.handle().block_on(job) {
            Ok(Ok(superseded)) => {
                self.unsent.drain(..parts);
                self.superseded = superseded;
            }
            Ok(Err(error)) => {
                let error = crate::causes::chain(&error);
                warn!(%run, error, "the record could not be written; training continues");
            }
            Err(error) => warn!(%run, %error, "the record could not be written; training continues"),
        }
    }
}

impl Drop for Writer {
    /// A pending write has all it needs: it is waited for, so that nothing is left half done.
    fn drop(&mut self) {
        self.conclude();
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
