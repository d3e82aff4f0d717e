//! Where the ranks of a training meet: rank 0 says at which address it waits for the others, who ask until it has. Whether the run
//! is known makes no difference, as ranks meet before they read.

use super::value::parse;
use super::{Engine, EngineError};
use crate::metastore::{Expected, MetaError};
use crate::protocol::{Meeting, RunId};

impl Engine {
    /// Where the ranks of a run meet, if rank 0 waits for them.
    ///
    /// # Errors
    /// A metastore that is damaged or refuses; one that is away is done without.
    pub async fn meeting(&self, run: &RunId) -> Result<Option<Meeting>, EngineError> {
        let known = match self.meta.get(&key(run)).await {
            Ok(entry) => entry.and_then(|entry| parse(&entry)),
            Err(MetaError::Unavailable { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(known.or_else(|| self.meeting_meanwhile(run)))
    }

    /// Says where they meet, in place of what was said before.
    ///
    /// # Errors
    /// A metastore that is damaged or refuses; one that is away is done without.
    pub async fn put_meeting(&self, run: &RunId, meeting: &Meeting) -> Result<(), EngineError> {
        // Whoever asks here is told by this node itself, whether or not the others can be.
        self.meets_meanwhile(run, Some(meeting.clone()));
        let value = serde_json::to_vec(meeting).expect("a meeting is plain data");
        match self.meta.put(&key(run), value, Expected::Any, None).await {
            Ok(_) | Err(MetaError::Unavailable { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Says that all have met: whoever comes later is to wait for the next time.
    ///
    /// # Errors
    /// A metastore that is damaged or refuses; one that is away is done without.
    pub async fn remove_meeting(&self, run: &RunId) -> Result<(), EngineError> {
        self.meets_meanwhile(run, None);
        match self.meta.delete(&key(run), Expected::Any).await {
            Ok(_) | Err(MetaError::Unavailable { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn key(run: &RunId) -> String {
    format!("meetings/{run}")
}
