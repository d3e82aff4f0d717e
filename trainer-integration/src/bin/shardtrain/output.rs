//! What a rank writes: progress lines, the report, the weights.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use shardd_trainer::checkpoint::{CheckpointBytes, CheckpointCosts};
use shardd_trainer::collective::straggler;
use shardd_trainer::compress::CompressionReport;
use shardd_trainer::elastic::Reforming;
use shardd_trainer::ledger::Usage;
use shardd_trainer::scaling::LossScale;
use shardd_trainer::source::Audit;
use shardd_trainer::train::{Progress, Trained};
use shardd_trainer::weights::{Weights, WeightsError};
use shardd_trainer::zero::mesh::Mesh;
use shardfmt::{ByteSize, PlanId};
use thiserror::Error;
use tracing::warn;

use crate::args::Args;
use crate::log_to::{Curves, Facts};
use crate::status::Status;
use crate::train_job::TrainJob;

/// A file that cannot be written.
#[derive(Debug, Error)]
pub(crate) enum OutputError {
    #[error("cannot write {path}")]
    Write { path: String, source: io::Error },
    #[error("the weights cannot be saved")]
    Weights(#[from] WeightsError),
}

/// The result of a training, as one rank saw it.
#[derive(Debug, Serialize)]
pub(crate) struct Report<'a> {
    run: String,
    plan: PlanId,
    rank: u32,
    world: u32,
    virtual_ranks: u32,
    device: String,
    precision: String,
    reduce_dtype: String,
    epochs: u32,
    steps: u64,
    skipped_steps: u64,
    /// Of the skipped ones, those whose gradients were too large for 16 bits.
    overflows: u64,
    /// The last factor of gradients on their way through 16 bits.
    loss_scale: Option<f32>,
    undone_steps: u64,
    most_rows: Option<usize>,
    /// The stage of ZeRO.
    zero: u8,
    /// Which ranks share slices with each other, if any do.
    groups: Option<Groups<'a>>,
    /// The most bytes of weights, gradients, moments and copies of them that this rank held at once.
    memory: Usage,
    samples: u64,
    /// Samples whose picture or sound could not be made, so that this rank took zeros for it.
    replaced_here: u64,
    /// Steps of the checkpoint that this process resumed from.
    resumed_from: Option<u64>,
    parameters: usize,
    /// Of these, those that are not frozen.
    trained_parameters: usize,
    /// BLAKE3 of the weights: the same on all ranks and for all world sizes.
    weights_digest: String,
    test_accuracy: Option<f64>,
    test_loss: Option<f64>,
    test_samples: Option<u64>,
    loss_per_epoch: &'a [f64],
    samples_per_s: f64,
    train_s: f64,
    wait_s: f64,
    /// The cost of checkpoints; bytes are those of all ranks.
    checkpoints: CheckpointCosts,
    /// The bytes of each checkpoint, likewise.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    checkpoint_bytes: &'a [CheckpointBytes],
    bytes_sent: u64,
    /// The all-reduce algorithms of gradients by bytes, and where the choice is from; none where nothing was to choose.
    all_reduce: Option<String>,
    /// The cost and saving of compression on this rank.
    compression: Option<CompressionFigures>,
    /// Seconds that all other ranks together waited for each rank, and the one they waited for longest.
    waited_for_s: Vec<f64>,
    straggler: Option<u32>,
    audits: &'a [Audit],
    /// How groups of ranks took over from each other, where ranks stay when others go.
    reformings: &'a [Reforming],
}

/// Groups of ranks that share the numbers of the model; each group has all of them.
#[derive(Debug, Serialize)]
struct Groups<'a> {
    /// The ranks of each, by their places in it.
    ranks: &'a [Vec<u32>],
    /// Whether each is on one machine.
    are_inside_machines: bool,
}

impl<'a> From<&'a Mesh> for Groups<'a> {
    fn from(mesh: &'a Mesh) -> Groups<'a> {
        Groups { ranks: mesh.groups(), are_inside_machines: mesh.are_inside_hosts() }
    }
}

/// A [`CompressionReport`] with what follows from it.
#[derive(Debug, Serialize)]
struct CompressionFigures {
    #[serde(flatten)]
    report: CompressionReport,
    /// How many times less was sent.
    ratio: f64,
    /// Below which rate it pays.
    pays_below: Option<f64>,
}

impl From<CompressionReport> for CompressionFigures {
    fn from(report: CompressionReport) -> CompressionFigures {
        CompressionFigures { report, ratio: report.ratio(), pays_below: report.pays_below() }
    }
}

impl CompressionFigures {
    /// A line that says whether it was worth it.
    fn summary(&self) -> String {
        const MB: f64 = 1e6;
        let found = format!("gradients compressed {:.1} times", self.ratio);
        match self.pays_below {
            None => format!("{found}: more was sent than without, leave --compress out\n"),
            Some(limit) if self.report.link_rate > limit => format!(
                "{found}: it pays on links below {:.0} MB/s, and this one gave {:.0} MB/s: leave --compress out\n",
                limit / MB,
                self.report.link_rate / MB
            ),
            Some(limit) => format!("{found}: it pays on links below {:.0} MB/s\n", limit / MB),
        }
    }
}

impl<'a> Report<'a> {
    pub(crate) fn new(
        args: &Args,
        plan: PlanId,
        virtual_ranks: u32,
        resumed_from: Option<u64>,
        trained: &'a Trained,
        reformings: &'a [Reforming],
    ) -> Report<'a> {
        let evaluation = trained.evaluation;
        Report {
            run: args.run.to_string(),
            plan,
            rank: args.rank,
            world: args.world,
            virtual_ranks,
            device: args.device.to_string(),
            precision: args.precision.to_string(),
            reduce_dtype: args.reduce_dtype.to_string(),
            epochs: args.epochs,
            steps: trained.steps,
            skipped_steps: trained.skipped_steps,
            overflows: trained.overflows,
            loss_scale: trained.loss_scale.map(LossScale::factor),
            undone_steps: trained.undone_steps,
            most_rows: trained.most_rows,
            zero: args.zero.stage(),
            groups: trained.mesh.as_ref().map(Groups::from),
            memory: trained.memory,
            samples: trained.samples,
            replaced_here: trained.replaced_here,
            resumed_from,
            parameters: trained.parameters,
            trained_parameters: trained.trained_parameters,
            weights_digest: trained.digest.to_string(),
            test_accuracy: evaluation.map(|evaluation| evaluation.accuracy()),
            test_loss: evaluation.map(|evaluation| evaluation.loss),
            test_samples: evaluation.map(|evaluation| evaluation.samples),
            loss_per_epoch: &trained.loss_per_epoch,
            samples_per_s: if trained.train_s > 0.0 {
                trained.samples_here as f64 / trained.train_s
            } else {
                0.0
            },
            train_s: trained.train_s,
            wait_s: trained.wait_s,
            checkpoints: trained.checkpoints,
            checkpoint_bytes: &trained.checkpoint_bytes,
            bytes_sent: trained.bytes_sent,
            all_reduce: trained.all_reduce.as_ref().map(ToString::to_string),
            compression: trained.compression.map(CompressionFigures::from),
            waited_for_s: trained.waited_for.iter().map(std::time::Duration::as_secs_f64).collect(),
            straggler: straggler(&trained.waited_for),
            audits: &trained.audits,
            reformings,
        }
    }
}

/// Writes a line after every step, one for people every few seconds, and a summary at the end.
pub(crate) struct Observer<'a> {
    lines: Option<Box<dyn Write + Send>>,
    curves: &'a mut Curves,
    summarises: bool,
    /// The status line for people, and its interval.
    status: Option<(Status, Duration)>,
    /// When the status line was last printed.
    status_at: Instant,
    /// The job's controller, where there is one.
    train_job: Option<TrainJob>,
    epochs: u32,
    /// Which group of ranks this is, where they stay when others go.
    generation: Option<u64>,
    /// How it was formed, until that is reported.
    reformed: Option<Reforming>,
}

/// A line of progress.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    progress: &'a Progress,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reformed: Option<Reforming>,
}

impl<'a> Observer<'a> {
    pub(crate) fn open(args: &Args, curves: &'a mut Curves) -> Result<Observer<'a>, OutputError> {
        Observer::of(args, curves, None)
    }

    /// For a group of ranks that stay when others go: lines follow those of the groups before.
    pub(crate) fn of_generation(
        args: &Args,
        curves: &'a mut Curves,
        generation: u64,
    ) -> Result<Observer<'a>, OutputError> {
        Observer::of(args, curves, Some(generation))
    }

    fn of(args: &Args, curves: &'a mut Curves, generation: Option<u64>) -> Result<Observer<'a>, OutputError> {
        let open = |path: &Path| match generation {
            Some(2..) => OpenOptions::new().create(true).append(true).open(path),
            _ => File::create(path),
        };
        let lines: Option<Box<dyn Write + Send>> = match &args.progress {
            None => None,
            Some(path) if path.as_os_str() == "-" => Some(Box::new(io::stdout())),
            Some(path) => Some(Box::new(open(path).map_err(|source| refused(path, source))?)),
        };
        let to_stdout = args.progress.as_ref().is_some_and(|path| path.as_os_str() == "-");
        let default = if io::stderr().is_terminal() { 10 } else { 0 };
        let apart =
            Some(args.log_every_s.unwrap_or(default)).filter(|seconds| *seconds > 0 && args.rank == 0);
        let status = apart.map(|seconds| (Status::default(), Duration::from_secs(seconds)));
        let summarises = args.rank == 0 && !to_stdout;
        let train_job = if args.rank == 0 { TrainJob::of_environment() } else { None };
        let (status_at, epochs) = (Instant::now(), args.epochs);
        Ok(Observer {
            lines,
            curves,
            summarises,
            status,
            status_at,
            train_job,
            epochs,
            generation,
            reformed: None,
        })
    }

    /// The next line tells how the group was formed.
    pub(crate) fn note(&mut self, reformed: Reforming) {
        self.reformed = Some(reformed);
    }

    /// Adds facts to the logs.
    pub(crate) fn describe(&mut self, facts: &Facts) {
        self.curves.describe(facts);
    }

    /// A reader that goes away does not end the training.
    pub(crate) fn step(&mut self, progress: &Progress) {
        self.curves.step(progress, self.epochs);
        if let Some(train_job) = &mut self.train_job {
            train_job.step(progress, self.epochs);
        }
        if let Some((status, apart)) = &mut self.status {
            status.add(progress);
            if self.status_at.elapsed() >= *apart {
                // A reader that has gone does not miss it.
                let _ = writeln!(io::stderr(), "{}", status.line(progress, self.epochs));
                self.status_at = Instant::now();
            }
        }
        let Some(lines) = &mut self.lines else { return };
        let line = Line { progress, generation: self.generation, reformed: self.reformed.take() };
        let mut line = serde_json::to_vec(&line).expect("numbers serialize");
        line.push(b'\n');
        // Whole lines only: someone may be reading along.
        if let Err(error) = lines.write_all(&line).and_then(|()| lines.flush()) {
            warn!(%error, "progress can no longer be written; training continues");
            self.lines = None;
        }
    }

    /// The checkpoint that a training resumed from was its last.
    pub(crate) fn already_trained(&self, report: &Report<'_>) {
        if self.summarises {
            print(&format!(
                "already trained: {} in {}{}; a larger --epochs prolongs the training\nweights blake3 {}\n",
                plural(report.epochs.into(), "epoch"),
                plural(report.steps, "step"),
                results(report),
                report.weights_digest,
            ));
        }
    }

    pub(crate) fn finish(&mut self, report: &Report<'_>) {
        if let Some(train_job) = self.train_job.take() {
            train_job.end();
        }
        if let Some((accuracy, loss)) = report.test_accuracy.zip(report.test_loss) {
            let step = report.steps.saturating_sub(1);
            self.curves.scalars(step, &[("test/accuracy", accuracy), ("test/loss", loss)]);
        }
        if !self.summarises {
            return;
        }
        let results = results(report);
        let compression = report.compression.as_ref().map_or(String::new(), CompressionFigures::summary);
        let all_reduce = report.all_reduce.as_ref();
        let all_reduce = all_reduce.map_or(String::new(), |tuned| format!("all-reduce: {tuned}\n"));
        let straggler = report.straggler.map_or(String::new(), |rank| {
            let waited = report.waited_for_s[rank as usize];
            format!("the others waited longest for rank {rank}: {waited:.1} s, added up over them\n")
        });
        let CheckpointCosts { count, written_bytes, present_bytes, .. } = report.checkpoints;
        let checkpoints = if count == 0 {
            String::new()
        } else {
            let (written, present) = (ByteSize(written_bytes), ByteSize(present_bytes));
            format!("{}: {written} written, {present} reused\n", plural(count, "checkpoint"))
        };
        print(&format!(
            "trained {} on {} of {}: {:.0} samples/s{results}\n{straggler}{all_reduce}{compression}{checkpoints}weights blake3 {}\n",
            plural(report.epochs.into(), "epoch"),
            plural(report.world.into(), "rank"),
            plural(report.virtual_ranks.into(), "virtual rank"),
            report.samples_per_s,
            report.weights_digest,
        ));
    }
}

/// The loss of the last epoch, and the accuracy on the test data.
fn results(report: &Report<'_>) -> String {
    let loss = report.loss_per_epoch.last().map_or(String::new(), |loss| format!(", loss {loss:.4}"));
    let accuracy = report.test_accuracy;
    let accuracy = accuracy.map_or(String::new(), |share| format!(", test accuracy {:.1} %", share * 100.0));
    loss + &accuracy
}

/// Prints a result. All else is done: a reader that has gone away misses it, and nothing is wrong.
fn print(text: &str) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush())
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        warn!(%error, "the summary cannot be written");
    }
}

pub(crate) fn plural(count: u64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

/// Says where a training stopped that was asked to.
pub(crate) fn tell_stopped(args: &Args, steps: u64, of: u64) {
    if args.rank > 0 {
        return;
    }
    let place = args.checkpoints.as_deref().unwrap_or(Path::new("")).display();
    let line = format!(
        "stopped after step {steps} of {of}, with a checkpoint in {place}; start again to \
            continue\n"
    );
    // The checkpoint is there: a reader that has gone away misses this, and nothing is wrong.
    let mut out = io::stdout().lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// Says whose weights are in a file now.
pub(crate) fn tell_exported(checkpoint: &str, path: &Path) {
    // The file is there: a reader that has gone away misses this, and nothing is wrong.
    let _ = writeln!(io::stdout(), "the weights of checkpoint {checkpoint} are in {}", path.display());
}

/// Replaces `path` with the report; a reader sees the old or the new one, whole.
pub(crate) fn write_report(path: &Path, report: &Report<'_>) -> Result<(), OutputError> {
    let mut json = serde_json::to_vec_pretty(report).expect("a report serializes");
    json.push(b'\n');
    replace(path, &json)
}

/// Replaces `path` with a trace of these events.
pub(crate) fn write_trace(path: &Path, events: &[serde_json::Value]) -> Result<(), OutputError> {
    let trace = serde_json::json!({"traceEvents": events, "displayTimeUnit": "ms"});
    replace(path, trace.to_string().as_bytes())
}

/// Saves the weights as safetensors.
pub(crate) fn save(path: &Path, weights: &Weights) -> Result<(), OutputError> {
    replace_by(path, |part| Ok(weights.write_safetensors(part)?))
}

fn replace(path: &Path, bytes: &[u8]) -> Result<(), OutputError> {
    replace_by(path, |part| {
        let written = File::create(part).and_then(|mut file| file.write_all(bytes));
        written.map_err(|source| refused(path, source))
    })
}

/// Whether the files of a training can be written, before it begins: a file is made in each folder, and removed.
pub(crate) fn check_outputs(args: &Args) -> Result<(), OutputError> {
    let of_rank_0 = [&args.save, &args.trace].into_iter().filter(|_| args.rank == 0);
    for path in of_rank_0.chain([&args.report]).flatten() {
        if path.is_dir() {
            return Err(refused(path, io::ErrorKind::IsADirectory.into()));
        }
        let part = part_of(path);
        File::create(&part)
            .and_then(|_| std::fs::remove_file(&part))
            .map_err(|source| refused(path, source))?;
    }
    Ok(())
}

/// Replaces `path` with a file that is written somewhere else first.
fn replace_by(path: &Path, write: impl FnOnce(&Path) -> Result<(), OutputError>) -> Result<(), OutputError> {
    let part = part_of(path);
    let keep = || {
        // It is kept once it is on the disk.
        let kept = File::open(&part).and_then(|file| file.sync_all());
        kept.and_then(|()| std::fs::rename(&part, path)).map_err(|source| refused(path, source))
    };
    write(&part).and_then(|()| keep()).inspect_err(|_| {
        let _ = std::fs::remove_file(&part); // may not even exist
    })
}

/// Where a file is written until it is whole.
fn part_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

fn refused(path: &Path, source: io::Error) -> OutputError {
    OutputError::Write { path: path.display().to_string(), source }
}
