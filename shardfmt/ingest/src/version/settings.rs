//! The settings that made a version, and those for appending to it. Written as the manifest's configuration:
//! that of an ingest as it is, and for a version that was made from another one `{"operation": "append" | "derive" |
//! "forget" | "reshard", "base": VERSION, "ingest": SETTINGS}`, with the `"rules"` of one that was derived.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shardd_views::rule::Rule;
use shardfmt::digest::VersionId;
use shardfmt::manifest::Manifest;
use shardfmt::shard::Compression;
use shardfmt::size::ByteSize;

use super::Base;
use crate::IngestConfig;

/// The configuration of a version that was made of another.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Derived {
    operation: Operation,
    base: VersionId,
    /// Those of the appended input, or the rest that resharding left: the settings of the next version.
    ingest: IngestConfig,
    /// Those that left samples out, or repeated some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rules: Vec<Rule>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Operation {
    Append,
    Derive,
    Forget,
    Reshard,
}

/// The settings that a version was ingested with, last in time: those of its own ingest, its last append, or what its last
/// reshard left of them. `None` when something else made it.
pub fn settings(manifest: &Manifest) -> Option<IngestConfig> {
    if let Ok(derived) = serde_json::from_value::<Derived>(manifest.config.clone()) {
        return Some(derived.ingest);
    }
    serde_json::from_value(manifest.config.clone()).ok()
}

/// The version that a version was made of, if it was: some of its shards may have other settings.
pub fn made_of(manifest: &Manifest) -> Option<VersionId> {
    serde_json::from_value::<Derived>(manifest.config.clone()).ok().map(|derived| derived.base)
}

/// Settings for an append: those of the base, but for the seed, which follows from the base, and the folder
/// and kind of the files, which were those of another input.
pub fn appending(base: Base<'_>) -> IngestConfig {
    let key = blake3::derive_key("shardfmt 2026 append seed v1", &base.id.0.0);
    let seed = u64::from_le_bytes(key[..8].try_into().expect("8 of 32 bytes"));
    IngestConfig { seed, under: None, format: None, ..settings(base.manifest).unwrap_or_default() }
}

/// The configuration of a version with samples appended that were ingested so.
pub(super) fn appended(base: Base<'_>, ingest: IngestConfig) -> Value {
    value(&Derived { operation: Operation::Append, base: base.id, ingest, rules: Vec::new() })
}

/// The configuration of a version that lacks samples of its base. It grows with the settings of that.
pub(super) fn without(base: Base<'_>) -> Value {
    let ingest = settings(base.manifest).unwrap_or_default();
    value(&Derived { operation: Operation::Forget, base: base.id, ingest, rules: Vec::new() })
}

/// The configuration of a version that rules made of its base.
pub(super) fn derived(
    base: Base<'_>,
    rules: Vec<Rule>,
    size: Option<ByteSize>,
    columns: Option<Vec<String>>,
) -> Value {
    let settings = settings(base.manifest).unwrap_or_default();
    let columns = columns.or(settings.columns.clone());
    let ingest = IngestConfig { shard_size: size, columns, ..settings };
    value(&Derived { operation: Operation::Derive, base: base.id, ingest, rules })
}

/// The configuration of a version cut again.
pub(super) fn resharded(base: Base<'_>, size: ByteSize, compression: Compression) -> Value {
    let settings = settings(base.manifest).unwrap_or_default();
    let ingest = IngestConfig { shard_size: Some(size), compression, ..settings };
    value(&Derived { operation: Operation::Reshard, base: base.id, ingest, rules: Vec::new() })
}

fn value(derived: &Derived) -> Value {
    serde_json::to_value(derived).expect("settings are plain values")
}
