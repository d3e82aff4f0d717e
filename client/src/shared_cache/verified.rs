//! Which files were found to be their shards since the machine was started: so that each is hashed once, and not by every
//! process that reads it.
//!
//! A file is identified by its place, its size, and the time of its last change of any kind, which a writer
//! cannot choose. A crash of the machine may have kept them and lost the bytes, so nothing is believed from
//! before its last start.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use shardfmt::{Digest, ShardId};
use tracing::debug;

/// A shard, and what tells its file.
const ENTRY: usize = 32 + 5 * 8;

type Traits = [u8; 5 * 8];

/// Files that were checked.
#[derive(Debug)]
pub(super) struct Verified {
    known: HashMap<ShardId, Traits>,
    /// Where others learn of it; `None` if they cannot.
    log: Option<File>,
}

impl Verified {
    /// The notes of processes in `dir`. Unreadable notes only mean a second check.
    pub(super) fn open(dir: &Path) -> Self {
        let mut found = Self { known: HashMap::new(), log: None };
        let Ok(boot) = fs::read_to_string("/proc/sys/kernel/random/boot_id") else { return found };
        let path = dir.join(boot.trim());
        if let Ok(entries) = fs::read(&path) {
            for entry in entries.as_chunks::<ENTRY>().0 {
                let (id, traits) = entry.split_first_chunk().expect("an entry is longer");
                let traits = traits.try_into().expect("the rest of an entry");
                found.known.insert(ShardId(Digest(*id)), traits);
            }
        } else {
            forget(dir, &path);
        }
        match OpenOptions::new().create(true).append(true).open(&path) {
            Ok(log) => found.log = Some(log),
            Err(error) => debug!(path = %path.display(), %error, "the checked segments cannot be noted"),
        }
        found
    }

    pub(super) fn has(&self, id: ShardId, path: &Path) -> bool {
        self.known.get(&id).is_some_and(|known| traits(path).is_some_and(|now| now == *known))
    }

    /// Unless the file has changed since it was seen like that.
    pub(super) fn note(&mut self, id: ShardId, path: &Path, Seen(seen): Seen) {
        let Some(traits) = traits(path).filter(|traits| Some(*traits) == seen) else { return };
        self.known.insert(id, traits);
        if let Some(log) = &mut self.log {
            let entry = [id.0.0.as_slice(), &traits].concat();
            // In one piece: others append to it as well.
            if let Err(error) = log.write_all(&entry) {
                debug!(%error, "the checked segments can no longer be noted");
                self.log = None;
            }
        }
    }
}

/// The state of a file before it was read.
#[derive(Debug, Clone, Copy)]
pub struct Seen(Option<Traits>);

impl Seen {
    /// Now.
    pub fn now(path: &Path) -> Self {
        Self(traits(path))
    }
}

/// Removes the notes from before the machine was started.
fn forget(dir: &Path, but: &Path) {
    for file in fs::read_dir(dir).into_iter().flatten().flatten() {
        if file.path() != but {
            let _ = fs::remove_file(file.path());
        }
    }
}

fn traits(path: &Path) -> Option<Traits> {
    let file = fs::metadata(path).ok()?;
    let parts =
        [file.dev(), file.ino(), file.len(), file.ctime().cast_unsigned(), file.ctime_nsec().cast_unsigned()];
    let mut traits = [0; size_of::<Traits>()];
    for (to, part) in traits.as_chunks_mut::<8>().0.iter_mut().zip(parts) {
        *to = part.to_le_bytes();
    }
    Some(traits)
}
