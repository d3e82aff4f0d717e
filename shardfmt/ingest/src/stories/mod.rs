//! Stories of whole ingests: real files in, shards read back out.

mod archives;
mod arrow_files;
mod batches;
mod cifar;
mod conversations;
mod csv;
mod damage;
mod far;
mod folders;
mod images;
mod interrupted;
mod json;
mod laws;
mod libsvm;
mod litdata;
mod mds;
mod memory;
mod mixes;
mod numpy;
mod pixels;
mod tables;
mod text;
mod tfrecord;
mod token_columns;
mod webdataset;
mod windows;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use arrow::json::WriterBuilder;
use arrow::json::writer::LineDelimited;
use flate2::Compression;
use flate2::write::GzEncoder;
use image::{ImageFormat, RgbImage};
use parquet::arrow::ArrowWriter;
use serde_json::Value;
use shardfmt::Provenance;
use shardfmt::digest::ShardId;
use shardfmt::manifest::{Manifest, ShardEntry};
use shardfmt::row::RowCodec;
use shardfmt::shard::{FinishedShard, Shard};
use tempfile::TempDir;

use super::*;

/// Keeps shards in memory.
#[derive(Default)]
pub(super) struct Kept(Mutex<BTreeMap<ShardId, bytes::Bytes>>);

impl Sink for Kept {
    fn put_shard(&self, shard: FinishedShard) -> io::Result<()> {
        self.0.lock().unwrap().insert(shard.id, shard.bytes);
        Ok(())
    }

    fn has_shard(&self, id: &ShardId) -> io::Result<bool> {
        Ok(self.0.lock().unwrap().contains_key(id))
    }
}

/// Counts rows per phase.
#[derive(Default)]
pub(super) struct Counted {
    reading: AtomicU64,
    writing: AtomicU64,
}

impl Progress for Counted {
    fn advanced(&self, rows: u64, _bytes: u64, phase: &str) {
        match phase {
            "reading" => self.reading.fetch_add(rows, Ordering::Relaxed),
            "writing" => self.writing.fetch_add(rows, Ordering::Relaxed),
            other => panic!("unknown phase {other}"),
        };
    }
}

/// A finished ingest with its shards.
pub(super) struct Ingested {
    pub(super) manifest: Manifest,
    pub(super) provenance: Provenance,
    pub(super) skipped: u64,
    shards: Kept,
}

/// Puts these values at these places of a file.
pub(super) fn change(bytes: &mut [u8], changes: &[(proptest::sample::Index, u8)]) {
    for (place, value) in changes {
        bytes[place.index(bytes.len())] = *value;
    }
}

/// The same of a file on the disk, which is then ingested.
pub(super) fn run_changed(
    folder: &Path,
    file: &str,
    changes: &[(proptest::sample::Index, u8)],
    is_skipping: bool,
) -> Result<Ingested, IngestError> {
    let path = folder.join(file);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes, changes);
    fs::write(&path, bytes).unwrap();
    run(folder, &if is_skipping { skipping() } else { sequential() }, 1)
}

pub(super) fn run(path: &Path, config: &IngestConfig, threads: usize) -> Result<Ingested, IngestError> {
    run_source(Source::open(path, config)?, config, threads)
}

pub(super) fn run_source(
    source: Source,
    config: &IngestConfig,
    threads: usize,
) -> Result<Ingested, IngestError> {
    let (shards, counted) = (Kept::default(), Counted::default());
    let (skipped, promised) = (source.skipped_count(), source.sample_count());
    let crate::Ingested { manifest, provenance } =
        ingest(source, config, &Resources::threads(threads), &shards, &counted)?;
    let samples = manifest.sample_count();
    let is_part = config.take.is_some() || config.on_error == OnError::Skip;
    assert!(promised.is_none_or(|promised| samples == promised) || is_part);
    assert_eq!((counted.reading.into_inner(), counted.writing.into_inner()), (samples, samples));
    Ok(Ingested { manifest, provenance, skipped, shards })
}

impl Ingested {
    /// All record batches, in the order of the manifest, after checking each shard against its entry.
    pub(super) fn batches(&self) -> Vec<RecordBatch> {
        let shards = self.shards.0.lock().unwrap();
        let read = |entry: &ShardEntry| {
            let shard = Shard::from_bytes(shards[&entry.id].clone()).unwrap();
            assert_eq!(shard.rows(), entry.rows);
            assert_eq!(shard.schema().fields(), self.manifest.schema.fields());
            shard.record_batches().to_vec()
        };
        self.manifest.shards.iter().flat_map(read).collect()
    }

    /// The canonical rows, in order.
    pub(super) fn rows(&self) -> Vec<Vec<u8>> {
        let codec = RowCodec::new(self.manifest.schema.clone()).unwrap();
        self.batches().iter().flat_map(|batch| canonical_rows(&codec, batch)).collect()
    }

    pub(super) fn integers(&self, column: &str) -> Vec<i64> {
        let of = |batch: &RecordBatch| {
            let column = batch.column_by_name(column).unwrap().as_primitive::<Int64Type>().clone();
            column.values().to_vec()
        };
        self.batches().iter().flat_map(of).collect()
    }

    pub(super) fn texts(&self, column: &str) -> Vec<String> {
        let of = |batch: &RecordBatch| {
            let column = batch.column_by_name(column).unwrap().as_string::<i32>().clone();
            column.iter().map(|text| text.unwrap().to_owned()).collect::<Vec<_>>()
        };
        self.batches().iter().flat_map(of).collect()
    }

    /// All rows as JSON, which shows values of every type, and nulls.
    pub(super) fn json(&self) -> Vec<Value> {
        let rows = |batch: &RecordBatch| {
            let builder = WriterBuilder::new().with_explicit_nulls(true);
            let mut writer = builder.build::<_, LineDelimited>(Vec::new());
            writer.write(batch).unwrap();
            writer.finish().unwrap();
            serde_json::Deserializer::from_slice(&writer.into_inner()).into_iter().collect::<Vec<_>>()
        };
        self.batches().iter().flat_map(rows).collect::<Result<_, _>>().unwrap()
    }

    /// Name and type of each column, in Arrow's words.
    pub(super) fn types(&self) -> Vec<(String, String)> {
        let fields = self.manifest.schema.fields().iter();
        fields.map(|field| (field.name().clone(), field.data_type().to_string())).collect()
    }

    /// The parts left out, by name.
    pub(super) fn skipped_names(&self) -> Vec<&str> {
        self.provenance.skipped.first.iter().map(|skipped| skipped.name.as_str()).collect()
    }

    /// The parts left out: names, in input order.
    pub(super) fn left_out(&self) -> Vec<String> {
        self.provenance.skipped.first.iter().map(|skipped| skipped.name.clone()).collect()
    }

    /// The values of a column, one record batch after the other.
    pub(super) fn column(&self, name: &str) -> arrow::array::ArrayRef {
        let batches = self.batches();
        let columns: Vec<_> =
            batches.iter().map(|batch| batch.column_by_name(name).unwrap().as_ref()).collect();
        arrow::compute::concat(&columns).unwrap()
    }

    pub(super) fn binaries(&self, column: &str) -> Vec<Vec<u8>> {
        let column = self.column(column);
        column.as_binary::<i32>().iter().map(|bytes| bytes.unwrap().to_vec()).collect()
    }

    pub(super) fn metadata(&self, column: &str, key: &str) -> Option<String> {
        self.manifest
            .schema
            .field_with_name(column)
            .unwrap()
            .metadata()
            .get(key)
            .map(|value| value.to_string())
    }
}

pub(super) fn canonical_rows(codec: &RowCodec, batch: &RecordBatch) -> Vec<Vec<u8>> {
    let encoder = codec.encoder(batch).unwrap();
    let encode = |row| {
        let mut bytes = Vec::new();
        encoder.encode(row, &mut bytes).unwrap();
        bytes
    };
    (0..batch.num_rows()).map(encode).collect()
}

/// The message with its causes, which must be one line that says what to do after the name of the thing.
pub(super) fn refusal(path: &Path, config: &IngestConfig) -> String {
    let error = run(path, config, 2).err().expect("an ingest that must fail");
    let mut text = error.to_string();
    assert!(!text.contains('\n') && !text.contains("  "), "{text}");
    assert!(text.contains(';') || text.contains("accepted are"), "no way out: {text}");
    let mut cause = error.source();
    while let Some(because) = cause {
        text += &format!(": {because}");
        cause = because.source();
    }
    text
}

pub(super) fn sequential() -> IngestConfig {
    IngestConfig { mix: Mix::Sequential, ..IngestConfig::default() }
}

/// Unreadable parts are left out.
pub(super) fn skipping() -> IngestConfig {
    IngestConfig { on_error: OnError::Skip, ..sequential() }
}

/// Types for some columns.
pub(super) fn typed(types: &[(&str, &str)]) -> IngestConfig {
    let types = types.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    IngestConfig { types: types.collect(), ..sequential() }
}

/// A file that others made: see `testdata/sources/make.py`.
pub(super) fn theirs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/sources").join(name)
}

pub(super) fn under(folder: &str) -> IngestConfig {
    IngestConfig { under: Some(folder.to_owned()), ..sequential() }
}

/// A directory with some files in it.
pub(super) fn directory(files: &[(&str, Vec<u8>)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    directory
}

pub(super) fn picture(format: ImageFormat, shade: u8) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let image = RgbImage::from_fn(6, 5, |x, y| image::Rgb([shade, (x * 40) as u8, (y * 50) as u8]));
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

pub(super) fn png(shade: u8) -> Vec<u8> {
    picture(ImageFormat::Png, shade)
}

pub(super) fn tar(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in entries {
        archive
            .append(&tar_header(name, bytes.len() as u64, tar::EntryType::Regular), bytes.as_slice())
            .unwrap();
    }
    archive.into_inner().unwrap()
}

/// A header with the name just as given: the builder itself refuses hostile ones.
pub(super) fn tar_header(name: &str, size: u64, kind: tar::EntryType) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    header
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn zstd(bytes: &[u8]) -> Vec<u8> {
    ::zstd::encode_all(bytes, 1).unwrap()
}

pub(super) fn borrowed(files: &[(String, Vec<u8>)]) -> Vec<(&str, Vec<u8>)> {
    files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect()
}

/// A directory with one file in it, and where that is.
pub(super) fn one_file(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let directory = directory(&[(name, bytes.to_vec())]);
    let path = directory.path().join(name);
    (directory, path)
}

pub(super) fn write_parquet(path: PathBuf, batch: &RecordBatch) {
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

pub(super) fn sorted<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort();
    values
}
