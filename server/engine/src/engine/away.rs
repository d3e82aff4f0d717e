//! Stands in for the metastore while that is unreachable: ranks of a known run still meet, attach and report,
//! and the node sends their changes when the metastore is back.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardd_api::protocol::{Attach, AuditReport, CreateRun, RunId, RunRecord};
use shardd_store::durable;
use shardd_store::metastore::{MetaError, Metastore, Recalled};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::value::parse;
use super::{Engine, EngineError, blocking};

/// Below which keys a node remembers the last news.
pub(super) const REMEMBERED: &[&str] = &["refs/", "tags/", "versions/", "plans/", "runs/", "ranks/"];

/// How often it is looked whether the metastore is back, when there is something to tell it.
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// The reports that wait for the metastore.
#[derive(Default)]
pub(super) struct Away {
    /// Ranks that have attached here, and those that have left, by run and number.
    ranks: Mutex<BTreeMap<(RunId, u32), Option<Attach>>>,
    reports: Mutex<Reports>,
}

/// Reports of ranks, also on disk where there is a place for them.
#[derive(Default)]
struct Reports {
    directory: Option<PathBuf>,
    kept: BTreeMap<String, (RunId, AuditReport)>,
}

/// A report as it lies on disk.
#[derive(serde::Serialize, serde::Deserialize)]
struct Kept {
    run: RunId,
    report: AuditReport,
}

impl Reports {
    fn open(directory: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let mut kept = BTreeMap::new();
        for entry in std::fs::read_dir(directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let bytes = durable::read(&directory.join(&name))?.unwrap_or_default();
            // One that was being written when the node died was not acknowledged.
            if let Ok(Kept { run, report }) = serde_json::from_slice(&bytes)
                && !name.starts_with(durable::UNFINISHED)
            {
                kept.insert(name, (run, report));
            }
        }
        Ok(Self { directory: Some(directory.to_owned()), kept })
    }

    fn keep(&mut self, run: &RunId, report: AuditReport) -> io::Result<()> {
        let AuditReport { epoch, world, rank, .. } = report;
        let name = format!("{run}.{epoch:06}.{world:06}-{rank:06}.json");
        if let Some(directory) = &self.directory {
            let kept = Kept { run: run.clone(), report };
            durable::replace(directory, &name, &serde_json::to_vec(&kept).expect("a report is plain data"))?;
        }
        self.kept.insert(name, (run.clone(), report));
        Ok(())
    }

    fn forget(&mut self, name: &str) -> io::Result<()> {
        self.kept.remove(name);
        self.directory.as_ref().map_or(Ok(()), |directory| durable::remove(&directory.join(name)))
    }
}

/// Whether the failure is an outage of the metastore.
pub(super) fn is_away(error: &EngineError) -> bool {
    matches!(error, EngineError::Meta(MetaError::Unavailable { .. }))
}

impl Engine {
    /// The last news of datasets, plans and runs.
    pub fn recalled(&self) -> &Arc<Recalled> {
        &self.outage.recalled
    }

    /// Keeps in `directory` the reports of ranks during an outage of the metastore, and loads the existing
    /// ones.
    ///
    /// # Errors
    /// A directory that cannot be made or read.
    pub fn keep_reports_in(&self, directory: &Path) -> io::Result<()> {
        *self.outage.away.reports.lock().expect("no panic while held") = Reports::open(directory)?;
        Ok(())
    }

    /// A run as it was last heard of, if it is the one that is asked for.
    pub(super) async fn recall_run(&self, create: &CreateRun) -> Option<RunRecord> {
        let record = self.recall_record(&create.id).await?;
        (record.plan == create.plan && record.virtual_ranks == create.virtual_ranks).then_some(record)
    }

    pub(super) async fn recall_record(&self, id: &RunId) -> Option<RunRecord> {
        if let Some(run) = self.known_run(id) {
            return Some(run.record.clone());
        }
        let entry = self.outage.recalled.get(&format!("runs/{id}")).await.ok().flatten()?;
        parse(&entry)
    }

    /// A rank has attached here, or left, though no other node can know.
    pub(super) fn attached_meanwhile(&self, run: &RunId, rank: u32, attach: Option<Attach>) {
        let mut ranks = self.outage.away.ranks.lock().expect("no panic while held");
        ranks.insert((run.clone(), rank), attach);
    }

    /// A rank that has attached here meanwhile is gone.
    pub(super) fn forget_attached_meanwhile(&self, run: &RunId, rank: u32) {
        let mut ranks = self.outage.away.ranks.lock().expect("no panic while held");
        ranks.retain(|key, attach| attach.is_none() || *key != (run.clone(), rank));
    }

    /// Keeps a report until the metastore is back; on disk, where there is a place.
    pub(super) async fn report_meanwhile(
        self: &Arc<Self>,
        run: &RunId,
        report: AuditReport,
        away: EngineError,
    ) -> Result<(), EngineError> {
        let (engine, id) = (Arc::clone(self), run.clone());
        let keep = move || engine.outage.away.reports.lock().expect("no panic while held").keep(&id, report);
        match blocking(keep).await {
            Ok(()) => {
                info!(run = %run, epoch = report.epoch, rank = report.rank, "a report is kept until the metastore is back");
                Ok(())
            }
            Err(error) => {
                warn!(run = %run, epoch = report.epoch, rank = report.rank, %error, "a report cannot be kept");
                Err(away)
            }
        }
    }

    /// The reports of a run's ranks to this node that the metastore does not have.
    pub(super) fn reports_meanwhile(&self, run: &RunId) -> Vec<AuditReport> {
        let reports = self.outage.away.reports.lock().expect("no panic while held");
        reports.kept.values().filter(|(of, _)| of == run).map(|(_, report)| *report).collect()
    }

    /// Sends the missed events to the metastore, once it is back, until `stop`.
    pub(super) async fn tell_what_was_missed(self: Arc<Self>, stop: CancellationToken) {
        let telling = async {
            loop {
                tokio::time::sleep(TELL_AGAIN).await;
                if let Err(error) = self.tell_once().await
                    && !is_away(&error)
                {
                    warn!(%error, "the events of the metastore's outage cannot be published; trying again");
                }
            }
        };
        stop.run_until_cancelled(telling).await;
    }

    async fn tell_once(self: &Arc<Self>) -> Result<(), EngineError> {
        let ranks = self.outage.away.ranks.lock().expect("no panic while held").clone();
        for ((run, rank), attach) in ranks {
            let changed = match attach {
                Some(attach) => self.change_attached(&run, rank, attach).await,
                None => self.change_left(&run, rank).await,
            };
            match changed {
                // The run was removed meanwhile.
                Ok(()) | Err(EngineError::UnknownRun { .. }) => {}
                Err(error) => return Err(error),
            }
            let mut ranks = self.outage.away.ranks.lock().expect("no panic while held");
            // Later changes are sent the next time.
            if ranks.get(&(run.clone(), rank)) == Some(&attach) {
                ranks.remove(&(run, rank));
            }
        }
        let reports = self.outage.away.reports.lock().expect("no panic while held").kept.clone();
        for (name, (run, report)) in reports {
            match self.put_audit(&run, report).await {
                Ok(()) => {}
                // The run was removed meanwhile, or has another report of this rank, which stays.
                Err(
                    error @ (EngineError::UnknownRun { .. }
                    | EngineError::OtherAudit { .. }
                    | EngineError::RankOutside { .. }),
                ) => {
                    warn!(run = %run, epoch = report.epoch, rank = report.rank, %error, "a report that was kept is refused")
                }
                Err(error) => return Err(error),
            }
            let (engine, forgotten) = (Arc::clone(self), name.clone());
            let forget =
                move || engine.outage.away.reports.lock().expect("no panic while held").forget(&forgotten);
            if let Err(error) = blocking(forget).await {
                warn!(name, %error, "a report that was sent is still kept; it is sent again at the next start");
            }
            info!(run = %run, epoch = report.epoch, rank = report.rank, "a report that was kept is sent");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use shardfmt::DigestSum;

    use super::*;

    #[test]
    fn reports_outlive_the_node_that_keeps_them_and_one_half_written_is_none() {
        let place = tempfile::TempDir::new().expect("a directory");
        let directory = place.path().join("reports");
        let run: RunId = "r".parse().expect("a good name");
        let report = |rank| AuditReport {
            rank,
            world: 2,
            epoch: 3,
            samples: 7,
            digest_sum: DigestSum(9),
            global_batch_size: Some(4),
        };
        let mut reports = Reports::open(&directory).expect("made");
        reports.keep(&run, report(0)).expect("kept");
        reports.keep(&run, report(1)).expect("kept");
        reports.keep(&run, report(1)).expect("twice does no harm");
        std::fs::write(directory.join("~half"), b"{").expect("as if it had died");
        let mut again = Reports::open(&directory).expect("opened");
        assert_eq!(again.kept, reports.kept);
        assert_eq!(again.kept.len(), 2);
        let first = again.kept.keys().next().expect("one").clone();
        again.forget(&first).expect("removed");
        assert_eq!(Reports::open(&directory).expect("opened").kept, again.kept);
    }
}
