//! The settings of a loader: plain values, given before anything is opened.

use std::path::PathBuf;

use shardd_api::protocol::RunId;
use shardd_plan::{MixturePhase, PlanDocument, Take};
use shardd_store::catalog::StorePlace;
use shardd_store::http::Credentials;
use shardfmt::{ByteSize, PlanId};

use super::order::{Cursor, OrderId};
use super::{BatchSize, Deliveries, LastBatch, Transforms};
use crate::shared_cache::{SharedCache, SharedCacheError};

/// Where a loader's bytes come from.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_client::{Credentials, LoaderSource, StorePlace};
///
/// let store = LoaderSource::Store(StorePlace::Directory("digits-store".into()));
/// let nodes = LoaderSource::Nodes {
///     servers: vec!["http://127.0.0.1:7700".into()],
///     run: "my-run".parse()?,
///     credentials: Credentials::default(),
/// };
/// assert_ne!(store, nodes);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoaderSource {
    /// Nodes of a cluster.
    Nodes {
        /// Their HTTP addresses (`http://host:port`); the first is the rank's own, the others are asked when it fails.
        servers: Vec<String>,
        /// The run this loader takes part in; created if it does not exist.
        run: RunId,
        /// The token for them, and the certificates to trust.
        credentials: Credentials,
    },
    /// A directory or bucket that `shardctl --store` filled: no daemon at all.
    Store(StorePlace),
}

/// Which plan a loader follows.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// use shardd_client::PlanRef;
///
/// assert_eq!(PlanRef::from(plan.id()), PlanRef::Id(plan.id()));
/// assert_eq!(PlanRef::from(plan.clone()), PlanRef::Document(plan.into()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanRef {
    /// One that the store or the nodes have.
    Id(PlanId),
    /// This one, whether or not anybody has it: of a store that cannot be written. Nodes must have it.
    Document(Box<PlanDocument>),
}

impl From<PlanId> for PlanRef {
    fn from(id: PlanId) -> Self {
        Self::Id(id)
    }
}

impl From<PlanDocument> for PlanRef {
    fn from(document: PlanDocument) -> Self {
        Self::Document(Box::new(document))
    }
}

/// In which order a loader reads what.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_client::{Follow, LoaderConfig};
///
/// let config = LoaderConfig::new(source.clone(), plan.id(), 32);
/// assert_eq!(config.follow, Follow::Plan { source, plan: plan.id().into() });
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Follow {
    /// One plan's.
    Plan {
        /// Where the bytes come from.
        source: LoaderSource,
        /// The plan.
        plan: PlanRef,
    },
    /// That of several plans mixed, read from their stores: nodes work on one plan a run. They have the same columns.
    Mixture {
        /// The mixed sources. Their order counts.
        sources: Vec<MixedSource>,
        /// Samples of an epoch, with proportions: see
        /// [`MixtureDocument::new`](shardd_plan::MixtureDocument::new).
        epoch_size: Option<u64>,
        /// Changes of the proportions, ascending.
        phases: Vec<MixturePhase>,
    },
}

/// One of the sources of a mixture.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_client::{Loader, LoaderConfig, MixedSource};
/// use shardd_plan::{SourceNo, Take};
///
/// let numbers = |take| MixedSource { place: place.clone(), plan: plan.clone().into(), take };
/// let sources = vec![numbers(Take::Choose(30)), numbers(Take::Choose(10))];
/// let mut loader = Loader::open(LoaderConfig::mixed(sources, None, 40))?;
///
/// let step = loader.next_step()?.ok_or("no step")?;
/// let first = step.micro_batches[0].sources.iter().filter(|source| **source == SourceNo(0));
/// assert_eq!(first.count(), 30);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixedSource {
    /// Where its version lies. Several sources may lie in one store, and be one version.
    pub place: StorePlace,
    /// The plan that fixes its own order.
    pub plan: PlanRef,
    /// How much of it an epoch of the mixture has.
    pub take: Take,
}

/// The data and settings of a loader.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_client::{BatchSize, LastBatch, Loader, LoaderConfig};
///
/// let config = LoaderConfig {
///     end_epoch: 2,
///     last_batch: LastBatch::Drop,
///     ..LoaderConfig::new(source, plan, BatchSize::Global(64))
/// };
/// let mut loader = Loader::open(config)?;
/// let mut steps = 0;
/// while loader.next_step()?.is_some() {
///     steps += 1;
/// }
/// assert_eq!(steps, 8); // 4 of 64 of the 300 samples, in each of 2 epochs
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LoaderConfig {
    /// The order that is read.
    pub follow: Follow,
    /// This rank, from 0.
    pub rank: u32,
    /// How many ranks there are; at most V.
    pub world: u32,
    /// V: the fixed shares of every step. `None`: for a global batch a default that follows from it and the plan, whatever the
    /// world is; for a micro-batch the fewest that this world can share, of a mixture one for each rank.
    pub virtual_ranks: Option<u32>,
    /// Samples of a step, of all ranks together or of each virtual rank.
    pub batch: BatchSize,
    /// Whether a source is read in its plan's order, or in that of its store, of which each virtual rank has an equal stretch of
    /// every step: for evaluation. With nodes it is the plan's.
    pub shuffle: bool,
    /// The use of a rest smaller than the global batch.
    pub last_batch: LastBatch,
    /// Where to begin: (epoch, position).
    pub start: (u32, u64),
    /// The order that `start` is a place in; another one is refused. `None`: any.
    pub start_order: Option<OrderId>,
    /// The samples given to virtual ranks before that, by the state that the loader resumes from: the audit
    /// of its epoch counts it, too.
    pub delivered: Deliveries,
    /// The epoch before which to stop.
    pub end_epoch: u32,
    /// How many samples an epoch has: the first of its order. `None`: all there are, as with more than that.
    pub limit: Option<u64>,
    /// Whether segments, or a ring, are borrowed from nodes on this machine; else bytes are sent, as from nodes elsewhere. Which of
    /// these works is found out, so there is little reason to say no.
    pub map_files: bool,
    /// The distance between the steps to read, at least 1: with 4, this loader reads each fourth step, counted from the start,
    /// and other loaders read the steps between. With nodes it is 1.
    pub stride: u64,
    /// Whether to hash every row handed out, for the exactly-once audit. Costs one BLAKE3 pass.
    pub audit: bool,
    /// The transforms: those of pictures or sounds have the seed of the (first) plan unless they have one.
    pub transforms: Option<Transforms>,
    /// How many steps are prepared ahead of the user, at least 1.
    pub read_ahead: usize,
    /// How many threads gather them, at least 1.
    pub threads: usize,
    /// Where shards of a store elsewhere are kept.
    pub cache: CacheChoice,
}

/// Where shards of a store elsewhere are kept on this machine, and the known facts about files.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_client::{CacheChoice, Loader, LoaderConfig};
/// use shardfmt::ByteSize;
///
/// # let directory = tempfile::tempdir()?;
/// let cache = CacheChoice { dir: Some(directory.path().into()), limit: Some(ByteSize::mib(64)) };
/// let mut loader = Loader::open(LoaderConfig { cache, ..LoaderConfig::new(source, plan, 32) })?;
/// assert!(loader.next_step()?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheChoice {
    /// The directory. `None`: [`default_cache_dir`].
    pub dir: Option<PathBuf>,
    /// How many bytes of shards are kept there. `None`: nine tenths of the used and free bytes on that disk.
    pub limit: Option<ByteSize>,
}

impl CacheChoice {
    pub(super) fn open(&self) -> Result<SharedCache, SharedCacheError> {
        SharedCache::open(self.place(), self.limit)
    }

    pub(super) fn place(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(default_cache_dir)
    }
}

impl LoaderConfig {
    /// One plan; one rank, short last batches, 8 steps ahead, from the beginning of epoch 0 to the end of it.
    pub fn new(source: LoaderSource, plan: impl Into<PlanRef>, batch: impl Into<BatchSize>) -> Self {
        Self::following(Follow::Plan { source, plan: plan.into() }, batch)
    }

    /// Begins where a cursor stands. [`Loader::open`](super::Loader::open) refuses another plan or mixture than the cursor's.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (store, plan) = numbers()?;
    /// # let source = shardd_client::LoaderSource::Store(shardd_client::StorePlace::Directory(store.path().into()));
    /// use shardd_client::{Loader, LoaderConfig};
    ///
    /// let config = LoaderConfig::new(source, plan, 32);
    /// let first = Loader::open(config.clone())?.next_step()?.expect("a step");
    /// let mut resumed = Loader::open(config.resume(&first.cursor))?;
    /// let second = resumed.next_step()?.expect("another step");
    /// assert_eq!(second.positions().start, first.positions().end);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn resume(self, cursor: &Cursor) -> Self {
        let start = (cursor.epoch, cursor.position);
        Self { start, start_order: Some(cursor.order), ..self }
    }

    /// Several plans mixed, and otherwise as [`new`](Self::new). With proportions an epoch has `epoch_size` samples, by
    /// default as many as the sources together. For proportions that change, see [`Follow::Mixture`].
    pub fn mixed(sources: Vec<MixedSource>, epoch_size: Option<u64>, batch: impl Into<BatchSize>) -> Self {
        Self::following(Follow::Mixture { sources, epoch_size, phases: Vec::new() }, batch)
    }

    /// The followed run gives the settings, and otherwise as [`new`](Self::new).
    pub fn following(follow: Follow, batch: impl Into<BatchSize>) -> Self {
        Self {
            follow,
            rank: 0,
            world: 1,
            virtual_ranks: None,
            batch: batch.into(),
            shuffle: true,
            last_batch: LastBatch::Short,
            start: (0, 0),
            start_order: None,
            delivered: Deliveries::default(),
            end_epoch: 1,
            limit: None,
            map_files: true,
            stride: 1,
            audit: false,
            transforms: None,
            read_ahead: 8,
            threads: 2,
            cache: CacheChoice::default(),
        }
    }
}

/// The directory for what loaders keep on this machine: `$SHARDD_CACHE_DIR`, or `shardd` in the user's cache directory
/// (`$XDG_CACHE_HOME` or `~/.cache`), or, for users who have none, one of their own among temporary files.
pub fn default_cache_dir() -> PathBuf {
    let named = |name| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    named("SHARDD_CACHE_DIR").unwrap_or_else(|| {
        let home = || Some(named("HOME")?.join(".cache"));
        let own = || std::env::temp_dir().join(format!("shardd-{}", rustix::process::getuid().as_raw()));
        named("XDG_CACHE_HOME").or_else(home).map_or_else(own, |caches| caches.join("shardd"))
    })
}
