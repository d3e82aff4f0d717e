//! Reads the grains of a plan for a reader that takes part in no run.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use shardd_api::protocol::RunRecord;
use shardd_plan::{GrainNo, Plan};
use shardfmt::{Manifest, PlanId};

use super::run::RunState;
use super::{Engine, EngineError};

/// Reads grains of one plan from the cache, from the hosts of a run over the plan if there is one, and from the store.
#[derive(Clone)]
pub struct PlanReader {
    engine: Arc<Engine>,
    run: Arc<RunState>,
}

impl PlanReader {
    /// A reader for the plan `id`. If this node knows a run over the plan, its hosts are asked; otherwise the reader uses
    /// a run of its own that no other node hosts.
    ///
    /// # Errors
    /// A plan or version that is missing or cannot be read.
    pub async fn open(engine: &Arc<Engine>, id: PlanId) -> Result<Self, EngineError> {
        let known = engine.active_run_states().into_iter().find(|run| run.record.plan == id);
        let run = match known {
            Some(run) => run,
            None => {
                let (plan, manifest) = engine.plan(id).await?;
                let record = RunRecord {
                    id: format!("onlooker-{}", id.short()).parse().expect("hexadecimal digits name a run"),
                    plan: id,
                    version: plan.document().version,
                    virtual_ranks: plan.document().partitions,
                    began: None,
                    left: None,
                    interrupted: false,
                    removing: false,
                };
                Arc::new(RunState::new(record, plan, manifest))
            }
        };
        Ok(Self { engine: Arc::clone(engine), run })
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.run.plan
    }

    /// The manifest of the plan's version.
    pub fn manifest(&self) -> &Manifest {
        &self.run.manifest
    }

    /// The verified canonical bytes of each of `grains`.
    ///
    /// # Errors
    /// A grain that neither a host nor the store gives, and a node that stops meanwhile.
    pub async fn read(&self, epoch: u32, grains: &[GrainNo]) -> Result<HashMap<GrainNo, Bytes>, EngineError> {
        tokio::select! {
            () = self.engine.lifecycle.stop.cancelled() => Err(EngineError::Stopping),
            read = self.engine.bytes_of(&self.run, epoch, grains) => read,
        }
    }

    /// Runs `job` on a thread where blocking is allowed. The node waits for it when it stops.
    pub fn spawn_blocking(&self, job: impl FnOnce() + Send + 'static) {
        self.engine.lifecycle.tasks.spawn_blocking(job);
    }
}
