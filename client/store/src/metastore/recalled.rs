//! The last known values of some keys, for times when the metastore is unreachable: read-only, with their
//! age.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Entry, Expected, Following, LeaseId, Listing, MetaError, Metastore};

/// A metastore's entries below some prefixes, as they were heard last. A [`Metastore`] that nothing can be changed in.
#[derive(Debug)]
pub struct Recalled {
    prefixes: &'static [&'static str],
    /// By prefix; those that were never heard of are missing.
    heard: Mutex<BTreeMap<&'static str, Listing>>,
    /// Since when the metastore does not answer.
    away_since: Mutex<Option<Instant>>,
}

impl Recalled {
    /// Of the entries below these prefixes, of which none is below another. Nothing is heard yet.
    pub fn new(prefixes: &'static [&'static str]) -> Self {
        Self { prefixes, heard: Mutex::default(), away_since: Mutex::default() }
    }

    /// Follows the changes of `metastore`, until `stop`. While it is unavailable, it is asked again after
    /// this time.
    pub async fn follow(
        &self,
        metastore: &Arc<dyn Metastore>,
        again_after: Duration,
        stop: CancellationToken,
    ) {
        let follow = |prefix: &&'static str| {
            let (prefix, metastore) = (*prefix, Arc::clone(metastore));
            async move {
                let mut listings = Following::new(metastore.as_ref(), prefix, again_after);
                loop {
                    match listings.next().await {
                        Ok(listing) => self.hear(prefix, listing),
                        Err(_) => drop(self.away().get_or_insert_with(Instant::now)),
                    }
                }
            }
        };
        stop.run_until_cancelled(join_all(self.prefixes.iter().map(follow))).await;
    }

    /// How long ago this was so, if the metastore is unavailable.
    pub fn age(&self) -> Option<Duration> {
        self.away().map(|since| since.elapsed())
    }

    fn hear(&self, prefix: &'static str, listing: Listing) {
        self.heard.lock().expect("no panic while held").insert(prefix, listing);
        *self.away() = None;
    }

    fn away(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.away_since.lock().expect("no panic while held")
    }

    fn nothing<T>(&self) -> Result<T, MetaError> {
        let reason = "the metadata is unavailable, and the last copy of it has no such key".to_owned();
        Err(MetaError::Unavailable { store: "as this node remembers it".to_owned(), reason })
    }
}

#[async_trait]
impl Metastore for Recalled {
    async fn get(&self, key: &str) -> Result<Option<Entry>, MetaError> {
        let heard = self.heard.lock().expect("no panic while held");
        let Some((_, listing)) = heard.iter().find(|(prefix, _)| key.starts_with(**prefix)) else {
            return self.nothing();
        };
        let found = listing.entries.iter().find(|(name, _)| name == key);
        Ok(found.map(|(_, entry)| entry.clone()))
    }

    async fn lasting(&self) -> Result<Listing, MetaError> {
        // Which of them hang on a lease was not heard.
        self.nothing()
    }

    async fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        let heard = self.heard.lock().expect("no panic while held");
        let Some((_, listing)) = heard.iter().find(|(known, _)| prefix.starts_with(**known)) else {
            return self.nothing();
        };
        let below = listing.entries.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(Listing { entries: below.cloned().collect(), revision: listing.revision })
    }

    async fn put(&self, _: &str, _: Vec<u8>, _: Expected, _: Option<LeaseId>) -> Result<u64, MetaError> {
        self.nothing()
    }

    async fn delete(&self, _: &str, _: Expected) -> Result<u64, MetaError> {
        self.nothing()
    }

    async fn changed(&self, _: &str, _: u64) -> Result<u64, MetaError> {
        self.nothing()
    }

    async fn grant(&self, _: Duration) -> Result<LeaseId, MetaError> {
        self.nothing()
    }

    async fn renew(&self, _: LeaseId) -> Result<(), MetaError> {
        self.nothing()
    }

    async fn revoke(&self, _: LeaseId) -> Result<(), MetaError> {
        self.nothing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metastore::MemoryMetastore;

    #[tokio::test(start_paused = true)]
    async fn it_says_what_was_last_heard_and_changes_nothing() {
        let store: Arc<dyn Metastore> = Arc::new(MemoryMetastore::new());
        store.put("runs/a", b"one".to_vec(), Expected::Any, None).await.expect("kept");
        store.put("other/b", b"two".to_vec(), Expected::Any, None).await.expect("kept");
        let recalled = Arc::new(Recalled::new(&["runs/", "plans/"]));
        assert!(recalled.list("runs/").await.is_err(), "nothing is heard yet");
        let stop = CancellationToken::new();
        let (following, from, until) = (Arc::clone(&recalled), Arc::clone(&store), stop.clone());
        let follows =
            tokio::spawn(async move { following.follow(&from, Duration::from_secs(1), until).await });
        while recalled.get("runs/a").await.is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(recalled.get("runs/a").await, store.get("runs/a").await);
        assert_eq!(recalled.get("runs/b").await, Ok(None));
        store.put("runs/b", b"three".to_vec(), Expected::Any, None).await.expect("kept");
        while recalled.get("runs/b").await == Ok(None) {
            tokio::task::yield_now().await;
        }
        let names = |listing: Listing| listing.entries.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(recalled.list("runs/").await.expect("heard")), ["runs/a", "runs/b"]);
        assert_eq!(names(recalled.list("plans/").await.expect("heard")), [""; 0]);
        assert!(recalled.get("other/b").await.is_err() && recalled.age().is_none());
        assert!(recalled.put("runs/c", vec![], Expected::Any, None).await.is_err());
        stop.cancel();
        follows.await.expect("no panic");
    }
}
