//! Tar archives: their members in order, by name and size at little cost, or with what is in them. Nothing is ever
//! unpacked to a file of its own, so a hostile archive has no way to one; names that try are marked all the same, as
//! they are no names of samples. Knows nothing of what members mean.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rayon::prelude::*;
use tar::{Archive, Entries, EntryType, PaxExtensions};

use super::compressed::decompressed;
use super::unpack::{Spool, Unpacked, damage};
use super::{Feed, Kind};
use crate::ingest::IngestError;
use crate::ingest::config::OnError;
use crate::ingest::error::one_line;
use crate::ingest::input::{InputFile, Inputs, OpenInput};
use crate::manifest::InputDigest;

/// A member larger than this is refused: a row must fit into memory, and has at most so many bytes.
pub(super) const LARGEST_MEMBER: u64 = 1 << 30;
/// Names and other things said of a member are shorter.
const LONGEST_EXTENSION: u64 = 1 << 20;
/// Most of what is looked at when only names are wanted are headers of half a KiB.
const LOOK: usize = 8 << 10;

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
    /// Whether there are others, from whose members its own must be told.
    is_one_of_many: bool,
    /// Hashes of names that are there twice, where such are skipped.
    pub(super) twice: Vec<u64>,
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
    // What cannot be decompressed is for others to complain about.
    let _ = content.take(512).read_to_end(&mut inside);
    Ok(is_tar(&inside))
}

impl Tars {
    /// Opens the archives, and unpacks those that are compressed or far away.
    pub(super) fn open(inputs: Inputs, on_error: OnError) -> Result<Tars, IngestError> {
        let Inputs { path, files, is_file, under, .. } = inputs;
        let count = files.len();
        let files: Vec<_> =
            files.into_iter().filter(|file| is_file || Kind::Archive.names(&file.name)).collect();
        let (others, is_one_of_many) = ((count - files.len()) as u64, !is_file);
        let spool = Spool::default();
        let opened: Vec<_> = files
            .into_par_iter()
            .map(|file| (file.name.clone(), Tar::open(file, &spool, is_one_of_many)))
            .collect();
        let (mut tars, mut refused) = (Vec::new(), Vec::new());
        for (name, tar) in opened {
            match tar {
                Ok(tar) => tars.push(tar),
                Err(error) if on_error == OnError::Skip && error.is_about_content() => {
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
    /// Has all archives read, and returns the digests of their files. What `read` returns is that of [`Tar::read`].
    pub(super) fn pieces<'s>(
        &'s self,
        feed: &mut Feed<'_, 's>,
        mut read: impl FnMut(
            &'s Tar,
            &mut Feed<'_, 's>,
        ) -> Result<(InputDigest, Result<(), IngestError>), IngestError>,
    ) -> Result<Vec<InputDigest>, IngestError> {
        for (name, reason) in &self.refused {
            feed.left_out(name, reason)?;
        }
        let mut digests = Vec::with_capacity(self.tars.len());
        for tar in &self.tars {
            let (digest, walked) = read(tar, feed)?;
            walked.or_else(|error| feed.fault(&tar.file.name, error))?;
            digests.push(digest);
        }
        Ok(digests)
    }
}

impl Tar {
    fn open(file: InputFile, spool: &Spool, is_one_of_many: bool) -> Result<Tar, IngestError> {
        let unpacked = spool.unpack(&file, true)?;
        Ok(Tar { file, unpacked, is_one_of_many, twice: Vec::new() })
    }

    /// What a member is called in a version and in messages.
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
        let walk = Walk::new(self, content.bytes());
        let mut archive = walk.archive(Looking::new(content));
        let entries = archive.entries_with_seek().map_err(|error| self.file.error(error))?;
        walk.through(entries, visit)
    }

    /// Visits all members and reads everything on the way: the digest of the archive, and whether it could be walked to
    /// its end.
    pub(super) fn read(
        &self,
        visit: impl FnMut(&mut Member<'_>) -> Result<(), IngestError>,
    ) -> Result<(InputDigest, Result<(), IngestError>), IngestError> {
        let walked = |reader, length| {
            let walk = Walk::new(self, length);
            let mut archive = walk.archive(BufReader::with_capacity(64 << 10, reader));
            let entries = archive.entries().map_err(|error| self.file.error(error))?;
            walk.through(entries, visit)
        };
        if let Some(Unpacked { content, digest, .. }) = &self.unpacked {
            let mut content_from_start = content.read_from(0);
            return Ok((digest.clone(), walked(&mut content_from_start as &mut dyn Read, content.bytes())));
        }
        let mut stream = self.file.stream()?;
        let walked = walked(&mut stream, self.file.bytes);
        match walked {
            Err(error) if !error.is_about_content() => Err(error),
            walked => Ok((self.file.finish(stream)?, walked)),
        }
    }

    fn damage(&self) -> Option<&str> {
        self.unpacked.as_ref().and_then(|unpacked| unpacked.damage.as_deref())
    }
}

/// A way through an archive.
struct Walk<'t> {
    tar: &'t Tar,
    /// Of the archive, unpacked.
    length: u64,
    zeros: Rc<Cell<u64>>,
}

impl<'t> Walk<'t> {
    fn new(tar: &'t Tar, length: u64) -> Walk<'t> {
        Walk { tar, length, zeros: Rc::default() }
    }

    /// Archives joined by `cat` have end marks in the middle; stopping at the first would lose the rest.
    fn archive<R: Read>(&self, reader: R) -> Archive<Zeros<R>> {
        let mut archive = Archive::new(Zeros { reader, zeros: self.zeros.clone() });
        archive.set_ignore_zeros(true);
        archive
    }

    fn through<R: Read>(
        &self,
        entries: Entries<'_, R>,
        mut visit: impl FnMut(&mut Member<'_>) -> Result<(), IngestError>,
    ) -> Result<(), IngestError> {
        let (mut said, mut last) = (Said::default(), None::<String>);
        // The raw entries, as their reader would hold a name of any length in memory.
        for entry in entries.raw(true) {
            let last_name = last.as_deref();
            let mut entry = entry.map_err(|error| self.error(&error, last_name))?;
            let (kind, size) = (entry.header().entry_type(), entry.size());
            if kind.is_gnu_longname() || kind.is_pax_local_extensions() {
                let mut extension = Vec::new();
                let read = entry.by_ref().take(LONGEST_EXTENSION).read_to_end(&mut extension);
                read.map_err(|error| self.error(&error, last_name))?;
                if extension.len() as u64 != size {
                    return Err(self.damaged("a name in it is too long or cut off", last_name));
                }
                said.hear(kind, &extension);
                continue;
            }
            if kind.is_gnu_longlink() || kind.is_pax_global_extensions() {
                continue;
            }
            let said = std::mem::take(&mut said);
            if kind.is_gnu_sparse() || said.is_sparse {
                return Err(self.damaged("it has a sparse file (make it again without)", last_name));
            }
            if said.size.is_some_and(|said| said != size) {
                return Err(self.damaged("it has a member of more than 8 GiB", last_name));
            }
            let bytes = said.name.unwrap_or_else(|| entry.header().path_bytes().into_owned());
            if kind.is_dir() || bytes.last() == Some(&b'/') {
                continue;
            }
            let (name, fault) = clean_name(&bytes);
            let fault = fault.or_else(|| fault_of(kind));
            let end = entry.raw_file_position().checked_add(size);
            if fault.is_none() && end.is_none_or(|end| end > self.length) {
                let reason = format!("{} within {name:?}", self.tar.damage().unwrap_or("it ends too early"));
                return Err(self.damaged(&reason, last_name));
            }
            let mut member = Member { name, fault, size, content: &mut entry, walk: self, last: last_name };
            visit(&mut member)?;
            last = Some(member.name);
        }
        match self.tar.damage() {
            Some(reason) => Err(self.damaged(reason, last.as_deref())),
            None if self.zeros.get() < 512 => Err(self.damaged("it has no end mark", last.as_deref())),
            None => Ok(()),
        }
    }

    /// What is wrong with the archive, if it is not the machine that has failed: its word goes before this.
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

/// Finds names that are there twice, in 8 bytes for each: equal hashes may be an accident, and whoever is told of one
/// goes through the names again.
#[derive(Debug, Default)]
pub(super) struct Seen(Vec<u64>);

impl Seen {
    pub(super) fn add(&mut self, name: &str) {
        self.0.push(Self::hash(name));
    }

    /// The hashes that came up more than once.
    pub(super) fn twice(mut self) -> Vec<u64> {
        self.0.sort_unstable();
        let mut twice: Vec<u64> =
            self.0.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        twice.dedup();
        twice
    }

    pub(super) fn hash(name: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        hasher.finish()
    }
}

/// What was said of the next member before its header.
#[derive(Default)]
struct Said {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    is_sparse: bool,
}

impl Said {
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

/// A name without `./` and doubled slashes, and what is wrong with it.
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

/// Counts how many zeros were read last: a whole archive ends in at least a block of them.
struct Zeros<R> {
    reader: R,
    zeros: Rc<Cell<u64>>,
}

impl<R: Read> Read for Zeros<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        let trailing = buffer[..read].iter().rev().take_while(|&&byte| byte == 0).count();
        let before = if trailing == read { self.zeros.get() } else { 0 };
        self.zeros.set(before + trailing as u64);
        Ok(read)
    }
}

impl<R: Seek> Seek for Zeros<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.reader.seek(to)
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
            self.input.read_from(self.position).take(LOOK as u64).read_to_end(&mut self.buffer)?;
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
