//! The checkpoints of a run in a store: writing, reading, removing.
//!
//! Parts are put before the manifest that names them, each whole or not at all, so a manifest that can be read leads to parts that were
//! written. A part may be of several checkpoints, and is needed as long as one of them remains. What goes away: manifests beyond the newest that are kept, then the parts that a removed manifest named and no remaining one
//! does. A part that no manifest names may be of a checkpoint that is being written; it goes when it is a day older than the newest
//! manifest, and so does what a process left that was killed while it wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use shardd_api::protocol::RunId;
use shardd_store::catalog::StorePlace;
use shardd_store::origin::{Origin, OriginError};
use shardd_store::record::Records;
use shardfmt::Digest;
use tokio::runtime::{Builder, Handle, Runtime};
use tracing::warn;

use super::CheckpointError;
use super::manifest::{CheckpointId, Manifest};
use super::part::Part;

/// After this time a part that no manifest names is of a checkpoint that was never finished.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

/// The checkpoints of one run.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    objects: Objects,
    runtime: Arc<Runtime>,
}

/// The same, for tasks: without the runtime they run on, which must not end by one of them.
#[derive(Clone, Debug)]
pub(super) struct Objects {
    origin: Arc<Origin>,
    run: RunId,
}

impl CheckpointStore {
    /// Opens the place of a run's checkpoints: in a directory, which is made if it is missing, or in a folder of a bucket. A service
    /// elsewhere is asked whether it can be.
    ///
    /// # Errors
    /// [`CheckpointError::Store`] when it cannot be used.
    pub fn open(place: &StorePlace, run: &RunId) -> Result<CheckpointStore, CheckpointError> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("checkpoints").enable_all().build();
        let runtime = Arc::new(runtime.map_err(CheckpointError::Threads)?);
        let origin = match place {
            StorePlace::Directory(directory) => Origin::open_dir(directory)?,
            StorePlace::Url { url, options } => Origin::open_with(url, options)?,
        };
        if origin.is_read_only() {
            let (what, store) = ("checkpoints".to_owned(), origin.name().to_owned());
            return Err(OriginError::ReadOnly { action: "keep", what, store }.into());
        }
        runtime.block_on(origin.probe())?;
        Ok(CheckpointStore { objects: Objects { origin: Arc::new(origin), run: run.clone() }, runtime })
    }

    /// The run.
    pub fn run(&self) -> &RunId {
        &self.objects.run
    }

    /// The name of the store for people.
    pub fn store(&self) -> &str {
        self.objects.origin.name()
    }

    /// The run records of the same store.
    pub fn records(&self) -> Records {
        Records::new(Arc::clone(&self.objects.origin))
    }

    /// Of the threads that ask the store.
    pub fn handle(&self) -> &Handle {
        self.runtime.handle()
    }

    pub(super) fn objects(&self) -> Objects {
        self.objects.clone()
    }

    /// The checkpoints there are, the newest first: those of the most steps, and of these the one that was written last.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub fn list(&self) -> Result<Vec<CheckpointId>, CheckpointError> {
        self.runtime.block_on(self.objects.listed())
    }

    /// The manifest of that name, verified.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`], [`CheckpointError::TooNew`], and [`CheckpointError::Store`] when it is not there or cannot be read.
    pub fn manifest(&self, id: CheckpointId) -> Result<Manifest, CheckpointError> {
        self.runtime.block_on(self.objects.read_manifest(id))
    }
}

impl Objects {
    fn folder(&self) -> String {
        format!("runs/{}/checkpoints", self.run)
    }

    fn manifest_key(&self, id: CheckpointId) -> String {
        format!("{}/{id}.json", self.folder())
    }

    fn parts_folder(&self) -> String {
        format!("runs/{}/parts", self.run)
    }

    fn part_key(&self, digest: Digest) -> String {
        format!("{}/{digest}.safetensors", self.parts_folder())
    }

    pub(super) async fn listed(&self) -> Result<Vec<CheckpointId>, CheckpointError> {
        let mut found = Vec::new();
        for object in self.origin.list_folder(&self.folder()).await? {
            let name = object.key.rsplit('/').next().and_then(|name| name.strip_suffix(".json"));
            if let Some(id) = name.and_then(|name| name.parse::<CheckpointId>().ok()) {
                found.push((id.step, object.written, id));
            }
        }
        found.sort();
        Ok(found.into_iter().rev().map(|(_, _, id)| id).collect())
    }

    async fn read_manifest(&self, id: CheckpointId) -> Result<Manifest, CheckpointError> {
        let what = format!("checkpoint {}", id.short());
        let bytes = self.origin.keyed(self.manifest_key(id), &what, id.digest).await?;
        Manifest::from_bytes(id, &bytes)
    }

    /// The bytes of a part, verified.
    pub(super) async fn read_part(&self, part: Part) -> Result<Bytes, CheckpointError> {
        let what = format!("part {} of a checkpoint", part.digest.short());
        Ok(self.origin.keyed(self.part_key(part.digest), &what, part.digest).await?)
    }

    /// Puts a part, whose bytes these are.
    pub(super) async fn put_part(&self, part: Part, bytes: Vec<u8>) -> Result<(), CheckpointError> {
        let what = format!("part {} of a checkpoint", part.digest.short());
        Ok(self.origin.put_keyed(self.part_key(part.digest), &what, bytes.into()).await?)
    }

    /// The parts there are, with their bytes.
    pub(super) async fn present(&self) -> Result<BTreeMap<Digest, u64>, CheckpointError> {
        let listed = self.origin.list_folder(&self.parts_folder()).await?;
        Ok(listed.iter().filter_map(|object| Some((part_of(&object.key)?, object.bytes))).collect())
    }

    /// Puts a manifest whose parts are there: from now on the checkpoint exists.
    pub(super) async fn publish(&self, manifest: &Manifest) -> Result<CheckpointId, CheckpointError> {
        let (id, bytes) = (manifest.id(), manifest.to_bytes());
        let what = format!("checkpoint {}", id.short());
        self.origin.put_keyed(self.manifest_key(id), &what, bytes.into()).await?;
        Ok(id)
    }

    /// Removes the checkpoints beyond the newest `keep`, and `superseded`, but never `newest`, which was just published, nor that of the step
    /// to which a bad step after it would go back.
    pub(super) async fn tidy(
        &self,
        newest: CheckpointId,
        keep: usize,
        back_to: Option<u64>,
        superseded: &[CheckpointId],
    ) -> Result<(), CheckpointError> {
        let mut kept = vec![newest];
        let mut gone = Vec::new();
        for id in self.listed().await?.into_iter().filter(|id| *id != newest) {
            let is_wanted = kept.len() < keep || Some(id.step) == back_to;
            let stays = is_wanted && !superseded.contains(&id);
            if stays { kept.push(id) } else { gone.push(id) }
        }
        let mut named = BTreeSet::new();
        for id in &gone {
            // Of one that cannot be read the parts go when they are forgotten.
            if let Ok(manifest) = self.read_manifest(*id).await {
                named.extend(manifest.objects().map(|part| part.digest));
            }
        }
        let mut needed = BTreeSet::new();
        let mut all_are_read = true;
        for id in &kept {
            match self.read_manifest(*id).await {
                Ok(manifest) => needed.extend(manifest.objects().map(|part| part.digest)),
                Err(error) => {
                    warn!(checkpoint = %id.short(), %error, "a checkpoint cannot be read; no parts are removed");
                    all_are_read = false;
                }
            }
        }
        self.origin.delete(gone.iter().map(|id| self.manifest_key(*id)).collect()).await?;
        if !all_are_read {
            return Ok(());
        }
        let manifests = self.origin.list_folder(&self.folder()).await?;
        let Some(now) = manifests.iter().map(|object| object.written).max() else { return Ok(()) };
        for folder in [self.folder(), self.parts_folder()] {
            self.origin.unfinished(&folder, FORGOTTEN, now, true, |_| true).await?;
        }
        let mut away = Vec::new();
        for object in self.origin.list_folder(&self.parts_folder()).await? {
            let Some(digest) = part_of(&object.key) else { continue };
            let is_over = named.contains(&digest) || object.written.is_older(FORGOTTEN, now);
            if is_over && !needed.contains(&digest) {
                away.push(object.key);
            }
        }
        Ok(self.origin.delete(away).await?)
    }
}

/// The digest in a part's key.
fn part_of(key: &str) -> Option<Digest> {
    key.rsplit('/').next()?.strip_suffix(".safetensors")?.parse().ok()
}
