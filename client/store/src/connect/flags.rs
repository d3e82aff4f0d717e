//! The flags that choose nodes or a store, shared by the command lines.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{ConnectError, Contexts, Credential, DEFAULT_SERVER, Place, Servers, Source, Target, variable};
use crate::catalog::{Catalog, LocalCatalog, StorePlace};
use crate::http::{BadCredentials, Credentials};
use crate::stores::{StoreArgs, StoreOptions};

/// Flags that choose nodes or a store, and the credentials for them.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection")]
pub struct Connect {
    /// Address of a node's HTTP API, or several with commas, nearest first [env: SHARDD_SERVER] [default: that of the current
    /// context, or http://127.0.0.1:7700]
    #[arg(long, global = true, value_name = "URL", value_delimiter = ',')]
    server: Vec<String>,

    /// Use this directory or bucket (s3://BUCKET/FOLDER, gs://, az://) directly, without a node
    #[arg(long, global = true, value_name = "DIR|URL")]
    store: Option<PathBuf>,

    /// Use the nodes or the store of this context; see `shardctl context` [env: SHARDD_CONTEXT] [default: the current context]
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,

    /// File of the token to send to nodes [env: SHARDD_TOKEN_FILE, or the token itself in SHARDD_TOKEN]
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    token_file: Option<PathBuf>,

    /// File of CA certificates (PEM) that must sign those of nodes [env: SHARDD_CA] [default: those that the system trusts]
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    ca: Option<PathBuf>,

    #[command(flatten)]
    options: StoreArgs,
}

impl Connect {
    /// Whether a flag names nodes, a store or a context.
    pub fn is_chosen(&self) -> bool {
        self.urls().is_some() || self.store.is_some() || self.context.is_some()
    }

    /// Whether any of these flags is given.
    pub fn is_given(&self) -> bool {
        self.is_chosen() || self.is_about_nodes() || self.is_about_buckets()
    }

    /// The addresses of --server, with commas between them.
    fn urls(&self) -> Option<String> {
        (!self.server.is_empty()).then(|| self.server.join(","))
    }

    fn is_about_nodes(&self) -> bool {
        self.token_file.is_some() || self.ca.is_some()
    }

    fn is_about_buckets(&self) -> bool {
        self.options.options() != StoreOptions::default()
    }

    /// The nodes or the store.
    ///
    /// # Errors
    /// When flags exclude each other, a context is unknown, or a credential cannot be read.
    pub fn target(&self) -> Result<Target, ConnectError> {
        let (place, source) = self.place()?;
        self.check_flags(&place)?;
        self.resolved(place, &source)
    }

    /// The nodes or the store, of a program in which other flags name buckets, too: the flags of stores may be for those.
    ///
    /// # Errors
    /// Those of [`target`](Self::target).
    pub fn target_beside_stores(&self) -> Result<Target, ConnectError> {
        let (place, source) = self.place()?;
        Connect { options: StoreArgs::default(), ..self.clone() }.check_flags(&place)?;
        self.resolved(place, &source)
    }

    fn resolved(&self, place: Place, source: &Source) -> Result<Target, ConnectError> {
        let (token, _) = self.access(&place, source);
        match self.with_options(place)? {
            Place::Store(place) => Ok(Target::Store(place)),
            Place::Server { urls, token_file, ca } => {
                let credentials = self.credentials()?.or_files(token_file, ca)?;
                Ok(Target::Servers(Servers { urls: checked(&urls)?, credentials, token }))
            }
        }
    }

    /// The place, with the options of a bucket that hold: of the flags, else of the environment, else of the context.
    ///
    /// # Errors
    /// When a variable of the environment is invalid.
    pub fn with_options(&self, place: Place) -> Result<Place, ConnectError> {
        Ok(match place {
            Place::Store(StorePlace::Url { url, options }) => {
                let given = self.given_options()?;
                Place::Store(StorePlace::Url { url, options: given.or(&options) })
            }
            other => other,
        })
    }

    /// The options of buckets: of the flags, else of the environment.
    fn given_options(&self) -> Result<StoreOptions, ConnectError> {
        Ok(self.options.options().or(&StoreOptions::of_env()?))
    }

    /// The token that is sent to a place, and the certificates that are trusted there, with the setting
    /// behind each.
    pub fn access(&self, place: &Place, source: &Source) -> (Option<Credential>, Option<Credential>) {
        let token = Credential::token(self.token_file.as_deref(), place, source);
        (token, Credential::ca(self.ca.as_deref(), place, source))
    }

    /// The directory or bucket of a flag other than --store, with the options of stores: of the flags, else of the
    /// environment, else of the context, if that is of a bucket.
    ///
    /// # Errors
    /// When a variable of the environment is invalid.
    pub fn store_at(&self, store: &Path) -> Result<StorePlace, ConnectError> {
        let given = self.given_options()?;
        // A context that is wrong is reported where its place is asked for.
        let of_context = match self.place() {
            Ok((Place::Store(StorePlace::Url { options, .. }), _)) => options,
            _ => StoreOptions::default(),
        };
        // Without credentials a bucket can be read, but not written.
        Ok(StorePlace::named(store, given.or(&StoreOptions { anonymous: false, ..of_context })))
    }

    /// The directory or bucket of recorded trainings: the `given` one, or else the target, which must be a store.
    ///
    /// # Errors
    /// When the target is nodes, or those of [`target`](Self::target).
    pub fn place_of_records(&self, given: Option<&Path>) -> Result<StorePlace, ConnectError> {
        if let Some(given) = given {
            return self.store_at(given);
        }
        match self.target()? {
            Target::Store(place) => Ok(place),
            Target::Servers(_) => Err(ConnectError::Usage(
                "records of trainings are in a directory or bucket: name that of `shardtrain --record` or --checkpoints \
                 with --record"
                    .to_owned(),
            )),
        }
    }

    /// The nodes, for requests that a store cannot answer.
    ///
    /// # Errors
    /// When the target is a store, or those of [`target`](Self::target).
    pub fn servers(&self) -> Result<Servers, ConnectError> {
        match self.target()? {
            Target::Servers(servers) => Ok(servers),
            Target::Store(_) => Err(ConnectError::Usage(
                "a directory or bucket has no nodes; name a node with --server".to_owned(),
            )),
        }
    }

    /// Refuses flags that are for the other kind of target.
    fn check_flags(&self, place: &Place) -> Result<(), ConnectError> {
        match place {
            Place::Store(_) if self.is_about_nodes() => Err(ConnectError::Usage(format!(
                "--token-file and --ca are for nodes, and {place} is a store: leave them out, or name nodes with --server"
            ))),
            Place::Server { .. } | Place::Store(StorePlace::Directory(_)) if self.is_about_buckets() => {
                Err(ConnectError::Usage(format!(
                    "--store-endpoint, --store-region, --store-ca and --store-anonymous are for the URL of a bucket, and \
                     {place} is not one: leave them out, or name a bucket with --store"
                )))
            }
            _ => Ok(()),
        }
    }

    /// The credentials of flags and environment.
    ///
    /// # Errors
    /// When the file of a token cannot be read.
    pub fn credentials(&self) -> Result<Credentials, BadCredentials> {
        Credentials::default().or_files(self.token_file.clone(), self.ca.clone())?.or_env()
    }

    /// The place, and which flag, variable or context names it.
    ///
    /// # Errors
    /// When flags exclude each other, or a context is unknown.
    pub fn place(&self) -> Result<(Place, Source), ConnectError> {
        match (self.urls(), &self.store, &self.context) {
            (None, None, None) => {}
            (Some(urls), None, None) => return Ok((Place::server(&urls), Source::Flag("--server"))),
            (None, Some(store), None) => {
                let place = StorePlace::named(store, StoreOptions::default());
                return Ok((Place::Store(place), Source::Flag("--store")));
            }
            (None, None, Some(name)) => return of_context(name, "--context"),
            (Some(_), Some(_), None) => {
                return Err(ConnectError::Usage(
                    "--server and --store exclude each other: give one of them".to_owned(),
                ));
            }
            (_, _, Some(_)) => {
                return Err(ConnectError::Usage(
                    "--context excludes --server and --store: leave them out, or --context".to_owned(),
                ));
            }
        }
        if let Some(urls) = variable("SHARDD_SERVER") {
            return Ok((Place::server(&urls), Source::Server));
        }
        if let Some(name) = variable("SHARDD_CONTEXT") {
            return of_context(&name, "SHARDD_CONTEXT");
        }
        let contexts = Contexts::load()?;
        match contexts.current.as_ref() {
            Some(current) => {
                let Ok((name, place)) = contexts.find(current.as_str()) else {
                    return Err(ConnectError::Contexts(format!(
                        "the current context is {current}, which does not exist: choose one of `shardctl context ls` with \
                         `shardctl context use NAME`"
                    )));
                };
                let source = Source::Context { name: name.clone(), chosen_by: "the current one" };
                Ok((place.clone(), source))
            }
            None => Ok((Place::server(DEFAULT_SERVER), Source::Default)),
        }
    }

    /// The place of these flags alone, to be stored as a context.
    ///
    /// # Errors
    /// When the flags name no place, or a relative path cannot be resolved.
    pub fn given_place(&self) -> Result<Place, ConnectError> {
        let absolute = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
        let place = match (self.urls(), &self.store, &self.context) {
            (Some(urls), None, None) => Place::Server {
                urls: checked(&urls)?.join(","),
                token_file: absolute(&self.token_file)?,
                ca: absolute(&self.ca)?,
            },
            (None, Some(store), None) => {
                let options = self.options.options();
                let options = StoreOptions { ca: absolute(&options.ca)?, ..options };
                Place::Store(match StorePlace::named(store, options) {
                    StorePlace::Directory(directory) => {
                        StorePlace::Directory(std::path::absolute(directory)?)
                    }
                    url => url,
                })
            }
            _ => {
                return Err(ConnectError::Usage(
                    "name the place of the context with --server URL, --store DIR or --store URL".to_owned(),
                ));
            }
        };
        self.check_flags(&place)?;
        Ok(place)
    }

    /// The catalog of the target, for reading names and storing plans.
    ///
    /// # Errors
    /// When the target is a store that holds nothing of shardd, or those of [`target`](Self::target).
    pub fn catalog(&self) -> Result<Box<dyn Catalog>, ConnectError> {
        catalog_of(&self.target()?)
    }

    /// The catalog of the target, for storing datasets; creates a missing directory.
    ///
    /// # Errors
    /// When the directory or bucket cannot be opened, or those of [`target`](Self::target).
    pub fn catalog_to_fill(&self) -> Result<Box<dyn Catalog>, ConnectError> {
        match self.target()? {
            Target::Servers(servers) => Ok(Box::new(servers.catalog())),
            Target::Store(place) => Ok(Box::new(LocalCatalog::open_to_fill(&place)?)),
        }
    }
}

/// The catalog of a target, for reading names and storing plans.
///
/// # Errors
/// When the target is a store that holds nothing of shardd.
pub fn catalog_of(target: &Target) -> Result<Box<dyn Catalog>, ConnectError> {
    let place = match target {
        Target::Servers(servers) => return Ok(Box::new(servers.catalog())),
        Target::Store(place) => place,
    };
    if let Some(catalog) = LocalCatalog::find(place)? {
        return Ok(Box::new(catalog));
    }
    let missing = match place {
        StorePlace::Directory(directory) if !directory.is_dir() => "no directory",
        StorePlace::Directory(_) => "nothing of shardd in",
        StorePlace::Url { .. } => "no dataset that was put without a node in",
    };
    let fill = match place {
        StorePlace::Url { url, .. } if url.starts_with("http") => String::new(),
        _ => format!(", or fill it with `shardctl --store {place} ingest`"),
    };
    Err(ConnectError::NotFound(format!("there is {missing} {place}: name another with --store{fill}")))
}

fn of_context(name: &str, chosen_by: &'static str) -> Result<(Place, Source), ConnectError> {
    let contexts = Contexts::load()?;
    let (name, place) = contexts.find(name)?;
    Ok((place.clone(), Source::Context { name: name.clone(), chosen_by }))
}

fn checked(urls: &str) -> Result<Vec<String>, ConnectError> {
    let check = |url: &str| {
        let url = url.trim().trim_end_matches('/');
        match url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")) {
            Some(address) if !address.is_empty() => Ok(url.to_owned()),
            _ => Err(ConnectError::Usage(format!(
                "`{url}` is not the address of a node: use one such as {DEFAULT_SERVER}"
            ))),
        }
    };
    urls.split(',').map(check).collect()
}
