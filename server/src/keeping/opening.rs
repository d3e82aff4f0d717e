//! The metadata at the start of the node that keeps it: opened as it is, made of its copy, or refused with
//! the way out. Damaged metadata is set aside and never deleted.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use shardd_api::duration::{Span, now};
use shardd_api::node::NodeId;
use shardd_store::metastore::copy::{CopyTag, Found};
use shardd_store::metastore::{CopyShelf, MetadataCopy, MetastoreAddress};
use tokio::time::timeout;
use tracing::{info, warn};

use super::{AHEAD, KeepError, META};
use crate::metastore::{OpenError, SledMetastore, Snapshot};

/// How long a node that starts waits for its store.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The directory in which metadata is made of a copy.
const FRESH: &str = "meta.new";

/// Metadata that is kept here.
pub(crate) struct Opened {
    pub(crate) sled: Arc<SledMetastore>,
    pub(crate) epoch: u64,
    /// The tag of the copy in the store.
    pub(crate) base: Option<CopyTag>,
}

/// The state found at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Own {
    /// Metadata, up to this change.
    Whole { settled: u64 },
    /// None.
    Gone,
    /// A directory that sled cannot open.
    Damaged(String),
}

/// The error of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
enum StoreFailure {
    /// It has a copy.
    Copy { epoch: u64, keeper: NodeId, settled: u64 },
    /// It has none that can be used.
    None,
    /// It cannot be asked.
    Away,
}

/// The chosen action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    AsItIs,
    FromCopy,
    Empty,
}

/// Why nothing is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    Fenced,
    Behind,
    Older,
    Away,
    Damaged,
}

/// The other known facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Circumstances {
    /// The cluster was founded just now.
    is_new: bool,
    /// The copy lacks something, or may.
    is_behind: bool,
    /// The user gave `--recover`.
    is_told: bool,
}

/// Decides. No data of this node is given up without `--recover`, and nothing is begun empty where there was
/// something.
fn decide(me: &NodeId, own: &Own, shelf: &StoreFailure, known: Circumstances) -> Result<Way, Refused> {
    match (own, shelf) {
        (_, StoreFailure::Copy { keeper, .. }) if keeper != me => Err(Refused::Fenced),
        (Own::Whole { settled }, StoreFailure::Copy { settled: copied, .. }) if settled < copied => {
            // Some damage sled takes for the end of its file.
            if known.is_told || !known.is_behind { Ok(Way::FromCopy) } else { Err(Refused::Older) }
        }
        (Own::Whole { .. }, _) => Ok(Way::AsItIs),
        (_, StoreFailure::Copy { .. }) if known.is_told || !known.is_behind => Ok(Way::FromCopy),
        (_, StoreFailure::Copy { .. }) => Err(Refused::Behind),
        (Own::Gone, StoreFailure::None) => Ok(Way::Empty),
        (Own::Gone, StoreFailure::Away) if known.is_new => Ok(Way::Empty),
        (_, StoreFailure::Away) => Err(Refused::Away),
        (Own::Damaged(_), StoreFailure::None) => {
            if known.is_told {
                Ok(Way::Empty)
            } else {
                Err(Refused::Damaged)
            }
        }
    }
}

/// Opens the metadata of the node `me` over `data`, or makes it of its copy on `shelf`.
///
/// # Errors
/// [`KeepError`]; then everything is as it was.
pub(crate) async fn open(
    data: &Path,
    shelf: &CopyShelf,
    me: &MetastoreAddress,
    is_new: bool,
    is_told: bool,
) -> Result<Opened, KeepError> {
    let (meta, ahead) = (data.join(META), data.join(AHEAD));
    let (copy, base, away) = match timeout(TIMEOUT, shelf.read(None)).await {
        Ok(Ok(Found::Copy(copy, tag))) => (Some(copy), Some(tag), None),
        Ok(Ok(Found::Damaged(reason, tag))) => {
            warn!(reason, "the copy of the metadata in the store is damaged");
            (None, Some(tag), None)
        }
        Ok(Ok(Found::Absent | Found::Unchanged)) => (None, None, None),
        Ok(Err(error)) => (None, None, Some(format!("{:#}", anyhow::Error::from(error)))),
        Err(_) => (None, None, Some("it does not answer".to_owned())),
    };
    if let Some(to) = copy.as_ref().and_then(|copy| copy.moved_to.clone()) {
        return Err(KeepError::Moved { to });
    }
    let known = Circumstances { is_new, is_behind: ahead.exists(), is_told };
    let opened = match meta.join("db").exists() {
        true => Some(open_sled(&meta, &ahead).await),
        false => None,
    };
    let (own, sled) = match opened {
        None => (Own::Gone, None),
        Some(Ok(sled)) => (Own::Whole { settled: *sled.settled().borrow() }, Some(sled)),
        Some(Err(OpenError::Sled { reason, .. })) => (Own::Damaged(reason), None),
        Some(Err(error)) => return Err(error.into()),
    };
    let found = match (&copy, &away) {
        (Some(MetadataCopy { epoch, keeper, settled, .. }), _) => {
            StoreFailure::Copy { epoch: *epoch, keeper: keeper.node.clone(), settled: *settled }
        }
        (None, None) => StoreFailure::None,
        (None, Some(_)) => StoreFailure::Away,
    };
    let way = decide(&me.node, &own, &found, known)
        .map_err(|refused| said(refused, &meta, &own, copy.as_ref(), away.as_deref(), shelf))?;
    match (way, copy, sled) {
        (Way::FromCopy, Some(copy), sled) => {
            drop(sled);
            let what = match &own {
                Own::Whole { .. } => "is older than its copy".to_owned(),
                Own::Gone => "is gone".to_owned(),
                Own::Damaged(reason) => format!("cannot be opened: {reason}"),
            };
            let kept = set_aside(&meta, "damaged")?;
            make(data, &copy, copy.epoch).await?;
            let _ = fs::remove_file(&ahead);
            warn!(
                reason = what,
                set_aside = kept.map(|path| path.display().to_string()),
                copied_before = %age(&copy),
                copy = shelf.object(),
                "the metadata was made again of its copy in the store: names, tags, plans, runs and tokens are as they were then"
            );
            let sled = open_sled(&meta, &ahead).await?;
            Ok(Opened { sled, epoch: copy.epoch, base })
        }
        (_, copy, Some(sled)) => {
            let mut epoch = sled.epoch().await.unwrap_or(0).max(1);
            epoch = epoch.max(copy.map_or(0, |copy| copy.epoch));
            Ok(Opened { sled, epoch, base })
        }
        (_, _, None) => {
            if let Some(kept) = set_aside(&meta, "damaged")? {
                warn!(set_aside = %kept.display(), "the metadata could not be opened, and has no copy: it begins empty");
            }
            let sled = open_sled(&meta, &ahead).await?;
            Ok(Opened { sled, epoch: 1, base })
        }
    }
}

fn said(
    refused: Refused,
    meta: &Path,
    own: &Own,
    copy: Option<&MetadataCopy>,
    away: Option<&str>,
    shelf: &CopyShelf,
) -> KeepError {
    let path = meta.to_owned();
    let what = match own {
        Own::Damaged(reason) => format!("metadata {} cannot be opened ({reason})", path.display()),
        Own::Gone | Own::Whole { .. } => format!("metadata {} is gone", path.display()),
    };
    match (refused, copy) {
        (Refused::Fenced, Some(copy)) => {
            let MetastoreAddress { node, http, .. } = copy.keeper.clone();
            KeepError::Fenced { keeper: node, http }
        }
        (Refused::Behind, Some(copy)) => KeepError::Behind { what, path, age: age(copy) },
        (Refused::Older, Some(copy)) => {
            let own = if let Own::Whole { settled } = own { *settled } else { 0 };
            KeepError::Older { path, own, copied: copy.settled, object: shelf.object() }
        }
        (Refused::Away, _) => KeepError::Away { what, reason: away.unwrap_or_default().to_owned() },
        _ => {
            let reason = if let Own::Damaged(reason) = own { reason.clone() } else { what };
            OpenError::Sled { path, reason }.into()
        }
    }
}

/// The time since a copy was taken.
pub(super) fn age(copy: &MetadataCopy) -> Span {
    Span(Duration::from_secs(now().saturating_sub(copy.taken_at)))
}

/// Makes `<data>/meta`, where there is none, of a copy.
pub(super) async fn make(data: &Path, copy: &MetadataCopy, epoch: u64) -> Result<(), KeepError> {
    let fresh = data.join(FRESH);
    let at = |source| KeepError::Move { path: fresh.clone(), source };
    match fs::remove_dir_all(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(error)),
        _ => {}
    }
    let snapshot = Snapshot {
        epoch,
        settled: copy.settled,
        revision: copy.revision,
        last_lease: copy.last_lease,
        entries: copy.entries.clone(),
    };
    let path = fresh.clone();
    let made = tokio::task::spawn_blocking(move || SledMetastore::make(&path, &snapshot)).await;
    made.map_err(|error| at(io::Error::other(error)))??;
    let put = fs::rename(&fresh, data.join(META)).and_then(|()| File::open(data)?.sync_all());
    put.map_err(at)
}

pub(super) async fn open_sled(meta: &Path, ahead: &Path) -> Result<Arc<SledMetastore>, OpenError> {
    let (meta, ahead) = (meta.to_owned(), ahead.to_owned());
    let path = meta.clone();
    let opened = tokio::task::spawn_blocking(move || SledMetastore::open_copied(&meta, ahead)).await;
    opened.unwrap_or_else(|error| Err(OpenError::Sled { path, reason: error.to_string() })).map(Arc::new)
}

/// Moves a file or directory, if it is there, to a name with its kind and the time of the move.
pub(crate) fn set_aside(path: &Path, why: &str) -> Result<Option<PathBuf>, KeepError> {
    if !path.exists() {
        return Ok(None);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut kept = path.with_file_name(format!("{name}.{why}-{}", stamp(now())));
    let mut more = 1;
    while kept.exists() {
        more += 1;
        kept.set_file_name(format!("{name}.{why}-{}-{more}", stamp(now())));
    }
    fs::rename(path, &kept).map_err(|source| KeepError::Move { path: path.to_owned(), source })?;
    info!(from = %path.display(), to = %kept.display(), "set aside");
    Ok(Some(kept))
}

/// A time as part of a name, such as 20261124T003000Z.
pub(super) fn stamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 1970 to a date of the Gregorian calendar, whose years begin in March here: leap days are last then.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shardd_store::metastore::{Expected, Metastore};
    use shardd_store::origin::Origin;
    use shardfmt::digest::Digest;
    use tempfile::TempDir;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::keeping::Keeping;

    fn name(text: &str) -> NodeId {
        text.parse().expect("a name")
    }

    fn keeper(text: &str) -> MetastoreAddress {
        let quic = "127.0.0.1:1".parse().expect("an address");
        MetastoreAddress { node: name(text), http: "http://127.0.0.1:1".to_owned(), quic }
    }

    prop_compose! {
        fn situations()(
            own in prop_oneof![
                (0u64..4).prop_map(|settled| Own::Whole { settled }),
                Just(Own::Gone),
                Just(Own::Damaged("a bit".to_owned())),
            ],
            shelf in prop_oneof![
                (1u64..3, "n[12]", 0u64..4).prop_map(|(epoch, keeper, settled)| StoreFailure::Copy { epoch, keeper: name(&keeper), settled }),
                Just(StoreFailure::None),
                Just(StoreFailure::Away),
            ],
            is_new: bool, is_behind: bool, is_told: bool,
        ) -> (Own, StoreFailure, Circumstances) {
            (own, shelf, Circumstances { is_new, is_behind, is_told })
        }
    }

    proptest! {
        #[test]
        fn nothing_is_given_up_without_a_word_and_nothing_is_served_that_another_keeps(situation in situations()) {
            let (own, shelf, known) = situation;
            let way = decide(&name("n1"), &own, &shelf, known);
            let is_others = matches!(&shelf, StoreFailure::Copy { keeper, .. } if *keeper != name("n1"));
            prop_assert_eq!(way == Err(Refused::Fenced), is_others);
            match way {
                Ok(Way::AsItIs) => prop_assert!(matches!(own, Own::Whole { .. }), "only a whole directory \
                    is opened"),
                Ok(Way::FromCopy) => prop_assert!(
                    known.is_told || !known.is_behind,
                    "what the copy may lack is given up by command alone"
                ),
                Ok(Way::Empty) => {
                    prop_assert!(!matches!(shelf, StoreFailure::Copy { .. }), "where there is a copy nothing begins empty");
                    prop_assert!(known.is_told || own == Own::Gone);
                    prop_assert!(known.is_told || known.is_new || shelf == StoreFailure::None);
                }
                Err(_) => {}
            }
        }
    }

    #[test]
    fn stamps_are_dates() {
        assert_eq!(stamp(0), "19700101T000000Z");
        assert_eq!(stamp(951_782_400), "20000229T000000Z");
        assert_eq!(stamp(1_795_480_200), "20261124T003000Z");
    }

    /// A node's data directory with one name in it, copied or not.
    async fn kept(copied: bool) -> (TempDir, CopyShelf) {
        let data = TempDir::new().expect("a directory");
        let origin = Arc::new(Origin::open("memory://").expect("opens"));
        let shelf = CopyShelf::of(origin, Digest::of(b"authority"));
        let opened = open(data.path(), &shelf, &keeper("n1"), true, false).await.expect("begins");
        let Opened { sled, epoch, base } = opened;
        sled.put("refs/a", b"one".to_vec(), Expected::Absent, None).await.expect("puts");
        let keeping = Keeping::new(Arc::clone(&sled), shelf.clone(), keeper("n1"), epoch, base);
        let stop = CancellationToken::new();
        stop.cancel();
        keeping.copy_until(stop).await.expect("copies");
        if !copied {
            sled.put("refs/b", b"two".to_vec(), Expected::Absent, None).await.expect("puts");
        }
        (data, shelf)
    }

    fn spoil(data: &Path) {
        let path = data.join("meta/db");
        let mut bytes = fs::read(&path).expect("sled's file");
        let length = bytes.iter().rposition(|byte| *byte != 0).expect("not empty");
        for byte in &mut bytes[..length] {
            *byte ^= 0x55;
        }
        fs::write(&path, bytes).expect("writes");
    }

    async fn names(opened: &Opened) -> Vec<String> {
        let listing = opened.sled.list("refs/").await.expect("lists");
        listing.entries.into_iter().map(|(key, _)| key).collect()
    }

    #[tokio::test]
    async fn damaged_or_lost_metadata_comes_back_from_its_copy_with_all_that_was_acknowledged() {
        for is_gone in [false, true] {
            let (data, shelf) = kept(true).await;
            let last = {
                let opened = open(data.path(), &shelf, &keeper("n1"), false, false).await.expect("opens");
                opened.sled.list("").await.expect("lists").revision
            };
            match is_gone {
                true => fs::remove_dir_all(data.path().join("meta")).expect("removes"),
                false => spoil(data.path()),
            }
            let opened = open(data.path(), &shelf, &keeper("n1"), false, false).await.expect("recovers");
            assert_eq!(names(&opened).await, ["refs/a"]);
            assert!(
                opened.sled.list("").await.expect("lists").revision > last,
                "no revision is given out twice"
            );
            let set_aside = fs::read_dir(data.path()).expect("lists").flatten();
            let set_aside =
                set_aside.filter(|entry| entry.file_name().to_string_lossy().starts_with("meta.damaged-"));
            assert_eq!(set_aside.count(), usize::from(!is_gone), "a damaged directory is kept");
        }
    }

    #[tokio::test]
    async fn what_the_copy_lacks_is_given_up_by_command_alone() {
        let (data, shelf) = kept(false).await;
        spoil(data.path());
        let refused = open(data.path(), &shelf, &keeper("n1"), false, false).await.err().expect("refused");
        // sled takes the rest for damaged, or for an older state.
        assert!(matches!(refused, KeepError::Behind { .. } | KeepError::Older { .. }), "{refused}");
        assert!(
            refused.to_string().contains("--recover") && data.path().join("meta/db").exists(),
            "{refused}"
        );
        let opened = open(data.path(), &shelf, &keeper("n1"), false, true).await.expect("as requested");
        assert_eq!(names(&opened).await, ["refs/a"]);
    }

    #[tokio::test]
    async fn a_node_whose_metadata_another_keeps_does_not_serve_it() {
        let (data, shelf) = kept(true).await;
        let Found::Copy(copy, tag) = shelf.read(None).await.expect("reads") else { panic!("there") };
        let promoted = MetadataCopy { epoch: 2, keeper: keeper("n2"), ..copy };
        shelf.replace(&promoted, Some(&tag)).await;
        for is_told in [false, true] {
            let refused =
                open(data.path(), &shelf, &keeper("n1"), false, is_told).await.err().expect("refused");
            assert!(
                refused.to_string().contains("node n2") && refused.to_string().contains("--join"),
                "{refused}"
            );
        }
    }
}
