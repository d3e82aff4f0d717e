//! Tries a store that is a service elsewhere: lists, writes, reads, replaces on a condition and deletes an object under a name
//! that nothing else has, and measures a few MB. The object is removed however the trial ends.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};
use shardd_store::stores::{Late, Refusal, Service, StoreOptions, open};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::clock::{Skew, now};

/// How long each request may take, and the removal at the end.
const LIMIT: Duration = Duration::from_secs(10);
/// The bytes of the object whose transfer is measured.
pub(super) const LARGE: usize = 4 << 20;
/// Puts that race for one object: some servers look at a condition a moment before they write.
pub(super) const RACERS: usize = 8;
/// The bytes of each: the more, the wider that moment.
const RACED: usize = 64 << 10;
/// The times that small requests are measured.
const TIMES: usize = 3;

/// Why a request was in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The credentials do not suffice, or are wrong.
    Denied(String),
    /// There is no such bucket.
    NoBucket(String),
    /// The clock of this machine is wrong, by that of the store.
    Clock(String),
    /// It does not answer.
    Unreachable(String),
    /// It is in another region.
    Region(String),
    /// It is only read.
    ReadOnly,
    /// Something else.
    Other(String),
}

/// Which of the racers for one object were let through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Conditions {
    /// One, each time.
    Hold,
    /// Several, or none: how many.
    Broken(usize),
    /// The service has no such requests.
    Absent(String),
}

/// The outcome of each step; steps behind one that failed are `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Trial {
    pub(super) listed: Option<Result<(), Fault>>,
    pub(super) written: Option<Result<Duration, Fault>>,
    pub(super) read: Option<Result<Duration, Fault>>,
    pub(super) conditions: Option<Result<Conditions, Fault>>,
    /// Bytes a second, written and read.
    pub(super) rates: Option<(f64, f64)>,
    pub(super) skew: Option<Skew>,
    pub(super) deleted: Option<Result<(), Fault>>,
}

/// Becomes true when the trial shall end.
pub(super) type Stop = watch::Receiver<bool>;

/// Tries the store at a URL, until `stop`: a write under way ends first, so that its object can be removed.
pub(super) fn attempt(url: &str, options: &StoreOptions, stop: Stop) -> Result<Trial, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Fault::Other(error.to_string()))?;
    // Requests do not go out twice: one that is late is part of the picture.
    let opened = open(url, options, Late::WaitedFor).map_err(|refusal| of_refusal(&refusal))?;
    let folder =
        url.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, folder)| folder);
    let own = Path::from(format!("{}/doctor/{}", folder.trim_matches('/'), unlikely_twice()));
    let bucket =
        Bucket { store: opened.store, service: opened.service, own, has_written: Cell::new(false), stop };
    Ok(runtime.block_on(async {
        let mut trial = Trial::default();
        bucket.each_step(&mut trial).await;
        if bucket.has_written.get() {
            trial.deleted = Some(bucket.clear().await);
        }
        trial
    }))
}

struct Bucket {
    store: Arc<dyn ObjectStore>,
    service: Service,
    /// The folder of all that is written.
    own: Path,
    /// Whether there may be something in it.
    has_written: Cell<bool>,
    stop: Stop,
}

impl Bucket {
    async fn each_step(&self, trial: &mut Trial) {
        if self.service == Service::Web {
            trial.listed = Some(self.ask(self.store.head(&self.own)).await.map_or_else(
                |fault| if fault == Fault::Other(NOT_FOUND.to_owned()) { Ok(()) } else { Err(fault) },
                |_| Ok(()),
            ));
            trial.written = Some(Err(Fault::ReadOnly));
            return;
        }
        let listed = self.ask(self.store.list_with_delimiter(Some(&self.own))).await.map(drop);
        let goes_on = !matches!(
            listed,
            Err(Fault::Unreachable(_) | Fault::NoBucket(_) | Fault::Region(_) | Fault::Clock(_))
        );
        trial.listed = Some(listed);
        if !goes_on || self.is_over() {
            return;
        }
        self.has_written.set(true);
        let small = self.own.clone().join("small");
        let mut times = Vec::new();
        for _ in 0..TIMES {
            let began = Instant::now();
            if let Err(fault) = self.write(self.put(&small, vec![1; 64], PutMode::Overwrite)).await {
                trial.written = Some(Err(fault));
                return;
            }
            times.push(began.elapsed());
        }
        trial.written = Some(Ok(middle(times)));
        trial.read = Some(self.read(&small).await);
        trial.skew = self.skew(&small).await;
        trial.conditions = Some(self.race().await);
        trial.rates = self.rates().await;
    }

    async fn put(&self, path: &Path, bytes: Vec<u8>, mode: PutMode) -> Result<UpdateVersion, Error> {
        let put = self.store.put_opts(path, PutPayload::from(bytes), PutOptions::from(mode)).await?;
        Ok(put.into())
    }

    async fn read(&self, path: &Path) -> Result<Duration, Fault> {
        let mut times = Vec::new();
        for _ in 0..TIMES {
            let began = Instant::now();
            let bytes = self.ask(async { self.store.get(path).await?.bytes().await }).await?;
            if bytes[..] != [1; 64] {
                return Err(Fault::Other("other bytes come back than were written".to_owned()));
            }
            times.push(began.elapsed());
        }
        Ok(middle(times))
    }

    /// The clock of the store, by the date of an object that is written now.
    async fn skew(&self, path: &Path) -> Option<Skew> {
        let sent = now();
        self.write(self.put(path, vec![1; 64], PutMode::Overwrite)).await.ok()?;
        let received = now();
        let meta = self.ask(self.store.head(path)).await.ok()?;
        Some(Skew::of_answer(sent, received, u64::try_from(meta.last_modified.timestamp()).ok()?))
    }

    /// Lets puts race to make one object, and then to replace it.
    async fn race(&self) -> Result<Conditions, Fault> {
        let path = self.own.clone().join("raced");
        let mut mode = PutMode::Create;
        for round in 0..2 {
            if self.is_over() {
                return Err(Fault::Other(STOPPED.to_owned()));
            }
            let mut racers = JoinSet::new();
            for racer in 0..RACERS {
                let (store, path, options) =
                    (self.store.clone(), path.clone(), PutOptions::from(mode.clone()));
                // No two alike: the tag of an object may be the digest of its bytes.
                let bytes = PutPayload::from(vec![(round * RACERS + racer) as u8; RACED]);
                racers.spawn(async move { timeout(LIMIT, store.put_opts(&path, bytes, options)).await });
            }
            let mut versions = Vec::new();
            while let Some(joined) = racers.join_next().await {
                match joined {
                    Ok(Ok(Ok(put))) => versions.push(UpdateVersion::from(put)),
                    // A lost answer says nothing of the others.
                    Ok(Err(_)) | Err(_) => return Err(Fault::Unreachable(late())),
                    Ok(Ok(Err(
                        Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. },
                    ))) => {}
                    Ok(Ok(Err(error @ (Error::NotImplemented { .. } | Error::NotSupported { .. })))) => {
                        return Ok(Conditions::Absent(short(&error.to_string())));
                    }
                    Ok(Ok(Err(error))) => match self.fault(&error) {
                        // Amazon answers 409 where two are at work at once: the put was not made.
                        Fault::Other(reason) if reason.contains("409") || reason.contains("Conflict") => {}
                        Fault::Other(reason)
                            if reason.contains("501") || reason.contains("NotImplemented") =>
                        {
                            return Ok(Conditions::Absent(reason));
                        }
                        fault => return Err(fault),
                    },
                }
            }
            let [version] = &versions[..] else { return Ok(Conditions::Broken(versions.len())) };
            mode = PutMode::Update(version.clone());
        }
        Ok(Conditions::Hold)
    }

    async fn rates(&self) -> Option<(f64, f64)> {
        let path = self.own.clone().join("large");
        let bytes: Vec<u8> = (0..LARGE).map(|at| (at / 3) as u8).collect();
        let began = Instant::now();
        self.write(self.put(&path, bytes, PutMode::Overwrite)).await.ok()?;
        let written = began.elapsed();
        let began = Instant::now();
        self.ask(async { self.store.get(&path).await?.bytes().await }).await.ok()?;
        let rate = |took: Duration| LARGE as f64 / took.as_secs_f64().max(1e-9);
        Some((rate(written), rate(began.elapsed())))
    }

    /// Removes all that was written.
    async fn clear(&self) -> Result<(), Fault> {
        let remove = async |name: &str| {
            let path = self.own.clone().join(name);
            match self.within_limit(self.store.delete(&path)).await {
                Err(Fault::Other(reason)) if reason == NOT_FOUND => Ok(()),
                removed => removed,
            }
        };
        let (small, raced, large) = tokio::join!(remove("small"), remove("raced"), remove("large"));
        small.and(raced).and(large)
    }

    /// The answer to a request that changes nothing, until `stop`.
    async fn ask<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Fault> {
        let mut stop = self.stop.clone();
        tokio::select! {
            Ok(_) = stop.wait_for(|is_over| *is_over) => Err(Fault::Other(STOPPED.to_owned())),
            answer = self.within_limit(request) => answer,
        }
    }

    /// The answer to a request that changes something, unless the trial shall end before it is sent.
    async fn write<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Fault> {
        match self.is_over() {
            true => Err(Fault::Other(STOPPED.to_owned())),
            false => self.within_limit(request).await,
        }
    }

    fn is_over(&self) -> bool {
        *self.stop.borrow()
    }

    /// The answer to a request, within the limit.
    async fn within_limit<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Fault> {
        match timeout(LIMIT, request).await {
            Ok(answer) => answer.map_err(|error| self.fault(&error)),
            Err(_) => Err(Fault::Unreachable(late())),
        }
    }

    fn fault(&self, error: &Error) -> Fault {
        match error {
            Error::NotFound { .. } if !error.to_string().contains("NoSuchBucket") => {
                Fault::Other(NOT_FOUND.to_owned())
            }
            error => of_refusal(&Refusal::of(self.service, error)),
        }
    }
}

/// A request that was not made, as the trial shall end.
const STOPPED: &str = "interrupted";
/// An object that is not there.
const NOT_FOUND: &str = "there is no such object";

fn late() -> String {
    format!("no answer within {} s", LIMIT.as_secs())
}

/// The meaning of a refusal.
fn of_refusal(refusal: &Refusal) -> Fault {
    let text = refusal.to_string();
    if ["RequestTimeTooSkewed", "RequestExpired", "AuthenticationFailed: The Date"]
        .iter()
        .any(|code| text.contains(code))
    {
        return Fault::Clock(text);
    }
    match refusal {
        Refusal::Denied { .. } | Refusal::Profile { .. } => Fault::Denied(text),
        Refusal::NoBucket { .. } => Fault::NoBucket(text),
        Refusal::Unreachable { .. } => Fault::Unreachable(text),
        Refusal::Region { .. } => Fault::Region(text),
        _ => Fault::Other(text),
    }
}

fn short(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(160).collect()
}

/// A name for an object of a trial: it comes from the keys of the system's hash maps, which are random.
fn unlikely_twice() -> String {
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}

/// The time in the middle.
fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_faults_with_different_remedies() {
        let denied = |reason: &str| Refusal::Denied { reason: reason.to_owned(), way_out: "set it" };
        assert!(matches!(of_refusal(&denied("AccessDenied")), Fault::Denied(_)));
        let skewed = of_refusal(&denied("RequestTimeTooSkewed: The difference between the request time"));
        assert!(matches!(skewed, Fault::Clock(_)), "{skewed:?}");
        assert!(matches!(of_refusal(&Refusal::NoBucket { way_out: "x" }), Fault::NoBucket(_)));
        assert!(matches!(of_refusal(&Refusal::Region { reason: String::new() }), Fault::Region(_)));
        assert!(matches!(of_refusal(&Refusal::NotFound), Fault::Other(_)));
        assert_eq!(middle([3, 1, 2].map(Duration::from_secs).to_vec()), Duration::from_secs(2));
    }

    #[test]
    fn an_address_that_is_no_store_is_refused_and_one_without_a_server_not_reached() {
        let (_sender, stop) = watch::channel(false);
        assert!(matches!(attempt("s3://", &StoreOptions::default(), stop.clone()), Err(Fault::Other(_))));
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let url = format!("http://{}/store", free.expect("a port"));
        let trial = attempt(&url, &StoreOptions::default(), stop).expect("it opens");
        assert!(matches!(trial.listed, Some(Err(Fault::Unreachable(_)))), "{trial:?}");
        assert_eq!((trial.written, trial.deleted), (Some(Err(Fault::ReadOnly)), None));
    }

    fn in_memory(stop: Stop) -> Bucket {
        let store = Arc::new(object_store::memory::InMemory::new());
        let own = Path::from("a/doctor/1");
        Bucket { store, service: Service::S3, own, has_written: Cell::new(false), stop }
    }

    #[tokio::test]
    async fn a_store_in_memory_holds_its_conditions_and_is_left_empty() {
        let (sender, stop) = watch::channel(false);
        let bucket = in_memory(stop);
        let mut trial = Trial::default();
        bucket.each_step(&mut trial).await;
        assert!(matches!(
            (&trial.listed, &trial.written, &trial.read),
            (Some(Ok(())), Some(Ok(_)), Some(Ok(_)))
        ));
        assert_eq!(trial.conditions, Some(Ok(Conditions::Hold)));
        assert!(trial.rates.is_some() && trial.skew.is_some_and(|skew| skew.distance() < 5.0), "{trial:?}");
        let count = async || {
            let listed = bucket.store.list_with_delimiter(Some(&bucket.own)).await;
            listed.expect("it lists").objects.len()
        };
        assert_eq!(count().await, 3);
        // It removes its objects all the same.
        sender.send_replace(true);
        assert_eq!(bucket.clear().await, Ok(()));
        assert_eq!(count().await, 0);
        let mut trial = Trial::default();
        bucket.each_step(&mut trial).await;
        assert!(trial.written.is_none(), "{trial:?}");
        assert_eq!(count().await, 0);
    }
}
