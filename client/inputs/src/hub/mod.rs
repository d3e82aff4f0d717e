//! Files of datasets on the Hugging Face Hub, at `hf://datasets/OWNER/NAME[@REVISION]/PATH`.
//!
//! The revision becomes a commit before anything is listed, so the files are those of one moment: no later commit changes
//! them.

mod api;
mod place;
#[cfg(test)]
mod tests;

use std::env;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use shardd_ingest::is_hidden;
use shardd_store::stores::{self, Refusal, Service};

use self::api::{Entry, Hub};
use self::place::{Place, Settings};
use super::ahead::Listing;
use super::network::Network;
use super::object::Object;
use super::pattern::{Fit, Pattern, Step};
use super::refusals::of_hub_error;
use super::{Found, InputsError, Root, split_last};

/// The files at a URL, of which only the folder `under` is wanted.
pub(super) fn find(url: &str, under: Option<&str>, network: &Network) -> Result<Found, InputsError> {
    let settings = Settings::of(|name| env::var(name).ok());
    let settings = settings.map_err(|reason| InputsError::Malformed { given: url.to_owned(), reason })?;
    find_with(&settings, url, under, network)
}

fn find_with(
    settings: &Settings,
    url: &str,
    under: Option<&str>,
    network: &Network,
) -> Result<Found, InputsError> {
    let place =
        Place::parse(url).map_err(|reason| InputsError::Malformed { given: url.to_owned(), reason })?;
    network.start()?;
    let dataset = Dataset::open(settings, url, place, network)?;
    match Pattern::split(dataset.place.path) {
        Some((folder, pattern)) => dataset.matching(folder, pattern),
        None => dataset.at(dataset.place.path, under),
    }
}

/// A dataset as it is in one commit.
struct Dataset<'u> {
    hub: Hub,
    store: Arc<dyn ObjectStore>,
    network: &'u Network,
    url: &'u str,
    place: Place<'u>,
    commit: String,
}

impl<'u> Dataset<'u> {
    fn open(
        settings: &Settings,
        url: &'u str,
        place: Place<'u>,
        network: &'u Network,
    ) -> Result<Dataset<'u>, InputsError> {
        let refused = |reason| InputsError::Refused { url: url.to_owned(), reason };
        let hub = Hub::new(settings).map_err(refused)?;
        let dataset = [place.owner, place.name];
        let commit = match place.commit() {
            Some(commit) => commit.to_owned(),
            None => network.wait(hub.commit(dataset, &place.revision)).map_err(refused)?,
        };
        let (address, options) = hub.files(dataset, &commit);
        let store = stores::open_file(&address, options).map_err(|error| refused(of_hub_error(&error)))?;
        Ok(Dataset { hub, store, network, url, place, commit })
    }

    /// The file, or all files of the folder, at `path`.
    fn at(&self, path: &str, under: Option<&str>) -> Result<Found, InputsError> {
        let folder = path.trim_end_matches('/');
        if let Some(under) = under {
            let wanted = [folder, under].join("/");
            // If nothing is there, the caller says which folders there are.
            if let Ok(files) = self.tree(wanted.trim_start_matches('/'), true) {
                return self.found(folder, files, true);
            }
        }
        match self.tree(folder, true) {
            Ok(entries) => match entries.as_slice() {
                [file] if file.is_file() && file.path == folder => {
                    self.found(split_last(folder).0, entries, false)
                }
                _ => {
                    let found = self.found(folder, entries, true)?;
                    if found.files.is_empty() { Err(self.refused(Refusal::NotFound)) } else { Ok(found) }
                }
            },
            // A file is listed with its folder.
            Err(Refusal::NotFound) if !folder.is_empty() && !path.ends_with('/') => {
                let parent = split_last(folder).0;
                let mut entries = self.tree(parent, false).map_err(|reason| self.refused(reason))?;
                entries.retain(|entry| entry.is_file() && entry.path == folder);
                match entries.is_empty() {
                    true => Err(self.refused(Refusal::NotFound)),
                    false => self.found(parent, entries, false),
                }
            }
            Err(reason) => Err(self.refused(reason)),
        }
    }

    /// The files that a pattern matches.
    fn matching(&self, folder: &str, text: &str) -> Result<Found, InputsError> {
        let pattern = Pattern::parse(text)?;
        let folder = folder.trim_end_matches('/');
        let refused = |reason| self.refused(reason);
        let (mut entries, mut is_folder) = (Vec::new(), false);
        if let [step @ Step::Name(_)] = pattern.steps.as_slice() {
            // Deeper files need not be listed.
            for entry in self.tree(folder, false).map_err(refused)? {
                let name = relative(folder, &entry.path);
                if is_hidden(name) || !step.fits(name) {
                    continue;
                }
                if entry.is_folder() {
                    entries.extend(self.tree(&entry.path, true).map_err(refused)?);
                    is_folder = true;
                } else {
                    entries.push(entry);
                }
            }
        } else {
            entries = self.tree(folder, true).map_err(refused)?;
            entries.retain(|entry| {
                let fit = pattern.fit(relative(folder, &entry.path));
                is_folder |= fit == Fit::Folder && entry.is_file();
                fit != Fit::Nothing
            });
        }
        let found = self.found(folder, entries, is_folder)?;
        if found.files.is_empty() {
            let Place { owner, name, .. } = self.place;
            let folder = format!("hf://datasets/{owner}/{name}/{folder}");
            return Err(InputsError::NoMatch { pattern: self.url.to_owned(), folder });
        }
        Ok(found)
    }

    fn tree(&self, folder: &str, recursive: bool) -> Result<Vec<Entry>, Refusal> {
        let dataset = [self.place.owner, self.place.name];
        self.network.wait(self.hub.tree(dataset, &self.commit, folder, recursive))
    }

    /// Files of a folder, named relative to it. As on a disk, hidden files and folders are left out.
    fn found(&self, folder: &str, mut entries: Vec<Entry>, is_folder: bool) -> Result<Found, InputsError> {
        let is_visible = |entry: &Entry| {
            let name = relative(folder, &entry.path);
            !is_folder || !name.split('/').any(is_hidden)
        };
        entries.retain(|entry| entry.is_file() && is_visible(entry));
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        entries.dedup_by(|a, b| a.path == b.path);
        let objects = entries.iter().map(|entry| self.object(entry)).collect::<Result<_, _>>()?;
        let Place { owner, name, path, .. } = self.place;
        let root = format!("hf://datasets/{owner}/{name}@{}", self.commit);
        let files = Listing::new(self.network, objects).files(|object| {
            let path = object.path().as_ref();
            (format!("{root}/{path}"), relative(folder, path).to_owned())
        });
        let steps = [owner, name].into_iter().chain(folder.split('/'));
        let shown = format!("{root}/{path}");
        Ok(Found { root: Root::new("hf", steps), files, is_folder, shown: Some(shown) })
    }

    fn object(&self, entry: &Entry) -> Result<Object, InputsError> {
        let location = Path::parse(&entry.path).map_err(|error| InputsError::Malformed {
            given: self.url.to_owned(),
            reason: format!("{error}; name the files that can be read"),
        })?;
        let meta = ObjectMeta {
            location,
            last_modified: Default::default(),
            size: entry.bytes(),
            e_tag: Some(entry.digest().to_owned()),
            version: None,
        };
        Ok(Object { service: Service::Web, store: self.store.clone(), meta, is_of_hub: true })
    }

    fn refused(&self, reason: Refusal) -> InputsError {
        InputsError::Refused { url: self.url.to_owned(), reason }
    }
}

/// The rest of a path, below the folder.
fn relative<'p>(folder: &str, path: &'p str) -> &'p str {
    path.strip_prefix(folder).map(|rest| rest.trim_start_matches('/')).unwrap_or(path)
}
