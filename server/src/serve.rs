//! A node assembled from its parts: opened in order, run until the signal to stop, closed within five
//! seconds.

mod entrance;
mod member;
mod network;
mod role;
mod running;
mod storage;

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use shardd_api::drain::Drain;
use shardd_api::node::NodeId;
use shardd_certificates::CertificateError;
use shardd_engine::cache::CacheError;
use shardd_engine::engine::{Engine, EngineError};
use shardd_store::catalog::CatalogError;
use shardd_store::metastore::Backup;
use shardd_store::origin::OriginError;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::access::owner::OwnerError;
use crate::config::{Config, ConfigError, OnSigterm};
use crate::https::HttpsError;
use crate::identity::{Cluster, IdentityError, Site};
use crate::keeping::{self, KeepError};
pub use crate::keeping::{Migrated, MigrationError, RestoreError, Restored};
use crate::membership::MembershipError;
use crate::metastore::{MetastoreUrl, OpenError};
use crate::transport::TransportError;
use entrance::Entrance;
use member::Member;
use network::{Network, bind_http};
use role::{NodeRole, take_role};
use running::Running;
use storage::{Storage, open_store};

/// How long a node that starts waits for its store.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long everything together may take to end.
const GRACE: Duration = Duration::from_millis(4500);

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
    /// The metadata stays where it is.
    #[error(transparent)]
    Migration(#[from] MigrationError),
    /// The metadata is not made of a backup.
    #[error(transparent)]
    Restore(#[from] RestoreError),
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

/// Moves the metadata of the first node with these settings from sled to another place, while no process serves its data.
///
/// # Errors
/// [`ServeError::InUse`] while the node runs, [`ServeError::Migration`]; then the metadata is where it was.
pub async fn migrate(config: Config, to: &MetastoreUrl) -> Result<Migrated, ServeError> {
    let data = config.data.clone();
    if !data.join("tls").exists() {
        return Err(MigrationError::NotHere { path: data }.into());
    }
    let _locked = lock_data(&data)?;
    let config = Config { metastore: None, join: None, ..config };
    let role = take_role(&config).await?;
    let NodeRole::First { identity, metastore, .. } = &role else {
        return Err(MigrationError::NotHere { path: data }.into());
    };
    let origin = Arc::new(open_store(&config, &role)?);
    Ok(keeping::migrate(&data, identity, &origin, metastore, to).await?)
}

/// Makes the metadata of the cluster whose first node has these settings of a backup, while no process serves its data.
/// `is_replacing` permits that other metadata is there.
///
/// # Errors
/// [`ServeError::InUse`] while the node runs, [`ServeError::Restore`].
pub async fn restore(config: Config, backup: &Backup, is_replacing: bool) -> Result<Restored, ServeError> {
    let data = config.data.clone();
    if !data.join("tls").exists() {
        return Err(RestoreError::NotHere { path: data }.into());
    }
    let _locked = lock_data(&data)?;
    let config = Config { join: None, ..config };
    let role = take_role(&config).await?;
    let NodeRole::First { identity, metastore, .. } = &role else {
        return Err(RestoreError::NotHere { path: data }.into());
    };
    let origin = Arc::new(open_store(&config, &role)?);
    Ok(keeping::restore(&data, identity, &origin, metastore, backup, is_replacing).await?)
}

async fn serve_locked(
    config: Config,
    signals: Signals,
    ready: Box<dyn FnOnce(&Ready) + Send>,
) -> Result<Ended, ServeError> {
    let listener = bind_http(config.http).await?;
    let role = take_role(&config).await?;
    let network = Network::open(&config, &role, listener).await?;
    let (storage, role) = Storage::open(&config, role, &network).await?;
    let member = Member::register(&config, &role, &network, &storage).await?;
    let entrance = Entrance::open(&config, role, &network, &storage, member.finder.clone()).await?;

    let told = Ready { id: member.record.id.clone(), http: network.site, quic: network.transport.address() };
    let bound = network.bound;
    let asked_to_promote =
        entrance.promotion.as_ref().map_or_else(CancellationToken::new, |promotion| promotion.asked.clone());
    let (running, engine) = Running::start(&config, network, storage, member, entrance);
    let shutdown_requested = shutdown_requested(engine, config.on_sigterm, config.grace, signals.terminate);
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
        None => config.check_protection(false, false).map_err(|error| match error {
            ConfigError::InsecureHttp { http, without, flags, .. } => {
                let or_join = ", or --join @FILE on the first start of a node that joins";
                ConfigError::InsecureHttp { http, without, flags, or_join }
            }
            error => error,
        }),
    }
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
    use shardd_api::node::NodeRecord;
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
