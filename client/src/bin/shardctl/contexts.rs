//! The file of contexts: names for the places a user works at, and which of them is the present one. Knows no command.
//!
//! It is written whole or not at all, for its user's eyes only, and never over something that cannot be read.

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

use crate::failure::{Failure, no_such};

/// Stands above what is written. Comments of the user's own do not survive a change.
const HEADING: &str = "# Contexts of shardctl, written by `shardctl context`.\n\n";

/// All contexts of a user.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    /// The one that holds unless told otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<ContextName>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) contexts: BTreeMap<ContextName, Place>,
}

/// The name of a context: `[A-Za-z0-9._-]{1,64}`, not beginning with `-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ContextName(String);

/// Where a context works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub(crate) enum Place {
    /// Addresses of nodes, with commas between them.
    Server(String),
    /// A directory, from the root.
    Store(PathBuf),
}

/// A place as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<PathBuf>,
}

impl Contexts {
    /// The contexts in the user's file; none if there is no file.
    pub(crate) fn load() -> Result<Contexts, Failure> {
        path().map_or_else(|| Ok(Contexts::default()), |path| read(&path))
    }

    /// Reads the file, lets `change` change what it says, and writes it again; one process at a time.
    pub(crate) fn change<T>(change: impl FnOnce(&mut Contexts) -> Result<T, Failure>) -> Result<T, Failure> {
        let path = path().ok_or_else(|| {
            Failure::failed("there is no home directory to keep contexts in: name a file in SHARDCTL_CONFIG")
        })?;
        let unwritable = |error: io::Error| Failure::failed(format!("{}: {error}", path.display()));
        // A link, as keepers of dotfiles make them, stays one.
        let file = fs::canonicalize(&path).or_else(|_| std::path::absolute(&path)).map_err(unwritable)?;
        let dir = file.parent().ok_or_else(|| unwritable(ErrorKind::IsADirectory.into()))?;
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(unwritable)?;
        let lock = File::open(dir).map_err(unwritable)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| unwritable(error.into()))?;
        let mut contexts = read(&file)?;
        let changed = change(&mut contexts)?;
        let text = format!("{HEADING}{}", toml::to_string(&contexts)?);
        replace(dir, &file, &text).and_then(|()| lock.sync_all()).map_err(unwritable)?;
        Ok(changed)
    }

    /// The place of this name; where there is none, the error says what there is.
    pub(crate) fn find(&self, name: &str) -> Result<(&ContextName, &Place), Failure> {
        let found = self.contexts.iter().find(|(known, _)| known.0 == name);
        found.ok_or_else(|| {
            let known: Vec<String> = self.contexts.keys().map(ToString::to_string).collect();
            Failure::failed(no_such(&format!("context {name}"), name, &known))
        })
    }
}

/// Where the contexts are kept; `None` for a user without a home.
pub(crate) fn path() -> Option<PathBuf> {
    let named = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(file) = named("SHARDCTL_CONFIG") {
        return Some(file);
    }
    let config = named("XDG_CONFIG_HOME").filter(|dir| dir.is_absolute());
    let config = config.or_else(|| Some(named("HOME")?.join(".config")))?;
    Some(config.join("shardd/shardctl.toml"))
}

fn read(path: &Path) -> Result<Contexts, Failure> {
    match fs::read_to_string(path) {
        Ok(text) => parse(&text, path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Contexts::default()),
        Err(error) => Err(Failure::failed(format!("{}: {error}", path.display()))),
    }
}

fn parse(text: &str, path: &Path) -> Result<Contexts, Failure> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        let said = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        Failure::failed(format!("contexts in {}, line {line}: {said}", path.display()))
    })
}

/// Makes `text` the content of the file, which only its user can read.
fn replace(dir: &Path, file: &Path, text: &str) -> io::Result<()> {
    let mut unfinished = tempfile::Builder::new().prefix("~shardctl").tempfile_in(dir)?;
    unfinished.write_all(text.as_bytes())?;
    unfinished.as_file().sync_all()?;
    unfinished.persist(file)?;
    Ok(())
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

impl TryFrom<Fields> for Place {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Place, String> {
        match (fields.server, fields.store) {
            (Some(server), None) => Ok(Place::Server(server)),
            (None, Some(store)) if store.is_absolute() => Ok(Place::Store(store)),
            (None, Some(store)) => {
                Err(format!("store {:?} depends on where you are: write its whole path", store.display()))
            }
            _ => Err("a context has either `server` or `store`".to_owned()),
        }
    }
}

impl From<Place> for Fields {
    fn from(place: Place) -> Fields {
        match place {
            Place::Server(server) => Fields { server: Some(server), store: None },
            Place::Store(store) => Fields { server: None, store: Some(store) },
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Server(server) => f.write_str(server),
            Place::Store(store) => write!(f, "{}", store.display()),
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
        let lab = Place::Server("http://a:7700,http://b:7700".to_owned());
        let contexts: BTreeMap<_, _> = [("lab", lab), ("top.1", Place::Store("/data/with space".into()))]
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
