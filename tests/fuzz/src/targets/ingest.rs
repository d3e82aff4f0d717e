//! Files that are ingested, one for each kind whose reader is our own or has our own around it.

use std::io;
use std::sync::Mutex;

use shardfmt::ingest::{IngestConfig, IngestError, Inputs, NoProgress, OnError, Resources, Sink, Source};
use shardfmt::{FinishedShard, Manifest, Shard, ShardId};

/// What is accepted makes a version: shards that can be read, with as many rows as the manifest says. Passing over what
/// cannot be read then makes the same one.
fn file(name: &str, data: &[u8]) -> bool {
    let skipped = version(name, data, OnError::Skip);
    let Ok(whole) = version(name, data, OnError::Fail) else { return false };
    let skipped = skipped.expect("there is nothing to pass over");
    assert_eq!((whole.shards, 0), (skipped.shards, skipped.skipped_count));
    true
}

fn version(name: &str, data: &[u8], on_error: OnError) -> Result<Manifest, IngestError> {
    let config = IngestConfig { on_error, ..IngestConfig::default() };
    let source = Source::new(Inputs::in_memory(name, data.to_vec()), &config)?;
    let (shards, resources) = (Shards::default(), Resources::threads(1));
    let manifest = shardfmt::ingest::ingest(source, &config, &resources, &shards, &NoProgress)?;
    let mut made = shards.0.into_inner().expect("no thread panicked");
    for entry in &manifest.shards {
        let at = made.iter().position(|shard| shard.id == entry.id).expect("every shard was put");
        let shard = Shard::from_bytes(made.swap_remove(at).bytes).expect("a shard");
        assert_eq!(shard.rows(), entry.rows);
    }
    assert_eq!(Manifest::decode(&manifest.encode()).expect("what was written is read"), manifest);
    Ok(manifest)
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

pub(crate) fn archive(data: &[u8]) -> bool {
    file("images.tar", data)
}
