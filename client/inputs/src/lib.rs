//! The files to ingest, from what a user gives: files, folders, patterns, and URLs of buckets, web servers and the Hugging
//! Face Hub.
//!
//! What versions record of a file is its name, and names do not depend on where the input lies. They are relative to
//! the folder that was given; of a file, to the folder it lies in; of a pattern, to the folders before its first
//! wildcard, so that it makes no difference whether the shell or we expand it. If that leaves several folders, names
//! begin with the folder's own name; if two of those are equal, with the paths from the folder that holds them all. A
//! folder within another is no folder of its own.
//!
//! Does not know the contents of files: ingest reads them through [`Content`](shardd_ingest::Content), on
//! threads that may wait. Nothing of this may be called from within a runtime.

mod ahead;
mod bucket;
mod hub;
mod local;
mod network;
mod object;
mod pattern;
mod ranges;
mod refusals;
#[cfg(test)]
mod tests;
mod web;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use shardd_ingest::{IngestError, InputFile, Inputs, Links};
use shardd_store::stores::Refusal;

use self::network::Network;

/// The schemes that we read, for the error about another one.
const ACCEPTED: &str = "file://, s3://, gs://, az://, abfs://, hf://datasets/, http:// or https://";

/// Why the given paths do not lead to files.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum InputsError {
    /// A URL of a kind that is not read.
    #[error("{url}: {scheme}:// is not read; give a path, a pattern, or a URL that begins with {ACCEPTED}")]
    Scheme { url: String, scheme: String },
    /// Not a URL or a pattern; the reason has the way out.
    #[error("{given}: {reason}")]
    Malformed { given: String, reason: String },
    /// A pattern without a match.
    #[error("{pattern}: matches no file; list the files of {folder}")]
    NoMatch { pattern: String, folder: String },
    /// The store or server did not list or give it.
    #[error("{url}: {reason}")]
    Refused { url: String, reason: Refusal },
    /// A server that gives a file only as a whole, which did not fit.
    #[error(
        "temporary file in {}: cannot hold {url}; free space there or set TMPDIR to a larger disk",
        .directory.display()
    )]
    Download { directory: PathBuf, url: String, source: io::Error },
    /// The system gave no threads or sockets to reach a network with.
    #[error("cannot start what reads from networks")]
    Start { source: io::Error },
    /// Files of this machine.
    #[error(transparent)]
    Local(#[from] IngestError),
}

/// Finds the files that `given` stands for; of a folder `under`, if there is one, only those in there. Of links in a folder
/// of this machine those are followed that `links` says.
///
/// # Errors
/// When one of them leads nowhere, when two files have one name, or when a store or server refuses.
pub fn open(given: &[PathBuf], under: Option<&str>, links: Links) -> Result<Inputs, InputsError> {
    if let [path] = given
        && local::is_path(path)
    {
        return Ok(Inputs::local(path, under, links)?);
    }
    let given: Vec<PathBuf> = given.iter().flat_map(|given| expanded(given)).collect();
    let network = Network::default();
    // Of a single folder far away, no more is listed than is wanted.
    let only = under.filter(|_| given.len() == 1);
    let found =
        given.iter().map(|given| find(given, only, links, &network)).collect::<Result<Vec<_>, _>>()?;
    let is_file = matches!(found.as_slice(), [Found { is_folder: false, files, .. }] if files.len() == 1);
    let roots: Vec<&Root> = found.iter().map(|found| &found.root).collect();
    let prefixes = prefixes(&roots);
    let shown = shown(&given, &found);
    let mut files = Vec::new();
    for (found, prefix) in found.into_iter().zip(prefixes) {
        files.extend(found.files.into_iter().map(|file| {
            let name = format!("{prefix}{}", file.name());
            file.named(name)
        }));
    }
    Ok(Inputs::of_files(shown, files, is_file, under)?)
}

/// The files that one of the things given stands for.
struct Found {
    root: Root,
    /// Named relative to the root.
    files: Vec<InputFile>,
    /// Whether more files could have been there.
    is_folder: bool,
    /// Its exact place, if a URL leaves that open.
    shown: Option<String>,
}

/// The folder that names are relative to, from the outside in: the kind of store, bucket or host, folders.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Root(Vec<String>);

impl Root {
    fn new<'s>(outermost: &'s str, steps: impl IntoIterator<Item = &'s str>) -> Root {
        let steps = steps.into_iter().filter(|step| !step.is_empty());
        Root([outermost].into_iter().chain(steps).map(str::to_owned).collect())
    }
}

/// The URLs that a range of numbers stands for: a web server does not list its files.
fn expanded(given: &Path) -> Vec<PathBuf> {
    match given.to_str().filter(|text| text.starts_with("http://") || text.starts_with("https://")) {
        Some(url) => ranges::expand(url).into_iter().map(PathBuf::from).collect(),
        None => vec![given.to_owned()],
    }
}

fn find(given: &Path, under: Option<&str>, links: Links, network: &Network) -> Result<Found, InputsError> {
    let Some((text, (scheme, _))) = given.to_str().and_then(|text| Some((text, text.split_once("://")?)))
    else {
        return local::find(given, links);
    };
    match scheme {
        "file" => {
            let path = reqwest::Url::parse(text).ok().and_then(|url| url.to_file_path().ok());
            let reason =
                "not the URL of a file; give its path, or file:/// and its path from the root".to_owned();
            local::find(&path.ok_or(InputsError::Malformed { given: text.to_owned(), reason })?, links)
        }
        "s3" | "s3a" | "gs" | "az" | "abfs" | "abfss" => bucket::find(text, under, network),
        "hf" => hub::find(text, under, network),
        "http" | "https" => web::find(text, network),
        _ => Err(InputsError::Scheme { url: text.to_owned(), scheme: scheme.to_owned() }),
    }
}

/// The prefix of the names below each root.
fn prefixes(roots: &[&Root]) -> Vec<String> {
    let distinct: BTreeSet<&Root> = roots.iter().copied().collect();
    // In order, a folder comes right after the one that holds it, or after others in there.
    let mut outer: Vec<&Root> = Vec::new();
    for root in distinct {
        if !outer.last().is_some_and(|last| root.0.starts_with(&last.0)) {
            outer.push(root);
        }
    }
    let own: BTreeSet<Option<&String>> = outer.iter().map(|root| root.0.last()).collect();
    let shared = match outer.as_slice() {
        [first, rest @ ..] => {
            let length = |root: &&Root| first.0.iter().zip(&root.0).take_while(|(a, b)| a == b).count();
            rest.iter().map(length).min().unwrap_or(first.0.len())
        }
        [] => 0,
    };
    let prefix = |root: &&Root| {
        let holder = outer.iter().find(|outer| root.0.starts_with(&outer.0)).expect("each root has one");
        let start = if own.len() == outer.len() && outer.len() > 1 { holder.0.len() - 1 } else { shared };
        root.0[start..].iter().map(|step| format!("{step}/")).collect()
    };
    roots.iter().map(prefix).collect()
}

/// The folder and the file's own name in it.
fn split_last(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// The given paths, for messages.
fn shown(given: &[PathBuf], found: &[Found]) -> String {
    let shown = |(given, found): (&PathBuf, &Found)| {
        found.shown.clone().unwrap_or_else(|| web::without_query(&given.to_string_lossy()))
    };
    let shown: Vec<String> = given.iter().zip(found).take(3).map(shown).collect();
    match given.len() {
        0..=3 => shown.join(", "),
        more => format!("{} and {} more", shown.join(", "), more - 3),
    }
}
