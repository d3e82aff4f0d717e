//! The errors of loaders.

use std::time::Duration;

use shardd_api::lookup::LookupError;
use shardd_api::problem::Kind;
use shardd_plan::{MixtureError, PlanError};
use shardd_store::catalog::CatalogError;
use shardd_store::http::HttpError;
use shardd_store::origin::OriginError;
use shardd_transforms::{ChainError, SampleError};

use crate::shared_cache::SharedCacheError;

/// Why a loader cannot continue.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// use shardd_client::{Credentials, LoadError, Loader, LoaderConfig, LoaderSource};
///
/// let (servers, credentials) = (vec![], Credentials::default());
/// let nodes = LoaderSource::Nodes { servers, run: "my-run".parse()?, credentials };
/// match Loader::open(LoaderConfig::new(nodes, plan, 32)) {
///     Err(LoadError::NoServers) => {}
///     Err(other) => panic!("{other}"),
///     Ok(_) => panic!("there is no node to ask"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum LoadError {
    /// A plan or version that is not there, or a store that cannot be read.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// Ranks that do not fit the plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Sources that make no mixture.
    #[error(transparent)]
    Mixture(Box<MixtureError>),
    /// Sources whose columns are not the same.
    #[error(transparent)]
    Columns(Box<OtherColumns>),
    /// A node refused, or none answered.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The store could not be read.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// A shard is damaged.
    #[error(transparent)]
    Shard(#[from] shardfmt::ShardError),
    /// Rows that cannot be decoded.
    #[error(transparent)]
    Row(#[from] shardfmt::RowError),
    /// A [`GrainReader`](super::GrainReader) failed.
    #[error(transparent)]
    Grains(GrainsError),
    /// An epoch that cannot be worked out.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// No address to ask.
    #[error("no node to ask: name at least one with --server")]
    NoServers,
    /// The nodes answer, but their grains do not match the manifest.
    #[error(
        "no node gave the right bytes of some grains within {waited:?}; `shardctl verify` finds the damaged \
        shards"
    )]
    NotGenuine { waited: Duration },
    /// The numbers make no sense together.
    #[error("{0}")]
    Config(String),
    /// Transforms that are no chain, or that do not fit the pictures.
    #[error(transparent)]
    Transforms(Box<ChainError>),
    /// Transforms that do not fit the sounds.
    #[cfg(feature = "audio")]
    #[error(transparent)]
    Sounds(Box<shardd_audio::ChainError>),
    /// Transforms of columns that are no chain, or that do not fit the columns.
    #[error(transparent)]
    ColumnTransforms(Box<shardd_columns::ChainError>),
    /// A picture or a sound that cannot be decoded or changed.
    #[error(
        "column {column:?} of the sample at position {position} of epoch {epoch} cannot be transformed (to continue without such samples, set on_error to \"zero\" or \"skip\" in the transforms)"
    )]
    Picture { column: String, epoch: u32, position: u64, source: Box<PictureError> },
    /// A label that is to be mixed, and is of no class.
    #[error(
        "column {column:?} of the sample at position {position} of epoch {epoch} {}, and the classes are 0 to {}: correct num_classes, or leave the sample out",
        label.map_or_else(|| "has no label".to_owned(), |label| format!("is {label}")),
        classes - 1
    )]
    Label { column: String, epoch: u32, position: u64, label: Option<i64>, classes: u32 },
    /// A value of a column to which an operation gives no result.
    #[error("column {column:?} of the sample at position {position} of epoch {epoch} cannot be transformed")]
    Value { column: String, epoch: u32, position: u64, source: Box<shardd_columns::ValueError> },
    /// Out of memory for a batch.
    #[error("there is no memory for a batch of transformed samples")]
    Memory { source: std::io::Error },
    /// A cursor of another order.
    #[error(
        "the cursor is of {cursor}, and the loader follows {followed}: follow that of the cursor, or begin anywhere without it"
    )]
    OtherOrder { cursor: String, followed: String },
    /// Out of threads or file descriptors.
    #[error("the loader's threads could not be started")]
    Threads { source: std::io::Error },
    /// Where shards are kept on this machine.
    #[error(transparent)]
    Cache(#[from] SharedCacheError),
    /// It has failed before, got a stop signal, or there is a bug in it.
    #[error("the loader has stopped; open another one")]
    Stopped,
}

/// Why a [`GrainReader`](super::GrainReader) failed: any error, and the kind of problem that it is.
#[derive(Debug)]
pub struct GrainsError {
    kind: Kind,
    error: Box<dyn std::error::Error + Send + Sync>,
}

impl std::fmt::Display for GrainsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for GrainsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl LoadError {
    /// The error of a [`GrainReader`](super::GrainReader), reported as a problem of this kind.
    pub fn grains(kind: Kind, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Grains(GrainsError { kind, error: Box::new(source) })
    }
}

impl From<&LoadError> for Kind {
    fn from(error: &LoadError) -> Self {
        match error {
            LoadError::Catalog(error) => error.into(),
            LoadError::Grains(error) => error.kind,
            LoadError::Origin(error) => error.into(),
            LoadError::Lookup(error) => error.into(),
            LoadError::Plan(_)
            | LoadError::Mixture(_)
            | LoadError::Columns(_)
            | LoadError::Config(_)
            | LoadError::Transforms(_)
            | LoadError::ColumnTransforms(_)
            | LoadError::OtherOrder { .. } => Self::Invalid,
            #[cfg(feature = "audio")]
            LoadError::Sounds(_) => Self::Invalid,
            LoadError::Shard(_)
            | LoadError::Row(_)
            | LoadError::Picture { .. }
            | LoadError::Label { .. }
            | LoadError::Value { .. }
            | LoadError::NotGenuine { .. } => Self::Corrupt,
            LoadError::Http(_)
            | LoadError::NoServers
            | LoadError::Cache(_)
            | LoadError::Threads { .. }
            | LoadError::Memory { .. }
            | LoadError::Stopped => Self::Unavailable,
        }
    }
}

impl From<ChainError> for LoadError {
    fn from(error: ChainError) -> Self {
        Self::Transforms(Box::new(error))
    }
}

impl From<shardd_columns::ChainError> for LoadError {
    fn from(error: shardd_columns::ChainError) -> Self {
        Self::ColumnTransforms(Box::new(error))
    }
}

#[cfg(feature = "audio")]
impl From<shardd_audio::ChainError> for LoadError {
    fn from(error: shardd_audio::ChainError) -> Self {
        Self::Sounds(Box::new(error))
    }
}

impl From<MixtureError> for LoadError {
    fn from(error: MixtureError) -> Self {
        Self::Mixture(Box::new(error))
    }
}

/// A source that has other columns than the first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{other} {difference} in {first}: datasets that are read together need the same columns, in name, order \
     and type; ingest one of the two again with the columns of the other"
)]
pub struct OtherColumns {
    pub(super) other: String,
    pub(super) first: String,
    pub(super) difference: String,
}

/// A picture or a sound could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// The sample is not changed by the transforms.
    #[error("{0}")]
    Sample(SampleError),
    /// The same of a sound.
    #[cfg(feature = "audio")]
    #[error("{0}")]
    Sound(shardd_audio::SampleError),
    /// The column has no value there.
    #[error("the value is null")]
    Missing,
}
