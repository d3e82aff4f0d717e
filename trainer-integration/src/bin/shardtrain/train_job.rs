//! Progress for the controller of a Kubeflow `TrainJob`, which shows it in the job's status.
//!
//! The controller names its server in the environment of each Pod
//! ([KEP-2779](https://github.com/kubeflow/trainer/tree/master/proposals/2779-trainjob-progress)). Rank 0 posts to it every
//! five seconds, and at the end. A server that refuses or is silent is warned about once. It holds up no step, and the end by
//! ten seconds at most.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;
use shardd_api::duration::now;
use shardd_store::http::{Credentials, HttpClient, HttpError};
use shardd_trainer::train::Progress;
use tracing::{info, warn};

/// Posts are this far apart.
const INTERVAL: Duration = Duration::from_secs(5);
/// The longest that a post takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// A server to report to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Server {
    url: String,
    /// Certificates (PEM) that the server's must come from.
    ca: PathBuf,
    /// The file of a token that changes from time to time.
    token: PathBuf,
}

/// The reports of one rank.
pub(crate) struct TrainJob {
    reports: SyncSender<Report>,
    posted: Option<Instant>,
    /// The last step, unless it is posted.
    last: Option<Report>,
    thread: JoinHandle<()>,
}

/// Of `UpdateTrainJobStatusRequest`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    trainer_status: TrainerStatus,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct TrainerStatus {
    progress_percentage: u8,
    estimated_remaining_seconds: i32,
    metrics: Vec<Metric>,
    last_updated_time: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Metric {
    name: &'static str,
    value: String,
}

impl TrainJob {
    /// Where the environment names a server.
    pub(crate) fn of_environment() -> Option<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let url = set("KUBEFLOW_TRAINER_SERVER_URL")?.into_string().ok()?;
        let (ca, token) = (set("KUBEFLOW_TRAINER_SERVER_CA_CERT")?, set("KUBEFLOW_TRAINER_SERVER_TOKEN")?);
        info!(url, "progress goes to the controller of the TrainJob");
        let server = Server { url, ca: ca.into(), token: token.into() };
        // No report waits behind another: each takes its time.
        let (reports, received) = sync_channel(0);
        let thread = thread::spawn(move || post_all(&server, &received));
        Some(Self { reports, posted: None, last: None, thread })
    }

    /// Takes in a step. Does not wait.
    pub(crate) fn step(&mut self, progress: &Progress, epochs: u32) {
        let report = Report::of(progress, epochs, now());
        let is_due = self.posted.is_none_or(|at| at.elapsed() >= INTERVAL);
        if !is_due {
            self.last = Some(report);
            return;
        }
        self.posted = Some(Instant::now());
        // While another one is still under way, this one waits for the next interval.
        self.last = match self.reports.try_send(report) {
            Ok(()) => None,
            Err(TrySendError::Full(report) | TrySendError::Disconnected(report)) => Some(report),
        };
    }

    /// Posts the last step, if it was not, and waits for that.
    pub(crate) fn end(self) {
        let Self { reports, last, thread, .. } = self;
        if let Some(last) = last {
            let _ = reports.send(last);
        }
        drop(reports);
        let _ = thread.join();
    }
}

fn post_all(server: &Server, reports: &Receiver<Report>) {
    let mut is_refused = false;
    while let Ok(report) = reports.recv() {
        match server.post(&report) {
            Ok(()) => is_refused = false,
            Err(error) if is_refused => {
                tracing::debug!(%error, "the controller of the TrainJob takes no progress")
            }
            Err(error) => {
                warn!(%error, "the controller of the TrainJob takes no progress; training continues");
                is_refused = true;
            }
        }
    }
}

impl Server {
    fn post(&self, report: &Report) -> Result<(), HttpError> {
        let credentials = Credentials { token: None, ca: Some(self.ca.clone()) };
        let credentials =
            credentials.or_files(Some(self.token.clone()), None).map_err(HttpError::Credentials)?;
        HttpClient::with(PATIENCE, &credentials).post_for_bytes(&self.url, report).map(drop)
    }
}

impl Report {
    /// After this step of a training of some epochs; `at` is in seconds since 1970.
    fn of(progress: &Progress, epochs: u32, at: u64) -> Self {
        let all = u64::from(epochs).saturating_mul(progress.steps).max(1);
        let done = u64::from(progress.epoch) * progress.steps + progress.step + 1;
        let metric = |name, value: String| Metric { name, value };
        let last_updated = chrono::DateTime::from_timestamp(i64::try_from(at).unwrap_or(i64::MAX), 0);
        let trainer_status = TrainerStatus {
            progress_percentage: u8::try_from((100 * done / all).min(100)).expect("at most 100"),
            estimated_remaining_seconds: progress.left_s.clamp(0.0, f64::from(i32::MAX)) as i32,
            metrics: vec![
                metric("epoch", (progress.epoch + 1).to_string()),
                metric("loss", progress.loss.to_string()),
                metric("samples_per_second", format!("{:.1}", progress.samples_per_s)),
            ],
            last_updated_time: last_updated
                .unwrap_or_default()
                .to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
        };
        Self { trainer_status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::tests::progress;

    #[test]
    fn a_report_is_the_one_that_the_controller_takes() {
        let report = Report::of(&progress(24, 0.25), 4, 1_700_000_000);
        let expected = serde_json::json!({ "trainerStatus": {
            "progressPercentage": 37,
            "estimatedRemainingSeconds": 3725,
            "metrics": [
                { "name": "epoch", "value": "2" },
                { "name": "loss", "value": "0.25" },
                { "name": "samples_per_second", "value": "1234.4" },
            ],
            "lastUpdatedTime": "2023-11-14T22:13:20Z",
        } });
        assert_eq!(serde_json::to_value(&report).expect("JSON"), expected);
        let last = Report::of(&progress(49, 0.25), 2, 0).trainer_status;
        assert_eq!(last.progress_percentage, 100);
    }
}
