//! What nodes say to each other, as values and two traits: [`Peers`] is the way out, [`PeerService`] the way in.
//!
//! The engine decides requests and answers; implementations of [`Peers`] carry the bytes (QUIC in `shardd`,
//! nothing at all in an embedded loader). Every grain is verified by the side that receives it, so no
//! implementation has to be trusted.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use shardd_api::node::NodeId;
use shardd_api::problem::Kind;
use shardd_api::protocol::RunId;
use shardfmt::{GrainKey, PlanId, VersionId};
use tokio::sync::mpsc;

/// How long all peers together may take to answer for grains before the origin is asked.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a shard's reader may take: it may have to read the whole shard from the store first.
pub const READER_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks a node for grains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchRequest {
    /// The run on whose behalf the grains are wanted.
    pub run: RunId,
    /// The version the grains belong to.
    pub version: VersionId,
    /// The asker's epoch: who hosts what depends on it...
    pub epoch: u32,
    /// ...and on the placement it goes by.
    pub generation: u64,
    /// Which grains; the answer keeps this order.
    pub keys: Vec<GrainKey>,
    /// The permitted effort of the asked node.
    pub effort: FetchMode,
}

/// How far the asked node should go to answer a [`FetchRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FetchMode {
    /// Say only which grains are in its cache: those come back as empty bytes.
    Probe,
    /// Give what its cache holds.
    Cached,
    /// Give nothing: the grains sent before were wrong, so check the cache, and drop corrupt grains.
    Doubt,
    /// The asked node is the shard's reader: if the shard is new to the cluster, read it from the store and forward it.
    Read,
}

/// Opens a stream of grains to another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendHeader {
    /// The run whose plan moves the grains...
    pub run: RunId,
    /// ...the plan that the sender goes by: it must be the receiver's...
    pub plan: PlanId,
    /// ...and the version the grains belong to.
    pub version: VersionId,
    /// Why they are sent.
    pub purpose: Purpose,
}

/// Why grains are sent without being asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The plan moves them after `epoch`; the receiver's partitions hold them from `epoch + 1` on.
    Exchange {
        /// The epoch after which they move.
        epoch: u32,
        /// Which part of the epoch's exchange: the first, where several share the stream.
        chunk: u32,
        /// The placement the sender went by.
        generation: u64,
    },
    /// The sender is the reader of their shard; the receiver's partitions hold them in `epoch`.
    Fill {
        /// The epoch in which the receiver hosts them.
        epoch: u32,
        /// The placement the sender went by.
        generation: u64,
    },
}

/// The receiver's promise that its stored grains are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Grains that are on the receiver's disk, synced (those it already had included).
    pub stored: u64,
    /// Grains that it did not take: corrupt, unknown, hosted elsewhere, or no space.
    pub refused: u64,
}

/// Why a peer could not be asked.
#[derive(Debug, Clone, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum PeerError {
    /// Not reachable now. Ask another node; the miss costs time, never data.
    #[error("node {peer} is not reachable: {reason}")]
    Unreachable { peer: NodeId, reason: String },
    /// It answered something that is no answer.
    #[error("node {peer} broke the protocol: {reason}")]
    Protocol { peer: NodeId, reason: String },
    /// It answered that it cannot.
    #[error("node {peer} refused: {reason}")]
    Refused { peer: NodeId, kind: Kind, reason: String },
    /// It did not answer in time.
    #[error("node {peer} did not answer within {waited:?}")]
    TimedOut { peer: NodeId, waited: Duration },
}

impl From<&PeerError> for Kind {
    fn from(error: &PeerError) -> Self {
        match error {
            PeerError::Refused { kind, .. } => *kind,
            PeerError::Unreachable { .. } | PeerError::Protocol { .. } | PeerError::TimedOut { .. } => {
                Self::Unavailable
            }
        }
    }
}

/// The other nodes, as the engine sees them.
///
/// Futures may be dropped at any point: a grain is stored by the receiver as a whole or not at all.
#[async_trait]
pub trait Peers: Send + Sync {
    /// Grains in the order asked for; `None` where the peer has none to give.
    async fn fetch(&self, to: &NodeId, request: FetchRequest) -> Result<Vec<Option<Bytes>>, PeerError>;

    /// Sends all grains that come out of `grains`, until it is closed, and waits for the receiver's
    /// acknowledgement. Grains with a pace keep it, and let those without one go first.
    async fn send(
        &self,
        to: &NodeId,
        header: SendHeader,
        grains: mpsc::Receiver<(GrainKey, Bytes)>,
        pace: Option<&dyn Pace>,
    ) -> Result<Ack, PeerError>;
}

/// The times at which a sender may continue.
#[async_trait]
pub trait Pace: Send + Sync {
    /// Waits until a number of further bytes may be sent. May be dropped: then nothing has passed.
    async fn pass(&self, bytes: u64);
}

/// A node's answers to its peers.
#[async_trait]
pub trait PeerService: Send + Sync {
    /// Answers a [`FetchRequest`]; unknown runs are answered with nothing.
    async fn fetch(&self, from: &NodeId, request: FetchRequest) -> Vec<Option<Bytes>>;

    /// Takes a stream of grains; returns when the taken grains are durable.
    async fn receive(
        &self,
        from: &NodeId,
        header: SendHeader,
        grains: mpsc::Receiver<(GrainKey, Bytes)>,
    ) -> Result<Ack, PeerError>;
}

/// No peers at all: a cluster of one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

#[async_trait]
impl Peers for Alone {
    async fn fetch(&self, to: &NodeId, _: FetchRequest) -> Result<Vec<Option<Bytes>>, PeerError> {
        Err(PeerError::Unreachable { peer: to.clone(), reason: "this node has no peers".into() })
    }

    async fn send(
        &self,
        to: &NodeId,
        _: SendHeader,
        _: mpsc::Receiver<(GrainKey, Bytes)>,
        _: Option<&dyn Pace>,
    ) -> Result<Ack, PeerError> {
        Err(PeerError::Unreachable { peer: to.clone(), reason: "this node has no peers".into() })
    }
}
