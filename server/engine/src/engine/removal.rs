//! Runs that were removed: what this node knows of them and keeps for them goes, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardd_api::protocol::{RunId, RunRecord};
use shardd_store::metastore::Listing;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::keys::{RUNS, entries};
use super::{Engine, EngineError, RunState, blocking};

impl Engine {
    /// Looks for runs that this node knows and that are no more.
    pub(super) fn take_runs(self: &Arc<Self>, listing: &Listing, stop: &CancellationToken) {
        let records: BTreeMap<RunId, RunRecord> = entries(RUNS, listing).collect();
        let known = self.runs.states.lock().expect("no panic while held").clone();
        for (id, run) in known {
            let is_there = records.get(&id).is_some_and(|record| record.is_same_run(&run.record));
            if !is_there {
                let (engine, stop) = (Arc::clone(self), stop.clone());
                self.lifecycle.tasks.spawn(async move { engine.drop_if_removed(run, stop).await });
            }
        }
    }

    /// The run as the metastore has it now, and not another one that had its name.
    pub(super) async fn run_as_recorded(&self, id: &RunId) -> Result<Arc<RunState>, EngineError> {
        let record = self.record(id).await?;
        if let Some(known) = self.known_run(id).filter(|known| !known.record.is_same_run(&record)) {
            self.forget_run(&known);
        }
        self.run(id).await
    }

    async fn drop_if_removed(self: Arc<Self>, run: Arc<RunState>, stop: CancellationToken) {
        let id = &run.record.id;
        // The list may be older than the run.
        match self.record(id).await {
            Ok(record) if record.is_same_run(&run.record) => return,
            Ok(_) | Err(EngineError::UnknownRun { .. }) => {}
            Err(error) => return debug!(run = %id, %error, "it is not known whether the run was removed"),
        }
        self.forget_run(&run);
        self.drive_again(id, &stop);
        match self.clear_run(id).await {
            Ok(bytes) => info!(run = %id, bytes, "a run was removed, with its cached grains"),
            Err(error) => {
                debug!(run = %id, %error, "the cached grains of a removed run stay until room is wanted")
            }
        }
    }

    fn forget_run(&self, run: &Arc<RunState>) {
        let id = &run.record.id;
        let mut runs = self.runs.states.lock().expect("no panic while held");
        if runs.get(id).is_some_and(|known| Arc::ptr_eq(known, run)) {
            runs.remove(id);
        }
        drop(runs);
        run.filling.stop();
        run.removed.cancel();
    }

    /// Another run of that name may be read already.
    fn drive_again(self: &Arc<Self>, id: &RunId, stop: &CancellationToken) {
        let mut driven = self.runs.driven.lock().expect("no panic while held");
        if let Some(ended) = driven.remove(id) {
            ended.cancel();
            if self.watched.launches.borrow().contains_key(id) {
                driven.insert(id.clone(), self.spawn_drive(id, stop));
            }
        }
    }

    /// Drops from the cache what only this run wanted: the bytes that came back.
    async fn clear_run(self: &Arc<Self>, id: &RunId) -> Result<u64, EngineError> {
        let runs = self.runs_with_ranks().await?;
        let _one_after_the_other = self.upkeep.clearing.lock().await;
        let (engine, name) = (Arc::clone(self), id.to_string());
        let clear = move || {
            let wanted = engine.wanted_class(&runs);
            let cleared = engine.cache.clear(
                |key, class| match class.run == name {
                    true => wanted(key, class),
                    false => Some(class.clone()),
                },
                false,
            );
            cleared.bytes
        };
        Ok(blocking(clear).await)
    }
}
