//! A file of rows that did not fit memory.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::PathBuf;

/// Where a file of rows lies.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// At this path, for a later attempt to find.
    Kept(PathBuf),
    /// In this directory, or that for temporary files: no other process can open it, and it is gone when it
    /// is closed.
    Unlinked(Option<PathBuf>),
}

impl Place {
    #[cfg(test)]
    pub(super) fn unlinked() -> Place {
        Place::Unlinked(None)
    }

    pub(super) fn is_kept(&self) -> bool {
        matches!(self, Place::Kept(_))
    }

    /// A new, empty file.
    pub(super) fn create(&self) -> io::Result<File> {
        match self {
            Place::Kept(path) => {
                OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)
            }
            Place::Unlinked(Some(directory)) => {
                fs::create_dir_all(directory)?;
                tempfile::tempfile_in(directory)
            }
            Place::Unlinked(None) => tempfile::tempfile(),
        }
    }

    /// The file that an earlier attempt left, cut off after `length` bytes.
    pub(super) fn open(&self, length: u64) -> io::Result<File> {
        let Place::Kept(path) = self else { return Err(io::ErrorKind::NotFound.into()) };
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        file.set_len(length)?;
        Ok(file)
    }
}
