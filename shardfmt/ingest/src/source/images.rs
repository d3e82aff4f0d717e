//! What directories and archives of images have in common: which names are images, what their labels are, and the rows
//! that images make.

use std::collections::BTreeSet;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use shardfmt::manifest::{CLASSES_KEY, LABEL_COLUMN};

use super::picture::Pictures;
use super::{Faults, arrays};
use crate::IngestError;
use crate::error::one_line;
use crate::kind::Kind;
use crate::tree::{folders_there, is_hidden};

/// An encoded image larger than this is refused: it would be a mistake or an attack.
pub(super) const LARGEST_IMAGE: u64 = 256 << 20;
/// A piece ends when its images weigh this much or have this number.
const PIECE_BYTES: u64 = 2 << 20;
const PIECE_IMAGES: usize = 1024;

/// Images of formats that are not read. Passing over them in silence would lose samples.
const NOT_READ: [&str; 9] = ["gif", "tif", "tiff", "avif", "heic", "heif", "jp2", "jxl", "ico"];

/// Whether a file of this name is an image that we read.
pub(super) fn is_named(name: &str) -> bool {
    Kind::Images.names(name)
}

/// Counts what goes into a piece.
#[derive(Debug, Default)]
pub(super) struct Load {
    images: usize,
    bytes: u64,
}

impl Load {
    /// Adds one of this weight; whether the piece is full now, and the next one begins.
    pub(super) fn add(&mut self, weight: u64) -> bool {
        self.images += 1;
        self.bytes = self.bytes.saturating_add(weight);
        let is_full = self.bytes >= PIECE_BYTES || self.images >= PIECE_IMAGES;
        if is_full {
            *self = Load::default();
        }
        is_full
    }
}

/// The rows of a piece in the making.
#[derive(Debug, Default)]
pub(super) struct Rows {
    images: Vec<Vec<u8>>,
    labels: Vec<Option<i64>>,
    paths: Vec<String>,
}

impl Rows {
    /// Adds an image, called `name` in messages, if it can be read.
    pub(super) fn add(
        &mut self,
        source: &Path,
        pictures: Pictures,
        name: String,
        label: Option<i64>,
        encoded: Vec<u8>,
        faults: &mut Faults,
    ) -> Result<(), IngestError> {
        match pictures.read(&encoded) {
            Ok(pixels) => {
                self.images.push(pixels.unwrap_or(encoded));
                self.labels.push(label);
                self.paths.push(name);
                Ok(())
            }
            Err(unfit) => {
                let error = unfit.named(source, &name);
                faults.add(name, error)
            }
        }
    }

    /// The record batch of them all.
    pub(super) fn finish(
        self,
        source: &Path,
        pictures: Pictures,
        schema: &SchemaRef,
    ) -> Result<RecordBatch, IngestError> {
        let images = self.images.iter().map(|image| Some(image.as_slice()));
        let mut columns = vec![arrays::pixels(pictures).column(images)];
        if schema.fields().len() == 3 {
            columns.push(Arc::new(Int64Array::from(self.labels)));
        }
        columns.push(Arc::new(StringArray::from(self.paths)));
        RecordBatch::try_new(schema.clone(), columns)
            .map_err(|error| IngestError::Changed { path: source.to_owned(), what: one_line(error) })
    }
}

/// Learns from all names what the labels are: the folders directly below the root that hold images.
#[derive(Debug, Default)]
pub(super) struct Layout {
    folders: BTreeSet<String>,
    others: BTreeSet<String>,
    in_root: Option<String>,
    in_folder: Option<String>,
    pub(super) images: u64,
    pub(super) skipped: u64,
}

impl Layout {
    /// Takes note of a file; `name` is relative to the source.
    pub(super) fn add(&mut self, under: Option<&str>, name: &str) -> Place {
        let Some(below) = below(name, under) else {
            if let Some((folder, _)) = name.split_once('/')
                && self.others.len() < 64
            {
                self.others.insert(folder.to_owned());
            }
            return Place::Elsewhere;
        };
        let place = place(below);
        if place != Place::Image {
            self.skipped += u64::from(place == Place::Elsewhere);
            return place;
        }
        match below.split_once('/') {
            Some((folder, _)) => {
                if !self.folders.contains(folder) {
                    self.folders.insert(folder.to_owned());
                }
                self.in_folder.get_or_insert_with(|| name.to_owned());
            }
            None => _ = self.in_root.get_or_insert_with(|| name.to_owned()),
        }
        self.images += 1;
        Place::Image
    }

    /// The kind of a file, without noting it.
    pub(super) fn place(under: Option<&str>, name: &str) -> Place {
        below(name, under).map_or(Place::Elsewhere, place)
    }

    /// The labels, once every name is known.
    pub(super) fn labels(&self, path: &Path, under: Option<&str>) -> Result<Labels, IngestError> {
        let path = path.to_owned();
        match (&self.in_root, &self.in_folder) {
            (Some(in_root), Some(in_folder)) => {
                Err(IngestError::Mixed { path, in_root: in_root.clone(), in_folder: in_folder.clone() })
            }
            (None, Some(_)) => Ok(Labels::Folders(self.folders.iter().cloned().collect())),
            (Some(_), None) => Ok(Labels::None),
            (None, None) => match under {
                Some(under) if self.skipped == 0 => Err(IngestError::NotUnder {
                    path,
                    under: under.to_owned(),
                    there: folders_there(&self.others),
                }),
                _ => {
                    Err(IngestError::NoSamples { path, found: format!("only {} other files", self.skipped) })
                }
            },
        }
    }
}

/// The labels of the samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Labels {
    /// The images lie side by side.
    None,
    /// Each image lies in a folder named for its class; sorted by bytes, the index is the label.
    Folders(Vec<String>),
}

impl Labels {
    /// The label of an image, or `Err` when its folder was not among those the labels were made of.
    pub(super) fn of(&self, under: Option<&str>, name: &str) -> Result<Option<i64>, ()> {
        let folder = below(name, under).ok_or(())?.split_once('/').map(|(folder, _)| folder);
        match (self, folder) {
            (Labels::None, None) => Ok(None),
            (Labels::Folders(folders), Some(folder)) => {
                let index = folders.binary_search_by(|class| class.as_str().cmp(folder)).map_err(|_| ())?;
                Ok(Some(i64::try_from(index).map_err(|_| ())?))
            }
            _ => Err(()),
        }
    }

    /// Columns `image`, `label` (unless there are none) and `path`.
    pub(super) fn schema(&self, pictures: Pictures) -> SchemaRef {
        let mut fields = vec![arrays::picture_field("image", pictures, false)];
        if let Labels::Folders(classes) = self {
            let names = serde_json::Value::from(classes.clone()).to_string();
            let metadata = HashMap::from([(CLASSES_KEY.to_owned(), names)]);
            fields.push(Field::new(LABEL_COLUMN, DataType::Int64, false).with_metadata(metadata));
        }
        fields.push(Field::new("path", DataType::Utf8, false));
        Arc::new(Schema::new(fields))
    }
}

/// The name below the folder `under`, or `None` when it is not in there.
pub(super) fn below<'n>(name: &'n str, under: Option<&str>) -> Option<&'n str> {
    match under {
        None => Some(name),
        Some(under) => name.strip_prefix(under)?.strip_prefix('/'),
    }
}

/// The kind of a file, by its name alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Image,
    /// An image of a format that is not read.
    Unread,
    /// No sample.
    Elsewhere,
}

fn place(name: &str) -> Place {
    if name.split('/').any(is_hidden) {
        Place::Elsewhere
    } else if is_named(name) {
        Place::Image
    } else if NOT_READ.contains(&extension(name).as_str()) {
        Place::Unread
    } else {
        Place::Elsewhere
    }
}

/// The error for an image of a format that is not read.
pub(super) fn unread(source: &Path, name: &str) -> IngestError {
    IngestError::Entry {
        path: source.to_owned(),
        entry: name.to_owned(),
        reason: "is an image of a format that is not read; convert it to PNG, JPEG, WebP or BMP",
    }
}

fn extension(name: &str) -> String {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).unwrap_or_default()
}
