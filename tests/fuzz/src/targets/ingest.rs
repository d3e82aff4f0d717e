//! Files that are ingested, one for each kind whose reader is our own or has our own around it.

use std::io;
use std::sync::Mutex;

use shardd_ingest::{
    Documents, IngestConfig, IngestError, Ingested, Inputs, Kind, NoProgress, OnError, Resources, Sink,
    Source,
};
use shardfmt::{FinishedShard, Manifest, Shard, ShardId};

/// An accepted input makes a version: shards that can be read, with as many rows as the manifest says.
/// Passing over unreadable parts then makes the same one.
fn is_accepted(inputs: impl Fn() -> Inputs, config: &IngestConfig) -> bool {
    let skipped = version(inputs(), &IngestConfig { on_error: OnError::Skip, ..config.clone() });
    let Ok(whole) = version(inputs(), config) else { return false };
    let skipped = skipped.expect("there is nothing to pass over");
    // The parts left out all the same are not unreadable: tokens that fill no sequence.
    assert_eq!((whole.manifest, whole.provenance.skipped), (skipped.manifest, skipped.provenance.skipped));
    true
}

fn file(name: &str, data: &[u8]) -> bool {
    is_accepted(|| Inputs::in_memory(name, data.to_vec()), &IngestConfig::default())
}

/// A directory with these files in it.
fn directory(files: &[(&str, &[u8])]) -> Inputs {
    let files = files.iter().flat_map(|(name, bytes)| Inputs::in_memory(name, bytes.to_vec()).into_files());
    Inputs::of_files("directory", files.collect(), false, None).expect("names that differ")
}

fn version(inputs: Inputs, config: &IngestConfig) -> Result<Ingested, IngestError> {
    let source = Source::new(inputs, config)?;
    let (shards, resources) = (Shards::default(), Resources::threads(1));
    let ingested = shardd_ingest::ingest(source, config, &resources, &shards, &NoProgress)?;
    let manifest = &ingested.manifest;
    let mut made = shards.0.into_inner().expect("no thread panicked");
    for entry in &manifest.shards {
        let at = made.iter().position(|shard| shard.id == entry.id).expect("every shard was put");
        let shard = Shard::from_bytes(made.swap_remove(at).bytes).expect("a shard");
        assert_eq!(shard.rows(), entry.rows);
    }
    assert_eq!(Manifest::decode(&manifest.encode()).expect("the written bytes are read"), *manifest);
    Ok(ingested)
}

#[derive(Default)]
struct Shards(Mutex<Vec<FinishedShard>>);

impl Sink for Shards {
    fn put_shard(&self, shard: FinishedShard) -> io::Result<()> {
        self.0.lock().expect("no thread panicked").push(shard);
        Ok(())
    }

    fn has_shard(&self, _: &ShardId) -> io::Result<bool> {
        Ok(false)
    }
}

pub(crate) fn csv(data: &[u8]) -> bool {
    file("table.csv", data)
}

pub(crate) fn jsonl(data: &[u8]) -> bool {
    file("table.jsonl", data)
}

/// An `.npy`, or an `.npz`: the first bytes tell.
pub(crate) fn numpy(data: &[u8]) -> bool {
    file("arrays.npy", data)
}

pub(crate) fn libsvm(data: &[u8]) -> bool {
    file("rows.libsvm", data)
}

/// A file or a stream: the first bytes tell.
pub(crate) fn ipc(data: &[u8]) -> bool {
    file("table.arrow", data)
}

/// Text: the length of the sequences (0 for none), what a document is, and two files that a byte no UTF-8 has parts.
pub(crate) fn tokens(data: &[u8]) -> bool {
    let [length, documents, text @ ..] = data else { return false };
    let documents = [Documents::File, Documents::Line, Documents::BlankLine][usize::from(documents % 3)];
    let length = (*length > 0).then(|| u32::from(*length));
    let config = IngestConfig { sequence_length: length, documents, ..IngestConfig::default() };
    let mut parts = text.splitn(2, |&byte| byte == 0xff);
    let (first, second) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    is_accepted(|| directory(&[("1.txt", first), ("2.txt", second)]), &config)
}

pub(crate) fn archive(data: &[u8]) -> bool {
    file("images.tar", data)
}

pub(crate) fn webdataset(data: &[u8]) -> bool {
    let config = IngestConfig { format: Some(Kind::WebDataset), ..IngestConfig::default() };
    is_accepted(|| Inputs::in_memory("samples.tar", data.to_vec()), &config)
}

/// A shard of MosaicML whose index matches its contents.
pub(crate) fn mds(data: &[u8]) -> bool {
    let samples = data.first_chunk().map_or(0, |samples| u32::from_le_bytes(*samples));
    let index = format!(
        r#"{{"version": 2, "shards": [{{"version": 2, "format": "mds", "samples": {samples}, "column_names": ["a", "i", "l", "t"],
        "column_encodings": ["ndarray", "int", "list[png]", "str"], "column_sizes": [null, 8, null, null],
        "raw_data": {{"basename": "0.mds", "bytes": {}}}}}]}}"#,
        data.len()
    );
    let inputs = || directory(&[("index.json", index.as_bytes()), ("0.mds", data)]);
    is_accepted(inputs, &IngestConfig::default())
}

/// A chunk of LitData whose index matches its contents.
pub(crate) fn litdata(data: &[u8]) -> bool {
    let samples = data.first_chunk().map_or(0, |samples| u32::from_le_bytes(*samples));
    let leaf = r#"{\"type\": null, \"context\": null, \"children_spec\": []}"#;
    let spec = format!(
        r#"[1, {{\"type\": \"builtins.tuple\", \"context\": \"null\", \"children_spec\": [{leaf}, {leaf}, {leaf}, {leaf}]}}]"#
    );
    let index = format!(
        r#"{{"chunks": [{{"chunk_bytes": {}, "chunk_size": {samples}, "filename": "chunk-0-0.bin"}}],
        "config": {{"data_format": ["tensor", "int", "jpeg_array", "str"], "data_spec": "{spec}"}}}}"#,
        data.len()
    );
    let inputs = || directory(&[("index.json", index.as_bytes()), ("chunk-0-0.bin", data)]);
    is_accepted(inputs, &IngestConfig::default())
}

/// TFRecord: the bytes as a file, and as records with a byte of length before each, whose checksums are right.
pub(crate) fn tfrecord(data: &[u8]) -> bool {
    let checksum = |bytes: &[u8]| {
        let bit = |crc: u32, _| (crc >> 1) ^ ((crc & 1) * 0x82f6_3b78);
        let crc = !bytes.iter().fold(!0, |crc: u32, &byte| (0..8).fold(crc ^ u32::from(byte), bit));
        crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let (mut framed, mut rest) = (Vec::new(), data);
    while let [length, records @ ..] = rest {
        let (record, after) = records.split_at(records.len().min(usize::from(*length)));
        let length = (record.len() as u64).to_le_bytes();
        framed.extend([&length[..], &checksum(&length), record, &checksum(record)].concat());
        rest = after;
    }
    let is_file = file("rows.tfrecord", data);
    file("rows.tfrecord", &framed) || is_file
}

/// An image that is let in because it was looked through can be decoded.
pub(crate) fn image(data: &[u8]) -> bool {
    let inputs = || directory(&[("1.jpg", data)]);
    let is_let_in = is_accepted(inputs, &IngestConfig::default());
    let size = Some("8x8".parse().expect("a size"));
    let decoded = version(inputs(), &IngestConfig { decode: true, resize: size, ..IngestConfig::default() });
    assert_eq!(is_let_in, decoded.is_ok());
    is_let_in
}
