// The store of this crate's documentation examples, which include this file.

/// Keeps shards in memory.
#[derive(Default)]
struct Kept(std::sync::Mutex<std::collections::BTreeMap<shardfmt::ShardId, shardfmt::FinishedShard>>);

impl Kept {
    fn get(&self, id: &shardfmt::ShardId) -> Option<shardfmt::FinishedShard> {
        self.0.lock().expect("no panic while held").get(id).cloned()
    }
}

impl shardfmt::store::Sink for Kept {
    fn put_shard(&self, shard: shardfmt::FinishedShard) -> std::io::Result<()> {
        self.0.lock().expect("no panic while held").insert(shard.id, shard);
        Ok(())
    }

    fn has_shard(&self, id: &shardfmt::ShardId) -> std::io::Result<bool> {
        Ok(self.get(id).is_some())
    }
}

impl shardfmt::store::Store for Kept {
    fn shard(&self, id: shardfmt::ShardId) -> std::io::Result<Option<shardfmt::arrow::buffer::Buffer>> {
        Ok(self.get(&id).map(|shard| shard.bytes.into()))
    }

    fn sidecar(&self, id: shardfmt::ShardId) -> std::io::Result<Option<shardfmt::arrow::buffer::Buffer>> {
        Ok(self.get(&id).map(|shard| shard.sidecar.encode().into()))
    }
}
