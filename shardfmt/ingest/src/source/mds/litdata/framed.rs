//! Chunks whose samples are compressed some at a time: a head, and then frames of Zstandard. They are read as the chunk
//! that they were made of.

use std::collections::VecDeque;
use std::io::{self, Cursor, ErrorKind, Read};

use crate::source::tars::LARGEST_MEMBER;

const MAGIC: &[u8; 8] = b"LDFZ01\0\0";

/// The content of a chunk, from its beginning to its end.
pub(in crate::source::mds) struct Framed<R> {
    chunk: R,
    /// The compressed and the uncompressed length of the frames to come.
    frames: VecDeque<(u32, u32)>,
    /// The part to be read before those.
    part: Cursor<Vec<u8>>,
}

impl<R: Read> Framed<R> {
    /// Reads the head of a chunk.
    pub(in crate::source::mds) fn new(mut chunk: R) -> io::Result<Framed<R>> {
        let mut prefix = [0; 24];
        chunk.read_exact(&mut prefix)?;
        if prefix[..8] != *MAGIC {
            return Err(damaged("it does not begin as chunks of frames do"));
        }
        if u16::from_le_bytes([prefix[8], prefix[9]]) != 1 {
            return Err(damaged("its frames are of another version than 1"));
        }
        let [samples, _, frames] = [12, 16, 20].map(|at| word(&prefix[at..]));
        let mut offsets = Vec::new();
        let wanted = 4 * (u64::from(samples) + 1);
        if chunk.by_ref().take(wanted).read_to_end(&mut offsets)? as u64 != wanted {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut end = prefix.len() as u64 + wanted + 24 * u64::from(frames);
        let (mut listed, mut unpacked) = (VecDeque::new(), 0u64);
        for _ in 0..frames {
            let mut frame = [0; 24];
            chunk.read_exact(&mut frame)?;
            let [low, high, packed, length] = [8, 12, 16, 20].map(|at| word(&frame[at..]));
            let start = u64::from(high) << 32 | u64::from(low);
            if start != end {
                return Err(damaged("its frames do not follow each other"));
            }
            end += u64::from(packed);
            unpacked += u64::from(length);
            listed.push_back((packed, length));
        }
        // As the table of a chunk without frames: the number of samples, and where each begins, behind the table.
        let first = 4 + wanted;
        let mut table = samples.to_le_bytes().to_vec();
        for offset in offsets.as_chunks().0 {
            let offset = u64::from(u32::from_le_bytes(*offset));
            let place = u32::try_from(first + offset).ok().filter(|_| offset <= unpacked);
            let place = place.ok_or_else(|| damaged("it lists a sample behind its end"))?;
            table.extend(place.to_le_bytes());
        }
        Ok(Framed { chunk, frames: listed, part: Cursor::new(table) })
    }
}

impl<R: Read> Read for Framed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.part.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some((packed, length)) = self.frames.pop_front() else { return Ok(0) };
            let mut frame = Vec::new();
            if self.chunk.by_ref().take(u64::from(packed)).read_to_end(&mut frame)? < packed as usize {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let unpacked = inflate(&frame, u64::from(length).min(LARGEST_MEMBER))?;
            if unpacked.len() as u64 != u64::from(length) {
                return Err(damaged("a frame of it has another length than is listed"));
            }
            self.part = Cursor::new(unpacked);
        }
    }
}

/// Decompresses bytes that make at most `most`.
pub(in crate::source::mds) fn inflate(packed: &[u8], most: u64) -> io::Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    let read = zstd::Decoder::new(packed)?.take(most + 1).read_to_end(&mut unpacked)?;
    if read as u64 > most {
        return Err(damaged("it expands to more than is listed"));
    }
    Ok(unpacked)
}

fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

fn damaged(reason: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As LitData writes them: `framed_zstd.pack_framed_zstd`.
    fn pack(samples: &[Vec<u8>], rows: usize) -> Vec<u8> {
        let frames: Vec<(usize, Vec<u8>, usize)> = samples
            .chunks(rows)
            .map(|some| {
                (some.len(), zstd::encode_all(some.concat().as_slice(), 1).unwrap(), some.concat().len())
            })
            .collect();
        let counts = [samples.len(), rows, frames.len()].map(|count| (count as u32).to_le_bytes());
        let mut bytes = [&MAGIC[..], &[1, 0, 0, 0], &counts.concat()].concat();
        let mut end = 0u32;
        bytes.extend(end.to_le_bytes());
        for sample in samples {
            end += sample.len() as u32;
            bytes.extend(end.to_le_bytes());
        }
        let (mut first, mut start) = (0u32, (bytes.len() + 24 * frames.len()) as u64);
        for (count, frame, length) in &frames {
            bytes.extend([first.to_le_bytes(), (*count as u32).to_le_bytes()].concat());
            bytes.extend(start.to_le_bytes());
            bytes.extend([(frame.len() as u32).to_le_bytes(), (*length as u32).to_le_bytes()].concat());
            (first, start) = (first + *count as u32, start + frame.len() as u64);
        }
        frames.iter().for_each(|(_, frame, _)| bytes.extend(frame));
        bytes
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        Framed::new(bytes)?.read_to_end(&mut all)?;
        Ok(all)
    }

    proptest! {
        #[test]
        fn a_chunk_of_frames_is_read_as_the_one_without(
            samples in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 1..12),
            rows in 1..5usize,
            change in any::<prop::sample::Index>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut packed = pack(&samples, rows);
            let (mut table, mut end) = ((samples.len() as u32).to_le_bytes().to_vec(), 8 + 4 * samples.len());
            table.extend((end as u32).to_le_bytes());
            for sample in &samples {
                end += sample.len();
                table.extend((end as u32).to_le_bytes());
            }
            prop_assert_eq!(read(&packed).unwrap(), [table, samples.concat()].concat());
            prop_assert!(read(&packed[..cut.index(packed.len())]).is_err());
            let at = change.index(packed.len());
            packed[at] ^= 0x55;
            let _ = read(&packed);
        }
    }
}
