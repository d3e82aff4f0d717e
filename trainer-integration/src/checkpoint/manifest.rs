//! The document of a checkpoint: the training, its progress, and the objects of its state. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use shardfmt::Digest;

use super::CheckpointError;
use super::layout::Layout;
use super::part::Part;
use super::pieces::{PIECE, pieces};

/// The format of a training whose ranks have residuals, and the newest that is read.
pub(super) const RESIDUALS: u32 = 3;

/// That of others.
const FORMAT: u32 = 2;

/// That of earlier versions, still read: a part for each virtual rank.
pub(super) const PARTS: u32 = 1;

/// The largest declared size of a part: an overflow of sums of them is far away.
const MOST_BYTES: u64 = 1 << 40;

/// The settings that decide a training, by name; values as JSON text.
pub type Settings = BTreeMap<String, String>;

/// The name of a checkpoint: the steps before it, and the digest of its manifest. The same training has the same one at the same
/// step, on any number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckpointId {
    /// Steps that were trained.
    pub step: u64,
    /// Of the manifest.
    pub digest: Digest,
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012}-{}", self.step, self.digest)
    }
}

impl FromStr for CheckpointId {
    type Err = ();

    fn from_str(text: &str) -> Result<CheckpointId, ()> {
        let (step, digest) = text.split_once('-').ok_or(())?;
        let id = CheckpointId { step: step.parse().map_err(drop)?, digest: digest.parse().map_err(drop)? };
        // One name for each.
        if id.to_string() == text { Ok(id) } else { Err(()) }
    }
}

impl CheckpointId {
    /// For people: the step and the beginning of the digest.
    pub fn short(&self) -> String {
        format!("{}-{}", self.step, self.digest.short())
    }
}

/// The place where a source resumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// From 0.
    pub epoch: u32,
    /// Samples of the epoch that were trained on, of all ranks.
    pub position: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "position {} of epoch {}", self.position, self.epoch)
    }
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// 2, or 3 with residuals; 1 of earlier versions.
    pub format: u32,
    /// The run it is of.
    pub run: String,
    /// Steps that were trained: with the seed, all there is to know of random numbers.
    pub step: u64,
    /// The place where the source resumes.
    pub place: Place,
    /// V.
    pub virtual_ranks: u32,
    /// The settings that decide the training, by name.
    pub settings: Settings,
    /// The training's account of losses and samples, and what its guard remembers.
    pub progress: crate::progress::ProgressSoFar,
    /// The layout of the numbers.
    pub layout: Layout,
    /// The common state of all ranks, in the order that follows from the layout (`checkpoint/pieces.rs`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<Part>,
    /// By virtual rank its running statistics; empty if the model has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statistics: Vec<Part>,
    /// Of format 3, by rank of those who wrote it: the gradients that compression had not sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub residuals: Vec<Part>,
    /// Of format 1, by virtual rank: a share of what all have in common, and its statistics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

impl Manifest {
    /// The format of new ones.
    pub const FORMAT: u32 = FORMAT;

    /// The format of new ones whose ranks have residuals of compression.
    pub const FORMAT_WITH_RESIDUALS: u32 = RESIDUALS;

    /// All objects that it needs.
    pub fn objects(&self) -> impl Iterator<Item = Part> {
        self.pieces.iter().chain(&self.statistics).chain(&self.residuals).chain(&self.parts).copied()
    }

    /// As bytes: the same for equal manifests.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("maps have text for keys");
        bytes.push(b'\n');
        bytes
    }

    /// Its name.
    pub fn id(&self) -> CheckpointId {
        CheckpointId { step: self.step, digest: Digest::of(&self.to_bytes()) }
    }

    /// Reads the manifest that is called `id`.
    ///
    /// # Errors
    /// [`CheckpointError::TooNew`], and [`CheckpointError::Damaged`] when the bytes are no manifest, or not of that name.
    pub fn from_bytes(id: CheckpointId, bytes: &[u8]) -> Result<Manifest, CheckpointError> {
        #[derive(Deserialize)]
        struct Head {
            format: u64,
        }
        let damaged = |reason: String| CheckpointError::Damaged { id: id.short(), reason };
        let head: Head = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if head.format > u64::from(RESIDUALS) {
            return Err(CheckpointError::TooNew { id: id.short(), found: head.format, known: RESIDUALS });
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        let digest = Digest::of(bytes);
        if (manifest.step, digest) != (id.step, id.digest) {
            return Err(damaged(format!("it is step {} with digest {digest}", manifest.step)));
        }
        manifest.check_counts().map_err(damaged)?;
        Ok(manifest)
    }

    /// Whether the layout agrees with itself, and as many objects are named as it asks for, with room for all
    /// its numbers: later code then takes no more than the present bytes.
    fn check_counts(&self) -> Result<(), String> {
        let Manifest { virtual_ranks, layout, .. } = self;
        let ranks = *virtual_ranks as usize;
        if !self.progress.delivered.fits(*virtual_ranks) {
            return Err(format!("counts of what others than its {virtual_ranks} virtual ranks were given"));
        }
        let (common, statistics) = layout.checked()?;
        let shared = if self.format == PARTS { &self.parts } else { &self.pieces };
        let room =
            self.room(if self.format == PARTS { statistics.saturating_mul(ranks) } else { 0 }, shared)?;
        if common > room {
            return Err(format!("{common} numbers that all ranks have in common, and room for {room}"));
        }
        if self.format != PARTS && common.div_ceil(PIECE) > shared.len() {
            return Err(format!("{common} numbers in {} pieces", shared.len()));
        }
        let expected = match self.format {
            PARTS => [0, 0, ranks],
            _ => [pieces(layout).len(), if layout.statistics() > 0 { ranks } else { 0 }, 0],
        };
        let writers = if self.format == RESIDUALS { 1..=ranks } else { 0..=0 };
        if !writers.contains(&self.residuals.len()) {
            return Err(format!("residuals of {} ranks in format {}", self.residuals.len(), self.format));
        }
        let found = [self.pieces.len(), self.statistics.len(), self.parts.len()];
        if ranks == 0 || found != expected || self.format == 0 {
            return Err(format!(
                "{found:?} pieces, statistics and parts for {ranks} virtual ranks in format {}, and not {expected:?}",
                self.format
            ));
        }
        Ok(())
    }

    /// How many numbers these objects have room for besides a number of others.
    fn room(&self, others: usize, objects: &[Part]) -> Result<usize, String> {
        if let Some(part) = self.objects().find(|part| part.bytes > MOST_BYTES) {
            return Err(format!("a part of {} bytes", part.bytes));
        }
        let bytes = objects.iter().map(|part| u128::from(part.bytes)).sum::<u128>();
        let numbers = usize::try_from(bytes / size_of::<f32>() as u128).unwrap_or(usize::MAX);
        Ok(numbers.saturating_sub(others))
    }
}
