//! The difference of two versions whose shards are in a store.

use shardfmt::compare::{self, Diff, DiffError};
use shardfmt::manifest::ShardEntry;
use shardfmt::store::Store;

use super::store::need_sidecar;
use super::{Base, VersionError};
use crate::Progress;

/// Compares two versions whose shards are in `store`.
///
/// # Errors
///
/// When the sidecar of a shard that only one of them has is missing or damaged, or temporary files cannot be written.
pub fn diff(
    old: Base<'_>,
    new: Base<'_>,
    store: &dyn Store,
    progress: &dyn Progress,
) -> Result<Diff, VersionError> {
    let sidecar = |entry: &ShardEntry| need_sidecar(store, entry);
    let counted = |entry: &ShardEntry| progress.advanced(u64::from(entry.rows), entry.row_bytes, "comparing");
    let found =
        compare::diff(old.manifest, new.manifest, &sidecar, &counted).map_err(|error| match error {
            DiffError::Sidecar(error) => error,
            DiffError::Spill(source) => VersionError::spill(source),
        })?;
    Ok(Diff { inputs: compare::inputs(old.provenance, new.provenance), ..found })
}
