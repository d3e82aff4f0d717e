//! The trainer's sources, from the client library: a loader's steps, a catalog's rows; and what nodes did meanwhile.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use shardd_api::node::NodeRecord;
use shardd_api::protocol::{RunId, RunView};
use shardd_api::timeline::Timeline;
use shardd_client::loader::{
    Changed, Failed, LoadError, Loader, OrderId, TrainerNotes, Transformed, Transforms,
};
use shardd_store::catalog::{Catalog, CatalogError};
use shardd_store::http::{Credentials, HttpClient};
use shardd_transforms::OnError;
use shardfmt::row::Fresh;
use shardfmt::{Manifest, Shard, VersionId};
use tracing::warn;

use crate::data::{Rows, RowsError};
use crate::source::{Audit, MicroBatch, SourceError, Step, StepSource};

impl StepSource for Loader {
    fn schema(&self) -> SchemaRef {
        Arc::clone(Loader::schema(self))
    }

    fn name(&self) -> String {
        let steps = self.steps();
        let order = match self.order() {
            OrderId::Plan(id) => format!("plan {id}"),
            OrderId::Mixture(id) => format!("mixture {id}"),
        };
        let (samples, size) = (steps.sample_count, steps.global_batch);
        format!("{order}, {samples} samples in steps of {size}, last batch {:?}", steps.last_batch)
    }

    fn steps_per_epoch(&self) -> u64 {
        self.steps().per_epoch()
    }

    fn next_step(&mut self) -> Result<Option<Step>, SourceError> {
        let Some(step) = Loader::next_step(self)? else { return Ok(None) };
        for Failed { epoch, position, reason, skipped, .. } in step.failed() {
            warn!(epoch, position, reason, skipped, "a picture is replaced by zeros");
        }
        let micro_batches = step.micro_batches.iter().map(|micro_batch| MicroBatch {
            virtual_rank: micro_batch.virtual_rank,
            positions: micro_batch.positions.clone(),
            rows: micro_batch.batch.clone(), // shares its buffers
        });
        Ok(Some(Step {
            epoch: step.epoch,
            step: step.step,
            global_samples: step.global_samples(),
            start: (step.epoch, step.positions().start),
            next: (step.cursor.epoch, step.cursor.position),
            micro_batches: micro_batches.collect(),
            delivered: if self.is_audited() { step.delivered() } else { Vec::new() },
        }))
    }

    fn audits(&self) -> Vec<Audit> {
        let audit = |audit: &shardd_client::loader::EpochAudit| Audit {
            epoch: audit.epoch,
            samples: audit.samples,
            digest_sum: audit.digest_sum.to_string(),
        };
        Loader::audits(self).iter().map(audit).collect()
    }

    fn waited(&self) -> Duration {
        Duration::from_secs_f64(self.stats().waited_s)
    }

    fn notes(&self) -> Option<TrainerNotes> {
        Some(Loader::notes(self))
    }

    fn replaced(&self) -> u64 {
        self.stats().replaced
    }
}

/// The rows of a version in the order of its manifest, shard by shard.
pub struct CatalogRows {
    catalog: Box<dyn Catalog>,
    manifest: Manifest,
    /// Where each shard's rows begin.
    starts: Vec<u64>,
    /// The shard read last, by its index.
    open: Mutex<Option<(usize, Arc<Shard>)>>,
    transformed: Option<Transformed>,
}

impl CatalogRows {
    /// Opens a version.
    ///
    /// # Errors
    /// When the catalog does not have it.
    pub fn open(catalog: Box<dyn Catalog>, version: VersionId) -> Result<CatalogRows, CatalogError> {
        let manifest = catalog.manifest(version)?;
        let start = |next: &mut u64, rows: u64| {
            let start = *next;
            *next += rows;
            Some(start)
        };
        let starts = manifest.shards.iter().map(|shard| u64::from(shard.rows)).scan(0, start).collect();
        Ok(CatalogRows { catalog, manifest, starts, open: Mutex::new(None), transformed: None })
    }

    /// The same rows with their pictures transformed, as at the positions of their numbers in epoch 0.
    ///
    /// # Errors
    /// [`LoadError`] if the transforms do not fit the columns, or would mix or leave out samples.
    pub fn transformed(self, by: &Transforms) -> Result<CatalogRows, LoadError> {
        if by.pictures().is_some_and(|chain| chain.batch.is_some()) {
            let message =
                "the transforms of test data mix its samples: leave MixUp and CutMix (\"batch\") out";
            return Err(LoadError::Config(message.into()));
        }
        if by.on_error() == OnError::Skip {
            let message = "every sample of the test data is counted: use \"on_error\": \"zero\" or \"raise\"";
            return Err(LoadError::Config(message.into()));
        }
        let transformed = Transformed::new(by, &self.manifest.schema, 0)?;
        Ok(CatalogRows { transformed: Some(transformed), ..self })
    }

    /// The version.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn shard(&self, index: usize) -> Result<Arc<Shard>, RowsError> {
        let mut open = self.open.lock().expect("no panic while a shard is opened");
        match &*open {
            Some((at, shard)) if *at == index => Ok(Arc::clone(shard)),
            _ => {
                let bytes = self.catalog.shard(&self.manifest.shards[index])?;
                let shard = Arc::new(Shard::from_bytes(bytes)?);
                *open = Some((index, Arc::clone(&shard)));
                Ok(shard)
            }
        }
    }
}

impl Rows for CatalogRows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.transformed.as_ref().map_or(&self.manifest.schema, Transformed::schema))
    }

    fn row_count(&self) -> u64 {
        self.manifest.sample_count()
    }

    fn read(&self, range: Range<u64>) -> Result<Vec<RecordBatch>, RowsError> {
        let mut found = Vec::new();
        let first = self.starts.partition_point(|&start| start <= range.start).saturating_sub(1);
        for (index, &start) in self.starts.iter().enumerate().skip(first) {
            if start >= range.end {
                break;
            }
            let mut start = start;
            for batch in self.shard(index)?.record_batches() {
                let rows = batch.num_rows() as u64;
                let (from, to) = (range.start.max(start), range.end.min(start + rows));
                if from < to {
                    let batch = batch.slice((from - start) as usize, (to - from) as usize);
                    found.push(match &self.transformed {
                        Some(transformed) => {
                            let places: Vec<(u32, u64)> = (from..to).map(|number| (0, number)).collect();
                            let Changed { batch, failed } = transformed.apply(&batch, &places, &Fresh)?;
                            for Failed { position, reason, .. } in failed {
                                warn!(
                                    sample = position,
                                    reason, "a picture of the test data is replaced by zeros"
                                );
                            }
                            batch
                        }
                        None => batch,
                    });
                }
                start += rows;
            }
        }
        Ok(found)
    }
}

/// How long a node may take to report its work.
const ANSWER: Duration = Duration::from_secs(10);

/// The work of the nodes that a run reads from, by those that answer: a warning names the others. `servers`
/// are asked, one after the other, which nodes there are.
pub fn timelines(servers: &[String], credentials: &Credentials, run: &RunId) -> Vec<Timeline> {
    let http = HttpClient::with(ANSWER, credentials);
    let base = |server: &str| format!("{}/v1/runs/{run}", server.trim_end_matches('/'));
    let view = |server: &String| {
        let view = http.get_json::<RunView>(&base(server));
        view.inspect_err(|error| warn!(server, %error, "the server does not list the nodes of the trace"))
            .ok()
    };
    let nodes = servers.iter().find_map(view).map_or_else(Vec::new, |view| view.nodes);
    let timeline = |node: &NodeRecord| {
        let timeline = http.get_json(&format!("{}/timeline", base(&node.http)));
        timeline.inspect_err(|error| warn!(node = %node.id, %error, "a node is not in the trace")).ok()
    };
    nodes.iter().filter_map(timeline).collect()
}
