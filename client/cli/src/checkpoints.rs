//! What trainings left in a store that were killed while they wrote a checkpoint: parts that no checkpoint of
//! their run names. Knows the parts that a checkpoint names, but not their contents.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use shardd_api::protocol::RunId;
use shardd_store::catalog::StorePlace;
use shardd_store::origin::{Origin, OriginError, StoreTime, StoredObject};
use shardfmt::Digest;

/// A checkpoint takes no longer to write: parts that are younger may be of one that is not finished.
pub(crate) const WRITTEN_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// Where runs keep their objects.
const RUNS: &str = "runs";

/// Parts of a run that no checkpoint of it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unnamed {
    /// The run.
    pub run: RunId,
    /// How many parts may go.
    pub parts: u64,
    /// Files of a directory that a killed upload left; they may go.
    pub files: u64,
    /// The bytes of both.
    pub bytes: u64,
    /// Why it is not known which: a checkpoint that cannot be read. No part of the run goes then.
    pub unread: Option<String>,
}

/// The newest format whose parts are known by name.
const FORMAT: u64 = 3;

/// The needed part of a checkpoint's manifest, in every format so far.
#[derive(Deserialize)]
struct Named {
    format: u64,
    #[serde(default)]
    pieces: Vec<Part>,
    #[serde(default)]
    statistics: Vec<Part>,
    #[serde(default)]
    residuals: Vec<Part>,
    #[serde(default)]
    parts: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    digest: Digest,
}

/// The checkpoints of one run.
#[derive(Default)]
struct Run {
    /// Key and digest of each manifest.
    manifests: Vec<(String, Digest)>,
    /// Old parts.
    parts: Vec<(Digest, StoredObject)>,
    /// Sizes of old files of uploads that were killed.
    unfinished: Vec<u64>,
}

/// Finds parts at a place that no checkpoint of their run names, at least `age` old and [`WRITTEN_WITHIN`] in any case; with
/// `delete` they go. When dropped halfway, some have gone and some have not.
///
/// # Errors
/// When the store cannot be asked.
pub(crate) async fn collect(
    place: &StorePlace,
    age: Duration,
    delete: bool,
) -> Result<Vec<Unnamed>, OriginError> {
    let origin = match place {
        StorePlace::Directory(directory) if !directory.join(RUNS).is_dir() => return Ok(Vec::new()),
        StorePlace::Directory(directory) => Origin::open_dir(directory)?,
        StorePlace::Url { url, options } => Origin::open_with(url, options)?,
    };
    let now = if delete { origin.now().await? } else { StoreTime::here() };
    let mut runs: BTreeMap<RunId, Run> = BTreeMap::new();
    for object in origin.list_folder(RUNS).await? {
        match Place::of(&object.key) {
            Some((run, Place::Manifest(digest))) => {
                runs.entry(run).or_default().manifests.push((object.key, digest));
            }
            Some((run, Place::Part(digest))) if object.written.is_older(age.max(WRITTEN_WITHIN), now) => {
                runs.entry(run).or_default().parts.push((digest, object));
            }
            _ => {}
        }
    }
    let is_of_a_run = |key: &str| Place::of(key).is_some();
    for file in origin.unfinished(RUNS, age.max(WRITTEN_WITHIN), now, delete, is_of_a_run).await? {
        if let Some((run, _)) = Place::of(&file.key) {
            runs.entry(run).or_default().unfinished.push(file.bytes);
        }
    }
    let mut found = Vec::new();
    for (run, Run { manifests, parts, unfinished }) in runs {
        let (files, bytes) = (unfinished.len() as u64, unfinished.iter().sum());
        let mut unnamed = Unnamed { run, parts: 0, files, bytes, unread: None };
        let named = match parts.is_empty() {
            true => Ok(BTreeSet::new()),
            false => named(&origin, manifests).await?,
        };
        match named {
            Ok(named) => {
                let over = parts.into_iter().filter(|(digest, _)| !named.contains(digest));
                let keys = over.map(|(_, object)| {
                    (unnamed.parts, unnamed.bytes) = (unnamed.parts + 1, unnamed.bytes + object.bytes);
                    object.key
                });
                let keys: Vec<String> = keys.collect();
                if delete {
                    origin.delete(keys).await?;
                }
            }
            Err(reason) => unnamed.unread = Some(reason),
        }
        if unnamed.parts + unnamed.files > 0 || unnamed.unread.is_some() {
            found.push(unnamed);
        }
    }
    Ok(found)
}

/// The parts that manifests name; or why that is not known.
async fn named(
    origin: &Origin,
    manifests: Vec<(String, Digest)>,
) -> Result<Result<BTreeSet<Digest>, String>, OriginError> {
    let mut named = BTreeSet::new();
    for (key, digest) in manifests {
        let bytes = match origin.keyed(key.clone(), &key, digest).await {
            Ok(bytes) => bytes,
            // A training may have removed it meanwhile, and taken parts of it into the next.
            Err(error @ (OriginError::NotFound { .. } | OriginError::Corrupt { .. })) => {
                return Ok(Err(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        match serde_json::from_slice::<Named>(&bytes) {
            Ok(Named { format, .. }) if format > FORMAT => {
                return Ok(Err(format!("{key} has format {format}, this program reads {FORMAT}")));
            }
            Ok(Named { pieces, statistics, residuals, parts, .. }) => {
                let all = pieces.into_iter().chain(statistics).chain(residuals).chain(parts);
                named.extend(all.map(|part| part.digest));
            }
            Err(error) => return Ok(Err(format!("{key}: {error}"))),
        }
    }
    Ok(Ok(named))
}

/// The kind of object behind a key of a run.
enum Place {
    Manifest(Digest),
    Part(Digest),
}

impl Place {
    fn of(key: &str) -> Option<(RunId, Place)> {
        let (run, rest) = key.strip_prefix(RUNS)?.strip_prefix('/')?.split_once('/')?;
        let place = match rest.split_once('/')? {
            ("checkpoints", name) => {
                Place::Manifest(name.strip_suffix(".json")?.split_once('-')?.1.parse().ok()?)
            }
            ("parts", name) => Place::Part(name.strip_suffix(".safetensors")?.parse().ok()?),
            _ => return None,
        };
        Some((run.parse().ok()?, place))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::Path;
    use std::time::SystemTime;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// Puts what a training would, `days` days ago.
    fn put(root: &Path, key: &str, bytes: &[u8], days: u32) {
        let path = root.join(key);
        fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
        fs::write(&path, bytes).expect("writes");
        let then = SystemTime::now() - DAY * days;
        File::options().write(true).open(&path).and_then(|file| file.set_modified(then)).expect("ages");
    }

    fn part(root: &Path, run: &str, bytes: &[u8], days: u32) -> Digest {
        let digest = Digest::of(bytes);
        put(root, &format!("runs/{run}/parts/{digest}.safetensors"), bytes, days);
        digest
    }

    fn checkpoint(root: &Path, run: &str, parts: &[Digest]) -> String {
        checkpoint_of(root, run, 2, "pieces", parts)
    }

    fn checkpoint_of(root: &Path, run: &str, format: u32, kind: &str, parts: &[Digest]) -> String {
        let parts: Vec<_> = parts.iter().map(|it| serde_json::json!({ "digest": it, "bytes": 1 })).collect();
        let bytes = serde_json::json!({ "format": format, kind: parts }).to_string();
        let key = format!("runs/{run}/checkpoints/{:012}-{}.json", 7, Digest::of(bytes.as_bytes()));
        put(root, &key, bytes.as_bytes(), 9);
        key
    }

    fn unnamed(run: &str, parts: u64, bytes: u64) -> Unnamed {
        Unnamed { run: run.parse().expect("a name"), parts, files: 0, bytes, unread: None }
    }

    #[tokio::test]
    async fn what_a_killed_write_left_goes_once_it_is_old_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (root, place) = (dir.path(), StorePlace::Directory(dir.path().to_owned()));
        assert_eq!(collect(&place, DAY, true).await.expect("looks"), [], "nothing was ever written there");
        assert_eq!(fs::read_dir(root).expect("there").count(), 0, "and nothing is now");
        let kept = part(root, "a", b"kept", 9);
        checkpoint(root, "a", &[kept]);
        part(root, "a", b"left", 2);
        part(root, "a", b"young", 0);
        part(root, "b", b"left alone", 2);
        put(root, "runs/a/steps/x.arrow", b"of a record", 9);
        let found = [unnamed("a", 1, 4), unnamed("b", 1, 10)];
        assert_eq!(collect(&place, Duration::ZERO, false).await.expect("looks"), found);
        assert_eq!(collect(&place, 3 * DAY, true).await.expect("looks"), [], "they are younger");
        assert_eq!(collect(&place, Duration::ZERO, true).await.expect("deletes"), found);
        assert_eq!(collect(&place, Duration::ZERO, true).await.expect("looks"), []);
        let there = fs::read_dir(root.join("runs/a/parts")).expect("there").count();
        assert_eq!(there, 2, "named objects, and possible later ones");
        assert!(root.join("runs/a/steps/x.arrow").exists());
    }

    #[tokio::test]
    async fn files_that_a_killed_upload_left_go_once_they_are_old() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (root, place) = (dir.path(), StorePlace::Directory(dir.path().to_owned()));
        let digest = Digest::of(b"whole");
        let (part, manifest) = (
            format!("runs/a/parts/{digest}.safetensors"),
            format!("runs/a/checkpoints/000000000007-{digest}.json"),
        );
        put(root, &format!("{part}#1"), b"half", 2);
        put(root, &format!("{manifest}#3"), b"ha", 2);
        put(root, &format!("{part}#2"), b"young", 0);
        put(root, "runs/a/steps/x.arrow#1", b"of a record", 2);
        let found = [Unnamed { files: 2, ..unnamed("a", 0, 6) }];
        assert_eq!(collect(&place, DAY, false).await.expect("looks"), found);
        assert_eq!(collect(&place, DAY, true).await.expect("deletes"), found);
        assert_eq!(collect(&place, DAY, true).await.expect("looks"), []);
        assert!(root.join(format!("{part}#2")).exists() && root.join("runs/a/steps/x.arrow#1").exists());
    }

    #[tokio::test]
    async fn every_kind_of_part_that_a_checkpoint_names_stays_and_all_of_one_from_a_later_version() {
        for (format, kind) in [(1, "parts"), (2, "pieces"), (2, "statistics"), (3, "residuals")] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let (root, place) = (dir.path(), StorePlace::Directory(dir.path().to_owned()));
            let named = part(root, "a", b"named", 9);
            checkpoint_of(root, "a", format, kind, &[named]);
            assert_eq!(collect(&place, Duration::ZERO, true).await.expect("looks"), [], "{kind}");
            checkpoint_of(root, "a", 4, "something new", &[named]);
            part(root, "a", b"of the later version", 9);
            let found = collect(&place, Duration::ZERO, true).await.expect("looks");
            assert!(found[0].unread.as_ref().is_some_and(|reason| reason.contains("format 4")), "{found:?}");
        }
    }

    #[tokio::test]
    async fn nothing_goes_of_a_run_with_a_checkpoint_that_cannot_be_read() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (root, place) = (dir.path(), StorePlace::Directory(dir.path().to_owned()));
        let digest = part(root, "a", b"perhaps", 9);
        let key = checkpoint(root, "a", &[]);
        fs::write(root.join(&key), b"half").expect("writes");
        let found = collect(&place, Duration::ZERO, true).await.expect("looks");
        assert!(found[0].unread.as_ref().is_some_and(|reason| reason.contains("is corrupt")), "{found:?}");
        assert!(root.join(format!("runs/a/parts/{digest}.safetensors")).exists());
    }
}
