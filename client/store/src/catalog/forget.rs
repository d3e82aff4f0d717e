//! Rows that are forgotten: what holds them is found by the digests that sidecars list, marked, taken out of reach and deleted.
//!
//! First come the marks: from then on no shard that has one is stored or committed again, and who has a copy
//! drops it. Then the names go (histories are cut, tags, runs and plans removed), and then the objects, in
//! the order and under the protection of [`gc`](super::gc), but whatever their age. An operation that began
//! before the marks may have written a name meanwhile; so forget looks again until no name reaches the rows.
//! The next forget finishes a killed one, from its marks.
//!
//! That the present version of no dataset has the rows is up to the caller, who can write shards without them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use shardd_api::duration::now;
use shardfmt::{
    CommitId, DatasetName, Manifest, NodeHash, PlanId, RowDigest, Shard, ShardError, ShardId, Sidecar,
    StrataId, VersionId,
};
use tokio::time::{Instant, sleep};

use super::forget_info::{Forget, ForgetReport, HoldingDataset, HoldingShard, HoldingVersion};
use super::gc::{Kind, Reached, SLICE, Tally, UPLOAD_TAKES, if_there};
use super::guard::{StoreOf, Sweep};
use super::history::History;
use super::records::{REFS, RefRecord, VERSIONS, VersionRecord, to_json};
use super::{CatalogBackend, CatalogError, RemoveRun, RunState};
use crate::metastore::Expected;
use crate::origin::{ObjectKind, OriginError, StoredObject, blocking};

/// Changes whenever rows were forgotten: nodes look at the marks then.
pub const FORGOTTEN: &str = "gc/forgotten";

/// How many objects are read at once.
const READ_AT_ONCE: usize = 16;
/// How long to wait for those who have begun to point at an object that is to go, and how often to look.
const TIMEOUT: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl CatalogBackend {
    /// See [`Catalog::forget`](super::Catalog::forget). When dropped halfway, some of it is done; asked again, it does the rest.
    ///
    /// # Errors
    ///
    /// As [`Catalog::forget`](super::Catalog::forget).
    pub async fn forget(&self, forget: &Forget) -> Result<ForgetReport, CatalogError> {
        let rows: Arc<HashSet<RowDigest>> = Arc::new(forget.rows.iter().copied().collect());
        let mut report = ForgetReport { dry_run: forget.dry_run, ..ForgetReport::default() };
        let marked = self.origin().forgotten().await?;
        if rows.is_empty() && marked.is_empty() {
            return Ok(report);
        }
        if !forget.dry_run {
            self.check_alone(false).await?;
        }
        let mut stored = Stored::of(self).await?;
        let mut holding = BTreeMap::new();
        if !rows.is_empty() {
            let (found, by_shard) = self.shards_with(&stored, rows).await?;
            (report.rows, holding) = (found, by_shard);
        }
        // The shards that an earlier forget did not reach.
        for shard in marked.into_iter().filter(|shard| stored.shards.contains(shard)) {
            holding.entry(shard).or_insert(0);
        }
        report.shards =
            holding.iter().map(|(shard, rows)| HoldingShard { shard: *shard, rows: *rows }).collect();
        if holding.is_empty() {
            return Ok(report);
        }
        let mut holders = self.holders(&stored, &holding).await?;
        report.take(&holders);
        if forget.dry_run {
            return Ok(report);
        }
        holders.check(forget.force)?;
        for shard in holding.keys() {
            self.origin().put_forgotten(*shard).await?;
        }
        self.tell_nodes().await?;
        let began = Instant::now();
        loop {
            self.remove(&holders, forget).await?;
            let left = self.delete_holders(&stored, &holders, &holding, &mut report.deleted).await?;
            stored = Stored::of(self).await?;
            holders = self.holders(&stored, &holding).await?;
            if left.is_none() && holders.versions.is_empty() && !stored.has_any(&holding) {
                break;
            }
            if began.elapsed() > TIMEOUT {
                let what = left.unwrap_or_else(|| "a version that was put meanwhile".to_owned());
                return Err(CatalogError::Wanted { what });
            }
            holders.check(forget.force)?;
            report.take(&holders);
            sleep(LOOK_EVERY).await;
        }
        // Uploads that were killed halfway may have left parts of a shard.
        let at = self.origin().now().await?;
        let leftovers = self.origin().unfinished("", UPLOAD_TAKES, at, true, ObjectKind::is_known).await?;
        leftovers.iter().for_each(|file| report.deleted.add(file.bytes));
        self.tell_nodes().await?;
        Ok(report)
    }

    /// Has nodes look at the marks.
    async fn tell_nodes(&self) -> Result<(), CatalogError> {
        self.metastore().put(FORGOTTEN, to_json(&now()), Expected::Any, None).await?;
        Ok(())
    }

    /// The Merkle roots of the shards that manifests list.
    async fn roots(&self, stored: &Stored) -> Result<HashMap<ShardId, NodeHash>, CatalogError> {
        let mut roots = HashMap::new();
        for version in &stored.manifests {
            // One that was deleted meanwhile lists nothing.
            let Some(manifest) = if_there(self.origin().manifest(*version).await)? else { continue };
            roots.extend(manifest.shards.iter().map(|shard| (shard.id, shard.root)));
        }
        Ok(roots)
    }

    /// How many of the rows there are, and which shards have how many of them.
    async fn shards_with(
        &self,
        stored: &Stored,
        rows: Arc<HashSet<RowDigest>>,
    ) -> Result<(u64, BTreeMap<ShardId, u64>), CatalogError> {
        let roots = self.roots(stored).await?;
        // Owned ids: a stream that borrowed them could not be sent to another thread, as servers do.
        let ids: Vec<_> = stored.shards.iter().map(|id| (*id, roots.get(id).copied())).collect();
        let found = stream::iter(ids)
            .map(|(id, root)| {
                let rows = Arc::clone(&rows);
                async move { Ok::<_, CatalogError>((id, self.rows_of(id, root, rows).await?)) }
            })
            .buffered(READ_AT_ONCE);
        let found: Vec<(ShardId, Vec<RowDigest>)> =
            found.try_filter(|(_, rows)| std::future::ready(!rows.is_empty())).try_collect().await?;
        let all: BTreeSet<RowDigest> = found.iter().flat_map(|(_, rows)| rows.iter().copied()).collect();
        Ok((all.len() as u64, found.into_iter().map(|(id, rows)| (id, rows.len() as u64)).collect()))
    }

    /// Those of the rows that a shard has: by its sidecar, if that lists the rows under the `root` of the manifests, or else by the shard
    /// itself.
    async fn rows_of(
        &self,
        id: ShardId,
        root: Option<NodeHash>,
        wanted: Arc<HashSet<RowDigest>>,
    ) -> Result<Vec<RowDigest>, CatalogError> {
        if let Some(sidecar) = if_there(self.origin().sidecar_bytes(id).await)? {
            let wanted = Arc::clone(&wanted);
            let listed = move || {
                let is_right = |sidecar: &Sidecar| sidecar.shard == id && Some(sidecar.root()) == root;
                let sidecar = Sidecar::decode(&sidecar).ok().filter(is_right)?;
                Some(among(sidecar.rows, &wanted))
            };
            if let Some(listed) = blocking(listed).await {
                return Ok(listed);
            }
        }
        // Without the shard its samples are unknown, and nothing of it is here.
        let Some(bytes) = if_there(self.origin().shard_bytes(id).await)? else { return Ok(Vec::new()) };
        let read = move || Ok::<_, ShardError>(among(Shard::from_bytes(bytes)?.row_digests()?, &wanted));
        blocking(read).await.map_err(|error| {
            let what = format!("shard {id}");
            let (store, reason) = (self.origin().name().to_owned(), error.to_string());
            let way_out = "`shardctl verify --repair` mends it, or `shardctl gc` deletes it";
            OriginError::Corrupt { what, store, reason, way_out }.into()
        })
    }

    /// All that leads to some shards.
    async fn holders(
        &self,
        stored: &Stored,
        holding: &BTreeMap<ShardId, u64>,
    ) -> Result<Holders, CatalogError> {
        let mut holders = Holders::default();
        for version in &stored.manifests {
            // One that has gone meanwhile holds nothing.
            let Some(manifest) = if_there(self.origin().manifest(*version).await)? else { continue };
            let Some((rows, shards)) = held_by(&manifest, holding) else { continue };
            let record = self.record::<VersionRecord>(&format!("{VERSIONS}{version}")).await?;
            let (version, samples) = (*version, manifest.sample_count());
            let dataset = record.map(|(record, _)| record.dataset);
            let held = HoldingVersion { version, dataset, samples, rows, shards };
            holders.versions.insert(version, held);
        }
        for (name, record) in self.records::<RefRecord, DatasetName>(REFS).await? {
            holders.datasets.extend(self.held_history(name, &record, &holders.versions).await?);
        }
        let Holders { versions, tags, plans, runs, .. } = &mut holders;
        let holds = |version: &VersionId| versions.contains_key(version);
        tags.extend(self.tags(None).await?.into_iter().filter(|tag| holds(&tag.version)));
        plans.extend(self.plans().await?.into_iter().filter(|plan| holds(&plan.version)));
        let all = self.runs(true).await?.into_iter();
        runs.extend(all.filter(|run| run.version.as_ref().is_some_and(holds)));
        Ok(holders)
    }

    /// The commits of a history that led to some versions; `None` if nothing has.
    async fn held_history(
        &self,
        name: DatasetName,
        record: &RefRecord,
        versions: &BTreeMap<VersionId, HoldingVersion>,
    ) -> Result<Option<HeldHistory>, CatalogError> {
        let (mut oldest, mut commits, mut cut) = (None, 0, 0);
        let mut history = History::of(self.origin(), &name, record);
        while let Some(entry) = history.next().await? {
            let holds = versions.contains_key(&entry.commit.version);
            commits += u64::from(holds);
            match commits {
                0 => oldest = Some(entry.id),
                _ => cut += 1,
            }
        }
        let version = record.version;
        let is_present = versions.contains_key(&version);
        let dataset = HoldingDataset { name, version, is_present, commits, cut };
        Ok((commits > 0).then_some(HeldHistory { dataset, oldest }))
    }

    /// Removes the names that lead to the forgotten rows. A name that another request has removed meanwhile counts as removed.
    async fn remove(&self, holders: &Holders, forget: &Forget) -> Result<(), CatalogError> {
        let gone = |outcome: Result<(), CatalogError>| match outcome {
            Err(CatalogError::NotFound { .. }) => Ok(()),
            other => other,
        };
        for HeldHistory { dataset, oldest } in &holders.datasets {
            let oldest = oldest.expect("the present version holds nothing: that was checked");
            gone(self.prune(&dataset.name, oldest).await.map(drop))?;
        }
        for tag in &holders.tags {
            gone(self.remove_tag(&tag.dataset, &tag.tag, tag.version).await)?;
        }
        let how = RemoveRun { force: forget.force, checkpoints: forget.checkpoints };
        for run in &holders.runs {
            gone(self.remove_run(&run.id, how).await.map(drop))?;
        }
        for plan in &holders.plans {
            match gone(self.remove_plan(plan.id).await) {
                // A run that has just begun is found by the next look.
                Err(CatalogError::InUse { .. }) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Deletes the objects that hold rows or lead to those that do, and says what something still reaches, if anything does.
    async fn delete_holders(
        &self,
        stored: &Stored,
        holders: &Holders,
        holding: &BTreeMap<ShardId, u64>,
        deleted: &mut Tally,
    ) -> Result<Option<String>, CatalogError> {
        let (plans, strata) = self.plans_over(stored, holders).await?;
        let commits = self.commits_of(stored, holders).await?;
        let is_going = |object: &&StoredObject| match object.kind {
            ObjectKind::Plan(id) => plans.contains(&id),
            ObjectKind::Strata(id) => strata.contains(&id),
            ObjectKind::Commit(id) => commits.contains(&id),
            ObjectKind::Manifest(id) | ObjectKind::Tree(id) | ObjectKind::Provenance(id) => {
                holders.versions.contains_key(&id)
            }
            ObjectKind::Shard(id) | ObjectKind::Sidecar(id) => holding.contains_key(&id),
            _ => false,
        };
        let going: Vec<&StoredObject> = stored.objects.iter().filter(is_going).collect();
        let (mut reached, mut left) = (Reached::new(self), None);
        for kind in Kind::IN_ORDER {
            let of_kind: Vec<&StoredObject> =
                going.iter().copied().filter(|object| kind.is_that_of(object)).collect();
            for slice in of_kind.chunks(SLICE) {
                let gone = self.sweep_now(slice, &mut reached).await?;
                for object in slice {
                    match gone.contains(&object.key) {
                        true => deleted.add(object.bytes),
                        // Plans over other versions may have the same strata.
                        false if matches!(object.kind, ObjectKind::Strata(_)) => {}
                        false => left = left.or_else(|| Some(object.key.clone())),
                    }
                }
            }
        }
        Ok(left)
    }

    /// Deletes those of some objects that nothing reaches, however young they are, and returns their keys.
    async fn sweep_now(
        &self,
        slice: &[&StoredObject],
        reached: &mut Reached<'_>,
    ) -> Result<HashSet<String>, CatalogError> {
        let sweep =
            Sweep::announce(self.metastore(), StoreOf::at(self.origin())).await.map_err(
                |error| match error {
                    CatalogError::Busy { .. } => CatalogError::Busy { what: "this forget".to_owned() },
                    error => error,
                },
            )?;
        let going = async {
            reached.follow_all().await?;
            let going: Vec<&&StoredObject> =
                slice.iter().filter(|object| !reached.has(object.kind)).collect();
            for object in &going {
                if let ObjectKind::Manifest(version) = object.kind {
                    self.metastore().delete(&format!("{VERSIONS}{version}"), Expected::Any).await?;
                }
            }
            sweep.renew().await?;
            Ok::<_, CatalogError>(going.into_iter().map(|object| object.key.clone()).collect::<Vec<_>>())
        };
        match going.await {
            Ok(going) => {
                self.delete_swept(sweep, going.clone()).await?;
                Ok(going.into_iter().collect())
            }
            Err(error) => {
                sweep.end().await?;
                Err(error)
            }
        }
    }

    /// The plans over versions that hold rows, on the list or not, and their strata.
    async fn plans_over(
        &self,
        stored: &Stored,
        holders: &Holders,
    ) -> Result<(BTreeSet<PlanId>, BTreeSet<StrataId>), CatalogError> {
        let (mut plans, mut strata) = (BTreeSet::new(), BTreeSet::new());
        for id in stored.ids(|kind| if let ObjectKind::Plan(id) = kind { Some(id) } else { None }) {
            let Some(document) = readable(self.origin().plan_document(id).await)? else { continue };
            if holders.versions.contains_key(&document.version) {
                plans.insert(id);
                strata.extend(document.strata.as_ref().map(|strata| strata.id()));
            }
        }
        Ok((plans, strata))
    }

    /// The commits that led to versions that hold rows, in a history or not.
    async fn commits_of(
        &self,
        stored: &Stored,
        holders: &Holders,
    ) -> Result<BTreeSet<CommitId>, CatalogError> {
        let mut commits = BTreeSet::new();
        for id in stored.ids(|kind| if let ObjectKind::Commit(id) = kind { Some(id) } else { None }) {
            let commit = readable(self.origin().commit(id).await)?;
            if commit.is_some_and(|commit| holders.versions.contains_key(&commit.version)) {
                commits.insert(id);
            }
        }
        Ok(commits)
    }
}

/// The objects of a store at one moment.
struct Stored {
    objects: Vec<StoredObject>,
    /// Shards of which the file or the sidecar is there.
    shards: BTreeSet<ShardId>,
    manifests: BTreeSet<VersionId>,
}

impl Stored {
    async fn of(catalog: &CatalogBackend) -> Result<Self, CatalogError> {
        let mut objects: Vec<StoredObject> = catalog.origin().objects().try_collect().await?;
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        let (mut shards, mut manifests) = (BTreeSet::new(), BTreeSet::new());
        for object in &objects {
            match object.kind {
                ObjectKind::Shard(id) | ObjectKind::Sidecar(id) => _ = shards.insert(id),
                ObjectKind::Manifest(id) => _ = manifests.insert(id),
                _ => {}
            }
        }
        Ok(Self { objects, shards, manifests })
    }

    /// Whether one of some shards is there, or its sidecar.
    fn has_any(&self, shards: &BTreeMap<ShardId, u64>) -> bool {
        shards.keys().any(|shard| self.shards.contains(shard))
    }

    fn ids<T>(&self, id: impl Fn(ObjectKind) -> Option<T>) -> Vec<T> {
        self.objects.iter().filter_map(|object| id(object.kind)).collect()
    }
}

/// The references to the rows.
#[derive(Default)]
struct Holders {
    versions: BTreeMap<VersionId, HoldingVersion>,
    datasets: Vec<HeldHistory>,
    tags: Vec<super::TagInfo>,
    plans: Vec<super::PlanInfo>,
    runs: Vec<super::RunInfo>,
}

/// A history with versions that hold rows, and the oldest commit that can stay: none if the present one cannot.
struct HeldHistory {
    dataset: HoldingDataset,
    oldest: Option<CommitId>,
}

impl Holders {
    /// Refuses what cannot be removed.
    fn check(&self, force: bool) -> Result<(), CatalogError> {
        if let Some(held) = self.datasets.iter().find(|held| held.oldest.is_none()) {
            return Err(CatalogError::StillHeld { dataset: held.dataset.name.clone() });
        }
        match self.runs.iter().find(|run| run.state == RunState::Running && !force) {
            Some(run) => Err(CatalogError::Running { run: run.id.to_string() }),
            None => Ok(()),
        }
    }
}

impl ForgetReport {
    /// Adds holders that are not known yet.
    fn take(&mut self, holders: &Holders) {
        let versions: Vec<HoldingVersion> = holders.versions.values().cloned().collect();
        let datasets: Vec<HoldingDataset> =
            holders.datasets.iter().map(|held| held.dataset.clone()).collect();
        add(&mut self.versions, &versions, |version| version.version);
        add(&mut self.datasets, &datasets, |dataset| dataset.name.clone());
        add(&mut self.tags, &holders.tags, |tag| (tag.dataset.clone(), tag.tag.clone()));
        add(&mut self.plans, &holders.plans, |plan| plan.id);
        add(&mut self.runs, &holders.runs, |run| run.id.clone());
    }
}

fn add<T: Clone, K: PartialEq>(known: &mut Vec<T>, found: &[T], key: impl Fn(&T) -> K) {
    for one in found {
        if !known.iter().any(|known| key(known) == key(one)) {
            known.push(one.clone());
        }
    }
}

/// How many samples of a version are to go, and of how many shards; `None` if it has none of these.
fn held_by(manifest: &Manifest, holding: &BTreeMap<ShardId, u64>) -> Option<(u64, u64)> {
    let held: Vec<u64> = manifest.shards.iter().filter_map(|shard| holding.get(&shard.id).copied()).collect();
    (!held.is_empty()).then(|| (held.iter().sum(), held.len() as u64))
}

fn among(rows: Vec<RowDigest>, wanted: &HashSet<RowDigest>) -> Vec<RowDigest> {
    rows.into_iter().filter(|row| wanted.contains(row)).collect()
}

/// A damaged object leads nowhere.
fn readable<T>(found: Result<T, OriginError>) -> Result<Option<T>, OriginError> {
    match if_there(found) {
        Err(OriginError::Corrupt { .. }) => Ok(None),
        other => other,
    }
}

#[cfg(test)]
mod tests;
