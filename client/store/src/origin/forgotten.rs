//! Marks of shards that hold rows which were forgotten. They stay when the shards are gone: who has a copy of one drops it by its
//! mark, and the store does not take it again. Knows digests, and no rows.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use shardfmt::ShardId;

use super::objects::FORGOTTEN;
use super::{Object, ObjectKind, Origin, OriginError};

fn mark(id: ShardId) -> Object {
    Object::new(format!("{FORGOTTEN}{id}"), format_args!("mark of the forgotten shard {id}"))
}

impl Origin {
    /// Marks a shard. From now on it is not taken again. Twice does no harm.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store does not take it, [`OriginError::ReadOnly`] of a web server,
    /// [`OriginError::DiskFull`] of a directory.
    pub async fn put_forgotten(&self, id: ShardId) -> Result<(), OriginError> {
        self.put(&mark(id), Bytes::from(format!("{id}\n"))).await
    }

    /// The shards that bear a mark.
    ///
    /// # Errors
    ///
    /// When the store cannot be listed, as a web server cannot.
    pub async fn forgotten(&self) -> Result<BTreeSet<ShardId>, OriginError> {
        let listed = self.store.list(Some(&Path::from(FORGOTTEN)));
        let kinds = listed.map_ok(|meta| ObjectKind::of(meta.location.as_ref()));
        let shards = kinds.try_filter_map(async |kind| match kind {
            ObjectKind::Forgotten(id) => Ok(Some(id)),
            _ => Ok(None),
        });
        shards.try_collect().await.map_err(|error| self.failed_listing(error))
    }

    /// Stores a shard that bears no mark, and takes it back should it have got one meanwhile: the writer of a
    /// mark lists the store afterwards, and may have looked before the shard was there.
    pub(super) async fn put_unless_forgotten(&self, id: ShardId, bytes: Bytes) -> Result<(), OriginError> {
        self.refuse_forgotten(id).await?;
        let object = Object::shard(id);
        self.put(&object, bytes).await?;
        if let Err(error) = self.refuse_forgotten(id).await {
            if let OriginError::Forgotten { .. } = error {
                self.delete(vec![id.object_key()]).await?;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Refuses a shard that bears a mark.
    async fn refuse_forgotten(&self, id: ShardId) -> Result<(), OriginError> {
        match self.size_of(&mark(id)).await? {
            None => Ok(()),
            Some(_) => Err(self.forgotten_shard(id)),
        }
    }

    /// Why a shard is not taken.
    pub(crate) fn forgotten_shard(&self, id: ShardId) -> OriginError {
        OriginError::Forgotten { what: format!("shard {id}"), store: self.name.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::Arc;

    use async_trait::async_trait;
    use futures::stream::BoxStream;
    use object_store::memory::InMemory;
    use object_store::{
        CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
        ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    };

    use super::super::conformance::shard;
    use super::*;

    /// A store in which a forget marks each shard, and looks for it, while the shard is being put.
    #[derive(Debug)]
    struct Marking(InMemory);

    impl fmt::Display for Marking {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }

    #[async_trait]
    impl ObjectStore for Marking {
        async fn put_opts(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
            if let ObjectKind::Shard(id) = ObjectKind::of(key.as_ref()) {
                self.0.put(&mark(id).path, "marked".into()).await?;
            }
            self.0.put_opts(key, payload, options).await
        }

        async fn put_multipart_opts(
            &self,
            key: &Path,
            options: PutMultipartOptions,
        ) -> Result<Box<dyn MultipartUpload>> {
            self.0.put_multipart_opts(key, options).await
        }

        async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
            self.0.get_opts(key, options).await
        }

        fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
            self.0.delete_stream(keys)
        }

        fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
            self.0.list(prefix)
        }

        async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
            self.0.list_with_delimiter(prefix).await
        }

        async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
            self.0.copy_opts(from, to, options).await
        }
    }

    #[tokio::test]
    async fn a_shard_that_is_marked_while_it_is_put_is_taken_back() {
        let store = Arc::new(Marking(InMemory::new()));
        let origin = Origin::over(store.clone(), "memory", None);
        let shard = shard(10);
        let refused = origin.put_shard(&shard).await.expect_err("it is marked by now");
        assert!(matches!(refused, OriginError::Forgotten { .. }), "{refused}");
        assert!(!origin.has_shard(&shard.id).await.expect("looks"));
        let left: Vec<_> = store.list(None).try_collect().await.expect("lists");
        assert_eq!(left.len(), 1, "only the mark is left: {left:?}");
        assert!(matches!(ObjectKind::of(left[0].location.as_ref()), ObjectKind::Forgotten(_)));
    }
}
