//! Uploads in memory: few at once, fewer of one client, and the slower ones end when others wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::client::Client;
use super::problem::Refusal;
use super::{BODY_BYTES_A_SECOND, Limits, MAX_MANIFEST, MAX_SHARD, read_at};

/// Uploads in memory at once; more wait.
const PLACES: usize = 8;
/// Of one client: what one ingest sends at once.
const PLACES_A_CLIENT: usize = 4;
/// The least speed of an upload doubles whenever another has waited for this time...
const DOUBLES_EVERY: Duration = Duration::from_secs(5);
/// ...at most this number of times: 1 MiB/s is always enough.
const DOUBLINGS: u32 = 6;

/// The places for uploads, and who waits for one.
pub(super) struct Uploads {
    places: Semaphore,
    of_clients: Mutex<HashMap<Client, Arc<Semaphore>>>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    since: BTreeMap<u64, Instant>,
    next: u64,
}

/// A place, until it is dropped.
pub(super) struct Place<'a> {
    uploads: &'a Uploads,
    _of_all: SemaphorePermit<'a>,
    _of_client: OwnedSemaphorePermit,
}

/// Someone who waits.
struct Waiter<'a> {
    uploads: &'a Uploads,
    number: u64,
}

impl Default for Uploads {
    fn default() -> Self {
        let places = Semaphore::new(PLACES);
        Uploads { places, of_clients: Mutex::default(), waiting: Mutex::default() }
    }
}

impl Uploads {
    /// Waits for room for a number of uploads of usual size: first among the client's own, then among all.
    pub(super) async fn place(&self, client: Client, room: u32) -> Place<'_> {
        let own = self.own(client);
        let of_client = own.acquire_many_owned(room).await.expect("never closed");
        let waiter = self.wait();
        let of_all = self.places.acquire_many(room).await.expect("never closed");
        drop(waiter);
        Place { uploads: self, _of_all: of_all, _of_client: of_client }
    }

    /// Reads an object of the metadata, which takes the room of some shards. The place has to live until it is stored.
    ///
    /// # Errors
    /// As [`Place::read`].
    pub(super) async fn read_metadata(
        &self,
        client: Client,
        limits: &Limits,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<(Place<'_>, Bytes), Refusal> {
        let place = self.place(client, MAX_MANIFEST.div_ceil(MAX_SHARD) as u32).await;
        let bytes = place.read(limits, headers, body, MAX_MANIFEST).await?;
        Ok((place, bytes))
    }

    /// The places of a client. Those of clients that have none now are forgotten.
    fn own(&self, client: Client) -> Arc<Semaphore> {
        let mut of_clients = self.of_clients.lock().unwrap_or_else(PoisonError::into_inner);
        of_clients.retain(|_, places| Arc::strong_count(places) > 1);
        Arc::clone(of_clients.entry(client).or_insert_with(|| Arc::new(Semaphore::new(PLACES_A_CLIENT))))
    }

    fn wait(&self) -> Waiter<'_> {
        let mut waiting = self.waiting();
        let number = waiting.next;
        waiting.next += 1;
        waiting.since.insert(number, Instant::now());
        drop(waiting);
        Waiter { uploads: self, number }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The least speed of an upload now.
    fn least_speed(&self) -> u64 {
        let since = self.waiting().since.first_key_value().map(|(_, since)| *since);
        least_speed(since.map_or(Duration::ZERO, |since| since.elapsed()))
    }
}

impl Place<'_> {
    /// Reads a body of at most `limit` bytes, unless it comes too slowly for what others wait.
    pub(super) async fn read(
        &self,
        limits: &Limits,
        headers: &HeaderMap,
        body: Body,
        limit: usize,
    ) -> Result<Bytes, Refusal> {
        read_at(|| self.uploads.least_speed(), limits, headers, body, limit).await
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.uploads.waiting().since.remove(&self.number);
    }
}

/// The least speed of uploads when the one that waits longest has waited for this time.
fn least_speed(waited: Duration) -> u64 {
    let doublings = (waited.as_secs() / DOUBLES_EVERY.as_secs()).min(u64::from(DOUBLINGS));
    BODY_BYTES_A_SECOND << doublings
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures::{FutureExt, poll};

    use super::*;

    fn client(n: u8) -> Client {
        Client::Address(IpAddr::from([10, 0, 0, n]))
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_leaves_places_for_others() {
        let uploads = Uploads::default();
        let mut held = Vec::new();
        for _ in 0..PLACES_A_CLIENT {
            held.push(uploads.place(client(1), 1).now_or_never().expect("a place"));
        }
        let mut more = Box::pin(uploads.place(client(1), 1));
        assert!(poll!(&mut more).is_pending(), "it has its part");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(
            uploads.least_speed(),
            BODY_BYTES_A_SECOND,
            "a client that waits for itself hurries no \
            upload"
        );
        assert!(uploads.place(client(2), PLACES_A_CLIENT as u32).now_or_never().is_some());
        held.pop();
        assert!(more.now_or_never().is_some());
        drop(held);
        uploads.own(client(3));
        assert_eq!(uploads.of_clients.lock().expect("no panic").len(), 1, "the others are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn the_longer_others_wait_the_faster_an_upload_has_to_be() {
        let uploads = Uploads::default();
        let room = PLACES_A_CLIENT as u32;
        let _one = uploads.place(client(1), room).await;
        let other = uploads.place(client(2), room).await;
        let mut third = Box::pin(uploads.place(client(3), 1));
        assert!(poll!(&mut third).is_pending());
        for (seconds, times) in [(0, 1), (5, 2), (5, 4), (20, 64), (3600, 64)] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(uploads.least_speed(), BODY_BYTES_A_SECOND * times);
        }
        drop(other);
        third.await;
        assert_eq!(uploads.least_speed(), BODY_BYTES_A_SECOND, "no upload waits any more");
    }
}
