//! The places of a node's data: the store, the metadata, the cache.

use std::sync::Arc;

use shardd_engine::cache::{Cache, CacheConfig};
use shardd_store::catalog::{CatalogBackend, CatalogError};
use shardd_store::metastore::{CopyShelf, MetadataCopy, Metastore, MetastoreAddress};
use shardd_store::origin::{Origin, OriginError};
use shardd_store::stores::{Refusal, Service, StoreOptions};
use tracing::{info, warn};

use super::network::Network;
use super::role::{NodeRole, take_over};
use super::{STORE_TIMEOUT, ServeError};
use crate::config::Config;
use crate::identity::Cluster;
use crate::keeping::{self, Keeping, Places};
use crate::metastore::{self, MetastoreNode, MetastoreTimes, MetastoreUrl, MovableMetastore, TimedMetastore};
use crate::transport::{RemoteMetastore, Transport};

/// The open places of a node's data.
pub(super) struct Storage {
    pub(super) origin: Arc<Origin>,
    pub(super) catalog: CatalogBackend,
    pub(super) cache: Cache,
    pub(super) metadata: Opened,
    /// The copy of the metadata in the store.
    pub(super) shelf: CopyShelf,
    /// The node that has the metadata, in a cluster that this one joined.
    pub(super) metastore_node: Option<Arc<MetastoreNode>>,
}

impl Storage {
    /// Opens the store, then the metadata, then the cache. The node may take over the metadata here, which changes its role.
    pub(super) async fn open(
        config: &Config,
        mut role: NodeRole,
        network: &Network,
    ) -> Result<(Self, NodeRole), ServeError> {
        let identity = Arc::clone(role.identity());
        let origin = Arc::new(open_store(config, &role)?);
        probe(&origin).await?;
        let shelf = CopyShelf::of(Arc::clone(&origin), identity.authority());
        let (site, quic) = (network.site, network.transport.address());
        let me = MetastoreAddress { node: identity.node().clone(), http: site.to_string(), quic };
        if config.metadata.promote {
            role = take_over(config, role, &shelf, &me, site).await?;
        }
        let metastore_node = role.cluster().map(|cluster| MetastoreNode::new(cluster.first.clone()));
        let had_metadata = config.data.join("meta").exists();
        let metadata =
            open_metastore(config, &role, &network.transport, &origin, &shelf, &me, metastore_node.as_ref())
                .await?;
        let catalog = CatalogBackend::new(Arc::clone(&origin), Arc::clone(&metadata.metastore));
        check_store(&catalog).await?;
        if let NodeRole::First { .. } = role {
            tell_of_store(config, &role, network.is_alone());
            tell_of_names(!had_metadata, &catalog, &shelf).await;
        }
        let (directory, limit) = (config.data.join("cache"), config.cache_size);
        let cache =
            tokio::task::spawn_blocking(move || Cache::open(directory, CacheConfig { limit })).await??;
        keep_free(config, &cache, &origin);
        Ok((Self { origin, catalog, cache, metadata, shelf, metastore_node }, role))
    }
}

/// A node's way to the metadata.
pub(super) struct Opened {
    /// Its source of facts.
    pub(super) metastore: Arc<dyn Metastore>,
    /// Behind that, its place.
    pub(super) movable: Arc<MovableMetastore>,
    /// Its cache for others: those that joined with a release that asks the first node, wherever that has it
    /// from.
    pub(super) kept: Option<Arc<dyn Metastore>>,
    /// Where it is kept in sled: that, and its copy.
    pub(super) keeping: Option<Arc<Keeping>>,
    /// How long the requests of this node take.
    pub(super) times: Arc<MetastoreTimes>,
}

async fn open_metastore(
    config: &Config,
    role: &NodeRole,
    transport: &Arc<Transport>,
    origin: &Arc<Origin>,
    shelf: &CopyShelf,
    me: &MetastoreAddress,
    metastore_node: Option<&Arc<MetastoreNode>>,
) -> Result<Opened, ServeError> {
    let (place, metastore, keeping): (_, Arc<dyn Metastore>, _) = match role {
        NodeRole::First { metastore: place @ (MetastoreUrl::Etcd(_) | MetastoreUrl::Store), .. }
        | NodeRole::Joined { metastore: place @ (MetastoreUrl::Etcd(_) | MetastoreUrl::Store), .. } => {
            let places = Places { origin: Arc::clone(origin), cluster: role.identity().authority() };
            let (opened, now) = match role {
                // It claims the store, which has to answer.
                NodeRole::First { is_new: true, .. } => (places.open(place, true).await?, place.clone()),
                _ => places.open_moved(place.clone()).await?,
            };
            if now != *place {
                metastore::leave(&config.data, place)?;
                remember_place(config, role, &now)?;
            }
            info!(metastore = %now, "metadata is in {}", if now == MetastoreUrl::Store { "the store" } else { "etcd" });
            (now, opened, None)
        }
        NodeRole::First { metastore: MetastoreUrl::Sled, is_new, .. } => {
            let recover = config.metadata.recover;
            let opened = keeping::open(&config.data, shelf, me, *is_new, recover).await?;
            let keeping::Opened { sled, epoch, base } = opened;
            if let Err(error) = sled.set_epoch(epoch).await {
                warn!(%error, "the metadata takes no changes yet");
            }
            let keeping = Keeping::new(Arc::clone(&sled), shelf.clone(), me.clone(), epoch, base);
            (MetastoreUrl::Sled, sled, Some(keeping))
        }
        NodeRole::Joined { metastore: MetastoreUrl::Sled, cluster, .. } => {
            transport.learn(&cluster.first, cluster.quic);
            let metastore_node =
                metastore_node.map_or_else(|| MetastoreNode::new(cluster.first.clone()), Arc::clone);
            (MetastoreUrl::Sled, Arc::new(RemoteMetastore::new(Arc::clone(transport), metastore_node)), None)
        }
    };
    let movable = MovableMetastore::new(place, metastore);
    let metastore: Arc<dyn Metastore> = movable.clone();
    let kept = matches!(role, NodeRole::First { .. }).then(|| Arc::clone(&metastore));
    let times = Arc::default();
    let metastore = Arc::new(TimedMetastore { inner: metastore, times: Arc::clone(&times) });
    Ok(Opened { metastore, movable, kept, keeping, times })
}

/// Lets the node begin at that place of the metadata at its next start.
fn remember_place(config: &Config, role: &NodeRole, place: &MetastoreUrl) -> Result<(), ServeError> {
    match role {
        NodeRole::First { .. } => Ok(metastore::remember(&config.data, place)?),
        NodeRole::Joined { cluster, .. } => {
            let moved = Cluster { metastore: Some(Box::new(place.clone())), ..Cluster::clone(cluster) };
            Ok(moved.save(&config.data.join("tls"))?)
        }
    }
}

/// Keeps room on the disks of cache and store for the metadata, which may share them. The disk of a cache may be
/// another than that of the data directory, and much smaller.
fn keep_free(config: &Config, cache: &Cache, origin: &Origin) {
    let reserve = config.disk_reserve.map(|reserve| reserve.0);
    cache.keep_free(reserve);
    origin.keep_free(reserve);
}

/// Says what of this first node's data depends on this machine's disk alone.
fn tell_of_store(config: &Config, role: &NodeRole, is_alone: bool) {
    if config.store.is_none() && role.cluster().is_none() {
        let what = "the store is in this node's own data directory: data, and the copy of the metadata, are lost with its disk; --store names another place";
        match is_alone {
            true => info!("{what}"),
            false => warn!("{what}"),
        }
    }
}

/// Says whether names were lost, or are those of another cluster over the same store.
async fn tell_of_names(is_new: bool, catalog: &CatalogBackend, shelf: &CopyShelf) {
    let looked = tokio::time::timeout(STORE_TIMEOUT, catalog.has_lost_its_names()).await;
    let Ok(Ok(has_lost_names)) = looked else { return };
    if !has_lost_names && !is_new {
        return;
    }
    let others = tokio::time::timeout(STORE_TIMEOUT, shelf.of_others()).await;
    let newest = others.ok().and_then(Result::ok).and_then(|others| others.into_iter().next());
    if let Some(MetadataCopy { keeper: MetastoreAddress { node, http, .. }, .. }) = newest {
        warn!(
            store = catalog.origin().name(),
            "this store belongs to a cluster whose metadata node {node} ({http}) keeps, and this node has founded another cluster over it: \
             to join that cluster, start this node with an empty --data directory and --join, after you have promoted another of its nodes \
             if {node} is lost; if that cluster is gone or its key is lost, run `shardctl recover` here"
        );
    } else if has_lost_names {
        warn!(
            store = catalog.origin().name(),
            "the metadata knows no dataset, but the store holds commits of some: `shardctl recover` brings back names, tags and plans"
        );
    }
}

/// Opens the store asked for, else the cluster's, else the node's own.
pub(super) fn open_store(config: &Config, role: &NodeRole) -> Result<Origin, OriginError> {
    let options = store_options(config, role.cluster());
    match (&config.store, role.cluster()) {
        (Some(store), _) => Origin::open_with(store, &options),
        (None, Some(cluster)) => Origin::open_with(&cluster.store, &options),
        (None, None) => Origin::open_dir(&config.data.join("store")),
    }
}

/// The options of the store: this node's own, and for the cluster's store also those that came with it.
pub(super) fn store_options(config: &Config, cluster: Option<&Cluster>) -> StoreOptions {
    let own = config.store_options.clone();
    match (&config.store, cluster) {
        (None, Some(cluster)) => own.or(&cluster.store_options),
        _ => own,
    }
}

/// Refuses a store that does not let this node in. An unreachable one may come back: until then caches do.
async fn probe(origin: &Origin) -> Result<(), OriginError> {
    if origin.asks_metadata_service() {
        info!(
            store = origin.name(),
            "no AWS_ACCESS_KEY_ID in the environment; asking the cloud's metadata service"
        );
    }
    match tokio::time::timeout(STORE_TIMEOUT, origin.probe()).await {
        Ok(Err(error @ OriginError::Unavailable { .. })) => {
            warn!(error = %format!("{:#}", anyhow::Error::from(error)), "the store is unreachable; starting \
                without it");
            Ok(())
        }
        Err(_) => {
            let reason =
                origin.asks_metadata_service().then(|| Refusal::no_credentials(Service::S3).to_string());
            warn!(store = origin.name(), reason, "the store does not answer; starting without it");
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
