//! Cutting off the older part of a dataset's history. Commits cover their parents by digest and never change,
//! so the dataset's record names the first commit of a pruned history: readers stop there, and gc no longer
//! reaches older commits.

use shardfmt::{CommitId, DatasetName};

use super::history::History;
use super::records::{RefRecord, ref_key, to_json};
use super::{CatalogBackend, CatalogError};
use crate::metastore::{Expected, MetaError};

impl CatalogBackend {
    /// See [`Catalog::prune`](super::Catalog::prune).
    ///
    /// # Errors
    ///
    /// As [`Catalog::prune`](super::Catalog::prune).
    pub async fn prune(&self, name: &DatasetName, oldest: CommitId) -> Result<u64, CatalogError> {
        loop {
            let (record, revision) = self.reference(name).await?;
            let mut history = History::of(self.origin(), name, &record);
            let commit = loop {
                match history.next().await? {
                    Some(entry) if entry.id == oldest => break entry.commit,
                    Some(_) => {}
                    None => {
                        let what = format!("commit {} in the history of {name}", oldest.short());
                        return Err(CatalogError::NotFound { what });
                    }
                }
            };
            let cut = commit.number.saturating_sub(record.oldest);
            if cut == 0 {
                return Ok(0);
            }
            let pruned = RefRecord { oldest: commit.number, ..record };
            match self.metastore().put(&ref_key(name), to_json(&pruned), Expected::At(revision), None).await {
                Ok(_) => return Ok(cut),
                // Another commit came meanwhile, which changes nothing of where the history is to begin.
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
