//! Where a cluster's metadata is: [`SledMetastore`] on the node that holds it, an object of the store
//! ([`open_in_store`]), or `EtcdMetastore`, in builds with the feature `cluster-etcd`.
//!
//! All keep the promises of [`Metastore`](shardd_store::metastore::Metastore). Other nodes reach the sled of a [`MetastoreNode`] through a
//! [`RemoteMetastore`](crate::transport::RemoteMetastore). [`MetastoreUrl`] selects one of them.

#[cfg(feature = "cluster-etcd")]
mod etcd;
mod in_store;
mod movable;
mod node;
mod sled;
mod standing;
mod target;
mod timed;
mod url;
mod view;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use shardd_store::metastore::MetaError;

#[cfg(feature = "cluster-etcd")]
pub use self::etcd::EtcdMetastore;
pub use self::in_store::open_in_store;
pub use self::sled::{SledMetastore, Snapshot};
pub use self::url::{EtcdUrl, MetastoreUrl};
pub use movable::MovableMetastore;
pub use node::MetastoreNode;
pub(crate) use standing::{is_same_place, leave, of_first, of_joined, remember};
pub use target::Target;
pub(crate) use target::{Values, make_equal};
pub(crate) use timed::{MetastoreTimes, TimedMetastore};

/// Why a metastore cannot be opened.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum OpenError {
    /// sled cannot open it.
    #[error(
        "metadata {path} cannot be opened: {reason}; if no other shardd uses it, restore it from a backup, or start this node once \
         with --recover, which sets it aside and continues from the copy in the store, or empty where there \
         is none: then `shardctl recover` brings names and plans back from the store"
    )]
    Sled { path: PathBuf, reason: String },
    /// A newer release wrote it.
    #[error("metadata {path} has format {found}, this release reads {}; start a newer shardd", sled::FORMAT)]
    TooNew { path: PathBuf, found: u64 },
    /// The files cannot be made durable.
    #[error("metadata {path} cannot be synced")]
    Sync { path: PathBuf, source: io::Error },
    /// A file that the URL of etcd names cannot be read.
    #[error("--metastore: {path}, which its URL names, cannot be read")]
    File { path: PathBuf, source: io::Error },
    /// The file that says where a first node's metadata is does not.
    #[error(
        "{path} does not say where the metadata is ({reason}); write store or the URL of the cluster's etcd into it"
    )]
    Unknown { path: PathBuf, reason: String },
    /// The metadata is somewhere else.
    #[error(
        "--metastore {asked}: the metadata of this node's cluster is in {kept}, and is not moved by naming another place; \
         drop --metastore, move it with `shardctl metastore migrate`, or begin a new cluster in another --data directory"
    )]
    Elsewhere { asked: String, kept: String },
    /// Only its node opens it.
    #[error("metadata in sled is opened by its node alone")]
    NotShared,
    /// The store keeps no metadata.
    #[error("--metastore store: the store cannot keep the metadata")]
    InStore { source: MetaError },
    /// This build knows no etcd.
    #[error(
        "metastore {url} needs a shardd with etcd, which this one was built without: build it with `cargo build --release \
         --features shardd/cluster-etcd` (needs protoc; on Debian the packages protobuf-compiler and libprotobuf-dev)"
    )]
    NoEtcd { url: String },
}

/// The metastore in the etcd at `url`, which need not run yet.
///
/// # Errors
/// [`OpenError::File`], and [`OpenError::NoEtcd`] in builds without the feature `cluster-etcd`.
#[cfg(feature = "cluster-etcd")]
pub fn open_etcd(url: &EtcdUrl) -> Result<Arc<dyn Target>, OpenError> {
    Ok(Arc::new(EtcdMetastore::open(url)?))
}

/// The metastore in the etcd at `url`, which need not run yet.
///
/// # Errors
/// [`OpenError::File`], and [`OpenError::NoEtcd`] in builds without the feature `cluster-etcd`.
#[cfg(not(feature = "cluster-etcd"))]
pub fn open_etcd(url: &EtcdUrl) -> Result<Arc<dyn Target>, OpenError> {
    Err(OpenError::NoEtcd { url: url.to_string() })
}
