//! A manifest in a directory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::ManifestBytes;

/// Where a manifest and its tree lie on disk.
#[derive(Debug, Clone)]
pub struct LocalManifest {
    /// The manifest.
    pub file: PathBuf,
    /// Its [tree](super::tree_of), if it is long.
    pub tree: PathBuf,
}

impl ManifestBytes for LocalManifest {
    fn whole(&self) -> io::Result<Vec<u8>> {
        std::fs::read(&self.file)
    }

    fn part(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        read(&self.file, range)
    }

    fn tree(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        read(&self.tree, range)
    }
}

fn read(path: &Path, range: Range<u64>) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let end = range.end.min(file.metadata()?.len());
    file.seek(SeekFrom::Start(range.start))?;
    let mut bytes = Vec::with_capacity(end.saturating_sub(range.start) as usize);
    file.take(end.saturating_sub(range.start)).read_to_end(&mut bytes)?;
    Ok(bytes)
}
