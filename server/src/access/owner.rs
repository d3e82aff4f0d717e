//! The way in of who owns the machine: an administrator's token in a file of the data directory. The node
//! never overwrites such a file: an empty metastore reads the token from there, and one that is restored from
//! a backup still knows it.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use shardd_api::duration::now;
use shardd_certificates::{CertificateError, write_private};
use shardd_store::metastore::MetaError;
use tracing::info;

use super::{Token, Tokens};

/// The name of the token, and of the file that has it.
const NAME: &str = "admin-token";

/// Why the owner has no way in.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum OwnerError {
    /// One of the files.
    #[error("{path} cannot be read or made; it is to hold the token of this machine's owner")]
    File { path: PathBuf, source: io::Error },
    /// A file that was empty.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The token cannot be kept.
    #[error("the token of this machine's owner cannot be kept; start the metastore first")]
    Meta(#[from] MetaError),
}

/// The contents of a file.
#[derive(Debug, PartialEq, Eq)]
enum Content {
    /// Nothing: someone asks for a token.
    Empty,
    Token(Token),
    Other,
}

/// The next action.
#[derive(Debug, PartialEq, Eq)]
enum Step<'a> {
    Nothing,
    /// The metastore is to learn the token of a file.
    Adopt(&'a Path, &'a Token),
    /// A new token goes into an empty file...
    Fill(&'a Path),
    /// ...or into a file of its own.
    Make,
}

/// Sees to it that who may read the data directory has an administrator's token, where tokens are asked and the metastore can
/// be read.
///
/// # Errors
/// [`OwnerError`]; no file that was there has changed then.
pub async fn keep(data: &Path, tokens: &Tokens) -> Result<(), OwnerError> {
    let files = files(data)?;
    let is_good =
        |token: &Token| tokens.check(&token.reveal()).is_ok_and(|grant| grant.record.is_administrator(now()));
    match decide(&files, is_good, tokens.any(), tokens.has_administrator(None)) {
        Step::Nothing => Ok(()),
        Step::Adopt(path, token) => {
            tokens.adopt(token, NAME.to_owned()).await?;
            info!(path = %path.display(), "there were no tokens; the one of this file is an administrator's again");
            Ok(())
        }
        Step::Fill(path) => {
            let token = Token::random();
            write_private(path, line(&token).as_bytes())?;
            tokens.adopt(&token, NAME.to_owned()).await?;
            info!(path = %path.display(), "the file was empty, and holds an administrator's token now");
            Ok(())
        }
        Step::Make => {
            let token = Token::random();
            let path = create(data, &line(&token))?;
            if let Err(error) = tokens.adopt(&token, NAME.to_owned()).await {
                let _ = std::fs::remove_file(&path);
                return Err(error.into());
            }
            info!(path = %path.display(), "an administrator's token is there; make others with it");
            Ok(())
        }
    }
}

fn decide<'a>(
    files: &'a [(PathBuf, Content)],
    is_good: impl Fn(&Token) -> bool,
    any: bool,
    has_administrator: bool,
) -> Step<'a> {
    let tokens = || {
        files.iter().filter_map(|(path, content)| match content {
            Content::Token(token) => Some((path.as_path(), token)),
            Content::Empty | Content::Other => None,
        })
    };
    if tokens().any(|(_, token)| is_good(token)) {
        return Step::Nothing;
    }
    // Where there are other tokens, one that is not known was revoked, and stays so.
    if let Some((path, token)) = tokens().next().filter(|_| !any) {
        return Step::Adopt(path, token);
    }
    match files.iter().find(|(_, content)| *content == Content::Empty) {
        Some((path, _)) => Step::Fill(path),
        None if has_administrator => Step::Nothing,
        None => Step::Make,
    }
}

/// The files there are, up to the first name that none has.
fn files(data: &Path) -> Result<Vec<(PathBuf, Content)>, OwnerError> {
    let mut files = Vec::new();
    for path in names(data) {
        match std::fs::read(&path) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                let content = match text.trim() {
                    "" => Content::Empty,
                    text => text.parse().map_or(Content::Other, Content::Token),
                };
                files.push((path, content));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(source) => return Err(OwnerError::File { path, source }),
        }
    }
    Ok(files)
}

/// `admin-token`, `admin-token-2`, and so on.
fn names(data: &Path) -> impl Iterator<Item = PathBuf> {
    let others = (2u32..).map(|number| format!("{NAME}-{number}"));
    std::iter::once(NAME.to_owned()).chain(others).map(|name| data.join(name))
}

/// Writes a file that only its owner may read, under the first name that is free.
fn create(data: &Path, text: &str) -> Result<PathBuf, OwnerError> {
    for path in names(data) {
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(mut file) => {
                let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
                return match written {
                    Ok(()) => Ok(path),
                    Err(source) => {
                        let _ = std::fs::remove_file(&path);
                        Err(OwnerError::File { path, source })
                    }
                };
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(source) => return Err(OwnerError::File { path, source }),
        }
    }
    unreachable!("there is a number for every file")
}

fn line(token: &Token) -> String {
    format!("{}\n", token.reveal())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shardd_store::metastore::{MemoryMetastore, Metastore};
    use tempfile::TempDir;

    use super::*;
    use crate::access::{Role, Scope};

    struct Machine {
        data: TempDir,
        metastore: Arc<dyn Metastore>,
    }

    impl Machine {
        fn new() -> Machine {
            Machine { data: TempDir::new().expect("a directory"), metastore: empty() }
        }

        /// A start of the node: afterwards the tokens are as they are.
        async fn starts(&self) -> Arc<Tokens> {
            let tokens = Tokens::open(self.metastore.clone(), None).await;
            keep(self.data.path(), &tokens).await.expect("it can be kept");
            tokens
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.data.path().join(name), text).expect("writes");
        }

        fn file(&self, name: &str) -> Option<String> {
            std::fs::read_to_string(self.data.path().join(name)).ok()
        }

        fn shown(&self, name: &str) -> String {
            self.file(name).expect("it is there").trim().to_owned()
        }
    }

    fn empty() -> Arc<dyn Metastore> {
        Arc::new(MemoryMetastore::new())
    }

    #[tokio::test]
    async fn the_owner_stays_in_when_the_metastore_is_lost_and_when_it_comes_back() {
        let mut machine = Machine::new();
        let backup = machine.metastore.clone();
        let tokens = machine.starts().await;
        let token = machine.shown(NAME);
        assert!(tokens.check(&token).is_ok_and(|grant| grant.record.is_administrator(0)));
        machine.metastore = empty();
        assert!(machine.starts().await.check(&token).is_ok(), "the new one learned it");
        machine.metastore = backup;
        assert!(machine.starts().await.check(&token).is_ok(), "the old one knows it");
        assert_eq!((machine.shown(NAME), machine.file("admin-token-2")), (token, None));
    }

    #[tokio::test]
    async fn what_was_revoked_stays_so_and_the_last_one_is_followed_by_another() {
        let machine = Machine::new();
        let tokens = machine.starts().await;
        let token = machine.shown(NAME);
        let made = tokens.create("boss".to_owned(), Role::Admin, Scope::default(), None).await;
        let (boss, _) = made.expect("is kept");
        let id = token.parse::<Token>().expect("a token").id;
        assert_eq!(tokens.revoke(id).await, Ok(true));
        assert!(machine.starts().await.check(&token).is_err() && machine.file("admin-token-2").is_none());
        let reader = tokens.create("ci".to_owned(), Role::Read, Scope::default(), None).await;
        reader.expect("is kept");
        assert_eq!(tokens.revoke(boss.id).await, Ok(true));
        let tokens = machine.starts().await;
        assert!(tokens.check(&machine.shown("admin-token-2")).is_ok(), "someone has to be in");
        assert_eq!(machine.shown(NAME), token, "and nothing was overwritten");
    }

    #[tokio::test]
    async fn who_can_write_into_the_data_directory_asks_for_a_token_by_an_empty_file() {
        let machine = Machine::new();
        let tokens = Tokens::open(machine.metastore.clone(), None).await;
        let made = tokens.create("boss".to_owned(), Role::Admin, Scope::default(), None).await;
        made.expect("is kept");
        machine.starts().await;
        assert_eq!(machine.file(NAME), None, "someone is in");
        machine.write(NAME, "");
        assert!(machine.starts().await.check(&machine.shown(NAME)).is_ok());
    }

    #[tokio::test]
    async fn a_file_of_something_else_stays_and_the_token_goes_beside_it() {
        let machine = Machine::new();
        machine.write(NAME, "to do: ask the boss\n");
        let tokens = machine.starts().await;
        assert!(tokens.check(&machine.shown("admin-token-2")).is_ok());
        assert_eq!(machine.file(NAME).as_deref(), Some("to do: ask the boss\n"));
    }
}
