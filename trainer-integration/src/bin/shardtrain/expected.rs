//! The record that a training is compared with.

use std::io::{self, Write};
use std::path::Path;

use shardd_api::protocol::RunId;
use shardd_plan::Plan;
use shardd_store::record::{Record, RecordError, RecordId, SampleLoss, StepRow};
use shardd_trainer::checkpoint::CheckpointStore;
use shardd_trainer::record::{Purpose, Recording};
use shardd_trainer::train::step_losses::StepLosses;

use crate::args::{Args, UsageError};
use crate::step_losses;

type Failure = Box<dyn std::error::Error>;

/// The record that a training is compared with.
pub(crate) struct Expected {
    pub(crate) shelf: CheckpointStore,
    pub(crate) id: RecordId,
    pub(crate) record: Record,
    /// The step whose samples' losses are wanted, with its row in the record, and what becomes of them; the training ends with it.
    step_losses: Option<(StepLosses, StepRow, LossesWanted)>,
    /// The checkpoint of the recorded training before that step, with its number of steps.
    checkpoint: Option<(CheckpointStore, u64)>,
}

/// What becomes of the losses of a step's samples.
#[derive(Clone, Copy)]
pub(crate) struct LossesWanted {
    /// They are printed as JSON.
    pub(crate) json: bool,
    /// They are saved beside the record.
    pub(crate) save: bool,
}

impl Expected {
    /// The record that is called so. Rank numbers are no matter: every rank reads it.
    pub(crate) fn open(at: &Path, asked: &str, run: &RunId, args: &Args) -> Result<Expected, Failure> {
        let shelf = open(at, run, args, "record")?;
        let records = shelf.records();
        let (id, record) = shelf.handle().block_on(async {
            let listed = records.find(asked).await?;
            Ok::<_, RecordError>((listed.id, records.read(&listed).await?))
        })?;
        Ok(Expected { shelf, id, record, step_losses: None, checkpoint: None })
    }

    /// Asks for the losses of this step's samples. The training begins at the last checkpoint before the step, if there are some
    /// beside the record.
    pub(crate) fn with_step_losses(
        mut self,
        step: u64,
        wanted: LossesWanted,
        at: &Path,
        args: &Args,
    ) -> Result<Expected, Failure> {
        let steps = &self.record.steps;
        if !(steps.first..steps.end).contains(&step) {
            let (id, first, last) = (self.id.short(), steps.first, steps.end.saturating_sub(1));
            let message = format!("--sample-losses {step}: record {id} has steps {first} to {last}");
            return Err(UsageError(message).into());
        }
        // Now, as a training that is underway removes this record when it writes the next one.
        let row = self.shelf.handle().block_on(self.shelf.records().step(&self.record, step))?;
        let row = row.ok_or_else(|| format!("record {} does not have step {step}", self.id.short()))?;
        let shelf = open(at, &self.record.run, args, "record")?;
        let before = shelf.list()?.iter().map(|id| id.step).filter(|begins| *begins <= step).max();
        self.checkpoint = before.map(|begins| (shelf, begins));
        self.step_losses = Some((StepLosses::of(step), row, wanted));
        Ok(self)
    }

    /// Takes the losses of a step's samples in, if they are wanted.
    pub(crate) fn step_losses(&self) -> Option<StepLosses> {
        self.step_losses.as_ref().map(|(losses, ..)| losses.clone())
    }

    /// Where the training begins, if it does not at its first step.
    pub(crate) fn checkpoint(&self) -> Option<&(CheckpointStore, u64)> {
        self.checkpoint.as_ref()
    }

    /// The step after the last one that is compared.
    fn end(&self) -> u64 {
        self.step_losses.as_ref().map_or(self.record.steps.end, |(losses, ..)| losses.step() + 1)
    }

    pub(crate) fn recording(&self) -> Recording {
        let (every, record) = (self.record.steps.digests_every, Box::new(self.record.clone()));
        Recording { shelf: self.shelf.clone(), every, purpose: Purpose::Compare(self.id, record) }
    }

    /// Why it cannot be trained again.
    pub(crate) fn lacks(&self, error: &dyn std::error::Error) -> Failure {
        let (id, data) = (self.id.short(), &self.record.data);
        let name = data.dataset.as_ref().map_or(String::new(), |name| format!(" of {name}"));
        let (version, plan) = (data.version.short(), data.plan.short());
        format!(
            "record {id} is of plan {plan} and version {version}{name}, which cannot be read here ({}); restore it, or name the place that has it with --store, --server or --context",
            crate::chain(error)
        )
        .into()
    }

    /// Says that nothing differs, once `trained` steps were done; or prints and saves the losses that are wanted.
    pub(crate) fn tell(&self, args: &Args, trained: u64, plan: &Plan) -> Result<(), Failure> {
        let (steps, end) = (&self.record.steps, self.end());
        if trained < end {
            let compared = trained.saturating_sub(steps.first);
            let message =
                format!("stopped after {compared} steps, which are the same; the others were not compared");
            return Err(UsageError(message).into());
        }
        if args.rank > 0 {
            return Ok(());
        }
        if let Some((losses, row, LossesWanted { json, save })) = &self.step_losses {
            let per_epoch = self.record.steps_per_epoch().unwrap_or(u64::MAX);
            step_losses::tell(losses, plan, per_epoch, *json)?;
            if *save {
                self.save(row, &step_losses::rows(losses, plan, per_epoch))?;
            }
            return Ok(());
        }
        let count = end - steps.first;
        let from = match steps.first {
            0 => String::new(),
            first => format!(", from step {first} on, with which record {} begins", self.id.short()),
        };
        let weights = match &self.record.weights {
            Some(weights) => format!(", and the weights at the end, blake3 {weights}"),
            None => String::new(),
        };
        // A reader that has gone away misses it; the exit code says the same.
        let _ = writeln!(io::stdout(), "{count} steps are the same to the last bit{from}{weights}");
        Ok(())
    }

    /// Saves the losses of a step's samples beside the records that have this step, and says where they are shown.
    fn save(&self, row: &StepRow, losses: &[SampleLoss]) -> Result<(), Failure> {
        let (records, run, step) = (self.shelf.records(), &self.record.run, row.step);
        let shown = self.shelf.handle().block_on(async {
            records.put_losses(&self.record, row, losses).await?;
            records.with_step(self.id, &self.record, row).await
        })?;
        let store = records.store();
        match shown {
            Some(id) => {
                eprintln!("saved beside record {} in {store}: the page of run {run} shows them", id.short())
            }
            None => eprintln!(
                "saved in {store}, but nothing shows them: record {} is gone, and no other record of run {run} has this step {step}",
                self.id.short()
            ),
        }
        Ok(())
    }
}

/// The records of a place, or its checkpoints (`what`, as the flag says), which is not made where there is none.
pub(crate) fn open(at: &Path, run: &RunId, args: &Args, what: &str) -> Result<CheckpointStore, Failure> {
    let place = args.connect.store_at(at)?;
    if let shardd_store::catalog::StorePlace::Directory(directory) = &place
        && !directory.is_dir()
    {
        let plural = format!("{}s", what.trim_end_matches('s'));
        return Err(format!(
            "there is no directory {}; name that of the {plural} with --{what}",
            directory.display()
        )
        .into());
    }
    Ok(CheckpointStore::open(&place, run)?)
}
