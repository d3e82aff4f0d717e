//! Slot tables that a process of this machine has worked out, so that no other has to: where a run is resumed, and where several
//! ranks read it side by side.
//!
//! ```text
//! DIR/slots/PLAN-EPOCH        a table, whole
//! DIR/slots/PLAN-EPOCH.part   one on its way, locked by the process that works it out
//! DIR/slots/lock              locked by whoever makes room
//! ```
//!
//! Nothing depends on them: a table that is missing, damaged, or of no room is worked out, or traced grain by grain.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;
use memmap2::Mmap;
use rustix::fs::statvfs;
use shardd_plan::{Epoch, Plan, SlotBytes, SlotTable};
use shardfmt::{ByteSize, PlanId};
use tracing::debug;

use super::{Locked, Part};

/// How many tables of a plan are kept: that of the epoch that is read, the one before, and the next.
const OF_A_PLAN: usize = 3;

/// All of them together take no more than this, nor more than a tenth of what the disk has free.
const LIMIT: ByteSize = ByteSize(8 << 30);

/// The slot tables that the processes of a machine share.
#[derive(Debug, Clone)]
pub struct SlotTables {
    dir: PathBuf,
    limit: ByteSize,
}

/// The turn to work out a table, which no other process has meanwhile.
#[derive(Debug)]
pub struct Turn {
    tables: SlotTables,
    part: Part,
    path: PathBuf,
}

impl SlotTables {
    /// Those in the cache directory `dir`, where a place for them is made when it is missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(dir: impl AsRef<Path>) -> io::Result<Self> {
        let dir = dir.as_ref().join("slots");
        DirBuilder::new().recursive(true).mode(0o777).create(&dir)?;
        let disk = statvfs(&dir)?;
        let free = ByteSize(disk.f_bavail.saturating_mul(disk.f_frsize) / 10);
        Ok(Self { dir, limit: free.min(LIMIT) })
    }

    /// The same, with no more than `limit` bytes.
    #[must_use]
    pub fn with_limit(self, limit: ByteSize) -> Self {
        Self { limit, ..self }
    }

    /// The table of an epoch, if a process has worked it out: mapped, and checked where it is read. A wrong
    /// one is removed.
    pub fn get(&self, plan: &Plan, epoch: Epoch) -> Option<SlotTable> {
        let path = self.path(plan.id(), epoch);
        let file = File::open(&path).ok()?;
        // SAFETY: a file of this name is written before it gets the name, and never after.
        let mapped = unsafe { Mmap::map(&file) }.ok()?;
        match SlotBytes::open(plan, epoch, Bytes::from_owner(mapped)) {
            Ok(bytes) => {
                // Marks it as used; harmless if it belongs to another user.
                let _ = file.set_modified(SystemTime::now());
                Some(SlotTable::read(plan, bytes))
            }
            Err(error) => {
                debug!(path = %path.display(), %error, "a kept table of slots cannot be used");
                let _ = fs::remove_file(&path);
                None
            }
        }
    }

    /// The table of the last epoch before `epoch` that a process has worked out.
    pub fn before(&self, plan: &Plan, epoch: Epoch) -> Option<SlotTable> {
        let begin = format!("{}-", plan.id());
        let names = fs::read_dir(&self.dir).ok()?.flatten().map(|entry| entry.file_name());
        let epochs = names.filter_map(|name| name.to_str()?.strip_prefix(&begin)?.parse().ok());
        let mut epochs: Vec<u32> = epochs.filter(|found| *found < epoch.0).collect();
        epochs.sort_unstable();
        epochs.into_iter().rev().find_map(|found| self.get(plan, Epoch(found)))
    }

    /// Removes the table of an epoch, which was found to be damaged.
    pub fn discard(&self, plan: PlanId, epoch: Epoch) {
        let _ = fs::remove_file(self.path(plan, epoch));
    }

    /// The turn to work out the table of an epoch; `None` while another process has it.
    ///
    /// # Errors
    /// When nothing can be written.
    pub fn begin(&self, plan: PlanId, epoch: Epoch) -> io::Result<Option<Turn>> {
        let path = self.path(plan, epoch);
        let part = Part::lock(path.with_extension("part")).map_err(io::Error::other)?;
        Ok(part.map(|part| Turn { tables: self.clone(), part, path }))
    }

    fn path(&self, plan: PlanId, epoch: Epoch) -> PathBuf {
        self.dir.join(format!("{plan}-{epoch}"))
    }

    /// Removes the least recently used tables, until `bytes` more find room, and the unfinished ones of dead
    /// processes.
    fn make_room(&self, plan: PlanId, part: &Path, bytes: u64) -> io::Result<bool> {
        if bytes > self.limit.0 {
            return Ok(false);
        }
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)?.flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let Ok(metadata) = entry.metadata() else { continue };
            if path == part || name == "lock" {
                continue;
            }
            let is_part = name.ends_with(".part");
            // Held until it is removed, so that no process begins meanwhile.
            let abandoned = if is_part { Part::lock(path.clone()).ok().flatten() } else { None };
            if abandoned.is_some() {
                let _ = fs::remove_file(&path);
                continue;
            }
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            files.push((used, path, metadata.len(), is_part, name.starts_with(&plan.to_string())));
        }
        files.sort();
        let mut used: u64 = files.iter().map(|file| file.2).sum();
        let mut of_plan = files.iter().filter(|file| file.4 && !file.3).count();
        for (_, path, len, is_part, is_of_plan) in files {
            let is_one_too_many = is_of_plan && of_plan >= OF_A_PLAN;
            if is_part || !is_one_too_many && used.saturating_add(bytes) <= self.limit.0 {
                continue;
            }
            if fs::remove_file(&path).is_ok() {
                used -= len;
                of_plan -= usize::from(is_of_plan);
            }
        }
        Ok(used.saturating_add(bytes) <= self.limit.0)
    }
}

impl Turn {
    /// Keeps the table, if there is room for it; whether there was. What processes have mapped stays readable to them.
    ///
    /// # Errors
    /// Those of the disk. The table is then not there, or whole.
    pub fn put(self, plan: &Plan, table: &SlotTable) -> io::Result<bool> {
        let bytes = table.written_bytes(plan);
        let lock = self.tables.dir.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(lock)?;
        // Another process makes room: the next table may be kept.
        let Some(changing) = Locked::new(lock) else { return Ok(false) };
        if !self.tables.make_room(plan.id(), &self.part.path, bytes)? {
            return Ok(false);
        }
        let mut file = &self.part.file.file;
        file.set_len(0)?; // what a process left in it that died
        file.set_len(bytes)?; // others count it from now on
        drop(changing);
        table.write(plan, |piece| file.write_all(piece))?;
        match fs::rename(&self.part.path, &self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            renamed => renamed.map(|()| true),
        }
    }
}

impl Drop for Turn {
    /// The process that waits for it has the next turn.
    fn drop(&mut self) {
        // Once it is kept, a part of this name is another process's.
        if self.part.is_at_path() {
            let _ = fs::remove_file(&self.part.path);
        }
    }
}
