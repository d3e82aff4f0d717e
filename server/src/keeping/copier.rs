//! Copies the metadata to the store, again whenever it has changed, and stops the node when another one keeps it now.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use shardd_api::duration::now;
use shardd_api::status::MetadataStatus;
use shardd_store::metastore::copy::{CopyTag, Found, Replaced};
use shardd_store::metastore::{CopyShelf, MetadataCopy, MetastoreAddress};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::KeepError;
use crate::metastore::{SledMetastore, Snapshot};

/// How soon a change is copied at the earliest, so that many become one copy.
const GATHER: Duration = Duration::from_secs(1);
/// How fast a large copy may be written again and again, on the average.
const BYTES_A_SECOND: u64 = 1 << 20;
/// How often it is looked whether another node keeps the metadata.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How soon a store that took no copy is asked again.
const PAUSE: Duration = Duration::from_secs(5);
/// Limit for the last copy at shutdown.
const FINAL_COPY_TIMEOUT: Duration = Duration::from_secs(2);

/// The metadata that this node keeps in sled, and its copy.
pub struct Keeping {
    sled: Arc<SledMetastore>,
    shelf: CopyShelf,
    keeper: MetastoreAddress,
    epoch: u64,
    copying: Mutex<Copying>,
}

struct Copying {
    /// The copy in the store, where known.
    base: Option<CopyTag>,
    /// The change up to which it is copied.
    settled: Option<u64>,
    copied_at: Option<u64>,
    /// Since when there is something that it lacks.
    behind_since: Option<Instant>,
    /// Its size.
    bytes: u64,
    trouble: Option<String>,
}

impl Keeping {
    /// Of `sled`, which `keeper` keeps in this epoch; what lay in the store bore `base`.
    pub(crate) fn new(
        sled: Arc<SledMetastore>,
        shelf: CopyShelf,
        keeper: MetastoreAddress,
        epoch: u64,
        base: Option<CopyTag>,
    ) -> Arc<Keeping> {
        let copying = Copying {
            base,
            settled: None,
            copied_at: None,
            behind_since: Some(Instant::now()),
            bytes: 0,
            trouble: None,
        };
        Arc::new(Keeping { sled, shelf, keeper, epoch, copying: Mutex::new(copying) })
    }

    /// Why nothing can be changed here at present, if so.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.sled.trouble()
    }

    /// How the metadata and its copy are.
    pub(crate) fn status(&self) -> MetadataStatus {
        let copying = self.copying();
        MetadataStatus {
            epoch: self.epoch,
            trouble: self.sled.trouble(),
            copied_at: copying.copied_at,
            copy_bytes: copying.bytes,
            lag_s: copying.behind_since.map_or(0, |since| since.elapsed().as_secs()),
            is_behind: copying.behind_since.is_some(),
            copy_trouble: copying.trouble.clone(),
        }
    }

    /// Copies until `stop`, and once more then.
    ///
    /// # Errors
    /// [`KeepError::Fenced`] when another node keeps the metadata now.
    pub(crate) async fn copy_until(self: Arc<Self>, stop: CancellationToken) -> Result<(), KeepError> {
        let mut settled = self.sled.settled();
        loop {
            let now_settled = *settled.borrow_and_update();
            let is_copied = self.copying().settled == Some(now_settled);
            let outcome = if is_copied { self.look().await } else { self.copy().await };
            let pause = match outcome {
                Ok(()) => self.gather(),
                Err(Trouble::Fenced(error)) => return Err(error),
                Err(Trouble::Store(reason)) => {
                    self.tell(Some(reason));
                    PAUSE
                }
            };
            if self.copying().settled == Some(*settled.borrow()) {
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    changed = settled.changed() => if changed.is_err() { return Ok(()) },
                    () = sleep(POLL_INTERVAL) => continue,
                }
                self.copying().behind_since.get_or_insert_with(Instant::now);
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep(pause) => {}
            }
        }
        match timeout(FINAL_COPY_TIMEOUT, self.copy()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Trouble::Fenced(error))) => Err(error),
            Ok(Err(Trouble::Store(reason))) => {
                warn!(reason, "the last changes of the metadata are not in its copy");
                Ok(())
            }
            Err(_) => {
                warn!("the last changes of the metadata may not be in its copy: the store does not answer");
                Ok(())
            }
        }
    }

    /// How long changes are gathered before they are copied.
    fn gather(&self) -> Duration {
        GATHER.max(Duration::from_secs(self.copying().bytes / BYTES_A_SECOND))
    }

    async fn copy(&self) -> Result<(), Trouble> {
        let snapshot = self.sled.snapshot().await.map_err(|error| Trouble::Store(error.to_string()))?;
        let (copy, base) = (self.copy_of(&snapshot), self.copying().base.clone());
        let bytes = copy.entries.iter().map(|entry| (entry.key.len() + entry.value.len()) as u64).sum();
        match self.shelf.replace(&copy, base.as_ref()).await {
            Replaced::Done(tag) => {
                self.copied(tag, &copy, bytes);
                self.tell(None);
                let noted = self.sled.note_copied(snapshot.settled).await;
                noted.map_err(|error| Trouble::Store(error.to_string()))
            }
            Replaced::Lost => {
                self.look().await?;
                Err(Trouble::Store("the object there was not the last one written".to_owned()))
            }
            Replaced::Refused(reason) => Err(Trouble::Store(reason)),
            Replaced::Unknown(reason) => {
                // It may have been written, or will be: the present object decides.
                self.look().await?;
                Err(Trouble::Store(reason))
            }
        }
    }

    /// The object with this tag is in the store now.
    fn copied(&self, tag: CopyTag, copy: &MetadataCopy, bytes: u64) {
        let is_all = *self.sled.settled().borrow() == copy.settled;
        let mut copying = self.copying();
        copying.base = Some(tag);
        copying.settled = Some(copy.settled);
        copying.copied_at = Some(copy.taken_at);
        copying.bytes = bytes;
        copying.behind_since = if is_all { None } else { Some(Instant::now()) };
    }

    /// Looks who keeps the metadata.
    async fn look(&self) -> Result<(), Trouble> {
        let base = self.copying().base.clone();
        match self.shelf.read(base.as_ref()).await {
            Ok(Found::Unchanged) => Ok(()),
            Ok(Found::Copy(copy, tag)) => {
                if copy.keeper.node != self.keeper.node || copy.epoch > self.epoch {
                    let MetastoreAddress { node, http, .. } = copy.keeper;
                    return Err(Trouble::Fenced(KeepError::Fenced { keeper: node, http }));
                }
                self.take(Some(tag));
                Ok(())
            }
            Ok(Found::Absent) => {
                self.take(None);
                Ok(())
            }
            Ok(Found::Damaged(reason, tag)) => {
                warn!(reason, "the copy of the metadata in the store is damaged; it is written again");
                self.take(Some(tag));
                Ok(())
            }
            Err(error) => {
                debug!(%error, "the copy of the metadata cannot be looked at");
                Ok(())
            }
        }
    }

    /// The object there is not the last copy: it is copied again on top of that.
    fn take(&self, tag: Option<CopyTag>) {
        let mut copying = self.copying();
        if copying.base != tag {
            (copying.base, copying.settled) = (tag, None);
            copying.behind_since.get_or_insert_with(Instant::now);
        }
    }

    fn copy_of(&self, snapshot: &Snapshot) -> MetadataCopy {
        MetadataCopy {
            epoch: self.epoch,
            keeper: self.keeper.clone(),
            settled: snapshot.settled,
            revision: snapshot.revision,
            last_lease: snapshot.last_lease,
            taken_at: now(),
            moved_to: None,
            entries: snapshot.entries.clone(),
        }
    }

    /// Logs a trouble once, and its end.
    fn tell(&self, trouble: Option<String>) {
        let before = std::mem::replace(&mut self.copying().trouble, trouble.clone());
        match (before, trouble) {
            (before, Some(reason)) if before.as_ref() != Some(&reason) => {
                warn!(reason, "the metadata is not copied to the store; trying again");
            }
            (Some(_), None) => info!("the metadata is copied to the store again"),
            _ => {}
        }
    }

    fn copying(&self) -> MutexGuard<'_, Copying> {
        self.copying.lock().expect("no panic while held")
    }
}

/// Why a copy was not made.
enum Trouble {
    Fenced(KeepError),
    Store(String),
}

#[cfg(test)]
mod tests {
    use shardd_store::metastore::{Expected, Metastore};
    use shardd_store::origin::Origin;
    use shardfmt::digest::Digest;
    use tempfile::TempDir;

    use super::*;

    fn keeper(name: &str) -> MetastoreAddress {
        let quic = "127.0.0.1:1".parse().expect("an address");
        MetastoreAddress { node: name.parse().expect("a name"), http: "http://127.0.0.1:1".to_owned(), quic }
    }

    struct Kept {
        data: TempDir,
        sled: Arc<SledMetastore>,
        shelf: CopyShelf,
        keeping: Arc<Keeping>,
    }

    fn kept() -> Kept {
        let data = TempDir::new().expect("a directory");
        let (meta, ahead) = (data.path().join("meta"), data.path().join("meta.ahead"));
        let sled = Arc::new(SledMetastore::open_copied(&meta, ahead).expect("opens"));
        let origin = Arc::new(Origin::open("memory://").expect("opens"));
        let shelf = CopyShelf::of(origin, Digest::of(b"authority"));
        let keeping = Keeping::new(Arc::clone(&sled), shelf.clone(), keeper("n1"), 1, None);
        Kept { data, sled, shelf, keeping }
    }

    async fn until(what: &str, is_so: impl Fn() -> bool) {
        let waiting = async {
            while !is_so() {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(30), waiting).await.unwrap_or_else(|_| panic!("{what}"));
    }

    #[tokio::test]
    async fn every_settled_change_gets_into_the_copy_and_the_mark_says_when_one_has_not() {
        let Kept { data, sled, shelf, keeping } = kept();
        let ahead = || data.path().join("meta.ahead").exists();
        sled.put("refs/a", b"one".to_vec(), Expected::Any, None).await.expect("puts");
        assert!(ahead(), "acknowledged and not copied");
        let stop = CancellationToken::new();
        let copying = tokio::spawn(Arc::clone(&keeping).copy_until(stop.clone()));
        until("copied", || !keeping.status().is_behind && !ahead()).await;
        let lease = sled.grant(Duration::from_secs(60)).await.expect("grants");
        sled.put("nodes/n1", b"here".to_vec(), Expected::Any, Some(lease)).await.expect("puts");
        assert!(!ahead(), "what hangs on a lease is not copied");
        sled.put("refs/b", b"two".to_vec(), Expected::Any, None).await.expect("puts");
        sled.delete("refs/a", Expected::Any).await.expect("deletes");
        assert!(ahead());
        stop.cancel();
        copying.await.expect("no panic").expect("not fenced");
        assert!(!ahead(), "a node that stops leaves all it has");
        let Found::Copy(copy, _) = shelf.read(None).await.expect("reads") else { panic!("there") };
        let keys: Vec<&str> = copy.entries.iter().map(|entry| entry.key.as_str()).collect();
        assert_eq!((keys, copy.epoch), (vec!["refs/b"], 1));
    }

    #[tokio::test]
    async fn a_node_stops_when_another_was_promoted() {
        let Kept { sled, shelf, keeping, data: _data } = kept();
        let stop = CancellationToken::new();
        let copying = tokio::spawn(Arc::clone(&keeping).copy_until(stop.clone()));
        until("copied", || !keeping.status().is_behind).await;
        let Found::Copy(copy, tag) = shelf.read(None).await.expect("reads") else { panic!("there") };
        let promoted = MetadataCopy { epoch: 2, keeper: keeper("n2"), ..copy };
        assert!(matches!(shelf.replace(&promoted, Some(&tag)).await, Replaced::Done(_)));
        sled.put("refs/a", b"late".to_vec(), Expected::Any, None).await.expect("puts");
        let fenced = copying.await.expect("no panic").expect_err("fenced").to_string();
        assert!(fenced.contains("node n2") && fenced.contains("--join"), "{fenced}");
        let Found::Copy(copy, _) = shelf.read(None).await.expect("reads") else { panic!("there") };
        assert_eq!(copy, promoted, "nothing of the node before got there");
    }
}
