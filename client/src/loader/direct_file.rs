//! Files that are read past the page cache, in whole pages.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use arrow::buffer::Buffer;
use shardfmt::row::Memory;

/// Offsets, lengths and addresses are multiples of this: of the blocks of all usual disks.
const BLOCK: u64 = 4096;

/// Which file it is that a path names: another may take its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
    pub(crate) bytes: u64,
}

impl FileId {
    /// The file that has this path now.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        path.metadata().map(|metadata| Self::of(&metadata))
    }

    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino(), bytes: metadata.len() }
    }
}

/// A file whose pages the kernel does not keep.
#[derive(Debug)]
pub(crate) struct DirectFile(File);

impl DirectFile {
    /// # Errors
    /// Those of the file system; [`io::ErrorKind::InvalidInput`] where it gives bytes from its pages alone.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
        options.open(path).map(Self)
    }

    pub(crate) fn id(&self) -> io::Result<FileId> {
        self.0.metadata().map(|metadata| FileId::of(&metadata))
    }

    pub(crate) fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    /// Bytes of the file, in memory that `memory` lends. They begin at the same remainder of [`BLOCK`] as they do in the file.
    ///
    /// # Errors
    /// Those of the disk, and [`io::ErrorKind::UnexpectedEof`] when the file has fewer.
    pub(crate) fn read(&self, range: Range<u64>, memory: &dyn Memory) -> io::Result<Buffer> {
        let start = range.start / BLOCK * BLOCK;
        let length = (range.end.next_multiple_of(BLOCK) - start) as usize;
        let mut lent = memory.lend(length)?;
        if !lent.as_mut_slice().as_ptr().addr().is_multiple_of(BLOCK as usize) {
            lent = memory.lend(length + BLOCK as usize)?;
        }
        let whole = lent.as_mut_slice();
        let (total, skipped) = (whole.len(), whole.as_ptr().align_offset(BLOCK as usize));
        let place = &mut whole[skipped..skipped + length];
        let wanted = (range.end - start) as usize;
        let mut read = 0;
        while read < wanted {
            match self.0.read_at(&mut place[read..], start + read as u64) {
                // Only the end of the file is no whole block, but for file systems that pretend to know how to do this.
                Ok(more) if more == 0 || !more.is_multiple_of(BLOCK as usize) && read + more < wanted => {
                    return Err(match self.bytes()? >= range.end {
                        true => io::ErrorKind::InvalidInput.into(),
                        false => cut_off(start + (read + more) as u64, range.end),
                    });
                }
                Ok(more) => read += more,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::Unsupported => return Err(io::ErrorKind::InvalidInput.into()),
                    _ => return Err(error),
                },
            }
        }
        let at = skipped + (range.start - start) as usize;
        Ok(lent.into_buffer(total).slice_with_length(at, (range.end - range.start) as usize))
    }
}

fn cut_off(end: u64, wanted: u64) -> io::Error {
    let reason = format!("the file ends at byte {end}, and was to have {wanted} at least: it was cut off");
    io::Error::new(io::ErrorKind::UnexpectedEof, reason)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shardfmt::row::Fresh;

    use super::*;

    proptest! {
        #[test]
        fn bytes_are_those_of_the_file_and_beyond_its_end_are_none(
            length in 1usize..40_000, start in 0u64..40_000, count in 1u64..20_000,
        ) {
            let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory on the disk");
            let path = dir.path().join("file");
            let all: Vec<u8> = (0..length).map(|at| (at * 7 % 251) as u8).collect();
            std::fs::write(&path, &all).expect("writes");
            let Ok(file) = DirectFile::open(&path) else { return Ok(()) };
            prop_assert_eq!(file.bytes().expect("is known"), length as u64);
            match file.read(start..start + count, &Fresh) {
                Ok(found) => {
                    prop_assert_eq!(&found[..], &all[start as usize..(start + count) as usize]);
                    prop_assert_eq!(found.as_ptr().addr() as u64 % 4096, start % 4096);
                }
                Err(error) => {
                    prop_assert!(start + count > length as u64, "{error}");
                    prop_assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                }
            }
        }
    }
}
