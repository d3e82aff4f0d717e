//! The node with a cluster's metadata in sled, and the safety of the metadata: its copy in the store, the
//! start with damaged or missing metadata ([`opening`]), the takeover by another node ([`promotion`]), the
//! move to another metastore ([`migration`]; of one that is not in sled, [`relocation`]), and the return to a backup
//! ([`restoring`]).
//!
//! The copy is the fence, too (`shardd_store::metastore::copy`): who finds that another node keeps the metadata stops. Where
//! metadata is in etcd none of this is needed.

mod copier;
mod migration;
mod opening;
mod place;
mod promotion;
mod relocation;
mod restoring;

use std::path::PathBuf;

use shardd_api::duration::Span;
use shardd_api::node::NodeId;
use shardd_certificates::CertificateError;

use crate::metastore::OpenError;

pub(crate) use copier::Keeping;
pub(crate) use migration::migrate;
pub use migration::{Migrated, MigrationError};
pub(crate) use opening::{Opened, open, set_aside};
pub(crate) use promotion::{Promotion, promote, retire, unretire};
pub(crate) use relocation::{Places, Relocated, RelocationError, Relocator, RememberPlace};
pub(crate) use restoring::restore;
pub use restoring::{RestoreError, Restored};

/// The directory of the metadata, in the data directory.
const META: &str = "meta";
/// The file beside it that is there while the copy lacks something.
const AHEAD: &str = "meta.ahead";

/// Why a node does not keep the metadata. Every message names the way out.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// Another node was promoted.
    #[error(
        "node {keeper} ({http}) keeps the metadata of this cluster now, and this node's copy of it is old: \
         make a join token there (`shardctl --server {http} token create --join --to FILE`) and start this \
         node with --join @FILE; its meta/ is then set aside"
    )]
    Fenced { keeper: NodeId, http: String },
    /// It is kept elsewhere.
    #[error(
        "the metadata of this cluster has moved to {to}: start this node again, which uses that place then; where the first node \
         has its data, run `shardd metastore migrate --to {to}` once more to finish the move"
    )]
    Moved { to: String },
    /// The copy may lack the last changes.
    #[error(
        "{what}; the copy of it in the store, {age} old, may lack the last changes before this node \
        stopped: start it once with --recover to continue from the copy, or restore {path} from a backup"
    )]
    Behind { what: String, path: PathBuf, age: Span },
    /// An older state was put in its place.
    #[error(
        "metadata {path} is older than its copy in the store (change {own} and {copied}): start this node \
        once with --recover to continue from the copy, or delete {object} from the store to continue from \
        {path}"
    )]
    Older { path: PathBuf, own: u64, copied: u64, object: String },
    /// It cannot be known whether there is a copy.
    #[error(
        "{what}, and the store that may have a copy of it cannot be asked ({reason}); start this node again when the store answers"
    )]
    Away { what: String, reason: String },
    /// The key of the authority is no good.
    #[error(transparent)]
    Key(#[from] CertificateError),
    /// sled.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A file cannot be moved.
    #[error("{path} cannot be moved or written")]
    Move { path: PathBuf, source: std::io::Error },
    /// There is nothing to take over.
    #[error(
        "--promote: the store has no copy of this cluster's metadata{reason}; start the node that keeps the metadata, or found a cluster over the same store in another --data directory and run `shardctl recover` there"
    )]
    NoCopy { reason: String },
    /// The node that would be replaced lives.
    #[error(
        "--promote: node {keeper} keeps the metadata and answers at {http}; stop it first, or continue with \
        that node"
    )]
    Alive { keeper: NodeId, http: String },
    /// No node needs to be replaced.
    #[error(
        "--promote: the metadata of this cluster is in etcd or in its store, and outlives any node; start this one without --promote"
    )]
    NotInSled,
    /// It keeps the metadata already.
    #[error("--promote: node {0} keeps the metadata of its cluster already; start it without --promote")]
    Already(NodeId),
    /// It belongs to no cluster.
    #[error("--promote: this node has joined no cluster; start it without --promote")]
    NoMember,
    /// Another node has just written the copy.
    #[error(
        "--promote: the copy of the metadata has just been written by another node; is the one that keeps it still running? stop it, and promote again"
    )]
    Raced,
    /// The store does not take the fence.
    #[error(
        "--promote: the store does not take the fence against the earlier node ({reason}); repair the \
        store, and promote again"
    )]
    NoFence { reason: String },
}
