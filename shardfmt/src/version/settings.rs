//! With which settings a version was made, and with which it goes on growing. Written as the manifest's configuration:
//! that of an ingest as it is, and for what was made of another version
//! `{"operation": "append" | "reshard", "base": VERSION, "ingest": [settings, ...]}`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Base;
use crate::digest::VersionId;
use crate::ingest::IngestConfig;
use crate::manifest::Manifest;
use crate::size::ByteSize;

/// The configuration of a version that was made of another.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Derived {
    operation: Operation,
    base: VersionId,
    /// For an append those of each part, in order. The last ones are what the version goes on with.
    ingest: Vec<IngestConfig>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Operation {
    Append,
    Reshard,
}

/// The settings that a version was ingested with, last in time: those of its own ingest, its last append, or what its last
/// reshard left of them. `None` when something else made it.
pub fn settings(manifest: &Manifest) -> Option<IngestConfig> {
    if let Ok(derived) = serde_json::from_value::<Derived>(manifest.config.clone()) {
        return derived.ingest.into_iter().next_back();
    }
    serde_json::from_value(manifest.config.clone()).ok()
}

/// All settings that shards of a version were ingested with, and the version that it was made of, which may have others.
pub fn lineage(manifest: &Manifest) -> (Vec<IngestConfig>, Option<VersionId>) {
    match serde_json::from_value::<Derived>(manifest.config.clone()) {
        Ok(derived) => (derived.ingest, Some(derived.base)),
        Err(_) => (settings(manifest).into_iter().collect(), None),
    }
}

/// Settings for part `part` of an append: those of the base, but for the seed, which follows from the base, and the folder
/// and kind of the files, which were those of another input.
pub fn appending(base: Base<'_>, part: usize) -> IngestConfig {
    let mut material = base.id.0.0.to_vec();
    material.extend_from_slice(&(part as u64).to_le_bytes());
    let key = blake3::derive_key("shardfmt 2026 append seed v1", &material);
    let seed = u64::from_le_bytes(key[..8].try_into().expect("8 of 32 bytes"));
    IngestConfig { seed, under: None, format: None, ..settings(base.manifest).unwrap_or_default() }
}

/// The configuration of a version with these parts appended.
pub(super) fn appended(base: Base<'_>, parts: Vec<IngestConfig>) -> Value {
    value(&Derived { operation: Operation::Append, base: base.id, ingest: parts })
}

/// The configuration of a version cut anew.
pub(super) fn resharded(base: Base<'_>, size: ByteSize) -> Value {
    let settings = settings(base.manifest).unwrap_or_default();
    let settings = IngestConfig { shard_size: Some(size), ..settings };
    value(&Derived { operation: Operation::Reshard, base: base.id, ingest: vec![settings] })
}

fn value(derived: &Derived) -> Value {
    serde_json::to_value(derived).expect("settings are plain values")
}
