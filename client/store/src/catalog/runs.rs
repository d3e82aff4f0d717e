//! Runs: what there is of them in the metastore and in the store, and their removal.
//!
//! Who removes a run marks its record, then looks whether a rank has attached meanwhile; a rank that attaches writes that down, then looks
//! for the mark. One of the two sees the other. The record goes last, so that a removal which was killed is seen, and can be repeated.

use std::collections::{BTreeMap, BTreeSet};

use shardd_api::duration::now;
use shardd_api::protocol::{RanksRecord, RunId, RunRecord};
use shardfmt::{DatasetName, DatasetRef, VersionId};

use super::records::{AUDITS, RUNS, VERSIONS, VersionRecord, damaged, from_json, named, to_json};
use super::run_info::Signs;
use super::{CatalogBackend, CatalogError, RemoveRun, RunDetails, RunInfo, RunState};
use crate::metastore::{Expected, MetaError, packed};
use crate::record::stored::Kept;
use crate::record::{Record, Records};

const RANKS: &str = "ranks/";
/// The other entries of a run under their own keys.
const OF_A_RUN: [&str; 5] = [RANKS, "placements/", "rendezvous/", "cursors/", "owners/"];
/// And under several keys. Audits go last: they are what people miss.
const MANY_OF_A_RUN: [&str; 2] = ["copied/", AUDITS];

/// All that is known of some runs.
#[derive(Default)]
struct Known {
    records: BTreeMap<RunId, RunRecord>,
    ranks: BTreeMap<RunId, (RanksRecord, u64)>,
    /// Epochs and reports.
    audits: BTreeMap<RunId, (u32, u64)>,
    kept: BTreeMap<RunId, Kept>,
    newest: BTreeMap<RunId, Record>,
}

impl CatalogBackend {
    /// See [`Catalog::runs`](super::Catalog::runs). Without `details` only those that nodes know, and nothing is asked of the store.
    ///
    /// # Errors
    ///
    /// As [`Catalog::runs`](super::Catalog::runs).
    pub async fn runs(&self, details: bool) -> Result<Vec<RunInfo>, CatalogError> {
        let known = self.known_runs(None, details).await?;
        let datasets = self.datasets_of(&known).await?;
        let ids: BTreeSet<&RunId> = known.records.keys().chain(known.kept.keys()).collect();
        Ok(ids.into_iter().map(|id| known.info(id, &datasets, details, now())).collect())
    }

    /// See [`Catalog::run_info`](super::Catalog::run_info).
    ///
    /// # Errors
    ///
    /// As [`Catalog::run_info`](super::Catalog::run_info).
    pub async fn run_info(&self, id: &RunId) -> Result<RunInfo, CatalogError> {
        Ok(self.look_at(id).await?.0)
    }

    /// See [`Catalog::remove_run`](super::Catalog::remove_run). When dropped halfway, the run is listed as being removed.
    ///
    /// # Errors
    ///
    /// As [`Catalog::remove_run`](super::Catalog::remove_run).
    pub async fn remove_run(&self, id: &RunId, options: RemoveRun) -> Result<RunInfo, CatalogError> {
        let (info, mut known) = self.look_at(id).await?;
        if info.state == RunState::Running && !options.force {
            return Err(CatalogError::Running { run: id.to_string() });
        }
        let attached = known.ranks.get(id).map(|(_, revision)| *revision);
        self.mark_removed(id, attached, options.force).await?;
        for prefix in OF_A_RUN {
            self.metastore().delete(&format!("{prefix}{id}"), Expected::Any).await?;
        }
        let kept = known.kept.remove(id).unwrap_or_default();
        self.training_records().remove_run(kept, options.checkpoints).await?;
        for prefix in MANY_OF_A_RUN {
            for (key, _) in self.metastore().list(&format!("{prefix}{id}/")).await?.entries {
                self.metastore().delete(&key, Expected::Any).await?;
            }
        }
        self.metastore().delete(&format!("{RUNS}{id}"), Expected::Any).await?;
        Ok(info)
    }

    async fn look_at(&self, id: &RunId) -> Result<(RunInfo, Known), CatalogError> {
        let known = self.known_runs(Some(id), true).await?;
        if !known.records.contains_key(id) && !known.kept.contains_key(id) {
            return Err(CatalogError::NotFound { what: format!("run {id}") });
        }
        let datasets = self.datasets_of(&known).await?;
        Ok((known.info(id, &datasets, true, now()), known))
    }

    /// From now on no rank attaches, unless one has since its revision was `attached`.
    async fn mark_removed(&self, id: &RunId, attached: Option<u64>, force: bool) -> Result<(), CatalogError> {
        let (key, metastore) = (format!("{RUNS}{id}"), self.metastore());
        loop {
            let Some((record, revision)) = self.record::<RunRecord>(&key).await? else { return Ok(()) };
            let marked = RunRecord { removing: true, ..record.clone() };
            let marked = match metastore.put(&key, to_json(&marked), Expected::At(revision), None).await {
                Ok(marked) => marked,
                Err(MetaError::Conflict { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            let found = metastore.get(&format!("{RANKS}{id}")).await?.map(|entry| entry.revision);
            let is_as_seen = found.is_none() || found == attached;
            if is_as_seen || force || record.removing {
                return Ok(());
            }
            match metastore.put(&key, to_json(&record), Expected::At(marked), None).await {
                Ok(_) | Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            return Err(CatalogError::Running { run: id.to_string() });
        }
    }

    fn training_records(&self) -> Records {
        Records::new(self.trainings().clone())
    }

    /// The known facts about one run or all; of the store only with `details`.
    async fn known_runs(&self, only: Option<&RunId>, details: bool) -> Result<Known, CatalogError> {
        let under = |prefix: &str| only.map_or_else(|| prefix.to_owned(), |id| format!("{prefix}{id}"));
        let is_meant = |id: &RunId| only.is_none_or(|only| only == id);
        let mut known = Known::default();
        for (key, entry) in self.metastore().list(&under(RUNS)).await?.entries {
            let id: RunId = named(&key, RUNS)?;
            if is_meant(&id) {
                known.records.insert(id, from_json(&key, &entry.value)?);
            }
        }
        for (key, entry) in self.metastore().list(&under(RANKS)).await?.entries {
            let id: RunId = named(&key, RANKS)?;
            if is_meant(&id) {
                let ranks = packed::parse(&entry)
                    .ok_or_else(|| damaged(&key, &"it is no launch that this release understands"))?;
                known.ranks.insert(id, (ranks, entry.revision));
            }
        }
        if !details {
            return Ok(known);
        }
        for (key, _) in self.metastore().list(&under(AUDITS)).await?.entries {
            let Some((id, epoch)) = audited(&key) else { continue };
            if is_meant(&id) {
                let (epochs, audits) = known.audits.entry(id).or_default();
                *epochs = (*epochs).max(epoch.saturating_add(1));
                *audits += 1;
            }
        }
        let records = self.training_records();
        known.kept = records.kept(only).await?;
        for (id, kept) in &known.kept {
            if let Some(record) = records.newest(id, kept).await? {
                known.newest.insert(id.clone(), record);
            }
        }
        Ok(known)
    }

    /// The datasets of the versions that runs read, if they were committed.
    async fn datasets_of(&self, known: &Known) -> Result<BTreeMap<VersionId, DatasetName>, CatalogError> {
        let mut datasets = BTreeMap::new();
        let versions: BTreeSet<VersionId> = known.records.values().map(|record| record.version).collect();
        for version in versions {
            if let Some((record, _)) = self.record::<VersionRecord>(&format!("{VERSIONS}{version}")).await? {
                datasets.insert(version, record.dataset);
            }
        }
        Ok(datasets)
    }
}

impl Known {
    fn info(
        &self,
        id: &RunId,
        datasets: &BTreeMap<VersionId, DatasetName>,
        details: bool,
        now: u64,
    ) -> RunInfo {
        let (record, told) = (self.records.get(id), self.newest.get(id));
        let signs = Signs {
            record,
            ranks: self.ranks.get(id).map(|(ranks, _)| ranks),
            ending: told.map(|told| (&told.ending, told.written())),
        };
        let version = record.map(|record| record.version).or(told.map(|told| told.data.version));
        let recorded =
            || told?.data.dataset.as_ref()?.parse::<DatasetRef>().ok().map(|reference| reference.dataset);
        let (epochs, audits) = self.audits.get(id).copied().unwrap_or_default();
        let stored = self.kept.get(id).map(|kept| kept.stored).unwrap_or_default();
        RunInfo {
            id: id.clone(),
            state: signs.state(now),
            dataset: version.and_then(|version| datasets.get(&version).cloned()).or_else(recorded),
            plan: record.map(|record| record.plan).or(told.map(|told| told.data.plan)),
            version,
            virtual_ranks: record.map(|record| record.virtual_ranks).or(told.map(|told| told.virtual_ranks)),
            world: signs.ranks.map(|ranks| ranks.world),
            began: record.and_then(|record| record.began).or_else(|| Some(told?.launches.first()?.started)),
            seen: signs.seen(),
            details: details.then_some(RunDetails { epochs, audits, stored }),
        }
    }
}

/// The run and the epoch of a key under `audits/`.
fn audited(key: &str) -> Option<(RunId, u32)> {
    let mut steps = key.strip_prefix(AUDITS)?.split('/');
    Some((steps.next()?.parse().ok()?, steps.next()?.parse().ok()?))
}
