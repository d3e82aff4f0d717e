//! Keeps those who are about to point at objects and the one who deletes objects out of each other's way.
//!
//! A version can be committed, tagged or planned whose objects nothing reaches at that moment: they were put long ago,
//! and what pointed at them is gone. gc may be deleting them. So both announce themselves in the metastore first and look
//! at the other's announcement afterwards, and as all operations of a metastore have one order, at least one of them
//! sees the other:
//!
//! - The writer of a pointer announces the objects that it will reach (a [`Guard`], under `intents/`), waits until any
//!   sweep that began *before* its announcement has ended, only then checks that the objects exist, and writes the
//!   pointer.
//! - gc announces a [`Sweep`] (`gc/sweep`), then reads all pointers *and intents*, deletes unreachable objects, and
//!   takes its announcement back when the store has confirmed. It sweeps in small slices, so that waits are short.
//!
//! If the intent comes first, gc reads it and spares the objects. If the sweep is first, the writer waits and
//! then finds the deleted objects missing. Clocks play no part, with one exception: so that a crashed process
//! does not block others without end, both announcements hang on leases far longer than the operations they
//! cover. A sweep names its process. The sweep of an ended process delays no gc, where its requests to the
//! store are complete.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardfmt::{CommitId, PlanId, VersionId};
use tokio::time::timeout;

use super::CatalogError;
use super::records::{from_json, to_json};
use crate::metastore::relocation::LeasedEntry;
use crate::metastore::{Entry, Expected, LeaseId, MetaError, Metastore};
use crate::origin::Origin;
use crate::process::{Life, ProcessName};

pub(super) const INTENTS: &str = "intents/";
const SWEEP: &str = "gc/sweep";

/// How long an intent lives whose owner has died; a commit looks for every shard of its version meanwhile.
const INTENT_LIVES: Duration = Duration::from_secs(60 * 60);
/// How long a sweep is waited for that has lost its owner. A slice deletes for less than half of that.
const SWEEP_LIVES: Duration = Duration::from_secs(75);
/// How long to wait for the end of a sweep: a gc that was killed delays others, and fails none.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The objects that a coming pointer will reach, directly and through others.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Reach {
    /// The commit that a branch or a tag will name.
    pub commit: Option<CommitId>,
    /// The version of a data set.
    pub version: Option<VersionId>,
    /// The plan of a run.
    pub plan: Option<PlanId>,
}

/// While this stands, gc spares the announced objects. It ends with [`end`](Self::end), or an hour after it
/// was dropped.
pub struct Guard {
    metastore: Arc<dyn Metastore>,
    lease: LeaseId,
}

impl Guard {
    /// Announces what a pointer will reach, and waits for deletions that began before; `None` when they do
    /// not end. Objects found in the store from here on stay there. A sweep of a dead process is taken back,
    /// as a gc does when it begins.
    ///
    /// # Errors
    ///
    /// When the metastore cannot be asked.
    pub async fn announce(
        metastore: &Arc<dyn Metastore>,
        reach: &Reach,
        store: StoreOf,
    ) -> Result<Option<Self>, MetaError> {
        let lease = metastore.grant(INTENT_LIVES).await?;
        let guard = Self { metastore: Arc::clone(metastore), lease };
        let key = format!("{INTENTS}{lease}");
        let announced = metastore.put(&key, to_json(reach), Expected::Absent, Some(lease)).await?;
        match timeout(TIMEOUT, guard.sweeps_before(announced, store)).await {
            Ok(waited) => waited.map(|()| Some(guard)),
            Err(_) => {
                guard.end().await;
                Ok(None)
            }
        }
    }

    async fn sweeps_before(&self, announced: u64, store: StoreOf) -> Result<(), MetaError> {
        loop {
            let listing = self.metastore.list(SWEEP).await?;
            let before = listing.entries.iter().find(|(_, sweep)| sweep.revision < announced);
            let Some((_, sweep)) = before else { return Ok(()) };
            if !take_back(&self.metastore, sweep, store).await? {
                self.metastore.changed(SWEEP, listing.revision).await?;
            }
        }
    }

    /// Whether it still stands: to be asked just before the pointer is written.
    ///
    /// # Errors
    ///
    /// [`MetaError::LeaseLost`] when it lapsed; the pointer must not be written then.
    pub async fn renew(&self) -> Result<(), MetaError> {
        self.metastore.renew(self.lease).await
    }

    /// The pointer has been written, or will not be.
    pub async fn end(self) {
        if let Err(error) = self.metastore.revoke(self.lease).await {
            tracing::debug!(%error, "an intent stays until it lapses");
        }
    }
}

/// The late effects in a store of requests of an ended process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOf {
    /// Nothing: the system has done it, or has not.
    Directory,
    /// A request that is on its way may still be carried out.
    Service,
}

impl StoreOf {
    /// That of the store of `origin`.
    pub fn at(origin: &Origin) -> Self {
        if origin.is_directory() { Self::Directory } else { Self::Service }
    }
}

/// While this stands, pointers that are announced later wait before they look for their objects.
pub(super) struct Sweep {
    metastore: Arc<dyn Metastore>,
    lease: LeaseId,
}

impl Sweep {
    /// Announces deletions. One that was left by a process of this machine that has ended is taken back, if the `store`
    /// does nothing any more that such a process asked of it; one of any other process is waited for, as it may lapse.
    ///
    /// # Errors
    ///
    /// [`CatalogError::Busy`] when there is another sweep.
    pub(super) async fn announce(
        metastore: &Arc<dyn Metastore>,
        store: StoreOf,
    ) -> Result<Self, CatalogError> {
        let busy = || CatalogError::Busy { what: "this gc".to_owned() };
        let announced = timeout(TIMEOUT, async {
            loop {
                if let Some(sweep) = Self::try_announce(metastore).await? {
                    return Ok(sweep);
                }
                let listing = metastore.list(SWEEP).await?;
                let Some((_, other)) = listing.entries.into_iter().next() else { continue };
                if life(&other) == Life::Lives {
                    return Err(busy());
                }
                if !take_back(metastore, &other, store).await? {
                    metastore.changed(SWEEP, listing.revision).await?;
                }
            }
        });
        announced.await.unwrap_or_else(|_| Err(busy()))
    }

    /// `None` when there is another.
    async fn try_announce(metastore: &Arc<dyn Metastore>) -> Result<Option<Self>, MetaError> {
        let lease = metastore.grant(SWEEP_LIVES).await?;
        let sweep = Self { metastore: Arc::clone(metastore), lease };
        let holder = to_json(&ProcessName::this());
        match metastore.put(SWEEP, holder, Expected::Absent, Some(lease)).await {
            Ok(_) => Ok(Some(sweep)),
            Err(error) => {
                sweep.end().await?;
                match error {
                    MetaError::Conflict { .. } => Ok(None),
                    error => Err(error),
                }
            }
        }
    }

    /// Whether it still stands, and will for [`SLICE_TAKES`](super::error::SLICE_TAKES) and longer.
    ///
    /// # Errors
    ///
    /// [`MetaError::LeaseLost`] when it lapsed; nothing may be deleted then.
    pub(super) async fn renew(&self) -> Result<(), MetaError> {
        self.metastore.renew(self.lease).await
    }

    /// No deletion is under way any more. Where that is not known this is not called, and the sweep lapses later.
    pub(super) async fn end(self) -> Result<(), MetaError> {
        self.metastore.revoke(self.lease).await
    }
}

/// The announcements in a metastore, to be carried to another place of the metadata. Their owners do not know the leases there:
/// each lives as long as that of a dead owner.
///
/// # Errors
/// When the metastore cannot be asked.
pub async fn announcements(metastore: &dyn Metastore) -> Result<Vec<LeasedEntry>, MetaError> {
    let mut found = Vec::new();
    for (prefix, ttl) in [(INTENTS, INTENT_LIVES), (SWEEP, SWEEP_LIVES)] {
        let there = metastore.list(prefix).await?.entries.into_iter();
        found.extend(there.map(|(key, entry)| LeasedEntry { key, value: entry.value, ttl }));
    }
    Ok(found)
}

/// Whether the process lives that announced a sweep.
fn life(sweep: &Entry) -> Life {
    from_json::<ProcessName>(SWEEP, &sweep.value).map_or(Life::Unknown, |holder| holder.life())
}

/// Takes back a sweep whose process has ended, where the store does nothing any more that this process asked of it. `false` if it
/// has to be waited for.
async fn take_back(metastore: &Arc<dyn Metastore>, sweep: &Entry, store: StoreOf) -> Result<bool, MetaError> {
    if life(sweep) != Life::Ended || store == StoreOf::Service {
        return Ok(false);
    }
    match metastore.delete(SWEEP, Expected::At(sweep.revision)).await {
        Ok(_) | Err(MetaError::Conflict { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;

    use super::*;
    use crate::metastore::MemoryMetastore;

    fn metastore() -> Arc<dyn Metastore> {
        Arc::new(MemoryMetastore::new())
    }

    async fn intents(metastore: &Arc<dyn Metastore>) -> usize {
        metastore.list(INTENTS).await.expect("lists").entries.len()
    }

    #[tokio::test(start_paused = true)]
    async fn an_intent_waits_for_the_sweeps_before_it_and_for_no_later_one() {
        let metastore = metastore();
        let reach = Reach::default();
        let before = Sweep::announce(&metastore, StoreOf::Service).await.expect("the first");
        let mut guard = Box::pin(Guard::announce(&metastore, &reach, StoreOf::Service));
        while intents(&metastore).await == 0 {
            assert!(poll!(&mut guard).is_pending(), "it waits");
        }
        assert!(poll!(&mut guard).is_pending(), "though it is announced");
        before.end().await.expect("ends");
        let later = Sweep::announce(&metastore, StoreOf::Service).await.expect("the other has ended");
        let guard = guard.await.expect("announces").expect("the later sweep sees the intent");
        guard.renew().await.expect("it stands");
        guard.end().await;
        assert_eq!(intents(&metastore).await, 0);
        later.end().await.expect("ends");
    }

    #[tokio::test(start_paused = true)]
    async fn one_sweep_at_a_time() {
        let metastore = metastore();
        let first = Sweep::announce(&metastore, StoreOf::Service).await.expect("the first");
        let second = Sweep::announce(&metastore, StoreOf::Service).await.err().expect("there is one");
        assert!(matches!(second, CatalogError::Busy { .. }), "{second}");
        first.renew().await.expect("it stands");
        first.end().await.expect("ends");
        Sweep::announce(&metastore, StoreOf::Service).await.expect("the first has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_crash_left_lapses() {
        let metastore = metastore();
        drop(Sweep::announce(&metastore, StoreOf::Service).await.expect("the first"));
        let reach = Reach::default();
        let waiting = timeout(SWEEP_LIVES, Guard::announce(&metastore, &reach, StoreOf::Service));
        let guard = waiting.await.expect("before long").expect("announces");
        drop(guard.expect("it waits longer than a sweep lives"));
        assert_eq!(intents(&metastore).await, 1);
        tokio::time::advance(INTENT_LIVES).await;
        assert_eq!(intents(&metastore).await, 0);
    }

    /// As a process of this machine leaves it that is killed.
    async fn left_by_the_dead(metastore: &Arc<dyn Metastore>) {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("it runs");
        let holder = ProcessName::of(child.id()).expect("it lives");
        child.kill().and_then(|()| child.wait()).expect("it ends");
        let lease = metastore.grant(SWEEP_LIVES).await.expect("grants");
        metastore.put(SWEEP, to_json(&holder), Expected::Absent, Some(lease)).await.expect("announced");
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_does_not_wait_for_a_killed_gc_of_this_machine() {
        let metastore = metastore();
        left_by_the_dead(&metastore).await;
        let begun = tokio::time::Instant::now();
        let guard = Guard::announce(&metastore, &Reach::default(), StoreOf::Directory).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        guard.expect("announces").expect("at once").end().await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_sweep_of_a_killed_gc_does_not_refuse_the_next() {
        let metastore = metastore();
        left_by_the_dead(&metastore).await;
        let begun = tokio::time::Instant::now();
        let next = Sweep::announce(&metastore, StoreOf::Directory).await.expect("at once");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        next.end().await.expect("ends");
        // A request to a service may still be under way: until that cannot be, it is waited for.
        left_by_the_dead(&metastore).await;
        let next = Sweep::announce(&metastore, StoreOf::Service).await.expect("it lapses");
        assert!((SWEEP_LIVES..=TIMEOUT).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        next.end().await.expect("ends");
    }
}
