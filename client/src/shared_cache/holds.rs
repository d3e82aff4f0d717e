//! What each process reads: a file of its own, to which it appends, and which it locks for as long as it lives.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use shardfmt::{Digest, ShardId};

use crate::fork;

/// One entry: a word, and a shard.
const ENTRY: usize = 33;
const HELD: u8 = 1;
const RELEASED: u8 = 0;

/// A file of more entries than this is rewritten, with those that still hold.
const LONG: u64 = 1 << 15;

/// A name that no other process gives, not even one of the same number elsewhere.
pub(super) fn name() -> String {
    format!("{}-{:016x}", std::process::id(), RandomState::new().build_hasher().finish())
}

/// The shards that this process reads.
#[derive(Debug)]
pub(super) struct Holds {
    dir: PathBuf,
    /// The generation that wrote the file: a child that was forked has a file of its own.
    file: Option<(u32, PathBuf, File)>,
    entries: u64,
    held: HashSet<ShardId>,
}

impl Holds {
    /// Nothing yet; the file is made with the first.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, file: None, entries: 0, held: HashSet::new() }
    }

    pub(super) fn has(&self, id: ShardId) -> bool {
        self.is_own() && self.held.contains(&id)
    }

    /// To be called under the lock of the process that makes room.
    pub(super) fn hold(&mut self, id: ShardId) -> io::Result<()> {
        self.held.insert(id);
        let told = if !self.is_own() || self.entries > LONG { self.rewrite() } else { self.append(HELD, id) };
        if told.is_err() {
            // Half an entry may be in the file: the next one begins another.
            self.held.remove(&id);
            self.entries = LONG + 1;
        }
        told
    }

    pub(super) fn release(&mut self, id: ShardId) -> io::Result<()> {
        if self.held.remove(&id) && self.is_own() {
            self.append(RELEASED, id)?;
        }
        Ok(())
    }

    fn is_own(&self) -> bool {
        self.file.as_ref().is_some_and(|(generation, ..)| *generation == fork::generation())
    }

    fn append(&mut self, word: u8, id: ShardId) -> io::Result<()> {
        let (_, _, file) = self.file.as_mut().expect("made with the first");
        self.entries += 1;
        file.write_all(&entry(word, id))
    }

    /// Everything that holds in a new file; the old one goes, unless it is another process's.
    fn rewrite(&mut self) -> io::Result<()> {
        let name = name();
        let (path, hidden) = (self.dir.join(&name), self.dir.join(format!(".{name}")));
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(&hidden)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let all: Vec<u8> = self.held.iter().flat_map(|id| entry(HELD, *id)).collect();
        file.write_all(&all)?;
        fs::rename(&hidden, &path)?;
        if self.is_own()
            && let Some((_, old, _)) = &self.file
        {
            fs::remove_file(old)?;
        }
        self.entries = self.held.len() as u64;
        self.file = Some((fork::generation(), path, file));
        Ok(())
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        if self.is_own()
            && let Some((_, path, _)) = &self.file
        {
            let _ = fs::remove_file(path); // otherwise the process that makes room removes it
        }
    }
}

/// The shards that all living processes read. Files of others are removed.
pub(super) fn all(dir: &Path) -> io::Result<HashSet<ShardId>> {
    let mut held = HashSet::new();
    for file in fs::read_dir(dir)? {
        let path = file?.path();
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // its process has just ended
            file => file?,
        };
        if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            let _ = fs::remove_file(&path); // its process is dead
            continue;
        }
        let mut entries = Vec::new();
        file.read_to_end(&mut entries)?;
        let mut own = HashSet::new();
        for entry in entries.as_chunks::<ENTRY>().0 {
            let [word, id @ ..] = entry;
            let id = ShardId(Digest(*id));
            if *word == HELD {
                own.insert(id)
            } else {
                own.remove(&id)
            };
        }
        held.extend(own);
    }
    Ok(held)
}

fn entry(word: u8, id: ShardId) -> [u8; ENTRY] {
    let mut entry = [word; ENTRY];
    entry[1..].copy_from_slice(&id.0.0);
    entry
}
