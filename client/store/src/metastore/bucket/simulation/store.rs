//! The way of one node to a store in memory: requests that are late, lost before or after they are done, throttled, or not
//! answered for a while, as a seed says. A request that has left is under way even if its sender crashes or is paused.
//! Time is that of the tests, which have `start_paused = true`.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use tokio::time::{Instant, sleep, sleep_until};

/// Random numbers that are the same for a seed everywhere (splitmix64; Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// One of them.
    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// True so often.
    pub(super) fn happens(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64 / (1u64 << 53) as f64) < probability
    }

    /// A time up to this.
    pub(super) fn up_to(&mut self, longest: Duration) -> Duration {
        longest.mul_f64((self.next() >> 11) as f64 / (1u64 << 53) as f64)
    }
}

/// How often which fault befalls a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// The longest that one is on its way, one way.
    pub(super) latency: Duration,
    /// It is lost before it is done.
    pub(super) lost: f64,
    /// It is done, and the answer is lost.
    pub(super) answer_lost: f64,
    /// It is refused with 503 Slow Down.
    pub(super) throttled: f64,
    /// It arrives after this time, if that is long ago for its sender.
    pub(super) late: f64,
}

/// All in order.
pub(super) const FAIR: Weather =
    Weather { latency: Duration::from_millis(40), lost: 0.0, answer_lost: 0.0, throttled: 0.0, late: 0.0 };

/// Requests and bytes so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub(super) gets: u64,
    pub(super) puts: u64,
    pub(super) bytes: u64,
}

struct State {
    dice: Dice,
    weather: Weather,
    /// Nothing is answered before.
    silent_until: Option<Instant>,
    traffic: Traffic,
}

/// A node's way to the store.
#[derive(Clone)]
pub(super) struct Link {
    inner: Arc<InMemory>,
    state: Arc<Mutex<State>>,
}

/// What befalls one request.
struct Fate {
    out: Duration,
    back: Duration,
    is_lost: bool,
    is_answer_lost: bool,
    is_throttled: bool,
    silent_until: Option<Instant>,
}

impl Link {
    pub(super) fn new(inner: &Arc<InMemory>, dice: Dice) -> Link {
        let state = State { dice, weather: FAIR, silent_until: None, traffic: Traffic::default() };
        Link { inner: Arc::clone(inner), state: Arc::new(Mutex::new(state)) }
    }

    pub(super) fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    pub(super) fn be_silent(&self, until: Instant) {
        self.state().silent_until = Some(until);
    }

    /// All in order again.
    pub(super) fn heal(&self) {
        let mut state = self.state();
        (state.weather, state.silent_until) = (FAIR, None);
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.state().traffic
    }

    fn count(&self, gets: u64, puts: u64, bytes: u64) {
        let traffic = &mut self.state().traffic;
        (traffic.gets, traffic.puts) = (traffic.gets + gets, traffic.puts + puts);
        traffic.bytes += bytes;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    fn fate(&self) -> Fate {
        let mut state = self.state();
        let weather = state.weather;
        let silent_until = state.silent_until.filter(|until| *until > Instant::now());
        let dice = &mut state.dice;
        let late =
            if dice.happens(weather.late) { dice.up_to(Duration::from_secs(40)) } else { Duration::ZERO };
        Fate {
            out: dice.up_to(weather.latency) + late,
            back: dice.up_to(weather.latency),
            // Of those that get no answer, one half was done.
            is_lost: dice.happens(weather.lost) || silent_until.is_some() && dice.happens(0.5),
            is_answer_lost: dice.happens(weather.answer_lost),
            is_throttled: dice.happens(weather.throttled),
            silent_until,
        }
    }

    /// Lets a request happen, whatever becomes of its sender.
    async fn request<T: Send + 'static>(
        &self,
        work: impl Future<Output = StoreResult<T>> + Send + 'static,
    ) -> StoreResult<T> {
        let fate = self.fate();
        let under_way = tokio::spawn(async move {
            sleep(fate.out).await;
            if fate.is_throttled {
                return Err(failed("503 Slow Down"));
            }
            let done = if fate.is_lost { Err(failed("the connection was reset")) } else { work.await };
            sleep(fate.back).await;
            if let Some(until) = fate.silent_until {
                sleep_until(until).await;
            }
            if fate.is_answer_lost { Err(failed("the connection was reset")) } else { done }
        });
        under_way.await.expect("no panic")
    }
}

fn failed(reason: &'static str) -> Error {
    Error::Generic { store: "simulated", source: reason.into() }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated")
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated")
    }
}

#[async_trait]
impl ObjectStore for Link {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        self.count(0, 1, payload.content_length() as u64);
        let (inner, path) = (Arc::clone(&self.inner), path.clone());
        self.request(async move { inner.put_opts(&path, payload, options).await }).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.count(1, 0, 0);
        let (inner, path) = (Arc::clone(&self.inner), path.clone());
        let found = self.request(async move { inner.get_opts(&path, options).await }).await?;
        self.count(0, 0, found.meta.size);
        Ok(found)
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
