//! What comes out of a store is what was put in, or an error that names the object and the store.

use std::fs;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use shardfmt::plan::{PlanOptions, Shape};
use shardfmt::{Digest, InputDigest, Manifest, ManifestError, ManifestFile, ShardWriter, VersionId};
use tempfile::TempDir;

use super::*;

fn shard(rows: i64) -> FinishedShard {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let batch = RecordBatch::try_from_iter([("number", numbers)]).expect("one column");
    let mut writer = ShardWriter::new(batch.schema()).expect("plain columns");
    writer.push(&batch).expect("rows of the schema");
    writer.finish().expect("rows")
}

fn manifest(shard: &FinishedShard) -> Manifest {
    let schema = shardfmt::Shard::from_bytes(shard.bytes.clone()).expect("own shard").schema().clone();
    Manifest::new(schema, vec![shard.entry.clone()], serde_json::json!({}), Vec::new())
}

fn plan(manifest: &Manifest) -> PlanDocument {
    let shard_rows = manifest.shards.iter().map(|shard| shard.rows).collect();
    let shape = Shape { shard_rows, row_bytes: manifest.row_bytes() };
    PlanDocument::with_defaults(manifest.id(), &shape, PlanOptions::default()).expect("fits")
}

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
async fn what_is_put_comes_back_and_is_counted() {
    for url in
        ["memory://".to_owned(), TempDir::new().expect("temporary directory").keep().display().to_string()]
    {
        let origin = Origin::open(&url).expect("opens");
        let shard = shard(1000);
        let manifest = manifest(&shard);
        assert!(!origin.has_shard(&shard.id).await.expect("looks"));
        for _ in 0..2 {
            origin.put_shard(&shard).await.expect("puts, and once more");
        }
        assert!(origin.has_shard(&shard.id).await.expect("looks"));
        assert_eq!((origin.bytes_read(), origin.requests(), origin.metadata_bytes_read()), (0, 0, 0));

        assert_eq!(origin.shard(&shard.entry).await.expect("reads"), shard.bytes);
        let size = shard.bytes.len() as u64;
        assert_eq!((origin.bytes_read(), origin.requests()), (size, 1));
        let ranges = [100..200, 0..0, 8..16];
        let parts = origin.read_ranges(&shard.id, &ranges).await.expect("reads");
        for (part, range) in parts.iter().zip(&ranges) {
            assert_eq!(part[..], shard.bytes[range.start as usize..range.end as usize]);
        }
        assert_eq!((origin.bytes_read(), origin.requests()), (size + 108, 3), "an empty range is no request");

        assert_eq!(origin.sidecar(&shard.entry).await.expect("reads"), shard.sidecar);
        let version = origin.put_manifest(&manifest).await.expect("puts");
        assert_eq!(origin.manifest(version).await.expect("reads"), manifest);
        let plan = plan(&manifest);
        let id = origin.put_plan(&plan).await.expect("puts");
        assert_eq!(origin.plan(id).await.expect("reads"), plan);
        assert_eq!(origin.bytes_read(), size + 108, "metadata is counted apart");
        assert_eq!(origin.metadata_requests(), 3);
        assert_eq!(origin.local_path(&shard.id).is_some(), url != "memory://");
        if let Some(path) = origin.local_path(&shard.id) {
            assert_eq!(fs::read(path).expect("a file"), shard.bytes);
            fs::remove_dir_all(&url).expect("removes");
        }
    }
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
async fn putting_again_heals_what_was_damaged() {
    let stored = stored().await;
    let (origin, shard) = (&stored.origin, &stored.shard);
    for key in [shard.id.object_key(), shard.id.sidecar_key(), stored.manifest.id().object_key()] {
        stored.damage(&key);
    }
    origin.put_shard(shard).await.expect("puts");
    origin.put_manifest(&stored.manifest).await.expect("puts");
    assert_eq!(origin.shard(&shard.entry).await.expect("healed"), shard.bytes);
    assert_eq!(origin.sidecar(&shard.entry).await.expect("healed"), shard.sidecar);
    assert_eq!(origin.manifest(stored.manifest.id()).await.expect("healed"), stored.manifest);
}

/// A manifest that is long for its inputs.
fn long_manifest() -> Manifest {
    let input = |number: u32| {
        let (name, digest) = (format!("part-{number:05}.parquet"), Digest::of(&number.to_le_bytes()));
        InputDigest { name, bytes: number.into(), digest }
    };
    Manifest { inputs: (0..4000).map(input).collect(), ..manifest(&shard(10)) }
}

#[tokio::test]
async fn a_long_manifest_is_read_as_far_as_is_asked() {
    let dir = TempDir::new().expect("temporary directory");
    for url in ["memory://", dir.path().to_str().expect("UTF-8")] {
        let origin = Origin::open(url).expect("opens");
        let manifest = long_manifest();
        let version = origin.put_manifest(&manifest).await.expect("puts");
        let ask = async |what: fn(ManifestFile) -> Result<u64, ManifestError>| {
            let before = origin.metadata_bytes_read();
            let answer = origin.ask_manifest(version, what).await.expect("the manifest");
            (answer, origin.metadata_bytes_read() - before)
        };
        let size = origin.manifest_size(version).await.expect("looks").expect("is there");
        let (samples, read) = ask(|manifest| Ok(manifest.totals().samples)).await;
        assert!(samples == 10 && read < size / 4, "{read} of {size} bytes in {url}");
        let (inputs, read) = ask(|manifest| Ok(manifest.inputs()?.len() as u64)).await;
        assert!(inputs == 4000 && read > size / 2, "{read} of {size} bytes in {url}");

        let tree = origin.manifest_tree(version).await.expect("it is long");
        origin.delete(vec![version.tree_key()]).await.expect("deletes");
        let (samples, read) = ask(|manifest| Ok(manifest.totals().samples)).await;
        assert_eq!((samples, read), (10, size), "without a tree it is read whole");
        origin.put_manifest(&manifest).await.expect("puts");
        assert_eq!(origin.manifest_tree(version).await.expect("it is back"), tree);

        let short = origin.put_manifest(&self::manifest(&shard(10))).await.expect("puts");
        let none = origin.manifest_tree(short).await.expect_err("it has none");
        assert!(matches!(none, OriginError::NotFound { .. }), "{none}");
        origin.open_manifest(short).await.expect("opens");
        let nothing = VersionId::of(b"nothing");
        let missing = origin.open_manifest(nothing).await.expect_err("it is not there");
        assert!(matches!(missing, OriginError::NotFound { .. }), "{missing}");
        assert!(missing.to_string().contains(&nothing.to_string()), "{missing}");
    }
}

#[tokio::test]
async fn damage_of_a_long_manifest_is_found_where_it_is_read() {
    let dir = TempDir::new().expect("temporary directory");
    let origin = Origin::open_dir(dir.path()).expect("opens");
    let version = origin.put_manifest(&long_manifest()).await.expect("puts");
    let path = dir.path().join(version.object_key());
    let mut bytes = fs::read(&path).expect("the object");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&path, bytes).expect("writes");
    let rows = origin.ask_manifest(version, |manifest| manifest.shard_rows()).await;
    assert_eq!(rows.expect("that part is right"), [10]);
    let damaged = origin.ask_manifest(version, |manifest| manifest.inputs()).await.expect_err("that is not");
    assert!(matches!(damaged, OriginError::Corrupt { .. }), "{damaged}");
    let text = damaged.to_string();
    assert!(text.contains(&version.to_string()) && text.contains("its bytes have digest"), "{text}");
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
    let other = super::tests::shard(10);
    let refused = [
        origin.put_shard_bytes(shard.id, other.bytes.clone()).await,
        origin.put_sidecar(shard.id, other.sidecar.encode().into()).await,
        origin.put_sidecar(shard.id, Bytes::from_static(b"no sidecar")).await,
        origin.put_manifest_bytes(stored.manifest.id(), Bytes::from_static(b"no manifest")).await.map(|_| ()),
    ];
    for refused in refused {
        let error = refused.expect_err("not what it says");
        assert!(matches!(error, OriginError::Mismatch { .. }), "{error}");
    }
    // A sidecar in good order that lists other rows than the one that is there.
    let mut forged = shard.sidecar.clone();
    forged.rows.swap(0, 1);
    let error = origin.put_sidecar(shard.id, forged.encode().into()).await.expect_err("other rows");
    assert!(matches!(error, OriginError::Mismatch { .. }), "{error}");
    assert_eq!(origin.sidecar(&shard.entry).await.expect("unchanged"), shard.sidecar);
}

#[test]
fn addresses_that_are_no_store_say_what_is() {
    for bad in ["", "s3://bucket", "file://relative", "memory://x", "http://host/"] {
        let error = Origin::open(bad).expect_err(bad);
        assert!(error.to_string().contains("give a directory"), "{error}");
    }
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    let error = Origin::open(file.path().to_str().expect("UTF-8")).expect_err("a file is no directory");
    assert!(matches!(error, OriginError::Unusable { .. }), "{error}");
}
