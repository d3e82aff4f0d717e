//! The durable truth: shards, sidecars, manifests and plans as objects in a store. Losing it loses data.
//!
//! Every object is content-addressed and verified whenever it is read, so what comes out of here is what was put in or
//! an error that names the object and the store. Reads of shard data are counted apart from metadata: over a run they
//! should come to about one times the dataset. Does not know who wants the bytes or what names point at them.

mod manifests;
mod objects;

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use shardfmt::plan::PlanDocument;
use shardfmt::{FinishedShard, PlanId, Shard, ShardEntry, ShardId, Sidecar, VersionId, merkle};
use tokio::task::spawn_blocking;
use tracing::warn;

pub use objects::{ObjectKind, StoreTime, StoredObject};

/// How old an object may become before a repeated put makes it young again: half of what garbage is given before it is
/// deleted. Whoever puts something that is there already will soon need it.
const YOUNG: Duration = Duration::from_secs(30 * 60);

/// A store of content-addressed objects. Its futures run on a tokio runtime and may be dropped at any time.
#[derive(Debug)]
pub struct Origin {
    store: Arc<dyn ObjectStore>,
    name: String,
    root: Option<PathBuf>,
    data: Traffic,
    metadata: Arc<Traffic>,
}

#[derive(Debug, Default)]
struct Traffic {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Traffic {
    fn count(&self, requests: u64, bytes: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Why the store did not give or take an object.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum OriginError {
    /// The address names no store that this program can open.
    #[error("{url:?} is no store: give a directory, a file:// URL, or memory:// for tests")]
    BadUrl { url: String },
    /// The store has no such object.
    #[error("{what} is not in {store}")]
    NotFound { what: String, store: String },
    /// The stored bytes are not those that were put. Another copy is needed.
    #[error("{what} in {store} is corrupt: {reason}; restore the object or re-ingest")]
    Corrupt { what: String, store: String, reason: String },
    /// The bytes offered are not what their name says. Send the right ones.
    #[error("bytes offered as {what} are not it: {reason}")]
    Mismatch { what: String, reason: String },
    /// The store cannot be reached or refuses.
    #[error("cannot {action} {what} in {store}")]
    Unavailable { action: &'static str, what: String, store: String, source: Box<object_store::Error> },
    /// The directory cannot be used as a store.
    #[error("cannot open {store} as a store")]
    Unusable { store: String, source: Box<dyn std::error::Error + Send + Sync> },
}

/// An object by its place and by what people call it.
struct Object {
    path: Path,
    what: String,
}

impl Object {
    fn new(key: String, what: impl fmt::Display) -> Self {
        Self { path: Path::from(key), what: what.to_string() }
    }

    fn shard(id: ShardId) -> Self {
        Self::new(id.object_key(), format_args!("shard {id}"))
    }

    fn sidecar(id: ShardId) -> Self {
        Self::new(id.sidecar_key(), format_args!("sidecar of shard {id}"))
    }

    fn manifest(id: VersionId) -> Self {
        Self::new(id.object_key(), format_args!("manifest {id}"))
    }

    fn tree(id: VersionId) -> Self {
        Self::new(id.tree_key(), format_args!("tree of manifest {id}"))
    }

    fn plan(id: PlanId) -> Self {
        Self::new(id.object_key(), format_args!("plan {id}"))
    }
}

/// An object as it lies in the store.
struct Present {
    bytes: Bytes,
    written: SystemTime,
}

impl Origin {
    /// Opens the store at a path, a `file://` URL, or `memory://` (empty, gone with this value). A directory is created
    /// when missing; what is put into it is fsynced.
    ///
    /// # Errors
    ///
    /// [`OriginError::BadUrl`] for other schemes, [`OriginError::Unusable`] when the directory cannot be made.
    pub fn open(url: &str) -> Result<Self, OriginError> {
        let path = match url.split_once("://") {
            Some(("memory", "")) => return Ok(Self::over(Arc::new(InMemory::new()), url, None)),
            Some(("file", path)) if path.starts_with('/') => path,
            None if !url.is_empty() => url,
            _ => return Err(OriginError::BadUrl { url: url.to_owned() }),
        };
        Self::open_dir(FilePath::new(path))
    }

    /// Opens the store in a directory, which is created when missing.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unusable`] when the directory cannot be made.
    pub fn open_dir(dir: &FilePath) -> Result<Self, OriginError> {
        let name = dir.display().to_string();
        let unusable = |source| OriginError::Unusable { store: name.clone(), source };
        std::fs::create_dir_all(dir).map_err(|error| unusable(error.into()))?;
        let root = dir.canonicalize().map_err(|error| unusable(error.into()))?;
        let store = LocalFileSystem::new_with_prefix(&root).map_err(|error| unusable(error.into()))?;
        Ok(Self::over(Arc::new(store.with_fsync(true)), &name, Some(root)))
    }

    pub(crate) fn over(store: Arc<dyn ObjectStore>, name: &str, root: Option<PathBuf>) -> Self {
        Self { store, name: name.to_owned(), root, data: Traffic::default(), metadata: Arc::default() }
    }

    /// The address it was opened with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of shards read from the store so far.
    pub fn bytes_read(&self) -> u64 {
        self.data.bytes.load(Ordering::Relaxed)
    }

    /// Reads of shards, or of ranges of them, so far.
    pub fn requests(&self) -> u64 {
        self.data.requests.load(Ordering::Relaxed)
    }

    /// Bytes of sidecars, manifests and plans read so far.
    pub fn metadata_bytes_read(&self) -> u64 {
        self.metadata.bytes.load(Ordering::Relaxed)
    }

    /// Reads of sidecars, manifests and plans so far.
    pub fn metadata_requests(&self) -> u64 {
        self.metadata.requests.load(Ordering::Relaxed)
    }

    /// Where the shard's file is, or would be, when the store is a directory: to be mapped instead of read.
    pub fn local_path(&self, id: &ShardId) -> Option<PathBuf> {
        Some(self.root.as_ref()?.join(id.object_key()))
    }

    /// Stores a shard and then its sidecar. A damaged copy of either is replaced. That the shard is what its name says is
    /// not verified again: it was hashed as it was made.
    pub async fn put_shard(&self, shard: &FinishedShard) -> Result<(), OriginError> {
        self.put(&Object::shard(shard.id), shard.bytes.clone()).await?;
        self.put_sidecar(shard.id, shard.sidecar.encode().into()).await
    }

    /// Stores the file of a shard.
    ///
    /// # Errors
    ///
    /// [`OriginError::Mismatch`] when the bytes do not hash to `id`.
    pub async fn put_shard_bytes(&self, id: ShardId, bytes: Bytes) -> Result<(), OriginError> {
        let object = Object::shard(id);
        let hashed = bytes.clone();
        let found = blocking(move || ShardId::of(&hashed)).await;
        check_name(&object, found == id, || found.to_string())?;
        self.put(&object, bytes).await
    }

    /// Stores the sidecar of a shard. One that is there and intact stays.
    ///
    /// # Errors
    ///
    /// [`OriginError::Mismatch`] when it is of another shard, or lists other rows than the intact one that is there and than
    /// the shard has.
    pub async fn put_sidecar(&self, id: ShardId, bytes: Bytes) -> Result<(), OriginError> {
        let object = Object::sidecar(id);
        let mismatch = |reason: String| OriginError::Mismatch { what: object.what.clone(), reason };
        let sidecar = Sidecar::decode(&bytes).map_err(|error| mismatch(error.to_string()))?;
        if sidecar.shard != id {
            return Err(mismatch(format!("it is of shard {}", sidecar.shard)));
        }
        let present = self.read_present(&object).await?;
        let decoded = present.as_ref().and_then(|present| Sidecar::decode(&present.bytes).ok());
        match decoded.filter(|decoded| decoded.shard == id).zip(present) {
            Some((decoded, present)) if decoded.root() == sidecar.root() => {
                self.make_young(&object, present).await
            }
            Some(_) if !self.has_rows(id, &sidecar).await? => {
                Err(mismatch("the one in the store lists other rows, and so does the shard".to_owned()))
            }
            _ => self.put(&object, bytes).await,
        }
    }

    /// Whether an intact shard has the rows that a sidecar lists: it decides between two of them.
    async fn has_rows(&self, id: ShardId, sidecar: &Sidecar) -> Result<bool, OriginError> {
        let bytes = self.shard_file(id).await?;
        let root = sidecar.root();
        Ok(blocking(move || {
            let shard = Shard::from_bytes(bytes).ok().filter(|shard| shard.id() == id);
            shard.and_then(|shard| shard.row_digests().ok()).is_some_and(|rows| merkle::root(&rows) == root)
        })
        .await)
    }

    /// Stores a plan.
    pub async fn put_plan(&self, plan: &PlanDocument) -> Result<PlanId, OriginError> {
        let bytes = Bytes::from(plan.to_bytes());
        let id = PlanId::of(&bytes);
        self.put(&Object::plan(id), bytes).await?;
        Ok(id)
    }

    /// The whole shard, verified against its name.
    pub async fn shard(&self, entry: &ShardEntry) -> Result<Bytes, OriginError> {
        self.shard_bytes(entry.id).await
    }

    /// The whole shard of that name, verified against it.
    pub async fn shard_bytes(&self, id: ShardId) -> Result<Bytes, OriginError> {
        let object = Object::shard(id);
        let bytes = self.read(&object, &self.data).await?;
        let hashed = bytes.clone();
        let found = blocking(move || ShardId::of(&hashed)).await;
        self.check_digest(&object, found == id, || found.to_string())?;
        Ok(bytes)
    }

    /// The stored bytes of a shard, as they are: whoever checks or mends the store verifies them. Not counted.
    pub async fn shard_file(&self, id: ShardId) -> Result<Bytes, OriginError> {
        self.read(&Object::shard(id), &Traffic::default()).await
    }

    /// The row digests of a shard and the map of its file, verified against the root in the manifest.
    pub async fn sidecar(&self, entry: &ShardEntry) -> Result<Sidecar, OriginError> {
        let object = Object::sidecar(entry.id);
        let bytes = self.read(&object, &self.metadata).await?;
        let (id, root, rows) = (entry.id, entry.root, entry.rows);
        let checked = blocking(move || {
            let sidecar = Sidecar::decode(&bytes).map_err(|error| error.to_string())?;
            if sidecar.shard != id {
                return Err(format!("it is of shard {}", sidecar.shard));
            }
            if sidecar.rows.len() as u64 != u64::from(rows) || sidecar.root() != root {
                return Err("its rows do not lead to the root in the manifest".to_owned());
            }
            Ok(sidecar)
        });
        checked.await.map_err(|reason| self.corrupt(&object, reason))
    }

    /// The stored bytes of a shard's sidecar, as they are: whoever has the manifest verifies them.
    pub async fn sidecar_bytes(&self, id: ShardId) -> Result<Bytes, OriginError> {
        self.read(&Object::sidecar(id), &self.metadata).await
    }

    /// Parts of a shard's file, as they are: the caller verifies the rows by their digests.
    ///
    /// # Errors
    ///
    /// [`OriginError::Corrupt`] when the file ends before a range does.
    pub async fn read_ranges(&self, id: &ShardId, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, OriginError> {
        let object = Object::shard(*id);
        let mut parts = vec![Bytes::new(); ranges.len()];
        let (places, wanted): (Vec<usize>, Vec<Range<u64>>) =
            ranges.iter().cloned().enumerate().filter(|(_, range)| !range.is_empty()).unzip();
        if wanted.is_empty() {
            return Ok(parts);
        }
        let read = match self.store.get_ranges(&object.path, &wanted).await {
            Ok(read) => read,
            Err(error @ object_store::Error::NotFound { .. }) => {
                return Err(self.failed("read", &object, error));
            }
            Err(error) => {
                // A file cut short is damage, not a store out of reach.
                let end = wanted.iter().map(|range| range.end).max().unwrap_or(0);
                let size = self.store.head(&object.path).await.map(|meta| meta.size).unwrap_or(u64::MAX);
                return Err(if size < end {
                    self.corrupt(&object, format!("it ends after {size} bytes, before {end}"))
                } else {
                    self.failed("read", &object, error)
                });
            }
        };
        self.data.count(wanted.len() as u64, read.iter().map(|part| part.len() as u64).sum());
        for ((place, part), range) in places.into_iter().zip(read).zip(&wanted) {
            if part.len() as u64 != range.end - range.start {
                return Err(self.corrupt(&object, format!("it ends before {}", range.end)));
            }
            parts[place] = part;
        }
        Ok(parts)
    }

    /// Whether the store has both the shard and its sidecar, intact or not.
    pub async fn has_shard(&self, id: &ShardId) -> Result<bool, OriginError> {
        Ok(self.size_of(&Object::shard(*id)).await?.is_some()
            && self.size_of(&Object::sidecar(*id)).await?.is_some())
    }

    /// The size of a shard's file, if it is there.
    pub async fn shard_size(&self, id: &ShardId) -> Result<Option<u64>, OriginError> {
        self.size_of(&Object::shard(*id)).await
    }

    /// A plan, verified against its name.
    pub async fn plan(&self, id: PlanId) -> Result<PlanDocument, OriginError> {
        let object = Object::plan(id);
        let bytes = self.read(&object, &self.metadata).await?;
        let found = PlanId::of(&bytes);
        self.check_digest(&object, found == id, || found.to_string())?;
        PlanDocument::from_bytes(&bytes).map_err(|error| self.corrupt(&object, error.to_string()))
    }

    /// Makes `bytes` the object's content, durably. The same bytes twice are written once, but for being made young again;
    /// bytes that differ are a damaged copy, and replaced.
    async fn put(&self, object: &Object, bytes: Bytes) -> Result<(), OriginError> {
        let mode = match self.read_present(object).await? {
            Some(present) if present.bytes == bytes => return self.make_young(object, present).await,
            Some(_) => {
                warn!(object = %object.what, store = %self.name, "replacing a damaged object");
                PutMode::Overwrite
            }
            None => PutMode::Create,
        };
        match self.store.put_opts(&object.path, bytes.into(), PutOptions::from(mode)).await {
            // Someone else has just put the same bytes under this name: there are no others.
            Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(self.failed("write", object, error)),
        }
    }

    async fn read(&self, object: &Object, traffic: &Traffic) -> Result<Bytes, OriginError> {
        let read = async { self.store.get(&object.path).await?.bytes().await };
        let bytes = read.await.map_err(|error| self.failed("read", object, error))?;
        traffic.count(1, bytes.len() as u64);
        Ok(bytes)
    }

    /// What lies at the object's place, not counted: no one asked for the data.
    async fn read_present(&self, object: &Object) -> Result<Option<Present>, OriginError> {
        let read = async {
            let found = self.store.get(&object.path).await?;
            let written = SystemTime::from(found.meta.last_modified);
            Ok(Present { bytes: found.bytes().await?, written })
        };
        match read.await {
            Ok(present) => Ok(Some(present)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("read", object, error)),
        }
    }

    /// Dates an object anew that was written long ago: gc spares what is young. If it has just been deleted, it is put
    /// again.
    async fn make_young(&self, object: &Object, present: Present) -> Result<(), OriginError> {
        let now = SystemTime::now();
        if now.duration_since(present.written).map_or(true, |age| age < YOUNG) {
            return Ok(());
        }
        if let Some(root) = &self.root {
            let path = root.join(object.path.as_ref());
            let dated = blocking(move || File::options().write(true).open(path)?.set_modified(now)).await;
            if dated.is_ok() {
                return Ok(());
            }
        }
        let put =
            self.store.put_opts(&object.path, present.bytes.into(), PutOptions::from(PutMode::Overwrite));
        put.await.map(|_| ()).map_err(|error| self.failed("write", object, error))
    }

    async fn size_of(&self, object: &Object) -> Result<Option<u64>, OriginError> {
        match self.store.head(&object.path).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("look for", object, error)),
        }
    }

    fn check_digest(
        &self,
        object: &Object,
        right: bool,
        found: impl FnOnce() -> String,
    ) -> Result<(), OriginError> {
        if right { Ok(()) } else { Err(self.corrupt(object, format!("its bytes have digest {}", found()))) }
    }

    fn corrupt(&self, object: &Object, reason: String) -> OriginError {
        OriginError::Corrupt { what: object.what.clone(), store: self.name.clone(), reason }
    }

    fn failed(&self, action: &'static str, object: &Object, source: object_store::Error) -> OriginError {
        let (what, store) = (object.what.clone(), self.name.clone());
        match source {
            object_store::Error::NotFound { .. } => OriginError::NotFound { what, store },
            source => OriginError::Unavailable { action, what, store, source: Box::new(source) },
        }
    }
}

fn check_name(object: &Object, right: bool, found: impl FnOnce() -> String) -> Result<(), OriginError> {
    if right {
        return Ok(());
    }
    Err(OriginError::Mismatch { what: object.what.clone(), reason: format!("they have digest {}", found()) })
}

/// Hashes and decodes off the threads that wait for sockets.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.expect("the work does not panic, and the runtime lives while it is awaited")
}

#[cfg(test)]
mod tests;
