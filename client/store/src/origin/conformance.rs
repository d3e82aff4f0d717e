//! The promises of [`Origin`] as checks that it keeps over every kind of store: memory and a directory here, services that
//! speak S3 in the tests with real servers.
//!
//! Each check panics with the broken promise. They use few objects of their own, so all may run on one store
//! that is used for nothing else.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use bytes::Bytes;
use futures::future::join_all;
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use shardd_plan::{PlanDocument, PlanOptions, Shape};
use shardfmt::{
    Digest, FinishedShard, InputDigest, Manifest, ManifestError, ManifestFile, Provenance, Shard, ShardId,
    ShardWriter, VersionId,
};

use super::{LONGEST_PART, Object, ObjectKind, Origin, OriginError};

/// Runs every check on stores that `make` gives, which are empty.
pub async fn all(make: impl AsyncFn() -> Origin) {
    what_is_put_comes_back_and_is_counted(&make().await).await;
    what_is_not_there_is_not_found(&make().await).await;
    damage_is_found_and_named_and_healed_by_putting_again(&make().await).await;
    a_long_shard_goes_in_parts(&make().await).await;
    many_may_put_the_same(&make().await).await;
    a_long_manifest_is_read_as_far_as_is_asked(&make().await).await;
    the_first_provenance_of_a_version_stays(&make().await).await;
    what_is_put_is_listed_until_it_is_deleted(&make().await).await;
    keys_of_other_programs_are_kept_whole_and_listed(&make().await).await;
}

/// Content under keys of its own is verified, mended by putting it again, and listed by folder in the order of keys.
pub async fn keys_of_other_programs_are_kept_whole_and_listed(origin: &Origin) {
    assert!(origin.list_folder("runs/a").await.expect("lists").is_empty(), "nothing is there yet");
    let long = vec![7; LONGEST_PART + 1];
    let contents = [("runs/a/2.json", &b"two"[..]), ("runs/a/1.json", b"one"), ("runs/ab/3.bin", &long)];
    for (key, bytes) in contents {
        for _ in 0..2 {
            origin.put_keyed(key.into(), "a thing", Bytes::copy_from_slice(bytes)).await.expect("puts");
        }
        let read = origin.keyed(key.into(), "a thing", Digest::of(bytes)).await.expect("reads");
        assert!(read == bytes, "{key}");
    }
    let listed = origin.list_folder("runs/a").await.expect("lists");
    let listed: Vec<(&str, u64)> = listed.iter().map(|object| (&object.key[..], object.bytes)).collect();
    assert_eq!(listed, [("runs/a/1.json", 3), ("runs/a/2.json", 3)], "of this folder alone, in order");

    let path = super::Path::from("runs/a/1.json");
    origin.store.put(&path, Bytes::from_static(b"on").into()).await.expect("puts");
    let error = origin.keyed(path.to_string(), "a thing", Digest::of(b"one")).await.expect_err("it is cut");
    assert!(matches!(error, OriginError::Corrupt { .. }), "{error}");
    assert!(!error.to_string().contains("ingest"), "it was not ingested: {error}");
    origin.put_keyed(path.to_string(), "a thing", Bytes::from_static(b"one")).await.expect("mends");
    origin.keyed(path.to_string(), "a thing", Digest::of(b"one")).await.expect("reads");
    origin.delete(vec![path.to_string()]).await.expect("deletes");
    let error = origin.keyed(path.to_string(), "a thing", Digest::of(b"one")).await.expect_err("it is gone");
    assert!(matches!(error, OriginError::NotFound { .. }), "{error}");
}

/// A shard of `rows` numbers.
pub fn shard(rows: i64) -> FinishedShard {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let batch = RecordBatch::try_from_iter([("number", numbers)]).expect("one column");
    let mut writer = ShardWriter::new(batch.schema()).expect("plain columns");
    writer.push(&batch).expect("rows of the schema");
    writer.finish().expect("rows")
}

/// The manifest of a version with this shard alone.
pub fn manifest(shard: &FinishedShard) -> Manifest {
    let schema = Shard::from_bytes(shard.bytes.clone()).expect("own shard").schema().clone();
    Manifest::new(schema, vec![shard.entry.clone()], serde_json::json!({}))
}

pub(super) fn plan(manifest: &Manifest) -> PlanDocument {
    let shard_rows = manifest.shards.iter().map(|shard| shard.rows).collect();
    let shape = Shape { shard_rows, row_bytes: manifest.row_bytes() };
    PlanDocument::with_defaults(manifest.id(), &shape, PlanOptions::default()).expect("fits")
}

/// A manifest that is long for its labels.
pub(super) fn long_manifest() -> Manifest {
    let mut long = manifest(&shard(10));
    long.shards[0].labels = Some((0..4000).map(|class| (format!("class {class:050}").into(), 1)).collect());
    long
}

/// Shards, sidecars, manifests and plans; data is counted, and apart from metadata.
pub async fn what_is_put_comes_back_and_is_counted(origin: &Origin) {
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
    assert_eq!(origin.shard_size(&shard.id).await.expect("looks"), Some(size));
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
}

/// Nothing is there before it is put, and that is no other error.
pub async fn what_is_not_there_is_not_found(origin: &Origin) {
    let shard = shard(10);
    let manifest = manifest(&shard);
    let version = manifest.id();
    let missing = [
        origin.shard(&shard.entry).await.map(drop),
        origin.sidecar(&shard.entry).await.map(drop),
        origin.read_ranges(&shard.id, &[std::ops::Range { start: 0, end: 8 }]).await.map(drop),
        origin.manifest(version).await.map(drop),
        origin.manifest_tree(version).await.map(drop),
        origin.open_manifest(version).await.map(drop),
        origin.plan(plan(&manifest).id()).await.map(drop),
    ];
    for missing in missing {
        let error = missing.expect_err("it is not there");
        assert!(matches!(error, OriginError::NotFound { .. }), "{error:?}");
        assert!(error.to_string().contains(origin.name()), "{error}");
    }
    assert_eq!(origin.shard_size(&shard.id).await.expect("looks"), None);
    assert_eq!(origin.manifest_size(version).await.expect("looks"), None);
    assert!(!origin.has_manifest(version).await.expect("looks"));
}

/// Bytes that are not those of the name are an error that says so; the right ones take their place.
pub async fn damage_is_found_and_named_and_healed_by_putting_again(origin: &Origin) {
    let shard = shard(1000);
    let manifest = manifest(&shard);
    origin.put_shard(&shard).await.expect("puts");
    let version = origin.put_manifest(&manifest).await.expect("puts");
    for object in [Object::shard(shard.id), Object::sidecar(shard.id), Object::manifest(version)] {
        let stored = origin.store.get(&object.path).await.expect("is there").bytes().await.expect("read");
        let mut bytes = stored.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        origin.store.put(&object.path, bytes.into()).await.expect("puts");
    }
    let errors = [
        (origin.shard(&shard.entry).await.map(drop), format!("shard {} in ", shard.id)),
        (origin.sidecar(&shard.entry).await.map(drop), format!("sidecar of shard {} in ", shard.id)),
        (origin.manifest(version).await.map(drop), format!("manifest {version} in ")),
    ];
    for (result, named) in errors {
        let error = result.expect_err(&named);
        assert!(matches!(error, OriginError::Corrupt { .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with(&named) && text.contains(origin.name()), "{text}");
    }
    origin.put_shard(&shard).await.expect("puts");
    origin.put_manifest(&manifest).await.expect("puts");
    assert_eq!(origin.shard(&shard.entry).await.expect("healed"), shard.bytes);
    assert_eq!(origin.sidecar(&shard.entry).await.expect("healed"), shard.sidecar);
    assert_eq!(origin.manifest(version).await.expect("healed"), manifest);
}

/// A shard that is too long for one request arrives whole.
pub async fn a_long_shard_goes_in_parts(origin: &Origin) {
    let bytes: Vec<u8> = (0..LONGEST_PART + 12_345).map(|at| (at ^ (at >> 9)) as u8).collect();
    let bytes = Bytes::from(bytes);
    let id = ShardId::of(&bytes);
    origin.put_shard_bytes(id, bytes.clone()).await.expect("puts");
    assert_eq!(origin.shard_size(&id).await.expect("looks"), Some(bytes.len() as u64));
    let end = bytes.len() as u64;
    let parts = origin.read_ranges(&id, &[0..100, end - 100..end]).await.expect("reads");
    assert_eq!(parts, [bytes.slice(..100), bytes.slice(bytes.len() - 100..)]);
    assert!(origin.shard_bytes(id).await.expect("reads") == bytes, "other bytes came back");
}

/// A writer of the same shard at the same time is done when it is there.
pub async fn many_may_put_the_same(origin: &Origin) {
    let shard = shard(100);
    for outcome in join_all((0..8).map(|_| origin.put_shard(&shard))).await {
        outcome.expect("puts");
    }
    assert_eq!(origin.shard(&shard.entry).await.expect("reads"), shard.bytes);
}

/// Of a long manifest no more is read than answers need, while it has its tree.
pub async fn a_long_manifest_is_read_as_far_as_is_asked(origin: &Origin) {
    let manifest = long_manifest();
    let version = origin.put_manifest(&manifest).await.expect("puts");
    let ask = async |what: fn(ManifestFile) -> Result<u64, ManifestError>| {
        let before = origin.metadata_bytes_read();
        let answer = origin.ask_manifest(version, what).await.expect("the manifest");
        (answer, origin.metadata_bytes_read() - before)
    };
    let size = origin.manifest_size(version).await.expect("looks").expect("is there");
    let (samples, read) = ask(|manifest| Ok(manifest.totals().samples)).await;
    assert!(samples == 10 && read < size / 4, "{read} of {size} bytes");
    let (labels, read) = ask(|manifest| Ok(manifest.labels()?.map_or(0, |labels| labels.len() as u64))).await;
    assert!(labels == 4000 && read > size / 3, "{read} of {size} bytes");

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
    assert!(missing.to_string().contains(&nothing.to_string()), "{missing}");
}

/// The first provenance of a version stays, and what is none is refused.
pub async fn the_first_provenance_of_a_version_stays(origin: &Origin) {
    let version = VersionId::of(b"a version");
    assert_eq!(origin.provenance(version).await.expect("looks"), None);
    let of = |name: &str| {
        let input = InputDigest { name: name.to_owned(), bytes: 1, digest: Digest::of(name.as_bytes()) };
        Provenance::new(serde_json::json!({ "format": "csv" }), vec![input])
    };
    for name in ["first", "second"] {
        origin.put_provenance(version, &of(name)).await.expect("puts");
        assert_eq!(origin.provenance(version).await.expect("reads"), Some(of("first")));
    }
    let refused = origin.put_provenance_bytes(version, "{}".into()).await.expect_err("it is none");
    assert!(matches!(refused, OriginError::Mismatch { .. }), "{refused}");
    origin.delete(vec![version.provenance_key()]).await.expect("deletes");
    assert_eq!(origin.provenance(version).await.expect("looks"), None);
}

/// Listing, dating and deleting, as garbage collection does.
pub async fn what_is_put_is_listed_until_it_is_deleted(origin: &Origin) {
    origin.put_catalog("one").await.expect("puts");
    assert_eq!(origin.catalogs().await.expect("lists"), ["one"]);
    let now = origin.now().await.expect("tells");
    let mut objects: Vec<_> = origin.objects().try_collect().await.expect("lists");
    objects.sort_by_key(|object| object.bytes);
    let [clock, mark] = &objects[..] else { panic!("{objects:?}") };
    assert_eq!((clock.kind, clock.written), (ObjectKind::Clock, now));
    assert_eq!((mark.kind, mark.key.as_str(), mark.bytes), (ObjectKind::Catalog, "catalogs/one", 4));
    assert!(
        mark.written.is_older(Duration::ZERO, now) && !mark.written.is_older(Duration::from_secs(60), now)
    );
    let keys = vec![mark.key.clone(), "not/there".to_owned()];
    let old = |age| origin.still_older(keys.clone(), age, now);
    assert_eq!(old(Duration::ZERO).await.expect("looks"), ["catalogs/one"]);
    assert_eq!(old(Duration::from_secs(60)).await.expect("looks"), [""; 0]);
    for _ in 0..2 {
        origin.delete(keys.clone()).await.expect("deletes what there is");
        assert_eq!(origin.objects().count().await, 1);
    }
}
