//! A directory of images. Each piece reads its own files.

use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use shardfmt::InputDigest;
use shardfmt::digest::Digest;

use super::images::{self, LARGEST_IMAGE, Labels, Layout, Load, Place, Rows};
use super::picture::{self, Pictures};
use super::{About, Faults, Feed, Format};
use crate::config::OnError;
use crate::image_size::ImageSize;
use crate::input::InputFile;
use crate::inputs::Inputs;
use crate::{IngestConfig, IngestError};

#[derive(Debug)]
pub(super) struct FolderSource {
    about: About,
    root: PathBuf,
    under: Option<String>,
    images: Vec<InputFile>,
    /// Images of formats that are not read, where those are to be skipped.
    unread: Vec<String>,
    labels: Labels,
    pictures: Pictures,
}

impl FolderSource {
    pub(super) fn open(inputs: Inputs, config: &IngestConfig) -> Result<FolderSource, IngestError> {
        let Inputs { path: root, files, under, .. } = inputs;
        let mut layout = Layout::default();
        let (mut images, mut unread) = (Vec::new(), Vec::new());
        for file in files {
            match layout.add(under.as_deref(), &file.name) {
                Place::Image => images.push(file),
                Place::Unread if config.on_error == OnError::Skip => unread.push(file.name),
                Place::Unread => return Err(images::unread(&root, &file.name)),
                Place::Elsewhere => {}
            }
        }
        let labels = layout.labels(&root, under.as_deref())?;
        let pictures = Pictures::new(config, || first_size(&root, &images, config.on_error))?;
        let (schema, rows) = (labels.schema(pictures), Some(images.len() as u64));
        let about = About { schema, rows, passed_over: layout.skipped };
        Ok(FolderSource { about, root, under, images, unread, labels, pictures })
    }

    fn read(&self, files: &[InputFile], faults: &mut Faults) -> Result<RecordBatch, IngestError> {
        let mut rows = Rows::default();
        for file in files {
            let bytes = match file.read_all(LARGEST_IMAGE) {
                Ok(bytes) => bytes,
                Err(error) => {
                    faults.add(&file.name, error)?;
                    continue;
                }
            };
            let (name, length, digest) = (file.name.clone(), bytes.len() as u64, Digest::of(&bytes));
            faults.files.push(InputDigest { name: name.clone(), bytes: length, digest });
            let label = self.labels.of(self.under.as_deref(), &name);
            let label = label.expect("the labels were made of these very names");
            rows.add(&self.root, self.pictures, name, label, bytes, faults)?;
        }
        rows.finish(&self.root, self.pictures, &self.about.schema)
    }
}

impl Format for FolderSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        for name in &self.unread {
            feed.fault(name, images::unread(&self.root, name))?;
        }
        let (mut load, mut start) = (Load::default(), 0);
        for (index, file) in self.images.iter().enumerate() {
            let end = index + 1;
            feed.check_row(&file.name, file.bytes)?;
            if load.add(self.pictures.weight(file.bytes)) || end == self.images.len() {
                let files = &self.images[start..end];
                feed.piece(&files[0].name, move |faults| self.read(files, faults))?;
                start = end;
            }
        }
        Ok(Vec::new())
    }
}

/// The size of the first image that can be read.
fn first_size(root: &Path, files: &[InputFile], on_error: OnError) -> Result<ImageSize, IngestError> {
    for file in files {
        let read = file.read_all(LARGEST_IMAGE);
        match read.and_then(|bytes| picture::size_of(&bytes).map_err(|unfit| unfit.named(root, &file.name))) {
            Ok(size) => return Ok(size),
            Err(error) if on_error == OnError::Fail || !error.is_about_content() => return Err(error),
            Err(_) => {}
        }
    }
    Err(IngestError::NoSamples { path: root.to_owned(), found: "no image that can be read".to_owned() })
}
