//! Where else the shards of a version may be: in the directory of another store, behind a node, or in its source.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use arrow::buffer::Buffer;
use shardd_ingest::version::Store;
use shardd_store::catalog::{Catalog, CatalogError, CatalogStore, HttpCatalog};
use shardd_store::connect::Connect;
use shardfmt::{Manifest, ShardId, VersionId};

use crate::failure::Failure;

/// A place that a person named.
pub(super) enum Place {
    /// The directory of a store: only read, so that it does not matter whose it is.
    Directory(Directory),
    /// A node.
    Node(String, Box<HttpCatalog>),
    /// The source of the dataset.
    Source(PathBuf),
}

/// A store's directory: `shards/` and `manifests/` are in it.
pub(super) struct Directory {
    named: PathBuf,
    root: PathBuf,
}

impl Place {
    /// The kind of place that `text` names: if nothing else, something to ingest.
    pub(super) fn parse(text: &str, connect: &Connect) -> Result<Place, Failure> {
        let named = PathBuf::from(text);
        if text.starts_with("http://") || text.starts_with("https://") {
            let catalog = HttpCatalog::with(text, &connect.credentials()?);
            if catalog.datasets().is_ok() {
                return Ok(Place::Node(text.to_owned(), Box::new(catalog)));
            }
        }
        let root = [named.join("store"), named.clone()].into_iter().find(|root| root.join("shards").is_dir());
        Ok(match root {
            Some(root) => Place::Directory(Directory { named, root }),
            None => Place::Source(named),
        })
    }

    /// A place that can be read shard by shard.
    pub(super) fn store(&self) -> Option<Box<dyn Store + '_>> {
        match self {
            Place::Directory(directory) => Some(Box::new(directory)),
            Place::Node(_, catalog) => Some(Box::new(CatalogStore(&**catalog))),
            Place::Source(_) => None,
        }
    }

    /// The manifest of a version, if it is there and intact.
    pub(super) fn manifest(&self, version: VersionId) -> Result<Option<Manifest>, Failure> {
        match self {
            Place::Directory(directory) => Ok(directory.manifest(&directory.root.join(version.object_key()))),
            Place::Node(_, catalog) => match catalog.manifest(version) {
                Ok(manifest) => Ok(Some(manifest)),
                Err(CatalogError::NotFound { .. } | CatalogError::Corrupt { .. }) => Ok(None),
                Err(error) => Err(error.into()),
            },
            Place::Source(_) => Ok(None),
        }
    }

    /// All versions that are there and intact.
    pub(super) fn versions(&self) -> Result<Vec<Manifest>, Failure> {
        match self {
            Place::Directory(directory) => Ok(directory.manifests()),
            Place::Node(_, catalog) => {
                let versions = kept_versions(&**catalog)?.into_iter().map(|version| self.manifest(version));
                Ok(versions.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
            }
            Place::Source(_) => Ok(Vec::new()),
        }
    }
}

/// All versions that something names: those in the history of any dataset, the newest of each dataset first, then those
/// that are kept by tags or plans alone.
pub(super) fn kept_versions(catalog: &dyn Catalog) -> Result<Vec<VersionId>, Failure> {
    let mut kept = Vec::new();
    for dataset in catalog.datasets()? {
        kept.extend(catalog.log(&dataset.name, usize::MAX)?.into_iter().map(|entry| entry.commit.version));
    }
    kept.extend(catalog.tags(None)?.into_iter().map(|tag| tag.version));
    kept.extend(catalog.plans()?.into_iter().map(|plan| plan.version));
    let mut seen = BTreeSet::new();
    kept.retain(|version| seen.insert(*version));
    Ok(kept)
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Directory(directory) => write!(f, "{}", directory.named.display()),
            Place::Node(url, _) => f.write_str(url),
            Place::Source(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Directory {
    /// A manifest that is named after its content.
    fn manifest(&self, path: &Path) -> Option<Manifest> {
        let version: VersionId = path.file_stem()?.to_str()?.parse().ok()?;
        let bytes = fs::read(path).ok().filter(|bytes| VersionId::of(bytes) == version)?;
        Manifest::decode(&bytes).ok()
    }

    fn manifests(&self) -> Vec<Manifest> {
        let entries = fs::read_dir(self.root.join("manifests")).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "arrow"));
        paths.sort();
        paths.iter().filter_map(|path| self.manifest(path)).collect()
    }
}

impl Store for &Directory {
    fn shard(&self, id: ShardId) -> io::Result<Option<Buffer>> {
        read(&self.root.join(id.object_key()))
    }

    fn sidecar(&self, id: ShardId) -> io::Result<Option<Buffer>> {
        read(&self.root.join(id.sidecar_key()))
    }
}

fn read(path: &Path) -> io::Result<Option<Buffer>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes.into())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
