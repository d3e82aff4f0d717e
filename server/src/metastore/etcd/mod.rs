//! A metastore in etcd: it outlives every node, and every node asks it directly.
//!
//! What the trait promises is what etcd has: revisions are etcd's own (the leases, users and other prefixes
//! of the same etcd raise them, too), each change is one transaction that compares and writes, waits are
//! watches that begin at a revision. Where metadata has moved here, [`REVISIONS`] is added to etcd's revisions, so that they
//! continue after those of the place before. Each transaction compares the note of a relocation, too ([`relocation`]).
//! [`members`] finds a member that answers; this file has the requests.
//!
//! [`relocation`]: shardd_store::metastore::relocation
//!
//! Two things are etcd's way:
//! - **Leases last whole seconds**, and at least as long as etcd's `--election-timeout` allows (with its default of one
//!   second: two). A shorter time to live is rounded up, and a lease lapses up to half a second late. After a change of
//!   etcd's leader every lease has its full time again. So leased keys never vanish early, and may stay a little
//!   longer.
//! - **The keys of a lease vanish in one change**, with one revision for all of them.

mod members;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{
    Client, Compare, CompareOp, Error, GetOptions, GetResponse, KeyValue, PutOptions, ResponseHeader, Txn,
    TxnOp, TxnOpResponse, WatchOptions, WatchStream,
};
use shardd_store::metastore::relocation::{
    Arriving, LeasedEntry, RELOCATION, REVISIONS, is_of_place, no_changes, no_reads,
};
use shardd_store::metastore::{
    Entry, Expected, LeaseId, Listing, MetaError, Metastore, check_key, check_value,
};
use tokio::time::sleep;

use self::members::{Again, Failure, Members, PAUSE, reason};
use super::OpenError;
use super::target::{Target, make_equal};
use super::url::EtcdUrl;

/// No lease lives longer without being renewed, as with sled.
const LONGEST_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Entries asked for at once: of the longest values, 32 MiB.
const PAGE: i64 = 500;
/// The longest answer that is taken.
const LONGEST_ANSWER: usize = 64 << 20;
/// How far the revisions are ahead of those of metadata that was moved here.
const JUMP: u64 = 1 << 32;

/// A [`Metastore`] in etcd (its v3 API), under a prefix.
pub struct EtcdMetastore {
    members: Arc<Members>,
    /// The prefix of every key.
    root: String,
    name: String,
    /// What is added to the revisions of etcd, once it is known.
    added: Arc<Mutex<Option<u64>>>,
    /// The revision of the note of a relocation that this metastore fills the place under; without one there must be no note.
    note: Option<u64>,
}

/// The outcome of a compared change.
enum Swapped {
    /// Made, or nothing to do; the store's revision then.
    Made(u64),
    /// The key was not as expected, but last put at this revision.
    Otherwise(Option<u64>),
    /// The metadata moves: the note of that.
    Moving(Entry),
    /// The note under which the place is filled is not there any more.
    Superseded(Option<u64>),
}

impl EtcdMetastore {
    /// The metastore at `url`. Reads the files that it names and connects to no one yet: a node starts without etcd, too.
    ///
    /// # Errors
    /// [`OpenError::File`] when a file that the URL names cannot be read.
    pub fn open(url: &EtcdUrl) -> Result<EtcdMetastore, OpenError> {
        let members = Arc::new(Members::new(url)?);
        let name = format!("etcd://{}/{}", url.members.join(","), url.prefix);
        let root = format!("{}/", url.prefix);
        Ok(EtcdMetastore { members, root, name, added: Arc::default(), note: None })
    }

    /// What is added to the revisions of etcd.
    async fn added(&self) -> Result<u64, MetaError> {
        if let Some(added) = *self.added.lock().expect("no panic while held") {
            return Ok(added);
        }
        let added = match self.found(REVISIONS).await? {
            None => 0,
            Some(found) => {
                let number = str::from_utf8(found.value()).ok().and_then(|text| text.parse().ok());
                number.ok_or_else(|| MetaError::Damaged {
                    store: self.name.clone(),
                    what: REVISIONS.to_owned(),
                    reason: "it is no number".to_owned(),
                })?
            }
        };
        Ok(self.add(added))
    }

    fn add(&self, added: u64) -> u64 {
        *self.added.lock().expect("no panic while held") = Some(added);
        added
    }

    /// The same place under that note of a relocation.
    fn under(&self, note: u64) -> EtcdMetastore {
        let (members, added) = (Arc::clone(&self.members), Arc::clone(&self.added));
        EtcdMetastore { members, added, root: self.root.clone(), name: self.name.clone(), note: Some(note) }
    }

    /// The key and value in etcd.
    async fn found(&self, key: &str) -> Result<Option<KeyValue>, MetaError> {
        let get = TxnOp::get(self.key(key), None);
        let (mut found, _) = self.read_here(key, get).await?;
        Ok(found.take_kvs().pop())
    }

    /// Reads, if the metadata is here. Facts about the place are read wherever it is, and by who fills the place, all is.
    async fn read_here(&self, prefix: &str, get: TxnOp) -> Result<(GetResponse, u64), MetaError> {
        let is_free = is_of_place(prefix) || self.note.is_some();
        let reads = Txn::new().and_then([get, TxnOp::get(self.key(RELOCATION), None)]);
        let call = async |client: Client, reads: Txn| {
            client.kv_client().max_decoding_message_size(LONGEST_ANSWER).txn(reads).await
        };
        let read = self.members.ask(Again::Harmless, reads, call).await;
        let read = read.map_err(|failure| self.failed(failure))?;
        let at = revision(read.header());
        let mut answers = read.op_responses().into_iter();
        let (Some(TxnOpResponse::Get(found)), Some(TxnOpResponse::Get(mut note))) =
            (answers.next(), answers.next())
        else {
            return Err(self.away("it gave an answer to another question".to_owned()));
        };
        let note = note.take_kvs().pop().map(|note| entry(note, 0));
        match note.as_ref().filter(|_| !is_free).and_then(no_reads) {
            Some(reason) => Err(self.away(reason)),
            None => Ok((found, at)),
        }
    }

    fn key(&self, key: &str) -> Vec<u8> {
        [self.root.as_bytes(), key.as_bytes()].concat()
    }

    /// One transaction: `change`, if the key is as expected, and the note of a relocation, too.
    async fn swap(
        &self,
        key: &str,
        expected: Expected,
        change: Vec<TxnOp>,
        added: u64,
    ) -> Result<Swapped, Failure> {
        let (at, note) = (self.key(key), self.key(RELOCATION));
        let is = |at: &[u8], revision| Compare::mod_revision(at, CompareOp::Equal, revision);
        let mut compares = match expected {
            Expected::Any => vec![],
            Expected::Absent => vec![is(&at, 0)],
            Expected::At(revision) => vec![is(&at, of_etcd(revision, added))],
        };
        // The note itself changes under its own condition.
        let is_note = key == RELOCATION;
        if !is_note {
            compares.push(is(&note, self.note.map_or(0, |note| of_etcd(note, added))));
        }
        let look = TxnOp::get(at, Some(GetOptions::new().with_keys_only()));
        let swap = Txn::new().when(compares).and_then(change).or_else([look, TxnOp::get(note, None)]);
        let call = async |client: Client, swap: Txn| client.kv_client().txn(swap).await;
        let done = self.members.ask(Again::Harmful, swap, call).await?;
        if done.succeeded() {
            return Ok(Swapped::Made(revision(done.header()) + added));
        }
        let mut found = done.op_responses().into_iter().map(|response| match response {
            TxnOpResponse::Get(mut found) => found.take_kvs().pop(),
            _ => None,
        });
        let (found, note) = (found.next().flatten(), found.next().flatten());
        let at_note = note.as_ref().map(|note| revision_of(note, added));
        Ok(match note {
            Some(note) if !is_note && self.note.is_none() => Swapped::Moving(entry(note, added)),
            _ if !is_note && at_note != self.note => Swapped::Superseded(at_note),
            _ => Swapped::Otherwise(found.map(|found| revision_of(&found, added))),
        })
    }

    /// The entries under a prefix, or those of them that hang on no lease.
    async fn read(&self, prefix: &str, is_lasting: bool) -> Result<Listing, MetaError> {
        let added = self.added().await?;
        let mut from = self.key(prefix);
        let end = end_of(&from);
        let (mut entries, mut at) = (Vec::new(), None);
        loop {
            let mut options = GetOptions::new().with_range(end.clone()).with_limit(PAGE);
            if let Some(at) = at {
                options = options.with_revision(i64::try_from(at).unwrap_or(i64::MAX));
            }
            let (mut page, revision) =
                self.read_here(prefix, TxnOp::get(from.clone(), Some(options))).await?;
            // All pages are of one revision: that of the first.
            let first = *at.get_or_insert(revision);
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
                    entries.push((key.to_owned(), entry(found, added)));
                }
            }
            if !more {
                return Ok(Listing { entries, revision: first + added });
            }
        }
    }

    /// The first change that a watch tells of, by etcd's revision; `None` when it breaks off.
    async fn first_change(&self, watch: &mut WatchStream) -> Result<Option<u64>, MetaError> {
        while let Ok(Some(told)) = watch.message().await {
            if told.canceled() {
                // A deletion this old is forgotten: wake, as the trait allows.
                return match told.compact_revision() > 0 {
                    true => Ok(Some(revision(told.header()).max(told.compact_revision().unsigned_abs()))),
                    false => Err(self.away(format!("it ended the wait: {}", told.cancel_reason()))),
                };
            }
            let newest =
                told.events().iter().filter_map(|event| event.kv()).map(|found| revision_of(found, 0)).max();
            if newest.is_some() {
                return Ok(newest);
            }
        }
        Ok(None)
    }

    fn outcome(&self, swapped: Swapped, key: &str) -> Result<u64, MetaError> {
        match swapped {
            Swapped::Made(revision) => Ok(revision),
            Swapped::Otherwise(actual) => Err(MetaError::Conflict { key: key.to_owned(), actual }),
            Swapped::Moving(note) => Err(self.away(no_changes(&note))),
            Swapped::Superseded(actual) => Err(MetaError::Conflict { key: RELOCATION.to_owned(), actual }),
        }
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
impl Target for EtcdMetastore {
    async fn take_over(&self, arriving: &Arriving, note: u64) -> Result<u64, MetaError> {
        let (added, ahead) = (self.added().await?, arriving.revision.saturating_add(JUMP));
        let mut note = note;
        if added < ahead {
            let number = ahead.to_string().into_bytes();
            self.under(note).put(REVISIONS, number, Expected::Any, None).await?;
            note = note - added + self.add(ahead);
        }
        let filling = self.under(note);
        make_equal(&filling, &arriving.lasting).await?;
        for LeasedEntry { key, value, ttl } in &arriving.leased {
            let lease = filling.grant(*ttl).await?;
            filling.put(key, value.clone(), Expected::Any, Some(lease)).await?;
        }
        Ok(note)
    }
}

#[async_trait]
impl Metastore for EtcdMetastore {
    async fn get(&self, key: &str) -> Result<Option<Entry>, MetaError> {
        check_key(key)?;
        let added = self.added().await?;
        Ok(self.found(key).await?.map(|found| entry(found, added)))
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
        let added = self.added().await?;
        let mut options = PutOptions::new();
        if let Some(lease) = lease {
            options = options.with_lease(etcd_lease(lease)?);
        }
        let put = TxnOp::put(self.key(key), value, Some(options));
        match (self.swap(key, expected, vec![put], added).await, lease) {
            (Ok(swapped), _) => self.outcome(swapped, key),
            (Err(Failure::Refused(error)), Some(lease)) if is_lease_lost(&error) => {
                Err(MetaError::LeaseLost { lease })
            }
            (Err(failure), _) => Err(self.failed(failure)),
        }
    }

    async fn delete(&self, key: &str, expected: Expected) -> Result<u64, MetaError> {
        check_key(key)?;
        let delete = TxnOp::delete(self.key(key), None);
        let added = self.added().await?;
        let swapped = self.swap(key, expected, vec![delete], added).await;
        self.outcome(swapped.map_err(|failure| self.failed(failure))?, key)
    }

    async fn list(&self, prefix: &str) -> Result<Listing, MetaError> {
        self.read(prefix, false).await
    }

    async fn lasting(&self) -> Result<Listing, MetaError> {
        self.read("", true).await
    }

    async fn changed(&self, prefix: &str, since: u64) -> Result<u64, MetaError> {
        let added = self.added().await?;
        if since < added {
            // It is a revision of the place before: all that is here came after it.
            return Ok(added);
        }
        let from = self.key(prefix);
        let next = i64::try_from(since - added).unwrap_or(i64::MAX).saturating_add(1);
        let options = WatchOptions::new().with_range(end_of(&from)).with_start_revision(next).with_fragment();
        let call = async |client: Client, (from, options): (Vec<u8>, WatchOptions)| {
            client.watch_client().watch(from, Some(options)).await
        };
        loop {
            let watch = self.members.ask(Again::Harmless, (from.clone(), options.clone()), call).await;
            let mut watch = watch.map_err(|failure| self.failed(failure))?;
            if let Some(revision) = self.first_change(&mut watch).await? {
                return Ok(revision + added);
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

fn entry(found: KeyValue, added: u64) -> Entry {
    let revision = revision_of(&found, added);
    let (_, value) = found.into_key_value();
    Entry { value, revision }
}

fn revision_of(found: &KeyValue, added: u64) -> u64 {
    found.mod_revision().unsigned_abs() + added
}

/// The revision as etcd counts it. No key has one below 1: what etcd could not hold is compared with one that is never met.
fn of_etcd(revision: u64, added: u64) -> i64 {
    let own = revision.checked_sub(added).and_then(|own| i64::try_from(own).ok());
    own.filter(|own| *own > 0).unwrap_or(-1)
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
