//! `shardctl doctor`: checks this machine, its settings, the store and the nodes, and names for each problem the evidence and
//! the remedy. This file orders the checks and shows the findings; each family of checks has a file of its own, in which
//! probes read values and pure functions judge them.
//!
//! No probe leaves a file behind, changes a setting or shows a secret, and each has a time limit.

mod bucket;
mod bundle;
mod certificate;
mod clock;
mod cluster;
mod datagram;
mod directory;
mod disk;
mod environment;
mod finding;
mod limit;
mod memory;
mod network;
mod page;
mod redact;
mod secrets;
mod settings;
mod shell;
mod speed;
mod store;
mod system;
mod verdicts;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use shardd_api::duration::now;
use shardd_api::machine;
use shardd_store::catalog::StorePlace;
use shardd_store::connect::{Connect, ConnectError, Credential, Place, Servers, Source, Target};
use shardfmt::ByteSize;
use tokio::sync::watch;

use crate::failure::Failure;
use crate::output;
use crate::signals;
use bundle::Contents;
use cluster::Cluster;
use directory::DataDirectory;
use environment::host_of;
use finding::{Check, Finding, Group, Severity, doc};
use limit::Pending;
use settings::{DEFAULT_CACHE, DEFAULT_DATA, NodeSettings};
use store::Names;
use verdicts::Context;

/// How long the checks of a part may take.
const MACHINE_LIMIT: Duration = Duration::from_secs(10);
const STORE_LIMIT: Duration = Duration::from_secs(180);
const CLUSTER_LIMIT: Duration = Duration::from_secs(120);
/// How long the object of a trial may take to be removed.
const REMOVAL_LIMIT: Duration = Duration::from_secs(30);
/// The exit code that a shell expects of a process that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

const MACHINE: Check = Check::new(Group::Machine, "machine", doc::START);
const DIRECTORY: Check = Check::new(Group::Directory, "data_directory", doc::SETTINGS);
const CONNECTION: Check = Check::new(Group::Settings, "connection", doc::CONTEXTS);
const STORE: Check = Check::new(Group::Store, "store_reached", doc::STORES);
const NODES: Check = Check::new(Group::Cluster, "node_http", doc::MACHINES);

/// Check this machine, the settings, the store and the nodes; each problem comes with its evidence and its remedy
///
/// Without nodes it checks what a node or a loader of this machine needs. A store is tried with an object under a name of
/// its own, which is removed. Exit code 1 means an error; warnings alone exit with 0.
#[derive(Args)]
pub(crate) struct Doctor {
    /// Data directory of the node of this machine [default: that of --config, SHARDD_DATA, or of the node that answers here]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Settings file of the node: checked by `shardd config`, and used for the checks of its directory and store [env:
    /// SHARDD_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Size of the node's cache [default: that of --config, SHARDD_CACHE_SIZE, or of the node that answers here]
    #[arg(long, value_name = "SIZE")]
    cache_size: Option<ByteSize>,

    /// Show all findings, also of checks without a problem
    #[arg(long)]
    all: bool,

    /// Write an archive for a bug report: findings, versions, settings and the state of nodes, with secrets replaced by
    /// REDACTED
    #[arg(long, value_name = "FILE.tar.gz")]
    bundle: Option<PathBuf>,

    /// Log of a node, whose last lines go into the archive
    #[arg(long, value_name = "FILE", requires = "bundle")]
    log: Option<PathBuf>,
}

/// The places that were found to check.
#[derive(Default)]
struct Places {
    servers: Option<Servers>,
    is_default: bool,
    token: Option<Credential>,
    store: Option<(StorePlace, Names)>,
}

/// The probe of a store, which removes its object before it ends.
#[derive(Clone)]
struct StoreProbe {
    stop: watch::Sender<bool>,
    is_running: Arc<AtomicBool>,
}

impl StoreProbe {
    fn start(&self, place: StorePlace, names: Names) -> Pending<Vec<Finding>> {
        let (stop, is_running) = (self.stop.subscribe(), self.is_running.clone());
        is_running.store(true, Ordering::SeqCst);
        limit::start(STORE_LIMIT, move || {
            let found = store::check(&place, names, stop);
            is_running.store(false, Ordering::SeqCst);
            found
        })
    }

    /// Ends it, and waits until it has removed its object.
    fn end(&self) {
        self.stop.send_replace(true);
        let began = Instant::now();
        while self.is_running.load(Ordering::SeqCst) && began.elapsed() < REMOVAL_LIMIT {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Doctor {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        if let Some(path) = &self.bundle {
            bundle::check_free(path)?;
        }
        let store = StoreProbe { stop: watch::Sender::new(false), is_running: Arc::default() };
        let probe = store.clone();
        signals::at_first(move || {
            probe.end();
            std::process::exit(INTERRUPTED.into());
        })?;
        let (findings, cluster) = self.examine(connect, &store)?;
        if *store.stop.borrow() {
            std::process::exit(INTERRUPTED.into());
        }
        match json {
            true => findings.iter().filter(|finding| self.all || finding.is_problem()).for_each(output::json),
            false => output::print(&page::render(&findings, self.all)),
        }
        self.write_bundle(&findings, cluster.as_ref(), json)?;
        match findings.iter().filter(|finding| finding.severity == Severity::Error).count() {
            0 => Ok(()),
            1 => Err(Failure::failed("a check found an error; its remedy is above")),
            errors => Err(Failure::failed(format!("checks found {errors} errors; their remedies are above"))),
        }
    }

    /// All findings in the order of the page, and the answers of the nodes.
    fn examine(
        &self,
        connect: &Connect,
        store: &StoreProbe,
    ) -> Result<(Vec<Finding>, Option<Cluster>), Failure> {
        let mut found = Vec::new();
        let config = self.config.clone().or_else(config_of_environment);
        let filed = config.as_deref().map(settings::read);
        let (filed, of_file) = filed.map_or_else(Default::default, |(filed, found)| (Some(filed), found));
        let node = filed.unwrap_or_else(NodeSettings::of_environment);
        let mut places = places(connect, &mut found)?;
        if places.store.is_none() {
            places.store = node.store_place().map(|place| (place, Names::WithNodes));
        }
        let store = places.store.clone().map(|(place, names)| store.start(place, names));
        let cluster = match places.servers.clone() {
            Some(servers) => limit::within(CLUSTER_LIMIT, move || cluster::ask(&servers)).map_or_else(
                || {
                    found.push(NODES.given_up(CLUSTER_LIMIT));
                    None
                },
                Some,
            ),
            None => None,
        };
        let data = self.data_directory(&node, cluster.as_ref());
        found.extend(of_file);
        found.extend(of_machine(data.as_ref(), cluster.as_ref()));
        found.extend(of_directory(data.as_ref()));
        found.extend(Doctor::of_settings(&node, &places, cluster.as_ref(), data.as_ref()));
        if let Some(cluster) = &cluster {
            found.extend(of_cluster(cluster, &places, data.as_ref()));
        }
        if let Some(probe) = store {
            found.extend(probe.wait().unwrap_or_else(|| vec![STORE.given_up(STORE_LIMIT)]));
        }
        let mut found: Vec<Finding> = found.into_iter().map(Finding::redacted).collect();
        // Stable: the worst of a group first, otherwise as they were found.
        found.sort_by_key(|finding| (finding.group, std::cmp::Reverse(finding.severity)));
        Ok((found, cluster))
    }

    /// The directory of the node of this machine, if one is named or found.
    fn data_directory(&self, node: &NodeSettings, cluster: Option<&Cluster>) -> Option<DataDirectory> {
        let here = cluster.and_then(|cluster| cluster.nodes.iter().find(|node| node.is_here()));
        let status = here.and_then(|node| node.status.as_ref().map(|(_, status)| status));
        let disks = status.and_then(|status| status.machine.as_ref()).map(|machine| &machine.disks);
        let kept =
            disks.and_then(|disks| disks.iter().find(|disk| disk.directory == machine::Directory::Data));
        let path = self.data.clone().or_else(|| node.data.clone());
        // A relative one depends on where the node was started.
        let kept = kept.map(|disk| PathBuf::from(&disk.path)).filter(|path| path.is_absolute());
        let path = path.or(kept);
        let path = path.or_else(|| Some(PathBuf::from(DEFAULT_DATA)).filter(|path| path.is_dir()))?;
        let limit = status.map(|status| status.cache_limit_bytes);
        let size = self.cache_size.or(node.cache_size).map(|size| size.0).or(limit);
        Some(DataDirectory {
            path,
            cache_bytes: size.unwrap_or(DEFAULT_CACHE.0),
            reserve: node.disk_reserve.map(|size| size.0),
        })
    }

    /// The checks of settings, of variables and of the files that they name.
    fn of_settings(
        node: &NodeSettings,
        places: &Places,
        cluster: Option<&Cluster>,
        data: Option<&DataDirectory>,
    ) -> Vec<Finding> {
        let mut found = vec![settings::contexts()];
        found.extend(environment::check(&environment::variables(), &hosts(places, cluster)));
        let token = places.token.as_ref().and_then(|token| token.file.clone());
        let named: Vec<PathBuf> = token.into_iter().chain(node.secret_files()).collect();
        let data = data.map(|data| data.path.clone());
        let secrets = limit::within(MACHINE_LIMIT, move || secrets::check(&named, data.as_deref()));
        found.extend(secrets.unwrap_or_else(|| vec![CONNECTION.given_up(MACHINE_LIMIT)]));
        found
    }

    fn write_bundle(
        &self,
        findings: &[Finding],
        cluster: Option<&Cluster>,
        json: bool,
    ) -> Result<(), Failure> {
        let Some(path) = &self.bundle else { return Ok(()) };
        let config = self.config.clone().or_else(config_of_environment);
        let contents = Contents { findings, cluster, config: config.as_deref(), log: self.log.as_deref() };
        let files = bundle::files(&contents)?;
        bundle::write(path, &files, now())?;
        let names = files.iter().map(|(name, bytes)| format!("{name} ({})", ByteSize(bytes.len() as u64)));
        let names = names.collect::<Vec<_>>().join(", ");
        output::note(json, &format!("{} holds {names}; look at it before you send it", path.display()));
        Ok(())
    }
}

/// Where commands work. A fault of the command line is a failure; all others are findings.
fn places(connect: &Connect, found: &mut Vec<Finding>) -> Result<Places, Failure> {
    let (place, source) = match connect.place() {
        Ok(place) => place,
        Err(error) if error.is_usage() => return Err(error.into()),
        // The check of the contexts has more to say of a file that cannot be read.
        Err(error) => {
            found.push(
                CONNECTION
                    .error(error.to_string())
                    .mend("Name a place with --server or --store, or correct the context."),
            );
            return Ok(Places::default());
        }
    };
    let (token, _) = connect.access(&place, &source);
    let is_default = matches!(source, Source::Default);
    match connect.target() {
        Ok(Target::Servers(servers)) => Ok(Places { servers: Some(servers), is_default, token, store: None }),
        Ok(Target::Store(place)) => {
            Ok(Places { store: Some((place, Names::InStore)), token, ..Places::default() })
        }
        Err(error) if error.is_usage() => Err(error.into()),
        Err(error) => {
            found.push(connection(&place, &error));
            Ok(Places { token, ..Places::default() })
        }
    }
}

/// A place whose credentials cannot be used.
fn connection(place: &Place, error: &ConnectError) -> Finding {
    CONNECTION
        .error(format!("{place} cannot be asked: {error}"))
        .mend("Correct the setting that the message names.")
}

fn of_machine(data: Option<&DataDirectory>, cluster: Option<&Cluster>) -> Vec<Finding> {
    let cache_bytes = data.map_or(DEFAULT_CACHE.0, |data| data.cache_bytes);
    let here = cluster.and_then(|cluster| cluster.nodes.iter().find(|node| node.is_here()));
    let status = here.and_then(|node| node.status.as_ref().map(|(_, status)| status));
    let read = status.map(|status| status.cache_used_bytes.max(status.cache_peak_bytes));
    let checks = move || {
        let mut found = system::check(cache_bytes);
        found.extend(memory::check(read.filter(|bytes| *bytes > 0)));
        found.extend(network::check());
        found.extend(clock::check());
        found
    };
    limit::within(MACHINE_LIMIT, checks).unwrap_or_else(|| vec![MACHINE.given_up(MACHINE_LIMIT)])
}

fn of_directory(data: Option<&DataDirectory>) -> Vec<Finding> {
    let Some(data) = data else {
        return vec![
            DIRECTORY.info("no data directory of a node is named or found here").mend(
                "Name it with --data DIR, or the node's settings with --config FILE, to check its disk.",
            ),
        ];
    };
    let mut found = directory::check(data);
    let path = data.path.clone();
    let certificate = limit::within(MACHINE_LIMIT, move || certificate::check(&path));
    found.extend(certificate.unwrap_or_default());
    found
}

fn of_cluster(cluster: &Cluster, places: &Places, data: Option<&DataDirectory>) -> Vec<Finding> {
    let admin_token = data.map(|data| data.path.join("admin-token"));
    let admin_token = admin_token.filter(|path| {
        let path = path.clone();
        limit::within(MACHINE_LIMIT, move || path.is_file()) == Some(true)
    });
    let context = Context {
        now: now(),
        is_default: places.is_default,
        token: places.token.as_ref(),
        admin_token: admin_token.as_deref(),
        release: env!("CARGO_PKG_VERSION"),
    };
    let mut found = verdicts::check(cluster, context);
    found.extend(network::reach(&verdicts::to_reach(&cluster.nodes)));
    found
}

/// The hosts of nodes and of the service of the store.
fn hosts(places: &Places, cluster: Option<&Cluster>) -> Vec<String> {
    let given = places.servers.iter().filter(|_| !places.is_default).flat_map(|servers| servers.urls.clone());
    let nodes = cluster.iter().flat_map(|cluster| &cluster.nodes).map(|node| node.state.record.http.clone());
    let endpoint = places.store.as_ref().and_then(|(place, _)| match place {
        StorePlace::Url { options, .. } => {
            let own = ["AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT"]
                .iter()
                .find_map(|name| std::env::var(name).ok());
            options.endpoint.clone().or(own)
        }
        StorePlace::Directory(_) => None,
    });
    given.chain(nodes).chain(endpoint).filter_map(|url| host_of(&url)).collect()
}

fn config_of_environment() -> Option<PathBuf> {
    std::env::var_os("SHARDD_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
}
