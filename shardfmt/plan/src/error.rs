//! Why a plan, or a run over it, is refused.

use thiserror::Error;

/// The error in a document, a shape or a number of ranks, and the way out.
///
/// ```
/// # use shardd_plan::digest::VersionId;
/// # let version = VersionId::of(b"a manifest");
/// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// use shardd_plan::{PlanDocument, PlanError, PlanOptions, Shape};
///
/// let options = |partitions| PlanOptions { partitions: Some(partitions), ..PlanOptions::default() };
/// let fitting = match PlanDocument::with_defaults(version, &shape, options(5_000)) {
///     Err(PlanError::TooManyPartitions { fitting, .. }) => fitting,
///     other => panic!("1,500 samples fill no 5,000 partitions: {other:?}"),
/// };
/// assert!(PlanDocument::with_defaults(version, &shape, options(fitting)).is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum PlanError {
    /// A share is not a number.
    #[error("exchange share {text:?} is not a decimal number: write 0, 0.1 or 1, or a list like 1,0.01")]
    ShareSyntax { text: String },
    /// A share is below 0 or above 1.
    #[error(
        "exchange share {text} is outside 0 to 1: it is the part of the samples that moves after an epoch, so use 1 to move all of them, or 0.1 for a tenth"
    )]
    ShareOutside { text: String },
    /// A share is not 0 but nearer to 0 than to 2^-32, or has more decimals than can matter.
    #[error(
        "exchange share {text} is finer than 2^-32: use 0, or at least 0.0000000003 with at most 28 decimals"
    )]
    ShareTooFine { text: String },
    /// A schedule without shares.
    #[error("the exchange schedule is empty: give at least one share, like 0.1")]
    ScheduleEmpty,
    /// A schedule with more shares than are accepted.
    #[error(
        "the exchange schedule has {len} shares but at most {longest} are accepted: the last share holds on, so end the list there"
    )]
    ScheduleTooLong { len: usize, longest: usize },
    /// The document is no plan document.
    #[error("not a plan document: {reason}")]
    Malformed { reason: String },
    /// The document was written by a newer release.
    #[error("plan format {found} is newer than this release, which reads format {supported}: upgrade shardd")]
    Format { found: u32, supported: u32 },
    /// Nothing to plan.
    #[error("the version has no samples: ingest some before planning")]
    NoSamples,
    /// The shards have more samples than a plan can number.
    #[error("{shards} shards are more than a plan can number: use larger shards (--shard-size)")]
    TooManyShards { shards: usize },
    /// No partitions asked for.
    #[error("a plan needs at least 1 partition: use --partitions {default}")]
    NoPartitions { default: u32 },
    /// Some partition would have no full grain of its own.
    #[error("{partitions} partitions but only {grains} grains: use --partitions {fitting}{}", if *grain_rows > 1 { " or a smaller --grain-rows" } else { "" })]
    TooManyPartitions { partitions: u32, grains: u64, grain_rows: u32, fitting: u32 },
    /// No shard has even one full grain.
    #[error(
        "no shard has a full grain of {grain_rows} rows (the largest has {largest}): use --grain-rows {fitting}"
    )]
    NoFullGrain { grain_rows: u32, largest: u32, fitting: u32 },
    /// The grain is no power of two.
    #[error("a grain of {grain_rows} rows is not a power of two up to 2^30: use --grain-rows {fitting}")]
    GrainRows { grain_rows: u32, fitting: u32 },
    /// The number of chunks is out of range.
    #[error("{chunks} chunks are outside 1 to {largest}: use --chunks 16")]
    Chunks { chunks: u32, largest: u32 },
    /// A block of no slots.
    #[error("a block needs at least 1 slot: use --block-slots 8, or the default order of single samples")]
    NoBlockSlots,
    /// The strata are unfit, or damaged.
    #[error("strata: {reason}")]
    Strata { reason: String },
    /// The strata are not here, only their id.
    #[error("the plan has strata {strata}, which were not read with it: read the plan from its store")]
    StrataMissing { strata: String },
    /// The strata are those of another version.
    #[error("strata of {found} samples are not those of a version of {samples}: make them from this version")]
    StrataOfOthers { found: u64, samples: u64 },
    /// Strata of grains of several rows.
    #[error(
        "a grain of {grain_rows} rows may be of several strata: use --grain-rows 1, or leave --stratify out"
    )]
    StrataOfGrains { grain_rows: u32 },
    /// More strata and partitions than a plan keeps count of.
    #[error(
        "{strata} strata in {partitions} partitions are more than 2^24 together: use --partitions {fitting}"
    )]
    TooManyCells { strata: usize, partitions: u32, fitting: u32 },
    /// The virtual ranks cannot share the partitions equally.
    #[error("{virtual_ranks} virtual ranks cannot share {partitions} partitions equally: use {fitting}")]
    VirtualRanks { virtual_ranks: u32, partitions: u32, fitting: String },
    /// More ranks than virtual ranks, or none.
    #[error("{world} ranks cannot share {virtual_ranks} virtual ranks: start 1 to {virtual_ranks} ranks ({equal} for equal shares){}", larger_run(*world, *partitions))]
    World { world: u32, virtual_ranks: u32, partitions: u32, equal: String },
}

fn larger_run(world: u32, partitions: u32) -> String {
    match super::divisors::smallest_divisor_from(partitions, world) {
        Some(fitting) if world > 0 => format!(", or a new run with {fitting} virtual ranks"),
        _ => String::new(),
    }
}
