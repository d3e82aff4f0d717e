//! Why a loader cannot go on.

use std::time::Duration;

use shardfmt::plan::{MixtureError, PlanError};

use super::columns::OtherColumns;
use crate::catalog::CatalogError;
use crate::engine::EngineError;
use crate::http::HttpError;
use crate::lookup::LookupError;
use crate::origin::OriginError;
use crate::shared_cache::SharedCacheError;

/// Why a loader cannot go on.
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
    /// A node's engine could not bring what is read.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An epoch that cannot be worked out.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// No address to ask.
    #[error("no node to ask: name at least one with --server")]
    NoServers,
    /// The nodes answer, but what they give does not match the manifest.
    #[error(
        "no node gave the right bytes of some grains within {waited:?}; `shardctl verify` finds what is damaged"
    )]
    NotGenuine { waited: Duration },
    /// The numbers make no sense together.
    #[error("{0}")]
    Config(String),
    /// Out of threads or file descriptors.
    #[error("the loader's threads could not be started")]
    Threads { source: std::io::Error },
    /// Where shards are kept on this machine.
    #[error(transparent)]
    Cache(#[from] SharedCacheError),
    /// It has failed before, was told to stop, or there is a bug in it.
    #[error("the loader has stopped; open another one")]
    Stopped,
}

impl From<MixtureError> for LoadError {
    fn from(error: MixtureError) -> Self {
        Self::Mixture(Box::new(error))
    }
}
