//! Manifests in a store: put with the tree that verifies parts of them, read whole or in parts.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use shardfmt::manifest::{LocalManifest, ManifestBytes, tree_of};
use shardfmt::{Manifest, ManifestError, ManifestFile, VersionId};
use tokio::runtime::Handle;
use tracing::warn;

use super::{Object, Origin, OriginError, Traffic, blocking, check_digest, check_name};

impl Origin {
    /// Stores a manifest, and the tree of a long one.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store does not take it, [`OriginError::ReadOnly`] of a web server,
    /// [`OriginError::DiskFull`] of a directory.
    pub async fn put_manifest(&self, manifest: &Manifest) -> Result<VersionId, OriginError> {
        let bytes = Bytes::from(manifest.encode());
        let id = VersionId::of(&bytes);
        self.put_with_tree(id, bytes).await?;
        Ok(id)
    }

    /// Stores the file of a manifest, and the tree of a long one.
    ///
    /// # Errors
    ///
    /// [`OriginError::Mismatch`] when the bytes are no manifest or do not hash to `id`.
    pub async fn put_manifest_bytes(&self, id: VersionId, bytes: Bytes) -> Result<Manifest, OriginError> {
        let object = Object::manifest(id);
        let offered = bytes.clone();
        let (found, decoded) = blocking(move || (VersionId::of(&offered), Manifest::decode(&offered))).await;
        check_name(&object, found == id, || found.to_string())?;
        let manifest = decoded.map_err(|error| OriginError::Mismatch {
            what: object.what.clone(),
            reason: error.to_string(),
        })?;
        self.put_with_tree(id, bytes).await?;
        Ok(manifest)
    }

    /// The tree first: where there is a manifest, parts of it can be read.
    async fn put_with_tree(&self, id: VersionId, bytes: Bytes) -> Result<(), OriginError> {
        let file = bytes.clone();
        if let Some(tree) = blocking(move || tree_of(&file)).await {
            self.put(&Object::tree(id), tree.into()).await?;
        }
        self.put(&Object::manifest(id), bytes).await
    }

    /// The manifest of a version, verified against its name.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] when it is not there, [`OriginError::Corrupt`] when its bytes are others,
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn manifest(&self, id: VersionId) -> Result<Manifest, OriginError> {
        let bytes = self.manifest_bytes(id).await?;
        let decoded = blocking(move || Manifest::decode(&bytes)).await;
        decoded.map_err(|error| self.corrupt(&Object::manifest(id), error.to_string()))
    }

    /// The file of a version's manifest, verified against its name.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] when it is not there, [`OriginError::Corrupt`] when its bytes are others,
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn manifest_bytes(&self, id: VersionId) -> Result<Bytes, OriginError> {
        self.read_as(&Object::manifest(id), &self.metadata, move |bytes| {
            check_digest(id, VersionId::of(bytes))?;
            Ok(bytes.clone())
        })
        .await
    }

    /// The size of a version's manifest, if it is there.
    ///
    /// # Errors
    ///
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn manifest_size(&self, id: VersionId) -> Result<Option<u64>, OriginError> {
        self.size_of(&Object::manifest(id)).await
    }

    /// Part of a version's manifest, as it is: the reader verifies it.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] when it is not there, [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn manifest_part(&self, id: VersionId, range: Range<u64>) -> Result<Bytes, OriginError> {
        let object = Object::manifest(id);
        let read = self.store.get_range(&object.path, range).await;
        let read = read.map_err(|error| self.failed("read", &object, error))?;
        self.metadata.count(1, read.len() as u64);
        Ok(read)
    }

    /// The tree of a version's manifest, as it is: the reader verifies it.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] when it has none, because it is short or was put before there were trees.
    pub async fn manifest_tree(&self, id: VersionId) -> Result<Bytes, OriginError> {
        self.read(&Object::tree(id), &self.metadata).await
    }

    /// Opens the manifest of a version, to be read in part, on request.
    ///
    /// Later calls read, and block: not to be done in async tasks. Unless the store is a directory, it waits
    /// for the runtime that this was called in, which has to be running then.
    ///
    /// # Errors
    ///
    /// [`OriginError::NotFound`] when it is not there, [`OriginError::Corrupt`] when its bytes are others,
    /// [`OriginError::Unavailable`] when the store cannot be asked.
    pub async fn open_manifest(&self, id: VersionId) -> Result<ManifestFile, OriginError> {
        self.ask_manifest(id, Ok).await
    }

    /// Opens the manifest of a version and asks it something, where blocking is allowed.
    ///
    /// # Errors
    ///
    /// As [`open_manifest`](Self::open_manifest), and those of `ask`, as errors of the store.
    pub async fn ask_manifest<T: Send + 'static>(
        &self,
        id: VersionId,
        ask: impl FnOnce(ManifestFile) -> Result<T, ManifestError> + Send + 'static,
    ) -> Result<T, OriginError> {
        let local = self
            .root
            .as_ref()
            .map(|root| LocalManifest { file: root.join(id.object_key()), tree: root.join(id.tree_key()) });
        let stored = StoredManifest {
            id,
            local,
            store: self.store.clone(),
            file: Object::manifest(id).path,
            tree: Object::tree(id).path,
            runtime: Handle::current(),
            traffic: self.metadata.clone(),
            reread: self.remote.as_ref().map(|remote| remote.reread.clone()),
        };
        let answer = blocking(move || ManifestFile::open(id, stored).and_then(ask)).await;
        answer.map_err(|error| self.manifest_failed(id, error))
    }

    fn manifest_failed(&self, id: VersionId, error: ManifestError) -> OriginError {
        let object = Object::manifest(id);
        let ManifestError::Unread { source } = error else {
            return self.corrupt(&object, error.to_string());
        };
        let source = match source.kind() {
            io::ErrorKind::NotFound => {
                object_store::Error::NotFound { path: object.path.to_string(), source: source.into() }
            }
            _ => source.downcast().unwrap_or_else(|source| object_store::Error::Generic {
                store: "manifest",
                source: source.into(),
            }),
        };
        self.failed("read", &object, source)
    }
}

/// A manifest in a store. Reads from a directory go the short way.
struct StoredManifest {
    id: VersionId,
    local: Option<LocalManifest>,
    store: Arc<dyn ObjectStore>,
    file: Path,
    tree: Path,
    runtime: Handle,
    traffic: Arc<Traffic>,
    /// Counts second reads, if it comes over a network.
    reread: Option<Arc<AtomicU64>>,
}

impl StoredManifest {
    fn counted(&self, read: io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
        if let Ok(read) = &read {
            self.traffic.count(1, read.len() as u64);
        }
        read
    }

    fn wait(&self, read: impl Future<Output = object_store::Result<Bytes>>) -> io::Result<Vec<u8>> {
        match self.runtime.block_on(read) {
            Ok(bytes) => Ok(bytes.into()),
            Err(error @ object_store::Error::NotFound { .. }) => {
                Err(io::Error::new(io::ErrorKind::NotFound, error))
            }
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

impl ManifestBytes for StoredManifest {
    fn whole(&self) -> io::Result<Vec<u8>> {
        let read = || {
            self.counted(match &self.local {
                Some(local) => local.whole(),
                None => self.wait(async { self.store.get(&self.file).await?.bytes().await }),
            })
        };
        let bytes = read()?;
        match &self.reread {
            // Bytes from a network are read a second time before it counts as corrupt.
            Some(reread) if VersionId::of(&bytes) != self.id => {
                warn!(manifest = %self.id, "its bytes are wrong; reading it again");
                reread.fetch_add(1, Ordering::Relaxed);
                read()
            }
            _ => Ok(bytes),
        }
    }

    fn part(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        self.counted(match &self.local {
            Some(local) => local.part(range),
            None => self.wait(self.store.get_range(&self.file, range)),
        })
    }

    fn tree(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        self.counted(match &self.local {
            Some(local) => local.tree(range),
            None => self.wait(self.store.get_range(&self.tree, range)),
        })
    }
}
