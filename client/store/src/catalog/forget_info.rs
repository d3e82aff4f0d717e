//! The rows to forget, and the objects that hold them. Plain values with one JSON form, for people, scripts
//! and the HTTP API alike.

use serde::{Deserialize, Serialize};
use shardfmt::{DatasetName, RowDigest, ShardId, VersionId};

use super::{PlanInfo, RunInfo, TagInfo, Tally};

/// Which rows are to be forgotten, and how.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_store::catalog::{Catalog, LocalCatalog};
/// # let (shard, manifest) = numbers()?;
/// # let directory = tempfile::tempdir()?;
/// # let catalog = LocalCatalog::open(directory.path())?;
/// # catalog.put_shard(&shard)?;
/// # let name: shardfmt::DatasetName = "numbers".parse()?;
/// # let note = shardd_store::catalog::CommitNote::of(shardfmt::Operation::INGEST);
/// # let dataset = catalog.commit(&name, None, &manifest, &note)?;
/// use shardd_store::catalog::Forget;
///
/// // Look first: nothing is changed until `dry_run` is false.
/// let forget = Forget { rows: vec![shard.sidecar.rows[7]], ..Forget::default() };
/// let report = catalog.forget(&forget)?;
/// assert_eq!((report.rows, report.shards.len()), (1, 1));
/// assert!(report.datasets[0].is_present);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Forget {
    /// The digests of the rows; none: only what an earlier forget has left half done.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<shardd_api::schema::RowDigest>))]
    pub rows: Vec<RowDigest>,
    /// Change nothing, only say what holds the rows. Default: true.
    pub dry_run: bool,
    /// Also remove runs whose ranks were heard of in the last 15 minutes.
    pub force: bool,
    /// Also remove the checkpoints of the runs.
    pub checkpoints: bool,
}

impl Forget {
    /// The most rows that one request can forget.
    pub const MOST_ROWS: usize = 200_000;
}

impl Default for Forget {
    fn default() -> Self {
        Self { rows: Vec::new(), dry_run: true, force: false, checkpoints: false }
    }
}

/// The objects that held the rows, and those removed, or to be removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForgetReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// How many of the rows the store has, each counted once.
    pub rows: u64,
    /// The shards that have them, and those that an earlier forget has marked and not yet deleted.
    pub shards: Vec<HoldingShard>,
    /// The versions with such shards.
    pub versions: Vec<HoldingVersion>,
    /// The datasets with such versions in their history.
    pub datasets: Vec<HoldingDataset>,
    /// The tags on such versions.
    pub tags: Vec<TagInfo>,
    /// The plans over such versions.
    pub plans: Vec<PlanInfo>,
    /// The runs that read such versions.
    pub runs: Vec<RunInfo>,
    /// The objects of the store that were deleted.
    pub deleted: Tally,
}

/// A shard with rows that are to be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HoldingShard {
    /// The shard.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub shard: ShardId,
    /// How many of its rows are to be forgotten; 0 if an earlier forget has marked it.
    pub rows: u64,
}

/// A version with rows that are to be forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HoldingVersion {
    /// The version.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub version: VersionId,
    /// The dataset it was first committed to; null if it never was.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<shardd_api::schema::DatasetName>))]
    pub dataset: Option<DatasetName>,
    /// Its samples.
    pub samples: u64,
    /// How many of them are to be forgotten.
    pub rows: u64,
    /// How many of its shards have one.
    pub shards: u64,
}

/// A dataset whose history has versions with rows that are to be forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HoldingDataset {
    /// The dataset.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::DatasetName))]
    pub name: DatasetName,
    /// Its present version.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub version: VersionId,
    /// Whether the present version has such rows.
    pub is_present: bool,
    /// How many commits of its history led to such versions.
    pub commits: u64,
    /// How many commits are cut off with them: those and all before the last of them.
    pub cut: u64,
}
