//! One object of a store, or one file of a web server or of the Hub, as it was when it was listed.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectMeta, ObjectStore};
use shardd_store::stores::{Refusal, Service};

use super::refusals::of_hub_error;

/// A larger file is not fetched as a whole when a part of it is wanted.
const LARGEST_WHOLE: u64 = 64 << 20;

/// A file, each read of which gives the same bytes or an error.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) service: Service,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) meta: ObjectMeta,
    /// Whether it is a file of a commit on the Hub: no other bytes ever lie at its address. Its tag is the digest of its
    /// content, and servers send it with tags of their own.
    pub(super) is_of_hub: bool,
}

impl Object {
    pub(super) fn path(&self) -> &Path {
        &self.meta.location
    }

    pub(super) fn bytes(&self) -> u64 {
        self.meta.size
    }

    /// Changes when the content does.
    pub(super) fn stamp(&self) -> String {
        self.meta.e_tag.clone().unwrap_or_else(|| self.meta.last_modified.to_rfc3339())
    }

    /// A part of it, which lies within.
    pub(super) async fn fetch(&self, range: Range<u64>) -> io::Result<Bytes> {
        let length = range.end - range.start;
        if length == 0 {
            return Ok(Bytes::new());
        }
        let bytes = match self.ask(Some(range.clone())).await {
            // Some small files come only as a whole.
            Err(Error::NotSupported { .. }) if self.is_of_hub && self.bytes() <= LARGEST_WHOLE => {
                let whole = self.ask(None).await.map_err(|error| self.refused(&error))??;
                let part = usize::try_from(range.start)..usize::try_from(range.end);
                match (part.start, part.end) {
                    (Ok(start), Ok(end)) if end <= whole.len() => whole.slice(start..end),
                    _ => whole,
                }
            }
            answer => answer.map_err(|error| self.refused(&error))??,
        };
        if bytes.len() as u64 != length {
            let reason = format!("it ends {} bytes into a part of {length}", bytes.len());
            return Err(Refusal::Other { reason }.into());
        }
        Ok(bytes)
    }

    /// A part, or all of it, if it is still the listed object.
    async fn ask(&self, range: Option<Range<u64>>) -> Result<io::Result<Bytes>, Error> {
        let options = GetOptions {
            range: range.map(GetRange::Bounded),
            // The store refuses if it has changed; a tag that is weak never matches.
            if_match: self
                .meta
                .e_tag
                .as_deref()
                .filter(|tag| !self.is_of_hub && !tag.starts_with("W/"))
                .map(|tag| self.tag(tag)),
            ..GetOptions::default()
        };
        let answer = self.store.get_opts(self.path(), options).await?;
        // Not all servers look at conditions, but all identify their bytes.
        if !self.is(&answer.meta) {
            return Ok(Err(Refusal::Changed.into()));
        }
        answer.bytes().await.map(Ok)
    }

    fn refused(&self, error: &Error) -> io::Error {
        io::Error::from(match self.is_of_hub {
            true => of_hub_error(error),
            false => Refusal::of(self.service, error),
        })
    }

    /// Whether it is the same by this evidence. Times are compared in seconds, the least that servers give.
    fn is(&self, other: &ObjectMeta) -> bool {
        let is_same = match (&self.meta.e_tag, &other.e_tag) {
            _ if self.is_of_hub => true,
            (Some(listed), Some(now)) => listed.trim_matches('"') == now.trim_matches('"'),
            _ => self.meta.last_modified.timestamp() == other.last_modified.timestamp(),
        };
        is_same && self.meta.size == other.size
    }

    /// An entity tag as it stands in headers. Azure lists them bare.
    fn tag(&self, tag: &str) -> String {
        let is_bare = self.service == Service::Azure && !tag.ends_with('"');
        if is_bare { format!("\"{tag}\"") } else { tag.to_owned() }
    }
}
