//! A bounded number of open segment files, the least recently used closed first. Does not know their
//! contents.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use shardfmt::shard::file_will_need;

use super::{CacheError, Location};

/// Reads grains by [`Location`], keeping a bounded number of files open: for processes that share a machine with the
/// cache and know the places of grains. An unlinked segment stays readable as long as it is open here.
pub struct SegmentReader {
    files: OpenFiles,
}

impl SegmentReader {
    /// A reader that keeps at most `max_open` files open.
    pub fn new(max_open: usize) -> Self {
        let mut options = OpenOptions::new();
        options.read(true);
        Self { files: OpenFiles::new(max_open, options) }
    }

    /// The bytes at `location`, unverified.
    ///
    /// # Errors
    ///
    /// [`CacheError::Gone`] when the segment has been dropped: ask again where the grain is.
    pub fn read(&self, location: &Location) -> Result<Bytes, CacheError> {
        self.files.read(location)
    }
}

pub(super) struct OpenFiles {
    max_open: usize,
    options: OpenOptions,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    files: HashMap<Arc<Path>, (Arc<File>, u64)>,
    uses: u64,
}

impl OpenFiles {
    pub(super) fn new(max_open: usize, options: OpenOptions) -> Self {
        assert!(max_open > 0, "no file could ever be read");
        Self { max_open, options, open: Mutex::default() }
    }

    /// The file at `path`, opened if it is not.
    pub(super) fn file(&self, path: &Arc<Path>) -> io::Result<Arc<File>> {
        if let Some(file) = self.opened(path) {
            return Ok(file);
        }
        let file = Arc::new(self.options.open(path)?);
        self.keep(path, &file);
        Ok(file)
    }

    /// As [`file`](Self::file), creating an empty one when there is none.
    pub(super) fn file_or_create(&self, path: &Arc<Path>) -> io::Result<Arc<File>> {
        if let Some(file) = self.opened(path) {
            return Ok(file);
        }
        let file = Arc::new(self.options.clone().create(true).truncate(false).open(path)?);
        self.keep(path, &file);
        Ok(file)
    }

    pub(super) fn read(&self, location: &Location) -> Result<Bytes, CacheError> {
        let read = || {
            let mut bytes = vec![0; location.len as usize];
            self.file(&location.segment)?.read_exact_at(&mut bytes, location.offset)?;
            Ok(Bytes::from(bytes))
        };
        read().map_err(|error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => CacheError::Gone { segment: location.segment.to_path_buf() },
            _ => CacheError::io("read", &location.segment, error),
        })
    }

    pub(super) fn will_need(&self, location: &Location) {
        let Ok(file) = self.file(&location.segment) else { return };
        file_will_need(&file, location.offset, location.len.into());
    }

    /// Closes the file as soon as no one uses it.
    pub(super) fn forget(&self, path: &Path) {
        self.open.lock().expect("no panic while held").files.remove(path);
    }

    fn opened(&self, path: &Path) -> Option<Arc<File>> {
        let mut open = self.open.lock().expect("no panic while held");
        open.uses += 1;
        let now = open.uses;
        open.files.get_mut(path).map(|(file, last_use)| {
            *last_use = now;
            file.clone()
        })
    }

    fn keep(&self, path: &Arc<Path>, file: &Arc<File>) {
        let mut open = self.open.lock().expect("no panic while held");
        if open.files.len() >= self.max_open
            && let Some(oldest) =
                open.files.iter().min_by_key(|(_, (_, use_))| *use_).map(|(path, _)| path.clone())
        {
            open.files.remove(&oldest);
        }
        let now = open.uses;
        open.files.insert(path.clone(), (file.clone(), now));
    }
}

#[cfg(test)]
impl OpenFiles {
    /// Uses `file` for `path` from here on.
    pub(super) fn put_for_test(&self, path: &Arc<Path>, file: File) {
        self.keep(path, &Arc::new(file));
    }
}
