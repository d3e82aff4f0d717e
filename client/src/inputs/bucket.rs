//! Buckets: Amazon S3 and what is compatible with it, Google Cloud Storage, Azure Blob Storage. Settings and credentials
//! come from the environment, under the names that each cloud's own tools use.

use std::collections::BTreeSet;
use std::env;
use std::sync::Arc;

use futures::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{ClientConfigKey, Error, ListResult, ObjectMeta, ObjectStore, ObjectStoreExt};
use shardfmt::ingest::is_hidden;

use super::ahead::Listing;
use super::network::Network;
use super::object::{Object, retries};
use super::pattern::{Fit, Pattern, Step};
use super::refusal::{Refusal, Service};
use super::{Found, InputsError, Root, split_last};

/// A request takes no longer than this, a silence within it no longer than that.
const TIMEOUTS: [(ClientConfigKey, &str); 2] =
    [(ClientConfigKey::Timeout, "5 minutes"), (ClientConfigKey::ReadTimeout, "30 seconds")];

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
    /// What comes after it, as it is: keys are not encoded.
    key: &'u str,
}

impl<'u> Bucket<'u> {
    fn open(url: &'u str, network: &'u Network) -> Result<Bucket<'u>, InputsError> {
        let (scheme, rest) = url.split_once("://").expect("a URL");
        let (name, key) = rest.split_once('/').unwrap_or((rest, ""));
        if name.is_empty() {
            let reason = format!("names no bucket; give it as {scheme}://BUCKET/FOLDER");
            return Err(InputsError::Malformed { given: url.to_owned(), reason });
        }
        network.start()?;
        let service = match scheme {
            "s3" | "s3a" => Service::S3,
            "gs" => Service::Google,
            _ => Service::Azure,
        };
        let address = format!("{scheme}://{name}");
        let store = match service {
            Service::S3 => amazon(&address),
            Service::Google => google(&address),
            Service::Azure | Service::Web => azure(&address),
        };
        let unusable =
            |error| InputsError::Refused { url: url.to_owned(), reason: Refusal::unusable(service, &error) };
        Ok(Bucket { service, store: store.map_err(unusable)?, network, url, scheme, name, key })
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
        // Whoever may read a file need not be allowed to list its folder.
        match listed {
            Ok(listed) if !listed.is_empty() => self.found(&folder, listed, true),
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
            // What lies deeper need not be listed.
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
        // As on a disk, hidden files and folders are for nobody.
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
        let object = |meta| Object { service: self.service, store: self.store.clone(), meta };
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
        Ok(Found { root: Root::new(scheme, steps), files, is_folder })
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

fn amazon(url: &str) -> Result<Arc<dyn ObjectStore>, Error> {
    let mut builder = AmazonS3Builder::from_env().with_url(url).with_retry(retries());
    for (key, value) in TIMEOUTS {
        builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
    }
    let endpoint = builder
        .get_config_value(&AmazonS3ConfigKey::S3Endpoint)
        .or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
        builder = builder.with_allow_http(true);
    }
    Ok(Arc::new(builder.build()?))
}

fn google(url: &str) -> Result<Arc<dyn ObjectStore>, Error> {
    let mut builder = GoogleCloudStorageBuilder::from_env().with_url(url).with_retry(retries());
    for (key, value) in TIMEOUTS {
        builder = builder.with_config(GoogleConfigKey::Client(key), value);
    }
    if let Ok(host) = env::var("STORAGE_EMULATOR_HOST") {
        let address = if host.contains("://") { host } else { format!("http://{host}") };
        builder = builder.with_base_url(&address).with_skip_signature(true);
    }
    Ok(Arc::new(builder.build()?))
}

fn azure(url: &str) -> Result<Arc<dyn ObjectStore>, Error> {
    let mut builder = MicrosoftAzureBuilder::from_env();
    // What Microsoft's own tools call them.
    for (variable, key) in [
        ("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName),
        ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey),
    ] {
        if let Ok(value) = env::var(variable) {
            builder = builder.with_config(key, value);
        }
    }
    for (name, value) in env::var("AZURE_STORAGE_CONNECTION_STRING").iter().flat_map(|text| parts(text)) {
        builder = match name {
            "AccountName" => builder.with_config(AzureConfigKey::AccountName, value),
            "AccountKey" => builder.with_config(AzureConfigKey::AccessKey, value),
            "SharedAccessSignature" => builder.with_config(AzureConfigKey::SasKey, value),
            "BlobEndpoint" => builder.with_config(AzureConfigKey::Endpoint, value),
            "UseDevelopmentStorage" => builder.with_config(AzureConfigKey::UseEmulator, value),
            _ => builder,
        };
    }
    for (key, value) in TIMEOUTS {
        builder = builder.with_config(AzureConfigKey::Client(key), value);
    }
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
        builder = builder.with_allow_http(true);
    }
    Ok(Arc::new(builder.with_url(url).with_retry(retries()).build()?))
}

/// The `name=value` pairs of a connection string.
fn parts(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(';').filter_map(|part| part.trim().split_once('='))
}
