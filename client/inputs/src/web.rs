//! Files of web servers, one by one: they cannot be listed. A server that gives parts of files is asked for parts; from
//! any other the file is downloaded once, before it is looked at.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use object_store::{ClientOptions, Error, GetOptions, GetRange, ObjectStore};
use reqwest::Url;
use shardd_ingest::{Content, InputFile, ReadAt};
use shardd_store::stores::{self, Refusal, Service};

use super::ahead::Listing;
use super::network::Network;
use super::object::Object;
use super::{Found, InputsError, Root, split_last};

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest silence.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// A request for a part takes no longer than this.
pub(super) const PART_TIMEOUT: Duration = Duration::from_secs(300);

/// The file at a URL.
pub(super) fn find(text: &str, network: &Network) -> Result<Found, InputsError> {
    let shown = without_query(text);
    let malformed = |reason: String| InputsError::Malformed { given: shown.clone(), reason };
    let url = Url::parse(text).map_err(|error| malformed(format!("not a URL: {error}; correct it")))?;
    let path = Path::from_url_path(url.path()).map_err(|error| {
        malformed(format!("{error}; name folders as they are, with one slash between them"))
    })?;
    let (folder, name) = split_last(path.as_ref());
    if url.path().ends_with('/') || name.is_empty() {
        return Err(malformed("a folder, which a web server does not list; give the files in it".to_owned()));
    }
    if url.path().contains('*') {
        return Err(malformed(
            "a pattern, and a web server does not list files; give them one by one".to_owned(),
        ));
    }
    network.start()?;
    let files = fetch(&url, &shown, name, network)?;
    let steps = [url.host_str().unwrap_or_default()].into_iter().chain(folder.split('/'));
    Ok(Found { root: Root::new("http", steps), files, is_folder: false, shown: None })
}

/// The URL without its query, where secrets are: for messages, and to recognise the file when it has a new
/// signature.
pub(super) fn without_query(url: &str) -> String {
    match url.split_once('?') {
        Some((shown, _)) if url.contains("://") => shown.to_owned(),
        _ => url.to_owned(),
    }
}

fn fetch(url: &Url, shown: &str, name: &str, network: &Network) -> Result<Vec<InputFile>, InputsError> {
    let refused = |reason| InputsError::Refused { url: shown.to_owned(), reason };
    let options = ClientOptions::new()
        .with_allow_http(url.scheme() == "http")
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_read_timeout(READ_TIMEOUT)
        .with_timeout(PART_TIMEOUT);
    let store = stores::open_file(url.as_str(), options);
    let store = store.map_err(|error| refused(Refusal::of(Service::Web, &error)))?;
    let first = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
    match network.wait(store.get_opts(&Path::ROOT, first)) {
        Ok(answer) => {
            let object = Object { service: Service::Web, store, meta: answer.meta, is_of_hub: false };
            let listing = Listing::new(network, vec![object]);
            Ok(listing.files(|_| (shown.to_owned(), name.to_owned())))
        }
        // It gives no parts, does not say how long it is, or has no byte at all.
        Err(Error::NotSupported { .. } | Error::Generic { .. }) => {
            let (bytes, digest, content) = network.wait(download(url, shown))?;
            Ok(vec![InputFile::new(shown, name, bytes, digest, content)])
        }
        Err(error) => Err(refused(Refusal::of(Service::Web, &error))),
    }
}

/// The length of the file, its digest, and its content.
async fn download(url: &Url, shown: &str) -> Result<(u64, String, Arc<dyn Content>), InputsError> {
    let refused = |reason| InputsError::Refused { url: shown.to_owned(), reason };
    let failed = |error: reqwest::Error| refused(Refusal::of_request(&error));
    let full =
        |source| InputsError::Download { directory: std::env::temp_dir(), url: shown.to_owned(), source };
    let client = reqwest::Client::builder()
        .https_only(url.scheme() == "https")
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .build()
        .map_err(failed)?;
    let mut answer = client.get(url.clone()).send().await.map_err(failed)?;
    if !answer.status().is_success() {
        return Err(refused(Refusal::of_status(answer.status().as_u16())));
    }
    let mut file = tempfile::tempfile().map_err(full)?;
    let mut hasher = blake3::Hasher::new();
    while let Some(part) = answer.chunk().await.map_err(failed)? {
        hasher.update(&part);
        file.write_all(&part).map_err(full)?;
    }
    Ok((hasher.count(), hasher.finalize().to_string(), Arc::new(Downloaded(Arc::new(file)))))
}

/// The bytes already here.
#[derive(Debug)]
struct Downloaded(Arc<File>);

impl Content for Downloaded {
    fn open(&self) -> io::Result<Arc<dyn ReadAt>> {
        Ok(self.0.clone())
    }

    fn is_near(&self) -> bool {
        true
    }
}
