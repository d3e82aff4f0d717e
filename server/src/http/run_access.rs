//! Whose a run is. A token for some datasets sees the runs over these and no others; a run is the token's that made it known, so
//! that no other reader speaks for its ranks. Where no token is asked, a run is everyone's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};
use shardd_api::problem::Kind;
use shardd_api::protocol::{CreateRun, RunId};
use shardd_store::catalog::CatalogError;
use shardd_store::metastore::{Expected, MetaError};
use shardfmt::DatasetName;
use tokio::time::Instant;

use super::problem::Refusal;
use super::{PathPair, PathParam, Shared};
use crate::access::{Grant, Role};

/// Where it is kept whose a run is.
const OWNERS: &str = "owners/";
/// How long that is not looked up again.
const FRESH: Duration = Duration::from_secs(5);
/// Of how many runs it is remembered.
const REMEMBERED: usize = 1024;

/// Whose a run is, as the metastore keeps it.
#[derive(Serialize, Deserialize)]
struct OwnerRecord {
    /// The id of the token that made it known.
    token: String,
}

/// The known facts about a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunFacts {
    /// The dataset that it is over.
    dataset: DatasetName,
    /// The token whose it is; without one, it is as good as the first reader's who speaks for it.
    owner: Option<String>,
}

/// The facts about runs a moment ago.
#[derive(Default)]
pub(super) struct RunFactsCache(Mutex<HashMap<RunId, (RunFacts, Instant)>>);

impl RunFactsCache {
    fn get(&self, run: &RunId) -> Option<(RunFacts, Instant)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(run).cloned()
    }

    fn put(&self, run: &RunId, standing: RunFacts) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(run.clone(), (standing, Instant::now()));
    }

    fn forget(&self, run: &RunId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(run);
    }
}

/// A run in the path that the bearer may read of.
pub(super) struct Seen(pub(super) RunId);

/// A run in the path that the bearer may speak for.
pub(super) struct Own(pub(super) RunId);

/// The same, with a rank.
pub(super) struct OwnRank(pub(super) RunId, pub(super) u32);

impl FromRequestParts<Arc<Shared>> for Seen {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Refusal> {
        let PathParam(run) = PathParam::<RunId>::from_request_parts(parts, shared).await?;
        if let Some(grant) = parts.extensions.get::<Grant>().filter(|grant| !grant.record.datasets.is_all())
            && let Some(standing) = standing(shared, &run).await?
        {
            may_see(grant, &run, &standing)?;
        }
        Ok(Seen(run))
    }
}

impl FromRequestParts<Arc<Shared>> for Own {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Refusal> {
        let PathParam(run) = PathParam::<RunId>::from_request_parts(parts, shared).await?;
        claim(parts, shared, &run).await?;
        Ok(Own(run))
    }
}

impl FromRequestParts<Arc<Shared>> for OwnRank {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Refusal> {
        let PathPair(run, rank) = PathPair::<RunId, u32>::from_request_parts(parts, shared).await?;
        claim(parts, shared, &run).await?;
        Ok(OwnRank(run, rank))
    }
}

/// Whether the bearer may make this run known.
pub(super) async fn may_create(
    shared: &Shared,
    grant: Option<&Grant>,
    create: &CreateRun,
) -> Result<(), Refusal> {
    let Some(grant) = grant else { return Ok(()) };
    // The run under that name stays hidden from others, even in conflicts.
    if let Some(standing) = standing(shared, &create.id).await? {
        return may_speak(grant, &create.id, &standing);
    }
    if grant.record.datasets.is_all() {
        return Ok(());
    }
    let catalog = &shared.api.catalog;
    let dataset = catalog.dataset_of(catalog.plan(create.plan).await?.version).await?;
    match grant.record.datasets.holds(&dataset) {
        true => Ok(()),
        false => Err(Refusal::of(
            Kind::Forbidden,
            format!("the token is not for the dataset of plan {}", create.plan),
        )),
    }
}

/// Makes a run the bearer's, unless it is another's.
pub(super) async fn own(shared: &Shared, grant: Option<&Grant>, run: &RunId) -> Result<(), Refusal> {
    let Some(grant) = grant else { return Ok(()) };
    // One that does not exist is for the route to say.
    let Some(mut found) = standing(shared, run).await? else { return Ok(()) };
    if found.owner.is_none() {
        let record = OwnerRecord { token: grant.id.to_string() };
        let value = serde_json::to_vec(&record).expect("plain data");
        let metastore = shared.api.catalog.metastore();
        match metastore.put(&format!("{OWNERS}{run}"), value, Expected::Absent, None).await {
            Ok(_) | Err(MetaError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        shared.standings.forget(run);
        found = standing(shared, run).await?.unwrap_or(found);
    }
    may_speak(grant, run, &found)
}

async fn claim(parts: &Parts, shared: &Arc<Shared>, run: &RunId) -> Result<(), Refusal> {
    own(shared, parts.extensions.get::<Grant>(), run).await
}

fn may_see(grant: &Grant, run: &RunId, standing: &RunFacts) -> Result<(), Refusal> {
    match grant.record.datasets.holds(&standing.dataset) {
        true => Ok(()),
        false => Err(Refusal::of(Kind::Forbidden, format!("the token is not for the dataset of run {run}"))),
    }
}

/// A reader speaks for its own runs, a writer for those over its datasets: by it a run is taken over whose token is gone.
fn may_speak(grant: &Grant, run: &RunId, standing: &RunFacts) -> Result<(), Refusal> {
    may_see(grant, run, standing)?;
    let is_own = standing.owner.as_ref().is_none_or(|owner| *owner == grant.id.to_string());
    match is_own || grant.record.role >= Role::Write {
        true => Ok(()),
        false => Err(Refusal::of(
            Kind::Forbidden,
            format!(
                "run {run} was begun with another token; show that one, or one of role write, or name a run of your own"
            ),
        )),
    }
}

/// The known facts about a run; `None` if there is none. While the metastore is unavailable, the last known
/// ones.
async fn standing(shared: &Shared, run: &RunId) -> Result<Option<RunFacts>, Refusal> {
    let known = shared.standings.get(run);
    if let Some((standing, at)) = &known
        && at.elapsed() < FRESH
    {
        return Ok(Some(standing.clone()));
    }
    match looked_up(shared, run).await {
        Ok(Some(standing)) => {
            shared.standings.put(run, standing.clone());
            Ok(Some(standing))
        }
        Ok(None) => Ok(None),
        Err(error) => match known {
            Some((standing, _)) if Kind::from(&error) == Kind::Unavailable => Ok(Some(standing)),
            _ => Err(error.into()),
        },
    }
}

async fn looked_up(shared: &Shared, run: &RunId) -> Result<Option<RunFacts>, CatalogError> {
    let catalog = &shared.api.catalog;
    let record = match catalog.run(run).await {
        Ok(record) => record,
        Err(CatalogError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let dataset = catalog.dataset_of(record.version).await?;
    let entry = catalog.metastore().get(&format!("{OWNERS}{run}")).await?;
    let owner = entry.and_then(|entry| serde_json::from_slice::<OwnerRecord>(&entry.value).ok());
    Ok(Some(RunFacts { dataset, owner: owner.map(|owner| owner.token) }))
}
