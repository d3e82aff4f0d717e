//! The order of rows, and the versions that one input makes.

use std::sync::Arc;

use arrow::array::{Int64Array, StringArray};
use proptest::prelude::*;
use shardfmt::size::ByteSize;

use super::*;

fn labelled(labels: &[Option<u8>]) -> (TempDir, PathBuf) {
    let directory = directory(&[]);
    let path = directory.path().join("all.parquet");
    let text = |label: &Option<u8>| label.map(|label| format!("class {label}"));
    let columns: Vec<(&str, arrow::array::ArrayRef)> = vec![
        ("number", Arc::new(Int64Array::from_iter_values(0..labels.len() as i64))),
        ("label", Arc::new(labels.iter().map(text).collect::<StringArray>())),
    ];
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    write_parquet(path.clone(), &RecordBatch::try_from_iter_with_nullable(columns).unwrap());
    (directory, path)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_stratified_mix_spreads_every_class(
        labels in prop::collection::vec(prop::option::of(0..6u8), 1..400),
        seed: u64,
        size in 200..4000u64,
    ) {
        let (_directory, path) = labelled(&labels);
        let mix = Mix::Stratified("label".to_owned());
        let config = IngestConfig { mix, seed, shard_size: Some(ByteSize(size)), ..IngestConfig::default() };
        let ingested = run(&path, &config, 2).unwrap();
        prop_assert_eq!(sorted(ingested.integers("number")), (0..labels.len() as i64).collect::<Vec<_>>());
        let shards = &ingested.manifest.shards;
        let spread = |of: &dyn Fn(&ShardEntry) -> u64| {
            shards.iter().map(of).max().unwrap() - shards.iter().map(of).min().unwrap()
        };
        prop_assert!(spread(&|shard| u64::from(shard.rows)) <= 1);
        for class in 0..6 {
            let name = format!("class {class}");
            prop_assert!(spread(&|shard| shard.labels.as_ref().unwrap().get(name.as_str()).copied().unwrap_or(0)) <= 1);
        }
    }

    #[test]
    fn a_split_gives_what_single_ingests_would(labels in prop::collection::vec(prop::option::of(0..3u8), 50..300), seed: u64) {
        let (_directory, path) = labelled(&labels);
        let parts = [HashRange::parts(seed, 0, 8, 10), HashRange::parts(seed, 8, 10, 10)];
        let config = IngestConfig { seed, ..IngestConfig::default() };
        let sink = Kept::default();
        let source = Source::open(&path, &config).unwrap();
        let read = Ingest::read(source, &config, &parts, &Resources::threads(2), &NoProgress).unwrap();
        let versions = read.write(config.shard_size, &sink, &NoProgress).unwrap().finish();
        for (part, version) in parts.into_iter().zip(versions) {
            let config = IngestConfig { take: Some(part), ..config.clone() };
            prop_assert_eq!(run(&path, &config, 1).unwrap().manifest.id(), version.manifest.id());
        }
    }
}

#[test]
fn every_place_is_as_likely_for_every_row() {
    // Where do the rows of the first tenth of the input go? Chi-square over a 10 x 10 table of (from, to).
    let rows = 20_000;
    let (_directory, path) = labelled(&vec![None; rows]);
    let ingested = run(&path, &IngestConfig::default(), 2).unwrap();
    let mut table = [[0u32; 10]; 10];
    for (place, number) in ingested.integers("number").into_iter().enumerate() {
        table[number as usize * 10 / rows][place * 10 / rows] += 1;
    }
    let expected = rows as f64 / 100.0;
    let chi_square: f64 = table.iter().flatten().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
    // 81 degrees of freedom: 99.9 % of fair orders lie below 126.
    assert!(chi_square < 126.0, "{chi_square}");
}

#[test]
fn a_label_that_is_not_there_or_no_class_is_refused() {
    let (_directory, path) = labelled(&[Some(1)]);
    let stratified =
        |label: &str| IngestConfig { mix: Mix::Stratified(label.to_owned()), ..IngestConfig::default() };
    let text = refusal(&path, &stratified("lable"));
    assert!(text.contains("lable") && text.contains("number, label"), "{text}");
    let batch = RecordBatch::try_from_iter(vec![(
        "weight",
        Arc::new(arrow::array::Float64Array::from(vec![1.0])) as arrow::array::ArrayRef,
    )]);
    write_parquet(path.clone(), &batch.unwrap());
    assert!(refusal(&path, &stratified("weight")).contains("no class"));
}

/// Pearson's test of a hundred parts of the input against a hundred parts of the version, and of neighbours.
#[test]
fn every_place_is_as_likely_for_each_of_a_million_rows() {
    const ROWS: i64 = 1_000_000;
    const PARTS: i64 = 100;
    let directory = directory(&[]);
    let path = directory.path().join("all.parquet");
    let numbers: arrow::array::ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    write_parquet(path.clone(), &RecordBatch::try_from_iter([("number", numbers)]).unwrap());
    let ingested = run(&path, &IngestConfig::default(), 2).unwrap();
    let numbers = ingested.integers("number");
    assert_eq!(numbers.len() as i64, ROWS);
    let part = |place: i64| (place / (ROWS / PARTS)) as usize;
    // By chance, each of n degrees of freedom adds 1 to chi-square, with a variance of 2.
    let check = |what: &str, pairs: &mut dyn Iterator<Item = (i64, i64)>| {
        let mut counts = vec![0u32; (PARTS * PARTS) as usize];
        pairs.for_each(|(a, b)| counts[part(a) * PARTS as usize + part(b)] += 1);
        let expected = f64::from(counts.iter().sum::<u32>()) / (PARTS * PARTS) as f64;
        let chi: f64 = counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
        let freedom = (PARTS - 1).pow(2) as f64;
        println!("{what}: chi-square {chi:.0} for {freedom} degrees of freedom");
        assert!((chi - freedom).abs() < 4.0 * (2.0 * freedom).sqrt(), "{what}: {chi}");
    };
    check("places", &mut (0..ROWS).zip(numbers.iter().copied()));
    check("neighbours", &mut numbers.windows(2).map(|pair| (pair[0], pair[1])));
}
