//! Where the files of a version lie. Files are verified against the manifest before they are used.

use std::io;

use arrow::buffer::Buffer;
use shardfmt::digest::ShardId;
use shardfmt::manifest::ShardEntry;
use shardfmt::shard::{Shard, Sidecar};
use shardfmt::store::Store;

use super::VersionError;
use super::damage::{Damage, File};

/// The shard of a manifest's entry, its bytes verified against its name.
///
/// # Errors
///
/// Its fault.
pub fn read_shard(store: &dyn Store, entry: &ShardEntry) -> Result<Shard, Damage> {
    let bytes = present(store.shard(entry.id))?;
    let found = ShardId::of(&bytes);
    if found != entry.id {
        return Err(Damage::Corrupt(format!("its {} bytes have the digest {found}", bytes.len())));
    }
    let shard = Shard::from_bytes(bytes).map_err(|error| corrupt(&error))?;
    match shard.rows() == entry.rows {
        true => Ok(shard),
        false => Err(Damage::Corrupt(format!("it has {} rows instead of {}", shard.rows(), entry.rows))),
    }
}

/// The sidecar of a manifest's entry, its rows verified against the root.
///
/// # Errors
///
/// Its fault.
pub fn read_sidecar(store: &dyn Store, entry: &ShardEntry) -> Result<Sidecar, Damage> {
    let bytes = present(store.sidecar(entry.id))?;
    let sidecar = Sidecar::decode(&bytes).map_err(|error| corrupt(&error))?;
    if sidecar.shard != entry.id {
        return Err(Damage::Corrupt(format!("it is of shard {}", sidecar.shard)));
    }
    let right = sidecar.rows.len() as u64 == u64::from(entry.rows) && sidecar.root() == entry.root;
    match right {
        true => Ok(sidecar),
        false => Err(Damage::Corrupt("its rows do not lead to the root in the manifest".to_owned())),
    }
}

/// As [`read_shard`], for operations that cannot continue without it.
pub(super) fn need_shard(store: &dyn Store, entry: &ShardEntry) -> Result<Shard, VersionError> {
    read_shard(store, entry).map_err(|damage| VersionError::damaged(File::Shard, entry.id, damage))
}

/// As [`read_sidecar`], for operations that cannot continue without it.
pub(super) fn need_sidecar(store: &dyn Store, entry: &ShardEntry) -> Result<Sidecar, VersionError> {
    read_sidecar(store, entry).map_err(|damage| VersionError::damaged(File::Sidecar, entry.id, damage))
}

fn present(read: io::Result<Option<Buffer>>) -> Result<Buffer, Damage> {
    match read {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(Damage::Missing),
        Err(error) => Err(Damage::Unreadable(one_line(&error))),
    }
}

pub(super) fn corrupt(error: &dyn std::error::Error) -> Damage {
    Damage::Corrupt(one_line(error))
}

/// The error and its causes in one line.
pub(super) fn one_line(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        line = format!("{line}: {inner}");
        cause = inner.source();
    }
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}
