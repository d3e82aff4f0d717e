//! A directory of images.

use std::path::PathBuf;

use arrow::datatypes::SchemaRef;

use super::images::{Gather, LARGEST_IMAGE, Labels, Layout, Pending};
use super::{Feed, Format};
use crate::digest::Digest;
use crate::ingest::IngestError;
use crate::ingest::input::{InputFile, Inputs};
use crate::manifest::InputDigest;

#[derive(Debug)]
pub(super) struct FolderSource {
    root: PathBuf,
    under: Option<String>,
    images: Vec<InputFile>,
    labels: Labels,
    schema: SchemaRef,
    skipped: u64,
}

impl FolderSource {
    pub(super) fn open(inputs: Inputs) -> Result<FolderSource, IngestError> {
        let Inputs { path: root, files, under, .. } = inputs;
        let mut layout = Layout::default();
        let mut images = Vec::new();
        for file in files {
            if layout.add(&root, under.as_deref(), &file.name)? {
                images.push(file);
            }
        }
        let labels = layout.labels(&root, under.as_deref())?;
        Ok(FolderSource { root, under, images, schema: labels.schema(), labels, skipped: layout.skipped })
    }
}

impl Format for FolderSource {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn row_count(&self) -> Option<u64> {
        Some(self.images.len() as u64)
    }

    fn skipped_count(&self) -> u64 {
        self.skipped
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        let mut gather = Gather::new(&self.root, &self.schema, feed);
        let mut inputs = Combined::new(self.images.len() as u64);
        for file in &self.images {
            let bytes = match file.read_all(LARGEST_IMAGE) {
                Ok(bytes) => bytes,
                Err(error) => {
                    gather.fault(&file.name, error)?;
                    continue;
                }
            };
            inputs.add(&file.name, &bytes);
            let label = self.labels.of(self.under.as_deref(), &file.name);
            let label = label.expect("the labels were made of these very names");
            gather.add(Pending { name: file.name.clone(), label, bytes })?;
        }
        gather.flush()?;
        Ok(vec![inputs.finish(self.under.as_deref().unwrap_or("."))])
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
