//! The commits of a dataset, from the last to the first, and the references that are looked up in them.

use shardfmt::{At, Commit, CommitId, DatasetName, DatasetRef, VersionId, VersionPrefix};

use super::records::{REFS, RefRecord, VERSIONS, VersionRecord, ref_key};
use super::{CatalogBackend, CatalogError, ColumnInfo, DatasetInfo, LogEntry, VersionInfo};
use crate::origin::{Origin, OriginError};

/// How far back the commits of a version are looked for.
const MOST_WALKED: usize = 10_000;

/// Walks from a commit to its parent, its parent's, and on. Each has a lower number than the one before, so it ends.
pub(super) struct History<'a> {
    origin: &'a Origin,
    dataset: &'a DatasetName,
    /// The number of the last commit to come: those before it were pruned.
    oldest: u64,
    next: Option<Step>,
}

/// The commit to come.
struct Step {
    id: CommitId,
    number: u64,
    /// The commit itself, where it is not in the store.
    implied: Option<Commit>,
}

impl<'a> History<'a> {
    /// The history that ends with what `record` points at.
    pub(super) fn of(origin: &'a Origin, dataset: &'a DatasetName, record: &RefRecord) -> Self {
        let implied = record.implied_commit(dataset);
        let id = record.commit.or_else(|| implied.as_ref().map(Commit::id)).expect("one of the two is there");
        let next = Some(Step { id, number: record.commits, implied });
        Self { origin, dataset, oldest: record.oldest, next }
    }

    /// The next older commit.
    ///
    /// # Errors
    ///
    /// [`CatalogError::BrokenHistory`] when it is missing, damaged, of another dataset, or not where it says to be.
    pub(super) async fn next(&mut self) -> Result<Option<LogEntry>, CatalogError> {
        let Some(Step { id, number, implied }) = self.next.take() else { return Ok(None) };
        let broken = |reason: String| CatalogError::BrokenHistory {
            dataset: self.dataset.clone(),
            commit: id,
            reason,
        };
        let commit = match implied {
            Some(commit) => commit,
            None => self.origin.commit(id).await.map_err(|error| match error {
                OriginError::NotFound { .. } | OriginError::Corrupt { .. } => broken(error.to_string()),
                error => error.into(),
            })?,
        };
        if commit.dataset != *self.dataset {
            return Err(broken(format!("it is one of {}", commit.dataset)));
        }
        if commit.number != number {
            return Err(broken(format!("it is number {} where number {number} should be", commit.number)));
        }
        // A parent is there exactly if the number is above that of the oldest.
        let parent = commit.parent.filter(|_| number > self.oldest);
        self.next = parent.map(|id| Step { id, number: number.saturating_sub(1), implied: None });
        Ok(Some(LogEntry { id, commit }))
    }
}

impl CatalogBackend {
    /// See [`Catalog::datasets`](super::Catalog::datasets).
    ///
    /// # Errors
    ///
    /// As [`Catalog::datasets`](super::Catalog::datasets).
    pub async fn datasets(&self) -> Result<Vec<DatasetInfo>, CatalogError> {
        let refs = self.records::<RefRecord, DatasetName>(REFS).await?;
        Ok(refs.into_iter().map(|(name, record)| record.named(name)).collect())
    }

    /// See [`Catalog::log`](super::Catalog::log).
    ///
    /// # Errors
    ///
    /// As [`Catalog::log`](super::Catalog::log).
    pub async fn log(&self, name: &DatasetName, limit: usize) -> Result<Vec<LogEntry>, CatalogError> {
        self.log_from(name, None, limit).await
    }

    /// As [`log`](Self::log), but beginning with the commit `from`, and not with the last one.
    ///
    /// # Errors
    ///
    /// As [`log`](Self::log), and [`CatalogError::NotFound`] when the dataset has no such commit.
    pub async fn log_from(
        &self,
        name: &DatasetName,
        from: Option<CommitId>,
        limit: usize,
    ) -> Result<Vec<LogEntry>, CatalogError> {
        let (record, _) = self.reference(name).await?;
        let mut history = History::of(self.origin(), name, &record);
        if let Some(from) = from {
            let what = || format!("commit {} of {name}", from.short());
            let commit = self.origin().commit(from).await.map_err(|error| match error {
                OriginError::NotFound { .. } => CatalogError::NotFound { what: what() },
                error => error.into(),
            })?;
            if commit.dataset != *name || commit.number < record.oldest {
                return Err(CatalogError::NotFound { what: what() });
            }
            history.next = Some(Step { id: from, number: commit.number, implied: None });
        }
        let mut entries = Vec::new();
        while entries.len() < limit
            && let Some(entry) = history.next().await?
        {
            entries.push(entry);
        }
        Ok(entries)
    }

    /// The facts about a version without its name: its content, and the commits that led to it.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when there is no such version.
    pub async fn version(&self, version: VersionId) -> Result<VersionInfo, CatalogError> {
        let manifest = self.open_manifest(version).await?;
        let record = self.record::<VersionRecord>(&format!("{VERSIONS}{version}")).await?;
        let dataset = record.map(|(record, _)| record.dataset);
        let mut commits = Vec::new();
        if let Some(name) = &dataset
            && let Some((record, _)) = self.record::<RefRecord>(&ref_key(name)).await?
        {
            let mut history = History::of(self.origin(), name, &record);
            let mut walked = 0;
            while walked < MOST_WALKED
                && let Some(entry) = history.next().await?
            {
                walked += 1;
                if entry.commit.version == version {
                    commits.push(entry);
                }
            }
        }
        let provenance = self.provenance(version).await?;
        let totals = manifest.totals();
        let column = |field: &std::sync::Arc<arrow::datatypes::Field>| ColumnInfo {
            name: field.name().clone(),
            data_type: field.data_type().to_string(),
            nullable: field.is_nullable(),
        };
        Ok(VersionInfo {
            version,
            dataset,
            commits,
            samples: totals.samples,
            bytes: totals.bytes,
            row_bytes: totals.row_bytes,
            shards: totals.shards,
            inputs: provenance.as_ref().map(|known| known.inputs.len() as u64),
            skipped: provenance.as_ref().map_or(0, |known| known.skipped.count),
            digest_sum: totals.digest_sum,
            columns: manifest.schema().fields().iter().map(column).collect(),
            config: manifest.config().clone(),
            settings: provenance.map(|known| known.settings),
        })
    }

    /// See [`Catalog::resolve`](super::Catalog::resolve).
    ///
    /// # Errors
    ///
    /// As [`Catalog::resolve`](super::Catalog::resolve).
    pub async fn resolve(&self, reference: &DatasetRef) -> Result<DatasetInfo, CatalogError> {
        let name = &reference.dataset;
        let back = match &reference.at {
            At::Tag(tag) => return self.resolve_tag(name, tag).await,
            At::Present => 0,
            At::Back(back) => *back,
            At::Version(prefix) => return self.resolve_version(reference, prefix).await,
        };
        let (record, _) = self.reference(name).await?;
        if back == 0 {
            return Ok(record.named(name.clone()));
        }
        let kept = record.commits.saturating_sub(record.oldest) + 1;
        let has = match record.oldest {
            0 | 1 => format!("has {kept} in all, the first is"),
            _ => format!("has {kept} since its history was pruned, the oldest is"),
        };
        let mut history = History::of(self.origin(), name, &record);
        let mut entry = history.next().await?;
        for _ in 0..back {
            if entry.is_none() {
                break;
            }
            entry = history.next().await?;
        }
        let what = || format!("version {reference}: {name} {has} {name}@~{}", kept - 1);
        let LogEntry { id, commit } = entry.ok_or_else(|| CatalogError::NotFound { what: what() })?;
        Ok(DatasetInfo::of(id, &commit))
    }

    /// The version of the dataset's history that `prefix` begins, at its latest commit.
    async fn resolve_version(
        &self,
        reference: &DatasetRef,
        prefix: &VersionPrefix,
    ) -> Result<DatasetInfo, CatalogError> {
        let name = &reference.dataset;
        let (record, _) = self.reference(name).await?;
        let mut history = History::of(self.origin(), name, &record);
        let mut found: Vec<DatasetInfo> = Vec::new();
        while let Some(LogEntry { id, commit }) = history.next().await? {
            let known = found.iter().any(|info| info.version == commit.version);
            if prefix.fits(commit.version) && !known {
                found.push(DatasetInfo::of(id, &commit));
                if prefix.whole().is_some() {
                    break;
                }
            }
        }
        if found.len() > 1 {
            let fitting: Vec<VersionId> = found.iter().map(|info| info.version).collect();
            return Err(CatalogError::Ambiguous { reference: reference.clone(), fitting });
        }
        let what = || format!("version {prefix} in the history of {name}");
        found.pop().ok_or_else(|| CatalogError::NotFound { what: what() })
    }

    /// The record of a dataset and its revision.
    pub(super) async fn reference(&self, name: &DatasetName) -> Result<(RefRecord, u64), CatalogError> {
        let record = self.record(&ref_key(name)).await?;
        record.ok_or_else(|| CatalogError::NotFound { what: format!("dataset {name}") })
    }
}
