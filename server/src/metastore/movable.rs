//! The metastore of a node, which may become another one while the node serves.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use shardd_store::metastore::{Entry, Expected, LeaseId, Listing, MetaError, Metastore};
use tokio::sync::watch;

use super::MetastoreUrl;

/// The metadata where it is now. A replacement ends all waits, without cause, and the leases of the place before are lost; so
/// their holders look at the new place, and put their keys again.
pub struct MovableMetastore {
    present: RwLock<Present>,
    replaced: watch::Sender<()>,
    leases: Mutex<Leases>,
}

/// The leases that were granted here: an etcd keeps those of all its prefixes, so the new place may know an old one.
#[derive(Default)]
struct Leases {
    live: BTreeSet<LeaseId>,
    lost: BTreeSet<LeaseId>,
}

#[derive(Clone)]
struct Present {
    place: MetastoreUrl,
    metastore: Arc<dyn Metastore>,
}

impl MovableMetastore {
    /// Begins with `metastore`, in that place.
    #[must_use]
    pub fn new(place: MetastoreUrl, metastore: Arc<dyn Metastore>) -> Arc<MovableMetastore> {
        let present = RwLock::new(Present { place, metastore });
        Arc::new(MovableMetastore { present, replaced: watch::Sender::new(()), leases: Mutex::default() })
    }

    /// The place now.
    #[must_use]
    pub fn place(&self) -> MetastoreUrl {
        self.now().place
    }

    /// The place now, and its metastore.
    #[must_use]
    pub fn present(&self) -> (MetastoreUrl, Arc<dyn Metastore>) {
        let Present { place, metastore } = self.now();
        (place, metastore)
    }

    /// Whether this one is used now.
    #[must_use]
    pub fn is(&self, metastore: &Arc<dyn Metastore>) -> bool {
        Arc::ptr_eq(&self.now().metastore, metastore)
    }

    /// Uses another from now on, if `before` is used still.
    pub fn replace(
        &self,
        before: &Arc<dyn Metastore>,
        place: MetastoreUrl,
        metastore: Arc<dyn Metastore>,
    ) -> bool {
        let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&present.metastore, before) {
            return false;
        }
        *present = Present { place, metastore };
        let Leases { live, lost } = &mut *self.leases();
        lost.append(live);
        drop(present);
        self.replaced.send_replace(());
        true
    }

    fn now(&self) -> Present {
        self.present.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn metastore(&self) -> Arc<dyn Metastore> {
        self.now().metastore
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The metastore that may know this lease.
    fn with_lease(&self, lease: LeaseId) -> Result<Arc<dyn Metastore>, MetaError> {
        let metastore = self.metastore();
        match self.leases().lost.contains(&lease) {
            true => Err(MetaError::LeaseLost { lease }),
            false => Ok(metastore),
        }
    }
}

#[async_trait]
impl Metastore for MovableMetastore {
    async fn get(&self, key: &str) -> Result<Option<Entry>, MetaError> {
        self.metastore().get(key).await
    }

    async fn put(
        &self,
        key: &str,
        value: Vec<u8>,
        expected: Expected,
        lease: Option<LeaseId>,
    ) -> Result<u64, MetaError> {
        let metastore = lease.map_or_else(|| Ok(self.metastore()), |lease| self.with_lease(lease))?;
        metastore.put(key, value, expected, lease).await
    }

    async fn delete(&self, key: &str, expected: Expected) -> Result<u64, MetaError> {
        self.metastore().delete(key, expected).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        self.metastore().list(prefix).await
    }

    async fn lasting(&self) -> Result<Listing, MetaError> {
        self.metastore().lasting().await
    }

    async fn changed(&self, prefix: &str, since: u64) -> Result<u64, MetaError> {
        // Subscribed before the metastore is taken: a replacement after that ends the wait.
        let mut replaced = self.replaced.subscribe();
        let metastore = self.metastore();
        tokio::select! {
            changed = metastore.changed(prefix, since) => changed,
            _ = replaced.changed() => Ok(since),
        }
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError> {
        let metastore = self.metastore();
        let lease = metastore.grant(ttl).await?;
        let present = self.present.read().unwrap_or_else(PoisonError::into_inner);
        let mut leases = self.leases();
        match Arc::ptr_eq(&present.metastore, &metastore) {
            true => leases.live.insert(lease),
            false => leases.lost.insert(lease),
        };
        Ok(lease)
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.with_lease(lease)?.renew(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        // A lease of the place before has ended with that.
        let Ok(metastore) = self.with_lease(lease) else { return Ok(()) };
        metastore.revoke(lease).await?;
        self.leases().live.remove(&lease);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use shardd_store::metastore::{MemoryMetastore, conformance};

    use super::*;

    fn of(metastore: MemoryMetastore) -> (Arc<dyn Metastore>, Arc<MovableMetastore>) {
        let metastore: Arc<dyn Metastore> = Arc::new(metastore);
        (Arc::clone(&metastore), MovableMetastore::new(MetastoreUrl::Store, metastore))
    }

    #[tokio::test(start_paused = true)]
    async fn it_keeps_the_promises_of_a_metastore() {
        conformance::all(async || of(MemoryMetastore::new()).1 as Arc<dyn Metastore>).await;
    }

    #[tokio::test]
    async fn a_replacement_ends_waits_and_leases_and_is_made_once() {
        let (before, movable) = of(MemoryMetastore::new());
        let lease = movable.grant(Duration::from_secs(60)).await.expect("grants");
        let waits = tokio::spawn({
            let movable = Arc::clone(&movable);
            async move { movable.changed("k", 7).await }
        });
        tokio::task::yield_now().await;
        let etcd: MetastoreUrl = "etcd://one/p".parse().expect("a URL");
        let after = MemoryMetastore::new();
        let other = after.grant(Duration::from_secs(60)).await.expect("grants");
        assert_eq!(other, lease, "the new place knows one of that name");
        assert!(movable.replace(&before, etcd.clone(), Arc::new(after)));
        assert_eq!(waits.await.expect("no panic"), Ok(7), "it wakes without cause");
        assert!(matches!(movable.renew(lease).await, Err(MetaError::LeaseLost { .. })));
        assert_eq!(movable.place(), etcd);
        assert!(!movable.replace(&before, MetastoreUrl::Store, Arc::clone(&before)), "another was faster");
        assert!(!movable.is(&before));
    }
}
