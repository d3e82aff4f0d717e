//! A manifest in a directory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::ManifestBytes;

/// Where a manifest and its tree lie on disk.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};
/// # use std::sync::Arc;
/// # let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1, 5]));
/// # let rows = RecordBatch::try_from_iter([("label", labels)])?;
/// # let mut writer = shardfmt::ShardWriter::new(rows.schema())?;
/// # writer.push(&rows)?;
/// # let finished = writer.finish()?;
/// # let config = serde_json::json!({});
/// # let manifest = shardfmt::Manifest::new(rows.schema(), vec![finished.entry.clone()], config);
/// use shardfmt::ManifestFile;
/// use shardfmt::manifest::{LocalManifest, tree_of};
///
/// let dir = tempfile::tempdir()?;
/// let place = LocalManifest { file: dir.path().join("manifest"), tree: dir.path().join("tree") };
/// let bytes = manifest.encode();
/// std::fs::write(&place.file, &bytes)?;
/// if let Some(tree) = tree_of(&bytes) {
///     std::fs::write(&place.tree, tree)?;
/// }
/// assert_eq!(ManifestFile::open(manifest.id(), place)?.manifest()?, manifest);
/// # Ok(())
/// # }
/// ```
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
