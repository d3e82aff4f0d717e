//! One object of a store, or one file of a web server, as it was when it was listed.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};
use shardd_store::stores::{Refusal, Service};

/// A file, each read of which gives the same bytes or an error.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) service: Service,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) meta: ObjectMeta,
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
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            // The store refuses if it has changed; a tag that is weak never matches.
            if_match: self
                .meta
                .e_tag
                .as_deref()
                .filter(|tag| !tag.starts_with("W/"))
                .map(|tag| self.tag(tag)),
            ..GetOptions::default()
        };
        let refused = |error| io::Error::from(Refusal::of(self.service, &error));
        let answer = self.store.get_opts(self.path(), options).await.map_err(refused)?;
        // Not all servers look at conditions, but all identify their bytes.
        if !self.is(&answer.meta) {
            return Err(Refusal::Changed.into());
        }
        let bytes = answer.bytes().await.map_err(refused)?;
        if bytes.len() as u64 != length {
            let reason = format!("it ends {} bytes into a part of {length}", bytes.len());
            return Err(Refusal::Other { reason }.into());
        }
        Ok(bytes)
    }

    /// Whether it is the same by this evidence. Times are compared in seconds, the least that servers give.
    fn is(&self, other: &ObjectMeta) -> bool {
        let is_same = match (&self.meta.e_tag, &other.e_tag) {
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
