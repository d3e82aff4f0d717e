//! Objects that are no content and change in place: read with a tag, and replaced if they still bear it. Does
//! not know their contents, and does not retry: the caller decides the meaning of a lost or unknown outcome.

use std::fs::{self, File};
use std::io;
use std::path::Path as FilePath;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutResult, UpdateVersion,
};

use super::{Object, Origin, OriginError, blocking};
use crate::durable;
use crate::stores::Refusal;

/// Where they lie. Nothing else does.
pub(super) const META: &str = "meta/";

/// Ends the name of the file that who swaps in a directory locks.
const LOCK: &str = ".lock";

/// How often an object is read again that is replaced while it is read.
const READINGS: usize = 8;

/// Tells one state of an object from all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tag(UpdateVersion);

impl Tag {
    /// `None` of stores that give none.
    fn of(e_tag: Option<String>, version: Option<String>) -> Option<Tag> {
        (e_tag.is_some() || version.is_some()).then_some(Tag(UpdateVersion { e_tag, version }))
    }

    fn of_put(put: PutResult) -> Option<Tag> {
        Tag::of(put.e_tag, put.version)
    }

    fn of_meta(meta: &ObjectMeta) -> Option<Tag> {
        Tag::of(meta.e_tag.clone(), meta.version.clone())
    }
}

/// The state of a swappable object.
pub(crate) enum Swappable {
    /// Nothing.
    Absent,
    /// The object with the known tag.
    Unchanged,
    /// This.
    Present { bytes: Bytes, tag: Option<Tag> },
}

/// The outcome of a swap.
pub(crate) enum Swap {
    /// It was done, and the object bears this tag now, if the store says so.
    Done(Option<Tag>),
    /// The object did not bear the tag, at least when it was asked last: an answer that got lost may have
    /// been another one.
    Lost,
    /// The store will not do such a thing.
    Refused(OriginError),
    /// There was no answer: it was done, will be done, or will not.
    Unknown(OriginError),
}

fn object(name: &str) -> Object {
    Object::new(format!("{META}{name}"), format_args!("{META}{name}"))
}

impl Origin {
    /// The present object, unless it bears the known tag; no more than `limit` bytes are taken.
    pub(crate) async fn read_swappable(
        &self,
        name: &str,
        known: Option<&Tag>,
        limit: u64,
    ) -> Result<Swappable, OriginError> {
        let object = object(name);
        let if_none_match = known.and_then(|tag| tag.0.e_tag.clone());
        let mut readings = 0;
        loop {
            readings += 1;
            let options = GetOptions { if_none_match: if_none_match.clone(), ..GetOptions::default() };
            let read = async {
                let found = self.store.get_opts(&object.path, options).await?;
                let (size, tag) = (found.meta.size, Tag::of_meta(&found.meta));
                let bytes = if size > limit { None } else { Some(found.bytes().await?) };
                Ok::<_, Error>((bytes, size, tag))
            };
            return match read.await {
                Ok((Some(bytes), _, tag)) => {
                    self.metadata.count(1, bytes.len() as u64);
                    Ok(Swappable::Present { bytes, tag })
                }
                Ok((None, size, _)) => {
                    Err(self.corrupt(&object, format!("it has {size} bytes, more than {limit}")))
                }
                Err(Error::NotModified { .. }) => Ok(Swappable::Unchanged),
                Err(Error::NotFound { .. }) => Ok(Swappable::Absent),
                Err(Error::Precondition { .. }) if readings < READINGS => continue,
                Err(error) => Err(self.failed("read", &object, error)),
            };
        }
    }

    /// Puts `bytes` there, if the present object bears the tag `base`; without one, if nothing is there.
    pub(crate) async fn swap(&self, name: &str, bytes: Bytes, base: Option<&Tag>) -> Swap {
        let object = object(name);
        if let Err(error) = self.check_writable("write", &object) {
            return Swap::Refused(error);
        }
        if let Some(root) = &self.root {
            return self.swap_in(root, &object, bytes, base).await;
        }
        let mode = base.map_or(PutMode::Create, |tag| PutMode::Update(tag.0.clone()));
        match self.store.put_opts(&object.path, bytes.into(), PutOptions::from(mode)).await {
            Ok(put) => Swap::Done(Tag::of_put(put)),
            Err(Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotModified { .. }) => {
                Swap::Lost
            }
            Err(error) if is_refusal(&error) => Swap::Refused(self.failed("write", &object, error)),
            Err(error) => Swap::Unknown(self.failed("write", &object, error)),
        }
    }

    /// The same in a directory, which compares nothing by itself: who swaps there holds a lock.
    async fn swap_in(&self, root: &FilePath, object: &Object, bytes: Bytes, base: Option<&Tag>) -> Swap {
        let path = root.join(object.path.as_ref());
        let unknown = |error: io::Error| {
            let error = Error::Generic { store: "directory", source: error.into() };
            Swap::Unknown(self.failed("write", object, error))
        };
        let at = path.clone();
        let locked = match blocking(move || lock(&at)).await {
            Ok(locked) => locked,
            Err(error) => return unknown(error),
        };
        let tag = async || match self.store.head(&object.path).await {
            Ok(meta) => Ok(Tag::of_meta(&meta)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        };
        match tag().await {
            Ok(present) if present.as_ref() == base => {}
            Ok(_) => return Swap::Lost,
            Err(error) => return Swap::Unknown(self.failed("look for", object, error)),
        }
        // The lock is held until the file is there, even if no caller waits for that any more.
        let written = blocking(move || replace(&path, &bytes).map(|()| locked)).await;
        let _locked = match written {
            Ok(locked) => locked,
            Err(error) => return unknown(error),
        };
        match tag().await {
            Ok(tag) => Swap::Done(tag),
            Err(error) => Swap::Unknown(self.failed("look for", object, error)),
        }
    }

    /// The names of the swappable objects that begin with `prefix`, which ends with a slash.
    pub(crate) async fn swappables(&self, prefix: &str) -> Result<Vec<String>, OriginError> {
        let object = object(prefix.trim_end_matches('/'));
        let listed = self.store.list(Some(&Path::from(format!("{META}{prefix}"))));
        let keys = listed.map_ok(|meta| meta.location.to_string()).try_collect::<Vec<_>>().await;
        let keys = keys.map_err(|error| self.failed("list", &object, error))?;
        let names = keys.iter().filter_map(|key| key.strip_prefix(META));
        let mut names: Vec<String> = names.filter(|name| is_object(name)).map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }

    /// Removes a swappable object, whatever it is.
    pub(crate) async fn remove_swappable(&self, name: &str) -> Result<(), OriginError> {
        let object = object(name);
        match self.store.delete(&object.path).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("delete", &object, error)),
        }
    }
}

/// Whether it is no file that only helps to swap.
fn is_object(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    !last.ends_with(LOCK) && !last.starts_with(durable::UNFINISHED)
}

/// Holds the place of a swappable object in a directory, as long as the file lives.
fn lock(path: &FilePath) -> io::Result<File> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(LOCK);
    fs::create_dir_all(path.parent().unwrap_or(FilePath::new(".")))?;
    let file = File::options().create(true).truncate(false).write(true).open(path.with_file_name(name))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(file)
}

fn replace(path: &FilePath, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(FilePath::new("."));
    let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
    durable::replace(directory, name, bytes)
}

/// Whether a conditional put that failed like this fails whenever it is tried.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::NotImplemented { .. }
            | Error::NotSupported { .. }
            | Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::NotFound { .. }
    ) || Refusal::is_final(error)
}
