//! Who keeps versions, and with them the bytes of their shards: histories, tags, plans and runs.

use std::collections::{BTreeMap, BTreeSet};

use shardd_store::catalog::{Catalog, CatalogError};
use shardfmt::{DatasetName, ShardId, VersionId};

use crate::failure::Failure;

/// For each kept version, its holders.
pub(crate) struct Holders(BTreeMap<VersionId, Vec<String>>);

impl Holders {
    /// All there are, but the history of `without`.
    pub(crate) fn beside(catalog: &dyn Catalog, without: &DatasetName) -> Result<Holders, Failure> {
        let mut held = BTreeMap::<VersionId, Vec<String>>::new();
        let mut hold = |version: VersionId, by: String| held.entry(version).or_default().push(by);
        for dataset in catalog.datasets()?.iter().filter(|dataset| dataset.name != *without) {
            for entry in catalog.log(&dataset.name, usize::MAX)? {
                hold(entry.commit.version, format!("dataset {}", dataset.name));
            }
        }
        for tag in catalog.tags(None)? {
            hold(tag.version, format!("tag {}@{}", tag.dataset, tag.tag));
        }
        for plan in catalog.plans()? {
            hold(plan.version, format!("plan {}", plan.id.short()));
        }
        for run in catalog.runs()? {
            // Records alone keep nothing.
            let is_known = || match catalog.run(&run.id) {
                Ok(_) => Ok(true),
                Err(CatalogError::NotFound { .. }) => Ok(false),
                Err(error) => Err(error),
            };
            if let Some(version) = run.version
                && is_known()?
            {
                hold(version, format!("run {}", run.id));
            }
        }
        held.values_mut().for_each(|by| by.dedup());
        Ok(Holders(held))
    }

    /// The holders of a version.
    pub(crate) fn of(&self, version: VersionId) -> &[String] {
        self.0.get(&version).map_or(&[], Vec::as_slice)
    }

    /// The bytes of the shards that only versions of `going` have, and none of `staying` nor any that is kept.
    pub(crate) fn freed(
        &self,
        catalog: &dyn Catalog,
        going: &BTreeSet<VersionId>,
        staying: &BTreeSet<VersionId>,
    ) -> Result<u64, Failure> {
        let mut shards = BTreeMap::<ShardId, u64>::new();
        let is_kept = |version: &VersionId| staying.contains(version) || self.0.contains_key(version);
        for version in going.iter().filter(|version| !is_kept(version)) {
            shards.extend(catalog.manifest(*version)?.shards.iter().map(|shard| (shard.id, shard.bytes)));
        }
        for version in staying.iter().chain(self.0.keys()).collect::<BTreeSet<_>>() {
            if shards.is_empty() {
                break;
            }
            for shard in catalog.manifest(*version)?.shards {
                shards.remove(&shard.id);
            }
        }
        Ok(shards.values().sum())
    }
}
