//! Samples that are forgotten: exactly these are gone, and nothing else has moved.

use std::collections::BTreeSet;

use proptest::prelude::*;
use shardd_strategies::record_batch;
use shardfmt::row::RowDigest;

use super::*;

fn forgotten(
    manifest: &Manifest,
    rows: &BTreeSet<RowDigest>,
    memory: &Memory,
) -> Result<Manifest, VersionError> {
    forget(base(manifest), rows, memory, 2, memory, &NoProgress)
}

fn digests(rows: &[Vec<u8>]) -> Vec<RowDigest> {
    rows.iter().map(|row| RowDigest::of(row)).collect()
}

/// The digests of the rows that fit, wherever they lie.
fn found(manifest: &Manifest, conditions: &[Condition], memory: &Memory) -> Vec<RowDigest> {
    let matcher = Matcher::new(&manifest.schema, conditions).expect("they fit the schema");
    let by_shard = find_rows(&manifest.shards, &matcher, memory, 2, &NoProgress).expect("intact");
    manifest.shards.iter().flat_map(|entry| by_shard.get(&entry.id).cloned().unwrap_or_default()).collect()
}

fn condition(column: &str, values: &[&str]) -> Condition {
    Condition { column: column.to_owned(), values: values.iter().map(ToString::to_string).collect() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_left_is_all_but_the_forgotten_in_the_same_order(
        batch in record_batch(120),
        lengths in prop::collection::vec(1..40usize, 1..5),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let memory = Memory::default();
        let old = version(&batch, &lengths, &memory);
        let all = rows_of(&batch);
        let rows: BTreeSet<RowDigest> = picks.iter().map(|pick| RowDigest::of(&all[pick.index(all.len())])).collect();
        let left: Vec<Vec<u8>> = all.iter().filter(|row| !rows.contains(&RowDigest::of(row))).cloned().collect();
        let new = match forgotten(&old, &rows, &memory) {
            Err(VersionError::NothingLeft) => {
                prop_assert!(left.is_empty());
                return Ok(());
            }
            new => new.expect("intact"),
        };
        prop_assert_eq!(super::rows(&new, &memory), left.clone());
        prop_assert_eq!(new.sample_count(), left.len() as u64);
        let touched = |entry: &ShardEntry| {
            read_sidecar(&memory, entry).expect("intact").rows.iter().any(|row| rows.contains(row))
        };
        let mut shards = new.shards.iter();
        let mut untouched = old.shards.iter().filter(|entry| !touched(entry));
        prop_assert!(untouched.all(|entry| shards.any(|kept| kept == entry)), "they stay, in their order");
        prop_assert!(!new.shards.iter().any(touched));
        for entry in &new.shards {
            prop_assert_eq!(check(entry, &memory), []);
        }
        prop_assert_eq!(forgotten(&new, &rows, &memory).expect("intact").id(), new.id(), "twice is once");
        prop_assert_eq!(rows.is_empty(), new.id() == old.id());
    }
}

#[test]
fn rows_are_found_by_values_of_their_columns() {
    let memory = Memory::default();
    let batch = table(0..60);
    let all = digests(&rows_of(&batch));
    let version = version(&batch, &[7], &memory);
    let of = |labels: &[usize]| -> Vec<RowDigest> { labels.iter().map(|label| all[*label]).collect() };
    assert_eq!(found(&version, &[condition("label", &["7"])], &memory), of(&[7]));
    assert_eq!(found(&version, &[condition("label", &["8", "50", "99"])], &memory), of(&[8, 50]));
    let twice = [condition("label", &["8"]), condition("label", &["50"])];
    assert_eq!(found(&version, &twice, &memory), of(&[8, 50]), "any value of a column");
    let both = [condition("label", &["7", "8"]), condition("text", &["text 8"])];
    assert_eq!(found(&version, &both, &memory), of(&[8]), "every column");
    assert_eq!(found(&version, &[condition("text", &[""])], &memory), [], "a missing row fits nothing");
    assert_eq!(found(&version, &[condition("blob", &["0".repeat(40).as_str()])], &memory), of(&[48]));
}

#[test]
fn a_condition_that_says_nothing_is_refused_with_the_reason() {
    let schema = table(0..1).schema();
    let refused = |column: &str, value: &str| {
        let refused = Matcher::new(&schema, &[condition(column, &[value])]).err();
        refused.expect("it says nothing").to_string()
    };
    assert_eq!(refused("name", "x"), "there is no column \"name\": there is label, text, blob");
    assert_eq!(refused("label", "x"), "\"x\" is not a value of column \"label\", which has the type Int64");
}

#[test]
fn a_version_that_lacks_samples_goes_on_as_before_and_is_never_empty() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("t.parquet");
    write_parquet(&path, &table(0..100));
    let memory = Memory::default();
    let old = ingested(&path, &config(Mix::Sequential, 1500), &memory);
    let all: BTreeSet<RowDigest> = digests(&rows(&old, &memory)).into_iter().collect();
    let some = BTreeSet::from([*all.first().expect("a hundred")]);
    let new = forgotten(&old, &some, &memory).expect("intact");
    assert_eq!((settings(&new, None), made_of(&new)), (settings(&old, None), Some(old.id())));
    assert_eq!((new.sample_count(), new.schema), (99, old.schema.clone()));
    assert!(matches!(forgotten(&old, &all, &memory), Err(VersionError::NothingLeft)));
}
