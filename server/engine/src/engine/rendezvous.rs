//! Where the ranks of a training meet: rank 0 says at which address it waits for the others, who ask until it has. Whether the run
//! is known makes no difference, as ranks meet before they read.

use shardd_api::protocol::{Rendezvous, RunId};
use shardd_store::metastore::{Expected, MetaError};

use super::value::parse;
use super::{Engine, EngineError};

impl Engine {
    /// Where the ranks of a run meet, if rank 0 waits for them.
    ///
    /// # Errors
    /// A metastore that is damaged or refuses; an unavailable one is no error.
    pub async fn rendezvous(&self, run: &RunId) -> Result<Option<Rendezvous>, EngineError> {
        let known = match self.meta.get(&key(run)).await {
            Ok(entry) => entry.and_then(|entry| parse(&entry)),
            Err(MetaError::Unavailable { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(known.or_else(|| self.kept_rendezvous(run)))
    }

    /// Sets the meeting place, in place of an earlier one.
    ///
    /// # Errors
    /// A metastore that is damaged or refuses; an unavailable one is no error.
    pub async fn put_rendezvous(&self, run: &RunId, rendezvous: &Rendezvous) -> Result<(), EngineError> {
        // This node answers requests here itself, whether or not the others can know.
        self.keep_rendezvous(run, Some(rendezvous.clone()));
        let value = serde_json::to_vec(rendezvous).expect("a rendezvous is plain data");
        match self.meta.put(&key(run), value, Expected::Any, None).await {
            Ok(_) | Err(MetaError::Unavailable { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Notes that all have met: a later rank waits for the next time.
    ///
    /// # Errors
    /// A metastore that is damaged or refuses; an unavailable one is no error.
    pub async fn remove_rendezvous(&self, run: &RunId) -> Result<(), EngineError> {
        self.keep_rendezvous(run, None);
        match self.meta.delete(&key(run), Expected::Any).await {
            Ok(_) | Err(MetaError::Unavailable { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn key(run: &RunId) -> String {
    format!("rendezvous/{run}")
}
