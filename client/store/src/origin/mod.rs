//! The durable truth: shards, sidecars, manifests and plans as objects in a store. Losing it loses data.
//!
//! Every object is content-addressed and verified on every read, so a read gives the bytes that were put or
//! an error that names the object and the store. Reads of shard data are counted apart from metadata: over a
//! run they should be about one times the dataset. Does not know who wants the bytes or what names point at
//! them.

pub mod conformance;
mod forgotten;
mod keyed;
mod manifests;
mod objects;
mod provenances;
mod ranges;
mod swap;
mod unfinished;

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::StreamExt;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, WriteMultipart};
use shardd_api::problem::Kind;
use shardd_api::status::WireCounts;
use shardd_plan::{PlanDocument, Strata};
use shardfmt::{
    ByteSize, FinishedShard, PlanId, Shard, ShardEntry, ShardId, Sidecar, StrataId, VersionId, merkle,
};
use tokio::task::spawn_blocking;
use tracing::{instrument, warn};

use crate::reserve::Reserve;
use crate::row_digests::RowDigests;
use crate::stores::{self, Late, Opened, Refusal, Service, StoreOptions, Wire};

pub use objects::{ObjectKind, StoreTime, StoredObject};
pub(crate) use swap::{Swap, Swappable, Tag};
pub use unfinished::Unfinished;

/// How old an object may become before a repeated put makes it young again: half of what garbage is given before it is
/// deleted. A writer of an existing object will soon need it.
const MIN_GC_AGE: Duration = Duration::from_secs(30 * 60);

/// The largest object sent to a service as a whole; longer objects go in parts.
const LONGEST_PART: usize = 16 << 20;
/// How long the parts of an object are.
const PART: usize = 8 << 20;

/// A store of content-addressed objects. Its futures run on a tokio runtime and may be dropped at any time.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_store::origin::Origin;
///
/// # let (shard, manifest) = numbers()?;
/// let origin = Origin::open("memory://")?;
/// origin.put_shard(&shard).await?;
/// let version = origin.put_manifest(&manifest).await?;
///
/// assert_eq!(origin.manifest(version).await?, manifest);
/// assert_eq!(origin.shard(&manifest.shards[0]).await?, shard.bytes);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Origin {
    store: Arc<dyn ObjectStore>,
    name: String,
    /// Of a directory.
    root: Option<PathBuf>,
    /// Of a service elsewhere.
    remote: Option<Remote>,
    data: Traffic,
    metadata: Arc<Traffic>,
    /// The bytes that puts into a directory leave free on its disk.
    reserve: Reserve,
    /// Of records that were read here.
    row_digests: RowDigests,
}

/// The known facts about a remote store.
#[derive(Debug)]
struct Remote {
    service: Service,
    asks_metadata_service: bool,
    wire: Arc<Wire>,
    /// Objects that were read a second time because the first time their bytes were wrong.
    reread: Arc<AtomicU64>,
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
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_store::origin::{Origin, OriginError};
/// use shardfmt::VersionId;
///
/// let origin = Origin::open("memory://")?;
/// let missing = origin.manifest(VersionId::of(b"no manifest")).await;
/// assert!(matches!(missing, Err(OriginError::NotFound { .. })));
/// assert!(matches!(Origin::open("ftp://a-server"), Err(OriginError::BadUrl { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum OriginError {
    /// The address names no store that this program can open.
    #[error(
        "{url:?} is not a store: give a directory, or a URL such as file:///DIR, s3://BUCKET/FOLDER, gs://, \
        az://, https://, or memory:// for tests"
    )]
    BadUrl { url: String },
    /// The service there cannot be asked as things are.
    #[error("cannot open {url} as a store")]
    Refused { url: String, source: Refusal },
    /// A web server is only read.
    #[error("cannot {action} {what} in {store}: a web server is only read; give the store that it shows")]
    ReadOnly { action: &'static str, what: String, store: String },
    /// The store has no such object.
    #[error("{what} is not in {store}")]
    NotFound { what: String, store: String },
    /// The stored bytes are not those that were put. Another copy is needed.
    #[error("{what} in {store} is corrupt: {reason}; {way_out}")]
    Corrupt { what: String, store: String, reason: String, way_out: &'static str },
    /// The bytes offered are not what their name says. Send the right ones.
    #[error("bytes offered as {what} do not match its digest: {reason}")]
    Mismatch { what: String, reason: String },
    /// It holds rows that were forgotten. Make it without them.
    #[error(
        "{what} holds rows that were forgotten, and {store} does not take it again: leave these rows out of \
        the input; if the present version of the dataset has them, `shardctl forget` was not finished: run \
        it again"
    )]
    Forgotten { what: String, store: String },
    /// The store cannot be reached or refuses.
    #[error("cannot {action} {what} in {store}")]
    Unavailable {
        action: &'static str,
        what: String,
        store: String,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The disk of the directory is full except for its reserve.
    #[error(
        "{what} of {bytes} has no room in {store}: its disk is full but for its reserve; make room there, or see --disk-reserve"
    )]
    DiskFull { what: String, store: String, bytes: ByteSize },
    /// The directory cannot be used as a store.
    #[error("cannot open {store} as a store")]
    Unusable { store: String, source: Box<dyn std::error::Error + Send + Sync> },
}

impl From<&OriginError> for Kind {
    fn from(error: &OriginError) -> Self {
        match error {
            OriginError::NotFound { .. } => Self::NotFound,
            OriginError::Mismatch { .. } => Self::Mismatch,
            OriginError::Corrupt { .. } => Self::Corrupt,
            OriginError::ReadOnly { .. } | OriginError::Forgotten { .. } => Self::Invalid,
            OriginError::BadUrl { .. }
            | OriginError::Refused { .. }
            | OriginError::Unavailable { .. }
            | OriginError::DiskFull { .. }
            | OriginError::Unusable { .. } => Self::Unavailable,
        }
    }
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

    /// The way out of damage: data can be made again from its sources, and a training's own objects cannot.
    fn way_out(&self) -> &'static str {
        let key = self.path.as_ref();
        if !key.starts_with("runs/") {
            "restore the object or re-ingest"
        } else if key.contains("/checkpoints/") || key.contains("/parts/") {
            "restore the object from a copy, or resume from another checkpoint (--resume)"
        } else {
            "restore the object from a copy"
        }
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

    fn provenance(id: VersionId) -> Self {
        Self::new(id.provenance_key(), format_args!("provenance of version {id}"))
    }

    fn plan(id: PlanId) -> Self {
        Self::new(id.object_key(), format_args!("plan {id}"))
    }

    fn strata(id: StrataId) -> Self {
        Self::new(id.object_key(), format_args!("strata {id}"))
    }
}

/// An object as it lies in the store.
struct Present {
    bytes: Bytes,
    written: SystemTime,
}

impl Origin {
    /// Opens the store at a path or URL, as [`open_with`](Self::open_with) without options.
    ///
    /// # Errors
    ///
    /// As [`open_with`](Self::open_with).
    pub fn open(url: &str) -> Result<Self, OriginError> {
        Self::open_with(url, &StoreOptions::default())
    }

    /// Opens the store at a path, or a URL: `file://`; a folder of a bucket, `s3://BUCKET/FOLDER`, `gs://`, `az://`; of a web
    /// server, `https://HOST/FOLDER`, which is only read; `memory://` (empty, gone with this value). A directory is created
    /// when missing; its new files are fsynced. Of a service elsewhere nothing is asked yet.
    ///
    /// # Errors
    ///
    /// [`OriginError::BadUrl`] for other schemes, [`OriginError::Unusable`] when the directory cannot be made,
    /// [`OriginError::Refused`] when settings of a service make no sense.
    pub fn open_with(url: &str, options: &StoreOptions) -> Result<Self, OriginError> {
        let bad = || OriginError::BadUrl { url: url.to_owned() };
        let path = match url.split_once("://") {
            Some(("memory", "")) => return Ok(Self::over(Arc::new(InMemory::new()), url, None)),
            Some(("file", path)) if path.starts_with('/') => path,
            Some((scheme, rest)) if stores::is_remote(scheme) && is_plain(rest) => {
                let refused = |source| OriginError::Refused { url: url.to_owned(), source };
                let Opened { store, service, asks_metadata_service, wire } =
                    stores::open(url, options, Late::AskedAgain).map_err(refused)?;
                let folder = rest.split_once('/').map_or("", |(_, folder)| folder).trim_end_matches('/');
                let folder = Path::parse(folder).map_err(|_| bad())?;
                let remote = Remote { service, asks_metadata_service, wire, reread: Arc::default() };
                let name = url.trim_end_matches('/');
                let origin = Self::over(Arc::new(PrefixStore::new(store, folder)), name, None);
                return Ok(Self { remote: Some(remote), ..origin });
            }
            None if !url.is_empty() => url,
            _ => return Err(bad()),
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
        let (name, data, metadata) = (name.to_owned(), Traffic::default(), Arc::default());
        let (reserve, row_digests) = (Reserve::default(), RowDigests::default());
        Self { store, name, root, remote: None, data, metadata, reserve, row_digests }
    }

    /// The address it was opened with.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn row_digests(&self) -> &RowDigests {
        &self.row_digests
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

    /// The traffic, if the store is a service elsewhere.
    pub fn wire(&self) -> Option<WireCounts> {
        self.remote.as_ref().map(|remote| remote.wire.counts())
    }

    /// Objects that were read a second time because their bytes were wrong the first time.
    pub fn reread(&self) -> u64 {
        self.remote.as_ref().map_or(0, |remote| remote.reread.load(Ordering::Relaxed))
    }

    /// Whether bytes that are wrong may be right when they are read once more: they came over a network. If so, that is
    /// counted as done.
    pub fn may_reread(&self) -> bool {
        let Some(remote) = &self.remote else { return false };
        remote.reread.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Asks a service elsewhere for something small, to learn early what would fail later.
    ///
    /// # Errors
    ///
    /// [`OriginError::Refused`] when credentials, bucket or region are wrong, [`OriginError::Unavailable`] when it cannot be
    /// asked now, which may pass.
    pub async fn probe(&self) -> Result<(), OriginError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let clock = self.clock_object();
        let asked = match self.is_read_only() {
            true => self.store.head(&clock.path).await.map(drop),
            // Its answers have bodies, which name the error.
            false => self.store.list(Some(&clock.path)).next().await.transpose().map(drop),
        };
        match asked {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => match Refusal::of(remote.service, &error) {
                source @ (Refusal::NoBucket { .. }
                | Refusal::Denied { .. }
                | Refusal::Profile { .. }
                | Refusal::Region { .. }) => Err(OriginError::Refused { url: self.name.clone(), source }),
                _ => Err(self.failed("look for", &clock, error)),
            },
        }
    }

    /// Whether no setting has credentials for the store, so that it is the metadata service of the cloud that
    /// is asked for them: outside of the cloud, nothing answers.
    pub fn asks_metadata_service(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.asks_metadata_service)
    }

    /// The directory, if it is one that this machine has.
    pub fn directory(&self) -> Option<&FilePath> {
        self.root.as_deref()
    }

    /// Whether it is a directory that this machine has.
    pub(crate) fn is_directory(&self) -> bool {
        self.root.is_some()
    }

    /// Whether nothing can be put here.
    pub fn is_read_only(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.service == Service::Web)
    }

    /// Where the shard's file is, or would be, when the store is a directory: to be mapped instead of read.
    pub fn local_path(&self, id: &ShardId) -> Option<PathBuf> {
        Some(self.root.as_ref()?.join(id.object_key()))
    }

    /// Stores a shard and then its sidecar. A damaged copy of either is replaced. That the shard is what its name says is
    /// not verified again: it was hashed as it was made.
    ///
    /// # Errors
    ///
    /// [`OriginError::Forgotten`] when it holds rows that were forgotten.
    pub async fn put_shard(&self, shard: &FinishedShard) -> Result<(), OriginError> {
        self.put_unless_forgotten(shard.id, shard.bytes.clone()).await?;
        self.put_sidecar(shard.id, shard.sidecar.encode().into()).await
    }

    /// Stores the file of a shard.
    ///
    /// # Errors
    ///
    /// [`OriginError::Mismatch`] when the bytes do not hash to `id`, [`OriginError::Forgotten`] when they hold rows that were
    /// forgotten.
    pub async fn put_shard_bytes(&self, id: ShardId, bytes: Bytes) -> Result<(), OriginError> {
        let object = Object::shard(id);
        let hashed = bytes.clone();
        let found = blocking(move || ShardId::of(&hashed)).await;
        check_name(&object, found == id, || found.to_string())?;
        self.put_unless_forgotten(id, bytes).await
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

    /// Stores a plan, its strata first if they are with it.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store does not take it, [`OriginError::ReadOnly`] of a web server,
    /// [`OriginError::DiskFull`] of a directory.
    pub async fn put_plan(&self, plan: &PlanDocument) -> Result<PlanId, OriginError> {
        if let Some(strata) = plan.strata.as_ref().and_then(|strata| strata.get()) {
            let bytes = Bytes::from(strata.encode());
            self.put(&Object::strata(StrataId::of(&bytes)), bytes).await?;
        }
        let bytes = Bytes::from(plan.to_bytes());
        let id = PlanId::of(&bytes);
        self.put(&Object::plan(id), bytes).await?;
        Ok(id)
    }

    /// Stores the encoding of a plan's strata, before the plan.
    ///
    /// # Errors
    ///
    /// [`OriginError::Mismatch`] when the bytes are no strata or do not hash to `id`.
    pub async fn put_strata(&self, id: StrataId, bytes: Bytes) -> Result<(), OriginError> {
        let object = Object::strata(id);
        let offered = bytes.clone();
        let (found, decoded) =
            blocking(move || (StrataId::of(&offered), Strata::decode(&offered).map(drop))).await;
        check_name(&object, found == id, || found.to_string())?;
        decoded.map_err(|error| OriginError::Mismatch {
            what: object.what.clone(),
            reason: error.to_string(),
        })?;
        self.put(&object, bytes).await
    }

    /// The encoding of a plan's strata, verified against its name.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] when it is not there, [`OriginError::Corrupt`] when its bytes are others,
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn strata_bytes(&self, id: StrataId) -> Result<Bytes, OriginError> {
        self.read_as(&Object::strata(id), &self.metadata, move |bytes| {
            check_digest(id, StrataId::of(bytes))?;
            Ok(bytes.clone())
        })
        .await
    }

    /// The whole shard, verified against its name.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] when it is not there, [`OriginError::Corrupt`] when its bytes are others,
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn shard(&self, entry: &ShardEntry) -> Result<Bytes, OriginError> {
        self.shard_bytes(entry.id).await
    }

    /// The whole shard of that name, verified against it.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] when it is not there, [`OriginError::Corrupt`] when its bytes are others,
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn shard_bytes(&self, id: ShardId) -> Result<Bytes, OriginError> {
        self.read_as(&Object::shard(id), &self.data, move |bytes| {
            check_digest(id, ShardId::of(bytes))?;
            Ok(bytes.clone())
        })
        .await
    }

    /// The stored bytes of a shard, as they are: the caller, who checks or mends the store, verifies them.
    /// Not counted.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] when it is not there, [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn shard_file(&self, id: ShardId) -> Result<Bytes, OriginError> {
        self.read(&Object::shard(id), &Traffic::default()).await
    }

    /// The row digests of a shard and the map of its file, verified against the root in the manifest.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] when it is not there, [`OriginError::Corrupt`] when its bytes are others,
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn sidecar(&self, entry: &ShardEntry) -> Result<Sidecar, OriginError> {
        let (id, root, rows) = (entry.id, entry.root, entry.rows);
        self.read_as(&Object::sidecar(id), &self.metadata, move |bytes| {
            let sidecar = Sidecar::decode(bytes).map_err(|error| error.to_string())?;
            if sidecar.shard != id {
                return Err(format!("it is of shard {}", sidecar.shard));
            }
            if sidecar.rows.len() as u64 != u64::from(rows) || sidecar.root() != root {
                return Err("its rows do not lead to the root in the manifest".to_owned());
            }
            Ok(sidecar)
        })
        .await
    }

    /// The stored bytes of a shard's sidecar, as they are: the caller, who has the manifest, verifies them.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] when it is not there, [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn sidecar_bytes(&self, id: ShardId) -> Result<Bytes, OriginError> {
        self.read(&Object::sidecar(id), &self.metadata).await
    }

    /// Parts of a shard's file, as they are: the caller verifies the rows by their digests.
    ///
    /// # Errors
    ///
    /// [`OriginError::Corrupt`] when the file ends before a range does.
    #[instrument(name = "read_store", level = "debug", skip_all, fields(object = %id, ranges = ranges.len()))]
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
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn has_shard(&self, id: &ShardId) -> Result<bool, OriginError> {
        Ok(self.size_of(&Object::shard(*id)).await?.is_some()
            && self.size_of(&Object::sidecar(*id)).await?.is_some())
    }

    /// The size of a shard's file, if it is there.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn shard_size(&self, id: &ShardId) -> Result<Option<u64>, OriginError> {
        self.size_of(&Object::shard(*id)).await
    }

    /// A plan with its strata, verified against their names.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] when it is not there, [`OriginError::Corrupt`] when its bytes are others,
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn plan(&self, id: PlanId) -> Result<PlanDocument, OriginError> {
        let mut document = self.plan_document(id).await?;
        self.supply_strata(&mut document).await?;
        Ok(document)
    }

    /// Brings a document its strata, if it has any and they are not with it.
    pub(crate) async fn supply_strata(&self, document: &mut PlanDocument) -> Result<(), OriginError> {
        let Some(missing) = document.strata.as_ref().filter(|strata| strata.get().is_none()) else {
            return Ok(());
        };
        let (object, bare) = (Object::strata(missing.id()), document.clone());
        let supplied = self.read_as(&object, &self.metadata, move |bytes| {
            let mut document = bare.clone();
            document.supply_strata(bytes).map_err(|error| error.to_string())?;
            Ok(document)
        });
        *document = supplied.await?;
        Ok(())
    }

    /// The document of a plan without its strata, verified against its name.
    pub(crate) async fn plan_document(&self, id: PlanId) -> Result<PlanDocument, OriginError> {
        self.read_as(&Object::plan(id), &self.metadata, move |bytes| {
            check_digest(id, PlanId::of(bytes))?;
            PlanDocument::from_bytes(bytes).map_err(|error| error.to_string())
        })
        .await
    }

    /// Makes `bytes` the object's content, durably. The same bytes twice are written once, but for being made young again;
    /// bytes that differ are a damaged copy, and replaced.
    async fn put(&self, object: &Object, bytes: Bytes) -> Result<(), OriginError> {
        if self.remote.is_some() {
            return self.upload(object, bytes).await;
        }
        let mode = match self.read_present(object).await? {
            Some(present) if present.bytes == bytes => return self.make_young(object, present).await,
            Some(_) => {
                warn!(object = %object.what, store = %self.name, "replacing a damaged object");
                PutMode::Overwrite
            }
            None => PutMode::Create,
        };
        self.check_room(object, bytes.len() as u64)?;
        match self.store.put_opts(&object.path, bytes.into(), PutOptions::from(mode)).await {
            // Someone else has just put the same bytes under this name: there are no others.
            Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(self.failed("write", object, error)),
        }
    }

    /// Makes `bytes` the object's content at a service elsewhere, whatever is there: under this name there are no others, and
    /// to find out would cost as much. Long ones go in parts, each of which is sent again if it fails.
    async fn upload(&self, object: &Object, bytes: Bytes) -> Result<(), OriginError> {
        self.check_writable("write", object)?;
        let sent = async {
            if bytes.len() <= LONGEST_PART {
                self.store.put(&object.path, bytes.into()).await?;
                return Ok(());
            }
            let upload = self.store.put_multipart(&object.path).await?;
            let mut writer = WriteMultipart::new_with_chunk_size(upload, PART);
            writer.put(bytes);
            writer.finish().await.map(|_| ())
        };
        sent.await.map_err(|error| self.failed("write", object, error))
    }

    /// From now on objects are put into a directory only if `bytes` stay free on its disk, as others write there, too. Without a
    /// number, [`Disk::default_reserve`](crate::reserve::Disk::default_reserve) of that disk stays free.
    pub fn keep_free(&self, bytes: Option<u64>) {
        self.reserve.set(bytes);
    }

    /// Refuses what would fill the disk of a directory.
    fn check_room(&self, object: &Object, bytes: u64) -> Result<(), OriginError> {
        match &self.root {
            Some(root) if !self.reserve.admits(root, bytes) => Err(OriginError::DiskFull {
                what: object.what.clone(),
                store: self.name.clone(),
                bytes: ByteSize(bytes),
            }),
            _ => Ok(()),
        }
    }

    fn check_writable(&self, action: &'static str, object: &Object) -> Result<(), OriginError> {
        if self.is_read_only() {
            let (what, store) = (object.what.clone(), self.name.clone());
            return Err(OriginError::ReadOnly { action, what, store });
        }
        Ok(())
    }

    /// The verdict of `check` on the object's bytes; it refuses those that were not put. Bytes from a network
    /// are read a second time before it counts as corrupt.
    async fn read_as<T: Send + 'static>(
        &self,
        object: &Object,
        traffic: &Traffic,
        check: impl Fn(&Bytes) -> Result<T, String> + Clone + Send + 'static,
    ) -> Result<T, OriginError> {
        let mut is_first = true;
        loop {
            let bytes = self.read(object, traffic).await?;
            let check = check.clone();
            match blocking(move || check(&bytes)).await {
                Ok(found) => return Ok(found),
                Err(reason) if is_first && self.may_reread() => {
                    warn!(object = %object.what, store = %self.name, reason, "reading it again");
                    is_first = false;
                }
                Err(reason) => return Err(self.corrupt(object, reason)),
            }
        }
    }

    #[instrument(name = "read_store", level = "debug", skip_all, fields(object = %object.what))]
    async fn read(&self, object: &Object, traffic: &Traffic) -> Result<Bytes, OriginError> {
        let read = async { self.store.get(&object.path).await?.bytes().await };
        let bytes = read.await.map_err(|error| self.failed("read", object, error))?;
        traffic.count(1, bytes.len() as u64);
        Ok(bytes)
    }

    /// The metadata of the object, not counted: no one asked for the data.
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

    /// Renews the date of an object that was written long ago: gc spares young objects. If it has just been
    /// deleted, it is put again.
    async fn make_young(&self, object: &Object, present: Present) -> Result<(), OriginError> {
        let now = SystemTime::now();
        if now.duration_since(present.written).map_or(true, |age| age < MIN_GC_AGE) {
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

    fn corrupt(&self, object: &Object, reason: String) -> OriginError {
        let (what, store, way_out) = (object.what.clone(), self.name.clone(), object.way_out());
        OriginError::Corrupt { what, store, reason, way_out }
    }

    fn failed(&self, action: &'static str, object: &Object, source: object_store::Error) -> OriginError {
        let (what, store) = (object.what.clone(), self.name.clone());
        match source {
            object_store::Error::NotFound { .. } => OriginError::NotFound { what, store },
            source => {
                let source = match &self.remote {
                    Some(remote) => Refusal::of(remote.service, &source).into(),
                    None => source.into(),
                };
                OriginError::Unavailable { action, what, store, source }
            }
        }
    }
}

/// Whether what follows the scheme of a URL is no more than names with a slash between them.
fn is_plain(rest: &str) -> bool {
    !rest.contains(['?', '#', '@'])
        && !rest.split_once('/').is_some_and(|(_, folder)| folder.starts_with('/'))
}

fn check_digest<Id: PartialEq + fmt::Display>(named: Id, found: Id) -> Result<(), String> {
    if found == named { Ok(()) } else { Err(format!("its bytes have digest {found}")) }
}

fn check_name(object: &Object, right: bool, found: impl FnOnce() -> String) -> Result<(), OriginError> {
    if right {
        return Ok(());
    }
    Err(OriginError::Mismatch { what: object.what.clone(), reason: format!("they have digest {}", found()) })
}

/// Hashes and decodes off the threads that wait for sockets.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.expect("the work does not panic, and the runtime lives while it is awaited")
}

#[cfg(test)]
mod tests;
