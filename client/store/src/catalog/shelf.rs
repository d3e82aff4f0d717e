//! The shards of a catalog as operations on versions want them: raw files to read and verify, finished ones to put.

use std::io;

use arrow::buffer::Buffer;
use bytes::Bytes;
use shardfmt::store::{Sink, Store};
use shardfmt::{FinishedShard, ShardId};

use super::{Catalog, CatalogError};
use crate::origin::OriginError;

/// Where ingest and operations on versions put shards, and find them again.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_store::catalog::{Catalog, LocalCatalog};
/// # let (shard, manifest) = numbers()?;
/// # let directory = tempfile::tempdir()?;
/// # let catalog = LocalCatalog::open(directory.path())?;
/// # catalog.put_shard(&shard)?;
/// # let name: shardfmt::DatasetName = "numbers".parse()?;
/// # let note = shardd_store::catalog::CommitNote::of(shardfmt::Operation::INGEST);
/// # let dataset = catalog.commit(&name, None, &manifest, &note)?;
/// use shardd_store::catalog::CatalogStore;
/// use shardfmt::store::{Sink, Store};
///
/// let store = CatalogStore(&catalog);
/// assert!(store.has_shard(&shard.id)?);
/// assert_eq!(store.shard(shard.id)?.map(|file| file.len()), Some(shard.bytes.len()));
/// # Ok(())
/// # }
/// ```
pub struct CatalogStore<'a>(pub &'a dyn Catalog);

impl Sink for CatalogStore<'_> {
    fn put_shard(&self, shard: FinishedShard) -> io::Result<()> {
        self.0.put_shard(&shard).map_err(io::Error::other)
    }

    fn has_shard(&self, id: &ShardId) -> io::Result<bool> {
        self.0.has_shard(id).map_err(io::Error::other)
    }
}

impl Store for CatalogStore<'_> {
    fn shard(&self, id: ShardId) -> io::Result<Option<Buffer>> {
        present(self.0.shard_file(id))
    }

    fn sidecar(&self, id: ShardId) -> io::Result<Option<Buffer>> {
        present(self.0.sidecar_file(id))
    }
}

fn present(read: Result<Bytes, CatalogError>) -> io::Result<Option<Buffer>> {
    match read {
        Ok(bytes) => Ok(Some(bytes.into())),
        Err(CatalogError::NotFound { .. } | CatalogError::Origin(OriginError::NotFound { .. })) => Ok(None),
        Err(error) => Err(io::Error::other(error)),
    }
}
