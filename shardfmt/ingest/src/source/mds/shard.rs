//! One shard of MDS, or one chunk of LitData: its file, its content, its table of samples.

use std::io::{BufReader, Read};

use sha1::{Digest as _, Sha1};
use shardfmt::InputDigest;
use shardfmt::digest::to_hex;
use twox_hash::XxHash64;

use super::format::{Bounds, FileInfo, Packing, ShardInfo};
use super::litdata::{Framed, inflate};
use crate::IngestError;
use crate::input::{InputFile, OpenInput};
use crate::inputs::Inputs;
use crate::source::Stopped;
use crate::source::images::Load;
use crate::source::tars::LARGEST_MEMBER;
use crate::source::unpack::{Spool, Unpacked, damage, most_unpacked};

#[derive(Debug)]
pub(super) struct MdsShard {
    pub(super) file: InputFile,
    packing: Packing,
    is_litdata: bool,
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
        let packing = if is_compressed { Packing::Whole } else { Packing::Plain };
        Ok(MdsShard { file, packing, is_litdata: false, samples: info.samples, raw, unpacked: None })
    }

    /// The chunk that the index of LitData in `folder` speaks of.
    pub(super) fn find_chunk(
        info: &ShardInfo,
        packing: Packing,
        folder: &str,
        inputs: &Inputs,
        index: &InputFile,
    ) -> Result<MdsShard, IngestError> {
        let raw = info.raw_data.clone();
        let name = format!("{folder}{}", raw.basename);
        let found = inputs.files.binary_search_by(|other| other.name.as_bytes().cmp(name.as_bytes()));
        let missing = |_| error(index, true, format!("{:?}, which it lists, is not there", raw.basename));
        let file = inputs.files[found.map_err(missing)?].clone();
        if packing != Packing::Whole && file.bytes != raw.bytes {
            let reason = format!("it has {} bytes, its index says {}", file.bytes, raw.bytes);
            return Err(error(&file, true, reason));
        }
        Ok(MdsShard { file, packing, is_litdata: true, samples: info.samples, raw, unpacked: None })
    }

    /// Unpacks it, if it must be, to stay.
    pub(super) fn keep(&mut self, spool: &Spool) -> Result<OpenInput, IngestError> {
        self.unpacked = self.unpack(spool)?;
        match &self.unpacked {
            Some(unpacked) => Ok(unpacked.content.clone()),
            None => self.file.open(),
        }
    }

    /// Its content, if it must be unpacked to be read.
    fn unpack(&self, spool: &Spool) -> Result<Option<Unpacked>, IngestError> {
        if self.packing != Packing::Frames {
            return spool.unpack(&self.file, self.packing == Packing::Whole);
        }
        let mut stream = self.file.stream()?;
        let mut most = most_unpacked(&self.file);
        let framed = Framed::new(&mut stream).map_err(|error| self.damaged(damage(&error)))?;
        let (content, damage) = spool.part(&self.file, framed, &mut most)?;
        Ok(Some(Unpacked { content, digest: self.file.finish(stream)?, damage }))
    }

    fn damaged(&self, reason: impl Into<String>) -> IngestError {
        error(&self.file, self.is_litdata, reason.into())
    }

    /// Has its content read, which is as the index says, or the reason against it; then the digest of its
    /// file.
    pub(super) fn visit(
        &self,
        visit: impl FnOnce(Result<&OpenInput, IngestError>) -> Result<(), IngestError>,
    ) -> Result<InputDigest, Stopped> {
        let unpacked = match &self.unpacked {
            Some(_) => None,
            None => self.unpack(&Spool::default())?,
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
        if self.packing != Packing::Frames && content.bytes() != self.raw.bytes {
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

    /// The bytes of a block, and where in them each sample ends.
    pub(super) fn read(&self, content: &OpenInput, block: &Block) -> Result<Samples, IngestError> {
        let length = block.ends.last().copied().unwrap_or_default();
        let bytes = content.part(block.start, length).map_err(|error| self.file.error(error))?;
        let samples = Samples { first: block.first, bytes, ends: block.ends.clone() };
        Ok(if self.packing == Packing::Samples { samples.inflated() } else { samples })
    }
}

fn error(file: &InputFile, is_litdata: bool, reason: String) -> IngestError {
    let path = file.path.clone();
    match is_litdata {
        true => IngestError::Damaged { path, kind: "LitData", reason },
        false => IngestError::Mds { path, reason },
    }
}

/// The samples of a block.
pub(super) struct Samples {
    first: u64,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Samples {
    /// The same, each decompressed by itself. One that cannot be has no bytes.
    fn inflated(self) -> Samples {
        let mut inflated = Samples { first: self.first, bytes: Vec::new(), ends: Vec::new() };
        for (_, sample) in self.iter() {
            let room = LARGEST_MEMBER.saturating_sub(inflated.bytes.len() as u64);
            inflated.bytes.extend(inflate(sample, room).unwrap_or_default());
            inflated.ends.push(inflated.bytes.len());
        }
        inflated
    }

    /// Each with its number in the shard.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let samples = starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end]);
        (self.first..).zip(samples)
    }
}

impl Block {
    /// The number after that of its last sample.
    pub(super) fn end(&self) -> u64 {
        self.first + self.ends.len() as u64
    }
}
