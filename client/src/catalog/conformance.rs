//! What every catalog promises, as one story told to an empty one.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
use shardfmt::plan::{PlanDocument, PlanOptions, Shape};
use shardfmt::{DatasetName, FinishedShard, Manifest, PlanId, ShardWriter, VersionId};

use super::{Catalog, CatalogError};

/// Tells the story to `catalog`, which has no datasets yet.
///
/// # Panics
///
/// With what was promised and not kept.
pub fn conformance(catalog: &dyn Catalog) {
    an_empty_catalog_knows_nothing(catalog);
    let first = dataset(&[0..100, 100..150]);
    let second = dataset(&[0..100, 150..290]);
    commits_need_their_shards(catalog, &first);
    a_name_moves_only_from_where_it_was_expected(catalog, &first, &second);
    what_is_put_comes_back(catalog, &second);
    of_concurrent_commits_exactly_one_wins(catalog);
    plans_fit_their_version(catalog, &second);
}

/// A small version: its shards and its manifest.
struct Version {
    shards: Vec<FinishedShard>,
    manifest: Manifest,
}

fn an_empty_catalog_knows_nothing(catalog: &dyn Catalog) {
    assert_eq!(catalog.datasets().expect("lists"), []);
    assert_eq!(catalog.plans().expect("lists"), []);
    let missing = catalog.resolve(&name("nobody")).expect_err("there is none");
    assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
    assert!(missing.to_string().contains("nobody"), "{missing}");
    let missing = catalog.manifest(VersionId::of(b"nothing")).expect_err("there is none");
    assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
    let missing = catalog.plan(PlanId::of(b"nothing")).expect_err("there is none");
    assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
}

fn commits_need_their_shards(catalog: &dyn Catalog, version: &Version) {
    catalog.put_shard(&version.shards[0]).expect("puts");
    let early = catalog.commit(&name("story"), None, &version.manifest).expect_err("a shard is missing");
    assert!(early.to_string().contains(&version.shards[1].id.to_string()), "{early}");
    assert_eq!(catalog.datasets().expect("lists"), [], "nothing was committed");
    std::thread::scope(|threads| {
        for shard in &version.shards {
            threads.spawn(|| catalog.put_shard(shard).expect("once more is harmless"));
        }
    });
}

fn a_name_moves_only_from_where_it_was_expected(catalog: &dyn Catalog, first: &Version, second: &Version) {
    let story = name("story");
    let (old, new) = (first.manifest.id(), second.manifest.id());
    let info = catalog.commit(&story, None, &first.manifest).expect("there was none");
    assert_eq!((info.version, info.samples, info.shards), (old, 150, 2));
    assert_eq!(info.bytes, first.manifest.bytes());
    assert_eq!(catalog.commit(&story, None, &first.manifest).expect("repeated"), info);

    second.shards.iter().for_each(|shard| catalog.put_shard(shard).expect("puts"));
    for expected in [None, Some(VersionId::of(b"other"))] {
        let conflict = catalog.commit(&story, expected, &second.manifest).expect_err("it is elsewhere");
        assert!(
            matches!(conflict, CatalogError::Conflict { actual, .. } if actual == Some(old)),
            "{conflict:?}"
        );
        let text = conflict.to_string();
        assert!(text.contains(&old.to_string()) && text.contains("story"), "{text}");
    }
    let conflict = catalog.commit(&name("new"), Some(old), &second.manifest).expect_err("there is none");
    assert!(matches!(conflict, CatalogError::Conflict { actual: None, .. }), "{conflict:?}");
    assert_eq!(catalog.resolve(&story).expect("unchanged"), old);
    catalog.commit(&story, Some(old), &second.manifest).expect("as expected");
    assert_eq!(catalog.resolve(&story).expect("moved"), new);

    catalog.commit(&name("another"), None, &first.manifest).expect("versions may have several names");
    let names: Vec<_> = catalog.datasets().expect("lists").into_iter().map(|info| info.name).collect();
    assert_eq!(names, [name("another"), story]);
}

fn what_is_put_comes_back(catalog: &dyn Catalog, version: &Version) {
    let manifest = catalog.manifest(version.manifest.id()).expect("committed");
    assert_eq!(manifest, version.manifest);
    for (entry, shard) in manifest.shards.iter().zip(&version.shards) {
        assert_eq!(catalog.shard(entry).expect("reads"), shard.bytes);
    }
}

fn of_concurrent_commits_exactly_one_wins(catalog: &dyn Catalog) {
    let versions: Vec<_> = (1..5).map(|n| dataset(std::slice::from_ref(&(0..n)))).collect();
    let race = name("race");
    let outcomes: Vec<_> = std::thread::scope(|threads| {
        let commit = |version: &Version| {
            version.shards.iter().for_each(|shard| catalog.put_shard(shard).expect("puts"));
            catalog.commit(&race, None, &version.manifest)
        };
        let running: Vec<_> = versions.iter().map(|version| threads.spawn(move || commit(version))).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let winners: BTreeSet<_> = outcomes.iter().flatten().map(|info| info.version).collect();
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    assert_eq!(winners.first().copied(), Some(catalog.resolve(&race).expect("committed")));
    let lost = |error: &CatalogError| matches!(error, CatalogError::Conflict { .. });
    assert!(outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).all(lost), "{outcomes:?}");
}

fn plans_fit_their_version(catalog: &dyn Catalog, version: &Version) {
    let manifest = &version.manifest;
    let shape = Shape {
        shard_rows: manifest.shards.iter().map(|shard| shard.rows).collect(),
        row_bytes: manifest.row_bytes(),
    };
    let options = PlanOptions { seed: 7, ..PlanOptions::default() };
    let plan = PlanDocument::with_defaults(manifest.id(), &shape, options).expect("fits");
    let id = catalog.put_plan(&plan).expect("puts");
    assert_eq!(id, plan.id());
    assert_eq!(catalog.put_plan(&plan).expect("once more is harmless"), id);
    assert_eq!(catalog.plan(id).expect("reads"), plan);
    let plans = catalog.plans().expect("lists");
    let [info] = &plans[..] else { panic!("one plan was put: {plans:?}") };
    assert_eq!((info.id, &info.dataset, info.version), (id, &name("story"), manifest.id()));

    let too_fine = PlanDocument { partitions: 90_000, ..plan.clone() };
    catalog.put_plan(&too_fine).expect_err("there are fewer grains");
    let of_nothing = PlanDocument { version: VersionId::of(b"nothing"), ..plan };
    let refused = catalog.put_plan(&of_nothing).expect_err("there is no such version");
    assert!(matches!(refused, CatalogError::NotFound { .. }), "{refused:?}");
    assert_eq!(catalog.plans().expect("lists"), plans);
}

fn name(text: &str) -> DatasetName {
    text.parse().expect("a name")
}

/// A version with one shard for each range of numbers.
fn dataset(ranges: &[std::ops::Range<i64>]) -> Version {
    let shards: Vec<_> = ranges.iter().map(|range| shard(range.clone())).collect();
    let entries = shards.iter().map(|shard| shard.entry.clone()).collect();
    let config = serde_json::json!({ "made": "by hand" });
    let manifest = Manifest::new(batch(0..1).schema(), entries, config, Vec::new());
    Version { shards, manifest }
}

fn shard(numbers: std::ops::Range<i64>) -> FinishedShard {
    let batch = batch(numbers);
    let mut writer = ShardWriter::new(batch.schema()).expect("plain columns");
    writer.push(&batch).expect("rows of the schema");
    writer.finish().expect("rows")
}

fn batch(numbers: std::ops::Range<i64>) -> RecordBatch {
    let texts: Vec<String> = numbers.clone().map(|n| format!("sample {n}")).collect();
    let label: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers.map(|n| n % 10)));
    let data: ArrayRef = Arc::new(BinaryArray::from_iter_values(texts.iter().map(String::as_bytes)));
    RecordBatch::try_from_iter([("data", data), ("label", label)]).expect("columns of equal length")
}
