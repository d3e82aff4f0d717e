//! Operations on whole versions: compare two, add to one, leave samples out of one, cut one into other shards, check and mend
//! one, take one elsewhere.
//!
//! Each reads shards through a [`Store`], verifies all that it reads, and gives new shards to a
//! [`Sink`](crate::Sink); committing the manifest that comes out is up to the caller. The result depends on
//! the input alone: not on threads, memory or the clock. Knows nothing of networks, names of datasets and
//! commits; `docs/OPERATIONS.md` says what each operation promises.

mod append;
mod damage;
mod derive;
mod diff;
mod error;
mod export;
mod forget;
mod layout;
mod matcher;
mod repair;
mod reshard;
mod rewrite;
mod settings;
mod store;
mod stretch;
#[cfg(test)]
mod tests;
mod verify;

use shardfmt::Provenance;
use shardfmt::digest::VersionId;
use shardfmt::manifest::Manifest;

pub use append::{AppendError, append, open_to_append, refuse_file};
pub use damage::{Damage, File};
pub use derive::{DeriveError, Derived, derive};
pub use diff::diff;
pub use error::VersionError;
pub use export::{ExportError, ExportFormat, ExportOptions, Exported, export};
pub use forget::{find_rows, forget};
pub use layout::{Layout, made_of};
pub use matcher::{Condition, ConditionError, Matcher};
pub use repair::{Lost, Mended, Repair};
pub use reshard::reshard;
pub(crate) use settings::recorded;
pub use settings::{appending, settings};
pub use shardfmt::compare::{Change, ColumnDrift, Diff, Drift, LabelShare, Numbers, SchemaChange, drift};
pub use shardfmt::store::Store;
pub use store::{read_shard, read_sidecar};
pub use verify::{Confidence, Finding, check, sample, verify};

/// A version that an operation starts from.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kept.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::version::{append, appending, diff, verify};
/// use shardd_ingest::{IngestConfig, Inputs, NoProgress, Resources, Source, ingest};
///
/// # let kept = Kept::default();
/// let resources = Resources::threads(1);
/// let config = IngestConfig::default();
/// let source = Source::new(Inputs::in_memory("a.csv", "word\ncat\ndog\n"), &config)?;
/// let old = ingest(source, &config, &resources, &kept, &NoProgress)?;
/// let base = old.base();
///
/// let config = appending(base);
/// let source = Source::new(Inputs::in_memory("b.csv", "word\ncow\n"), &config)?;
/// let new = append(base, source, config, false, &resources, &kept, &NoProgress)?;
/// let changes = diff(base, new.base(), &kept, &NoProgress)?;
/// assert_eq!((changes.samples.kept, changes.samples.added), (2, 1));
/// assert!(verify(&new.manifest, &[0, 1], &kept, 1, &NoProgress)?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Base<'a> {
    /// Its name.
    pub id: VersionId,
    /// The shards it lists.
    pub manifest: &'a Manifest,
    /// What it was made of, if that is known. Appends and selections of columns look at it.
    pub provenance: Option<&'a Provenance>,
}

/// A pool of `threads` threads for one operation.
fn pool(threads: usize) -> Result<rayon::ThreadPool, VersionError> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads.max(1))
        .thread_name(|index| format!("version-{index}"))
        .build()
        .map_err(VersionError::Threads)
}
