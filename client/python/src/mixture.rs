//! Several datasets read as one.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use shardd_client::loader::{Follow, MixedSource, common_columns};
use shardd_plan::{self, Epoch, MixtureDocument, MixturePhase, MixtureSource, SourceNo, Take};
use shardfmt::{PlanId, VersionId};

use crate::errors;
use crate::store::{Place, Store, describe, parse};

/// A source as Python gives it: its store, version and plan, its name, and which of proportion, repeat and
/// choose it sets, and the value.
type SourceTuple = (Py<Store>, String, String, String, String, String);

/// A change of proportions as Python gives it: its first position, and the proportion of each source.
type PhaseTuple = (u64, Vec<String>);

/// Plans of several stores, and how much of each.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Mixture {
    sources: Vec<MixedSource>,
    given_epoch_size: Option<u64>,
    phases: Vec<MixturePhase>,
    mixture: shardd_plan::Mixture,
    schema: SchemaRef,
}

impl Mixture {
    /// The order of a loader.
    pub(crate) fn follow(&self) -> Follow {
        Follow::Mixture {
            sources: self.sources.clone(),
            epoch_size: self.given_epoch_size,
            phases: self.phases.clone(),
        }
    }
}

#[pymethods]
impl Mixture {
    #[new]
    #[pyo3(signature = (sources, *, epoch_size=None, phases=Vec::new()))]
    fn new(
        py: Python<'_>,
        sources: Vec<SourceTuple>,
        epoch_size: Option<u64>,
        phases: Vec<PhaseTuple>,
    ) -> PyResult<Self> {
        let (mut mixed, mut described, mut schemas) = (Vec::new(), Vec::new(), Vec::new());
        for (store, version, plan, name, kind, amount) in sources {
            let store = store.get();
            let Place::Store(place) = &store.place else {
                return Err(PyTypeError::new_err(
                    "nodes work on one plan a run: read the streams of a mixture from their stores",
                ));
            };
            let (version, plan) = (VersionId(parse(&version)?), PlanId(parse(&plan)?));
            let take = take(&kind, &amount)?;
            let manifest = py.detach(|| store.manifest(version))?;
            described.push(MixtureSource { plan, samples: manifest.sample_count(), take });
            mixed.push(MixedSource { place: place.clone(), plan: store.plan_ref(plan), take });
            schemas.push((name, manifest));
        }
        let phases: Vec<MixturePhase> = phases.into_iter().map(phase).collect::<PyResult<_>>()?;
        let document = MixtureDocument::with_phases(described, epoch_size, phases.clone());
        let mixture = document.and_then(shardd_plan::Mixture::new).map_err(|error| errors::value(&error))?;
        let schemas = schemas.iter().map(|(name, manifest)| (name.clone(), &*manifest.schema));
        let schema = common_columns(schemas).map_err(|error| errors::load(&error))?;
        Ok(Self { sources: mixed, given_epoch_size: epoch_size, phases, mixture, schema: schema.into() })
    }

    /// The same sources, with these changes of proportions in place of those that it had.
    fn with_phases(&self, phases: Vec<PhaseTuple>) -> PyResult<Self> {
        let phases: Vec<MixturePhase> = phases.into_iter().map(phase).collect::<PyResult<_>>()?;
        let described = self.mixture.document().sources.clone();
        let document = MixtureDocument::with_phases(described, self.given_epoch_size, phases.clone());
        let mixture = document.and_then(shardd_plan::Mixture::new).map_err(|error| errors::value(&error))?;
        let (sources, schema) = (self.sources.clone(), Arc::clone(&self.schema));
        Ok(Self { sources, given_epoch_size: self.given_epoch_size, phases, mixture, schema })
    }

    /// The digest that names it.
    #[getter]
    fn id(&self) -> String {
        self.mixture.id().to_string()
    }

    /// Samples of an epoch.
    #[getter]
    fn samples(&self) -> u64 {
        self.mixture.epoch_size()
    }

    /// Which of its own epochs each source is in when an epoch begins.
    fn epochs_of_sources(&self, epoch: u32) -> PyResult<Vec<u32>> {
        let begin = self.mixture.position(Epoch(epoch), 0).map_err(|error| errors::value(&error))?;
        let before = (0..).zip(self.mixture.before(begin));
        Ok(before.map(|(source, read)| self.mixture.in_plan(SourceNo(source), read).0.0).collect())
    }

    /// The columns that all sources have.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        describe(py, &self.schema)
    }
}

fn phase((from, proportions): PhaseTuple) -> PyResult<MixturePhase> {
    let decimal = |text: String| text.parse().map_err(|error| errors::value(&error));
    Ok(MixturePhase { from, proportions: proportions.into_iter().map(decimal).collect::<PyResult<_>>()? })
}

fn take(kind: &str, amount: &str) -> PyResult<Take> {
    let decimal = || amount.parse().map_err(|error| errors::value(&error));
    match kind {
        "proportion" => Ok(Take::Proportion(decimal()?)),
        "repeat" => Ok(Take::Repeat(decimal()?)),
        "choose" => match amount.parse() {
            Ok(samples) => Ok(Take::Choose(samples)),
            Err(_) => Err(PyValueError::new_err(format!(
                "choose={amount} is not a number of samples: use 1 or \
                    more"
            ))),
        },
        other => Err(PyValueError::new_err(format!("{other:?}: use proportion, repeat or choose"))),
    }
}
