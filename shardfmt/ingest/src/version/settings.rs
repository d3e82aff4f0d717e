//! The settings that made a version, and those for appending to it. The manifest has the layout of its shards
//! ([`Layout`]), and for a version that was made from another one `{"operation": "append" | "derive" | "forget" |
//! "reshard", "base": VERSION, "layout": LAYOUT}`, with the `"rules"` of one that was derived. How inputs were read is in
//! its provenance.

use serde_json::Value;
use shardd_views::rule::Rule;
use shardfmt::Provenance;
use shardfmt::manifest::Manifest;
use shardfmt::shard::Compression;
use shardfmt::size::ByteSize;

use super::Base;
use crate::IngestConfig;
use crate::layout::{Layout, Made, Operation};

/// The settings that a version was ingested with, last in time: those of its own ingest, its last append, or what its last
/// reshard left of them. `None` when something else made it. Without a provenance, only those of the layout are known, and
/// all of a manifest of format 1.
pub fn settings(manifest: &Manifest, provenance: Option<&Provenance>) -> Option<IngestConfig> {
    let recorded = match provenance {
        Some(provenance) => &provenance.settings,
        None => manifest.config.get("ingest").unwrap_or(&manifest.config),
    };
    let reading = serde_json::from_value(recorded.clone()).unwrap_or_default();
    Some(Layout::recorded(manifest)?.over(reading))
}

/// Settings for an append: those of the base, but for the seed, which follows from the base, and the folder
/// and kind of the files, which were those of another input.
pub fn appending(base: Base<'_>) -> IngestConfig {
    let key = blake3::derive_key("shardfmt 2026 append seed v1", &base.id.0.0);
    let seed = u64::from_le_bytes(key[..8].try_into().expect("8 of 32 bytes"));
    let recorded = settings(base.manifest, base.provenance).unwrap_or_default();
    IngestConfig { seed, under: None, format: None, ..recorded }
}

/// The configuration of a version with samples appended that were laid out so.
pub(super) fn appended(base: Base<'_>, layout: Layout) -> Value {
    Made { operation: Operation::Append, base: base.id, layout, rules: Vec::new() }.config()
}

/// The configuration of a version that lacks samples of its base. It grows with the settings of that.
pub(super) fn without(base: Base<'_>) -> Value {
    let layout = Layout::recorded(base.manifest).unwrap_or_default();
    Made { operation: Operation::Forget, base: base.id, layout, rules: Vec::new() }.config()
}

/// The configuration of a version that rules made of its base.
pub(super) fn derived(base: Base<'_>, rules: Vec<Rule>, size: Option<ByteSize>) -> Value {
    let recorded = Layout::recorded(base.manifest).unwrap_or_default();
    let layout = Layout { shard_size: size, ..recorded };
    Made { operation: Operation::Derive, base: base.id, layout, rules }.config()
}

/// The configuration of a version cut again.
pub(super) fn resharded(base: Base<'_>, size: ByteSize, compression: Compression) -> Value {
    let recorded = Layout::recorded(base.manifest).unwrap_or_default();
    let layout = Layout { shard_size: Some(size), compression, ..recorded };
    Made { operation: Operation::Reshard, base: base.id, layout, rules: Vec::new() }.config()
}

/// The provenance of a version with these columns alone of a base, whose own it is else: what is appended has no others.
pub(super) fn provenance_of_columns(base: Base<'_>, columns: Vec<String>) -> Option<Provenance> {
    let provenance = base.provenance?;
    let settings = settings(base.manifest, Some(provenance))?;
    let settings = IngestConfig { columns: Some(columns), ..settings };
    Some(Provenance { settings: settings.record(), ..provenance.clone() })
}
