//! Files that are compressed as a whole: recognised by their first bytes, decompressed as they are read. Does
//! not know their contents.

use std::io::{self, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use zstd::Decoder as ZstdDecoder;

const READ: usize = 64 << 10;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    /// The compression by the first bytes of a file (four are enough).
    pub(super) fn of(head: &[u8]) -> Option<Compression> {
        match head {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            // A frame, or one that is to be skipped, as parallel compressors write.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Compression::Zstd),
            _ => None,
        }
    }
}

/// The content of a file, decompressed if it is compressed, and whether it is.
pub(super) fn decompressed<'r>(mut file: impl Read + 'r) -> io::Result<(Box<dyn Read + 'r>, bool)> {
    let mut head = Vec::new();
    file.by_ref().take(4).read_to_end(&mut head)?;
    let compression = Compression::of(&head);
    let whole = Cursor::new(head).chain(file);
    let content: Box<dyn Read + 'r> = match compression {
        None => Box::new(whole),
        Some(Compression::Gzip) => Box::new(MultiGzDecoder::new(BufReader::with_capacity(READ, whole))),
        Some(Compression::Zstd) => Box::new(ZstdDecoder::new(whole)?),
    };
    Ok((content, compression.is_some()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn read(file: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        decompressed(file)?.0.read_to_end(&mut content)?;
        Ok(content)
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    proptest! {
        #[test]
        fn content_is_the_same_however_it_is_compressed(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 5..50), 1..4)) {
            let content = parts.concat();
            prop_assume!(Compression::of(&content).is_none());
            prop_assert_eq!(&read(&content).unwrap(), &content);
            // Compressed files that follow each other are one.
            let zipped: Vec<u8> = parts.iter().flat_map(|part| gzip(part)).collect();
            prop_assert_eq!(&read(&zipped).unwrap(), &content);
            prop_assert!(read(&zipped[..zipped.len() - 1]).is_err());
            let frames: Vec<u8> = parts.iter().flat_map(|part| zstd::encode_all(part.as_slice(), 1).unwrap()).collect();
            prop_assert_eq!(&read(&frames).unwrap(), &content);
            prop_assert!(read(&frames[..frames.len() - 1]).is_err());
        }
    }
}
