//! Provenances in a store: one beside each manifest, never changed.

use bytes::Bytes;
use object_store::{ObjectStoreExt, PutMode, PutOptions};
use shardfmt::{Provenance, VersionId};

use super::{Object, Origin, OriginError, blocking};

impl Origin {
    /// The provenance of a version; `None` if there is none. The commit has its digest.
    ///
    /// # Errors
    ///
    /// [`OriginError::Corrupt`] when its bytes are none, [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn provenance(&self, id: VersionId) -> Result<Option<Provenance>, OriginError> {
        let check = |bytes: &Bytes| Provenance::from_bytes(bytes).map_err(|error| error.to_string());
        match self.read_as(&Object::provenance(id), &self.metadata, check).await {
            Ok(found) => Ok(Some(found)),
            Err(OriginError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores the provenance of a version, unless there is one: the first one stays, and a damaged one is replaced.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store does not take it, [`OriginError::ReadOnly`] of a web server,
    /// [`OriginError::DiskFull`] of a directory.
    pub async fn put_provenance(&self, id: VersionId, provenance: &Provenance) -> Result<(), OriginError> {
        let object = Object::provenance(id);
        let mode = match self.provenance(id).await {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => PutMode::Create,
            Err(OriginError::Corrupt { .. }) => PutMode::Overwrite,
            Err(error) => return Err(error),
        };
        self.check_writable("write", &object)?;
        let bytes = Bytes::from(provenance.to_bytes());
        self.check_room(&object, bytes.len() as u64)?;
        match self.store.put_opts(&object.path, bytes.clone().into(), PutOptions::from(mode)).await {
            // Another ingest of the same samples was first.
            Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => Ok(()),
            // This store has no conditional requests: the last one stays.
            Err(object_store::Error::NotImplemented { .. }) => {
                let put = self.store.put(&object.path, bytes.into()).await;
                put.map(drop).map_err(|error| self.failed("write", &object, error))
            }
            Err(error) => Err(self.failed("write", &object, error)),
        }
    }

    /// As [`put_provenance`](Self::put_provenance), of bytes that were offered.
    ///
    /// # Errors
    ///
    /// [`OriginError::Mismatch`] when they are none, and those of [`put_provenance`](Self::put_provenance).
    pub async fn put_provenance_bytes(&self, id: VersionId, bytes: Bytes) -> Result<(), OriginError> {
        let object = Object::provenance(id);
        let parsed = blocking(move || Provenance::from_bytes(&bytes)).await;
        let provenance =
            parsed.map_err(|error| OriginError::Mismatch { what: object.what, reason: error.to_string() })?;
        self.put_provenance(id, &provenance).await
    }
}
