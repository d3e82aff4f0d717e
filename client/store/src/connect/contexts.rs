//! The file of contexts: names for clusters and stores, and which of them is current. Knows no command.
//!
//! The file is written whole or not at all, is readable by its user alone, and never replaces a file that cannot be
//! parsed.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use shardd_api::suggest::no_such;

use super::ConnectError;
use crate::catalog::StorePlace;
use crate::stores::StoreOptions;

/// The first line of the file. Other comments in it do not survive a change.
const HEADING: &str = "# Contexts of shardctl and shardtrain, written by `shardctl context`.\n\n";

/// All contexts of a user.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    /// The context of a command that names no other place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<ContextName>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    /// The place of each context.
    pub contexts: BTreeMap<ContextName, Place>,
}

/// The name of a context: `[A-Za-z0-9._-]{1,64}`, not beginning with `-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContextName(String);

/// Where a context works. Holds no secret, only the names of files that do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub enum Place {
    /// Nodes of one cluster.
    Server {
        /// Addresses of nodes, with commas between them.
        urls: String,
        /// The file of the token to show to them, from the root.
        token_file: Option<PathBuf>,
        /// The file of the certificates that theirs come from, from the root.
        ca: Option<PathBuf>,
    },
    /// A directory, from the root, or a bucket.
    Store(StorePlace),
}

/// A place as it is written.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Fields {
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ca: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    region: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    anonymous: bool,
}

impl Place {
    /// Nodes that need no credentials.
    pub fn server(urls: &str) -> Place {
        Place::Server { urls: urls.to_owned(), token_file: None, ca: None }
    }

    /// Its fields, with names and values for people.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let shown = |path: &PathBuf| path.display().to_string();
        match self {
            Place::Server { urls, token_file, ca } => [
                ("server", Some(urls.clone())),
                ("token file", token_file.as_ref().map(shown)),
                ("ca", ca.as_ref().map(shown)),
            ]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect(),
            Place::Store(StorePlace::Directory(directory)) => vec![("store", shown(directory))],
            Place::Store(StorePlace::Url { url, options }) => [
                ("store", Some(url.clone())),
                ("endpoint", options.endpoint.clone()),
                ("region", options.region.clone()),
                ("ca", options.ca.as_ref().map(shown)),
                ("anonymous", options.anonymous.then(|| "yes".to_owned())),
            ]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect(),
        }
    }
}

impl Contexts {
    /// The contexts in the user's file; none if there is no file.
    ///
    /// # Errors
    /// When the file cannot be read or parsed.
    pub fn load() -> Result<Contexts, ConnectError> {
        path().map_or_else(|| Ok(Contexts::default()), |path| read(&path))
    }

    /// Reads the file, applies `change` to its contexts, and writes it again; one process at a time.
    ///
    /// # Errors
    /// When the file cannot be read, parsed or written, or `change` fails; the file then stays as it was.
    pub fn change<T>(
        change: impl FnOnce(&mut Contexts) -> Result<T, ConnectError>,
    ) -> Result<T, ConnectError> {
        let path = path().ok_or_else(|| {
            ConnectError::Contexts(
                "there is no home directory for the file of contexts: name a file in SHARDD_CONTEXTS"
                    .to_owned(),
            )
        })?;
        let unwritable = |error: io::Error| ConnectError::Contexts(format!("{}: {error}", path.display()));
        // A link, as keepers of dotfiles make them, stays one.
        let file = fs::canonicalize(&path).or_else(|_| std::path::absolute(&path)).map_err(unwritable)?;
        let dir = file.parent().ok_or_else(|| unwritable(ErrorKind::IsADirectory.into()))?;
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(unwritable)?;
        let lock = File::open(dir).map_err(unwritable)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| unwritable(error.into()))?;
        let mut contexts = read(&file)?;
        let changed = change(&mut contexts)?;
        let body = toml::to_string(&contexts).map_err(|error| ConnectError::Contexts(error.to_string()))?;
        let text = format!("{HEADING}{body}");
        replace(dir, &file, &text).and_then(|()| lock.sync_all()).map_err(unwritable)?;
        Ok(changed)
    }

    /// The context of this name.
    ///
    /// # Errors
    /// When there is none; the error lists the names there are.
    pub fn find(&self, name: &str) -> Result<(&ContextName, &Place), ConnectError> {
        let found = self.contexts.iter().find(|(known, _)| known.0 == name);
        found.ok_or_else(|| {
            let known: Vec<String> = self.contexts.keys().map(ToString::to_string).collect();
            ConnectError::Contexts(no_such(&format!("context {name}"), name, &known))
        })
    }
}

/// The path of the file: `$SHARDD_CONTEXTS`, else `shardd/contexts.toml` in `$XDG_CONFIG_HOME` or `~/.config`; `None` for
/// a user without a home.
pub fn path() -> Option<PathBuf> {
    let named = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(file) = named("SHARDD_CONTEXTS") {
        return Some(file);
    }
    let config = named("XDG_CONFIG_HOME").filter(|dir| dir.is_absolute());
    let config = config.or_else(|| Some(named("HOME")?.join(".config")))?;
    Some(config.join("shardd/contexts.toml"))
}

fn read(path: &Path) -> Result<Contexts, ConnectError> {
    match fs::read_to_string(path) {
        Ok(text) => parse(&text, path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Contexts::default()),
        Err(error) => Err(ConnectError::Contexts(format!("{}: {error}", path.display()))),
    }
}

fn parse(text: &str, path: &Path) -> Result<Contexts, ConnectError> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        let reason = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        ConnectError::Contexts(format!("contexts in {}, line {line}: {reason}", path.display()))
    })
}

/// Makes `text` the content of the file, which only its user can read.
fn replace(dir: &Path, file: &Path, text: &str) -> io::Result<()> {
    let mut unfinished = tempfile::Builder::new().prefix("~contexts").tempfile_in(dir)?;
    unfinished.write_all(text.as_bytes())?;
    unfinished.as_file().sync_all()?;
    unfinished.persist(file)?;
    Ok(())
}

impl ContextName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ContextName {
    type Err = String;

    fn from_str(text: &str) -> Result<ContextName, String> {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
        match (1..=64).contains(&text.len()) && text.bytes().all(allowed) && !text.starts_with('-') {
            true => Ok(ContextName(text.to_owned())),
            false => {
                let text: String = text.chars().take(80).collect();
                Err(format!(
                    "{text:?} cannot name a context: use up to 64 of A-Z, a-z, 0-9, '.', '_' and '-'"
                ))
            }
        }
    }
}

impl TryFrom<String> for ContextName {
    type Error = String;

    fn try_from(text: String) -> Result<ContextName, String> {
        text.parse()
    }
}

impl From<ContextName> for String {
    fn from(name: ContextName) -> String {
        name.0
    }
}

impl fmt::Display for ContextName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check_whole(name: &str, path: &Path) -> Result<(), String> {
    match path.is_absolute() {
        true => Ok(()),
        false => Err(format!("{name} {:?} depends on where you are: write its whole path", path.display())),
    }
}

impl TryFrom<Fields> for Place {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Place, String> {
        let Fields { server, store, token_file, ca, endpoint, region, anonymous } = fields;
        for (name, path) in [("token-file", &token_file), ("ca", &ca)] {
            if let Some(path) = path {
                check_whole(name, path)?;
            }
        }
        let is_about_a_bucket = endpoint.is_some() || region.is_some() || anonymous;
        let options = StoreOptions { endpoint, region, ca: ca.clone(), anonymous, bandwidth: None };
        match (server, store.map(|store| StorePlace::named(store, options))) {
            (Some(_), None) if is_about_a_bucket => {
                Err("`endpoint`, `region` and `anonymous` are of a `store` that is a URL".to_owned())
            }
            (Some(urls), None) => Ok(Place::Server { urls, token_file, ca }),
            (None, Some(_)) if token_file.is_some() => Err("a `token-file` is of a `server`".to_owned()),
            (None, Some(StorePlace::Directory(directory))) => {
                check_whole("store", &directory)?;
                match is_about_a_bucket || ca.is_some() {
                    true => Err("a `store` that is a directory needs nothing else".to_owned()),
                    false => Ok(Place::Store(directory.into())),
                }
            }
            (None, Some(url)) => Ok(Place::Store(url)),
            _ => Err("a context has either `server` or `store`".to_owned()),
        }
    }
}

impl From<Place> for Fields {
    fn from(place: Place) -> Fields {
        match place {
            Place::Server { urls, token_file, ca } => {
                Fields { server: Some(urls), token_file, ca, ..Fields::default() }
            }
            Place::Store(StorePlace::Directory(directory)) => {
                Fields { store: Some(directory), ..Fields::default() }
            }
            Place::Store(StorePlace::Url { url, options }) => {
                let StoreOptions { endpoint, region, ca, anonymous, bandwidth: _ } = options;
                Fields { store: Some(url.into()), endpoint, region, ca, anonymous, ..Fields::default() }
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Server { urls, .. } => f.write_str(urls),
            Place::Store(store) => store.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> String {
        parse(text, Path::new("x.toml")).expect_err(text).to_string()
    }

    #[test]
    fn what_is_written_reads_back() {
        let lab = Place::server("http://a:7700,http://b:7700");
        let (token_file, ca) = (Some("/me/token".into()), Some("/me/ca.pem".into()));
        let far = Place::Server { urls: "https://c:7700".to_owned(), token_file, ca };
        let options = StoreOptions {
            endpoint: Some("https://minio:9000".to_owned()),
            region: Some("x-1".to_owned()),
            ca: Some("/me/minio.pem".into()),
            anonymous: true,
            bandwidth: None,
        };
        let bucket = Place::Store(StorePlace::named("s3://b/f", options));
        let directory = Place::Store(PathBuf::from("/data/with space").into());
        let contexts: BTreeMap<_, _> = [("lab", lab), ("far", far), ("s3", bucket), ("top.1", directory)]
            .map(|(name, place)| (name.parse().unwrap(), place))
            .into();
        let contexts = Contexts { current: Some("lab".parse().unwrap()), contexts };
        let text = toml::to_string(&contexts).unwrap();
        assert_eq!(parse(&text, Path::new("x")).unwrap(), contexts);
        assert_eq!(parse("", Path::new("x")).unwrap(), Contexts::default());
        assert_eq!(toml::to_string(&Contexts::default()).unwrap(), "");
    }

    #[test]
    fn what_cannot_be_understood_is_named_with_its_line() {
        let cases: &[(&str, &[&str])] = &[
            ("curent = \"lab\"", &["x.toml, line 1", "curent", "current"]),
            ("[contexts.lab]\nserver = \"http://a\"\ntoken = 1", &["line 3", "token"]),
            (
                "[contexts.lab]\nserver = \"http://a\"\ntoken-file = \"x\"",
                &["token-file \"x\"", "whole path"],
            ),
            ("[contexts.lab]\nserver = \"http://a\"\nregion = \"x\"", &["`region`", "`store` that is a URL"]),
            ("[contexts.lab]\nstore = \"s3://b\"\ntoken-file = \"/x\"", &["`token-file` is of a `server`"]),
            ("[contexts.lab]\nstore = \"/x\"\nendpoint = \"http://a\"", &["directory needs nothing else"]),
            ("\n[contexts.lab]\nserver = 1", &["line 3", "integer"]),
            ("[contexts.lab]\n", &["line 1", "either `server` or `store`"]),
            ("[contexts.lab]\nserver = \"http://a\"\nstore = \"/x\"", &["either `server` or `store`"]),
            ("[contexts.lab]\nstore = \"x\"", &["\"x\"", "whole path"]),
            ("[contexts.\"a b\"]\nstore = \"/x\"", &["\"a b\" cannot name a context"]),
            ("current = ", &["line 1"]),
            ("\n\n[contexts", &["line 3"]),
        ];
        for (text, wants) in cases {
            let said = said(text);
            assert_eq!(said.lines().count(), 1, "{said}");
            for want in *wants {
                assert!(said.contains(want), "{text:?} gave {said:?}, without {want:?}");
            }
        }
    }
}
