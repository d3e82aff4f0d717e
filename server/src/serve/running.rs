//! The tasks of a serving node, and their end in order.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardd_api::exchange::ExchangeSettings;
use shardd_api::machine::Directory;
use shardd_engine::engine::Engine;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::entrance::Entrance;
use super::member::{Member, passes};
use super::network::Network;
use super::storage::{Opened, Storage};
use super::{GRACE, ServeError};
use crate::config::Config;
use crate::http::{self, Api};
use crate::keeping::{KeepError, Keeping, Places, Relocator, RememberPlace};
use crate::membership::{self, Finder, MembershipError};
use crate::memory;
use crate::metastore::{self, MetastoreUrl};
use crate::observe::{Observer, Recorder, WatchedDisk, usage};
use crate::transport::{LookService, Services, Transport};

/// The tasks of a serving node.
pub(super) struct Running {
    pub(super) serving: JoinHandle<()>,
    pub(super) member: JoinHandle<Result<(), MembershipError>>,
    pub(super) copying: JoinHandle<Result<(), KeepError>>,
    pub(super) tasks: TaskTracker,
    pub(super) transport: Arc<Transport>,
    /// Ends the HTTP API, then the tasks, then the copying of metadata.
    pub(super) http_stop: CancellationToken,
    pub(super) inner: CancellationToken,
    pub(super) copied: CancellationToken,
}

impl Running {
    /// Starts the node's engine and all that runs beside it.
    pub(super) fn start(
        config: &Config,
        network: Network,
        storage: Storage,
        member: Member,
        entrance: Entrance,
    ) -> (Self, Arc<Engine>) {
        let Network { http, files, transport, revoked, .. } = network;
        let Storage { origin, catalog, cache, metadata, .. } = storage;
        let Member { record, membership, lease, finder, local } = member;
        let Entrance { access, bootstrap, promotion, renewal } = entrance;
        let identity = Arc::clone(&renewal.identity);
        let disks = watched_disks(&config.data, origin.directory());
        let Opened { metastore, movable, kept, keeping, times } = metadata;
        let relocator = (movable.place() != MetastoreUrl::Sled).then(|| {
            let places = Places { origin: Arc::clone(&origin), cluster: bootstrap.digest };
            let remember = remember_place(config.data.clone(), finder.clone());
            Arc::new(Relocator { present: movable, places, remember, moving: Mutex::default() })
        });
        let engine = Engine::new(
            record.id.clone(),
            origin,
            Arc::new(cache),
            Arc::clone(&metastore),
            transport.clone(),
        );
        let reports = config.data.join("reports");
        if let Err(error) = engine.keep_reports_in(&reports) {
            warn!(path = %reports.display(), %error, "the reports of ranks during an outage of the metadata \
                cannot be kept on disk");
        }
        engine.measure_pressure(Box::new(usage::pressure_shares));
        engine.set_exchange(ExchangeSettings { rate: config.exchange_rate, ..ExchangeSettings::default() });

        let (tasks, inner) = (TaskTracker::new(), CancellationToken::new());
        if let Some(local) = local {
            engine.lend(passes());
            tasks.spawn(local.serve(Arc::clone(&engine), config.share, inner.clone()));
        }
        let recorder = Arc::new(Recorder::new(Arc::clone(&engine), disks, Some(identity)));
        tasks.spawn(Arc::clone(&recorder).record_until(inner.clone()));
        let observer = Arc::new(Observer::new(
            record.id.clone(),
            Arc::clone(&engine),
            keeping.clone(),
            recorder,
            Some(Arc::clone(&transport)),
        ));
        let services = Services {
            peers: Arc::new(Arc::clone(&engine)),
            metastore: kept,
            issuer: bootstrap.issuer.clone(),
            looks: Some(Arc::clone(&observer) as Arc<dyn LookService>),
        };
        tasks.spawn(Arc::clone(&transport).serve(services, inner.clone()));
        tasks.spawn(membership::follow_addresses(
            Arc::clone(&metastore),
            Arc::clone(&transport),
            finder.clone(),
            inner.clone(),
        ));
        tasks.spawn(Arc::clone(&engine).run_until(inner.clone()));
        if let Some(relocator) = &relocator {
            tasks.spawn(Arc::clone(relocator).follow(inner.clone()));
        }
        tasks.spawn(Arc::clone(&access.tokens).follow(inner.clone()));
        tasks.spawn(revoked.follow(metastore, inner.clone()));
        tasks.spawn(renewal.keep(inner.clone()));
        tasks.spawn(memory::trim_after_load(inner.clone()));
        if let Some(files) = files {
            tasks.spawn(files.follow(inner.clone()));
        }
        let api = Api {
            node: record,
            engine: Arc::clone(&engine),
            catalog,
            bootstrap,
            access,
            keeping: keeping.clone(),
            promotion,
            relocator,
            observer,
            times,
            limits: http::Limits::default(),
        };
        let (http_stop, copied) = (CancellationToken::new(), CancellationToken::new());
        let running = Self {
            serving: tokio::spawn(http::serve(http, api, http_stop.clone())),
            member: tokio::spawn(membership.keep(lease, finder, inner.clone())),
            // The copy is made as long as anything may change, and once more then.
            copying: tokio::spawn(copy_until(keeping, copied.clone())),
            tasks,
            transport,
            http_stop,
            inner,
            copied,
        };
        (running, engine)
    }

    /// Serves until `stop`, or until the node has lost its membership or its metadata; then ends all tasks in order.
    pub(super) async fn until(mut self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let (mut left, mut fenced) = (None, None);
        tokio::select! {
            () = stop => {}
            ended = &mut self.member => left = Some(ended),
            ended = &mut self.copying => fenced = Some(ended),
        }
        info!("stopping");
        self.http_stop.cancel();
        let all = async {
            // Requests under way may end while everything that answers them still runs.
            self.serving.await?;
            self.inner.cancel();
            self.tasks.close();
            let left = match left {
                Some(left) => left,
                None => self.member.await,
            };
            self.tasks.wait().await;
            self.copied.cancel();
            let fenced = match fenced {
                Some(fenced) => fenced,
                None => (&mut self.copying).await,
            };
            self.transport.close().await;
            left??;
            Ok::<_, ServeError>(fenced??)
        };
        match tokio::time::timeout(GRACE, all).await {
            Ok(ended) => ended,
            Err(_) if self.tasks.is_empty() && self.copying.is_finished() => {
                info!("stopped before the last connections were closed");
                Ok(())
            }
            Err(_) if self.tasks.is_empty() => {
                warn!("stopped before the last changes of the metadata were copied to the store");
                Ok(())
            }
            Err(_) => {
                warn!(remaining = self.tasks.len(), "tasks outlived the shutdown grace");
                Ok(())
            }
        }
    }
}

/// Lets the node begin at the new place of its metadata at its next start.
fn remember_place(data: PathBuf, finder: Option<Arc<Finder>>) -> RememberPlace {
    Box::new(move |before, place| {
        let left = metastore::leave(&data, before);
        let kept = match &finder {
            Some(finder) => {
                finder.uses(place);
                left
            }
            None => left.and_then(|()| metastore::remember(&data, place)),
        };
        if let Err(error) = kept {
            warn!(%error, "the new place of the metadata cannot be kept for the next start, which finds it by the note in the place \
                before");
        }
    })
}

/// The disks on which a node keeps data: that of its cache, of its identity and metadata, and of a store in a directory.
fn watched_disks(data: &Path, store: Option<&Path>) -> Vec<WatchedDisk> {
    let disk = |directory, path: &Path| WatchedDisk::of(directory, path.to_owned());
    let own = [disk(Directory::Cache, &data.join("cache")), disk(Directory::Data, data)];
    own.into_iter().chain(store.map(|store| disk(Directory::Store, store))).collect()
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
