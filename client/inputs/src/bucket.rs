//! Files in buckets: those of a folder, or those that match a pattern.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, ListResult, ObjectMeta, ObjectStore, ObjectStoreExt};
use shardd_ingest::is_hidden;
use shardd_store::stores::{self, Late, Opened, Refusal, Service, StoreOptions};

use super::ahead::Listing;
use super::network::Network;
use super::object::Object;
use super::pattern::{Fit, Pattern, Step};
use super::{Found, InputsError, Root, split_last};

/// The files at a URL such as `s3://bucket/folder`, of which only the folder `under` is wanted.
pub(super) fn find(url: &str, under: Option<&str>, network: &Network) -> Result<Found, InputsError> {
    let bucket = Bucket::open(url, network)?;
    match Pattern::split(bucket.key) {
        Some((folder, pattern)) => bucket.matching(folder, pattern),
        None => bucket.at(bucket.key, under),
    }
}

struct Bucket<'u> {
    service: Service,
    store: Arc<dyn ObjectStore>,
    network: &'u Network,
    url: &'u str,
    scheme: &'u str,
    /// The bucket, and for Azure perhaps its account.
    name: &'u str,
    /// The part after it, unchanged: keys are not encoded.
    key: &'u str,
}

impl<'u> Bucket<'u> {
    fn open(url: &'u str, network: &'u Network) -> Result<Bucket<'u>, InputsError> {
        let (scheme, rest) = url.split_once("://").expect("a URL");
        let (name, key) = rest.split_once('/').unwrap_or((rest, ""));
        network.start()?;
        let refused = |reason| InputsError::Refused { url: url.to_owned(), reason };
        let opened = stores::open(url, &StoreOptions::default(), Late::WaitedFor).map_err(refused)?;
        let Opened { store, service, .. } = opened;
        Ok(Bucket { service, store, network, url, scheme, name, key })
    }

    /// The file, or all files of the folder, at `key`.
    fn at(&self, key: &str, under: Option<&str>) -> Result<Found, InputsError> {
        let folder = self.path(key)?;
        let wanted = under.and_then(|under| self.path(&format!("{folder}/{under}")).ok());
        let listed = match wanted.map(|wanted| self.list(&wanted)) {
            // If nothing is there, the caller says which folders there are.
            Some(listed) if !listed.as_ref().is_ok_and(Vec::is_empty) => listed,
            _ => self.list(&folder),
        };
        if key.ends_with('/') || folder.is_root() {
            return self.found(&folder, self.some(listed?)?, true);
        }
        // A reader of a file need not be allowed to list its folder.
        match listed {
            Ok(listed) if !listed.is_empty() => self.found(&folder, listed, true),
            Err(error @ InputsError::Refused { reason: Refusal::Unreachable { .. }, .. }) => Err(error),
            listed => {
                let head = self.network.wait(self.store.head(&folder));
                let denied = |error| listed.err().unwrap_or_else(|| self.refused(&error));
                let parent = self.path(split_last(folder.as_ref()).0)?;
                self.found(&parent, vec![head.map_err(denied)?], false)
            }
        }
    }

    /// The files that a pattern matches.
    fn matching(&self, folder: &str, text: &str) -> Result<Found, InputsError> {
        let (pattern, path) = (Pattern::parse(text)?, self.path(folder)?);
        let relative = |location: &Path| relative(&path, location).to_owned();
        let (mut objects, mut is_folder) = (Vec::new(), false);
        if let [step @ Step::Name(_)] = pattern.steps.as_slice() {
            // Deeper objects need not be listed.
            let level = self.network.wait(self.store.list_with_delimiter(Some(&path)));
            let ListResult { common_prefixes: folders, objects: files, .. } =
                level.map_err(|error| self.refused(&error))?;
            let fits = |location: &Path| {
                let name = relative(location);
                !name.is_empty() && !is_hidden(&name) && step.fits(&name)
            };
            let is_file = |file: &ObjectMeta| file.size > 0 || !folders.contains(&file.location);
            objects.extend(files.into_iter().filter(|file| fits(&file.location) && is_file(file)));
            for folder in folders.iter().filter(|folder| fits(folder)) {
                objects.extend(self.list(folder)?);
                is_folder = true;
            }
        } else {
            objects = self.list(&path)?;
            objects.retain(|object| {
                let fit = pattern.fit(&relative(&object.location));
                is_folder |= fit == Fit::Folder;
                fit != Fit::Nothing
            });
        }
        if objects.is_empty() {
            let folder = format!("{}://{}/{folder}", self.scheme, self.name);
            return Err(InputsError::NoMatch { pattern: self.url.to_owned(), folder });
        }
        self.found(&path, objects, is_folder)
    }

    /// All that is below the folder, in the order of the names.
    fn list(&self, folder: &Path) -> Result<Vec<ObjectMeta>, InputsError> {
        let listed = self.network.wait(self.store.list(Some(folder)).try_collect());
        let mut objects: Vec<ObjectMeta> = listed.map_err(|error| self.refused(&error))?;
        // As on a disk, hidden files and folders are left out.
        let name = |object: &ObjectMeta| relative(folder, &object.location).to_owned();
        objects.retain(|object| !name(object).is_empty() && !name(object).split('/').any(is_hidden));
        objects.sort_by(|a, b| a.location.as_ref().cmp(b.location.as_ref()));
        // Consoles make empty objects to show folders.
        let below = |object: &ObjectMeta| format!("{}/", object.location);
        let holds_more = |below: &String| {
            let next = objects.partition_point(|other| other.location.as_ref() < below.as_str());
            objects.get(next).is_some_and(|next| next.location.as_ref().starts_with(below))
        };
        let empty = objects.iter().filter(|object| object.size == 0);
        let folders: BTreeSet<String> = empty.map(below).filter(holds_more).collect();
        objects.retain(|object| object.size > 0 || !folders.contains(&below(object)));
        Ok(objects)
    }

    fn some(&self, objects: Vec<ObjectMeta>) -> Result<Vec<ObjectMeta>, InputsError> {
        if objects.is_empty() {
            return Err(InputsError::Refused { url: self.url.to_owned(), reason: Refusal::NotFound });
        }
        Ok(objects)
    }

    /// Objects of a folder as files that are named relative to it.
    fn found(
        &self,
        folder: &Path,
        mut objects: Vec<ObjectMeta>,
        is_folder: bool,
    ) -> Result<Found, InputsError> {
        objects.sort_by(|a, b| a.location.as_ref().cmp(b.location.as_ref()));
        let object =
            |meta| Object { service: self.service, store: self.store.clone(), meta, is_of_hub: false };
        let listing = Listing::new(self.network, objects.into_iter().map(object).collect());
        let files = listing.files(|object| {
            let path = format!("{}://{}/{}", self.scheme, self.name, object.path());
            (path, relative(folder, object.path()).to_owned())
        });
        let steps = [self.name].into_iter().chain(folder.as_ref().split('/'));
        let scheme = match self.service {
            Service::S3 => "s3",
            Service::Google => "gs",
            Service::Azure | Service::Web => "az",
        };
        Ok(Found { root: Root::new(scheme, steps), files, is_folder, shown: None })
    }

    fn path(&self, key: &str) -> Result<Path, InputsError> {
        Path::parse(key.trim_end_matches('/')).map_err(|error| InputsError::Malformed {
            given: self.url.to_owned(),
            reason: format!("{error}; name folders as they are, with one slash between them"),
        })
    }

    fn refused(&self, error: &Error) -> InputsError {
        InputsError::Refused { url: self.url.to_owned(), reason: Refusal::of(self.service, error) }
    }
}

/// The rest of a location, below the folder.
fn relative<'l>(folder: &Path, location: &'l Path) -> &'l str {
    let rest = location.as_ref().strip_prefix(folder.as_ref());
    rest.map(|rest| rest.trim_start_matches('/')).unwrap_or_default()
}
