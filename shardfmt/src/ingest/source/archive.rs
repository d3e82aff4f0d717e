//! A tar archive of images, plain or gzipped, read as a stream. Nothing is ever unpacked, so a hostile archive has
//! no way to a file; names that try are refused all the same, as they are no sample paths.

use std::cell::Cell;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::rc::Rc;

use arrow::datatypes::SchemaRef;
use flate2::bufread::MultiGzDecoder;
use tar::{Archive, Entry};

use super::images::{self, Gather, LARGEST_IMAGE, Labels, Layout, Pending};
use super::{Feed, Format};
use crate::ingest::IngestError;
use crate::ingest::error::one_line;
use crate::ingest::input::{InputFile, Inputs};
use crate::manifest::InputDigest;

#[derive(Debug)]
pub(super) struct ArchiveSource {
    file: InputFile,
    under: Option<String>,
    labels: Labels,
    schema: SchemaRef,
    images: u64,
    skipped: u64,
}

impl ArchiveSource {
    /// Reads the archive once for its names: the labels are known only when all folders are.
    pub(super) fn open(inputs: Inputs) -> Result<ArchiveSource, IngestError> {
        let Inputs { files, under, .. } = inputs;
        let file = files.into_iter().next().expect("an archive is one file").near()?;
        let mut layout = Layout::default();
        each_file(&file, |name, entry| {
            if layout.add(&file.path, under.as_deref(), name)? && !is_file(entry) {
                return Err(bad_entry(
                    &file.path,
                    name,
                    "is a link; archive the files themselves (tar --dereference --hard-dereference)",
                ));
            }
            Ok(())
        })?;
        let labels = layout.labels(&file.path, under.as_deref())?;
        let (schema, images, skipped) = (labels.schema(), layout.images, layout.skipped);
        Ok(ArchiveSource { file, under, labels, schema, images, skipped })
    }
}

impl Format for ArchiveSource {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn row_count(&self) -> Option<u64> {
        Some(self.images)
    }

    fn skipped_count(&self) -> u64 {
        self.skipped
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        let mut gather = Gather::new(&self.file.path, &self.schema, feed);
        let (mut again, under) = (Layout::default(), self.under.as_deref());
        let digest = each_file(&self.file, |name, entry| {
            if !again.add(&self.file.path, under, name)? {
                return Ok(());
            }
            let label = self.labels.of(under, name).map_err(|()| self.changed(name))?;
            gather.add(Pending { name: name.to_owned(), label, bytes: self.read(name, entry)? })
        })?;
        gather.flush()?;
        if again.images != self.images {
            return Err(self.changed(&format!("{} images, now {}", self.images, again.images)));
        }
        Ok(vec![digest])
    }
}

impl ArchiveSource {
    fn read(&self, name: &str, entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, IngestError> {
        let size = entry.size();
        if size > LARGEST_IMAGE {
            return Err(IngestError::Image {
                path: self.file.path.clone(),
                entry: name.to_owned(),
                reason: format!("it has {size} bytes, the most is {LARGEST_IMAGE}"),
            });
        }
        // The size is only claimed: memory grows with what is really there.
        let mut bytes = Vec::with_capacity(size.min(1 << 20) as usize);
        entry.read_to_end(&mut bytes).map_err(|error| archive_error(&self.file.path, &error))?;
        if bytes.len() as u64 != size {
            let reason = format!("it ends within {name:?}");
            return Err(IngestError::Archive { path: self.file.path.clone(), reason });
        }
        Ok(bytes)
    }

    fn changed(&self, what: &str) -> IngestError {
        IngestError::Changed { path: self.file.path.clone(), what: what.to_owned() }
    }
}

/// Visits every entry that is neither a folder nor the archive's own bookkeeping, in archive order, under its cleaned
/// name. Returns length and digest of the archive file.
fn each_file(
    file: &InputFile,
    mut visit: impl FnMut(&str, &mut Entry<'_, &mut Watched<Box<dyn Read + '_>>>) -> Result<(), IngestError>,
) -> Result<InputDigest, IngestError> {
    let path = &file.path;
    let is_gzip = file.head(2)? == [0x1f, 0x8b];
    let mut stream = io::BufReader::with_capacity(64 << 10, file.stream()?);
    let content: Box<dyn Read> =
        if is_gzip { Box::new(MultiGzDecoder::new(&mut stream)) } else { Box::new(&mut stream) };
    let zeros = Rc::new(Cell::new(0));
    let mut watched = Watched { content, zeros: zeros.clone() };
    let mut archive = Archive::new(&mut watched);
    // Archives joined by `cat` have end marks in the middle; stopping at the first would lose the rest. It also makes
    // the reader go on to the very end, where gzip keeps its checksum.
    archive.set_ignore_zeros(true);
    for entry in archive.entries().map_err(|error| archive_error(path, &error))? {
        let mut entry = entry.map_err(|error| archive_error(path, &error))?;
        if entry.header().entry_type().is_dir() || entry.header().entry_type().is_pax_global_extensions() {
            continue;
        }
        if let Some(name) = clean_name(path, &entry.path_bytes())? {
            visit(&name, &mut entry)?;
        }
    }
    if zeros.get() < 512 {
        let reason = "it has no end mark".to_owned();
        return Err(IngestError::Archive { path: path.clone(), reason });
    }
    drop(watched);
    file.finish(stream.into_inner())
}

/// An entry's name without `./` and doubled slashes; `None` for files that are no images and have a name that is no
/// path of a sample either.
///
/// # Errors
/// An image whose name leaves the archive, or is not UTF-8.
fn clean_name(path: &Path, bytes: &[u8]) -> Result<Option<String>, IngestError> {
    let lossy = String::from_utf8_lossy(bytes);
    let leaves = lossy.starts_with('/') || lossy.split('/').any(|step| step == "..") || lossy.contains('\0');
    let not_utf8 = matches!(lossy, std::borrow::Cow::Owned(_));
    if !leaves && !not_utf8 {
        let steps: Vec<&str> = lossy.split('/').filter(|step| !step.is_empty() && *step != ".").collect();
        return Ok((!steps.is_empty()).then(|| steps.join("/")));
    }
    if !images::is_named(&lossy) {
        return Ok(None);
    }
    let reason = if leaves {
        "has a path that leaves the archive; make it again with relative paths"
    } else {
        "is not named in UTF-8; make it again with other names"
    };
    Err(bad_entry(path, &lossy, reason))
}

fn is_file(entry: &Entry<'_, impl Read>) -> bool {
    let kind = entry.header().entry_type();
    kind.is_file() || kind.is_contiguous() || kind.is_gnu_sparse()
}

fn bad_entry(path: &Path, entry: &str, reason: &'static str) -> IngestError {
    IngestError::Entry { path: path.to_owned(), entry: entry.to_owned(), reason }
}

fn archive_error(path: &Path, error: &io::Error) -> IngestError {
    let reason = match error.kind() {
        ErrorKind::UnexpectedEof => "it ends too early".to_owned(),
        _ => one_line(error),
    };
    IngestError::Archive { path: path.to_owned(), reason }
}

/// The tar stream, with an eye on how many zeros it ends in: a whole archive ends in at least one block of them.
struct Watched<R> {
    content: R,
    zeros: Rc<Cell<u64>>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        let trailing = buffer[..read].iter().rev().take_while(|&&byte| byte == 0).count();
        let before = if trailing == read { self.zeros.get() } else { 0 };
        self.zeros.set(before + trailing as u64);
        Ok(read)
    }
}
