//! Small files that survive power loss: written whole or not at all. Does not know their contents.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Begins the names of files being written; one left behind by a crash is overwritten by the next write.
pub const UNFINISHED: char = '~';

/// Makes `bytes` the content of `dir/name`, durably: a reader sees the content before or after, never a
/// mixture. Callers exclude each other per name.
pub fn replace(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let unfinished = dir.join(format!("{UNFINISHED}{name}"));
    let mut file = File::create(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, dir.join(name))?;
    sync_dir(dir)
}

/// Removes the file at `path`, durably. It need not be there.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => path.parent().map_or(Ok(()), sync_dir),
    }
}

/// Makes the names in `dir` durable.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// The content of the file at `path`, or `None` when there is none.
pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}
