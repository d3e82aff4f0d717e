//! Laws and stories of operations on versions, over shards in memory.

mod damage;
mod derive;
mod exports;
mod forgetting;
mod growth;
mod laws;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use shardfmt::digest::ShardId;
use shardfmt::manifest::{Manifest, ShardEntry};
use shardfmt::row::RowCodec;
use shardfmt::shard::{FinishedShard, ShardWriter};
use shardfmt::size::ByteSize;

use super::*;
use crate::{IngestConfig, Ingested, Mix, NoProgress, Resources, Sink, Source, ingest};

/// Keeps shards in memory, and counts how often one was put.
#[derive(Default)]
struct Memory {
    files: Mutex<BTreeMap<(ShardId, File), Vec<u8>>>,
    puts: AtomicUsize,
}

impl Memory {
    /// Changes a file, or removes it when `change` says so.
    fn change(&self, id: ShardId, file: File, change: impl FnOnce(&mut Vec<u8>) -> bool) {
        let mut files = self.files.lock().expect("no panic while held");
        let stays = change(files.get_mut(&(id, file)).expect("it was put"));
        if !stays {
            files.remove(&(id, file));
        }
    }

    fn flip(&self, id: ShardId, file: File, at: usize) {
        self.change(id, file, |bytes| {
            let at = at % bytes.len();
            bytes[at] ^= 0x10;
            true
        });
    }

    fn remove(&self, id: ShardId, file: File) {
        self.change(id, file, |_| false);
    }

    fn get(&self, id: ShardId, file: File) -> Option<Vec<u8>> {
        self.files.lock().expect("no panic while held").get(&(id, file)).cloned()
    }

    fn puts(&self) -> usize {
        self.puts.load(Ordering::Relaxed)
    }
}

impl Sink for Memory {
    fn put_shard(&self, shard: FinishedShard) -> io::Result<()> {
        let mut files = self.files.lock().expect("no panic while held");
        files.insert((shard.id, File::Sidecar), shard.sidecar.encode());
        files.insert((shard.id, File::Shard), shard.bytes.to_vec());
        self.puts.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn has_shard(&self, id: &ShardId) -> io::Result<bool> {
        Ok(self.get(*id, File::Shard).is_some())
    }
}

impl Store for Memory {
    fn shard(&self, id: ShardId) -> io::Result<Option<Buffer>> {
        Ok(self.get(id, File::Shard).map(Buffer::from))
    }

    fn sidecar(&self, id: ShardId) -> io::Result<Option<Buffer>> {
        Ok(self.get(id, File::Sidecar).map(Buffer::from))
    }
}

/// A version of the rows in shards of these lengths, over and over.
fn version(batch: &RecordBatch, lengths: &[usize], memory: &Memory) -> Manifest {
    let (mut shards, mut start) = (Vec::new(), 0);
    for length in lengths.iter().cycle() {
        let length = (*length).clamp(1, batch.num_rows() - start);
        let mut writer = ShardWriter::new(batch.schema()).expect("a plain schema");
        writer.push(&batch.slice(start, length)).expect("its own schema");
        let shard = writer.finish().expect("it has rows");
        shards.push(shard.entry.clone());
        memory.put_shard(shard).expect("memory has room");
        start += length;
        if start == batch.num_rows() {
            break;
        }
    }
    Manifest::new(batch.schema(), shards, serde_json::json!({ "made": "by hand" }))
}

fn base(manifest: &Manifest) -> Base<'_> {
    Base { id: manifest.id(), manifest, provenance: None }
}

/// The canonical rows of a version, in order.
fn rows(manifest: &Manifest, store: &dyn Store) -> Vec<Vec<u8>> {
    let of = |entry: &ShardEntry| {
        let shard = read_shard(store, entry).expect("intact");
        let encode = |row| {
            let mut bytes = Vec::new();
            shard.encode_row(row, &mut bytes).expect("a row");
            bytes
        };
        (0..shard.rows()).map(encode).collect::<Vec<_>>()
    };
    manifest.shards.iter().flat_map(of).collect()
}

fn rows_of(batch: &RecordBatch) -> Vec<Vec<u8>> {
    let codec = RowCodec::new(batch.schema()).expect("a plain schema");
    let encoder = codec.encoder(batch).expect("its own schema");
    let encode = |row| {
        let mut bytes = Vec::new();
        encoder.encode(row, &mut bytes).expect("a row");
        bytes
    };
    (0..batch.num_rows()).map(encode).collect()
}

fn write_parquet(path: &Path, batch: &RecordBatch) {
    let file = std::fs::File::create(path).expect("a place to write");
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).expect("Parquet has its types");
    writer.write(batch).expect("it fits");
    writer.close().expect("the disk has room");
}

fn ingested(path: &Path, config: &IngestConfig, memory: &Memory) -> Manifest {
    made(path, config, memory).manifest
}

fn settings_of(version: &Ingested) -> IngestConfig {
    settings(&version.manifest, Some(&version.provenance)).expect("an ingest made it")
}

fn made(path: &Path, config: &IngestConfig, memory: &Memory) -> Ingested {
    let source = Source::open(path, config).expect("a source");
    ingest(source, config, &Resources::threads(2), memory, &NoProgress).expect("it is sound")
}

fn config(mix: Mix, shard_size: u64) -> IngestConfig {
    IngestConfig { mix, shard_size: Some(ByteSize(shard_size)), ..IngestConfig::default() }
}

/// Some rows that Parquet can hold: a label, a text that may be null, and a blob.
fn table(labels: std::ops::Range<i64>) -> RecordBatch {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, BinaryArray, Int64Array, StringArray};
    let text = labels.clone().map(|label| (label % 3 > 0).then(|| format!("text {label}")));
    let blob = labels.clone().map(|label| vec![label as u8; 40]);
    let columns: [(&str, ArrayRef, bool); 3] = [
        ("label", Arc::new(Int64Array::from_iter_values(labels.clone())), false),
        ("text", Arc::new(text.collect::<StringArray>()), true),
        ("blob", Arc::new(BinaryArray::from_iter_values(blob)), false),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}
