//! The metadata of a running cluster moves between its store and etcd.
//!
//! Notes in both places ([`shardd_store::metastore::relocation`]) decide who may change what. The new place is filled while the
//! old one is in use. Then the old one takes no changes any more, and the entries that have changed since are copied. The note that
//! it was left is the moment of the move: each node that sees it uses the new place from then on, at once if it runs, else at its next start.
//! The command can be repeated at any point before, on any node, and by two nodes at once.

use std::sync::Arc;

use shardd_api::problem::Kind;
use shardd_store::catalog::announcements;
use shardd_store::metastore::relocation::{Arriving, RELOCATION, Relocation, Step, is_of_place, no_changes};
use shardd_store::metastore::{Entry, Expected, Following, Listing, MetaError, Metastore};
use shardd_store::origin::Origin;
use shardfmt::Digest;
use tokio::time::{Duration, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::place::other_key;
use crate::metastore::{self, MetastoreUrl, MovableMetastore, OpenError, Target, Values, is_same_place};

/// How long a node waits before it looks again for the note of a place that does not answer.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a node that starts waits for the note.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How many moves a node catches up with at its start.
const MOST_MOVES: usize = 16;

/// Why metadata is not moved. No entry is lost then, and the command can be repeated.
#[derive(Debug, thiserror::Error)]
pub enum RelocationError {
    /// It would be on one node.
    #[error(
        "--to sled: a cluster does not move back to one node; make a backup, and restore it in a new cluster"
    )]
    ToSled,
    /// It is on one node.
    #[error(
        "the metadata is in sled on node {node}: stop that node, run `shardd metastore migrate --to {to}` where it has its data, and \
         start it again"
    )]
    InSled { node: String, to: String },
    /// This node reaches it through another.
    #[error(
        "node {node} reaches the metadata through {first}, from the time when that kept it in sled: restart {node}, or ask {first}"
    )]
    Through { node: String, first: String },
    /// It is there.
    #[error("the metadata is in {at} already")]
    There { at: String },
    /// It was, until now.
    #[error("the metadata has just moved from {at} to {to}")]
    Gone { to: String, at: String },
    /// It moves to a third place.
    #[error(
        "the metadata is moving to {to}: finish that with --to {to}, or stay with --to {at}, before you name another place"
    )]
    Moving { to: String, at: String },
    /// There is other metadata at the new place.
    #[error("{to} has other metadata ({part}): name an empty place, or another prefix")]
    NotEmpty { to: String, part: String },
    /// The note is of a newer release.
    #[error("{at}: {reason}")]
    Unreadable { at: String, reason: String },
    /// The new place cannot be used.
    #[error(
        "{to} does not take the metadata, which stays in {at}; run this again, or give up with --to {at}"
    )]
    Target { to: String, at: String, source: MetaError },
    /// Another process makes the same move.
    #[error("another process has begun to move the metadata to {to}: wait for that, or run this again")]
    Superseded { to: String },
    /// The present place cannot be used.
    #[error("the metadata in {at} cannot be read, or takes no note of the move")]
    Source { at: String, source: MetaError },
    /// The new place cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl From<&RelocationError> for Kind {
    fn from(error: &RelocationError) -> Kind {
        match error {
            RelocationError::ToSled
            | RelocationError::InSled { .. }
            | RelocationError::Through { .. }
            | RelocationError::Gone { .. }
            | RelocationError::Superseded { .. }
            | RelocationError::There { .. }
            | RelocationError::Moving { .. }
            | RelocationError::NotEmpty { .. } => Kind::Conflict,
            RelocationError::Open(OpenError::InStore { source }) => source.into(),
            RelocationError::Open(_) => Kind::Invalid,
            RelocationError::Target { source, .. } | RelocationError::Source { source, .. } => source.into(),
            RelocationError::Unreadable { .. } => Kind::Corrupt,
        }
    }
}

/// The outcome of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Relocated {
    /// These many entries are at the new place.
    Moved(usize),
    /// A move that had begun is given up.
    Stayed,
}

/// Remembers the place of the metadata for the next start of a node: the one that was left, and the new one. Blocks.
pub(crate) type RememberPlace = Box<dyn Fn(&MetastoreUrl, &MetastoreUrl) + Send + Sync>;

/// Moves the metadata of this node's cluster, and follows it where another node has moved it.
pub struct Relocator {
    pub(crate) present: Arc<MovableMetastore>,
    pub(crate) places: Places,
    pub(crate) remember: RememberPlace,
    /// Held by the one request that moves it.
    pub(crate) moving: tokio::sync::Mutex<()>,
}

/// The places that a cluster can have its metadata in.
#[derive(Clone)]
pub(crate) struct Places {
    pub(crate) origin: Arc<Origin>,
    /// The digest of the cluster's authority.
    pub(crate) cluster: Digest,
}

impl Places {
    /// The metadata in that place, which is not sled. `is_new` asks that it can be used now.
    pub(crate) async fn open(
        &self,
        place: &MetastoreUrl,
        is_new: bool,
    ) -> Result<Arc<dyn Target>, OpenError> {
        match place {
            MetastoreUrl::Etcd(url) => metastore::open_etcd(url),
            MetastoreUrl::Sled => Err(OpenError::NotShared),
            MetastoreUrl::Store => Ok(metastore::open_in_store(&self.origin, self.cluster, is_new).await?),
        }
    }

    /// The metadata, and its place, which others may have moved from `place` while this node did not run.
    pub(crate) async fn open_moved(
        &self,
        place: MetastoreUrl,
    ) -> Result<(Arc<dyn Target>, MetastoreUrl), OpenError> {
        let (mut place, mut opened) = (place.clone(), self.open(&place, false).await?);
        for _ in 0..MOST_MOVES {
            let note = timeout(TIMEOUT, opened.get(RELOCATION)).await.ok().and_then(Result::ok).flatten();
            let Some(note) = note else { break };
            match self.next(&place, opened.as_ref(), &note).await {
                Ok(Some((to, there))) => {
                    info!(before = %place, now = %to, "the metadata has moved while this node did not run");
                    (place, opened) = (to, there);
                }
                Ok(None) => break,
                Err(error) => {
                    warn!(%place, %error, "the metadata moves, and its other place cannot be used yet");
                    break;
                }
            }
        }
        Ok((opened, place))
    }

    /// The place of the metadata, if this note says that it is not here. Where it has arrived, that place is opened for changes.
    async fn next(
        &self,
        here: &MetastoreUrl,
        metastore: &dyn Metastore,
        note: &Entry,
    ) -> Result<Option<(MetastoreUrl, Arc<dyn Target>)>, NotFollowed> {
        match self.step(note) {
            Some(Step::Left { to }) => {
                let to = to.parse().map_err(NotFollowed::Url)?;
                let there = self.open(&to, false).await?;
                self.arrive(there.as_ref(), here).await?;
                Ok(Some((to, there)))
            }
            // This node did not run when the metadata left this place, and now it comes back.
            Some(Step::Arriving { from }) => {
                let from = from.parse().map_err(NotFollowed::Url)?;
                let there = self.open(&from, false).await?;
                let left = there.get(RELOCATION).await?.and_then(|note| self.step(&note));
                let has_come = matches!(left, Some(Step::Left { to }) if to.parse().is_ok_and(|to| is_same_place(&to, here)));
                if !has_come {
                    return Ok(Some((from, there)));
                }
                self.arrive(metastore, &from).await?;
                // By another way, which knows the revisions of the place as it is now.
                Ok(Some((here.clone(), self.open(here, false).await?)))
            }
            Some(Step::Leaving { .. }) | None => Ok(None),
        }
    }

    /// The step of a note of this cluster.
    fn step(&self, note: &Entry) -> Option<Step> {
        let note = Relocation::of(note).ok().filter(|note| note.cluster == self.cluster);
        note.map(|note| note.step)
    }

    /// Opens a place for changes to which all entries have come from another: the note goes.
    async fn arrive(&self, place: &dyn Metastore, before: &MetastoreUrl) -> Result<(), MetaError> {
        let Some(note) = place.get(RELOCATION).await? else { return Ok(()) };
        match self.step(&note) {
            Some(Step::Arriving { from }) if from.parse().is_ok_and(|from| is_same_place(&from, before)) => {}
            _ => return Ok(()),
        }
        match place.delete(RELOCATION, Expected::At(note.revision)).await {
            // Another node was faster.
            Ok(_) | Err(MetaError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Why a node does not follow the metadata to another place, yet.
#[derive(Debug, thiserror::Error)]
enum NotFollowed {
    #[error("{0}")]
    Url(String),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Meta(#[from] MetaError),
}

impl Relocator {
    /// Moves the metadata to another place, or gives up a move that has begun if `to` is its present place.
    ///
    /// # Errors
    /// [`RelocationError`].
    pub(crate) async fn migrate(&self, to: &MetastoreUrl) -> Result<Relocated, RelocationError> {
        let _moving = self.moving.lock().await;
        let (at, source) = self.present.present();
        match to {
            MetastoreUrl::Sled => return Err(RelocationError::ToSled),
            to if is_same_place(to, &at) => return stay(&at, source.as_ref()).await,
            _ => {}
        }
        let target = self.places.open(to, true).await?;
        let names = Names::new(&at, &to.to_string(), self.places.cluster);
        let entries = relocate(source.as_ref(), target.as_ref(), &names).await?;
        // Otherwise the follower tries again.
        let _ = self.look(&at, &source).await;
        Ok(Relocated::Moved(entries))
    }

    /// Uses the place to which the metadata moves, until `stop`.
    pub(crate) async fn follow(self: Arc<Self>, stop: CancellationToken) {
        let following = async {
            loop {
                let (at, metastore) = self.present.present();
                let mut notes = Following::new(metastore.as_ref(), RELOCATION, AGAIN);
                while self.present.is(&metastore) {
                    // Where the place does not answer, the node says so elsewhere.
                    let _ = notes.next().await;
                    let mut trouble = None;
                    while let Err(error) = self.look(&at, &metastore).await {
                        if trouble.is_none() {
                            warn!(%error, "the metadata moves, and its other place cannot be used yet");
                        }
                        trouble = Some(error);
                        sleep(AGAIN).await;
                    }
                    if trouble.is_some() && self.present.is(&metastore) {
                        // It has gone and come back meanwhile.
                        self.reopen(&at, &metastore).await;
                    }
                }
                // No two places point at each other, but if they did, this would not spin.
                sleep(AGAIN).await;
            }
        };
        stop.run_until_cancelled(following).await;
    }

    /// Acts on the note of the present place.
    async fn look(&self, at: &MetastoreUrl, metastore: &Arc<dyn Metastore>) -> Result<(), NotFollowed> {
        let Ok(Some(note)) = metastore.get(RELOCATION).await else { return Ok(()) };
        if let Some((place, opened)) = self.places.next(at, metastore.as_ref(), &note).await? {
            if place != *at {
                (self.remember)(at, &place);
            }
            if self.present.replace(metastore, place.clone(), opened) {
                info!(before = %at, now = %place, "the metadata has moved");
            }
        }
        Ok(())
    }

    /// Uses the same place by another way to it, which knows its revisions.
    async fn reopen(&self, at: &MetastoreUrl, metastore: &Arc<dyn Metastore>) {
        match self.places.open(at, false).await {
            Ok(opened) => drop(self.present.replace(metastore, at.clone(), opened)),
            Err(error) => {
                warn!(place = %at, %error, "the metadata has come back to a place that cannot be opened")
            }
        }
    }
}

/// Takes the note back that the present place is being left.
async fn stay(at: &MetastoreUrl, place: &dyn Metastore) -> Result<Relocated, RelocationError> {
    let failed = |source| RelocationError::Source { at: at.to_string(), source };
    let note = place.get(RELOCATION).await.map_err(failed)?;
    let Some(note) = note else { return Err(RelocationError::There { at: at.to_string() }) };
    match Relocation::of(&note).map(|note| note.step) {
        Ok(Step::Leaving { .. }) => {
            place.delete(RELOCATION, Expected::At(note.revision)).await.map_err(failed)?;
            Ok(Relocated::Stayed)
        }
        Ok(Step::Left { to }) => Err(RelocationError::Gone { to, at: at.to_string() }),
        Ok(Step::Arriving { .. }) => Err(RelocationError::There { at: at.to_string() }),
        Err(reason) => Err(RelocationError::Unreadable { at: at.to_string(), reason }),
    }
}

/// The names of the two places, for notes and messages, and whose metadata it is.
pub(super) struct Names {
    at: String,
    to: String,
    cluster: Digest,
}

impl Names {
    pub(super) fn new(at: &MetastoreUrl, to: &str, cluster: Digest) -> Names {
        Names { at: at.to_string(), to: to.to_owned(), cluster }
    }

    fn note(&self, step: Step) -> Vec<u8> {
        Relocation { cluster: self.cluster, step }.to_bytes()
    }

    fn source(&self, source: MetaError) -> RelocationError {
        RelocationError::Source { at: self.at.clone(), source }
    }

    fn target(&self, source: MetaError) -> RelocationError {
        match source {
            MetaError::Conflict { key, .. } if key == RELOCATION => {
                RelocationError::Superseded { to: self.to.clone() }
            }
            source => RelocationError::Target { to: self.to.clone(), at: self.at.clone(), source },
        }
    }
}

/// Moves all lasting entries; returns their number.
async fn relocate(
    source: &dyn Metastore,
    target: &dyn Target,
    names: &Names,
) -> Result<usize, RelocationError> {
    check_free(source, names).await?;
    let there = values(source.lasting().await.map_err(|error| names.source(error))?);
    let note = reserve(&there, target, names).await?;
    // Another process may have finished the same move before that note: this is seen here. If it finishes it later, it made its
    // last copy before, and the place is frozen since: no old entry is put over a newer one.
    check_free(source, names).await?;
    let (_, note) = copy(source, target, note, names).await?;
    let before = check_free(source, names).await?;
    let leaving = names.note(Step::Leaving { to: names.to.clone() });
    let left = source.put(RELOCATION, leaving, Expected::unchanged(before), None).await;
    let left = left.map_err(|error| names.source(error))?;
    let (entries, _) = copy(source, target, note, names).await?;
    let note = names.note(Step::Left { to: names.to.clone() });
    source.put(RELOCATION, note, Expected::At(left), None).await.map_err(|error| names.source(error))?;
    Ok(entries)
}

/// The revision of the note that the place is being left for the same place, if there is one.
async fn check_free(source: &dyn Metastore, names: &Names) -> Result<Option<u64>, RelocationError> {
    let Some(note) = source.get(RELOCATION).await.map_err(|error| names.source(error))? else {
        return Ok(None);
    };
    match Relocation::of(&note).map(|note| note.step) {
        Ok(Step::Leaving { to }) if to == names.to => Ok(Some(note.revision)),
        Ok(Step::Leaving { to } | Step::Left { to }) => {
            Err(RelocationError::Moving { to, at: names.at.clone() })
        }
        // The move that led here is being finished.
        Ok(Step::Arriving { .. }) => {
            Err(names.source(MetaError::Unavailable { store: names.at.clone(), reason: no_changes(&note) }))
        }
        Err(reason) => Err(RelocationError::Unreadable { at: names.at.clone(), reason }),
    }
}

/// Notes in the new place that the metadata arrives there, if that place has nothing else; returns the revision of the note.
pub(super) async fn reserve(
    source: &Values,
    target: &dyn Target,
    names: &Names,
) -> Result<u64, RelocationError> {
    let failed = |error| names.target(error);
    let refuse = |part: String| Err(RelocationError::NotEmpty { to: names.to.clone(), part });
    let before = target.get(RELOCATION).await.map_err(failed)?;
    match before.as_ref().map(Relocation::of) {
        None => {
            let there = target.list("").await.map_err(failed)?;
            if let Some(key) = other_key(&there, source) {
                return refuse(format!("key {key}"));
            }
        }
        // It was there before, or a move there has begun.
        Some(Ok(Relocation { cluster, step })) if cluster == names.cluster => {
            if let Step::Leaving { to } = step {
                return refuse(format!("in use, and moving to {to}"));
            }
        }
        Some(Ok(_)) => return refuse("of another cluster".to_owned()),
        Some(Err(reason)) => return refuse(reason),
    }
    let arriving = names.note(Step::Arriving { from: names.at.clone() });
    let before = Expected::unchanged(before.map(|note| note.revision));
    target.put(RELOCATION, arriving, before, None).await.map_err(failed)
}

/// Copies the lasting entries as they are now, and the announcements of commits and of gc; returns the number of the former, and
/// the revision of the note in the new place.
async fn copy(
    source: &dyn Metastore,
    target: &dyn Target,
    note: u64,
    names: &Names,
) -> Result<(usize, u64), RelocationError> {
    let failed = |error| names.source(error);
    let leased = announcements(source).await.map_err(failed)?;
    let lasting = source.lasting().await.map_err(failed)?;
    let revision = lasting.revision;
    let arriving = Arriving { lasting: values(lasting), leased, revision };
    let note = target.take_over(&arriving, note).await.map_err(|error| names.target(error))?;
    Ok((arriving.lasting.len(), note))
}

fn values(lasting: Listing) -> Values {
    let entries = lasting.entries.into_iter().filter(|(key, _)| !is_of_place(key));
    entries.map(|(key, entry)| (key, entry.value)).collect()
}

#[cfg(test)]
mod tests;
