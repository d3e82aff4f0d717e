//! Tar archives: their members in order, by name and size at little cost, or with their contents. Nothing is
//! ever unpacked to a file of its own, so a hostile archive has no way to one; names that try are marked all
//! the same, as they are no names of samples. Knows nothing of what members mean.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use shardfmt::InputDigest;
use tar::{Archive, Entries, EntryType, PaxExtensions};

use super::compressed::decompressed;
use super::unpack::{Spool, Unpacked, damage};
use super::{Feed, Stopped};
use crate::config::OnError;
use crate::error::one_line;
use crate::input::{InputFile, OpenInput, Stream};
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError};

/// A member larger than this is refused: a row must fit into memory, and has at most this number of bytes.
pub(super) const LARGEST_MEMBER: u64 = 1 << 30;
/// Names and other facts of a member are shorter.
const LONGEST_EXTENSION: u64 = 1 << 20;
/// Most reads, when only names are wanted, are headers of half a KiB.
const PEEK_BYTES: usize = 8 << 10;
/// The unit of archives.
const BLOCK: u64 = 512;

/// Some archives that are one dataset, in the order of their names.
#[derive(Debug)]
pub(super) struct Tars {
    pub(super) path: PathBuf,
    pub(super) under: Option<String>,
    pub(super) tars: Vec<Tar>,
    /// Archives that cannot be unpacked, where those are skipped.
    refused: Vec<(String, String)>,
    /// Files beside them.
    pub(super) others: u64,
}

/// One archive.
#[derive(Debug)]
pub(super) struct Tar {
    pub(super) file: InputFile,
    unpacked: Option<Unpacked>,
    /// Whether there are others, whose members must differ from its own.
    is_one_of_many: bool,
    /// Names that are there twice, where such are skipped.
    pub(super) twice: Twice,
}

/// A member of an archive that is no folder.
pub(super) struct Member<'m> {
    /// Relative to the archive, with single slashes. As it is written, if that cannot be.
    pub(super) name: String,
    /// Why it cannot be a sample, whatever is in it.
    pub(super) fault: Option<&'static str>,
    pub(super) size: u64,
    content: &'m mut dyn Read,
    walk: &'m Walk<'m>,
    /// The member before it.
    last: Option<&'m str>,
}

/// Whether these are the first 512 bytes of an archive.
pub(super) fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

/// Whether there is an archive inside of a compressed file.
pub(super) fn is_compressed_tar(file: &InputFile) -> Result<bool, IngestError> {
    let mut inside = Vec::new();
    let content = decompressed(file.open()?.read_from(0)).map_err(|error| file.error(error))?.0;
    // Other code reports data that cannot be decompressed.
    let _ = content.take(512).read_to_end(&mut inside);
    Ok(is_tar(&inside))
}

impl Tars {
    /// Opens the archives, and unpacks those that are compressed or far away.
    pub(super) fn open(inputs: Inputs, config: &IngestConfig) -> Result<Tars, IngestError> {
        let (path, under, is_file) = (inputs.path.clone(), inputs.under.clone(), inputs.is_file);
        let (files, others) = Kind::Archive.files(inputs, config);
        let spool = Spool::default();
        let opened: Vec<_> = files
            .into_par_iter()
            .map(|file| (file.name.clone(), Tar::open(file, &spool, !is_file)))
            .collect();
        let (mut tars, mut refused) = (Vec::new(), Vec::new());
        for (name, tar) in opened {
            match tar {
                Ok(tar) => tars.push(tar),
                Err(error) if config.on_error == OnError::Skip && error.is_about_content() => {
                    refused.push((name, one_line(error)));
                }
                Err(error) => return Err(error),
            }
        }
        // Of an archive `under` names a folder; of a directory of archives it is where those lie.
        let under = under.filter(|_| is_file);
        Ok(Tars { path, under, tars, refused, others })
    }
}

impl Tars {
    /// Has all archives read, and returns the digests of their files.
    pub(super) fn pieces<'s>(
        &'s self,
        feed: &mut Feed<'_, 's>,
        mut read: impl FnMut(&'s Tar, &mut Reading<'_>, &mut Feed<'_, 's>) -> Result<(), Stopped>,
    ) -> Result<Vec<InputDigest>, IngestError> {
        feed.all_left_out(&self.refused)?;
        let mut digests = Vec::with_capacity(self.tars.len());
        for tar in &self.tars {
            let mut reading = tar.reading()?;
            let visited = read(tar, &mut reading, feed);
            feed.visited(&tar.file.name, visited)?;
            digests.push(reading.digest()?);
        }
        Ok(digests)
    }
}

impl Tar {
    fn open(file: InputFile, spool: &Spool, is_one_of_many: bool) -> Result<Tar, IngestError> {
        let unpacked = spool.unpack(&file, true)?;
        Ok(Tar { file, unpacked, is_one_of_many, twice: Twice::default() })
    }

    /// The name of a member in a version and in messages.
    pub(super) fn name_of(&self, member: &str) -> String {
        if self.is_one_of_many { format!("{}/{member}", self.file.name) } else { member.to_owned() }
    }

    /// Visits all members. Content that is not read is passed over without a look.
    pub(super) fn look(
        &self,
        visit: impl FnMut(&mut Member<'_>) -> Result<(), IngestError>,
    ) -> Result<(), IngestError> {
        let content = match &self.unpacked {
            Some(unpacked) => unpacked.content.clone(),
            None => self.file.open()?,
        };
        let walk = Walk { tar: self, length: content.bytes() };
        let mut archive = joined(Looking::new(content));
        let entries = archive.entries_with_seek().map_err(|error| self.file.error(error))?;
        walk.through(entries, visit)
    }

    fn reading(&self) -> Result<Reading<'_>, IngestError> {
        let content = match &self.unpacked {
            Some(unpacked) => Content::Unpacked(unpacked),
            None => Content::Stream(Box::new(self.file.stream()?)),
        };
        Ok(Reading { tar: self, content })
    }

    fn damage(&self) -> Option<&str> {
        self.unpacked.as_ref().and_then(|unpacked| unpacked.damage.as_deref())
    }
}

/// An archive of which everything is read, once.
pub(super) struct Reading<'t> {
    tar: &'t Tar,
    content: Content<'t>,
}

enum Content<'t> {
    Stream(Box<Stream>),
    Unpacked(&'t Unpacked),
}

impl Reading<'_> {
    /// Visits all members.
    pub(super) fn each(
        &mut self,
        visit: impl FnMut(&mut Member<'_>) -> Result<(), Stopped>,
    ) -> Result<(), Stopped> {
        let (tar, mut unpacked) = (self.tar, None);
        let (content, length): (&mut dyn Read, u64) = match &mut self.content {
            Content::Stream(stream) => (stream.as_mut(), tar.file.bytes),
            Content::Unpacked(Unpacked { content, .. }) => {
                (unpacked.insert(content.read_from(0)), content.bytes())
            }
        };
        let mut archive = joined(BufReader::with_capacity(64 << 10, content));
        let entries = archive.entries().map_err(|error| tar.file.error(error))?;
        Walk { tar, length }.through(entries, visit)
    }

    /// The digest of the archive, of which the rest is read now.
    fn digest(self) -> Result<InputDigest, IngestError> {
        match self.content {
            Content::Stream(stream) => self.tar.file.finish(*stream),
            Content::Unpacked(unpacked) => Ok(unpacked.digest.clone()),
        }
    }
}

/// Archives joined by `cat` have end marks in the middle; stopping at the first would lose the rest.
fn joined<R: Read>(reader: R) -> Archive<R> {
    let mut archive = Archive::new(reader);
    archive.set_ignore_zeros(true);
    archive
}

/// A way through an archive.
struct Walk<'t> {
    tar: &'t Tar,
    /// Of the archive, unpacked.
    length: u64,
}

impl Walk<'_> {
    fn through<R: Read, E: From<IngestError>>(
        &self,
        entries: Entries<'_, R>,
        mut visit: impl FnMut(&mut Member<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut said, mut last, mut end) = (Extension::default(), None::<String>, 0);
        // The raw entries, as their reader would hold a name of any length in memory.
        for entry in entries.raw(true) {
            let last_name = last.as_deref();
            let mut entry = entry.map_err(|error| self.error(&error, last_name))?;
            let (kind, size) = (entry.header().entry_type(), entry.size());
            // Whole blocks of a size that may be anything.
            let content_end = entry.raw_file_position().checked_add(size);
            end = content_end.and_then(|end| end.checked_next_multiple_of(BLOCK)).unwrap_or(u64::MAX);
            if kind.is_gnu_longname() || kind.is_pax_local_extensions() {
                let mut extension = Vec::new();
                let read = entry.by_ref().take(LONGEST_EXTENSION).read_to_end(&mut extension);
                read.map_err(|error| self.error(&error, last_name))?;
                if extension.len() as u64 != size {
                    return Err(self.damaged("a name in it is too long or cut off", last_name).into());
                }
                said.hear(kind, &extension);
                continue;
            }
            if kind.is_gnu_longlink() || kind.is_pax_global_extensions() {
                continue;
            }
            let said = std::mem::take(&mut said);
            if kind.is_gnu_sparse() || said.is_sparse {
                return Err(self.damaged("it has a sparse file (make it again without)", last_name).into());
            }
            if said.size.is_some_and(|said| said != size) {
                return Err(self.damaged("it has a member of more than 8 GiB", last_name).into());
            }
            let bytes = said.name.unwrap_or_else(|| entry.header().path_bytes().into_owned());
            if kind.is_dir() || bytes.last() == Some(&b'/') {
                continue;
            }
            let (name, fault) = clean_name(&bytes);
            let fault = fault.or_else(|| fault_of(kind));
            if fault.is_none() && content_end.is_none_or(|end| end > self.length) {
                let reason = format!("{} within {name:?}", self.tar.damage().unwrap_or("it ends too early"));
                return Err(self.damaged(&reason, last_name).into());
            }
            let mut member = Member { name, fault, size, content: &mut entry, walk: self, last: last_name };
            visit(&mut member)?;
            last = Some(member.name);
        }
        // A whole archive ends in at least a block of zeros; what follows the last member was read as such.
        let has_end_mark = end.checked_add(BLOCK).is_some_and(|end| end <= self.length);
        match self.tar.damage() {
            Some(reason) => Err(self.damaged(reason, last.as_deref()).into()),
            None if !has_end_mark => Err(self.damaged("it has no end mark", last.as_deref()).into()),
            None => Ok(()),
        }
    }

    /// The fault of the archive, if the machine has not failed: an error of the machine goes before this.
    fn error(&self, error: &io::Error, last: Option<&str>) -> IngestError {
        self.damaged(self.tar.damage().unwrap_or(&damage(error)), last)
    }

    fn damaged(&self, reason: &str, last: Option<&str>) -> IngestError {
        let after = last.map(|last| format!(", after {last:?}")).unwrap_or_default();
        IngestError::Archive { path: self.tar.file.path.clone(), reason: format!("{reason}{after}") }
    }
}

impl<'m> Member<'m> {
    /// All of it, which is at most `most` bytes.
    pub(super) fn read(&mut self, most: u64) -> Result<Vec<u8>, IngestError> {
        if let Some(error) = self.refusal(most) {
            return Err(error);
        }
        // The size is known to lie within the archive.
        let mut bytes = Vec::with_capacity(usize::try_from(self.size).expect("a limit that fits memory"));
        let read = self.content.read_to_end(&mut bytes);
        read.map_err(|error| self.walk.error(&error, self.last))?;
        if bytes.len() as u64 != self.size {
            return Err(self.walk.error(&io::ErrorKind::UnexpectedEof.into(), self.last));
        }
        Ok(bytes)
    }

    /// Its first bytes.
    pub(super) fn head(&mut self, length: usize) -> Result<Vec<u8>, IngestError> {
        let mut head = Vec::new();
        let read = self.content.take(length as u64).read_to_end(&mut head);
        read.map_err(|error| self.walk.error(&error, self.last))?;
        Ok(head)
    }

    /// Why it cannot be a sample of at most `most` bytes, if it cannot.
    pub(super) fn refusal(&self, most: u64) -> Option<IngestError> {
        if let Some(reason) = self.fault {
            let (path, entry) = (self.archive().to_owned(), self.name.clone());
            return Some(IngestError::Entry { path, entry, reason });
        }
        (self.size > most).then(|| self.misfit(&format!("has {} bytes, the most is {most}", self.size)))
    }

    /// Something that is wrong with it.
    pub(super) fn misfit(&self, reason: &str) -> IngestError {
        let (path, entry) = (self.archive().to_owned(), self.name.clone());
        IngestError::Member { path, entry, reason: reason.to_owned() }
    }

    /// Where the archive lies.
    pub(super) fn archive(&self) -> &'m Path {
        &self.walk.tar.file.path
    }
}

/// Finds names that are there twice, in 8 bytes for each: equal hashes may be an accident, and the caller
/// then goes through the names again.
#[derive(Debug, Default)]
pub(super) struct Seen(Vec<u64>);

impl Seen {
    pub(super) fn add(&mut self, name: &str) {
        self.0.push(hash(name));
    }

    pub(super) fn twice(mut self) -> Twice {
        self.0.sort_unstable();
        let mut twice: Vec<u64> =
            self.0.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        twice.dedup();
        Twice(twice)
    }
}

/// Names that came up more than once: their hashes, in order.
#[derive(Debug, Default)]
pub(super) struct Twice(Vec<u64>);

impl Twice {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the name is one of them, or another with the hash of one.
    pub(super) fn may_hold(&self, name: &str) -> bool {
        self.0.binary_search(&hash(name)).is_ok()
    }
}

fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// The facts of the next member before its header.
#[derive(Default)]
struct Extension {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    is_sparse: bool,
}

impl Extension {
    fn hear(&mut self, kind: EntryType, extension: &[u8]) {
        if kind.is_gnu_longname() {
            let end = extension.iter().position(|&byte| byte == 0).unwrap_or(extension.len());
            self.name = Some(extension[..end].to_vec());
            return;
        }
        for extension in PaxExtensions::new(extension).flatten() {
            match extension.key_bytes() {
                b"path" => self.name = Some(extension.value_bytes().to_vec()),
                b"size" => self.size = extension.value().ok().and_then(|size| size.parse().ok()),
                key => self.is_sparse |= key.starts_with(b"GNU.sparse."),
            }
        }
    }
}

/// A name without `./` and doubled slashes, and its fault.
fn clean_name(bytes: &[u8]) -> (String, Option<&'static str>) {
    let name = String::from_utf8_lossy(bytes);
    if matches!(name, std::borrow::Cow::Owned(_)) {
        return (name.into_owned(), Some("is not named in UTF-8; make the archive again with other names"));
    }
    if name.starts_with('/') || name.split('/').any(|step| step == "..") || name.contains('\0') {
        return (
            name.into_owned(),
            Some("has a path that leaves the archive; make the archive again with relative paths"),
        );
    }
    let steps: Vec<&str> = name.split('/').filter(|step| !step.is_empty() && *step != ".").collect();
    (steps.join("/"), None)
}

fn fault_of(kind: EntryType) -> Option<&'static str> {
    if kind.is_file() || kind.is_contiguous() {
        None
    } else if kind.is_symlink() || kind.is_hard_link() {
        Some("is a link; archive the files themselves (tar --dereference --hard-dereference)")
    } else {
        Some("is no file; archive only files")
    }
}

/// Reads headers here and there: a little at a time, and nothing twice that lies close by.
struct Looking {
    input: OpenInput,
    position: u64,
    buffer: Vec<u8>,
    buffered_from: u64,
}

impl Looking {
    fn new(input: OpenInput) -> Looking {
        Looking { input, position: 0, buffer: Vec::new(), buffered_from: 0 }
    }
}

impl Read for Looking {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let within = self.position.checked_sub(self.buffered_from).and_then(|at| usize::try_from(at).ok());
        let mut ready = within.and_then(|at| self.buffer.get(at..)).unwrap_or_default();
        if ready.is_empty() {
            self.buffered_from = self.position;
            self.buffer.clear();
            self.input.read_from(self.position).take(PEEK_BYTES as u64).read_to_end(&mut self.buffer)?;
            ready = &self.buffer;
        }
        let length = ready.len().min(out.len());
        out[..length].copy_from_slice(&ready[..length]);
        self.position += length as u64;
        Ok(length)
    }
}

impl Seek for Looking {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(distance) => self.input.bytes().checked_add_signed(distance),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
        };
        self.position = target.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
