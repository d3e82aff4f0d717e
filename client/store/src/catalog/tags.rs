//! Tags: lasting names for single versions of a dataset. A tag keeps its version whatever becomes of the dataset.

use shardd_api::duration::now;
use shardfmt::{CommitId, DatasetName, TagName, VersionId};

use super::history::History;
use super::records::{RefRecord, TAGS, TagRecord, from_json, ref_key, tag_key, tag_named, to_json};
use super::{CatalogBackend, CatalogError, DatasetInfo, Guard, Reach, TagExpected, TagInfo};
use crate::metastore::{Expected, MetaError};
use crate::origin::OriginError;

impl CatalogBackend {
    /// See [`Catalog::tags`](super::Catalog::tags).
    ///
    /// # Errors
    ///
    /// As [`Catalog::tags`](super::Catalog::tags).
    pub async fn tags(&self, dataset: Option<&DatasetName>) -> Result<Vec<TagInfo>, CatalogError> {
        let prefix = dataset.map_or_else(|| TAGS.to_owned(), |dataset| format!("{TAGS}{dataset}/"));
        let listing = self.metastore().list(&prefix).await?;
        let tags = listing.entries.iter().map(|(key, entry)| {
            let (dataset, tag) = tag_named(key)?;
            Ok(from_json::<TagRecord>(key, &entry.value)?.named(dataset, tag))
        });
        let mut tags = tags.collect::<Result<Vec<_>, MetaError>>()?;
        // '/' is after '-' and '.': keys of datasets with such names are not ordered as the names are.
        tags.sort_by(|a, b| (&a.dataset, &a.tag).cmp(&(&b.dataset, &b.tag)));
        Ok(tags)
    }

    /// A tag.
    ///
    /// # Errors
    ///
    /// [`CatalogError::NotFound`] when there is no such tag.
    pub async fn tag(&self, dataset: &DatasetName, tag: &TagName) -> Result<TagInfo, CatalogError> {
        Ok(self.tag_record(dataset, tag).await?.0.named(dataset.clone(), tag.clone()))
    }

    /// See [`Catalog::put_tag`](super::Catalog::put_tag).
    ///
    /// # Errors
    ///
    /// As [`Catalog::put_tag`](super::Catalog::put_tag).
    pub async fn put_tag(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
        commit: CommitId,
        expected: TagExpected,
    ) -> Result<TagInfo, CatalogError> {
        let reach = Reach { commit: Some(commit), ..Reach::default() };
        let guard = self.guard(&reach, || format!("tag {tag} of {dataset}")).await?;
        let outcome = self.put_tag_guarded(dataset, tag, commit, expected, &guard).await;
        guard.end().await;
        outcome
    }

    async fn put_tag_guarded(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
        commit: CommitId,
        expected: TagExpected,
        guard: &Guard,
    ) -> Result<TagInfo, CatalogError> {
        let info = self.committed(dataset, commit).await?;
        let key = tag_key(dataset, tag);
        let present = self.record::<TagRecord>(&key).await?;
        let revision = present.as_ref().map(|(_, revision)| *revision);
        if let Some((present, _)) = present {
            if present.commit == commit {
                return Ok(present.named(dataset.clone(), tag.clone()));
            }
            let as_expected = match expected {
                TagExpected::Absent => false,
                TagExpected::At(version) => version == present.version,
                TagExpected::Any => true,
            };
            if !as_expected {
                return Err(tag_conflict(dataset, tag, expected, Some(present.version)));
            }
        } else if let TagExpected::At(_) = expected {
            return Err(tag_conflict(dataset, tag, expected, None));
        }
        guard.renew().await?;
        let record = TagRecord { commit, version: info.version, tagged_at: now() };
        let unchanged = match expected {
            TagExpected::Any => Expected::Any,
            TagExpected::Absent | TagExpected::At(_) => Expected::unchanged(revision),
        };
        match self.metastore().put(&key, to_json(&record), unchanged, None).await {
            Ok(_) => Ok(record.named(dataset.clone(), tag.clone())),
            Err(MetaError::Conflict { .. }) => {
                let actual = self.record::<TagRecord>(&key).await?.map(|(record, _)| record.version);
                Err(tag_conflict(dataset, tag, expected, actual))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// See [`Catalog::remove_tag`](super::Catalog::remove_tag).
    ///
    /// # Errors
    ///
    /// As [`Catalog::remove_tag`](super::Catalog::remove_tag).
    pub async fn remove_tag(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
        expected: VersionId,
    ) -> Result<(), CatalogError> {
        let (record, revision) = self.tag_record(dataset, tag).await?;
        let conflict = |actual| tag_conflict(dataset, tag, TagExpected::At(expected), actual);
        if record.version != expected {
            return Err(conflict(Some(record.version)));
        }
        let key = tag_key(dataset, tag);
        match self.metastore().delete(&key, Expected::At(revision)).await {
            Ok(_) => Ok(()),
            Err(MetaError::Conflict { .. }) => {
                Err(conflict(self.record::<TagRecord>(&key).await?.map(|(record, _)| record.version)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The version that bears a tag.
    pub(super) async fn resolve_tag(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
    ) -> Result<DatasetInfo, CatalogError> {
        let (record, _) = self.tag_record(dataset, tag).await?;
        let commit = self.origin().commit(record.commit).await.map_err(|error| match error {
            OriginError::NotFound { .. } | OriginError::Corrupt { .. } => CatalogError::BrokenHistory {
                dataset: dataset.clone(),
                commit: record.commit,
                reason: error.to_string(),
            },
            error => error.into(),
        })?;
        Ok(DatasetInfo::of(record.commit, &commit))
    }

    async fn tag_record(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
    ) -> Result<(TagRecord, u64), CatalogError> {
        let record = self.record(&tag_key(dataset, tag)).await?;
        record.ok_or_else(|| CatalogError::NotFound { what: format!("tag {tag} of {dataset}") })
    }

    /// A commit that a dataset's history or one of its tags leads to now. One that was only implied so far is put into the
    /// store.
    async fn committed(&self, dataset: &DatasetName, commit: CommitId) -> Result<DatasetInfo, CatalogError> {
        if let Some((record, _)) = self.record::<RefRecord>(&ref_key(dataset)).await? {
            if let Some(implied) = record.implied_commit(dataset) {
                self.origin().put_commit(&implied).await?;
            }
            let mut history = History::of(self.origin(), dataset, &record);
            while let Some(entry) = history.next().await? {
                if entry.id == commit {
                    return Ok(DatasetInfo::of(entry.id, &entry.commit));
                }
            }
        }
        match self.tags(Some(dataset)).await?.into_iter().find(|tag| tag.commit == commit) {
            Some(tag) => self.resolve_tag(dataset, &tag.tag).await,
            None => Err(CatalogError::NotFound { what: format!("commit {} of {dataset}", commit.short()) }),
        }
    }
}

fn tag_conflict(
    dataset: &DatasetName,
    tag: &TagName,
    expected: TagExpected,
    actual: Option<VersionId>,
) -> CatalogError {
    let (dataset, tag) = (dataset.clone(), tag.clone());
    CatalogError::TagConflict { dataset, tag, expected: expected.version(), actual }
}
