//! Where the curves of a training are logged, and their values: the same in every system.

mod client;
mod event_file;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::{Map, Value};
use shardd_api::protocol::RunId;
use shardd_client::launcher;
use shardd_trainer::elastic::SOCKET;
use shardd_trainer::launch_env::variable;
use shardd_trainer::train::Progress;
use shardfmt::PlanId;
use thiserror::Error;
use tracing::warn;

use client::{ClientLog, OPENING};
use event_file::EventFile;

/// The most steps of a training that have values of their own; of more steps, some are left out.
const MOST_STEPS: u64 = 10_000;
/// The systems whose own client in Python logs, by the names of its module and its package.
const CLIENTS: [&str; 3] = ["mlflow", "wandb", "trackio"];
/// In which launchers count their restarts, as torchrun does.
pub(crate) const RESTARTS: &str = "TORCHELASTIC_RESTART_COUNT";

/// Facts about a training by their names: its settings, and the ids that lead from a curve to its data.
pub(crate) type Facts = Map<String, Value>;

/// Where the curves of a training are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogTo {
    /// Event files of TensorBoard in this directory, under the name of the run.
    TensorBoard(PathBuf),
    /// An experiment or a project of one of [`CLIENTS`].
    Client { system: &'static str, name: String },
}

impl FromStr for LogTo {
    type Err = String;

    fn from_str(text: &str) -> Result<LogTo, String> {
        let choices =
            || "use tensorboard:DIR, mlflow:EXPERIMENT, wandb:PROJECT or trackio:PROJECT".to_owned();
        let (system, name) = text.split_once(':').filter(|(_, name)| !name.is_empty()).ok_or_else(choices)?;
        if system == "tensorboard" {
            return Ok(LogTo::TensorBoard(name.into()));
        }
        let system = CLIENTS.into_iter().find(|client| *client == system).ok_or_else(choices)?;
        Ok(LogTo::Client { system, name: name.to_owned() })
    }
}

impl fmt::Display for LogTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogTo::TensorBoard(directory) => write!(f, "tensorboard:{}", directory.display()),
            LogTo::Client { system, name } => write!(f, "{system}:{name}"),
        }
    }
}

/// A log that cannot be opened.
#[derive(Debug, Error)]
pub(crate) enum LogError {
    #[error("cannot write {}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The client is not installed, or refuses; the reason names the remedy.
    #[error("--log-to {to}: {reason}")]
    Refused { to: LogTo, reason: String },
}

/// A run as systems know it that keep the runs of many.
pub(crate) struct Run {
    name: RunId,
    /// The same for a training that resumes as for its first start.
    id: String,
}

impl Run {
    /// The run of a plan. Where a training `may_resume`, later starts have the same run. Otherwise each start has a run of its own, which
    /// ranks that stay with their launcher share.
    pub(crate) fn new(name: &RunId, plan: PlanId, may_resume: bool) -> Run {
        let start = || format!("{:?} {}", SystemTime::now(), std::process::id());
        let launch = || std::env::var(SOCKET).unwrap_or_else(|_| start());
        let series = if may_resume { String::new() } else { launch() };
        Run { name: name.clone(), id: id_of(name, plan, &series) }
    }
}

/// How a training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ending {
    /// After its last step.
    Trained,
    /// After a step, with a checkpoint, because of a signal.
    Stopped,
    Failed,
}

/// The log of a run in one system. No call waits for a server.
trait RunLogger: Send {
    /// Adds facts. The steps that follow replace earlier values of the same steps, where the system can do that.
    ///
    /// # Errors
    /// If nothing more can be logged; likewise below.
    fn describe(&mut self, facts: &Facts) -> io::Result<()>;

    /// Logs values of a step, which counts from 0 over all epochs.
    fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> io::Result<()>;

    /// Completes the log, in a limited time.
    fn end(&mut self, how: Ending) -> io::Result<()>;
}

/// The logs of a training. A log that fails is left out with a warning, and the training continues.
#[derive(Default)]
pub(crate) struct Curves {
    logs: Vec<(LogTo, Box<dyn RunLogger>)>,
    is_open: bool,
}

impl Curves {
    /// Opens logs of a run, unless they are open. A log that cannot be opened ends the first start of a training. Where a launcher
    /// `restarts` one, nothing waits for a log, and a failure is a warning.
    ///
    /// # Errors
    /// See [`LogError`].
    pub(crate) fn open(
        &mut self,
        places: &[LogTo],
        run: &Run,
        facts: &Facts,
        restarts: bool,
    ) -> Result<(), LogError> {
        if std::mem::replace(&mut self.is_open, true) {
            return Ok(());
        }
        for to in places {
            match open(to, run, facts, restarts) {
                Ok(log) => self.logs.push((to.clone(), log)),
                Err(error) if restarts => {
                    warn!("the training continues without a log: {}", crate::chain(&error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Adds facts that are known when a group of ranks begins to train.
    pub(crate) fn describe(&mut self, facts: &Facts) {
        self.each(|log| log.describe(facts));
    }

    /// Logs a step, if it is one of those that have values.
    pub(crate) fn step(&mut self, progress: &Progress, epochs: u32) {
        if let Some((step, values)) = values_of(progress, epochs) {
            self.scalars(step, &values);
        }
    }

    /// Logs values of a step.
    pub(crate) fn scalars(&mut self, step: u64, values: &[(&str, f64)]) {
        self.each(|log| log.scalars(step, values));
    }

    /// Completes the logs.
    pub(crate) fn end(&mut self, how: Ending) {
        for (to, mut log) in self.logs.drain(..) {
            if let Err(error) = log.end(how) {
                warn!("the log {to} is not complete: {error}");
            }
        }
    }

    fn each(&mut self, write: impl Fn(&mut dyn RunLogger) -> io::Result<()>) {
        self.logs.retain_mut(|(to, log)| {
            let written = write(&mut **log);
            if let Err(error) = &written {
                warn!("nothing more can be logged to {to}, and the training continues: {error}");
            }
            written.is_ok()
        });
    }
}

/// Whether a launcher or a queue has started the ranks of a training again.
pub(crate) fn is_restart() -> bool {
    launcher::restarts(variable) > 0
}

fn open(to: &LogTo, run: &Run, facts: &Facts, restarts: bool) -> Result<Box<dyn RunLogger>, LogError> {
    match to {
        LogTo::TensorBoard(directory) => {
            let mut file = EventFile::create(directory, run.name.as_str())
                .map_err(|source| LogError::Write { path: directory.clone(), source })?;
            file.note(facts);
            Ok(Box::new(file))
        }
        LogTo::Client { system, name } => {
            let refused = |reason| LogError::Refused { to: to.clone(), reason };
            let mut log =
                ClientLog::start(system, name, &run.id, run.name.as_str(), facts).map_err(refused)?;
            if !restarts {
                log.wait_until_open(OPENING).map_err(refused)?;
            }
            Ok(Box::new(log))
        }
    }
}

fn id_of(name: &RunId, plan: PlanId, series: &str) -> String {
    let digest = blake3::hash(format!("{plan} {series}").as_bytes()).to_hex();
    format!("{name}-{}", &digest[..12])
}

/// The number of a step over all epochs, and its values, if it is one of those that have values.
fn values_of(progress: &Progress, epochs: u32) -> Option<(u64, [(&'static str, f64); 11])> {
    let step = u64::from(progress.epoch) * progress.steps + progress.step;
    let all = u64::from(epochs) * progress.steps;
    let is_last = step + 1 == all;
    if !is_last && !step.is_multiple_of(all.div_ceil(MOST_STEPS).max(1)) {
        return None;
    }
    let time = &progress.time;
    let values = [
        ("train/loss", progress.loss),
        ("train/accuracy", progress.accuracy),
        ("train/learning_rate", progress.rate.into()),
        ("train/gradient_norm", progress.gradient_norm),
        ("train/samples_per_second", progress.samples_per_s),
        ("train/skipped", f64::from(u8::from(progress.is_skipped))),
        ("seconds/waiting_for_data", time.wait_s),
        ("seconds/decoding", time.decode_s),
        ("seconds/computing", time.compute_s),
        ("seconds/waiting_for_ranks", time.reduce_s),
        ("seconds/updating", (time.update_s - time.reduce_s).max(0.0)),
    ];
    Some((step, values))
}

#[cfg(test)]
mod tests;
