//! What there is to read: a store's datasets, or a cluster's, and plans over them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use arrow::datatypes::Schema;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use shardd_client::loader::PlanRef;
use shardd_ingest::version::check;
use shardd_plan::{Order, Plan, PlanDocument, PlanOptions, Schedule, Selection, Shape};
use shardd_store::catalog::{Catalog, CatalogStore, ClusterCatalog, LocalCatalog, StorePlace};
use shardd_store::http::Credentials;
use shardd_store::stores::StoreOptions;
use shardfmt::shard::ShardEntry;
use shardfmt::statistics::Measure;
use shardfmt::{DatasetRef, Manifest, PlanId, Provenance, VersionId};

use crate::column::Values;
use crate::errors;
use crate::schema::ArrowSchema;

/// How many values of a column a shard has, the smallest and the largest.
type ValueRange = (u64, Option<(f64, f64)>);

/// Where datasets are.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Store {
    pub(crate) place: Place,
    manifests: Mutex<HashMap<VersionId, Arc<Manifest>>>,
    /// Plans made here, which the store may not have.
    plans: Mutex<HashMap<PlanId, PlanDocument>>,
}

#[derive(Clone)]
pub(crate) enum Place {
    Store(StorePlace),
    Nodes { servers: Vec<String>, credentials: Credentials },
}

impl Store {
    pub(crate) fn catalog(&self) -> PyResult<Box<dyn Catalog>> {
        Ok(match &self.place {
            Place::Nodes { servers, credentials } => Box::new(ClusterCatalog::with(servers, credentials)),
            Place::Store(place) => {
                let found = LocalCatalog::find(place).map_err(|error| errors::catalog(&error))?;
                Box::new(found.ok_or_else(|| {
                    pyo3::exceptions::PyFileNotFoundError::new_err(format!(
                        "{place}: no datasets there; fill it with shardctl ingest --store, or shardd.from_torch"
                    ))
                })?)
            }
        })
    }

    pub(crate) fn manifest(&self, version: VersionId) -> PyResult<Arc<Manifest>> {
        if let Some(known) = self.manifests.lock().expect("no panic while held").get(&version) {
            return Ok(Arc::clone(known));
        }
        let manifest = self.catalog()?.manifest(version).map_err(|error| errors::catalog(&error))?;
        let manifest = Arc::new(manifest);
        self.manifests.lock().expect("no panic while held").insert(version, Arc::clone(&manifest));
        Ok(manifest)
    }

    /// A version with its provenance, to make another of it.
    pub(crate) fn base(&self, version: VersionId) -> PyResult<(Arc<Manifest>, Option<Provenance>)> {
        let provenance = self.catalog()?.provenance(version).map_err(|error| errors::catalog(&error))?;
        Ok((self.manifest(version)?, provenance))
    }

    /// A plan over a version, and its manifest.
    pub(crate) fn plan(&self, id: PlanId) -> PyResult<(Plan, Arc<Manifest>)> {
        let known = self.plans.lock().expect("no panic while held").get(&id).cloned();
        let document = match known {
            Some(document) => document,
            None => self.catalog()?.plan(id).map_err(|error| errors::catalog(&error))?,
        };
        let manifest = self.manifest(document.version)?;
        let rows: Vec<u32> = manifest.shards.iter().map(|shard| shard.rows).collect();
        let plan = Plan::new(document, &rows).map_err(|error| errors::value(&error))?;
        Ok((plan, manifest))
    }

    pub(crate) fn plan_ref(&self, id: PlanId) -> PlanRef {
        let plans = self.plans.lock().expect("no panic while held");
        plans.get(&id).map_or(PlanRef::Id(id), |document| document.clone().into())
    }
}

#[pymethods]
impl Store {
    /// A directory or a store's URL, or nodes by their addresses.
    #[new]
    #[pyo3(signature = (place=None, *, servers=None, token=None, ca=None, region=None, endpoint=None, anonymous=None))]
    fn new(
        place: Option<String>,
        servers: Option<Vec<String>>,
        token: Option<String>,
        ca: Option<std::path::PathBuf>,
        region: Option<String>,
        endpoint: Option<String>,
        anonymous: Option<bool>,
    ) -> PyResult<Self> {
        let place = match (place, servers) {
            (Some(place), None) => {
                let given = StoreOptions {
                    region,
                    endpoint,
                    anonymous: anonymous.unwrap_or(false),
                    ..StoreOptions::default()
                };
                let env = StoreOptions::of_env().map_err(|error| errors::value(&error))?;
                Place::Store(StorePlace::named(place, given.or(&env)))
            }
            (None, Some(servers)) => {
                let credentials =
                    Credentials { token, ca }.or_env().map_err(|error| errors::value(&error))?;
                Place::Nodes { servers, credentials }
            }
            _ => {
                return Err(PyValueError::new_err(
                    "give either a directory or URL, or the addresses of nodes",
                ));
            }
        };
        Ok(Self { place, manifests: Mutex::default(), plans: Mutex::default() })
    }

    /// Names, present versions and samples of all datasets.
    fn datasets(&self, py: Python<'_>) -> PyResult<Vec<(String, String, u64)>> {
        py.detach(|| {
            let all = self.catalog()?.datasets().map_err(|error| errors::catalog(&error))?;
            Ok(all
                .iter()
                .map(|info| (info.name.to_string(), info.version.to_string(), info.samples))
                .collect())
        })
    }

    /// The version that `reference` names (`NAME`, `NAME@TAG`, the beginning of a version), and how many samples it has.
    fn resolve(&self, py: Python<'_>, reference: &str) -> PyResult<(String, String, u64)> {
        let reference: DatasetRef = reference.parse().map_err(|error| errors::value(&error))?;
        py.detach(|| {
            let info = self.catalog()?.resolve(&reference).map_err(|error| errors::catalog(&error))?;
            Ok((info.name.to_string(), info.version.to_string(), info.samples))
        })
    }

    /// The columns of a version: name, type, shape and type of number of a value if it is a tensor, the type of its items if it is
    /// a list of numbers, and its notes.
    fn columns<'py>(&self, py: Python<'py>, version: &str) -> PyResult<Bound<'py, PyList>> {
        let version = parse(version)?;
        let manifest = py.detach(|| self.manifest(VersionId(version)))?;
        describe(py, &manifest.schema)
    }

    /// The columns of a version with their Arrow types.
    fn schema(&self, py: Python<'_>, version: &str) -> PyResult<ArrowSchema> {
        let version = VersionId(parse(version)?);
        Ok(ArrowSchema(py.detach(|| self.manifest(version))?.schema.clone()))
    }

    /// The order in which ingest has put a version's samples: `random`, `sequential`, or the name of the column that it is
    /// stratified by. `None` if the version does not say it.
    fn mix(&self, py: Python<'_>, version: &str) -> PyResult<Option<String>> {
        let version = VersionId(parse(version)?);
        let manifest = py.detach(|| self.manifest(version))?;
        let mix = &manifest.config["mix"];
        Ok(mix.as_str().or_else(|| mix["stratified"].as_str()).map(str::to_owned))
    }

    /// The shards of a version in order: samples, bytes of the file, canonical bytes of the rows.
    fn shards(&self, py: Python<'_>, version: &str) -> PyResult<Vec<(u32, u64, u64)>> {
        let version = VersionId(parse(version)?);
        let manifest = py.detach(|| self.manifest(version))?;
        Ok(manifest.shards.iter().map(|shard| (shard.rows, shard.bytes, shard.row_bytes)).collect())
    }

    /// The file of a shard, by its place in the version: an Arrow IPC file, verified.
    ///
    /// # Errors
    /// When there is none, or it is damaged or cannot be read.
    fn shard_file<'py>(&self, py: Python<'py>, version: &str, index: usize) -> PyResult<Bound<'py, PyBytes>> {
        let version = VersionId(parse(version)?);
        let bytes = py.detach(|| {
            let manifest = self.manifest(version)?;
            let entry = manifest.shards.get(index).ok_or_else(|| {
                let shards = manifest.shards.len();
                PyIndexError::new_err(format!("there is no shard {index}: the version has {shards}"))
            })?;
            self.catalog()?.shard(entry).map_err(|error| errors::catalog(&error))
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Reads some shards of a version and checks them row by row, and their sidecars, as `shardctl verify` does: the faults in
    /// order, each an object of JSON.
    ///
    /// # Errors
    /// When the manifest cannot be read.
    fn verify(&self, py: Python<'_>, version: &str, first: u64, end: u64) -> PyResult<Vec<String>> {
        let version = VersionId(parse(version)?);
        py.detach(|| {
            let catalog = self.catalog()?;
            let file = catalog.open_manifest(version).map_err(|error| errors::catalog(&error))?;
            let entries = file.entries(first..end).map_err(|error| errors::value(&error))?;
            let store = CatalogStore(&*catalog);
            let found = entries.iter().zip(first..).flat_map(|(entry, index)| {
                check(entry, &store).into_iter().map(move |finding| (index, finding))
            });
            let lines = found.map(|(index, finding)| {
                let mut line = serde_json::to_value(&finding)?;
                line["index"] = index.into();
                Ok(line.to_string())
            });
            lines.collect::<Result<_, serde_json::Error>>().map_err(|error| errors::value(&error))
        })
    }

    /// The values of a column in each shard of a version: how many are not null and finite, the smallest and the
    /// largest, rounded to 64-bit floats. `None` of shards that were written without, and of columns that are not measured by
    /// their values.
    ///
    /// # Errors
    /// When there is no such column.
    fn ranges(&self, py: Python<'_>, version: &str, column: &str) -> PyResult<Vec<Option<ValueRange>>> {
        let version = VersionId(parse(version)?);
        let manifest = py.detach(|| self.manifest(version))?;
        let index = manifest.schema.index_of(column).map_err(|error| errors::value(&error))?;
        if Measure::of(manifest.schema.field(index).data_type()) != Measure::Values {
            return Ok(vec![None; manifest.shards.len()]);
        }
        let range = |shard: &ShardEntry| {
            let column = shard.statistics.as_ref()?.columns.get(index)?;
            Some((column.count, column.spread.map(|spread| (spread.min, spread.max))))
        };
        Ok(manifest.shards.iter().map(range).collect())
    }

    /// Makes a plan over a version and returns its id; the store keeps it if it can be written.
    #[pyo3(signature = (version, *, q, seed, partitions=None, grain_rows=None, block_slots=None, independent=false))]
    #[expect(clippy::too_many_arguments, reason = "each is a choice of the user's, given by name")]
    fn make_plan(
        &self,
        py: Python<'_>,
        version: &str,
        q: Vec<f64>,
        seed: u64,
        partitions: Option<u32>,
        grain_rows: Option<u32>,
        block_slots: Option<u32>,
        independent: bool,
    ) -> PyResult<(String, u32)> {
        let version = VersionId(parse(version)?);
        let options = PlanOptions {
            q: schedule(&q)?,
            seed,
            partitions,
            grain_rows,
            selection: if independent { Selection::Independent } else { Selection::Cyclic },
            order: block_slots.map_or(Order::Samples, |slots| Order::Blocked { slots }),
            ..PlanOptions::default()
        };
        py.detach(|| {
            let manifest = self.manifest(version)?;
            let shape = Shape {
                shard_rows: manifest.shards.iter().map(|shard| shard.rows).collect(),
                row_bytes: manifest.row_bytes(),
            };
            let document = PlanDocument::with_defaults(version, &shape, options)
                .map_err(|error| errors::value(&error))?;
            let (id, partitions) = (document.id(), document.partitions);
            if self.plans.lock().expect("no panic while held").contains_key(&id) {
                return Ok((id.to_string(), partitions));
            }
            let catalog = self.catalog()?;
            // Looking is cheap, and storing waits for the disk.
            if catalog.plan(id).is_err()
                && let Err(error) = catalog.put_plan(&document)
                && matches!(self.place, Place::Nodes { .. })
            {
                // A reader of a store that others fill may follow plans of their own; nodes must know theirs.
                return Err(errors::catalog(&error));
            }
            self.plans.lock().expect("no panic while held").insert(id, document);
            Ok((id.to_string(), partitions))
        })
    }

    /// The plan's version, partitions, samples and default virtual ranks: for steps of `global_batch`, or for a world.
    #[pyo3(signature = (id, world, global_batch=None))]
    fn describe_plan(
        &self,
        py: Python<'_>,
        id: &str,
        world: u32,
        global_batch: Option<u64>,
    ) -> PyResult<(String, u32, u64, u32)> {
        let id = PlanId(parse(id)?);
        py.detach(|| {
            let (plan, _) = self.plan(id)?;
            let version = plan.document().version.to_string();
            let virtual_ranks = match global_batch {
                Some(global_batch) => plan.default_virtual_ranks(global_batch),
                None => plan.fewest_virtual_ranks(world),
            };
            Ok((version, plan.document().partitions, plan.sample_count(), virtual_ranks))
        })
    }

    /// The grains of a plan that have all their rows: the most partitions for grains of that size.
    fn full_grains(&self, py: Python<'_>, plan: &str) -> PyResult<u64> {
        let id = PlanId(parse(plan)?);
        py.detach(|| Ok(self.plan(id)?.0.full_grain_count()))
    }
}

/// The columns of a schema, as `Store.columns` says them.
pub(crate) fn describe<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyList>> {
    let columns = PyList::empty(py);
    for field in schema.fields() {
        let column = PyDict::new(py);
        column.set_item("name", field.name())?;
        column.set_item("type", field.data_type().to_string())?;
        column.set_item("nullable", field.is_nullable())?;
        let Values { number, shape, items } = Values::of(field);
        column.set_item("shape", shape)?;
        column.set_item("number", number)?;
        column.set_item("items", items)?;
        let metadata: HashMap<&str, &str> =
            field.metadata().iter().map(|(name, value)| (name.as_ref(), value.as_ref())).collect();
        column.set_item("metadata", metadata)?;
        columns.append(column)?;
    }
    Ok(columns)
}

pub(crate) fn parse(digest: &str) -> PyResult<shardfmt::Digest> {
    digest.parse().map_err(|error| errors::value(&error))
}

pub(crate) fn schedule(q: &[f64]) -> PyResult<Schedule> {
    let text: Vec<String> = q.iter().map(f64::to_string).collect();
    text.join(",").parse().map_err(|error| errors::value(&error))
}
