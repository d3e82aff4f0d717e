//! A metastore whose answers are timed and counted, for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use shardd_store::metastore::{Entry, Expected, LeaseId, Listing, MetaError, Metastore};
use tokio::time::Instant;

/// Upper bounds of the buckets, in seconds: from a read of memory to the patience of a client.
const BUCKETS: [f64; 10] = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Operation {
    op: &'static str,
}

/// How long requests to the metadata take, and whether the last one was answered.
#[derive(Debug)]
pub(crate) struct MetastoreTimes {
    durations: Family<Operation, Histogram>,
    is_up: AtomicBool,
}

impl Default for MetastoreTimes {
    fn default() -> MetastoreTimes {
        let durations = Family::<Operation, Histogram>::new_with_constructor(|| Histogram::new(BUCKETS));
        MetastoreTimes { durations, is_up: AtomicBool::new(true) }
    }
}

impl MetastoreTimes {
    /// The times, to be registered.
    pub(crate) fn durations(&self) -> Family<Operation, Histogram> {
        self.durations.clone()
    }

    /// Whether the last request was answered.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up.load(Relaxed)
    }

    /// As if a request had been answered at once.
    #[cfg(test)]
    pub(crate) fn observe_one(&self) {
        self.durations.get_or_create(&Operation { op: "get" }).observe(0.0);
    }

    async fn time<T>(
        &self,
        op: &'static str,
        request: impl Future<Output = Result<T, MetaError>>,
    ) -> Result<T, MetaError> {
        let began = Instant::now();
        let outcome = request.await;
        self.durations.get_or_create(&Operation { op }).observe(began.elapsed().as_secs_f64());
        self.note(&outcome);
        outcome
    }

    /// A refusal is an answer, too.
    fn note<T>(&self, outcome: &Result<T, MetaError>) {
        self.is_up.store(!matches!(outcome, Err(MetaError::Unavailable { .. })), Relaxed);
    }
}

/// A metastore whose requests are timed.
pub(crate) struct TimedMetastore {
    pub(crate) inner: Arc<dyn Metastore>,
    pub(crate) times: Arc<MetastoreTimes>,
}

#[async_trait]
impl Metastore for TimedMetastore {
    async fn get(&self, key: &str) -> Result<Option<Entry>, MetaError> {
        self.times.time("get", self.inner.get(key)).await
    }

    async fn put(
        &self,
        key: &str,
        value: Vec<u8>,
        expected: Expected,
        lease: Option<LeaseId>,
    ) -> Result<u64, MetaError> {
        self.times.time("put", self.inner.put(key, value, expected, lease)).await
    }

    async fn delete(&self, key: &str, expected: Expected) -> Result<u64, MetaError> {
        self.times.time("delete", self.inner.delete(key, expected)).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        self.times.time("list", self.inner.list(prefix)).await
    }

    async fn lasting(&self) -> Result<Listing, MetaError> {
        self.times.time("list", self.inner.lasting()).await
    }

    async fn changed(&self, prefix: &str, since: u64) -> Result<u64, MetaError> {
        // It waits for a change: how long says nothing.
        let outcome = self.inner.changed(prefix, since).await;
        self.times.note(&outcome);
        outcome
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError> {
        self.times.time("lease", self.inner.grant(ttl)).await
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.times.time("lease", self.inner.renew(lease)).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        self.times.time("lease", self.inner.revoke(lease)).await
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::prometheus_text;
    use prometheus_client::registry::Registry;
    use shardd_store::metastore::{MemoryMetastore, conformance};

    use super::*;

    fn timed(inner: Arc<dyn Metastore>) -> TimedMetastore {
        TimedMetastore { inner, times: Arc::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_a_metastore() {
        conformance::all(async || {
            Arc::new(timed(Arc::new(MemoryMetastore::default()))) as Arc<dyn Metastore>
        })
        .await;
    }

    #[tokio::test]
    async fn requests_are_counted_by_kind_and_refusals_are_answers() {
        let store = timed(Arc::new(MemoryMetastore::default()));
        store.put("a", vec![1], Expected::Absent, None).await.expect("the key is new");
        assert!(store.put("a", vec![1], Expected::Absent, None).await.is_err());
        assert!(store.times.is_up(), "a conflict is an answer");
        store.get("a").await.expect("it is there");
        let mut registry = Registry::default();
        registry.register("shardd_metastore_request_duration_seconds", "Time", store.times.durations());
        let mut text = String::new();
        prometheus_text::encode(&mut text, &registry).expect("writes");
        assert!(text.contains("shardd_metastore_request_duration_seconds_count{op=\"put\"} 2"), "{text}");
        assert!(text.contains("shardd_metastore_request_duration_seconds_count{op=\"get\"} 1"), "{text}");
    }

    #[tokio::test]
    async fn a_metastore_without_an_answer_is_down_until_it_answers() {
        struct Away(AtomicBool);

        #[async_trait]
        impl Metastore for Away {
            async fn get(&self, _: &str) -> Result<Option<Entry>, MetaError> {
                match self.0.load(Relaxed) {
                    true => Err(MetaError::Unavailable { store: "s".to_owned(), reason: "away".to_owned() }),
                    false => Ok(None),
                }
            }
            async fn put(
                &self,
                _: &str,
                _: Vec<u8>,
                _: Expected,
                _: Option<LeaseId>,
            ) -> Result<u64, MetaError> {
                unreachable!("only asked for a key")
            }
            async fn delete(&self, _: &str, _: Expected) -> Result<u64, MetaError> {
                unreachable!("only asked for a key")
            }
            async fn list(&self, _: &str) -> Result<Listing, MetaError> {
                unreachable!("only asked for a key")
            }
            async fn lasting(&self) -> Result<Listing, MetaError> {
                unreachable!("only asked for a key")
            }
            async fn changed(&self, _: &str, _: u64) -> Result<u64, MetaError> {
                unreachable!("only asked for a key")
            }
            async fn grant(&self, _: Duration) -> Result<LeaseId, MetaError> {
                unreachable!("only asked for a key")
            }
            async fn renew(&self, _: LeaseId) -> Result<(), MetaError> {
                unreachable!("only asked for a key")
            }
            async fn revoke(&self, _: LeaseId) -> Result<(), MetaError> {
                unreachable!("only asked for a key")
            }
        }

        let away = Arc::new(Away(AtomicBool::new(true)));
        let store = timed(away.clone());
        assert!(store.get("a").await.is_err() && !store.times.is_up());
        away.0.store(false, Relaxed);
        assert!(store.get("a").await.is_ok() && store.times.is_up());
    }
}
