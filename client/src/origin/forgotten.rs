//! Marks of shards that hold rows which were forgotten. They stay when the shards are gone: who has a copy of one drops it by its
//! mark, and the store does not take it again. Knows digests, and no rows.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use shardfmt::ShardId;

use super::{Object, ObjectKind, Origin, OriginError};

/// Where they lie, each under the digest of its shard.
pub(super) const FORGOTTEN: &str = "forgotten/";

fn mark(id: ShardId) -> Object {
    Object::new(format!("{FORGOTTEN}{id}"), format_args!("mark of the forgotten shard {id}"))
}

impl Origin {
    /// Marks a shard. From now on it is not taken again. Twice does no harm.
    pub(crate) async fn put_forgotten(&self, id: ShardId) -> Result<(), OriginError> {
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

    /// Stores a shard that bears no mark, and takes it back should it have got one meanwhile: whoever puts a mark looks afterwards what
    /// is in the store, and may have looked before the shard was there.
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
