//! A read gives the bytes that were put, or an error that names the object and the store.

use std::fs;

use shardfmt::Manifest;
use tempfile::TempDir;

use super::conformance::{long_manifest, manifest, plan, shard};
use super::*;

struct Stored {
    _dir: TempDir,
    origin: Origin,
    shard: FinishedShard,
    manifest: Manifest,
    plan: PlanDocument,
}

async fn stored() -> Stored {
    let dir = TempDir::new().expect("temporary directory");
    let origin = Origin::open(dir.path().to_str().expect("UTF-8")).expect("opens");
    let shard = shard(1000);
    let manifest = manifest(&shard);
    let plan = plan(&manifest);
    origin.put_shard(&shard).await.expect("puts");
    origin.put_manifest(&manifest).await.expect("puts");
    origin.put_plan(&plan).await.expect("puts");
    Stored { _dir: dir, origin, shard, manifest, plan }
}

impl Stored {
    fn path(&self, key: &str) -> PathBuf {
        self.origin.root.as_ref().expect("a directory").join(key)
    }

    /// Flips a bit of an object on disk.
    fn damage(&self, key: &str) {
        let path = self.path(key);
        let mut bytes = fs::read(&path).expect("the object");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        fs::write(&path, bytes).expect("writes");
    }
}

#[tokio::test]
async fn memory_keeps_the_promises_of_a_store() {
    conformance::all(async || Origin::open("memory://").expect("opens")).await;
}

#[tokio::test]
async fn a_directory_keeps_the_promises_of_a_store() {
    let dir = TempDir::new().expect("temporary directory");
    let count = std::cell::Cell::new(0);
    conformance::all(async || {
        count.set(count.get() + 1);
        Origin::open_dir(&dir.path().join(count.get().to_string())).expect("opens")
    })
    .await;
}

#[tokio::test]
async fn of_a_directory_the_files_are_known() {
    let stored = stored().await;
    let path = stored.origin.local_path(&stored.shard.id).expect("a directory");
    assert_eq!(fs::read(path).expect("a file"), stored.shard.bytes);
    assert_eq!(Origin::open("memory://").expect("opens").local_path(&stored.shard.id), None);
}

#[tokio::test]
async fn damage_on_disk_is_found_and_named() {
    let stored = stored().await;
    let (origin, shard) = (&stored.origin, &stored.shard);
    let version = stored.manifest.id();
    for key in
        [shard.id.object_key(), shard.id.sidecar_key(), version.object_key(), stored.plan.id().object_key()]
    {
        stored.damage(&key);
    }
    let errors = [
        (origin.shard(&shard.entry).await.map(|_| ()), format!("shard {} in ", shard.id)),
        (origin.sidecar(&shard.entry).await.map(|_| ()), format!("sidecar of shard {} in ", shard.id)),
        (origin.manifest(version).await.map(|_| ()), format!("manifest {version} in ")),
        (origin.plan(stored.plan.id()).await.map(|_| ()), format!("plan {} in ", stored.plan.id())),
    ];
    for (result, named) in errors {
        let error = result.expect_err(&named);
        assert!(matches!(error, OriginError::Corrupt { .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with(&named) && text.contains(origin.name()), "{text}");
        assert!(
            text.contains("is corrupt: ") && text.ends_with("; restore the object or re-ingest"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn damage_of_a_long_manifest_is_found_where_it_is_read() {
    let dir = TempDir::new().expect("temporary directory");
    let origin = Origin::open_dir(dir.path()).expect("opens");
    let version = origin.put_manifest(&long_manifest()).await.expect("puts");
    let path = dir.path().join(version.object_key());
    let mut bytes = fs::read(&path).expect("the object");
    let behind = bytes.len() * 3 / 4;
    bytes[behind] ^= 4;
    fs::write(&path, bytes).expect("writes");
    let rows = origin.ask_manifest(version, |manifest| manifest.shard_rows()).await;
    assert_eq!(rows.expect("that part is right"), [10]);
    let damaged = origin.ask_manifest(version, |manifest| manifest.labels()).await.expect_err("that is not");
    assert!(matches!(damaged, OriginError::Corrupt { .. }), "{damaged}");
    let text = damaged.to_string();
    assert!(text.contains(&version.to_string()) && text.contains("its bytes have digest"), "{text}");
}

#[tokio::test]
async fn a_manifest_that_came_wrong_over_a_network_is_read_again_and_counted_in_whichever_way_it_is_asked_for()
 {
    let Stored { origin: local, manifest, .. } = stored().await;
    let id = local.put_manifest(&manifest).await.expect("puts");
    let mut origin = Origin::open("http://127.0.0.1:1").expect("an address");
    origin.store = Arc::new(InMemory::new());
    let wrong = b"not what was put".as_slice();
    origin.store.put(&Object::manifest(id).path, wrong.into()).await.expect("puts");

    let corrupt = |error| matches!(error, OriginError::Corrupt { .. });
    assert!(origin.manifest(id).await.is_err_and(corrupt));
    assert_eq!((origin.reread(), origin.metadata_requests()), (1, 2));
    assert!(origin.open_manifest(id).await.is_err_and(corrupt));
    assert_eq!((origin.reread(), origin.metadata_requests()), (2, 4));
    assert_eq!(origin.metadata_bytes_read(), 4 * wrong.len() as u64);
}

#[tokio::test]
async fn a_shard_cut_short_is_corrupt_and_a_missing_one_not_found() {
    let stored = stored().await;
    let (origin, shard) = (&stored.origin, &stored.shard);
    let size = shard.bytes.len() as u64;
    let path = stored.path(&shard.id.object_key());
    fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(size / 2)).expect("cuts");
    for range in [size - 10..size, size / 2 - 5..size / 2 + 5, size / 4..size - 8] {
        let ranges = [0..8, range];
        let error = origin.read_ranges(&shard.id, &ranges).await.expect_err("it ends before");
        assert!(matches!(error, OriginError::Corrupt { .. }), "{ranges:?}: {error}");
    }
    assert!(matches!(origin.shard(&shard.entry).await, Err(OriginError::Corrupt { .. })));
    fs::remove_file(path).expect("removes");
    let errors = [
        origin.shard(&shard.entry).await.map(|_| ()),
        origin.read_ranges(&shard.id, &[Range { start: 0, end: 8 }]).await.map(|_| ()),
    ];
    for error in errors {
        let error = error.expect_err("it is gone");
        assert!(matches!(error, OriginError::NotFound { .. }), "{error}");
    }
}

#[tokio::test]
async fn offers_that_are_not_what_they_say_are_refused() {
    let stored = stored().await;
    let (origin, shard) = (&stored.origin, &stored.shard);
    let other = conformance::shard(10);
    let refused = [
        origin.put_shard_bytes(shard.id, other.bytes.clone()).await,
        origin.put_sidecar(shard.id, other.sidecar.encode().into()).await,
        origin.put_sidecar(shard.id, Bytes::from_static(b"no sidecar")).await,
        origin.put_manifest_bytes(stored.manifest.id(), Bytes::from_static(b"no manifest")).await.map(|_| ()),
    ];
    for refused in refused {
        let error = refused.expect_err("not the digest in its name");
        assert!(matches!(error, OriginError::Mismatch { .. }), "{error}");
    }
    // A sidecar in good order that lists other rows than the one that is there.
    let mut forged = shard.sidecar.clone();
    forged.rows.swap(0, 1);
    let error = origin.put_sidecar(shard.id, forged.encode().into()).await.expect_err("other rows");
    assert!(matches!(error, OriginError::Mismatch { .. }), "{error}");
    assert_eq!(origin.sidecar(&shard.entry).await.expect("unchanged"), shard.sidecar);
    // Once it lies there, the shard tells which of the two is right.
    std::fs::write(stored.path(&shard.id.sidecar_key()), forged.encode()).expect("room");
    origin.put_sidecar(shard.id, shard.sidecar.encode().into()).await.expect("these are its rows");
    assert_eq!(origin.sidecar(&shard.entry).await.expect("mended"), shard.sidecar);
}

#[test]
fn addresses_that_are_no_store_say_what_is() {
    for bad in [
        "",
        "file://relative",
        "memory://x",
        "ftp://host/",
        "s3://bucket/x?y",
        "https://me:secret@host/",
        "s3://a//b",
    ] {
        let error = Origin::open(bad).expect_err(bad);
        assert!(error.to_string().contains("give a directory"), "{error}");
    }
    for (bad, says) in [("s3://", "names no bucket"), ("http:///x", "names no host")] {
        let error = Origin::open(bad).expect_err(bad);
        let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(error.to_string().contains(bad) && source.contains(says), "{error}: {source}");
    }
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    let error = Origin::open(file.path().to_str().expect("UTF-8")).expect_err("a file is no directory");
    assert!(matches!(error, OriginError::Unusable { .. }), "{error}");
}
