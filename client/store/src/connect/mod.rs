//! Which nodes or store a command works on: flags, environment, contexts, and how to look names up there.
//!
//! `shardctl` and `shardtrain` share it. A flag decides, else SHARDD_SERVER, else a context, else it is the node of
//! this machine. Each credential comes from a flag, else from the environment, else from the context.

mod contexts;
mod credential;
mod flags;
mod lookup;

use std::env;
use std::fmt;
use std::time::Duration;

pub use contexts::{ContextName, Contexts, Place, path};
pub use credential::Credential;
pub use flags::{Connect, catalog_of};
pub use lookup::{find_plan, find_version, only_dataset};

use crate::catalog::{CatalogError, ClusterCatalog, StorePlace};
use crate::http::{BadCredentials, Credentials, HttpClient};
use crate::stores::BadVariable;

/// How long a node has to answer a request that needs no work.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a node has to report its health: one that hangs does not delay requests to the others.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(3);

/// The address of the node of this machine, by default.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7700";

/// Nodes or a store.
pub enum Target {
    /// Nodes of one cluster.
    Servers(Servers),
    /// A directory or bucket, without nodes.
    Store(StorePlace),
}

/// Nodes, with the credentials for requests to them.
#[derive(Clone)]
pub struct Servers {
    /// Their addresses, at least one, nearest first.
    pub urls: Vec<String>,
    /// The token and the certificate authority.
    pub credentials: Credentials,
    /// The setting behind the token, for errors about it.
    pub token: Option<Credential>,
}

/// The origin of a choice.
pub enum Source {
    /// A flag of the command line.
    Flag(&'static str),
    /// `SHARDD_SERVER`.
    Server,
    /// A context.
    Context {
        /// Its name.
        name: ContextName,
        /// The flag or variable that names it, or that it is the current one.
        chosen_by: &'static str,
    },
    /// The default.
    Default,
}

/// Why a command cannot reach its nodes or store, or find a name there.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The command line contradicts itself or is ambiguous.
    #[error("{0}")]
    Usage(String),
    /// The file of contexts.
    #[error("{0}")]
    Contexts(String),
    /// A name that does not exist; the text lists those that do.
    #[error("{0}")]
    NotFound(String),
    /// Token or certificates.
    #[error(transparent)]
    Credentials(#[from] BadCredentials),
    /// A variable of the environment.
    #[error(transparent)]
    Variable(#[from] BadVariable),
    /// The catalog.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A path that has no absolute form.
    #[error("cannot resolve a path")]
    Path(#[from] std::io::Error),
}

impl ConnectError {
    /// Whether the command line has to change; the exit code is then 2.
    pub fn is_usage(&self) -> bool {
        matches!(self, ConnectError::Usage(_))
    }
}

impl Servers {
    /// A client for requests that need no work of a node.
    pub fn http(&self) -> HttpClient {
        self.http_within(REQUEST_TIMEOUT)
    }

    /// A client for requests that may take this long.
    pub fn http_within(&self, timeout: Duration) -> HttpClient {
        HttpClient::with(timeout, &self.credentials).with_token_of(self.token_source())
    }

    /// The catalog behind these nodes.
    pub fn catalog(&self) -> ClusterCatalog {
        ClusterCatalog::with_token_of(&self.urls, &self.credentials, self.token_source())
    }

    fn token_source(&self) -> Option<String> {
        self.token.as_ref().map(ToString::to_string)
    }

    /// The first node that answers; the first of all if none does, so that its error is the one reported.
    pub fn first_that_answers(&self) -> &str {
        let [only] = self.urls.as_slice() else {
            let client = self.http_within(HEALTH_TIMEOUT);
            let answers = |server: &&String| client.get(&format!("{server}/v1/health")).is_ok();
            return self.urls.iter().find(answers).unwrap_or(&self.urls[0]);
        };
        only
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag(flag) => f.write_str(flag),
            Source::Server => f.write_str("SHARDD_SERVER"),
            Source::Context { name, chosen_by } => write!(f, "context {name} ({chosen_by})"),
            Source::Default => f.write_str("default"),
        }
    }
}

/// The value of a variable of the environment, unless it is empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
