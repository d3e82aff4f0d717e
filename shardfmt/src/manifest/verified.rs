//! Reads parts of a file that is named by its digest, and gives out nothing that is not of that file.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arrow::buffer::Buffer;
use blake3::hazmat::ChainingValue;

use super::ManifestError;
use super::tree::{BEGINNING, GROUP, TreeHead, is_group};
use crate::digest::{Digest, VersionId};

/// Where the bytes of one manifest are to be had. They are verified, so it need not be trusted.
pub trait ManifestBytes: Send + Sync {
    /// The whole file.
    fn whole(&self) -> io::Result<Vec<u8>>;

    /// Part of the file; of what lies beyond its end, nothing.
    fn part(&self, range: Range<u64>) -> io::Result<Vec<u8>>;

    /// Part of the [tree](super::tree_of) beside the file; of what lies beyond its end, nothing.
    fn tree(&self, range: Range<u64>) -> io::Result<Vec<u8>>;
}

/// A file named by its digest. Parts are read and verified by its tree, or the whole if there is no tree, or a wrong one.
pub(super) struct VerifiedFile {
    name: Digest,
    bytes: Box<dyn ManifestBytes>,
    tree: Option<TreeHead>,
    /// The chaining values of the groups of spans that were read from.
    spans: Mutex<BTreeMap<u64, Arc<[ChainingValue]>>>,
    whole: OnceLock<Buffer>,
    bytes_read: AtomicU64,
}

impl VerifiedFile {
    pub(super) fn open(id: VersionId, bytes: Box<dyn ManifestBytes>) -> Result<Self, ManifestError> {
        let mut file = Self::new(id.0, bytes);
        file.tree = file.read_head();
        if file.tree.is_none() {
            file.whole()?;
        }
        Ok(file)
    }

    /// A file in memory, whose name is for others to check.
    pub(super) fn unnamed(bytes: Buffer) -> Self {
        let file = Self::new(Digest([0; 32]), Box::new(Nowhere));
        file.whole.get_or_init(|| bytes);
        file
    }

    fn new(name: Digest, bytes: Box<dyn ManifestBytes>) -> Self {
        let (spans, whole, bytes_read) = (Mutex::default(), OnceLock::new(), AtomicU64::new(0));
        Self { name, bytes, tree: None, spans, whole, bytes_read }
    }

    pub(super) fn length(&self) -> u64 {
        match (self.whole.get(), &self.tree) {
            (None, Some(tree)) => tree.length,
            (whole, _) => whole.map_or(0, |whole| whole.len() as u64),
        }
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Part of the file.
    pub(super) fn read(&self, range: Range<u64>) -> Result<Buffer, ManifestError> {
        if self.whole.get().is_none()
            && let Some(tree) = &self.tree
            && let Some(part) = self.read_by_tree(tree, &range)?
        {
            return Ok(part);
        }
        // Either the tree is wrong, or the file: its digest will say which.
        let whole = self.whole()?;
        if range.start > range.end || range.end > whole.len() as u64 {
            return Err(ManifestError::Corrupt("it is cut off".to_owned()));
        }
        Ok(whole.slice_with_length(range.start as usize, (range.end - range.start) as usize))
    }

    /// The last bytes of the file, at most `most`, and where they begin.
    pub(super) fn end(&self, most: u64) -> Result<(u64, Buffer), ManifestError> {
        loop {
            let length = self.length();
            let start = length.saturating_sub(most);
            match self.read(start..length) {
                // The length of a wrong tree is forgotten with it, once.
                _ if self.length() != length => {}
                end => return Ok((start, end?)),
            }
        }
    }

    /// The whole file.
    pub(super) fn whole(&self) -> Result<&Buffer, ManifestError> {
        if let Some(whole) = self.whole.get() {
            return Ok(whole);
        }
        let whole = self.counted(self.bytes.whole()).map_err(|source| ManifestError::Unread { source })?;
        let found = Digest::of(&whole);
        if found != self.name {
            return Err(ManifestError::Corrupt(format!("its bytes have digest {found}")));
        }
        Ok(self.whole.get_or_init(|| Buffer::from_vec(whole)))
    }

    fn read_head(&self) -> Option<TreeHead> {
        let mut head = self.counted(self.bytes.tree(BEGINNING)).ok()?;
        let extent = TreeHead::extent(&head)?;
        if extent > BEGINNING.end {
            head = self.counted(self.bytes.tree(0..extent)).ok()?;
        }
        TreeHead::parse(&head, self.name)
    }

    /// Part of the file; `None` if it cannot be verified.
    fn read_by_tree(&self, tree: &TreeHead, range: &Range<u64>) -> Result<Option<Buffer>, ManifestError> {
        if range.start >= range.end || range.end > tree.length {
            return Ok(None);
        }
        let first = range.start / GROUP;
        let (from, to) = (first * GROUP, range.end.next_multiple_of(GROUP).min(tree.length));
        let read =
            self.counted(self.bytes.part(from..to)).map_err(|source| ManifestError::Unread { source })?;
        if read.len() as u64 != to - from {
            return Ok(None);
        }
        for (number, group) in (first..).zip(read.chunks(GROUP as usize)) {
            let Some(values) = self.span(tree, TreeHead::span_of(number)) else { return Ok(None) };
            if !is_group(number, group, &values) {
                return Ok(None);
            }
        }
        let length = (range.end - range.start) as usize;
        Ok(Some(Buffer::from_vec(read).slice_with_length((range.start - from) as usize, length)))
    }

    fn span(&self, tree: &TreeHead, span: u64) -> Option<Arc<[ChainingValue]>> {
        let spans = || self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(values) = spans().get(&span) {
            return Some(values.clone());
        }
        let read = self.counted(self.bytes.tree(tree.groups_place(span))).ok()?;
        let values: Arc<[ChainingValue]> = tree.groups(span, &read)?.into();
        spans().insert(span, values.clone());
        Some(values)
    }

    fn counted(&self, read: io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
        if let Ok(read) = &read {
            self.bytes_read.fetch_add(read.len() as u64, Ordering::Relaxed);
        }
        read
    }
}

/// For files that are in memory already.
struct Nowhere;

impl ManifestBytes for Nowhere {
    fn whole(&self) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn part(&self, _: Range<u64>) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn tree(&self, _: Range<u64>) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }
}
