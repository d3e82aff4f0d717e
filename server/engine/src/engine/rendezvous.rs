//! Where the ranks of a training meet: rank 0 says at which address it waits for the others, who ask until it has. Whether the run
//! is known makes no difference, as ranks meet before they read.
//!
//! Rank 0 repeats its announcement while it waits. So it reaches nodes that start later, and the metastore after an
//! outage. A node believes a fresh announcement of rank 0 before the metastore, which may have the address of an earlier
//! rank 0 that has died. A removal names the address, so that a late one takes away nothing of a newer rank 0.

#[cfg(test)]
mod simulation;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use shardd_api::protocol::{Rendezvous, RunId};
use shardd_store::metastore::{Expected, MetaError, Metastore};
use tokio::time::Instant;

use super::value::parse;
use super::{Engine, EngineError};

/// How long an announcement counts for more than the metastore. Rank 0 repeats it every two seconds.
const FRESH: Duration = Duration::from_secs(10);

/// The announcements of each run's rank 0 to this node itself, whether or not others can know.
#[derive(Default)]
pub(super) struct Announced(Mutex<BTreeMap<RunId, (Rendezvous, Instant)>>);

impl Announced {
    /// Where the ranks of a run meet, if rank 0 waits for them.
    async fn find(&self, meta: &dyn Metastore, run: &RunId) -> Result<Option<Rendezvous>, MetaError> {
        let said = self.all().get(run).cloned();
        if let Some((rendezvous, at)) = &said
            && at.elapsed() < FRESH
        {
            return Ok(Some(rendezvous.clone()));
        }
        let known = match meta.get(&key(run)).await {
            Ok(entry) => entry.and_then(|entry| parse(&entry)),
            Err(MetaError::Unavailable { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(known.or(said.map(|(rendezvous, _)| rendezvous)))
    }

    /// Rank 0 waits there, in place of an earlier one.
    async fn put(&self, meta: &dyn Metastore, run: &RunId, rendezvous: &Rendezvous) -> Result<(), MetaError> {
        self.all().insert(run.clone(), (rendezvous.clone(), Instant::now()));
        let put = async {
            // Most are repetitions, which change nothing.
            if meta.get(&key(run)).await?.and_then(|entry| parse(&entry)).as_ref() == Some(rendezvous) {
                return Ok(());
            }
            let value = serde_json::to_vec(rendezvous).expect("a rendezvous is plain data");
            meta.put(&key(run), value, Expected::Any, None).await.map(drop)
        };
        unless_away(put.await)
    }

    /// No rank 0 waits any more, or not at this address.
    async fn remove(
        &self,
        meta: &dyn Metastore,
        run: &RunId,
        address: Option<&str>,
    ) -> Result<(), MetaError> {
        let is_meant = |rendezvous: &Rendezvous| address.is_none_or(|address| rendezvous.address == address);
        self.all().retain(|of, (said, _)| of != run || !is_meant(said));
        let remove = async {
            let Some(entry) = meta.get(&key(run)).await? else { return Ok(()) };
            if parse(&entry).as_ref().is_some_and(|known| !is_meant(known)) {
                return Ok(());
            }
            match meta.delete(&key(run), Expected::At(entry.revision)).await {
                // A newer rank 0 waits there by now.
                Ok(_) | Err(MetaError::Conflict { .. }) => Ok(()),
                Err(error) => Err(error),
            }
        };
        unless_away(remove.await)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<RunId, (Rendezvous, Instant)>> {
        self.0.lock().expect("no panic while held")
    }
}

impl Engine {
    /// Where the ranks of a run meet, if rank 0 waits for them.
    ///
    /// # Errors
    /// A metastore that is damaged or refuses; an unavailable one is no error.
    pub async fn rendezvous(&self, run: &RunId) -> Result<Option<Rendezvous>, EngineError> {
        Ok(self.outage.announced.find(self.meta.as_ref(), run).await?)
    }

    /// Sets the meeting place, in place of an earlier one. Rank 0 repeats it while it waits.
    ///
    /// # Errors
    /// A metastore that is damaged or refuses; an unavailable one is no error.
    pub async fn put_rendezvous(&self, run: &RunId, rendezvous: &Rendezvous) -> Result<(), EngineError> {
        Ok(self.outage.announced.put(self.meta.as_ref(), run, rendezvous).await?)
    }

    /// Notes that rank 0 waits no longer at this address, or, without one, at any.
    ///
    /// # Errors
    /// A metastore that is damaged or refuses; an unavailable one is no error.
    pub async fn remove_rendezvous(&self, run: &RunId, address: Option<&str>) -> Result<(), EngineError> {
        Ok(self.outage.announced.remove(self.meta.as_ref(), run, address).await?)
    }
}

fn unless_away(outcome: Result<(), MetaError>) -> Result<(), MetaError> {
    match outcome {
        Err(MetaError::Unavailable { .. }) => Ok(()),
        other => other,
    }
}

fn key(run: &RunId) -> String {
    format!("rendezvous/{run}")
}
