//! What changed from one version to another: columns, inputs, shards and samples by content, and how far the samples are apart by
//! what the manifests say of them. Knows nothing of stores: the caller reads the sidecars.

mod diff;
mod drift;
mod schema;

pub use diff::{BoundedDiff, Bounds, Change, Diff, DiffError, LeftOut, diff, diff_within, inputs};
pub use drift::{ColumnDrift, Drift, LabelShare, Numbers, drift};
pub use schema::{SchemaChange, changes};
