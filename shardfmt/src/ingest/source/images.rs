//! What directories and archives of images have in common: which names are images, what their labels are, and that
//! every image is decoded once before it is let in. The encoded bytes are kept as they are.

use std::collections::BTreeSet;
use std::collections::HashMap;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use image::{ImageFormat, ImageReader};

use super::{Faults, Feed, Kind, caught};
use crate::ingest::IngestError;
use crate::ingest::error::one_line;
use crate::ingest::tree::{folders_there, is_hidden};
use crate::manifest::{CLASSES_KEY, LABEL_COLUMN};

/// An encoded image larger than this is refused: it would be a mistake or an attack.
pub(super) const LARGEST_IMAGE: u64 = 256 << 20;
/// A piece ends when it holds this much or so many.
const PIECE_BYTES: usize = 2 << 20;
const PIECE_IMAGES: usize = 1024;

/// Endings of the names of images that we read.
pub(super) const ENDINGS: &[&str] = &[".png", ".jpg", ".jpeg", ".webp", ".bmp"];
/// Images of formats that are not read. Passing over them in silence would lose samples.
const NOT_READ: [&str; 9] = ["gif", "tif", "tiff", "avif", "heic", "heif", "jp2", "jxl", "ico"];

/// Whether a file of this name is an image that we read.
pub(super) fn is_named(name: &str) -> bool {
    Kind::Images.names(name)
}

/// An encoded image on its way into a piece.
#[derive(Debug)]
pub(super) struct Pending {
    /// Relative path, the sample's `path`.
    pub(super) name: String,
    pub(super) label: Option<i64>,
    pub(super) bytes: Vec<u8>,
}

/// Gathers images into pieces.
pub(super) struct Gather<'g, 'f, 's> {
    path: &'s Path,
    schema: &'s SchemaRef,
    feed: &'g mut Feed<'f, 's>,
    images: Vec<Pending>,
    bytes: usize,
}

impl<'g, 'f, 's> Gather<'g, 'f, 's> {
    pub(super) fn new(path: &'s Path, schema: &'s SchemaRef, feed: &'g mut Feed<'f, 's>) -> Self {
        Gather { path, schema, feed, images: Vec::new(), bytes: 0 }
    }

    pub(super) fn add(&mut self, image: Pending) -> Result<(), IngestError> {
        self.bytes += image.bytes.len();
        self.images.push(image);
        if self.bytes >= PIECE_BYTES || self.images.len() >= PIECE_IMAGES { self.flush() } else { Ok(()) }
    }

    /// An image that cannot even be read; see [`Feed::fault`].
    pub(super) fn fault(&mut self, name: &str, error: IngestError) -> Result<(), IngestError> {
        self.flush()?;
        self.feed.fault(name, error)
    }

    /// Must be called at the end: the last piece is rarely full.
    pub(super) fn flush(&mut self) -> Result<(), IngestError> {
        self.bytes = 0;
        let images = std::mem::take(&mut self.images);
        let Some(first) = images.first() else { return Ok(()) };
        let (path, schema) = (self.path, self.schema);
        self.feed.piece(first.name.clone(), move |faults| checked(path, images, schema, faults))
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
    /// Takes note of a file; `name` is relative to the source. Returns whether it is a sample.
    pub(super) fn add(&mut self, path: &Path, under: Option<&str>, name: &str) -> Result<bool, IngestError> {
        let Some(below) = below(name, under) else {
            if let Some((folder, _)) = name.split_once('/')
                && self.others.len() < 64
            {
                self.others.insert(folder.to_owned());
            }
            return Ok(false);
        };
        if below.split('/').any(is_hidden) || !is_named(below) {
            refuse_unread(path, name)?;
            self.skipped += 1;
            return Ok(false);
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
        Ok(true)
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

/// What the samples are labelled with.
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
    pub(super) fn schema(&self) -> SchemaRef {
        let mut fields = vec![Field::new("image", DataType::Binary, false)];
        if let Labels::Folders(classes) = self {
            let names = serde_json::Value::from(classes.clone()).to_string();
            let metadata = HashMap::from([(CLASSES_KEY.to_owned(), names)]);
            fields.push(Field::new(LABEL_COLUMN, DataType::Int64, false).with_metadata(metadata));
        }
        fields.push(Field::new("path", DataType::Utf8, false));
        Arc::new(Schema::new(fields))
    }
}

/// Decodes every image to see that it can be, and makes a record batch of the encoded bytes.
fn checked(
    path: &Path,
    images: Vec<Pending>,
    schema: &SchemaRef,
    faults: &mut Faults,
) -> Result<RecordBatch, IngestError> {
    let mut good = Vec::with_capacity(images.len());
    for image in images {
        match decode(&image.bytes) {
            Ok(()) => good.push(image),
            Err(reason) => {
                let (path, entry) = (path.to_owned(), image.name.clone());
                faults.add(image.name, IngestError::Image { path, entry, reason })?;
            }
        }
    }
    let images = good;
    let mut columns: Vec<ArrayRef> =
        vec![Arc::new(BinaryArray::from_iter_values(images.iter().map(|image| image.bytes.as_slice())))];
    if schema.fields().len() == 3 {
        columns.push(Arc::new(Int64Array::from_iter(images.iter().map(|image| image.label))));
    }
    columns.push(Arc::new(StringArray::from_iter_values(images.iter().map(|image| image.name.as_str()))));
    RecordBatch::try_new(schema.clone(), columns)
        .map_err(|error| IngestError::Changed { path: path.to_owned(), what: one_line(error) })
}

/// The name below the folder `under`, or `None` when it is not in there.
fn below<'n>(name: &'n str, under: Option<&str>) -> Option<&'n str> {
    match under {
        None => Some(name),
        Some(under) => name.strip_prefix(under)?.strip_prefix('/'),
    }
}

fn refuse_unread(path: &Path, name: &str) -> Result<(), IngestError> {
    let hidden = name.split('/').any(is_hidden);
    if hidden || !NOT_READ.contains(&extension(name).as_str()) {
        return Ok(());
    }
    Err(IngestError::Entry {
        path: path.to_owned(),
        entry: name.to_owned(),
        reason: "is an image of a format that is not read; convert it to PNG, JPEG, WebP or BMP",
    })
}

fn extension(name: &str) -> String {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).unwrap_or_default()
}

/// Decodes an image by its content, whatever its name says. A decoder that panics has not decoded.
fn decode(bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() {
        return Err("the file is empty".to_owned());
    }
    let reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| one_line(&error))?;
    match reader.format() {
        Some(ImageFormat::Jpeg) if !jpeg_is_whole(bytes) => return Err("it is cut off".to_owned()),
        Some(ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP | ImageFormat::Bmp) => {}
        Some(other) => return Err(format!("its content is {}", other.to_mime_type())),
        None => return Err("its content is no image".to_owned()),
    }
    match caught(|| reader.decode()) {
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(one_line(error)),
        None => Err("the decoder gave up".to_owned()),
    }
}

/// Whether a JPEG reaches its end mark. Decoders fill what is missing with grey and report nothing, so a download that
/// broke off would go unnoticed.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    const END: u8 = 0xd9;
    let mut rest = bytes.get(2..).unwrap_or_default();
    loop {
        // Of the bytes after 0xff, these belong to the compressed data, are padding, or begin nothing.
        let begins = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 1 | 0xd0..=0xd8 | 0xff);
        let Some(marker) = rest.windows(2).position(begins) else { return false };
        if rest[marker + 1] == END {
            return true;
        }
        let Some(&[high, low]) = rest.get(marker + 2..marker + 4) else { return false };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let Some(next) = rest.get(marker + 2 + length..) else { return false };
        rest = next;
    }
}
