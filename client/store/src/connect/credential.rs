//! The credentials that hold, and the setting behind each: a flag, a variable of the environment, or a context.

use std::fmt;
use std::path::{Path, PathBuf};

use super::{Place, Source, variable};

/// A token or a file of certificates, and the setting that names it. Never the token itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// The file with it. `None` for a token in the environment.
    pub file: Option<PathBuf>,
    /// The flag, the variable, or the context.
    pub from: String,
}

impl Credential {
    /// The token that is sent to a place: that of the flag, else of the environment, else of the context.
    pub(super) fn token(flag: Option<&Path>, place: &Place, source: &Source) -> Option<Credential> {
        let Place::Server { token_file, .. } = place else { return None };
        let own = flag.map(|file| Credential::of(file, "--token-file".to_owned()));
        let bare = || {
            let from = "SHARDD_TOKEN";
            variable(from).map(|_| Credential { file: None, from: from.to_owned() })
        };
        let env = || Credential::of_variable("SHARDD_TOKEN_FILE");
        own.or_else(bare).or_else(env).or_else(|| Credential::of_context(token_file.as_deref(), source))
    }

    /// The certificates that are trusted at a place, found in the same order.
    pub(super) fn ca(flag: Option<&Path>, place: &Place, source: &Source) -> Option<Credential> {
        let Place::Server { ca, .. } = place else { return None };
        let own = flag.map(|file| Credential::of(file, "--ca".to_owned()));
        let env = || Credential::of_variable("SHARDD_CA");
        own.or_else(env).or_else(|| Credential::of_context(ca.as_deref(), source))
    }

    fn of(file: &Path, from: String) -> Credential {
        Credential { file: Some(file.to_owned()), from }
    }

    fn of_variable(name: &str) -> Option<Credential> {
        variable(name).map(|file| Credential::of(Path::new(&file), name.to_owned()))
    }

    fn of_context(file: Option<&Path>, source: &Source) -> Option<Credential> {
        let Source::Context { name, .. } = source else { return None };
        file.map(|file| Credential::of(file, format!("context {name}")))
    }
}

impl fmt::Display for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{} ({})", file.display(), self.from),
            None => f.write_str(&self.from),
        }
    }
}
