//! A directory of images.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use arrow::datatypes::SchemaRef;

use super::images::{Gather, LARGEST_IMAGE, Labels, Layout, Pending};
use super::tree::{FoundFile, Tree};
use super::{Piece, read_error};
use crate::digest::Digest;
use crate::ingest::IngestError;
use crate::manifest::InputDigest;

#[derive(Debug)]
pub(super) struct FolderSource {
    root: PathBuf,
    under: Option<String>,
    images: Vec<FoundFile>,
    labels: Labels,
    skipped: u64,
}

impl FolderSource {
    pub(super) fn open(
        root: &Path,
        under: Option<&str>,
        tree: Tree,
    ) -> Result<(SchemaRef, FolderSource), IngestError> {
        let mut layout = Layout::default();
        let mut images = Vec::new();
        for file in tree.files {
            if layout.add(root, under, &file.name)? {
                images.push(file);
            }
        }
        let labels = layout.labels(root, under)?;
        let (root, under) = (root.to_owned(), under.map(str::to_owned));
        Ok((labels.schema(), FolderSource { root, under, images, labels, skipped: layout.skipped }))
    }

    pub(super) fn image_count(&self) -> u64 {
        self.images.len() as u64
    }

    pub(super) fn skipped_count(&self) -> u64 {
        self.skipped
    }

    pub(super) fn pieces(
        &self,
        push: &mut dyn FnMut(Piece) -> Result<(), IngestError>,
    ) -> Result<Vec<InputDigest>, IngestError> {
        let mut gather = Gather::new(push);
        let mut inputs = Combined::new(self.images.len() as u64);
        for file in &self.images {
            let bytes = self.read(file)?;
            inputs.add(&file.name, &bytes);
            let label = self.labels.of(self.under.as_deref(), &file.name);
            let label = label.expect("the labels were made of these very names");
            gather.add(Pending { name: file.name.clone(), label, bytes })?;
        }
        gather.flush()?;
        Ok(vec![inputs.finish(self.under.as_deref().unwrap_or("."))])
    }

    fn read(&self, file: &FoundFile) -> Result<Vec<u8>, IngestError> {
        if file.bytes > LARGEST_IMAGE {
            return Err(IngestError::Image {
                path: self.root.clone(),
                entry: file.name.clone(),
                reason: format!("it has {} bytes, the most is {LARGEST_IMAGE}", file.bytes),
            });
        }
        let mut bytes = Vec::with_capacity(file.bytes as usize);
        File::open(&file.path)
            .and_then(|opened| opened.take(LARGEST_IMAGE).read_to_end(&mut bytes))
            .map_err(|error| read_error(&file.path, error))?;
        if bytes.len() as u64 != file.bytes {
            let what = format!("{} had {} bytes, now {}", file.name, file.bytes, bytes.len());
            return Err(IngestError::Changed { path: self.root.clone(), what });
        }
        Ok(bytes)
    }
}

/// One digest over many small files: their number, then name and digest of each, in order.
struct Combined {
    hasher: blake3::Hasher,
    count: u64,
    bytes: u64,
}

impl Combined {
    fn new(count: u64) -> Combined {
        let mut hasher = blake3::Hasher::new_derive_key("shardfmt 2026 folder v1");
        hasher.update(&count.to_le_bytes());
        Combined { hasher, count, bytes: 0 }
    }

    fn add(&mut self, name: &str, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.hasher.update(&(name.len() as u64).to_le_bytes());
        self.hasher.update(name.as_bytes());
        self.hasher.update(&Digest::of(bytes).0);
    }

    fn finish(self, folder: &str) -> InputDigest {
        InputDigest {
            name: format!("{folder}/ ({} images)", self.count),
            bytes: self.bytes,
            digest: Digest(self.hasher.finalize().into()),
        }
    }
}
