//! A metastore in a store: the users of a bucket keep names there, without any node; and so do the nodes of a
//! cluster that keeps its metadata in its store.
//!
//! Everything is in **one object**, `meta/pointers`, which every change replaces on condition that it is still the one that was
//! read (`If-None-Match: *` for the first, `If-Match` afterwards). One object for each key would make single changes
//! cheaper, but a store has no order of changes across objects and lists them one page after another: there would be no
//! revision that orders all changes, no listing of one moment, and no lease that takes its keys along at once, except with a
//! second object that every change replaces. As all values are pointers, the whole of them is small: some hundred bytes
//! for each version. It is read only if it has changed (`If-None-Match`), and at most [`MAX_BYTES`] long.
//!
//! - A change that finds the object replaced is computed again, at most [`ATTEMPTS`] times, a random time apart.
//! - The answer to a put can get lost. So every write bears a mark, the object keeps the last of them, and after
//!   anything but a plain yes it is looked up whether the mark is there. While the object is still the one replaced,
//!   the same bytes are put again: the late put and the repeated one cannot both happen.
//! - Leases carry their expiry as system time, which machines tell differently: they lapse [`CLOCKS_DIFFER`] later than
//!   asked for. The first reader after that deletes their keys. In the metadata of a cluster no process trusts the clocks
//!   of others at all: it ends a lease that it has seen unchanged for its lifetime ([`sightings`]).
//! - Waits look again after 1 s, later 16 s (changes made through the same value wake them at once): each look costs
//!   money. However many wait, one of them looks.
//! - Nodes of a cluster ([`BucketMetastore::of_cluster`]) look every second. Each renewal of a lease replaces the object, so
//!   their leases last longer ([`Pace::slack`]), and a renewal within that time only looks whether the lease is there.
//! - A store whose conditional puts do not hold is refused before the first name is put ([`races`]).

mod document;
mod races;
mod sightings;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use shardfmt::Digest;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::records::{LeaseRecord, decode, encode};
use super::relocation::{Arriving, LeasedEntry, OWNER, RELOCATION, no_changes, no_reads};
use super::{
    Entry, Expected, LeaseId, Listing, MetaError, Metastore, OF_CLUSTER, SystemClock, check_key, check_value,
};
use crate::causes::in_a_line;
use crate::origin::{Origin, OriginError, Swap, Swappable, Tag};
use crate::random::unlikely_twice;
use document::Document;
use sightings::Sightings;

const POINTERS: &str = "pointers";
/// The object is no longer than this.
const MAX_BYTES: u64 = 64 << 20;
/// How often a change is tried.
const ATTEMPTS: u32 = 16;
/// How often it is tried again of which no answer came: each waited long enough.
const UNKNOWN: u32 = 4;
/// How much the clocks of two machines may differ.
const CLOCKS_DIFFER: Duration = Duration::from_secs(5);

/// How often the object is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    /// How soon a wait looks again at first, and in the end.
    polls: [Duration; 2],
    /// How long a lease lives beyond the time asked for, so that renewals within this time need no write.
    slack: Duration,
    /// How long the store has for an answer.
    patience: Duration,
}

impl Pace {
    /// Of programs that use a store without nodes.
    const EMBEDDED: Self = Self {
        polls: [Duration::from_secs(1), Duration::from_secs(16)],
        slack: Duration::ZERO,
        patience: Duration::from_secs(300),
    };
    /// Of the nodes of a cluster, which continue without the metadata.
    const CLUSTER: Self = Self {
        polls: [Duration::from_secs(1); 2],
        slack: Duration::from_secs(20),
        patience: Duration::from_secs(4),
    };
}

/// A [`Metastore`] in a store. Its futures run on a tokio runtime.
pub struct BucketMetastore {
    origin: Arc<Origin>,
    clock: SystemClock,
    /// Gives numbers that are unlikely twice.
    chance: fn() -> u64,
    pace: Pace,
    /// Of a cluster: the digest of its authority.
    owner: Option<String>,
    /// How much the clocks of two machines may differ: a lease lives that much longer.
    clocks_differ: Duration,
    /// The state last read or written.
    known: Mutex<Known>,
    /// Held by the one of this process that changes something: the others would only lose.
    changing: tokio::sync::Mutex<()>,
    /// Held by the one of this process that looks for changes by others.
    looking: tokio::sync::Mutex<()>,
    /// Wakes all waits of this value when another state is known.
    touched: watch::Sender<()>,
    /// When each lease granted here was last written.
    held: Mutex<BTreeMap<LeaseId, Instant>>,
    /// How long leases were seen unchanged.
    sightings: Mutex<Sightings>,
}

/// A state of the object; without a tag, that there was none.
#[derive(Clone, Default)]
struct Known {
    tag: Option<Tag>,
    document: Arc<Document>,
}

impl BucketMetastore {
    /// The metastore in that store, for programs that use it without nodes. Nothing is asked of it yet.
    pub fn new(origin: Arc<Origin>) -> Self {
        Self::with_clock(origin, Pace::EMBEDDED, Arc::new(SystemTime::now), CLOCKS_DIFFER)
    }

    /// The same for a node of the cluster of this authority, which keeps its metadata there: the first change writes that down,
    /// and what belongs to another cluster is neither read nor changed. It looks for changes by other nodes every second, has
    /// no long patience with the store, and its leases live 25 s longer than asked for, since each renewal costs a write.
    pub fn of_cluster(origin: Arc<Origin>, authority: Digest) -> Self {
        let metastore = Self::with_clock(origin, Pace::CLUSTER, Arc::new(SystemTime::now), CLOCKS_DIFFER);
        Self { owner: Some(authority.to_string()), ..metastore }
    }

    /// Lets revisions and leases begin after those that the metadata has used where it was before, so that none is given out a
    /// second time.
    ///
    /// # Errors
    /// As for a change.
    pub async fn continue_after(&self, revision: u64, last_lease: u64) -> Result<(), MetaError> {
        self.change(|document| {
            document.continue_after(revision, last_lease);
            Ok(())
        })
        .await
    }

    /// Replaces all entries that hang on no lease by these, in one change; [`OWNER`] stays.
    ///
    /// # Errors
    /// As for a change.
    pub async fn replace_lasting(&self, entries: &BTreeMap<String, Vec<u8>>) -> Result<(), MetaError> {
        for (key, value) in entries {
            check_key(key)?;
            check_value(key, value)?;
        }
        self.change(|document| document.replace_lasting(entries, 0)).await
    }

    /// Takes over the metadata of its cluster from another place, in one change: these entries instead of those that are here, and
    /// numbers after those of that place. `note` is the revision of the caller's note of the relocation, which must still be here.
    ///
    /// # Errors
    /// As for a change; [`MetaError::Conflict`] when another has begun the same.
    pub async fn take_over(&self, arriving: &Arriving, note: u64) -> Result<(), MetaError> {
        self.change(|document| {
            Expected::At(note).check(RELOCATION, document.relocation().map(|note| note.revision))?;
            // No entry keeps a revision that it may have had, with another value, in the place before.
            document.continue_after(arriving.revision, 0);
            document.revoke_all();
            document.replace_lasting(&arriving.lasting, arriving.revision)?;
            for LeasedEntry { key, value, ttl } in &arriving.leased {
                let lease = document.grant(self.lifetime(*ttl), (*self.clock)());
                document.put(key, value, Expected::Any, Some(lease))?;
            }
            Ok(())
        })
        .await
    }

    /// Refuses a change of this key where the metadata moves. The note itself is changed.
    fn check_stays(&self, document: &Document, key: Option<&str>) -> Result<(), MetaError> {
        match document.relocation().filter(|_| key != Some(RELOCATION)) {
            Some(note) => Err(self.moving(no_changes(&note))),
            None => Ok(()),
        }
    }

    /// Refuses to read where the metadata is not, but for its note.
    fn check_is_here(&self, document: &Document, prefix: &str) -> Result<(), MetaError> {
        let note = document.relocation().filter(|_| prefix != RELOCATION);
        match note.as_ref().and_then(no_reads) {
            Some(reason) => Err(self.moving(reason)),
            None => Ok(()),
        }
    }

    fn moving(&self, reason: String) -> MetaError {
        MetaError::Unavailable { store: self.name(), reason }
    }

    /// Refuses what belongs to another cluster.
    fn check_owner(&self, document: &Document) -> Result<(), MetaError> {
        let Some((owner, there)) = self.owner.as_ref().zip(document.get(OWNER)) else { return Ok(()) };
        match there.value == owner.as_bytes() {
            true => Ok(()),
            false => Err(self.unchangeable(
                "it has the metadata of another cluster; join that cluster with --join, or name another store, or another folder of it",
            )),
        }
    }

    /// Makes the document that of this cluster, if it is no cluster's yet.
    fn claim(&self, document: &mut Document) -> Result<(), MetaError> {
        self.check_owner(document)?;
        if let Some(owner) = self.owner.as_ref().filter(|_| document.get(OWNER).is_none()) {
            document.put(OWNER, owner.as_bytes(), Expected::Absent, None)?;
        }
        Ok(())
    }

    fn with_clock(origin: Arc<Origin>, pace: Pace, clock: SystemClock, clocks_differ: Duration) -> Self {
        Self {
            origin,
            clock,
            chance: unlikely_twice,
            pace,
            owner: None,
            clocks_differ,
            known: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            touched: watch::Sender::new(()),
            held: Mutex::default(),
            sightings: Mutex::default(),
        }
    }

    /// Sees to it that names can be kept there, before there is much that wants one.
    ///
    /// # Errors
    /// [`MetaError::Unchangeable`] when they cannot, [`MetaError::Unavailable`] when the store cannot be asked.
    pub async fn begin(&self) -> Result<(), MetaError> {
        self.change(|_| Ok(())).await
    }

    /// Whether anything was ever kept there.
    ///
    /// # Errors
    /// [`MetaError::Unavailable`] when the store cannot be asked, which says why.
    pub async fn is_there(&self) -> Result<bool, MetaError> {
        if self.read().await?.is_some() {
            return Ok(true);
        }
        // A bucket that is missing looks the same.
        self.origin.probe().await.map_err(|error| self.unavailable(&error))?;
        Ok(false)
    }

    /// The object as it is now, if it is there.
    async fn read(&self) -> Result<Option<Known>, MetaError> {
        let known = self.known();
        let mut is_first = true;
        loop {
            let read = self.origin.read_swappable(POINTERS, known.tag.as_ref(), MAX_BYTES);
            let read = timeout(self.pace.patience, read).await.map_err(|_| self.silent())?;
            let (bytes, tag) = match read.map_err(|error| self.unavailable(&error))? {
                Swappable::Absent => {
                    self.learn(Known::default());
                    return Ok(None);
                }
                Swappable::Unchanged => {
                    self.sightings().look(Instant::now(), self.longest_look());
                    return Ok(Some(known));
                }
                Swappable::Present { bytes, tag } => (bytes, tag),
            };
            match decode::<Document>(&bytes).and_then(Document::checked) {
                Ok(document) => {
                    let read = Known { tag, document: Arc::new(document) };
                    self.learn(read.clone());
                    return Ok(Some(read));
                }
                Err(_) if is_first && self.origin.may_reread() => is_first = false,
                Err(reason) => return Err(self.damaged(reason)),
            }
        }
    }

    /// The present entries, to read those under a prefix, without lapsed leases.
    async fn view(&self, prefix: &str) -> Result<Arc<Document>, MetaError> {
        let mut document = self.read().await?.unwrap_or_default().document;
        self.check_owner(&document)?;
        self.check_is_here(&document, prefix)?;
        if self.is_stale(&document) {
            match self.change(|_| Ok(())).await {
                Ok(()) => document = self.known().document,
                // Who may only read sees the same as others will.
                Err(MetaError::Unchangeable { .. }) => self.lapse(Arc::make_mut(&mut document)),
                Err(error) => return Err(error),
            }
        }
        Ok(document)
    }

    /// Ends the leases whose time is over.
    fn lapse(&self, document: &mut Document) {
        let is_of_cluster = document.has(OWNER);
        document.lapse(self.is_over(is_of_cluster));
    }

    /// Whether a lease is over that took keys along.
    fn is_stale(&self, document: &Document) -> bool {
        document.is_stale(self.is_over(document.has(OWNER)))
    }

    /// Whether the time of a lease is over: in a cluster by its sightings, elsewhere by the clock.
    fn is_over(&self, is_of_cluster: bool) -> impl Fn(LeaseId, &LeaseRecord) -> bool {
        let now = (*self.clock)();
        move |lease, record| match is_of_cluster || self.pace == Pace::CLUSTER {
            true => self.sightings().has_been(lease, record.stamp(), record.lifetime()),
            false => record.has_lapsed(now),
        }
    }

    /// Lets `change` change what there is, and writes it, unless it is still the same.
    async fn change<T>(
        &self,
        mut change: impl FnMut(&mut Document) -> Result<T, MetaError>,
    ) -> Result<T, MetaError> {
        if self.origin.is_read_only() {
            return Err(self.unchangeable("a web server is only read; give the store that it shows"));
        }
        let _changing = self.changing.lock().await;
        // The known state may be old. If it is, the put fails.
        let mut base = self.known();
        let mut is_now = false;
        let mut lost = 0;
        loop {
            if base.tag.is_none() && !is_now {
                base = self.read_to_change().await?;
                is_now = true;
            }
            let mut next = Document::clone(&base.document);
            self.lapse(&mut next);
            let outcome = self.claim(&mut next).and_then(|()| change(&mut next));
            let is_done = base.tag.is_some() && next == *base.document;
            if outcome.is_err() || is_done {
                if is_now {
                    return outcome;
                }
                // Only of the present it is true that this is refused, or done already.
            } else if let Some(written) = self.write(&base, next).await? {
                self.learn(written);
                return outcome;
            } else {
                lost += 1;
                if lost == ATTEMPTS {
                    let reason = format!("others changed it {lost} times while this was tried; try again");
                    return Err(MetaError::Unavailable { store: self.name(), reason });
                }
                sleep(self.pause(lost)).await;
            }
            base = self.read_to_change().await?;
            is_now = true;
        }
    }

    /// The state to change. If there is nothing yet, the store first shows that it can be trusted with it.
    async fn read_to_change(&self) -> Result<Known, MetaError> {
        if let Some(read) = self.read().await? {
            return match read.tag {
                Some(_) => Ok(read),
                None => Err(self.unchangeable("its objects have no ETag, so that they cannot be compared")),
            };
        }
        self.origin.probe().await.map_err(|error| self.unavailable(&error))?;
        races::check(self).await?;
        Ok(Known::default())
    }

    /// Replaces `base`; `None` if it is no longer the stored object. The answer is certain.
    async fn write(&self, base: &Known, next: Document) -> Result<Option<Known>, MetaError> {
        let mark = (self.chance)();
        let next = next.marked(mark);
        let bytes = Bytes::from(encode(&next));
        if bytes.len() as u64 > MAX_BYTES {
            return Err(
                self.unchangeable("there would be too many names for one object; keep them in a node")
            );
        }
        let mut unknown: Option<String> = None;
        let mut unknowns = 0;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                sleep(self.pause(attempt)).await;
            }
            let swap = self.origin.swap(POINTERS, bytes.clone(), base.tag.as_ref());
            match timeout(self.pace.patience, swap).await {
                Ok(Swap::Done(Some(tag))) => {
                    return Ok(Some(Known { tag: Some(tag), document: Arc::new(next) }));
                }
                Ok(Swap::Refused(error)) if unknown.is_none() => {
                    return Err(self.unchangeable(&in_a_line(&error)));
                }
                Ok(Swap::Refused(error) | Swap::Unknown(error)) => {
                    unknown = Some(in_a_line(&error));
                    unknowns += 1;
                }
                Ok(Swap::Done(None) | Swap::Lost) => {}
                Err(_) => {
                    unknown = Some(self.silence());
                    unknowns += 1;
                }
            }
            let read = self.read().await.map_err(|error| match &unknown {
                Some(_) => self.undecided(&error.to_string()),
                None => error,
            })?;
            let now = read.unwrap_or_default();
            match now.document.descends_from(mark, base.document.writes()) {
                Some(true) => return Ok(Some(now)),
                Some(false) if now.tag != base.tag => return Ok(None),
                // The sent bytes may still arrive.
                Some(false) if unknowns < UNKNOWN => {}
                Some(false) => break,
                None => return Err(self.undecided("it was changed too often since")),
            }
        }
        Err(match unknown {
            Some(reason) => self.undecided(&reason),
            None => self.unchangeable("it refuses to replace an object that is unchanged"),
        })
    }

    fn known(&self) -> Known {
        self.known.lock().expect("no panic while held").clone()
    }

    /// Of two states that are learned at once, the later one is kept.
    fn learn(&self, read: Known) {
        let mut known = self.known.lock().expect("no panic while held");
        if read.tag.is_none() || read.document.writes() >= known.document.writes() {
            let is_other = read.tag != known.tag;
            let mut sightings = self.sightings();
            sightings.look(Instant::now(), self.longest_look());
            sightings.see(read.document.stamps());
            drop(sightings);
            *known = read;
            drop(known);
            if is_other {
                self.touched.send_replace(());
            }
        }
    }

    /// Looks for changes by others after this time, unless another part of the process has looked meanwhile.
    async fn look_after(&self, poll: Duration) -> Result<(), MetaError> {
        sleep(poll).await;
        self.look_within(poll).await
    }

    /// Looks, unless this process has within this time.
    async fn look_within(&self, poll: Duration) -> Result<(), MetaError> {
        let _looking = self.looking.lock().await;
        let looked = self.sightings().looked();
        if looked.is_none_or(|at| at.elapsed() >= poll) {
            self.read().await?;
        }
        Ok(())
    }

    /// The most that the time between two looks counts: a poll, and an answer that is late.
    fn longest_look(&self) -> Duration {
        self.pace.polls[1] + Pace::CLUSTER.patience
    }

    /// How long a lease lives that is asked to live this long.
    fn lifetime(&self, ttl: Duration) -> Duration {
        ttl.saturating_add(self.pace.slack).saturating_add(self.clocks_differ)
    }

    /// Whether the lease was written so lately that it lives for the time asked for, also without another write.
    fn is_fresh(&self, lease: LeaseId) -> bool {
        let written = self.held().get(&lease).copied();
        written.is_some_and(|written| written.elapsed() < self.pace.slack)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Instant>> {
        self.held.lock().expect("no panic while held")
    }

    fn sightings(&self) -> MutexGuard<'_, Sightings> {
        self.sightings.lock().expect("no panic while held")
    }

    /// How long to wait before another attempt: a random time, of which the longest doubles.
    fn pause(&self, attempt: u32) -> Duration {
        Duration::from_millis(50 << attempt.min(6)).mul_f64(self.share())
    }

    /// A random number from 0 to 1.
    fn share(&self) -> f64 {
        (self.chance)() as f64 / u64::MAX as f64
    }

    fn name(&self) -> String {
        let store = self.origin.name();
        match self.pace == Pace::CLUSTER {
            true => format!("{OF_CLUSTER}{store}"),
            false => store.to_owned(),
        }
    }

    fn unavailable(&self, error: &OriginError) -> MetaError {
        MetaError::Unavailable { store: self.name(), reason: in_a_line(error) }
    }

    fn silent(&self) -> MetaError {
        MetaError::Unavailable { store: self.name(), reason: self.silence() }
    }

    fn silence(&self) -> String {
        format!("it has not answered within {} s", self.pace.patience.as_secs())
    }

    fn undecided(&self, reason: &str) -> MetaError {
        let reason = format!("it is not known whether a change was made: {reason}");
        MetaError::Unavailable { store: self.name(), reason }
    }

    fn unchangeable(&self, reason: &str) -> MetaError {
        MetaError::Unchangeable { store: self.name(), reason: reason.to_owned() }
    }

    fn damaged(&self, reason: String) -> MetaError {
        MetaError::Damaged { store: self.name(), what: format!("meta/{POINTERS}"), reason }
    }
}

#[async_trait]
impl Metastore for BucketMetastore {
    async fn get(&self, key: &str) -> Result<Option<Entry>, MetaError> {
        check_key(key)?;
        Ok(self.view(key).await?.get(key))
    }

    async fn put(
        &self,
        key: &str,
        value: Vec<u8>,
        expected: Expected,
        lease: Option<LeaseId>,
    ) -> Result<u64, MetaError> {
        check_key(key)?;
        check_value(key, &value)?;
        self.change(|document| {
            self.check_stays(document, Some(key))?;
            document.put(key, &value, expected, lease)
        })
        .await
    }

    async fn delete(&self, key: &str, expected: Expected) -> Result<u64, MetaError> {
        check_key(key)?;
        self.change(|document| {
            self.check_stays(document, Some(key))?;
            document.delete(key, expected)
        })
        .await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        Ok(self.view(prefix).await?.list(prefix))
    }

    async fn lasting(&self) -> Result<Listing, MetaError> {
        Ok(self.view("").await?.lasting())
    }

    async fn changed(&self, prefix: &str, since: u64) -> Result<u64, MetaError> {
        // Subscribed before the first look: a change after the look wakes the wait.
        let mut touched = self.touched.subscribe();
        let [mut poll, longest] = self.pace.polls;
        let mut document = self.view(prefix).await?;
        loop {
            let newest = document.newest_under(prefix, since);
            if newest > since {
                return Ok(newest);
            }
            // A look of a node says as much.
            let next_lapse = document.next_lapse().filter(|_| self.pace != Pace::CLUSTER);
            let lapse = next_lapse.and_then(|at| at.duration_since((*self.clock)()).ok());
            let lapse = async {
                match lapse {
                    Some(lapse) => sleep(lapse).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                changed = touched.changed() => changed.expect("the sender lives in self"),
                looked = self.look_after(poll) => {
                    looked?;
                    poll = longest.min(poll.mul_f64(1.0 + self.share()));
                }
                () = lapse => {}
            }
            // What is learned after this wakes the wait again.
            touched.mark_unchanged();
            document = self.known().document;
            self.check_is_here(&document, prefix)?;
            if self.is_stale(&document) {
                document = self.view(prefix).await?;
            }
        }
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError> {
        // By the clock of each attempt: an earlier one may have waited for long.
        let granted = |document: &mut Document| {
            self.check_stays(document, None)?;
            let lease = document.grant(self.lifetime(ttl), (*self.clock)());
            Ok((lease, Instant::now()))
        };
        let (lease, written) = self.change(granted).await?;
        self.held().insert(lease, written);
        Ok(lease)
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), MetaError> {
        if self.is_fresh(lease) {
            // Another may have ended it: that is seen as soon as by those who wait for it.
            self.look_within(self.pace.polls[0]).await?;
            let document = self.known().document;
            self.check_is_here(&document, "")?;
            return match document.has_lease(lease) {
                true => Ok(()),
                false => Err(MetaError::LeaseLost { lease }),
            };
        }
        // Where the metadata is being left, its leases live on: a move may be given up.
        let renewed = |document: &mut Document| {
            self.check_is_here(document, "")?;
            document.renew(lease, (*self.clock)()).map(|()| Instant::now())
        };
        match self.change(renewed).await {
            Ok(written) => {
                if let Some(held) = self.held().get_mut(&lease) {
                    *held = written;
                }
                Ok(())
            }
            Err(error) => {
                if matches!(error, MetaError::LeaseLost { .. }) {
                    self.held().remove(&lease);
                }
                Err(error)
            }
        }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.held().remove(&lease);
        self.change(|document| {
            self.check_is_here(document, "")?;
            document.revoke(lease);
            Ok(())
        })
        .await
    }
}
