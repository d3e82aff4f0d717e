//! Garbage: the objects that nothing reaches. Found by walking from every name, deleted in an order that leaves nothing
//! dangling.
//!
//! Reachable are: of each dataset every commit and version in its history that was not pruned, of each tag
//! its commit and version, of each plan and run the plan and the version, and the announcements in
//! `intents/`; of a version its manifest, its tree, its provenance and the shards it names. A young unreachable manifest
//! counts too: its writer has not committed it yet.
//!
//! Plans go first, then their strata, commits, manifests, their trees and provenances, sidecars and shards: a crash in
//! between leaves objects without a name, never a name without objects. [`guard`](super::guard) explains the
//! protection against new pointers to objects in deletion.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use futures::TryStreamExt;
use serde::{Deserialize, Serialize};
use shardd_api::protocol::RunRecord;
use shardfmt::{CommitId, DatasetName, PlanId, ShardId, StrataId, VersionId};
use tokio::time::timeout;

use super::error::SLICE_TAKES;
use super::guard::{INTENTS, StoreOf, Sweep};
use super::history::History;
use super::records::{
    CATALOG_ID, PLANS, PlanRecord, REFS, RUNS, RefRecord, TAGS, TagRecord, VERSIONS, VersionRecord,
    from_json, named, tag_named,
};
use super::{CatalogBackend, CatalogError, Reach};
use crate::metastore::Expected;
use crate::origin::{ObjectKind, OriginError, StoreTime, StoredObject};

/// How many objects go at once: what S3 deletes in one request.
pub(super) const SLICE: usize = 1000;
/// No upload of a single object takes longer: what one left that was begun before is not being written any more.
pub(super) const UPLOAD_TAKES: Duration = Duration::from_secs(60 * 60);
/// How many unknown objects and lost versions a report names.
const NAMED: usize = 100;

/// The objects to delete.
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
/// use shardd_store::catalog::GcOptions;
///
/// let report = catalog.gc(&GcOptions::default())?;
/// assert!(report.dry_run);
/// assert_eq!(report.total().objects, 0);
/// assert!(report.reached.bytes >= dataset.bytes);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct GcOptions {
    /// Delete nothing, only say what would be. Default: true.
    pub dry_run: bool,
    /// Spare objects written in this number of seconds before: someone may be about to commit it. Should be
    /// longer than the longest ingest takes, whose commit would else find its first shards gone and be
    /// refused. Default: an hour.
    pub older_than_s: u64,
}

impl Default for GcOptions {
    fn default() -> Self {
        Self { dry_run: true, older_than_s: 3600 }
    }
}

/// The deleted objects, or those to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GcReport {
    /// Whether nothing was deleted.
    pub dry_run: bool,
    /// Plans that are not on the list any more, and strata of such plans.
    pub plans: Tally,
    /// Commits of datasets that were removed, and those that were pruned.
    pub commits: Tally,
    /// Manifests, each a version.
    pub manifests: Tally,
    /// The trees of long manifests.
    pub trees: Tally,
    /// Records of what versions were made of.
    pub provenances: Tally,
    /// Shards.
    pub shards: Tally,
    /// Sidecars of shards.
    pub sidecars: Tally,
    /// The remains of killed uploads to a directory.
    #[serde(default)]
    pub leftovers: Tally,
    /// The versions whose manifests these are, the first hundred.
    pub versions: Vec<LostVersion>,
    /// Reachable objects, which stay.
    pub reached: Tally,
    /// Unreachable objects that are too young to go.
    pub young: Tally,
    /// Objects of other programs, which stay.
    pub unknown: Tally,
    /// The keys of some of these, the first hundred, in order.
    pub unknown_keys: Vec<String>,
}

impl GcReport {
    /// All that went, or would go.
    pub fn total(&self) -> Tally {
        let beside = [self.trees, self.provenances, self.sidecars];
        let objects = [self.plans, self.commits, self.manifests, self.shards].into_iter().chain(beside);
        let all = objects.into_iter().chain([self.leftovers]);
        all.fold(Tally::default(), |sum, tally| Tally {
            objects: sum.objects + tally.objects,
            bytes: sum.bytes.saturating_add(tally.bytes),
        })
    }
}

/// Some objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tally {
    /// How many.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    pub(super) fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// A version that nothing reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LostVersion {
    /// The version.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub version: VersionId,
    /// The dataset it was first committed to, if it ever was.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<shardd_api::schema::DatasetName>))]
    pub dataset: Option<DatasetName>,
}

impl CatalogBackend {
    /// See [`Catalog::gc`](super::Catalog::gc). When dropped halfway, some garbage is gone and some is not.
    ///
    /// # Errors
    ///
    /// As [`Catalog::gc`](super::Catalog::gc).
    pub async fn gc(&self, options: &GcOptions) -> Result<GcReport, CatalogError> {
        self.gc_sparing(options, Duration::ZERO).await
    }

    /// The same, but whatever the options say, objects written in the last `uploads` and never committed
    /// stay: someone may be about to.
    ///
    /// # Errors
    ///
    /// As [`gc`](Self::gc).
    pub async fn gc_sparing(&self, options: &GcOptions, uploads: Duration) -> Result<GcReport, CatalogError> {
        self.check_alone(options.dry_run).await?;
        let mut reached = Reached::new(self);
        reached.follow_all().await?;
        let now = if options.dry_run { StoreTime::here() } else { self.origin().now().await? };
        let age = Duration::from_secs(options.older_than_s);
        let mut ages = Ages { age, uploads, now, once: OnceCommitted::default() };
        let mut report = GcReport { dry_run: options.dry_run, ..GcReport::default() };
        let garbage = self.unreached(&mut reached, &mut ages, &mut report).await?;
        for kind in Kind::IN_ORDER {
            let of_kind: Vec<&StoredObject> =
                garbage.iter().filter(|object| kind.is_that_of(object)).collect();
            for slice in of_kind.chunks(SLICE) {
                let gone = if options.dry_run {
                    slice.iter().map(|object| object.key.clone()).collect()
                } else {
                    self.sweep(slice, &mut reached, &ages).await?
                };
                let gone = slice.iter().filter(|object| gone.contains(&object.key));
                gone.for_each(|object| kind.tally_in(&mut report).add(object.bytes));
            }
        }
        let leftovers = self
            .origin()
            .unfinished("", age.max(UPLOAD_TAKES), now, !options.dry_run, ObjectKind::is_known)
            .await?;
        leftovers.iter().for_each(|file| report.leftovers.add(file.bytes));
        Ok(report)
    }

    /// Only who knows all names may delete.
    pub(super) async fn check_alone(&self, dry_run: bool) -> Result<(), CatalogError> {
        let me = match dry_run {
            true => self.record::<String>(CATALOG_ID).await?.map(|(name, _)| name),
            false => Some(self.mark_store().await?.to_owned()),
        };
        let catalogs = self.origin().catalogs().await?;
        match catalogs.into_iter().find(|catalog| Some(catalog) != me.as_ref()) {
            None => Ok(()),
            Some(other) => Err(CatalogError::SharedStore { store: self.origin().name().to_owned(), other }),
        }
    }

    /// The objects that may go.
    async fn unreached(
        &self,
        reached: &mut Reached<'_>,
        ages: &mut Ages,
        report: &mut GcReport,
    ) -> Result<Vec<StoredObject>, CatalogError> {
        let mut objects = self.origin().objects();
        let mut candidates = Vec::new();
        while let Some(object) = objects.try_next().await? {
            match object.kind {
                ObjectKind::Unknown => {
                    report.unknown.add(object.bytes);
                    report.unknown_keys.push(object.key);
                    if report.unknown_keys.len() > 2 * NAMED {
                        report.unknown_keys.sort();
                        report.unknown_keys.truncate(NAMED);
                    }
                }
                ObjectKind::Catalog | ObjectKind::Clock | ObjectKind::Pointers | ObjectKind::Forgotten(_) => {
                }
                _ if reached.has(object.kind) => report.reached.add(object.bytes),
                _ => candidates.push(object),
            }
        }
        report.unknown_keys.sort();
        report.unknown_keys.truncate(NAMED);
        if !ages.uploads.is_zero() {
            for object in &candidates {
                ages.once.note(self, object).await?;
            }
        }
        let (old, young): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|object| object.written.is_older(ages.of(object), ages.now));
        for object in &young {
            report.young.add(object.bytes);
            if let ObjectKind::Manifest(version) = object.kind {
                reached.spare_version(version).await?;
            }
        }
        let (spared, mut garbage): (Vec<_>, Vec<_>) =
            old.into_iter().partition(|object| reached.has(object.kind));
        spared.iter().for_each(|object| report.young.add(object.bytes));
        garbage.sort_by(|a, b| a.key.cmp(&b.key));
        for object in &garbage {
            if let ObjectKind::Manifest(version) = object.kind
                && report.versions.len() < NAMED
            {
                let record = self.record::<VersionRecord>(&format!("{VERSIONS}{version}")).await?;
                let dataset = record.map(|(record, _)| record.dataset);
                report.versions.push(LostVersion { version, dataset });
            }
        }
        Ok(garbage)
    }

    /// Deletes those of some objects that nothing reaches now, and returns their keys.
    async fn sweep(
        &self,
        slice: &[&StoredObject],
        reached: &mut Reached<'_>,
        ages: &Ages,
    ) -> Result<HashSet<String>, CatalogError> {
        let sweep = Sweep::announce(self.metastore(), StoreOf::at(self.origin())).await?;
        let going = async {
            reached.follow_all().await?;
            let unreached = slice.iter().filter(|object| !reached.has(object.kind));
            let mut of_age: BTreeMap<Duration, Vec<String>> = BTreeMap::new();
            for object in unreached {
                of_age.entry(ages.of(object)).or_default().push(object.key.clone());
            }
            let mut keys = HashSet::new();
            for (age, of_age) in of_age {
                keys.extend(self.origin().still_older(of_age, age, ages.now).await?);
            }
            for object in slice {
                if let ObjectKind::Manifest(version) = object.kind {
                    if keys.contains(&object.key) {
                        self.metastore().delete(&format!("{VERSIONS}{version}"), Expected::Any).await?;
                    } else {
                        // It was put again meanwhile: then its shards are wanted, too.
                        reached.spare_version(version).await?;
                    }
                }
            }
            sweep.renew().await?;
            Ok::<_, CatalogError>(keys)
        };
        let going = match going.await {
            Ok(going) => going,
            Err(error) => {
                sweep.end().await?;
                return Err(error);
            }
        };
        let keys = slice.iter().map(|object| object.key.clone()).filter(|key| going.contains(key)).collect();
        self.delete_swept(sweep, keys).await?;
        Ok(going)
    }

    /// Deletes objects that nothing reaches, and takes the announcement of it back.
    pub(super) async fn delete_swept(&self, sweep: Sweep, keys: Vec<String>) -> Result<(), CatalogError> {
        // Without an answer from the store deletions may still be under way: the sweep is left to lapse.
        match timeout(SLICE_TAKES, self.origin().delete(keys)).await {
            Ok(deleted) => deleted?,
            Err(_) => return Err(CatalogError::Slow { store: self.origin().name().to_owned() }),
        }
        sweep.end().await?;
        Ok(())
    }
}

/// How old an object has to be to go.
struct Ages {
    /// The requested age.
    age: Duration,
    /// At least so old if it was never committed.
    uploads: Duration,
    now: StoreTime,
    once: OnceCommitted,
}

impl Ages {
    fn of(&self, object: &StoredObject) -> Duration {
        match self.once.has(object) {
            true => self.age,
            false => self.age.max(self.uploads),
        }
    }
}

/// Objects of versions that were committed once, and of plans: no writer is about to commit them for the
/// first time.
#[derive(Default)]
struct OnceCommitted {
    versions: HashSet<VersionId>,
    /// With the time of the last manifest that names them: an object put again after it may be on its way
    /// into another one.
    shards: HashMap<ShardId, StoreTime>,
    strata: HashSet<StrataId>,
}

impl OnceCommitted {
    /// Learns what an unreached manifest or plan names.
    async fn note(&mut self, catalog: &CatalogBackend, object: &StoredObject) -> Result<(), CatalogError> {
        match object.kind {
            ObjectKind::Manifest(version) => {
                let record = catalog.record::<VersionRecord>(&format!("{VERSIONS}{version}")).await?;
                let manifest = match record {
                    Some(_) => catalog.manifest(version).await,
                    None => return Ok(()),
                };
                let manifest = match manifest {
                    Err(CatalogError::NotFound { .. }) => return Ok(()),
                    other => other?,
                };
                self.versions.insert(version);
                for shard in &manifest.shards {
                    let last = self.shards.entry(shard.id).or_insert(object.written);
                    *last = object.written.max(*last);
                }
            }
            ObjectKind::Plan(plan) => {
                let document = if_there(catalog.origin().plan_document(plan).await)?;
                self.strata.extend(document.and_then(|document| Some(document.strata.as_ref()?.id())));
            }
            _ => {}
        }
        Ok(())
    }

    fn has(&self, object: &StoredObject) -> bool {
        match object.kind {
            ObjectKind::Shard(id) | ObjectKind::Sidecar(id) => {
                self.shards.get(&id).is_some_and(|last| object.written <= *last)
            }
            ObjectKind::Manifest(id) | ObjectKind::Tree(id) | ObjectKind::Provenance(id) => {
                self.versions.contains(&id)
            }
            ObjectKind::Strata(id) => self.strata.contains(&id),
            // A writer of a commit or a plan has announced it.
            _ => true,
        }
    }
}

/// Kinds of objects that go, those that point before those that are pointed at.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Plan,
    Strata,
    Commit,
    Manifest,
    Tree,
    Provenance,
    Sidecar,
    Shard,
}

impl Kind {
    pub(super) const IN_ORDER: [Self; 8] = [
        Self::Plan,
        Self::Strata,
        Self::Commit,
        Self::Manifest,
        Self::Tree,
        Self::Provenance,
        Self::Sidecar,
        Self::Shard,
    ];

    pub(super) fn is_that_of(self, object: &StoredObject) -> bool {
        matches!(
            (self, object.kind),
            (Self::Plan, ObjectKind::Plan(_))
                | (Self::Strata, ObjectKind::Strata(_))
                | (Self::Commit, ObjectKind::Commit(_))
                | (Self::Manifest, ObjectKind::Manifest(_))
                | (Self::Tree, ObjectKind::Tree(_))
                | (Self::Provenance, ObjectKind::Provenance(_))
                | (Self::Sidecar, ObjectKind::Sidecar(_))
                | (Self::Shard, ObjectKind::Shard(_))
        )
    }

    fn tally_in(self, report: &mut GcReport) -> &mut Tally {
        match self {
            Self::Plan | Self::Strata => &mut report.plans,
            Self::Commit => &mut report.commits,
            Self::Manifest => &mut report.manifests,
            Self::Tree => &mut report.trees,
            Self::Provenance => &mut report.provenances,
            Self::Sidecar => &mut report.sidecars,
            Self::Shard => &mut report.shards,
        }
    }
}

/// The objects found reachable up to now. Only grows: a name that is removed meanwhile frees nothing in this
/// gc.
pub(super) struct Reached<'a> {
    catalog: &'a CatalogBackend,
    /// Keys that have been followed, at which revision.
    followed: HashMap<String, u64>,
    commits: HashSet<CommitId>,
    versions: HashSet<VersionId>,
    shards: HashSet<ShardId>,
    plans: HashSet<PlanId>,
    strata: HashSet<StrataId>,
}

impl<'a> Reached<'a> {
    pub(super) fn new(catalog: &'a CatalogBackend) -> Self {
        Self {
            catalog,
            followed: HashMap::new(),
            commits: HashSet::new(),
            versions: HashSet::new(),
            shards: HashSet::new(),
            plans: HashSet::new(),
            strata: HashSet::new(),
        }
    }

    pub(super) fn has(&self, kind: ObjectKind) -> bool {
        match kind {
            ObjectKind::Shard(id) | ObjectKind::Sidecar(id) => self.shards.contains(&id),
            ObjectKind::Manifest(id) | ObjectKind::Tree(id) | ObjectKind::Provenance(id) => {
                self.versions.contains(&id)
            }
            ObjectKind::Plan(id) => self.plans.contains(&id),
            ObjectKind::Strata(id) => self.strata.contains(&id),
            ObjectKind::Commit(id) => self.commits.contains(&id),
            ObjectKind::Catalog
            | ObjectKind::Clock
            | ObjectKind::Forgotten(_)
            | ObjectKind::Pointers
            | ObjectKind::Unknown => true,
        }
    }

    /// Follows every name that is new since the last time.
    pub(super) async fn follow_all(&mut self) -> Result<(), CatalogError> {
        // Intents first: one that has ended by now has become a name, which is then seen below.
        for prefix in [INTENTS, REFS, TAGS, PLANS, RUNS] {
            let listing = self.catalog.metastore().list(prefix).await?;
            for (key, entry) in listing.entries {
                if self.followed.get(&key) != Some(&entry.revision) {
                    let followed = self.follow(prefix, &key, &entry.value).await;
                    followed.map_err(|source| unreadable(prefix, &key, source))?;
                    self.followed.insert(key, entry.revision);
                }
            }
        }
        Ok(())
    }

    async fn follow(&mut self, prefix: &str, key: &str, value: &[u8]) -> Result<(), CatalogError> {
        match prefix {
            REFS => {
                let (name, record) = (named(key, REFS)?, from_json::<RefRecord>(key, value)?);
                let mut history = History::of(self.catalog.origin(), &name, &record);
                while let Some(entry) = history.next().await? {
                    self.commits.insert(entry.id);
                    self.add_version(entry.commit.version).await?;
                }
                Ok(())
            }
            TAGS => {
                let (dataset, tag) = tag_named(key)?;
                let record: TagRecord = from_json(key, value)?;
                self.catalog.resolve_tag(&dataset, &tag).await?;
                self.commits.insert(record.commit);
                self.add_version(record.version).await
            }
            PLANS => {
                self.add_plan(named(key, PLANS)?).await?;
                self.add_version(from_json::<PlanRecord>(key, value)?.version).await
            }
            RUNS => {
                let run: RunRecord = from_json(key, value)?;
                self.add_plan(run.plan).await?;
                self.add_version(run.version).await
            }
            _ => self.add_intent(&from_json(key, value)?).await,
        }
    }

    /// Adds a plan and, if it is there, its strata; says of which version it is.
    async fn add_plan(&mut self, plan: PlanId) -> Result<Option<VersionId>, CatalogError> {
        self.plans.insert(plan);
        let document = if_there(self.catalog.origin().plan_document(plan).await)?;
        self.strata.extend(
            document.as_ref().and_then(|document| document.strata.as_ref()).map(|strata| strata.id()),
        );
        Ok(document.map(|document| document.version))
    }

    async fn add_version(&mut self, version: VersionId) -> Result<(), CatalogError> {
        if !self.versions.contains(&version) {
            let manifest = self.catalog.manifest(version).await?;
            self.shards.extend(manifest.shards.iter().map(|shard| shard.id));
            self.versions.insert(version);
        }
        Ok(())
    }

    /// An intent reaches the existing objects: its owner will miss the others, too.
    async fn add_intent(&mut self, reach: &Reach) -> Result<(), CatalogError> {
        let origin = self.catalog.origin();
        let Reach { commit, version, plan } = reach;
        let mut versions = Vec::from_iter(*version);
        if let Some(commit) = commit {
            self.commits.insert(*commit);
            versions.extend(if_there(origin.commit(*commit).await)?.map(|commit| commit.version));
        }
        if let Some(plan) = plan {
            versions.extend(self.add_plan(*plan).await?);
        }
        for version in versions {
            self.spare_version(version).await?;
        }
        Ok(())
    }

    /// Adds a version if it is there.
    async fn spare_version(&mut self, version: VersionId) -> Result<(), CatalogError> {
        match self.add_version(version).await {
            Err(CatalogError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }
}

pub(super) fn if_there<T>(found: Result<T, OriginError>) -> Result<Option<T>, OriginError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(OriginError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn unreadable(prefix: &str, key: &str, source: CatalogError) -> CatalogError {
    let name = &key[prefix.len()..];
    let root = match prefix {
        REFS => format!("dataset {name}"),
        TAGS => format!("tag {}", name.replacen('/', "@", 1)),
        PLANS => format!("plan {name}"),
        RUNS => format!("run {name}"),
        _ => format!("intent {name}"),
    };
    CatalogError::Unreadable { root, source: Box::new(source) }
}

#[cfg(test)]
mod tests;
