//! A metastore in etcd: it outlives every node, and every node asks it directly.
//!
//! What the trait promises is what etcd has: revisions are etcd's own (the leases, users and other prefixes
//! of the same etcd raise them, too), each change is one transaction that compares and writes, waits are
//! watches that begin at a revision. [`members`] finds a member that answers; this file has the requests.
//!
//! Two things are etcd's way:
//! - **Leases last whole seconds**, and at least as long as etcd's `--election-timeout` allows (with its default of one
//!   second: two). A shorter time to live is rounded up, and a lease lapses up to half a second late. After a change of
//!   etcd's leader every lease has its full time again. So leased keys never vanish early, and may stay a little
//!   longer.
//! - **The keys of a lease vanish in one change**, with one revision for all of them.

mod members;

use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{
    Client, Compare, CompareOp, Error, GetOptions, KeyValue, PutOptions, ResponseHeader, Txn, TxnOp,
    TxnOpResponse, WatchOptions, WatchStream,
};
use shardd_store::metastore::{
    Entry, Expected, LeaseId, Listing, MetaError, Metastore, check_key, check_value,
};
use tokio::time::sleep;

use self::members::{Again, Failure, Members, PAUSE, reason};
use super::OpenError;
use super::url::EtcdUrl;

/// No lease lives longer without being renewed, as with sled.
const LONGEST_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Entries asked for at once: of the longest values, 32 MiB.
const PAGE: i64 = 500;
/// The longest answer that is taken.
const LONGEST_ANSWER: usize = 64 << 20;

/// A [`Metastore`] in etcd (its v3 API), under a prefix.
pub struct EtcdMetastore {
    members: Members,
    /// The prefix of every key.
    root: String,
    name: String,
}

/// The outcome of a compared change.
enum Swapped {
    /// Made, or nothing to do; the store's revision then.
    Made(u64),
    /// The key was not as expected, but last put at this revision.
    Otherwise(Option<u64>),
}

impl EtcdMetastore {
    /// The metastore at `url`. Reads the files that it names and connects to no one yet: a node starts without etcd, too.
    ///
    /// # Errors
    /// [`OpenError::File`] when a file that the URL names cannot be read.
    pub fn open(url: &EtcdUrl) -> Result<EtcdMetastore, OpenError> {
        let members = Members::new(url)?;
        let name = format!("etcd://{}/{}", url.members.join(","), url.prefix);
        Ok(EtcdMetastore { members, root: format!("{}/", url.prefix), name })
    }

    fn key(&self, key: &str) -> Vec<u8> {
        [self.root.as_bytes(), key.as_bytes()].concat()
    }

    /// One transaction: `change`, if the key is as expected.
    async fn swap(&self, key: &str, expected: Expected, change: Vec<TxnOp>) -> Result<Swapped, Failure> {
        let at = self.key(key);
        let compare = |revision| vec![Compare::mod_revision(at.clone(), CompareOp::Equal, revision)];
        let compares = match expected {
            Expected::Any => vec![],
            Expected::Absent => compare(0),
            // No key has a revision below 1: what etcd could not hold is compared with one that is never met.
            Expected::At(revision) => {
                compare(i64::try_from(revision).ok().filter(|revision| *revision > 0).unwrap_or(-1))
            }
        };
        let look = TxnOp::get(at, Some(GetOptions::new().with_keys_only()));
        let swap = Txn::new().when(compares).and_then(change).or_else([look]);
        let call = async |client: Client, swap: Txn| client.kv_client().txn(swap).await;
        let done = self.members.ask(Again::Harmful, swap, call).await?;
        if done.succeeded() {
            return Ok(Swapped::Made(revision(done.header())));
        }
        let found = match done.op_responses().into_iter().next() {
            Some(TxnOpResponse::Get(found)) => found.kvs().first().map(revision_of),
            _ => None,
        };
        Ok(Swapped::Otherwise(found))
    }

    /// The entries under a prefix, or those of them that hang on no lease.
    async fn read(&self, prefix: &str, is_lasting: bool) -> Result<Listing, MetaError> {
        let mut from = self.key(prefix);
        let end = end_of(&from);
        let (mut entries, mut at) = (Vec::new(), None);
        loop {
            let mut options = GetOptions::new().with_range(end.clone()).with_limit(PAGE);
            if let Some(at) = at {
                options = options.with_revision(at);
            }
            let call = async |client: Client, (from, options): (Vec<u8>, GetOptions)| {
                client.kv_client().max_decoding_message_size(LONGEST_ANSWER).get(from, Some(options)).await
            };
            let page = self.members.ask(Again::Harmless, (from.clone(), options), call).await;
            let mut page = page.map_err(|failure| self.failed(failure))?;
            // All pages are of one revision: that of the first.
            at = at.or_else(|| page.header().map(ResponseHeader::revision));
            let more = page.more();
            for found in page.take_kvs() {
                from = [found.key(), &[0]].concat();
                let key =
                    str::from_utf8(&found.key()[self.root.len()..]).map_err(|error| MetaError::Damaged {
                        store: self.name.clone(),
                        what: "a key".into(),
                        reason: error.to_string(),
                    })?;
                if !is_lasting || found.lease() == 0 {
                    entries.push((key.to_owned(), entry(found)));
                }
            }
            if !more {
                return Ok(Listing { entries, revision: at.map_or(0, i64::unsigned_abs) });
            }
        }
    }

    /// The first change that a watch tells of; `None` when it breaks off.
    async fn first_change(&self, watch: &mut WatchStream) -> Result<Option<u64>, MetaError> {
        while let Ok(Some(told)) = watch.message().await {
            if told.canceled() {
                // A deletion this old is forgotten: wake, as the trait allows.
                return match told.compact_revision() > 0 {
                    true => Ok(Some(revision(told.header()).max(told.compact_revision().unsigned_abs()))),
                    false => Err(self.away(format!("it ended the wait: {}", told.cancel_reason()))),
                };
            }
            let newest = told.events().iter().filter_map(|event| event.kv()).map(revision_of).max();
            if newest.is_some() {
                return Ok(newest);
            }
        }
        Ok(None)
    }

    fn failed(&self, failure: Failure) -> MetaError {
        match failure {
            Failure::Refused(error) => self.away(reason(&error)),
            Failure::Away(reason) => self.away(reason),
        }
    }

    fn away(&self, reason: String) -> MetaError {
        MetaError::Unavailable { store: self.name.clone(), reason }
    }
}

#[async_trait]
impl Metastore for EtcdMetastore {
    async fn get(&self, key: &str) -> Result<Option<Entry>, MetaError> {
        check_key(key)?;
        let at = self.key(key);
        let call = async |client: Client, at: Vec<u8>| client.kv_client().get(at, None).await;
        let mut found =
            self.members.ask(Again::Harmless, at, call).await.map_err(|failure| self.failed(failure))?;
        Ok(found.take_kvs().pop().map(entry))
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
        let mut options = PutOptions::new();
        if let Some(lease) = lease {
            options = options.with_lease(etcd_lease(lease)?);
        }
        let put = TxnOp::put(self.key(key), value, Some(options));
        match (self.swap(key, expected, vec![put]).await, lease) {
            (Ok(Swapped::Made(revision)), _) => Ok(revision),
            (Ok(Swapped::Otherwise(actual)), _) => Err(MetaError::Conflict { key: key.to_owned(), actual }),
            (Err(Failure::Refused(error)), Some(lease)) if is_lease_lost(&error) => {
                Err(MetaError::LeaseLost { lease })
            }
            (Err(failure), _) => Err(self.failed(failure)),
        }
    }

    async fn delete(&self, key: &str, expected: Expected) -> Result<u64, MetaError> {
        check_key(key)?;
        let delete = TxnOp::delete(self.key(key), None);
        match self.swap(key, expected, vec![delete]).await.map_err(|failure| self.failed(failure))? {
            Swapped::Made(revision) => Ok(revision),
            Swapped::Otherwise(actual) => Err(MetaError::Conflict { key: key.to_owned(), actual }),
        }
    }

    async fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        self.read(prefix, false).await
    }

    async fn lasting(&self) -> Result<Listing, MetaError> {
        self.read("", true).await
    }

    async fn changed(&self, prefix: &str, since: u64) -> Result<u64, MetaError> {
        let from = self.key(prefix);
        let next = i64::try_from(since).unwrap_or(i64::MAX).saturating_add(1);
        let options = WatchOptions::new().with_range(end_of(&from)).with_start_revision(next).with_fragment();
        let call = async |client: Client, (from, options): (Vec<u8>, WatchOptions)| {
            client.watch_client().watch(from, Some(options)).await
        };
        loop {
            let watch = self.members.ask(Again::Harmless, (from.clone(), options.clone()), call).await;
            let mut watch = watch.map_err(|failure| self.failed(failure))?;
            if let Some(revision) = self.first_change(&mut watch).await? {
                return Ok(revision);
            }
            // The member went away. Another continues from the same revision, so nothing is missed.
            sleep(PAUSE).await;
        }
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, MetaError> {
        let ttl = ttl.min(LONGEST_TTL);
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds.max(1)).expect("thirty days fit");
        // Granted twice, the first lapses by itself.
        let call = async |client: Client, seconds| client.lease_client().grant(seconds, None).await;
        let granted =
            self.members.ask(Again::Harmless, seconds, call).await.map_err(|failure| self.failed(failure))?;
        Ok(LeaseId(granted.id().unsigned_abs()))
    }

    async fn renew(&self, lease: LeaseId) -> Result<(), MetaError> {
        let id = etcd_lease(lease)?;
        let call = async |client: Client, id| client.lease_client().keep_alive(id).await;
        match self.members.ask(Again::Harmless, id, call).await {
            Ok(_) => Ok(()),
            Err(Failure::Refused(Error::LeaseKeepAliveError(_))) => Err(MetaError::LeaseLost { lease }),
            Err(failure) => Err(self.failed(failure)),
        }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), MetaError> {
        let Ok(id) = etcd_lease(lease) else { return Ok(()) };
        let call = async |client: Client, id| client.lease_client().revoke(id).await;
        match self.members.ask(Again::Harmless, id, call).await {
            Ok(_) => Ok(()),
            Err(Failure::Refused(error)) if is_lease_lost(&error) => Ok(()),
            Err(failure) => Err(self.failed(failure)),
        }
    }
}

/// The first key after all that begin with `prefix`, which is text and so never ends in 0xff.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    *end.last_mut().expect("a prefix ends with a slash at least") += 1;
    end
}

fn entry(found: KeyValue) -> Entry {
    let revision = revision_of(&found);
    let (_, value) = found.into_key_value();
    Entry { value, revision }
}

fn revision_of(found: &KeyValue) -> u64 {
    found.mod_revision().unsigned_abs()
}

fn revision(header: Option<&ResponseHeader>) -> u64 {
    header.map_or(0, |header| header.revision().unsigned_abs())
}

/// The lease as etcd numbers it. A number that it could not have given is lost.
fn etcd_lease(lease: LeaseId) -> Result<i64, MetaError> {
    i64::try_from(lease.0).ok().filter(|id| *id > 0).ok_or(MetaError::LeaseLost { lease })
}

fn is_lease_lost(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.code() == tonic::Code::NotFound)
}
