//! Where the ranks of a training meet: rank 0 says at which address it waits for the others, who ask until it has. Whether the run
//! is known makes no difference, as ranks meet before they read.

use super::value::parse;
use super::{Engine, EngineError};
use crate::metastore::Expected;
use crate::protocol::{Meeting, RunId};

impl Engine {
    /// Where the ranks of a run meet, if rank 0 waits for them.
    ///
    /// # Errors
    /// A lost metastore.
    pub async fn meeting(&self, run: &RunId) -> Result<Option<Meeting>, EngineError> {
        let entry = self.meta.get(&key(run)).await?;
        Ok(entry.and_then(|entry| parse(&entry)))
    }

    /// Says where they meet, in place of what was said before.
    ///
    /// # Errors
    /// A lost metastore.
    pub async fn put_meeting(&self, run: &RunId, meeting: &Meeting) -> Result<(), EngineError> {
        let value = serde_json::to_vec(meeting).expect("a meeting is plain data");
        self.meta.put(&key(run), value, Expected::Any, None).await?;
        Ok(())
    }

    /// Says that all have met: whoever comes later is to wait for the next time.
    ///
    /// # Errors
    /// A lost metastore.
    pub async fn remove_meeting(&self, run: &RunId) -> Result<(), EngineError> {
        self.meta.delete(&key(run), Expected::Any).await?;
        Ok(())
    }
}

fn key(run: &RunId) -> String {
    format!("meetings/{run}")
}
