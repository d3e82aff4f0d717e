//! The objects of a store as a whole: what lies there, how long it has, and how it goes away. Commits and the
//! marks of catalogs, too, which only catalogs read. Does not know which objects are still needed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions};
use shardfmt::{Commit, CommitId, Digest, PlanId, ShardId, StrataId, VersionId};

use super::swap::META;
use super::{Object, Origin, OriginError, check_digest};

/// Where the marks of forgotten shards lie, each under the digest of its shard.
pub(super) const FORGOTTEN: &str = "forgotten/";

/// What [`Origin::now`] puts to learn what time it is for the store.
const CLOCK: &str = "gc/clock";
const CATALOGS: &str = "catalogs/";
const COMMITS: &str = "commits/";

/// How many objects are looked at, at once.
const LOOKED_AT_ONCE: usize = 32;

/// When something was written, or what time it is, by the clock of the store: in whole seconds, as some services say no more
/// than that, or only when an object is asked for and not when it is listed.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_store::origin::{Origin, StoreTime};
/// use std::time::Duration;
///
/// let origin = Origin::open("memory://")?;
/// let now = origin.now().await?;
/// assert!(!now.is_older(Duration::from_secs(3600), StoreTime::here()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreTime {
    seconds: i64,
}

impl StoreTime {
    /// How long before `now` it was; nothing, if it was later.
    pub fn age_at(self, now: StoreTime) -> Duration {
        let seconds = now.seconds.saturating_sub(self.seconds);
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
    }

    /// Whether it was at least `age` before `now`.
    pub fn is_older(self, age: Duration, now: StoreTime) -> bool {
        self <= now && self.age_at(now) >= age
    }

    /// The same in seconds since 1970.
    pub fn since_1970(self) -> u64 {
        u64::try_from(self.seconds).unwrap_or(0)
    }

    /// The time by the clock of this machine.
    pub fn here() -> Self {
        Self::at(SystemTime::now())
    }

    pub(super) fn at(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX) }
    }

    pub(super) fn of(meta: &object_store::ObjectMeta) -> Self {
        Self { seconds: meta.last_modified.timestamp() }
    }
}

/// An object that a store has.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use futures::TryStreamExt;
/// use shardd_store::origin::{ObjectKind, Origin, StoredObject};
///
/// # let (shard, _) = numbers()?;
/// let origin = Origin::open("memory://")?;
/// origin.put_shard(&shard).await?;
/// let objects: Vec<StoredObject> = origin.objects().try_collect().await?;
/// assert!(objects.iter().any(|object| object.kind == ObjectKind::Shard(shard.id)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct StoredObject {
    /// Its key.
    pub key: String,
    /// Its kind, by its key.
    pub kind: ObjectKind,
    /// Its size.
    pub bytes: u64,
    /// When it was last written.
    pub written: StoreTime,
}

/// The kind of an object, by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// The file of a shard.
    Shard(ShardId),
    /// The sidecar of a shard.
    Sidecar(ShardId),
    /// The manifest of a version.
    Manifest(VersionId),
    /// The tree beside a manifest.
    Tree(VersionId),
    /// The provenance beside a manifest.
    Provenance(VersionId),
    /// A plan.
    Plan(PlanId),
    /// The strata of plans.
    Strata(StrataId),
    /// A commit.
    Commit(CommitId),
    /// The mark of a catalog that keeps objects here.
    Catalog,
    /// The mark of a shard that holds rows which were forgotten.
    Forgotten(ShardId),
    /// Names that are kept beside the objects they lead to.
    Pointers,
    /// The object that was put to learn the store's time.
    Clock,
    /// Nothing that this program puts.
    Unknown,
}

impl ObjectKind {
    /// Whether a key is of an object of shardd's.
    pub(crate) fn is_known(key: &str) -> bool {
        ObjectKind::of(key) != ObjectKind::Unknown
    }

    pub(super) fn of(key: &str) -> Self {
        let id = |ending| -> Option<Digest> { key.rsplit('/').next()?.strip_suffix(ending)?.parse().ok() };
        let (arrow, rows, tree, json) = (id(".arrow"), id(".rows"), id(".tree"), id(".json"));
        let strata = id(".strata");
        let kinds = [
            arrow.map(|id| (ShardId(id).object_key(), Self::Shard(ShardId(id)))),
            rows.map(|id| (ShardId(id).sidecar_key(), Self::Sidecar(ShardId(id)))),
            arrow.map(|id| (VersionId(id).object_key(), Self::Manifest(VersionId(id)))),
            tree.map(|id| (VersionId(id).tree_key(), Self::Tree(VersionId(id)))),
            json.map(|id| (VersionId(id).provenance_key(), Self::Provenance(VersionId(id)))),
            json.map(|id| (PlanId(id).object_key(), Self::Plan(PlanId(id)))),
            strata.map(|id| (StrataId(id).object_key(), Self::Strata(StrataId(id)))),
            json.map(|id| (CommitId(id).object_key(), Self::Commit(CommitId(id)))),
        ];
        match kinds.into_iter().flatten().find(|(canonical, _)| canonical == key) {
            Some((_, kind)) => kind,
            None if key == CLOCK => Self::Clock,
            None if key.starts_with(META) => Self::Pointers,
            None if key.starts_with(CATALOGS) => Self::Catalog,
            None if key.starts_with(FORGOTTEN) => match key[FORGOTTEN.len()..].parse() {
                Ok(shard) => Self::Forgotten(shard),
                Err(_) => Self::Unknown,
            },
            None => Self::Unknown,
        }
    }
}

impl Origin {
    /// Stores a commit.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store does not take it, [`OriginError::ReadOnly`] of a web server,
    /// [`OriginError::DiskFull`] of a directory.
    pub async fn put_commit(&self, commit: &Commit) -> Result<CommitId, OriginError> {
        let bytes = Bytes::from(commit.to_bytes());
        let id = CommitId::of(&bytes);
        self.put(&commit_object(id), bytes).await?;
        Ok(id)
    }

    /// A commit, verified against its name.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] when it is not there, [`OriginError::Corrupt`] when its bytes are others,
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn commit(&self, id: CommitId) -> Result<Commit, OriginError> {
        self.read_as(&commit_object(id), &self.metadata, move |bytes| {
            check_digest(id, CommitId::of(bytes))?;
            Commit::from_bytes(bytes).map_err(|error| error.to_string())
        })
        .await
    }

    /// Whether the store has a commit of any dataset.
    ///
    /// # Errors
    ///
    /// When the store cannot be listed, as a web server cannot.
    pub async fn has_commits(&self) -> Result<bool, OriginError> {
        let mut listed = self.store.list(Some(&Path::from(COMMITS)));
        Ok(listed.try_next().await.map_err(|error| self.failed_listing(error))?.is_some())
    }

    /// Whether the store has the manifest, intact or not.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn has_manifest(&self, id: VersionId) -> Result<bool, OriginError> {
        Ok(self.size_of(&Object::manifest(id)).await?.is_some())
    }

    /// Whether the store has the plan, intact or not.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn has_plan(&self, id: PlanId) -> Result<bool, OriginError> {
        Ok(self.size_of(&Object::plan(id)).await?.is_some())
    }

    /// Leaves the mark of a catalog: who collects garbage here must know all names there are.
    pub(crate) async fn put_catalog(&self, catalog: &str) -> Result<(), OriginError> {
        let object = Object::new(format!("{CATALOGS}{catalog}"), format_args!("mark of catalog {catalog}"));
        self.put(&object, Bytes::from(format!("{catalog}\n"))).await
    }

    /// The catalogs that have left their mark, in order.
    pub(crate) async fn catalogs(&self) -> Result<Vec<String>, OriginError> {
        let listed = self.store.list(Some(&Path::from(CATALOGS)));
        let names = listed.map_ok(|meta| meta.location.filename().unwrap_or_default().to_owned());
        let mut names: Vec<String> = names.try_collect().await.map_err(|error| self.failed_listing(error))?;
        names.sort();
        Ok(names)
    }

    /// All objects, in no order.
    ///
    /// # Errors
    ///
    /// The stream ends with an error when the store cannot be listed, as a web server cannot.
    pub fn objects(&self) -> BoxStream<'_, Result<StoredObject, OriginError>> {
        let listed = self.store.list(None).map_err(|error| self.failed_listing(error));
        listed
            .map_ok(|meta| {
                let key = meta.location.to_string();
                StoredObject {
                    kind: ObjectKind::of(&key),
                    key,
                    bytes: meta.size,
                    written: StoreTime::of(&meta),
                }
            })
            .boxed()
    }

    pub(super) fn clock_object(&self) -> Object {
        Object::new(CLOCK.to_owned(), "clock object")
    }

    /// The time of the store, which may have a clock of its own: it is asked to date an object, always the
    /// same.
    ///
    /// # Errors
    ///
    /// [`OriginError::ReadOnly`] of a web server, [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn now(&self) -> Result<StoreTime, OriginError> {
        let object = self.clock_object();
        self.check_writable("write", &object)?;
        let put =
            self.store.put_opts(&object.path, Bytes::new().into(), PutOptions::from(PutMode::Overwrite));
        put.await.map_err(|error| self.failed("write", &object, error))?;
        let meta = self.store.head(&object.path).await;
        Ok(StoreTime::of(&meta.map_err(|error| self.failed("look for", &object, error))?))
    }

    /// Those of the objects that are there and were last written at least `age` before `now`.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn still_older(
        &self,
        keys: Vec<String>,
        age: Duration,
        now: StoreTime,
    ) -> Result<Vec<String>, OriginError> {
        let looked_at = stream::iter(keys).map(|key| async move {
            match self.store.head(&Path::from(key.as_str())).await {
                Ok(meta) => Ok(StoreTime::of(&meta).is_older(age, now).then_some(key)),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(self.failed("look for", &Object::new(key.clone(), &key), error)),
            }
        });
        looked_at.buffered(LOOKED_AT_ONCE).try_filter_map(async |key| Ok(key)).try_collect().await
    }

    /// Deletes objects. Missing ones are passed over. They go in no order, some perhaps even after this was
    /// dropped or has failed.
    ///
    /// # Errors
    ///
    /// [`OriginError::ReadOnly`] of a web server, [`OriginError::Unavailable`] when the store does not delete one.
    pub async fn delete(&self, keys: Vec<String>) -> Result<(), OriginError> {
        self.check_writable("delete", &Object::new(String::new(), "objects"))?;
        let paths = stream::iter(keys).map(|key| Ok(Path::from(key))).boxed();
        let mut deleted = self.store.delete_stream(paths);
        while let Some(outcome) = deleted.next().await {
            match outcome {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => {
                    return Err(self.failed("delete", &Object::new(String::new(), "objects"), error));
                }
            }
        }
        Ok(())
    }

    pub(super) fn failed_listing(&self, error: object_store::Error) -> OriginError {
        self.failed("list", &Object::new(String::new(), "the objects"), error)
    }
}

fn commit_object(id: CommitId) -> Object {
    Object::new(id.object_key(), format_args!("commit {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_keys_are_known() {
        let digest = Digest::of(b"x");
        let shard = ShardId(digest);
        assert_eq!(ObjectKind::of(&shard.object_key()), ObjectKind::Shard(shard));
        assert_eq!(ObjectKind::of(&shard.sidecar_key()), ObjectKind::Sidecar(shard));
        assert_eq!(ObjectKind::of(&VersionId(digest).object_key()), ObjectKind::Manifest(VersionId(digest)));
        assert_eq!(ObjectKind::of(&VersionId(digest).tree_key()), ObjectKind::Tree(VersionId(digest)));
        let strata = StrataId(digest);
        assert_eq!(ObjectKind::of(&strata.object_key()), ObjectKind::Strata(strata));
        assert_eq!(ObjectKind::of(&PlanId(digest).object_key()), ObjectKind::Plan(PlanId(digest)));
        assert_eq!(ObjectKind::of(&CommitId(digest).object_key()), ObjectKind::Commit(CommitId(digest)));
        assert_eq!(ObjectKind::of(&format!("forgotten/{digest}")), ObjectKind::Forgotten(shard));
        let backup = format!("backup/{}", shard.object_key());
        let elsewhere = shard.object_key().replace(&digest.to_string()[..2], "zz");
        let upper = VersionId(digest).object_key().to_uppercase();
        for unknown in
            ["notes.txt", "forgotten/x", "shards/x.arrow", "plans/x.json", "", &backup, &elsewhere, &upper]
        {
            assert_eq!(ObjectKind::of(unknown), ObjectKind::Unknown, "{unknown}");
        }
    }
}
