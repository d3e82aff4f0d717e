//! One shard: its file, its content, its table of samples.

use std::io::{BufReader, Read};

use sha1::{Digest as _, Sha1};
use shardfmt::digest::to_hex;
use shardfmt::manifest::InputDigest;
use twox_hash::XxHash64;

use super::format::{Bounds, FileInfo, ShardInfo};
use crate::IngestError;
use crate::input::{InputFile, OpenInput};
use crate::inputs::Inputs;
use crate::source::Stopped;
use crate::source::images::Load;
use crate::source::tars::LARGEST_MEMBER;
use crate::source::unpack::{Spool, Unpacked};

#[derive(Debug)]
pub(super) struct MdsShard {
    pub(super) file: InputFile,
    is_compressed: bool,
    pub(super) samples: u64,
    /// Its uncompressed form.
    raw: FileInfo,
    /// Its content, if that was needed when the source was opened.
    unpacked: Option<Unpacked>,
}

/// Samples of a shard that follow each other.
pub(super) struct Block {
    pub(super) first: u64,
    start: u64,
    /// Where each ends, counted from the start.
    ends: Vec<usize>,
}

impl MdsShard {
    /// The shard that the index in `folder` speaks of: as it is, or compressed.
    pub(super) fn find(
        info: &ShardInfo,
        folder: &str,
        inputs: &Inputs,
        index: &InputFile,
    ) -> Result<MdsShard, IngestError> {
        let there = |file: &FileInfo| {
            let name = format!("{folder}{}", file.basename);
            inputs.files.binary_search_by(|other| other.name.as_bytes().cmp(name.as_bytes())).ok()
        };
        let damaged = |file: &InputFile, reason| IngestError::Mds { path: file.path.clone(), reason };
        let (at, said, is_compressed) = match (there(&info.raw_data), &info.zip_data) {
            (Some(at), _) => (at, &info.raw_data, false),
            (None, Some(zip)) if there(zip).is_some() => (there(zip).expect("just found"), zip, true),
            (None, zip) => {
                let said = zip.as_ref().unwrap_or(&info.raw_data);
                return Err(damaged(index, format!("{:?}, which it lists, is not there", said.basename)));
            }
        };
        let file = &inputs.files[at];
        let compression = info.compression.as_deref().unwrap_or_default();
        if is_compressed && !matches!(compression.split(':').next(), Some("zstd" | "gz")) {
            let reason = format!("it is compressed by {compression:?}; only zstd and gz are read");
            return Err(damaged(file, reason));
        }
        if file.bytes != said.bytes {
            return Err(damaged(file, format!("it has {} bytes, its index says {}", file.bytes, said.bytes)));
        }
        let (file, raw) = (file.clone(), info.raw_data.clone());
        Ok(MdsShard { file, is_compressed, samples: info.samples, raw, unpacked: None })
    }

    /// Unpacks it, if it must be, to stay.
    pub(super) fn keep(&mut self, spool: &Spool) -> Result<OpenInput, IngestError> {
        self.unpacked = spool.unpack(&self.file, self.is_compressed)?;
        match &self.unpacked {
            Some(unpacked) => Ok(unpacked.content.clone()),
            None => self.file.open(),
        }
    }

    fn damaged(&self, reason: impl Into<String>) -> IngestError {
        IngestError::Mds { path: self.file.path.clone(), reason: reason.into() }
    }

    /// Has its content read, which is as the index says, or the reason against it; then the digest of its
    /// file.
    pub(super) fn visit(
        &self,
        visit: impl FnOnce(Result<&OpenInput, IngestError>) -> Result<(), IngestError>,
    ) -> Result<InputDigest, Stopped> {
        let unpacked = match &self.unpacked {
            Some(_) => None,
            None => Spool::default().unpack(&self.file, self.is_compressed)?,
        };
        match self.unpacked.as_ref().or(unpacked.as_ref()) {
            Some(Unpacked { content, digest, damage }) => {
                visit(self.check(content, damage.as_deref()).map(|()| content))
                    .map_err(Stopped::Elsewhere)?;
                Ok(digest.clone())
            }
            None => {
                let content = self.file.open()?;
                visit(self.check(&content, None).map(|()| &content)).map_err(Stopped::Elsewhere)?;
                Ok(self.file.finish(self.file.stream()?)?)
            }
        }
    }

    /// Compares the content with what the index says of it.
    fn check(&self, content: &OpenInput, damage: Option<&str>) -> Result<(), IngestError> {
        if let Some(damage) = damage {
            return Err(self.damaged(damage));
        }
        if content.bytes() != self.raw.bytes {
            let reason =
                format!("it unpacks to {} bytes, its index says {}", content.bytes(), self.raw.bytes);
            return Err(self.damaged(reason));
        }
        let (sha1, xxh64) = (self.raw.hashes.get("sha1"), self.raw.hashes.get("xxh64"));
        if sha1.is_none() && xxh64.is_none() {
            return Ok(());
        }
        let (mut sha1_found, mut xxh64_found) = (Sha1::new(), XxHash64::with_seed(0));
        let (mut reader, mut chunk) = (content.read_from(0), vec![0; 1 << 20]);
        loop {
            let read = reader.read(&mut chunk).map_err(|error| self.file.error(error))?;
            if read == 0 {
                break;
            }
            sha1_found.update(&chunk[..read]);
            std::hash::Hasher::write(&mut xxh64_found, &chunk[..read]);
        }
        let sha1_found = to_hex(&sha1_found.finalize());
        let xxh64_found = to_hex(&std::hash::Hasher::finish(&xxh64_found).to_be_bytes());
        for (name, said, found) in [("sha1", sha1, sha1_found), ("xxh64", xxh64, xxh64_found)] {
            if said.is_some_and(|said| *said != found) {
                return Err(self.damaged(format!("its {name} is {found}, its index says another")));
            }
        }
        Ok(())
    }

    /// Goes through the table of samples and cuts them into pieces.
    pub(super) fn blocks<E: From<IngestError>>(
        &self,
        content: &OpenInput,
        weigh: impl Fn(u64) -> u64,
        mut take: impl FnMut(Block) -> Result<(), E>,
    ) -> Result<(), E> {
        let cut_off = |_| self.damaged("its table is cut off");
        let mut table = BufReader::with_capacity(64 << 10, content.read_from(0));
        let (mut head, mut end) = ([0; 8], [0; 4]);
        table.read_exact(&mut head).map_err(cut_off)?;
        let mut bounds = Bounds::new(head, content.bytes()).map_err(|reason| self.damaged(reason))?;
        if bounds.samples() != self.samples {
            let reason = format!("it has {} samples, its index says {}", bounds.samples(), self.samples);
            return Err(self.damaged(reason).into());
        }
        let (mut load, mut block) = (Load::default(), None);
        for _ in 0..self.samples {
            table.read_exact(&mut end).map_err(cut_off)?;
            let (number, start, length) = bounds.next(end).map_err(|reason| self.damaged(reason))?;
            if length > LARGEST_MEMBER {
                let reason = format!("sample {number} has {length} bytes, the most is {LARGEST_MEMBER}");
                return Err(self.damaged(reason).into());
            }
            let begun = block.get_or_insert_with(|| Block { first: number, start, ends: Vec::new() });
            begun.ends.push((start + length - begun.start) as usize);
            if load.add(weigh(length)) {
                block.take().map_or(Ok(()), &mut take)?;
            }
        }
        block.map_or(Ok(()), take)
    }

    /// The bytes of a block.
    pub(super) fn read(&self, content: &OpenInput, block: &Block) -> Result<Vec<u8>, IngestError> {
        let length = block.ends.last().copied().unwrap_or_default();
        content.part(block.start, length).map_err(|error| self.file.error(error))
    }
}

impl Block {
    /// The number after that of its last sample.
    pub(super) fn end(&self) -> u64 {
        self.first + self.ends.len() as u64
    }

    /// The samples in the block's bytes, with their numbers in the shard.
    pub(super) fn samples<'b>(&'b self, bytes: &'b [u8]) -> impl Iterator<Item = (u64, &'b [u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let samples = starts.zip(&self.ends).map(|(start, &end)| &bytes[start..end]);
        (self.first..).zip(samples)
    }
}
