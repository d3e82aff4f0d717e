//! Cursors of runs: the progress that a training reports, for resuming it. Small, and changed only by someone
//! who says which one it starts from.

use shardd_api::protocol::{Cursor, RunId};
use shardd_store::metastore::Expected;

use super::value::parse;
use super::{Engine, EngineError};

impl Engine {
    /// The cursor of a run and its revision.
    ///
    /// # Errors
    /// A lost metastore.
    pub async fn cursor(&self, run: &RunId) -> Result<Option<(Cursor, u64)>, EngineError> {
        let entry = self.meta.get(&key(run)).await?;
        Ok(entry.and_then(|entry| Some((parse(&entry)?, entry.revision))))
    }

    /// Keeps `cursor` for a run, if the one before is as `expected`; returns its revision.
    ///
    /// # Errors
    /// [`EngineError::UnknownRun`], [`EngineError::OtherPlan`], and a conflict of the metastore when it is not as expected.
    pub async fn put_cursor(
        &self,
        run: &RunId,
        cursor: Cursor,
        expected: Expected,
    ) -> Result<u64, EngineError> {
        let record = self.record(run).await?;
        if record.plan != cursor.plan {
            return Err(EngineError::OtherPlan { run: run.clone(), plan: record.plan, given: cursor.plan });
        }
        let value = serde_json::to_vec(&cursor).expect("a cursor is plain data");
        Ok(self.meta.put(&key(run), value, expected, None).await?)
    }

    /// Forgets the cursor of a run, if it is as `expected`.
    ///
    /// # Errors
    /// A conflict of the metastore when it is not as expected.
    pub async fn remove_cursor(&self, run: &RunId, expected: Expected) -> Result<(), EngineError> {
        self.meta.delete(&key(run), expected).await?;
        Ok(())
    }
}

fn key(run: &RunId) -> String {
    format!("cursors/{run}")
}
