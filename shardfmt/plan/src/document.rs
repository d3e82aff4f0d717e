//! The plan document: everything that decides an order, and nothing else. Knows no shards, only their version.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::strata::StrataOf;
use super::{PlanError, Schedule, Strata};
use crate::digest::{Digest, PlanId, VersionId};

/// The format this release writes.
pub const FORMAT: u32 = 1;

/// Partition counts that many world sizes divide; the default is one of them.
const FRIENDLY: [u32; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96];
/// Samples per partition below which the default has fewer partitions.
const SAMPLES_PER_PARTITION: u64 = 100;
/// Grains per partition that the default grain leaves.
const GRAINS_PER_PARTITION: u64 = 64;
/// Size of a default grain: worth a message, small enough to mix well.
const GRAIN_BYTES: u64 = 16 * 1024;
const CHUNKS: u32 = 16;
const MOST_CHUNKS: u32 = 65_536;
const LARGEST_GRAIN: u32 = 1 << 30;
/// Strata times partitions: some bytes are kept for each.
const MOST_CELLS: u64 = 1 << 24;

/// The immutable document that fixes the order of every epoch of a version.
///
/// Its canonical form is compact JSON with the fields in this order; its [id](Self::id) is the BLAKE3 digest of that.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # let version = VersionId::of(b"a manifest");
/// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// use shardd_plan::{PlanDocument, PlanOptions, Shape};
///
/// let options = PlanOptions { seed: 7, ..PlanOptions::default() };
/// let document = PlanDocument::with_defaults(version, &shape, options)?;
/// assert_eq!(document.partitions, 12);
///
/// // A copy of the document names the same plan.
/// let copy = PlanDocument::from_bytes(&document.to_bytes())?;
/// assert_eq!(copy.id(), document.id());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanDocument {
    /// 1, of `docs/PLAN.md`.
    pub format: u32,
    /// The version whose samples are ordered.
    pub version: VersionId,
    /// Chooses among all plans that are otherwise equal.
    pub seed: u64,
    /// The part of its grains that each partition exchanges after each epoch.
    pub schedule: Schedule,
    /// How many partitions the samples are held in.
    pub partitions: u32,
    /// Rows per grain, a power of two.
    pub grain_rows: u32,
    /// In how many parts an exchange is made.
    pub chunks: u32,
    /// Which grains a partition exchanges.
    pub selection: Selection,
    /// Where grains are in epoch 0.
    pub placement: InitialPlacement,
    /// In what order a partition's samples are read.
    pub order: Order,
    /// Parts of the samples of which every partition always holds as many; absent where there is one part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strata: Option<StrataOf>,
}

/// Which grains a partition exchanges after an epoch.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # let version = VersionId::of(b"a manifest");
/// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// use shardd_plan::{Epoch, Partition, Plan, PlanDocument, PlanOptions, Selection, Shape};
///
/// let departure = |selection| {
///     let options = PlanOptions { selection, ..PlanOptions::default() };
///     let plan = Plan::new(PlanDocument::with_defaults(version, &shape, options)?, &shape.shard_rows)?;
///     Ok::<_, shardd_plan::PlanError>(plan.departure(Partition(0), 0, Epoch(0)))
/// };
/// // Only cyclic selection knows when the grain in a slot moves.
/// assert!(departure(Selection::Cyclic)?.is_some());
/// assert!(departure(Selection::Independent)?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// Every slot in turn: all have been exchanged once after 1/Q epochs, and it is known when each will be.
    #[default]
    Cyclic,
    /// Chosen again after each epoch, as in the paper.
    Independent,
}

/// Where grains are in epoch 0.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # let version = VersionId::of(b"a manifest");
/// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// # use shardd_plan::{Plan, PlanDocument, Shape};
/// use shardd_plan::{GrainNo, InitialPlacement, Partition, PlanOptions, SlotTable};
///
/// let options = PlanOptions { placement: InitialPlacement::Shards, ..PlanOptions::default() };
/// let plan = Plan::new(PlanDocument::with_defaults(version, &shape, options)?, &shape.shard_rows)?;
/// let table = SlotTable::initial(&plan);
/// let grains: Vec<GrainNo> = table.grains_of(&plan, Partition(0)).collect();
/// assert!(grains.is_sorted_by(|a, b| a.0 + 1 == b.0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InitialPlacement {
    /// A partition holds consecutive grains of the manifest, so a cold cache reads whole shards.
    #[default]
    Shards,
    /// Grains are spread at random: mixed from the start, and dearer to fill.
    Random,
}

/// In what order a partition's samples are read in an epoch.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # let version = VersionId::of(b"a manifest");
/// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// use shardd_plan::{Order, PlanDocument, PlanError, PlanOptions, Shape};
///
/// let blocked = |slots| PlanOptions { order: Order::Blocked { slots }, ..PlanOptions::default() };
/// let document = PlanDocument::with_defaults(version, &shape, blocked(8))?;
/// assert_eq!(document.order, Order::Blocked { slots: 8 });
/// let refused = PlanDocument::with_defaults(version, &shape, blocked(0));
/// assert_eq!(refused, Err(PlanError::NoBlockSlots));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// Any order of its samples is as likely as any other.
    #[default]
    Samples,
    /// Blocks of a few slots are read one after the other, their samples shuffled: for disks that hate random reads.
    Blocked {
        /// Slots per block.
        slots: u32,
    },
}

/// The shape of a version for a plan; the manifest knows it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # let version = VersionId::of(b"a manifest");
/// use shardd_plan::{PlanDocument, PlanError, PlanOptions, Shape};
///
/// let shape = Shape { shard_rows: vec![1000, 777], row_bytes: 1_777 * 100 };
/// let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
/// assert_eq!(document.partitions, 16);
///
/// let empty = Shape { shard_rows: vec![], row_bytes: 0 };
/// let refused = PlanDocument::with_defaults(version, &empty, PlanOptions::default());
/// assert_eq!(refused, Err(PlanError::NoSamples));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of each shard in manifest order.
    pub shard_rows: Vec<u32>,
    /// Canonical bytes of all rows together; decides the default grain.
    pub row_bytes: u64,
}

/// The user's choices about a plan; the rest has defaults.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # let version = VersionId::of(b"a manifest");
/// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// use shardd_plan::{PlanDocument, PlanOptions, Shape};
///
/// let options = PlanOptions { q: "1,0.1".parse()?, partitions: Some(8), ..PlanOptions::default() };
/// let document = PlanDocument::with_defaults(version, &shape, options)?;
/// assert_eq!(document.partitions, 8);
/// assert_eq!(document.schedule.to_string(), "1,0.1");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// The share exchanged after each epoch; a tenth by default.
    pub q: Schedule,
    /// Chooses among plans that are otherwise equal.
    pub seed: u64,
    /// Default: 96, or the largest of 1, 2, 3, 4, 6, 8, 12, … that leaves 100 samples each.
    pub partitions: Option<u32>,
    /// Default: the largest power of two that is at most 16 KiB and leaves 64 grains per partition.
    pub grain_rows: Option<u32>,
    /// Default: 16, or as many as a partition exchanges grains if that is less.
    pub chunks: Option<u32>,
    /// Which grains are exchanged.
    pub selection: Selection,
    /// Where grains are in epoch 0.
    pub placement: InitialPlacement,
    /// In what order a partition is read.
    pub order: Order,
    /// Parts of the samples of which every partition always holds as many; needs grains of one row, then the default.
    pub strata: Option<Arc<Strata>>,
}

impl PlanDocument {
    /// The document for `version`, with defaults for what `options` leaves open.
    ///
    /// # Errors
    /// [`PlanError`] if the options do not fit the shape or each other; the message says what would.
    pub fn with_defaults(version: VersionId, shape: &Shape, options: PlanOptions) -> Result<Self, PlanError> {
        let samples: u64 = shape.shard_rows.iter().map(|rows| u64::from(*rows)).sum();
        let mut partitions = options.partitions.unwrap_or_else(|| friendly(samples / SAMPLES_PER_PARTITION));
        let grain_rows = match options.grain_rows {
            Some(rows) => rows,
            None if options.strata.is_some() => 1,
            None => default_grain_rows(shape, samples, partitions),
        };
        let grains = shape.shard_rows.iter().map(|rows| u64::from(rows / grain_rows.max(1))).sum();
        if options.partitions.is_none() && u64::from(partitions) > grains {
            partitions = friendly(grains);
        }
        let chunks = options.chunks.unwrap_or_else(|| {
            let moved = u128::from(options.q.largest().units()) * u128::from(samples);
            let each = (moved >> 32) / u128::from(partitions.max(1)) / u128::from(grain_rows.max(1));
            each.clamp(1, CHUNKS.into()) as u32
        });
        let document = PlanDocument {
            format: FORMAT,
            version,
            seed: options.seed,
            schedule: options.q,
            partitions,
            grain_rows,
            chunks,
            selection: options.selection,
            placement: options.placement,
            order: options.order,
            strata: options.strata.map(StrataOf::from),
        };
        document.check()?;
        document.check_shape(&shape.shard_rows)?;
        Ok(document)
    }

    /// Parses and checks a document; any JSON layout will do.
    ///
    /// # Errors
    /// [`PlanError::Malformed`] if this is no plan document, [`PlanError::Format`] if a newer release wrote it, and
    /// others for values out of range.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PlanError> {
        #[derive(Deserialize)]
        struct Header {
            format: u32,
        }
        let malformed = |error: serde_json::Error| PlanError::Malformed { reason: error.to_string() };
        let header: Header = serde_json::from_slice(bytes).map_err(malformed)?;
        if header.format > FORMAT {
            return Err(PlanError::Format { found: header.format, supported: FORMAT });
        }
        let document: PlanDocument = serde_json::from_slice(bytes).map_err(malformed)?;
        document.check()?;
        Ok(document)
    }

    /// The canonical form: compact JSON, fields in the order of the type.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a document is numbers and strings")
    }

    /// The BLAKE3 digest of the canonical form.
    pub fn id(&self) -> PlanId {
        PlanId(Digest::of(&self.to_bytes()))
    }

    /// Gives the document its strata, of which it has only the id when it was read. `bytes` is their encoding.
    ///
    /// # Errors
    /// [`PlanError::Strata`] if these are not they.
    pub fn supply_strata(&mut self, bytes: &[u8]) -> Result<(), PlanError> {
        let supplied = self.strata.as_ref().map(|strata| strata.supplied(bytes)).transpose()?;
        self.strata = supplied;
        Ok(())
    }

    /// Whether each field is in range by itself.
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        if self.format != FORMAT {
            return match self.format {
                0 => Err(PlanError::Malformed { reason: "format 0 was never written".into() }),
                found => Err(PlanError::Format { found, supported: FORMAT }),
            };
        }
        if self.partitions == 0 {
            return Err(PlanError::NoPartitions { default: FRIENDLY[FRIENDLY.len() - 1] });
        }
        if !self.grain_rows.is_power_of_two() || self.grain_rows > LARGEST_GRAIN {
            let fitting = power_of_two_up_to(self.grain_rows.clamp(1, LARGEST_GRAIN));
            return Err(PlanError::GrainRows { grain_rows: self.grain_rows, fitting });
        }
        if self.chunks == 0 || self.chunks > MOST_CHUNKS {
            return Err(PlanError::Chunks { chunks: self.chunks, largest: MOST_CHUNKS });
        }
        if self.order == (Order::Blocked { slots: 0 }) {
            return Err(PlanError::NoBlockSlots);
        }
        if self.strata.is_some() && self.grain_rows != 1 {
            return Err(PlanError::StrataOfGrains { grain_rows: self.grain_rows });
        }
        Ok(())
    }

    /// Whether the partitions have grains to hold in a version with these shards.
    pub(crate) fn check_shape(&self, shard_rows: &[u32]) -> Result<(), PlanError> {
        if shard_rows.len() > u32::MAX as usize {
            return Err(PlanError::TooManyShards { shards: shard_rows.len() });
        }
        let largest = shard_rows.iter().copied().max().unwrap_or(0);
        if largest == 0 {
            return Err(PlanError::NoSamples);
        }
        let grain_rows = self.grain_rows;
        let grains: u64 = shard_rows.iter().map(|rows| u64::from(rows / grain_rows)).sum();
        if grains == 0 {
            return Err(PlanError::NoFullGrain { grain_rows, largest, fitting: power_of_two_up_to(largest) });
        }
        if grains < u64::from(self.partitions) {
            let fitting = if grains > 96 { grains as u32 } else { friendly(grains) };
            return Err(PlanError::TooManyPartitions {
                partitions: self.partitions,
                grains,
                grain_rows,
                fitting,
            });
        }
        self.check_strata(grains)
    }

    fn check_strata(&self, samples: u64) -> Result<(), PlanError> {
        let Some(strata) = &self.strata else { return Ok(()) };
        let Some(found) = strata.get() else {
            return Err(PlanError::StrataMissing { strata: strata.id().short() });
        };
        if found.sample_count() != samples {
            return Err(PlanError::StrataOfOthers { found: found.sample_count(), samples });
        }
        let (strata, partitions) = (found.names().len(), self.partitions);
        if strata as u64 * u64::from(partitions) > MOST_CELLS {
            let fitting = (MOST_CELLS / strata as u64) as u32;
            return Err(PlanError::TooManyCells { strata, partitions, fitting });
        }
        Ok(())
    }
}

/// The largest partition count of [`FRIENDLY`] up to `most`, at least 1.
fn friendly(most: u64) -> u32 {
    FRIENDLY.into_iter().rfind(|p| u64::from(*p) <= most).unwrap_or(1)
}

fn default_grain_rows(shape: &Shape, samples: u64, partitions: u32) -> u32 {
    let row_bytes = (shape.row_bytes / samples.max(1)).max(1);
    let by_bytes = GRAIN_BYTES / row_bytes;
    let by_count = samples / (GRAINS_PER_PARTITION * u64::from(partitions.max(1)));
    let mut rows = power_of_two_up_to(by_bytes.min(by_count).max(1) as u32);
    // Shards much smaller than usual have few full grains of that size.
    let full = |rows: u32| -> u64 { shape.shard_rows.iter().map(|shard| u64::from(shard / rows)).sum() };
    while rows > 1 && full(rows) < u64::from(partitions) {
        rows /= 2;
    }
    rows
}

/// The largest power of two that is at most `n`, which is not 0.
fn power_of_two_up_to(n: u32) -> u32 {
    1 << n.ilog2()
}
