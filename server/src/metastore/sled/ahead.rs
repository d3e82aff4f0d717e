//! Whether the metadata has changed since it was copied to the store: remembered in a file beside it, which is there before
//! the first such change is acknowledged. So a node whose metadata is damaged knows whether the copy has all of it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The mark, if anybody copies.
#[derive(Default)]
pub(super) struct Ahead {
    path: Option<PathBuf>,
    is_set: bool,
}

impl Ahead {
    /// The mark is this file.
    pub(super) fn at(path: PathBuf) -> Ahead {
        Ahead { is_set: path.exists(), path: Some(path) }
    }

    /// Before a change is made: durably.
    pub(super) fn set(&mut self) -> io::Result<()> {
        let Some(path) = self.path.as_deref().filter(|_| !self.is_set) else { return Ok(()) };
        File::create(path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        self.is_set = true;
        Ok(())
    }

    /// All changes are copied. Where the mark comes back after a crash, it only says less than is known.
    pub(super) fn clear(&mut self) {
        if let Some(path) = &self.path
            && std::fs::remove_file(path).is_ok()
        {
            self.is_set = false;
        }
    }
}
