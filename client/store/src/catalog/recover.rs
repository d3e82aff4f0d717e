//! Names brought back: where the metadata was lost, the store still has every commit and every plan, and
//! mostly a copy of the metadata. Existing names stay as they are, so recovering twice does no harm.
//!
//! A copy has all of it: names, tags, plans, runs with their reports. Where there is none, or commits follow
//! the one that it leads to, a name follows from the commits: it leads to the last one that no other follows.
//! A history begins with the oldest commit that the store still has, as one does that was pruned. Names and
//! plans that were removed, and not yet collected by gc, come back, too.

use std::collections::{BTreeMap, BTreeSet};

use futures::TryStreamExt;
use serde::{Deserialize, Serialize};
use shardd_api::node::NodeId;
use shardd_api::protocol::RunRecord;
#[cfg(feature = "openapi")]
use shardd_api::schema;
use shardfmt::{Commit, CommitId, DatasetName, PlanId, VersionId};

use super::records::{
    AUDITS, CATALOG_ID, PLANS, PlanRecord, REFS, RUNS, RefRecord, TAGS, TagRecord, VERSIONS, VersionRecord,
    from_json, named, ref_key, to_json,
};
use super::{CatalogBackend, CatalogError, Reach};
use crate::causes::in_a_line;
use crate::metastore::{Expected, MetaError, copy};
use crate::origin::{ObjectKind, OriginError};

/// How far ranks had come.
const CURSORS: &str = "cursors/";
/// The part of a copy that is restored: that of a catalog. Who may ask and who is a node is not.
const BROUGHT_BACK: [&str; 7] = [VERSIONS, PLANS, RUNS, AUDITS, CURSORS, TAGS, REFS];

/// How to recover.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_store::catalog::{Catalog, LocalCatalog};
/// # let (shard, manifest) = numbers()?;
/// # let directory = tempfile::tempdir()?;
/// # let catalog = LocalCatalog::open(directory.path())?;
/// # catalog.put_shard(&shard)?;
/// # let name: shardfmt::DatasetName = "numbers".parse()?;
/// # let note = shardd_store::catalog::CommitNote::of(shardfmt::Operation::INGEST);
/// # let dataset = catalog.commit(&name, None, &manifest, &note)?;
/// use shardd_store::catalog::RecoverOptions;
///
/// // All names are here, so there is nothing to bring back.
/// let report = catalog.recover(RecoverOptions { dry_run: true })?;
/// assert!(report.datasets.is_empty() && report.lost.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RecoverOptions {
    /// Write nothing, only say what would come back. Default: false.
    pub dry_run: bool,
}

/// The restored entries, or those to restore.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RecoverReport {
    /// Whether nothing was written.
    pub dry_run: bool,
    /// The copies of metadata that the store has.
    pub copies: Vec<CopyFound>,
    /// Datasets.
    pub datasets: Vec<RecoveredDataset>,
    /// How many tags.
    pub tags: u64,
    /// How many plans.
    pub plans: u64,
    /// How many runs.
    pub runs: u64,
    /// The entries that could not be restored, and why.
    pub lost: Vec<LostName>,
}

/// A copy of metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CopyFound {
    /// The node that took it.
    pub node: NodeId,
    /// When, in seconds since 1970.
    pub taken_at: u64,
}

/// A dataset that came back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RecoveredDataset {
    /// Its name.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::DatasetName))]
    pub name: DatasetName,
    /// The version it is at.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Digest))]
    pub version: VersionId,
    /// How many commits lead there.
    pub commits: u64,
    /// Whether that was worked out from the commits alone, and not known from a copy.
    pub from_commits: bool,
    /// Versions at the end of other histories of this name: of one that was removed, or of a commit that lost a race.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<schema::Digest>))]
    pub others: Vec<VersionId>,
}

/// A name that did not come back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LostName {
    /// Its key, such as `refs/digits`.
    pub key: String,
    /// Why.
    pub reason: String,
}

impl CatalogBackend {
    /// See [`Catalog::recover`](super::Catalog::recover).
    ///
    /// # Errors
    ///
    /// As [`Catalog::recover`](super::Catalog::recover).
    pub async fn recover(&self, options: RecoverOptions) -> Result<RecoverReport, CatalogError> {
        let mut report = RecoverReport { dry_run: options.dry_run, ..RecoverReport::default() };
        let present = self.metastore().list("").await?;
        let present: BTreeSet<String> = present.entries.into_iter().map(|(key, _)| key).collect();
        let mut wanted = self.copied(&mut report).await?;
        let mut copied: BTreeSet<String> = wanted.keys().cloned().collect();
        let (commits, plans) = self.documents(&mut report).await?;
        let histories = histories(&commits);
        for (name, history) in &histories {
            let key = ref_key(name);
            let of_copy = wanted.get(&key).map(|value| from_json::<RefRecord>(&key, value)).transpose()?;
            let pruned_at = of_copy.as_ref().map_or(1, |of_copy| of_copy.oldest);
            let is_later = of_copy.is_none_or(|of_copy| {
                of_copy
                    .commit
                    .is_some_and(|commit| history.head != commit && descends(&commits, history.head, commit))
            });
            if is_later {
                copied.remove(&key);
                let oldest = history.oldest.max(pruned_at);
                wanted.insert(key, to_json(&RefRecord::of(history.head, &commits[&history.head], oldest)));
            }
        }
        for (version, dataset) in first_committed(&commits) {
            let record = to_json(&VersionRecord { dataset });
            wanted.entry(format!("{VERSIONS}{version}")).or_insert(record);
        }
        self.want_plans(plans, &present, &mut wanted).await?;
        for prefix in BROUGHT_BACK {
            let missing = wanted.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
            let missing: Vec<_> = missing.filter(|(key, _)| !present.contains(*key)).collect();
            for (key, value) in missing {
                match self.bring_back(prefix, key, value, options.dry_run).await {
                    Ok(()) => report.count(prefix, key, value, &histories, !copied.contains(key))?,
                    Err(CatalogError::Meta(error @ MetaError::Unavailable { .. })) => {
                        return Err(error.into());
                    }
                    Err(error) => {
                        let reason = in_a_line(&error);
                        report.lost.push(LostName { key: key.clone(), reason });
                    }
                }
            }
        }
        if !options.dry_run && !present.contains(CATALOG_ID) {
            self.take_mark().await?;
        }
        Ok(report)
    }

    /// The entry of the newest copy for each key.
    async fn copied(&self, report: &mut RecoverReport) -> Result<BTreeMap<String, Vec<u8>>, CatalogError> {
        let mut wanted = BTreeMap::new();
        for copy in copy::all(self.origin()).await? {
            report.copies.push(CopyFound { node: copy.keeper.node, taken_at: copy.taken_at });
            for entry in copy.entries {
                if BROUGHT_BACK.iter().any(|prefix| entry.key.starts_with(prefix)) {
                    wanted.entry(entry.key).or_insert(entry.value);
                }
            }
        }
        Ok(wanted)
    }

    /// All commits of the store, and its plans with when they were written.
    async fn documents(
        &self,
        report: &mut RecoverReport,
    ) -> Result<(BTreeMap<CommitId, Commit>, Vec<(PlanId, u64)>), CatalogError> {
        let (mut commits, mut plans) = (BTreeMap::new(), Vec::new());
        let mut objects = self.origin().objects();
        while let Some(object) = objects.try_next().await? {
            match object.kind {
                ObjectKind::Commit(id) => match self.origin().commit(id).await {
                    Ok(commit) => drop(commits.insert(id, commit)),
                    Err(error @ OriginError::Corrupt { .. }) => {
                        report.lost.push(LostName { key: object.key, reason: error.to_string() });
                    }
                    Err(error) => return Err(error.into()),
                },
                ObjectKind::Plan(id) => plans.push((id, object.written.since_1970())),
                _ => {}
            }
        }
        Ok((commits, plans))
    }

    /// Plans of versions whose dataset is known.
    async fn want_plans(
        &self,
        plans: Vec<(PlanId, u64)>,
        present: &BTreeSet<String>,
        wanted: &mut BTreeMap<String, Vec<u8>>,
    ) -> Result<(), CatalogError> {
        for (id, created) in plans {
            let key = format!("{PLANS}{id}");
            if wanted.contains_key(&key) || present.contains(&key) {
                continue;
            }
            let Ok(document) = self.origin().plan_document(id).await else { continue };
            let version = document.version;
            let of_version = format!("{VERSIONS}{version}");
            let dataset = match wanted.get(&of_version) {
                Some(value) => Some(from_json::<VersionRecord>(&of_version, value)?.dataset),
                None => self.record::<VersionRecord>(&of_version).await?.map(|(record, _)| record.dataset),
            };
            if let Some(dataset) = dataset {
                wanted.insert(key, to_json(&PlanRecord { dataset, version, created }));
            }
        }
        Ok(())
    }

    /// Writes a name that is not there, if its target is.
    async fn bring_back(
        &self,
        prefix: &str,
        key: &str,
        value: &[u8],
        dry_run: bool,
    ) -> Result<(), CatalogError> {
        let reach = match prefix {
            REFS => {
                let record: RefRecord = from_json(key, value)?;
                Reach { commit: record.commit, version: Some(record.version), plan: None }
            }
            TAGS => {
                let record: TagRecord = from_json(key, value)?;
                Reach { commit: Some(record.commit), version: Some(record.version), plan: None }
            }
            PLANS => {
                let version = from_json::<PlanRecord>(key, value)?.version;
                Reach { commit: None, version: Some(version), plan: Some(named(key, PLANS)?) }
            }
            RUNS => {
                let run: RunRecord = from_json(key, value)?;
                Reach { commit: None, version: Some(run.version), plan: Some(run.plan) }
            }
            _ => Reach::default(),
        };
        if dry_run {
            return self.check_reach(&reach).await;
        }
        let guard = self.guard(&reach, || format!("recovering {key}")).await?;
        let written = async {
            self.check_reach(&reach).await?;
            guard.renew().await?;
            match self.metastore().put(key, value.to_vec(), Expected::Absent, None).await {
                Ok(_) | Err(MetaError::Conflict { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            }
        };
        let written = written.await;
        guard.end().await;
        written
    }

    async fn check_reach(&self, reach: &Reach) -> Result<(), CatalogError> {
        let Reach { commit, version, plan } = reach;
        if let Some(commit) = commit {
            self.origin().commit(*commit).await?;
        }
        if let Some(version) = version
            && !self.origin().has_manifest(*version).await?
        {
            return Err(CatalogError::NotFound { what: format!("version {version}") });
        }
        if let Some(plan) = plan
            && !self.origin().has_plan(*plan).await?
        {
            return Err(CatalogError::NotFound { what: format!("plan {plan}") });
        }
        Ok(())
    }

    /// Continues as the only catalog that has left its mark in the store, which is the one that was lost.
    async fn take_mark(&self) -> Result<(), CatalogError> {
        if let [only] = &self.origin().catalogs().await?[..] {
            self.put_once(CATALOG_ID, only).await?;
        }
        Ok(())
    }

    /// Whether the metastore knows no dataset, and the store has commits of some: the metadata was lost, or is another's.
    ///
    /// # Errors
    /// When it cannot be known, as the store or the metastore is unavailable.
    pub async fn has_lost_its_names(&self) -> Result<bool, CatalogError> {
        if !self.metastore().list(REFS).await?.entries.is_empty() {
            return Ok(false);
        }
        Ok(self.origin().has_commits().await?)
    }
}

impl RecoverReport {
    fn count(
        &mut self,
        prefix: &str,
        key: &str,
        value: &[u8],
        histories: &BTreeMap<DatasetName, History>,
        from_commits: bool,
    ) -> Result<(), CatalogError> {
        match prefix {
            REFS => {
                let (name, record): (DatasetName, RefRecord) = (named(key, REFS)?, from_json(key, value)?);
                let history = histories.get(&name).filter(|_| from_commits);
                self.datasets.push(RecoveredDataset {
                    version: record.version,
                    commits: record.commits,
                    from_commits,
                    others: history.map_or_else(Vec::new, |history| history.others.clone()),
                    name,
                });
            }
            TAGS => self.tags += 1,
            PLANS => self.plans += 1,
            RUNS => self.runs += 1,
            _ => {}
        }
        Ok(())
    }
}

/// Where a dataset was, by its commits.
#[derive(Debug, PartialEq, Eq)]
struct History {
    head: CommitId,
    /// The number of the oldest commit that leads to it without a gap.
    oldest: u64,
    others: Vec<VersionId>,
}

/// For each dataset the commit that nothing follows, of several the last one.
fn histories(commits: &BTreeMap<CommitId, Commit>) -> BTreeMap<DatasetName, History> {
    let followed: BTreeSet<CommitId> = commits.values().filter_map(|commit| commit.parent).collect();
    let mut ends = BTreeMap::<&DatasetName, Vec<(u64, u64, CommitId)>>::new();
    for (id, commit) in commits {
        if !followed.contains(id) {
            ends.entry(&commit.dataset).or_default().push((commit.time, commit.number, *id));
        }
    }
    let history = |(name, mut ends): (&DatasetName, Vec<(u64, u64, CommitId)>)| {
        ends.sort();
        let (_, _, head) = ends.pop().expect("each dataset here has an end");
        let others = ends.into_iter().rev().map(|(_, _, id)| commits[&id].version).collect();
        (name.clone(), History { head, oldest: oldest(commits, &commits[&head]), others })
    };
    ends.into_iter().map(history).collect()
}

/// The number of the oldest commit from which the history leads to `last` without a gap. The commits before a
/// gap were pruned, or are damaged.
fn oldest(commits: &BTreeMap<CommitId, Commit>, last: &Commit) -> u64 {
    let before = |commit: &&Commit| {
        let parent = commits.get(&commit.parent?)?;
        (parent.dataset == commit.dataset && parent.number + 1 == commit.number).then_some(parent)
    };
    std::iter::successors(Some(last), before).last().map_or(last.number, |commit| commit.number)
}

/// Whether `commit` comes after `before` in a history.
fn descends(commits: &BTreeMap<CommitId, Commit>, commit: CommitId, before: CommitId) -> bool {
    let parents = std::iter::successors(Some(commit), |id| commits.get(id)?.parent);
    // Numbers go down in a whole history, and so this ends.
    parents.skip(1).any(|id| id == before)
}

/// The dataset that each version was first committed to.
fn first_committed(commits: &BTreeMap<CommitId, Commit>) -> BTreeMap<VersionId, DatasetName> {
    let mut in_order: Vec<(u64, u64, &CommitId, &Commit)> =
        commits.iter().map(|(id, commit)| (commit.time, commit.number, id, commit)).collect();
    in_order.sort_by_key(|(time, number, id, _)| (*time, *number, *id));
    let mut first = BTreeMap::new();
    for (_, _, _, commit) in in_order {
        first.entry(commit.version).or_insert_with(|| commit.dataset.clone());
    }
    first
}

#[cfg(test)]
mod tests;
