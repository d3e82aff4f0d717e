//! Objects of programs that keep more in a store than data sets, under keys of their own whose end tells
//! their digest: put whole, read whole and verified, listed by folder. Does not know their contents; garbage
//! collection leaves them alone.

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use shardfmt::Digest;

use super::{Object, ObjectKind, Origin, OriginError, StoreTime, StoredObject, check_digest};

impl Origin {
    /// Makes `bytes` the content at `key`, durably and at once: a reader sees all of it or nothing. `what` is
    /// what people call it. The same key comes with the same bytes, so twice does no harm, and a damaged copy
    /// is replaced.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store does not take it, [`OriginError::ReadOnly`] of a web server.
    pub async fn put_keyed(&self, key: String, what: &str, bytes: Bytes) -> Result<(), OriginError> {
        self.put(&Object::new(key, what), bytes).await
    }

    /// The content at `key`, verified against its digest.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] and [`OriginError::Corrupt`] when its bytes are not those that were put,
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn keyed(&self, key: String, what: &str, digest: Digest) -> Result<Bytes, OriginError> {
        self.read_as(&Object::new(key, what), &self.metadata, move |bytes| {
            check_digest(digest, Digest::of(bytes))?;
            Ok(bytes.clone())
        })
        .await
    }

    /// The objects of a folder, in the order of keys. One that is not there has nothing in it.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn list_folder(&self, folder: &str) -> Result<Vec<StoredObject>, OriginError> {
        let listed = self.store.list(Some(&Path::from(folder))).map_ok(|meta| StoredObject {
            key: meta.location.to_string(),
            kind: ObjectKind::Unknown,
            bytes: meta.size,
            written: StoreTime::of(&meta),
        });
        let listed: Result<Vec<StoredObject>, _> = listed.try_collect().await;
        let mut found =
            listed.map_err(|error| self.failed("list", &Object::new(folder.to_owned(), folder), error))?;
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }
}
