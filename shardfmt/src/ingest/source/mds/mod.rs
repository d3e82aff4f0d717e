//! MosaicML shards: a directory with an `index.json` and the `.mds` files that it lists.

mod format;

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::PathBuf;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use image::{DynamicImage, GrayImage, RgbImage, RgbaImage};
use sha1::{Digest as _, Sha1};
use twox_hash::XxHash64;

use self::format::{ArrayCoding, Bounds, FileInfo, Index, ShardInfo};
use super::arrays::Arrays;
use super::cells::{Cell, Column, Misfit, Table, Values};
use super::images::Load;
use super::picture::{self, ImageSize, Pictures};
use super::tars::LARGEST_MEMBER;
use super::unpack::{Spool, Unpacked};
use super::{Faults, Feed, Format};
use crate::digest::to_hex;
use crate::ingest::config::OnError;
use crate::ingest::error::one_line;
use crate::ingest::input::{InputFile, Inputs, OpenInput};
use crate::ingest::{IngestConfig, IngestError, canonical};
use crate::manifest::InputDigest;

/// What the index is called.
const INDEX: &str = "index.json";
const LARGEST_INDEX: u64 = 1 << 30;

#[derive(Debug)]
pub(super) struct MdsSource {
    index: InputDigest,
    shards: Vec<MdsShard>,
    /// Shards that were left out when the source was opened, and why.
    left_out: Vec<(String, String)>,
    layout: Layout,
    schema: SchemaRef,
    others: u64,
}

#[derive(Debug)]
struct MdsShard {
    file: InputFile,
    is_compressed: bool,
    samples: u64,
    /// What it is when it is not compressed.
    raw: FileInfo,
    /// Its content, if that was needed when the source was opened.
    unpacked: Option<Unpacked>,
}

/// How samples lie in shards, and what columns their fields make.
#[derive(Debug)]
struct Layout {
    sizes: Vec<Option<usize>>,
    /// The field that each column is made of, and how it is coded.
    fields: Vec<(usize, Coding)>,
    columns: Vec<Column>,
}

/// How the values of a field are coded.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Coding {
    /// As the column says.
    Plain,
    Array(ArrayCoding),
    /// A list of images, after so many bytes.
    Images(usize),
    /// Pixels.
    RawImage,
}

/// Samples of a shard that follow each other.
struct Block {
    first: u64,
    start: u64,
    /// Where each ends, counted from the start.
    ends: Vec<usize>,
}

impl MdsSource {
    pub(super) fn open(inputs: Inputs, config: &IngestConfig) -> Result<MdsSource, IngestError> {
        let index_file = find_index(&inputs)?;
        let damaged = |reason| IngestError::Mds { path: index_file.path.clone(), reason };
        let bytes = index_file.read_all(LARGEST_INDEX)?;
        let Index { shards: listed, .. } = Index::parse(&bytes).map_err(damaged)?;
        let index = InputDigest {
            name: index_file.name.clone(),
            bytes: index_file.bytes,
            digest: crate::digest::Digest::of(&bytes),
        };
        let folder = index_file.name.strip_suffix(INDEX).unwrap_or_default();
        let (mut shards, mut left_out) = (Vec::new(), Vec::new());
        let mut common: Option<(ShardInfo, PathBuf)> = None;
        for info in listed {
            let name = format!("{folder}{}", info.raw_data.basename);
            let found = MdsShard::find(&info, folder, &inputs, index_file);
            match found.and_then(|shard| compare(common.as_ref(), &info, &shard).map(|()| shard)) {
                Ok((file, is_compressed)) => {
                    let raw = info.raw_data.clone();
                    common.get_or_insert_with(|| (info.clone(), file.path.clone()));
                    shards.push(MdsShard { file, is_compressed, samples: info.samples, raw, unpacked: None });
                }
                Err(error) if config.on_error == OnError::Skip && error.is_about_content() => {
                    left_out.push((name, one_line(error)));
                }
                Err(error) => return Err(error),
            }
        }
        let others = (inputs.files.len() - 1).saturating_sub(shards.len()) as u64;
        let no_samples = || IngestError::NoSamples {
            path: inputs.path.clone(),
            found: format!("{INDEX} lists no shard that can be read"),
        };
        let (info, _) = common.ok_or_else(no_samples)?;
        let layout = Layout::new(&info, &mut shards, config).map_err(|error| match error {
            Unknown::Encoding(reason) => IngestError::Mds { path: index_file.path.clone(), reason },
            Unknown::Content(error) => error,
            Unknown::Size => no_samples(),
        })?;
        let fields: Vec<_> = layout.columns.iter().map(Column::field).collect();
        let schema = canonical::canonical_schema(&index_file.path, &Schema::new(fields))?;
        Ok(MdsSource { index, shards, left_out, layout, schema, others })
    }

    fn shard<'s>(&'s self, shard: &'s MdsShard, feed: &mut Feed<'_, 's>) -> Result<InputDigest, IngestError> {
        let unpacked = match &shard.unpacked {
            Some(_) => None,
            None => Spool::default().unpack(&shard.file, shard.is_compressed)?,
        };
        let unpacked = shard.unpacked.as_ref().or(unpacked.as_ref());
        let content = match unpacked {
            Some(unpacked) => unpacked.content.clone(),
            None => shard.file.open()?,
        };
        let name = &shard.file.name;
        let checked = shard.check(&content, unpacked.and_then(|unpacked| unpacked.damage.as_deref()));
        match checked {
            Err(error) => feed.fault(name, error)?,
            Ok(()) => {
                let listed = shard.blocks(&content, &self.layout, |block| {
                    let (content, last) = (content.clone(), block.first + block.ends.len() as u64);
                    feed.piece(format!("{name}, samples {}..{last}", block.first), move |faults| {
                        self.rows(shard, &content, &block, faults)
                    })
                });
                listed.or_else(|error| feed.fault(name, error))?;
            }
        }
        match unpacked {
            Some(unpacked) => Ok(unpacked.digest.clone()),
            None => shard.file.finish(shard.file.stream()?),
        }
    }

    fn rows(
        &self,
        shard: &MdsShard,
        content: &OpenInput,
        block: &Block,
        faults: &mut Faults,
    ) -> Result<RecordBatch, IngestError> {
        let bytes = shard.read(content, block)?;
        let mut table = Table::new(&self.layout.columns);
        for (number, sample) in block.samples(&bytes) {
            match self.layout.row(sample) {
                Ok(row) => table.push(row),
                Err((column, misfit)) => {
                    let name = format!("sample {number}, column {column}");
                    faults
                        .add(format!("{}, {name}", shard.file.name), misfit.named(&shard.file.path, &name))?;
                }
            }
        }
        table.finish(&shard.file.path, &self.schema)
    }
}

impl Format for MdsSource {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn row_count(&self) -> Option<u64> {
        self.shards.iter().map(|shard| shard.samples).try_fold(0, u64::checked_add)
    }

    fn skipped_count(&self) -> u64 {
        self.others
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        for (name, reason) in &self.left_out {
            feed.left_out(name, reason)?;
        }
        let mut digests = vec![self.index.clone()];
        for shard in &self.shards {
            digests.push(self.shard(shard, feed)?);
        }
        Ok(digests)
    }
}

/// The index of the directory: the one at the top, or the only one.
fn find_index(inputs: &Inputs) -> Result<&InputFile, IngestError> {
    let top = inputs.under.as_ref().map_or(INDEX.to_owned(), |under| format!("{under}/{INDEX}"));
    if let Some(file) = inputs.files.iter().find(|file| file.name == top) {
        return Ok(file);
    }
    let is_index = |file: &&InputFile| file.name.rsplit('/').next() == Some(INDEX);
    let mut found = inputs.files.iter().filter(is_index);
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        (Some(first), Some(second)) => Err(IngestError::Ambiguous {
            path: inputs.path.clone(),
            first: first.name.clone(),
            second: second.name.clone(),
        }),
        (None, _) => Err(IngestError::NoSamples {
            path: inputs.path.clone(),
            found: format!("shards of MDS without their {INDEX}"),
        }),
    }
}

/// Refuses a shard whose columns are not those of the first.
fn compare(
    first: Option<&(ShardInfo, PathBuf)>,
    info: &ShardInfo,
    (file, _): &(InputFile, bool),
) -> Result<(), IngestError> {
    let Some((common, first)) = first else { return Ok(()) };
    let columns = |info: &ShardInfo| {
        (info.column_names.clone(), info.column_encodings.clone(), info.column_sizes.clone())
    };
    if columns(common) == columns(info) {
        return Ok(());
    }
    Err(IngestError::Schemas {
        path: file.path.clone(),
        first: first.clone(),
        difference: "has other columns or encodings".to_owned(),
    })
}

impl MdsShard {
    /// The file of a shard, and whether it is compressed.
    fn find(
        info: &ShardInfo,
        folder: &str,
        inputs: &Inputs,
        index: &InputFile,
    ) -> Result<(InputFile, bool), IngestError> {
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
        Ok((file.clone(), is_compressed))
    }

    fn damaged(&self, reason: impl Into<String>) -> IngestError {
        IngestError::Mds { path: self.file.path.clone(), reason: reason.into() }
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
    fn blocks(
        &self,
        content: &OpenInput,
        layout: &Layout,
        mut take: impl FnMut(Block) -> Result<(), IngestError>,
    ) -> Result<(), IngestError> {
        let cut_off = |_| self.damaged("its table is cut off");
        let mut table = BufReader::with_capacity(64 << 10, content.read_from(0));
        let (mut head, mut end) = ([0; 8], [0; 4]);
        table.read_exact(&mut head).map_err(cut_off)?;
        let mut bounds = Bounds::new(head, content.bytes()).map_err(|reason| self.damaged(reason))?;
        if bounds.samples() != self.samples {
            let reason = format!("it has {} samples, its index says {}", bounds.samples(), self.samples);
            return Err(self.damaged(reason));
        }
        let (mut load, mut block) = (Load::default(), None);
        for _ in 0..self.samples {
            table.read_exact(&mut end).map_err(cut_off)?;
            let (number, start, length) = bounds.next(end).map_err(|reason| self.damaged(reason))?;
            if length > LARGEST_MEMBER {
                return Err(
                    self.damaged(format!("sample {number} has {length} bytes, the most is {LARGEST_MEMBER}"))
                );
            }
            let begun = block.get_or_insert_with(|| Block { first: number, start, ends: Vec::new() });
            begun.ends.push((start + length - begun.start) as usize);
            if load.add(layout.weight(length)) {
                block.take().map_or(Ok(()), &mut take)?;
            }
        }
        block.map_or(Ok(()), take)
    }

    fn read(&self, content: &OpenInput, block: &Block) -> Result<Vec<u8>, IngestError> {
        let length = block.ends.last().copied().unwrap_or_default();
        content.part(block.start, length).map_err(|error| self.file.error(error))
    }
}

impl Block {
    /// The samples in the block's bytes, with their numbers in the shard.
    fn samples<'b>(&'b self, bytes: &'b [u8]) -> impl Iterator<Item = (u64, &'b [u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let samples = starts.zip(&self.ends).map(|(start, &end)| &bytes[start..end]);
        (self.first..).zip(samples)
    }
}

/// Why the columns cannot be told.
enum Unknown {
    Encoding(String),
    Content(IngestError),
    /// No image can be read, whose size others would have to have.
    Size,
}

impl From<IngestError> for Unknown {
    fn from(error: IngestError) -> Unknown {
        Unknown::Content(error)
    }
}

impl Layout {
    /// The layout of shards that are like this one. Where it does not settle what the columns are (arrays of any shape,
    /// the size of decoded images), samples are looked at.
    fn new(info: &ShardInfo, shards: &mut [MdsShard], config: &IngestConfig) -> Result<Layout, Unknown> {
        // A size of nothing stands for one that varies.
        let sizes = info.column_sizes.iter().map(|size| size.filter(|&size| size > 0)).collect();
        let mut layout = Layout { sizes, fields: Vec::new(), columns: Vec::new() };
        let is_asked_for = |name: &String| config.columns.as_ref().is_none_or(|asked| asked.contains(name));
        if let Some(unknown) =
            config.columns.iter().flatten().find(|&asked| !info.column_names.contains(asked))
        {
            let (path, column) = (shards[0].file.path.clone(), unknown.clone());
            return Err(IngestError::NoColumn { path, column, there: info.column_names.join(", ") }.into());
        }
        let mut open = Vec::new();
        for (field, (name, encoding)) in info.column_names.iter().zip(&info.column_encodings).enumerate() {
            if !is_asked_for(name) {
                continue;
            }
            let (coding, values) = match Coding::parse(encoding, config) {
                Ok(parsed) => parsed,
                Err(reason) => return Err(Unknown::Encoding(format!("column {name:?} {reason}"))),
            };
            if values.is_none() {
                open.push(layout.columns.len());
            }
            layout.fields.push((field, coding));
            let values = values.unwrap_or(Values::Bytes);
            layout.columns.push(Column { name: name.clone(), nullable: false, values });
        }
        if !open.is_empty() {
            layout.settle(&open, shards, config)?;
        }
        Ok(layout)
    }

    /// Finds out what the columns are that the index leaves open.
    fn settle(
        &mut self,
        open: &[usize],
        shards: &mut [MdsShard],
        config: &IngestConfig,
    ) -> Result<(), Unknown> {
        let spool = Spool::default();
        let mut arrays: BTreeMap<usize, Arrays> = BTreeMap::new();
        let mut sizes: BTreeMap<usize, ImageSize> = BTreeMap::new();
        let is_skipping = config.on_error == OnError::Skip;
        for shard in shards {
            shard.unpacked = spool.unpack(&shard.file, shard.is_compressed)?;
            let content = match &shard.unpacked {
                Some(unpacked) => unpacked.content.clone(),
                None => shard.file.open()?,
            };
            let looked = shard.blocks(&content, self, |block| {
                let bytes = shard.read(&content, &block)?;
                for (number, sample) in block.samples(&bytes) {
                    let Ok(fields) = format::fields(sample, &self.sizes) else { continue };
                    for &column in open {
                        let (field, coding) = &self.fields[column];
                        let seen = match coding {
                            Coding::Array(coding) => coding.take(fields[*field]).map(|(head, _)| {
                                let known = arrays.remove(&column);
                                arrays.insert(column, Arrays::and(known, Some(head)));
                            }),
                            _ if sizes.contains_key(&column) => Ok(()),
                            coding => {
                                coding.size_of(fields[*field]).map(|size| _ = sizes.insert(column, size))
                            }
                        };
                        if let Err(reason) = seen
                            && !is_skipping
                        {
                            let entry = format!("sample {number}, column {}", self.columns[column].name);
                            return Err(IngestError::Member { path: shard.file.path.clone(), entry, reason });
                        }
                    }
                }
                Ok(())
            });
            match looked {
                Err(error) if !is_skipping || !error.is_about_content() => return Err(error.into()),
                Err(_) | Ok(()) => {}
            }
            let is_image = |column: &usize| !matches!(self.fields[*column].1, Coding::Array(_));
            if open.iter().all(|column| is_image(column) && sizes.contains_key(column)) {
                break;
            }
        }
        for &column in open {
            self.columns[column].values = match (&self.fields[column].1, sizes.get(&column)) {
                (Coding::Array(_), _) => Values::Arrays(arrays.remove(&column).unwrap_or(Arrays::Mixed)),
                (_, Some(&size)) => Values::Picture(Pictures::Decoded { size, resize: false }),
                (_, None) => return Err(Unknown::Size),
            };
        }
        Ok(())
    }

    /// The cells of a sample; or the column that has something wrong with it.
    fn row<'c>(&'c self, sample: &'c [u8]) -> Result<Vec<Cell<'c>>, (&'c str, Misfit)> {
        let fields = match format::fields(sample, &self.sizes) {
            Ok(fields) => fields,
            Err(reason) => return Err(("any", reason.into())),
        };
        let cells = self.fields.iter().zip(&self.columns).map(|((field, coding), column)| {
            coding.cell(fields[*field], &column.values).map_err(|misfit| (column.name.as_str(), misfit))
        });
        cells.collect()
    }

    fn weight(&self, bytes: u64) -> u64 {
        let pictures = self.columns.iter().filter_map(|column| match column.values {
            Values::Picture(pictures) => Some(pictures.weight(0)),
            _ => None,
        });
        pictures.fold(bytes, u64::saturating_add)
    }
}

impl Coding {
    /// What an encoding stands for, and what the column's values are, unless that depends on the samples.
    fn parse(encoding: &str, config: &IngestConfig) -> Result<(Coding, Option<Values>), String> {
        let pictures = || match (config.decode, config.resize) {
            (false, _) => Some(Values::Picture(Pictures::Encoded)),
            (true, Some(size)) => Some(Values::Picture(Pictures::Decoded { size, resize: true })),
            (true, None) => None,
        };
        let plain = |values| Ok((Coding::Plain, Some(values)));
        match encoding {
            "bytes" => plain(Values::Bytes),
            "str" | "str_int" | "str_float" | "str_decimal" => plain(Values::Text),
            "json" => plain(Values::Json),
            "int" => plain(Values::Number(DataType::Int64)),
            "jpeg" | "png" => Ok((Coding::Plain, pictures())),
            "pil" if config.decode => Ok((Coding::RawImage, pictures())),
            "pil" => Err("has images that are not encoded; have tensors made of them (`decode`)".to_owned()),
            "jpeg_array" | "jpegarray" => Ok((Coding::Images(0), Some(Values::Pictures))),
            "list[jpeg]" | "list[png]" => Ok((Coding::Images(4), Some(Values::Pictures))),
            "pkl" => Err("is pickled, and reading that would run code; leave it out (`columns`)".to_owned()),
            "ndarray" => Ok((Coding::Array(ArrayCoding::default()), None)),
            other => match (other.strip_prefix("ndarray:"), format::number(other)) {
                (Some(said), _) => {
                    let coding = ArrayCoding::parse(said)?;
                    let values = coding.head().map(|head| Values::Arrays(Arrays::and(None, Some(head))));
                    Ok((Coding::Array(coding), values))
                }
                (None, Some(number)) => plain(Values::Number(number)),
                (None, None) => {
                    Err(format!("is encoded as {other:?}, which is not read; leave it out (`columns`)"))
                }
            },
        }
    }

    fn cell<'c>(&self, bytes: &'c [u8], values: &Values) -> Result<Cell<'c>, Misfit> {
        match (self, values) {
            (Coding::Plain, _) => values.cell(bytes),
            (Coding::Array(coding), Values::Arrays(arrays)) => {
                let (head, numbers) = coding.take(bytes)?;
                match arrays {
                    Arrays::Mixed => values.cell(bytes),
                    arrays if arrays.holds(&head) => values.cell(numbers),
                    _ => Err(format!("is an array of shape {:?}, unlike those before it", head.shape).into()),
                }
            }
            (Coding::Images(before), _) => {
                let images = format::images(bytes, *before)?;
                images.iter().try_for_each(|image| Pictures::Encoded.read(image).map(drop))?;
                Ok(Cell::Parts(images))
            }
            (Coding::RawImage, Values::Picture(pictures)) => {
                Ok(Cell::Bytes(pictures.fit(raw_image(bytes)?)?.into()))
            }
            _ => Err("belongs to a column of another kind".into()),
        }
    }

    /// The size of an image.
    fn size_of(&self, bytes: &[u8]) -> Result<ImageSize, String> {
        if *self != Coding::RawImage {
            return picture::size_of(bytes).map_err(|unfit| unfit.to_string());
        }
        let (width, height, ..) = format::raw_image(bytes)?;
        ImageSize::new(width, height).ok_or_else(|| format!("is an image of {width}x{height} pixels"))
    }
}

/// An image that was not encoded.
fn raw_image(bytes: &[u8]) -> Result<DynamicImage, String> {
    let (width, height, mode, pixels) = format::raw_image(bytes)?;
    let wrong = || format!("is an image of {width}x{height} pixels ({mode}) with {} bytes", pixels.len());
    let channels = match mode {
        "L" => 1,
        "RGB" => 3,
        "RGBA" => 4,
        other => return Err(format!("is an image of mode {other:?}; only L, RGB and RGBA are read")),
    };
    let expected = u64::from(width).checked_mul(u64::from(height)).and_then(|all| all.checked_mul(channels));
    if expected != Some(pixels.len() as u64) {
        return Err(wrong());
    }
    let pixels = pixels.to_vec();
    let image = match channels {
        1 => GrayImage::from_raw(width, height, pixels).map(DynamicImage::from),
        3 => RgbImage::from_raw(width, height, pixels).map(DynamicImage::from),
        _ => RgbaImage::from_raw(width, height, pixels).map(DynamicImage::from),
    };
    image.ok_or_else(wrong)
}
