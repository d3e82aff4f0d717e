//! A catalog in a directory, without any server: objects in `store/`, names in `meta/`, shared by the processes of one
//! machine.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use shardfmt::plan::PlanDocument;
use shardfmt::{
    CommitId, DatasetName, DatasetRef, FinishedShard, Manifest, ManifestFile, Message, Operation, PlanId,
    ShardEntry, ShardId, TagName, VersionId,
};
use tokio::runtime::Runtime;

use super::{
    Catalog, CatalogBackend, CatalogError, CommitNote, DatasetInfo, GcOptions, GcReport, LogEntry, PlanInfo,
    TagExpected, TagInfo,
};
use crate::metastore::FilesMetastore;
use crate::origin::Origin;

/// A [`Catalog`] in a directory. Owns a small runtime, so it can neither be used nor dropped in async tasks.
pub struct LocalCatalog {
    backend: CatalogBackend,
    runtime: Runtime,
}

impl LocalCatalog {
    /// Opens the catalog in `dir`, which is created when missing.
    ///
    /// # Errors
    ///
    /// When the directory cannot be made or written, or belongs to a node, which keeps its own names.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, CatalogError> {
        let dir = dir.as_ref();
        if dir.join("tls").exists() {
            return Err(CatalogError::NodesData { dir: dir.to_owned() });
        }
        let origin = Arc::new(Origin::open_dir(&dir.join("store"))?);
        let metastore = Arc::new(FilesMetastore::open(dir.join("meta"))?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        Ok(Self {
            backend: CatalogBackend::new(origin, metastore),
            runtime: runtime.map_err(CatalogError::Runtime)?,
        })
    }

    /// Whether there is one in `dir`, or what a node left.
    pub fn is_at(dir: impl AsRef<Path>) -> bool {
        ["meta", "store", "tls"].iter().any(|part| dir.as_ref().join(part).exists())
    }

    /// Takes away what [`open`](Self::open) makes in `dir`, as long as nothing was put there: after a failure that left
    /// nothing to keep. What holds anything stays as it is.
    pub fn remove_unused(dir: impl AsRef<Path>) {
        // Of a directory that has something in it, nothing is removed.
        if std::fs::remove_dir(dir.as_ref().join("store")).is_ok() {
            FilesMetastore::remove_unused(dir.as_ref().join("meta"));
        }
    }

    /// The store of this catalog.
    pub fn origin(&self) -> Arc<Origin> {
        self.backend.origin().clone()
    }
}

impl Catalog for LocalCatalog {
    fn datasets(&self) -> Result<Vec<DatasetInfo>, CatalogError> {
        self.runtime.block_on(self.backend.datasets())
    }

    fn resolve(&self, reference: &DatasetRef) -> Result<DatasetInfo, CatalogError> {
        self.runtime.block_on(self.backend.resolve(reference))
    }

    fn log(&self, name: &DatasetName, limit: usize) -> Result<Vec<LogEntry>, CatalogError> {
        self.runtime.block_on(self.backend.log(name, limit))
    }

    fn manifest(&self, version: VersionId) -> Result<Manifest, CatalogError> {
        self.runtime.block_on(self.backend.manifest(version))
    }

    fn open_manifest(&self, version: VersionId) -> Result<ManifestFile, CatalogError> {
        self.runtime.block_on(self.backend.open_manifest(version))
    }

    fn shard(&self, entry: &ShardEntry) -> Result<Bytes, CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().shard(entry))?)
    }

    fn shard_file(&self, id: ShardId) -> Result<Bytes, CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().shard_file(id))?)
    }

    fn sidecar_file(&self, id: ShardId) -> Result<Bytes, CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().sidecar_bytes(id))?)
    }

    fn put_manifest(&self, manifest: &Manifest) -> Result<VersionId, CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().put_manifest(manifest))?)
    }

    fn put_shard(&self, shard: &FinishedShard) -> Result<(), CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().put_shard(shard))?)
    }

    fn has_shard(&self, id: &ShardId) -> Result<bool, CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().has_shard(id))?)
    }

    fn commit(
        &self,
        name: &DatasetName,
        expected: Option<VersionId>,
        manifest: &Manifest,
        note: &CommitNote,
    ) -> Result<DatasetInfo, CatalogError> {
        self.runtime.block_on(async {
            let version = self.backend.origin().put_manifest(manifest).await?;
            self.backend.commit(name, expected, version, note).await
        })
    }

    fn restore(
        &self,
        name: &DatasetName,
        expected: Option<VersionId>,
        version: VersionId,
        message: &Message,
    ) -> Result<DatasetInfo, CatalogError> {
        let note = CommitNote { operation: Operation::RESTORE, message: message.clone() };
        self.runtime.block_on(self.backend.commit(name, expected, version, &note))
    }

    fn remove_dataset(&self, name: &DatasetName, expected: VersionId) -> Result<(), CatalogError> {
        self.runtime.block_on(self.backend.remove_dataset(name, expected))
    }

    fn tags(&self, dataset: Option<&DatasetName>) -> Result<Vec<TagInfo>, CatalogError> {
        self.runtime.block_on(self.backend.tags(dataset))
    }

    fn put_tag(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
        commit: CommitId,
        expected: TagExpected,
    ) -> Result<TagInfo, CatalogError> {
        self.runtime.block_on(self.backend.put_tag(dataset, tag, commit, expected))
    }

    fn remove_tag(
        &self,
        dataset: &DatasetName,
        tag: &TagName,
        expected: VersionId,
    ) -> Result<(), CatalogError> {
        self.runtime.block_on(self.backend.remove_tag(dataset, tag, expected))
    }

    fn put_plan(&self, plan: &PlanDocument) -> Result<PlanId, CatalogError> {
        Ok(self.runtime.block_on(self.backend.put_plan(plan))?.id)
    }

    fn plans(&self) -> Result<Vec<PlanInfo>, CatalogError> {
        self.runtime.block_on(self.backend.plans())
    }

    fn plan(&self, id: PlanId) -> Result<PlanDocument, CatalogError> {
        self.runtime.block_on(self.backend.plan(id))
    }

    fn remove_plan(&self, id: PlanId) -> Result<(), CatalogError> {
        self.runtime.block_on(self.backend.remove_plan(id))
    }

    fn gc(&self, options: &GcOptions) -> Result<GcReport, CatalogError> {
        self.runtime.block_on(self.backend.gc(options))
    }
}
