//! A node assembled from its parts: opened in order, run until the signal to stop, closed within five
//! seconds.

mod role;
mod running;

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use shardd_api::drain::Drain;
use shardd_api::duration::now;
use shardd_api::exchange::ExchangeSettings;
use shardd_api::local_transport::Share;
use shardd_api::node::{NodeId, NodeRecord};
use shardd_certificates::{CA_CERTIFICATE, CertificateError, Host};
use shardd_engine::cache::{Cache, CacheConfig, CacheError};
use shardd_engine::engine::{Engine, EngineError, Passes};
use shardd_store::catalog::{CatalogBackend, CatalogError};
use shardd_store::metastore::{CopyShelf, Metastore, MetastoreAddress};
use shardd_store::origin::{Origin, OriginError};
use shardd_store::reserve::Disk;
use shardd_store::stores::StoreOptions;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::access::owner::{self, OwnerError};
use crate::access::{Mark, Tokens, private};
use crate::ca::CertificateIssuer;
use crate::config::{Auth, Config, ConfigError, OnSigterm};
use crate::http::{self, Access, Api, Bootstrap, HttpListener, TokensAsked};
use crate::https::{self, HttpsError};
use crate::identity::{Cluster, Identity, IdentityError, JoinToken, Revoked, Site};
use crate::keeping::{self, KeepError, Keeping, Promotion};
use crate::lend::LocalListener;
use crate::membership::{self, Finder, Membership, MembershipError};
use crate::memory;
use crate::metastore::{self, MetastoreNode, MetastoreUrl, OpenError};
use crate::renewal::{Renewal, Signer};
use crate::transport::{Datagrams, RemoteMetastore, Services, Transport, TransportError};
use role::{NodeRole, take_over, take_role};
use running::Running;

/// The file in `<data>/tls` that remembers which keys are revoked.
const REVOKED: &str = "revoked.json";
/// How long a node that starts waits for its store.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long everything together may take to end.
const GRACE: Duration = Duration::from_millis(4500);
/// The socket for loaders of this machine, in the data directory.
const SOCKET: &str = "shardd.sock";

/// Why a node does not serve. Every message is one line and names the way out.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum ServeError {
    /// The data directory cannot be used.
    #[error("--data {path} cannot be used")]
    Data { path: PathBuf, source: io::Error },
    /// Another process uses the data directory.
    #[error(
        "--data {path} is in use by another shardd; stop that one, or give this one a directory of its own"
    )]
    InUse { path: PathBuf },
    /// The HTTP address cannot be used.
    #[error("--http {address} cannot be used; give another address")]
    Http { address: SocketAddr, source: io::Error },
    /// It founded a cluster and is asked to join one.
    #[error(
        "--join: data directory {path} is that of the first node of a cluster; use another --data directory, or drop --join"
    )]
    AlreadyFirst { path: PathBuf },
    /// No identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Files of certificates and keys.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// No certificate for https.
    #[error(transparent)]
    Https(#[from] HttpsError),
    /// Other machines would be served without protection.
    #[error(transparent)]
    Unprotected(ConfigError),
    /// No transport.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// No metadata.
    #[error(transparent)]
    Metadata(#[from] OpenError),
    /// Who owns the machine has no way in.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// Another node holds the metadata, or it is damaged or lost.
    #[error(transparent)]
    Keeping(#[from] KeepError),
    /// No store.
    #[error("--store cannot be used")]
    Store(#[from] OriginError),
    /// Another store than that of the cluster.
    #[error("--store")]
    OtherStore(#[source] CatalogError),
    /// No cache.
    #[error("the cache cannot be used")]
    Cache(#[from] CacheError),
    /// Loaders of this machine cannot connect.
    #[error("--socket {path} cannot be used; name a place of at most 107 bytes where a socket can be made")]
    Socket { path: PathBuf, source: io::Error },
    /// Another node has the node's name.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The ready file cannot be written.
    #[error("--ready-file {path} cannot be written")]
    ReadyFile { path: PathBuf, source: io::Error },
    /// A thread of the node was lost.
    #[error("a part of the node ended without an error")]
    Lost(#[from] tokio::task::JoinError),
}

/// Where a serving node can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// Its name.
    pub id: NodeId,
    /// Its HTTP API.
    pub http: Site,
    /// Its peers' way in.
    pub quic: SocketAddr,
}

impl std::fmt::Display for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "shardd {} ready: http {}, quic {}", self.id, self.http, self.quic)
    }
}

/// The signals to a process from outside.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// Stop now.
    pub stop: CancellationToken,
    /// Terminate, in the way that the settings say.
    pub terminate: CancellationToken,
}

/// How a node has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It got a stop signal, or a request to leave.
    Stopped,
    /// It shall start again at this address and take over the metadata.
    ToPromote {
        /// Where its HTTP API was.
        http: SocketAddr,
    },
}

/// Runs a node until it gets a stop signal; tells `ready` once it serves.
///
/// # Errors
/// [`ServeError`] when it cannot start, or finds its name taken. A data directory that was made for a node which then had
/// nothing to keep there is gone again.
pub fn serve(
    config: Config,
    signals: Signals,
    ready: Box<dyn FnOnce(&Ready) + Send>,
) -> Pin<Box<dyn Future<Output = Result<Ended, ServeError>> + Send>> {
    // In a box, so that it is compiled here, and not once more in each program that calls it.
    Box::pin(async move {
        let data = config.data.clone();
        let is_new = !data.exists();
        let locked = lock_data(&data)?;
        let served = serve_locked(config, signals, ready).await;
        if served.is_err() && is_new {
            remove_unused(&data, &locked);
        }
        served
    })
}

async fn serve_locked(
    config: Config,
    signals: Signals,
    ready: Box<dyn FnOnce(&Ready) + Send>,
) -> Result<Ended, ServeError> {
    let listener = bind_http(config.http).await?;
    let bound = listener.local_addr().map_err(|source| ServeError::Http { address: config.http, source })?;
    let mut role = take_role(&config).await?;
    let identity = Arc::clone(role.identity());
    let revoked = Arc::new(Revoked::remembered(&config.data.join("tls").join(REVOKED)));
    let datagrams = Datagrams::probe_mtu(config.quic.ip(), &identity).await;
    let transport = bind_quic(&config, &identity, &revoked, datagrams)?;
    // A wildcard is no address to reach; the peers' address is one of this machine.
    let http = match bound.ip().is_unspecified() {
        true => SocketAddr::new(transport.address().ip(), bound.port()),
        false => bound,
    };
    let tls = config.tls.unwrap_or_else(|| role.cluster().is_some_and(|cluster| cluster.tls));
    let site = Site { address: http, tls };
    let is_alone = bound.ip().is_loopback();
    let (http_listener, files) = open_http(&config, &identity, listener, tls)?;
    let origin = Arc::new(open_store(&config, &role)?);
    probe(&origin).await?;
    let shelf = CopyShelf::of(Arc::clone(&origin), identity.authority());
    let me =
        MetastoreAddress { node: identity.node().clone(), http: site.to_string(), quic: transport.address() };
    if config.metadata.promote {
        role = take_over(&config, role, &shelf, &me, site).await?;
    }
    let metastore_node = role.cluster().map(|cluster| MetastoreNode::new(cluster.first.clone()));
    let Opened { metastore, kept, keeping } =
        open_metastore(&config, &role, &transport, &shelf, &me, metastore_node.as_ref()).await?;
    let catalog = CatalogBackend::new(Arc::clone(&origin), Arc::clone(&metastore));
    check_store(&catalog).await?;
    if let NodeRole::First { .. } = role {
        tell_of_store(&config, &role, &catalog, is_alone).await;
    }
    let (directory, limit) = (config.data.join("cache"), config.cache_size);
    let cache = tokio::task::spawn_blocking(move || Cache::open(directory, CacheConfig { limit })).await??;
    keep_free(&config, &cache, &origin);
    let local = open_local_listener(&config)?;

    let record = NodeRecord {
        id: identity.node().clone(),
        http: site.to_string(),
        quic: transport.address(),
        cache_bytes: config.cache_size.0,
        started_at: now(),
        socket: local.as_ref().and_then(LocalListener::record),
    };
    let membership = Membership {
        metastore: Arc::clone(&metastore),
        record: record.clone(),
        key: identity.key_digest(),
        revoked: Arc::clone(&revoked),
        metastore_node: metastore_node
            .clone()
            .filter(|_| role.has_metastore_node())
            .map(|node| (Arc::clone(&transport), node)),
    };
    // Before any connection; without the metastore by the state known at the last stop.
    let known = tokio::time::timeout(STORE_TIMEOUT, revoked.load(metastore.as_ref())).await;
    if !matches!(known, Ok(Ok(_))) {
        warn!("the recently revoked keys are not known yet");
    }
    let lease = match membership.register().await {
        Ok(lease) => Some(lease),
        Err(error @ (MembershipError::Taken(_) | MembershipError::Revoked(_))) => return Err(error.into()),
        // It serves its objects and registers when the metastore is back.
        Err(MembershipError::Meta(_)) => None,
    };
    let finder = match (&role, &metastore_node) {
        (NodeRole::Joined { cluster, .. }, Some(metastore_node)) => Some(Finder::new(
            Arc::clone(&transport),
            Cluster::clone(cluster),
            config.data.join("tls"),
            shelf.clone(),
            Arc::clone(metastore_node),
            record.id.clone(),
        )),
        _ => None,
    };
    let access = open_access(&config, &role, &metastore, &record).await?;
    let promotion = role.has_metastore_node().then(|| {
        let (node, tls, asked) = (record.id.clone(), config.data.join("tls"), CancellationToken::new());
        Arc::new(Promotion { shelf, node, tls, asked })
    });
    let bootstrap =
        open_bootstrap(&config, role, site, is_alone, &transport, &origin, &metastore, access.is_required())?;
    let signer = match (&bootstrap.issuer, metastore_node) {
        (None, Some(first)) => Signer::First(Arc::clone(&transport), first),
        (None, None) => Signer::First(Arc::clone(&transport), MetastoreNode::new(record.id.clone())),
        (Some(issuer), _) => Signer::Here(Arc::clone(issuer)),
    };
    let renewal = Renewal { identity, hosts: config.hosts(), signer, metastore: Arc::clone(&metastore) };

    let engine = Engine::new(
        record.id.clone(),
        Arc::clone(&origin),
        Arc::new(cache),
        Arc::clone(&metastore),
        transport.clone(),
    );
    let reports = config.data.join("reports");
    if let Err(error) = engine.keep_reports_in(&reports) {
        warn!(path = %reports.display(), %error, "the reports of ranks during an outage of the metadata \
            cannot be kept on disk");
    }
    engine.set_exchange(ExchangeSettings { rate: config.exchange_rate, ..ExchangeSettings::default() });
    let (tasks, inner) = (TaskTracker::new(), CancellationToken::new());
    if let Some(local) = local {
        engine.lend(passes());
        tasks.spawn(local.serve(Arc::clone(&engine), config.share, inner.clone()));
    }
    let services =
        Services { peers: Arc::new(Arc::clone(&engine)), metastore: kept, issuer: bootstrap.issuer.clone() };
    tasks.spawn(Arc::clone(&transport).serve(services, inner.clone()));
    tasks.spawn(membership::follow_addresses(
        Arc::clone(&metastore),
        Arc::clone(&transport),
        finder.clone(),
        inner.clone(),
    ));
    tasks.spawn(Arc::clone(&engine).run_until(inner.clone()));
    tasks.spawn(Arc::clone(&access.tokens).follow(inner.clone()));
    tasks.spawn(revoked.follow(Arc::clone(&metastore), inner.clone()));
    tasks.spawn(renewal.keep(inner.clone()));
    tasks.spawn(memory::trim_after_load(inner.clone()));
    if let Some(files) = files {
        tasks.spawn(files.follow(inner.clone()));
    }
    let shutdown_requested =
        shutdown_requested(Arc::clone(&engine), config.on_sigterm, config.grace, signals.terminate);
    let asked_to_promote =
        promotion.as_ref().map_or_else(CancellationToken::new, |promotion| promotion.asked.clone());
    let api = Api {
        node: record.clone(),
        engine,
        catalog,
        bootstrap,
        access,
        keeping: keeping.clone(),
        promotion,
        limits: http::Limits::default(),
    };
    let http_stop = CancellationToken::new();
    let serving = tokio::spawn(http::serve(http_listener, api, http_stop.clone()));
    let copied = CancellationToken::new();
    let running = Running {
        serving,
        member: tokio::spawn(membership.keep(lease, finder, inner.clone())),
        // The copy is made as long as anything may change, and once more then.
        copying: tokio::spawn(copy_until(keeping, copied.clone())),
        tasks,
        transport: Arc::clone(&transport),
        http_stop,
        inner,
        copied,
    };

    let told = Ready { id: record.id, http: site, quic: transport.address() };
    if let Some(path) = &config.ready_file {
        write_ready(path, &told).map_err(|source| ServeError::ReadyFile { path: path.clone(), source })?;
    }
    info!(node = %told.id, http = %told.http, quic = %told.quic, "ready");
    ready(&told);

    let stop = async {
        tokio::select! {
            () = signals.stop.cancelled() => {}
            () = shutdown_requested => {}
            () = asked_to_promote.cancelled() => {}
        }
    };
    running.until(stop).await?;
    match asked_to_promote.is_cancelled() {
        true => Ok(Ended::ToPromote { http: bound }),
        false => Ok(Ended::Stopped),
    }
}

/// Copies the metadata, if it is kept here.
async fn copy_until(keeping: Option<Arc<Keeping>>, stop: CancellationToken) -> Result<(), KeepError> {
    match keeping {
        Some(keeping) => keeping.copy_until(stop).await,
        None => {
            stop.cancelled().await;
            Ok(())
        }
    }
}

/// Returns once the node shall stop: on a signal, or on a request to leave. Before that, other nodes take
/// over its partitions, as long as the grace period allows.
async fn shutdown_requested(
    engine: Arc<Engine>,
    on_sigterm: OnSigterm,
    grace: Duration,
    terminate: CancellationToken,
) {
    let asked = async {
        engine.until_asked_to_leave().await;
        info!("asked to leave: others take over the partitions of this node");
        engine.until_drained().await;
    };
    tokio::select! {
        () = terminate.cancelled() => {}
        () = asked => return,
    }
    if on_sigterm == OnSigterm::Stop {
        return;
    }
    info!(?grace, "draining: others take over the partitions of this node");
    let drained = async {
        engine.drain(engine.node(), Some(Drain::Stopping)).await?;
        engine.until_drained().await;
        Ok::<_, EngineError>(())
    };
    match tokio::time::timeout(grace, drained).await {
        Ok(Ok(())) => info!("drained"),
        Ok(Err(error)) => warn!(%error, "no node takes over the partitions of this node"),
        Err(_) => warn!(
            ?grace,
            "some partitions of this node were not taken over in time; other nodes will read them again"
        ),
    }
}

/// Refuses settings by which a node would serve other machines without protection, if its data directory
/// shows its role.
///
/// # Errors
/// [`ConfigError::InsecureHttp`].
pub fn check_protection(config: &Config) -> Result<(), ConfigError> {
    match Cluster::kept(&config.data.join("tls")) {
        Some(cluster) => config.check_protection(cluster.tls, cluster.asks_tokens),
        // The first node decides: a joining node gets the rule.
        None if config.join.is_some() => Ok(()),
        None => config.check_protection(false, false),
    }
}

/// Opens the Unix socket for loaders of this machine, unless `--share none` switches it off. They can read
/// over HTTP instead, so a failure is an error only if `--socket` names the path.
fn open_local_listener(config: &Config) -> Result<Option<LocalListener>, ServeError> {
    if config.share == Share::None {
        return Ok(None);
    }
    let path = config.socket.clone().unwrap_or_else(|| config.data.join(SOCKET));
    match LocalListener::open(&path) {
        Ok(listener) => Ok(Some(listener)),
        Err(source) if config.socket.is_some() => Err(ServeError::Socket { path, source }),
        Err(error) => {
            warn!(path = %path.display(), %error,
                  "loaders of this machine are sent bytes instead of being lent files; name another place by --socket");
            Ok(None)
        }
    }
}

/// The passes of this process: of a secret key.
fn passes() -> Passes {
    let mut key = [0; 32];
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(&mut key).expect("the system gives random bytes");
    Passes::new(key)
}

/// Holds the data directory for this process, as long as the file lives.
fn lock_data(data: &Path) -> Result<File, ServeError> {
    let at = |source| ServeError::Data { path: data.to_owned(), source };
    std::fs::create_dir_all(data).map_err(at)?;
    let file =
        File::options().create(true).truncate(false).write(true).open(data.join("lock")).map_err(at)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ServeError::InUse { path: data.to_owned() }),
        Err(error) => Err(at(error.into())),
    }
}

/// Removes a data directory in which there is nothing but its lock, held by the caller.
fn remove_unused(data: &Path, _locked: &File) {
    let lock = data.join("lock");
    let is_unused = std::fs::read_dir(data)
        .is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|entry| entry.path() == lock)));
    if is_unused {
        // A process that comes now finds the lock held or no directory, and reports it.
        let _ = std::fs::remove_file(&lock).and_then(|()| std::fs::remove_dir(data));
    }
}

async fn bind_http(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Http { address, source })
}

/// Adds TLS to the HTTP listener, if asked for. The certificate is the node's own, or comes from two files
/// that are watched for changes.
fn open_http(
    config: &Config,
    identity: &Identity,
    listener: TcpListener,
    tls: bool,
) -> Result<(HttpListener, Option<https::Followed>), ServeError> {
    let (resolver, followed) = match &config.tls_files {
        _ if !tls => return Ok((HttpListener { listener, tls: None }, None)),
        None => (identity.cert_resolver(), None),
        Some(files) => {
            let followed = https::Followed::open(files.clone())?;
            (followed.cert_resolver(), Some(followed))
        }
    };
    Ok((HttpListener { listener, tls: Some(https::settings(resolver)?) }, followed))
}

/// Binds the QUIC address. A free port, once found, is kept over restarts, so that the others find the node again.
fn bind_quic(
    config: &Config,
    identity: &Identity,
    revoked: &Arc<Revoked>,
    datagrams: Datagrams,
) -> Result<Arc<Transport>, ServeError> {
    let bind = |address| Transport::bind_with(address, identity, Arc::clone(revoked), datagrams);
    let kept = config.data.join("quic-port");
    let address = config.quic;
    if address.port() != 0 {
        return Ok(bind(address)?);
    }
    let port = std::fs::read_to_string(&kept).ok().and_then(|port| port.trim().parse().ok());
    let again = port.and_then(|port| bind(SocketAddr::new(address.ip(), port)).ok());
    let transport = match again {
        Some(transport) => transport,
        None => bind(address)?,
    };
    // Only a convenience: without it the others learn the new port from the metastore.
    let _ = std::fs::write(&kept, format!("{}\n", transport.address().port()));
    Ok(transport)
}

/// A node's way to the metadata.
struct Opened {
    /// Its source of facts.
    metastore: Arc<dyn Metastore>,
    /// Its cache for others: those that joined with a release that asks the first node, wherever that has it
    /// from.
    kept: Option<Arc<dyn Metastore>>,
    /// Where it is kept in sled: that, and its copy.
    keeping: Option<Arc<Keeping>>,
}

async fn open_metastore(
    config: &Config,
    role: &NodeRole,
    transport: &Arc<Transport>,
    shelf: &CopyShelf,
    me: &MetastoreAddress,
    metastore_node: Option<&Arc<MetastoreNode>>,
) -> Result<Opened, ServeError> {
    let (metastore, keeping): (Arc<dyn Metastore>, _) = match role {
        NodeRole::First { metastore: MetastoreUrl::Etcd(url), .. }
        | NodeRole::Joined { metastore: MetastoreUrl::Etcd(url), .. } => {
            let opened = metastore::open_etcd(url)?;
            info!(metastore = %url, "metadata is in etcd");
            (opened, None)
        }
        NodeRole::First { metastore: MetastoreUrl::Sled, is_new, .. } => {
            let recover = config.metadata.recover;
            let opened = keeping::open(&config.data, shelf, me, *is_new, recover).await?;
            let keeping::Opened { sled, epoch, base } = opened;
            if let Err(error) = sled.set_epoch(epoch).await {
                warn!(%error, "the metadata takes no changes yet");
            }
            let keeping = Keeping::new(Arc::clone(&sled), shelf.clone(), me.clone(), epoch, base);
            (sled, Some(keeping))
        }
        NodeRole::Joined { metastore: MetastoreUrl::Sled, cluster, .. } => {
            transport.learn(&cluster.first, cluster.quic);
            let metastore_node =
                metastore_node.map_or_else(|| MetastoreNode::new(cluster.first.clone()), Arc::clone);
            (Arc::new(RemoteMetastore::new(Arc::clone(transport), metastore_node)), None)
        }
    };
    let kept = matches!(role, NodeRole::First { .. }).then(|| Arc::clone(&metastore));
    Ok(Opened { metastore, kept, keeping })
}

/// Keeps room on the disks of cache and store for the metadata, which may share them.
fn keep_free(config: &Config, cache: &Cache, origin: &Origin) {
    let reserve = match config.disk_reserve {
        Some(reserve) => reserve.0,
        None => Disk::of(&config.data).map_or(0, Disk::default_reserve),
    };
    cache.keep_free(reserve);
    origin.keep_free(reserve);
}

/// Says what of this first node's data depends on this machine's disk alone, and whether names were lost.
async fn tell_of_store(config: &Config, role: &NodeRole, catalog: &CatalogBackend, is_alone: bool) {
    if config.store.is_none() && role.cluster().is_none() {
        let what = "the store is in this node's own data directory: data, and the copy of the metadata, are lost with its disk; --store names another place";
        match is_alone {
            true => info!("{what}"),
            false => warn!("{what}"),
        }
    }
    let looked = tokio::time::timeout(STORE_TIMEOUT, catalog.has_lost_its_names()).await;
    if let Ok(Ok(true)) = looked {
        warn!(
            store = catalog.origin().name(),
            "the metadata knows no dataset, but the store holds commits of some: `shardctl recover` brings back names, tags and plans"
        );
    }
}

/// Opens the store asked for, else the cluster's, else the node's own.
fn open_store(config: &Config, role: &NodeRole) -> Result<Origin, OriginError> {
    match (&config.store, role) {
        (Some(store), _) => Origin::open_with(store, &config.store_options),
        (None, NodeRole::Joined { cluster, .. }) => {
            let options = config.store_options.clone().or(&cluster.store_options);
            Origin::open_with(&cluster.store, &options)
        }
        (None, NodeRole::First { promoted: Some(cluster), .. }) => {
            let options = config.store_options.clone().or(&cluster.store_options);
            Origin::open_with(&cluster.store, &options)
        }
        (None, NodeRole::First { .. }) => Origin::open_dir(&config.data.join("store")),
    }
}

/// Refuses a store that does not let this node in. An unreachable one may come back: until then caches do.
async fn probe(origin: &Origin) -> Result<(), OriginError> {
    match tokio::time::timeout(STORE_TIMEOUT, origin.probe()).await {
        Ok(Err(error @ OriginError::Unavailable { .. })) => {
            warn!(error = %format!("{:#}", anyhow::Error::from(error)), "the store is unreachable; starting \
                without it");
            Ok(())
        }
        Err(_) => {
            warn!(store = origin.name(), "the store does not answer; starting without it");
            Ok(())
        }
        Ok(probed) => probed,
    }
}

/// Refuses another store than that of the cluster, if both can be asked by now.
async fn check_store(catalog: &CatalogBackend) -> Result<(), ServeError> {
    match tokio::time::timeout(STORE_TIMEOUT, catalog.check_store()).await {
        Ok(Err(error @ CatalogError::OtherStore { .. })) => Err(ServeError::OtherStore(error)),
        _ => Ok(()),
    }
}

/// Who may ask over HTTP. Where a token is asked, the first node leaves an administrator's for who owns its machine, and any node
/// where there is none.
async fn open_access(
    config: &Config,
    role: &NodeRole,
    metastore: &Arc<dyn Metastore>,
    record: &NodeRecord,
) -> Result<Access, ServeError> {
    let mark = Mark::in_data(&config.data);
    let was_asked = mark.is_set();
    let tokens = Tokens::open(Arc::clone(metastore), Some(mark)).await;
    let is_first = matches!(role, NodeRole::First { .. });
    // Tokens that a first node does not know any more went with its metadata: the node still asks for tokens.
    let are_lost = is_first && was_asked && !tokens.is_away() && !tokens.any();
    let of_cluster = role.cluster().is_some_and(|cluster| cluster.asks_tokens);
    let asked = match config.auth {
        Some(Auth::Tokens) => TokensAsked::Always,
        Some(Auth::None) => TokensAsked::Never,
        None if of_cluster || are_lost => TokensAsked::Always,
        None => TokensAsked::OnceThereIsOne,
    };
    let own = [record.quic.ip(), config.http.ip()].map(|address| Host::Address(address.to_canonical()));
    let hosts = [config.hosts(), own.to_vec(), config.allowed_hosts.clone()].concat();
    let access = Access { tokens, asked, hosts };
    if access.is_required() {
        private::close(&config.data);
    }
    let (tokens, is_away) = (&access.tokens, access.tokens.is_away());
    if access.is_required() && !is_away && (is_first || !tokens.has_administrator(None)) {
        owner::keep(&config.data, tokens).await?;
    }
    Ok(access)
}

/// Assembles the data of the join endpoints; nodes join at the first one. While only its own machine can
/// reach the first node, it keeps a reusable token in a file. Otherwise each joining node needs a token of
/// its own.
#[expect(clippy::too_many_arguments, reason = "each is a part of the node that is put together here")]
fn open_bootstrap(
    config: &Config,
    role: NodeRole,
    site: Site,
    is_alone: bool,
    transport: &Transport,
    origin: &Origin,
    kept_in: &Arc<dyn Metastore>,
    asks_tokens: bool,
) -> Result<Bootstrap, ServeError> {
    let digest = role.identity().authority();
    let ca = config.data.join("tls").join(CA_CERTIFICATE);
    let pem = std::fs::read_to_string(&ca).map_err(|source| CertificateError::Io { path: ca, source })?;
    let (identity, authority, metastore) = match role {
        NodeRole::Joined { cluster, .. } => {
            return Ok(Bootstrap { authority: pem, digest, cluster: *cluster, issuer: None });
        }
        NodeRole::First { identity, authority, metastore, .. } => (identity, authority, metastore),
    };
    let metastore = match metastore {
        MetastoreUrl::Sled => None,
        MetastoreUrl::Etcd(url) => Some(Box::new(url)),
    };
    let path = config.data.join("join-token");
    let standing = match is_alone {
        true => Some(JoinToken::keep(&path, site, digest)?.secret),
        false => {
            // One that lasts is for those who share the machine.
            let _ = std::fs::remove_file(&path);
            None
        }
    };
    let store = match origin.name() {
        url if url.contains("://") => url.to_owned(),
        path => {
            let path = std::path::absolute(path);
            let path = path.map_err(|source| ServeError::Data { path: config.data.clone(), source })?;
            path.display().to_string()
        }
    };
    let store_options = StoreOptions { ca: None, bandwidth: None, ..config.store_options.clone() };
    let (first, quic) = (identity.node().clone(), transport.address());
    let Site { address: http, tls } = site;
    let cluster = Cluster { store, store_options, first, http, tls, quic, asks_tokens, metastore };
    let issuer = CertificateIssuer {
        authority,
        authority_pem: pem.clone(),
        standing,
        first_key: identity.key_digest(),
        cluster: cluster.clone(),
        metastore: Arc::clone(kept_in),
        lifetime: config.certificate_lifetime,
    };
    Ok(Bootstrap { authority: pem, digest, cluster, issuer: Some(Arc::new(issuer)) })
}

/// Writes the ready line, whole or not at all.
fn write_ready(path: &Path, ready: &Ready) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.file_name().is_none() {
        return Err(ErrorKind::InvalidInput.into());
    }
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    writeln!(file, "{ready}")?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use shardd_store::http::HttpClient;
    use tempfile::TempDir;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::config::Settings;

    /// The limit of waits.
    const TIMEOUT: Duration = Duration::from_secs(30);

    struct Running {
        ready: Ready,
        stop: CancellationToken,
        serving: JoinHandle<Result<Ended, ServeError>>,
    }

    impl Running {
        async fn end(self) {
            let begun = Instant::now();
            self.stop.cancel();
            self.serving.await.expect("no panic").expect("a clean end");
            assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        }

        /// The names of the nodes that this one knows.
        async fn nodes(&self) -> Vec<String> {
            let url = format!("{}/v1/nodes", self.ready.http);
            let asked = tokio::task::spawn_blocking(move || {
                HttpClient::new(TIMEOUT).get_json::<Vec<NodeRecord>>(&url)
            });
            asked.await.unwrap().unwrap().into_iter().map(|node| node.id.to_string()).collect()
        }

        async fn sees(&self, names: &[&str]) {
            let seen = async {
                while self.nodes().await != names {
                    tokio::task::yield_now().await;
                }
            };
            timeout(TIMEOUT, seen)
                .await
                .unwrap_or_else(|_| panic!("{} does not see {names:?}", self.ready.id));
        }
    }

    fn settings(root: &TempDir, data: &str) -> Settings {
        let free = Some("127.0.0.1:0".parse().unwrap());
        Settings { data: Some(root.path().join(data)), http: free, quic: free, ..Settings::default() }
    }

    fn joining(root: &TempDir, data: &str, first: &str) -> Settings {
        let token = root.path().join(first).join("join-token");
        Settings { join: Some(format!("@{}", token.display())), ..settings(root, data) }
    }

    async fn start(settings: Settings) -> Result<Running, ServeError> {
        let (signals, (tell, told)) = (Signals::default(), oneshot::channel());
        let (config, stop) = (settings.resolve().expect("good settings"), signals.stop.clone());
        let serving = tokio::spawn(serve(
            config,
            signals,
            Box::new(|ready| tell.send(ready.clone()).expect("a receiver waits")),
        ));
        match told.await {
            Ok(ready) => Ok(Running { ready, stop, serving }),
            Err(_) => Err(serving.await.expect("no panic").expect_err("it was never ready")),
        }
    }

    async fn refused(settings: Settings) -> String {
        let error = start(settings).await.err().expect("refused");
        let text = format!("{:#}", anyhow::Error::from(error));
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nodes_join_lose_the_first_one_and_find_it_again() {
        let root = TempDir::new().unwrap();
        let first = start(settings(&root, "one")).await.expect("starts");
        assert_eq!(first.ready.id.as_str(), "n1");
        let ready_file = root.path().join("ready");
        let two = Settings {
            id: Some("n2".parse().unwrap()),
            ready_file: Some(ready_file.clone()),
            ..joining(&root, "two", "one")
        };
        let second = start(two).await.expect("joins");
        assert_eq!(std::fs::read_to_string(&ready_file).unwrap(), format!("{}\n", second.ready));
        first.sees(&["n1", "n2"]).await;
        second.sees(&["n1", "n2"]).await;

        first.end().await;
        // Without the first one, and without a token: the second starts again and waits for no other node.
        second.end().await;
        let second = start(settings(&root, "two")).await.expect("starts alone");
        assert_eq!(second.ready.id.as_str(), "n2");
        let first = start(settings(&root, "one")).await.expect("starts again");
        first.sees(&["n1", "n2"]).await;
        second.sees(&["n1", "n2"]).await;
        second.end().await;
        first.sees(&["n1"]).await;
        first.end().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_cannot_be_is_refused_in_one_line_with_the_way_out() {
        let root = TempDir::new().unwrap();
        let first = start(settings(&root, "one")).await.expect("starts");

        let taken = Settings { id: Some("n1".parse().unwrap()), ..joining(&root, "two", "one") };
        let error = refused(taken).await;
        assert!(error.contains("node id n1 is that of the first node") && error.contains("--id"), "{error}");
        let error = refused(settings(&root, "one")).await;
        assert!(error.contains("in use by another shardd"), "{error}");
        let busy = Settings { http: Some(first.ready.http.address), ..settings(&root, "three") };
        let error = refused(busy).await;
        assert!(
            error.contains(&format!("--http {}", first.ready.http.address)) && error.contains("in use"),
            "{error}"
        );
        assert!(!root.path().join("three").exists(), "nothing is left of a node that kept nothing");
        let busy = Settings { quic: Some(first.ready.quic), ..settings(&root, "three") };
        let error = refused(busy).await;
        assert!(error.contains(&format!("--quic {}", first.ready.quic)), "{error}");
        first.end().await;

        let renamed = Settings { id: Some("other".parse().unwrap()), ..settings(&root, "one") };
        let error = refused(renamed).await;
        assert!(error.contains("belongs to node n1, not other"), "{error}");
        let error = refused(joining(&root, "four", "one")).await;
        assert!(error.contains("is the first node running?"), "{error}");
        let error = refused(joining(&root, "one", "one")).await;
        assert!(error.contains("that of the first node"), "{error}");
        let store = Settings { store: Some("s3:/nonsense://".into()), ..settings(&root, "five") };
        let error = refused(store).await;
        assert!(error.contains("--store"), "{error}");
    }
}
