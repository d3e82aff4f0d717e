//! The state that a rank keeps of a training whose group has ended.

use super::manifest::Manifest;
use super::state::State;

/// A rank's state of a training whose group has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerCheckpoint {
    /// As that of a checkpoint of this step, without objects.
    pub(crate) manifest: Manifest,
    pub(crate) state: State,
}
