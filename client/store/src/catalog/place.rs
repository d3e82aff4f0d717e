//! Where a catalog is that needs no node.

use std::fmt;
use std::path::PathBuf;

use crate::stores::StoreOptions;

/// A directory, or a folder of a bucket.
///
/// ```
/// use shardd_store::catalog::StorePlace;
/// use shardd_store::stores::StoreOptions;
///
/// let place = |name: &str| StorePlace::named(name, StoreOptions::default());
/// assert_eq!(place("digits-store"), StorePlace::Directory("digits-store".into()));
/// assert_eq!(place("file:///srv/store"), StorePlace::Directory("/srv/store".into()));
/// assert!(matches!(place("s3://bucket/folder"), StorePlace::Url { .. }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorePlace {
    /// A directory of this machine, with objects in `store/` and names in `meta/`.
    Directory(PathBuf),
    /// The URL of a store, which keeps the names beside the objects.
    Url {
        /// Such as `s3://BUCKET/FOLDER`.
        url: String,
        /// How it is reached.
        options: StoreOptions,
    },
}

impl StorePlace {
    /// The user's name for a store: a directory, also as `file:///DIR`, or a URL, to which alone the options
    /// apply.
    pub fn named(name: impl Into<PathBuf>, options: StoreOptions) -> StorePlace {
        let name: PathBuf = name.into();
        match name.to_str().and_then(|text| text.split_once("://")) {
            Some(("file", path)) if path.starts_with('/') => StorePlace::Directory(path.into()),
            Some((scheme, rest)) => StorePlace::Url { url: format!("{scheme}://{rest}"), options },
            None => StorePlace::Directory(name),
        }
    }
}

impl From<PathBuf> for StorePlace {
    fn from(directory: PathBuf) -> StorePlace {
        StorePlace::Directory(directory)
    }
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorePlace::Directory(directory) => directory.display().fmt(f),
            StorePlace::Url { url, .. } => f.write_str(url),
        }
    }
}
