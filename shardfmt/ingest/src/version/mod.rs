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

pub use crate::ingested::Base;
pub use crate::layout::{Layout, made_of};
pub use append::{AppendError, append, open_to_append, refuse_file};
pub(crate) use append::{check_columns, grown};
pub use damage::{Damage, File};
pub use derive::{DeriveError, Derived, derive};
pub use diff::diff;
pub use error::VersionError;
pub use export::{ExportError, ExportFormat, ExportOptions, Exported, export};
pub use forget::{find_rows, forget};
pub use matcher::{Condition, ConditionError, Matcher};
pub use repair::{Lost, Mended, Repair};
pub use reshard::{Resharding, reshard};
pub use settings::{appending, settings};
pub use shardfmt::compare::{Change, ColumnDrift, Diff, Drift, LabelShare, Numbers, SchemaChange, drift};
pub use shardfmt::store::Store;
pub use store::{read_shard, read_sidecar};
pub use verify::{Confidence, Finding, check, sample, verify};

/// A pool of `threads` threads for one operation.
fn pool(threads: usize) -> Result<rayon::ThreadPool, VersionError> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads.max(1))
        .thread_name(|index| format!("version-{index}"))
        .build()
        .map_err(VersionError::Threads)
}
