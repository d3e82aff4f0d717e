//! Follows a file of JSON lines while another process writes it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde::de::DeserializeOwned;

/// Remembers how far the file has been read.
pub(crate) struct Tail {
    path: PathBuf,
    read_bytes: u64,
    partial: Vec<u8>,
}

impl Tail {
    /// Follows `path` from its beginning; the file need not be there yet.
    pub(crate) fn new(path: PathBuf) -> Tail {
        Tail { path, read_bytes: 0, partial: Vec::new() }
    }

    /// The output since the last call, in whole lines. Lines of another shape are passed over: progress is a
    /// courtesy and must not stop the work it tells of.
    pub(crate) fn lines<T: DeserializeOwned>(&mut self) -> Vec<T> {
        let Ok(mut file) = File::open(&self.path) else { return Vec::new() };
        if file.seek(SeekFrom::Start(self.read_bytes)).is_err() {
            return Vec::new();
        }
        let Ok(read) = file.read_to_end(&mut self.partial) else { return Vec::new() };
        self.read_bytes += read as u64;
        let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let whole: Vec<u8> = self.partial.drain(..=end).collect();
        whole.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn half_a_line_waits_for_its_other_half() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut tail = Tail::new(file.path().to_owned());
        assert_eq!(tail.lines::<u32>(), [0; 0]);
        write!(file, "1\n2\n3").unwrap();
        assert_eq!(tail.lines::<u32>(), [1, 2]);
        assert_eq!(tail.lines::<u32>(), [0; 0]);
        write!(file, "4\noops\n5\n").unwrap();
        assert_eq!(tail.lines::<u32>(), [34, 5]);
    }
}
