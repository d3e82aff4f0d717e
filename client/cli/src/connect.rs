//! Where datasets and plans are: behind a node's HTTP API, or in a directory or bucket.
//!
//! A flag says so, else SHARDD_SERVER, else a context, else it is the node of this machine. Each credential
//! comes from a flag, else from the environment, else from the context.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use shardd_api::drain::NodeState;
use shardd_api::node::NodeId;
use shardd_api::suggest::nearest;
use shardd_store::catalog::{
    Catalog, CatalogError, ClusterCatalog, DatasetInfo, LocalCatalog, PlanInfo, StorePlace,
};
use shardd_store::http::{BadCredentials, Credentials, HttpClient, HttpError};
use shardd_store::stores::{StoreArgs, StoreOptions};
use shardfmt::{At, DatasetRef, PlanId};

use crate::contexts::{ContextName, Contexts, Place};
use crate::failure::{Failure, no_such};
use crate::human::plural;

/// How long a node may take to answer at once.
pub(crate) const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// How long a node may take to say how it is: one that hangs does not keep the others from being asked.
pub(crate) const SAYS_WITHIN: Duration = Duration::from_secs(3);
/// Where a node listens by default.
pub(crate) const DEFAULT_SERVER: &str = "http://127.0.0.1:7700";

/// The choice between nodes and a store, and how to enter it.
#[derive(Args)]
pub(crate) struct Connect {
    /// Address of a node's HTTP API, or several with commas [env: SHARDD_SERVER] [default: that of the current context, or
    /// http://127.0.0.1:7700]
    #[arg(long, global = true, value_name = "URL")]
    server: Option<String>,

    /// Use this directory or bucket (s3://BUCKET/FOLDER, gs://, az://) instead, without any node
    #[arg(long, global = true, value_name = "DIR|URL")]
    store: Option<PathBuf>,

    /// Use the context of this name; see `shardctl context` [env: SHARDCTL_CONTEXT] [default: the current
    /// one]
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,

    /// File with the token to show to nodes [env: SHARDD_TOKEN_FILE, or the token itself in SHARDD_TOKEN]
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    token_file: Option<PathBuf>,

    /// File of certificates (PEM) that must have signed those of nodes [env: SHARDD_CA] [default: those the
    /// system trusts]
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    ca: Option<PathBuf>,

    #[command(flatten)]
    options: StoreArgs,
}

/// The chosen target.
pub(crate) enum Target {
    Servers(Servers),
    Store(StorePlace),
}

/// Nodes, and how to ask them.
pub(crate) struct Servers {
    /// Their addresses, at least one; the first is asked unless it is down.
    pub(crate) urls: Vec<String>,
    pub(crate) credentials: Credentials,
}

/// The setting that chose the target.
pub(crate) enum Source {
    Flag(&'static str),
    Server,
    Context { name: ContextName, chosen_by: &'static str },
    Default,
}

impl Connect {
    /// Whether the command line says where to work.
    pub(crate) fn is_chosen(&self) -> bool {
        self.server.is_some() || self.store.is_some() || self.context.is_some()
    }

    /// Where to work, as nodes or a store.
    pub(crate) fn target(&self) -> Result<Target, Failure> {
        let (place, _) = self.place()?;
        self.check_flags(&place)?;
        match place {
            Place::Store(StorePlace::Url { url, options }) => {
                let given = self.options.options().or(&StoreOptions::of_env()?);
                Ok(Target::Store(StorePlace::Url { url, options: given.or(&options) }))
            }
            Place::Store(directory) => Ok(Target::Store(directory)),
            Place::Server { urls, token_file, ca } => {
                let credentials = self.credentials()?.or_files(token_file, ca)?;
                Ok(Target::Servers(Servers { urls: checked(&urls)?, credentials }))
            }
        }
    }

    /// Where records of trainings are: in this place, or in the store that is worked on.
    pub(crate) fn place_of_records(&self, given: Option<&Path>) -> Result<StorePlace, Failure> {
        if let Some(given) = given {
            return Ok(StorePlace::named(given, self.options.options().or(&StoreOptions::of_env()?)));
        }
        match self.target()? {
            Target::Store(place) => Ok(place),
            Target::Servers(_) => Err(Failure::usage(
                "records of trainings are in a directory or bucket: name that of `shardtrain --record` or --checkpoints with --record",
            )),
        }
    }

    /// The nodes to ask what only nodes can be asked.
    pub(crate) fn servers(&self) -> Result<Servers, Failure> {
        match self.target()? {
            Target::Servers(servers) => Ok(servers),
            Target::Store(_) => {
                Err(Failure::usage("a directory or bucket has no nodes; name a node with --server"))
            }
        }
    }

    /// Refuses flags about another kind of place.
    fn check_flags(&self, place: &Place) -> Result<(), Failure> {
        let about_nodes = self.token_file.is_some() || self.ca.is_some();
        let about_buckets = self.options.options() != StoreOptions::default();
        match place {
            Place::Store(_) if about_nodes => Err(Failure::usage(format!(
                "--token-file and --ca are for nodes, and {place} is a store: leave them out, or name nodes with --server"
            ))),
            Place::Server { .. } | Place::Store(StorePlace::Directory(_)) if about_buckets => {
                Err(Failure::usage(format!(
                    "--store-endpoint, --store-region, --store-ca and --store-anonymous are for the URL of a bucket, and {place} is none: leave them out, or name one with --store"
                )))
            }
            _ => Ok(()),
        }
    }

    /// The flags and variables for requests to nodes.
    pub(crate) fn credentials(&self) -> Result<Credentials, BadCredentials> {
        Credentials::default().or_files(self.token_file.clone(), self.ca.clone())?.or_env()
    }

    /// Where to work, and what says so.
    pub(crate) fn place(&self) -> Result<(Place, Source), Failure> {
        match (&self.server, &self.store, &self.context) {
            (None, None, None) => {}
            (Some(urls), None, None) => return Ok((Place::server(urls), Source::Flag("--server"))),
            (None, Some(store), None) => {
                let place = StorePlace::named(store, StoreOptions::default());
                return Ok((Place::Store(place), Source::Flag("--store")));
            }
            (None, None, Some(name)) => return of_context(name, "--context"),
            (Some(_), Some(_), None) => {
                return Err(Failure::usage("--server and --store exclude each other: give one of them"));
            }
            (_, _, Some(_)) => {
                return Err(Failure::usage(
                    "--context says where to work: leave --server and --store out, or --context",
                ));
            }
        }
        if let Some(urls) = said("SHARDD_SERVER") {
            return Ok((Place::server(&urls), Source::Server));
        }
        if let Some(name) = said("SHARDCTL_CONTEXT") {
            return of_context(&name, "SHARDCTL_CONTEXT");
        }
        let contexts = Contexts::load()?;
        let Some(current) = contexts.current.as_ref() else {
            return Ok((Place::server(DEFAULT_SERVER), Source::Default));
        };
        of_current(&contexts, current)
    }

    /// The settings of the flags, to be kept.
    pub(crate) fn given_place(&self) -> Result<Place, Failure> {
        let whole = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
        let place = match (&self.server, &self.store, &self.context) {
            (Some(urls), None, None) => Place::Server {
                urls: checked(urls)?.join(","),
                token_file: whole(&self.token_file)?,
                ca: whole(&self.ca)?,
            },
            (None, Some(store), None) => {
                let options = self.options.options();
                let options = StoreOptions { ca: whole(&options.ca)?, ..options };
                Place::Store(match StorePlace::named(store, options) {
                    StorePlace::Directory(directory) => {
                        StorePlace::Directory(std::path::absolute(directory)?)
                    }
                    url => url,
                })
            }
            _ => {
                return Err(Failure::usage(
                    "say where the context is, with --server URL, --store DIR or --store URL",
                ));
            }
        };
        self.check_flags(&place)?;
        Ok(place)
    }

    /// The catalog to look things up in, and to put plans into.
    pub(crate) fn catalog(&self) -> Result<Box<dyn Catalog>, Failure> {
        let place = match self.target()? {
            Target::Servers(servers) => return Ok(Box::new(servers.catalog())),
            Target::Store(place) => place,
        };
        if let Some(catalog) = LocalCatalog::find(&place)? {
            return Ok(Box::new(catalog));
        }
        let there = match &place {
            StorePlace::Directory(directory) if !directory.is_dir() => "no directory",
            StorePlace::Directory(_) => "nothing of shardd in",
            StorePlace::Url { .. } => "no dataset that was put without a node in",
        };
        let filled = match &place {
            StorePlace::Url { url, .. } if url.starts_with("http") => String::new(),
            _ => format!(", or fill it with `shardctl --store {place} ingest`"),
        };
        Err(Failure::failed(format!("there is {there} {place}: name another with --store{filled}")))
    }

    /// The catalog to put datasets into; a directory is made where there is none.
    pub(crate) fn catalog_to_fill(&self) -> Result<Box<dyn Catalog>, Failure> {
        match self.target()? {
            Target::Servers(servers) => Ok(Box::new(servers.catalog())),
            Target::Store(place) => Ok(Box::new(LocalCatalog::open_to_fill(&place)?)),
        }
    }
}

impl Servers {
    /// A client for questions that a node answers at once.
    pub(crate) fn http(&self) -> HttpClient {
        self.http_within(ANSWERED_WITHIN)
    }

    /// A client for what takes a node longer.
    pub(crate) fn http_within(&self, patience: Duration) -> HttpClient {
        HttpClient::with(patience, &self.credentials)
    }

    fn catalog(&self) -> ClusterCatalog {
        ClusterCatalog::with(&self.urls, &self.credentials)
    }

    /// The first node that answers; the first of all if none does, whose error then says so.
    pub(crate) fn first_that_answers(&self) -> &str {
        let [only] = self.urls.as_slice() else {
            let client = self.http_within(SAYS_WITHIN);
            let answers = |server: &&String| client.get(&format!("{server}/v1/health")).is_ok();
            return self.urls.iter().find(answers).unwrap_or(&self.urls[0]);
        };
        only
    }
}

fn of_context(name: &str, chosen_by: &'static str) -> Result<(Place, Source), Failure> {
    let contexts = Contexts::load()?;
    let (name, place) = contexts.find(name)?;
    Ok((place.clone(), Source::Context { name: name.clone(), chosen_by }))
}

fn of_current(contexts: &Contexts, current: &ContextName) -> Result<(Place, Source), Failure> {
    match contexts.contexts.get(current) {
        Some(place) => {
            let source = Source::Context { name: current.clone(), chosen_by: "the current one" };
            Ok((place.clone(), source))
        }
        None => Err(Failure::failed(format!(
            "the current context is {current}, which does not exist: choose one of `shardctl context ls` \
            with `shardctl context use NAME`"
        ))),
    }
}

/// The value of a variable of the environment, if any.
fn said(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

fn checked(urls: &str) -> Result<Vec<String>, Failure> {
    let check = |url: &str| {
        let url = url.trim().trim_end_matches('/');
        match url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")) {
            Some(address) if !address.is_empty() => Ok(url.to_owned()),
            _ => Err(Failure::usage(format!(
                "`{url}` is not the address of a node: use one such as {DEFAULT_SERVER}"
            ))),
        }
    };
    urls.split(',').map(check).collect()
}

/// The version that is named. Where there is none, the error says what there is.
pub(crate) fn find_version(catalog: &dyn Catalog, asked: &DatasetRef) -> Result<DatasetInfo, Failure> {
    let what = match catalog.resolve(asked) {
        Err(CatalogError::NotFound { what }) => what,
        found => return Ok(found?),
    };
    let name = &asked.dataset;
    let names: Vec<String> = catalog.datasets()?.iter().map(|info| info.name.to_string()).collect();
    let is_there = names.contains(&name.to_string());
    let tagged: Vec<String> =
        catalog.tags(Some(name))?.iter().map(|info| format!("{name}@{}", info.tag)).collect();
    let tagged_name = asked.to_string();
    Err(Failure::failed(match (&asked.at, is_there) {
        (At::Tag(_), true) => no_such(&what, &tagged_name, &tagged),
        (_, true) => format!("there is no {what}: see `shardctl log {name}`"),
        (_, false) if !tagged.is_empty() => no_such(&what, &tagged_name, &tagged),
        (_, false) => no_such(&what, name.as_str(), &names),
    }))
}

/// The dataset asked for, or the only one there is.
pub(crate) fn only_dataset(
    catalog: &dyn Catalog,
    asked: Option<&DatasetRef>,
    command: &str,
) -> Result<DatasetInfo, Failure> {
    if let Some(asked) = asked {
        return find_version(catalog, asked);
    }
    let all = catalog.datasets()?;
    let names: Vec<String> = all.iter().map(|info| info.name.to_string()).collect();
    match all.len() {
        0 => {
            Err(Failure::failed("there is no dataset yet: make one with `shardctl ingest PATH --name NAME`"))
        }
        1 => Ok(all.into_iter().next().expect("there is one")),
        n => Err(Failure::usage(format!(
            "there are {}, name one of them: {}; for example `shardctl {command} {}`",
            plural(n as u64, "dataset"),
            names.join(", "),
            names[0]
        ))),
    }
}

/// The plan asked for by its id, by the beginning of its id, or by its dataset or version if that has only one; or the only
/// one.
pub(crate) fn find_plan(catalog: &dyn Catalog, asked: Option<&str>) -> Result<PlanId, Failure> {
    let plans = catalog.plans()?;
    let version = match asked.filter(|text| text.contains('@')) {
        Some(reference) => Some(find_version(catalog, &reference.parse().map_err(Failure::wrong)?)?.version),
        None => None,
    };
    let fits = |text: &str| {
        let fits = |plan: &&PlanInfo| match version {
            Some(version) => plan.version == version,
            None => plan.id.to_string().starts_with(text) || plan.dataset.as_str() == text,
        };
        plans.iter().filter(fits).collect::<Vec<_>>()
    };
    let found = asked.map_or_else(|| plans.iter().collect(), fits);
    match (found.as_slice(), asked) {
        ([], None) => {
            Err(Failure::failed("there is no plan yet: make one with `shardctl partition --q 0.1`"))
        }
        ([], Some(asked)) => {
            let name = |plan: &PlanInfo| format!("{} ({})", plan.id.short(), plan.dataset);
            let names: Vec<String> = plans.iter().map(name).collect();
            let words = plans.iter().map(|plan| plan.dataset.as_str());
            let meant = nearest(asked, words).map(|dataset| format!("; is it that of {dataset}?"));
            let said = no_such(&format!("plan {asked}"), asked, &names);
            Err(Failure::failed(said + &meant.unwrap_or_default()))
        }
        ([one], _) => Ok(one.id),
        (several, _) => {
            let names: Vec<String> =
                several.iter().map(|plan| format!("{} ({})", plan.id.short(), plan.dataset)).collect();
            Err(Failure::usage(format!(
                "{} fit, name one of them: {}",
                plural(names.len() as u64, "plan"),
                names.join(", ")
            )))
        }
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

/// The live nodes, as `server` knows them.
pub(crate) fn live_nodes(http: &HttpClient, server: &str) -> Result<Vec<NodeState>, HttpError> {
    http.get_list(&format!("{server}/v1/nodes"), usize::MAX)
}

/// The error for a node that is not among them.
pub(crate) fn not_live(node: &NodeId) -> Failure {
    Failure::failed(format!("node {node} is not among the live nodes; `shardctl status` lists them"))
}
