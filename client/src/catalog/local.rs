//! A catalog in a directory, without any server: objects in `store/`, names in `meta/`, shared by the processes of one
//! machine.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use shardfmt::plan::PlanDocument;
use shardfmt::{DatasetName, FinishedShard, Manifest, PlanId, ShardEntry, ShardId, VersionId};
use tokio::runtime::Runtime;

use super::{Catalog, CatalogBackend, CatalogError, DatasetInfo, PlanInfo};
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

    /// The store of this catalog.
    pub fn origin(&self) -> Arc<Origin> {
        self.backend.origin().clone()
    }
}

impl Catalog for LocalCatalog {
    fn datasets(&self) -> Result<Vec<DatasetInfo>, CatalogError> {
        self.runtime.block_on(self.backend.datasets())
    }

    fn dataset(&self, name: &DatasetName) -> Result<DatasetInfo, CatalogError> {
        self.runtime.block_on(self.backend.dataset(name))
    }

    fn manifest(&self, version: VersionId) -> Result<Manifest, CatalogError> {
        self.runtime.block_on(self.backend.manifest(version))
    }

    fn shard(&self, entry: &ShardEntry) -> Result<Bytes, CatalogError> {
        Ok(self.runtime.block_on(self.backend.origin().shard(entry))?)
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
    ) -> Result<DatasetInfo, CatalogError> {
        self.runtime.block_on(async {
            let version = self.backend.origin().put_manifest(manifest).await?;
            self.backend.commit(name, expected, version).await
        })
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
}
