//! What holds for any table.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Int64Array, StringArray};
use proptest::prelude::*;
use shardfmt::manifest::Labels;
use shardfmt::size::ByteSize;

use super::*;

/// A row: label, a blob of any length, and perhaps a text.
type Row = (i64, Vec<u8>, Option<String>);

fn batch(rows: &[Row]) -> RecordBatch {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("label", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0)))),
        ("blob", Arc::new(BinaryArray::from_iter_values(rows.iter().map(|row| &row.1)))),
        ("text", Arc::new(rows.iter().map(|row| row.2.as_deref()).collect::<StringArray>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
        .unwrap()
}

fn parquet(rows: &[Row]) -> (TempDir, PathBuf, Vec<Vec<u8>>) {
    let directory = directory(&[]);
    let path = directory.path().join("all.parquet");
    let batch = batch(rows);
    write_parquet(path.clone(), &batch);
    let codec = RowCodec::new(batch.schema()).unwrap();
    (directory, path, canonical_rows(&codec, &batch))
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let row = (0..5i64, prop::collection::vec(any::<u8>(), 0..40), prop::option::of("[a-z]{0,6}"));
    prop::collection::vec(row, 1..400)
}

fn config(mix: Mix, seed: u64, shard_bytes: u64) -> IngestConfig {
    IngestConfig { mix, seed, shard_size: Some(ByteSize(shard_bytes)), ..IngestConfig::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn rows_out_are_the_rows_in(rows in rows(), seed: u64, shard_bytes in 1..5000u64) {
        let (_directory, path, canonical) = parquet(&rows);
        let sequential = run(&path, &config(Mix::Sequential, seed, shard_bytes), 2).unwrap();
        prop_assert_eq!(sequential.rows(), canonical.clone());
        let random = run(&path, &config(Mix::Random, seed, shard_bytes), 2).unwrap();
        prop_assert_eq!(sorted(random.rows()), sorted(canonical));
        prop_assert_eq!(random.manifest.digest_sum(), sequential.manifest.digest_sum());
        let mut labels = Labels::new();
        for (label, count) in random.manifest.shards.iter().flat_map(|shard| shard.labels.clone().unwrap()) {
            *labels.entry(label).or_default() += count;
        }
        prop_assert_eq!(labels.values().sum::<u64>(), rows.len() as u64);
    }

    #[test]
    fn threads_and_place_do_not_matter(rows in rows(), seed: u64, shard_bytes in 1..5000u64) {
        let (_here, path, _) = parquet(&rows);
        let there = directory(&[]);
        let copy = there.path().join("all.parquet");
        std::fs::copy(&path, &copy).unwrap();
        for mix in [Mix::Random, Mix::Sequential] {
            let config = config(mix, seed, shard_bytes);
            let one = run(&path, &config, 1).unwrap().manifest;
            let two = run(&copy, &config, 2).unwrap().manifest;
            prop_assert_eq!(one.id(), two.id());
            prop_assert_eq!(Manifest::decode(&two.encode()).unwrap().id(), one.id());
        }
    }

    #[test]
    fn the_same_rows_of_other_files_are_one_version(rows in rows(), seed: u64, shard_bytes in 1..5000u64, at: prop::sample::Index) {
        let (_here, path, _) = parquet(&rows);
        let there = directory(&[]);
        let (first, second) = rows.split_at(at.index(rows.len()).max(1));
        write_parquet(there.path().join("a.parquet"), &batch(first));
        if !second.is_empty() {
            write_parquet(there.path().join("b.parquet"), &batch(second));
        }
        let arrow = there.path().join("all.arrow");
        let mut file = arrow::ipc::writer::FileWriter::try_new(File::create(&arrow).unwrap(), &batch(&rows).schema()).unwrap();
        file.write(&batch(&rows)).unwrap();
        file.finish().unwrap();
        let moved = directory(&[]);
        std::fs::rename(&arrow, moved.path().join("all.arrow")).unwrap();
        for mix in [Mix::Random, Mix::Sequential, Mix::Stratified("label".to_owned())] {
            let config = config(mix, seed, shard_bytes);
            let one = run(&path, &config, 1).unwrap();
            for other in [there.path().to_owned(), moved.path().join("all.arrow")] {
                let other = run(&other, &config, 2).unwrap();
                prop_assert_eq!(one.manifest.id(), other.manifest.id());
                prop_assert_ne!(&one.provenance.inputs, &other.provenance.inputs);
            }
        }
    }

    #[test]
    fn a_mix_by_hash_does_not_depend_on_the_order_of_the_input(rows in rows(), seed: u64, shard_bytes in 1..5000u64, at: prop::sample::Index) {
        let mut other = rows.clone();
        other.rotate_left(at.index(rows.len()));
        other[..rows.len() / 2].reverse();
        let version = |rows: &[Row]| {
            let (_directory, path, _) = parquet(rows);
            run(&path, &config(Mix::Hash, seed, shard_bytes), 2).unwrap()
        };
        let (one, two) = (version(&rows), version(&other));
        prop_assert_eq!(one.manifest.id(), two.manifest.id());
        prop_assert_eq!(sorted(one.rows()), sorted(parquet(&rows).2));
    }

    #[test]
    fn parts_of_a_table_make_the_version_that_an_ingest_makes(
        rows in rows(), seed: u64, shard_bytes in 1..5000u64, parts in 1..9usize, zstd: bool,
    ) {
        let (_directory, path, _) = parquet(&rows);
        let compression = if zstd { "zstd" } else { "none" }.parse().unwrap();
        let config = IngestConfig { compression, ..config(Mix::Hash, seed, shard_bytes) };
        let whole = run(&path, &config, 2).unwrap();

        let table = Table::new("rows", batch(&rows).schema(), &config).unwrap();
        let parts: Vec<RecordBatch> = rows.chunks(rows.len().div_ceil(parts)).map(batch).collect();
        let mut all = Amount::default();
        parts.iter().for_each(|part| all += table.measure(part).unwrap());
        let shards = all.shards(&config);
        // As an engine brings them together, the last part first.
        let mut dealt: BTreeMap<u32, Vec<RecordBatch>> = BTreeMap::new();
        for part in parts.iter().rev() {
            for (row, shard) in table.deal(part, shards).unwrap().into_iter().enumerate() {
                dealt.entry(shard).or_default().push(part.slice(row, 1));
            }
        }
        let made = |parts: &Vec<RecordBatch>| table.shard(parts, shards).unwrap().unwrap();
        let written: Vec<_> = dealt.values().map(made).map(|(index, shard)| (index, shard.entry)).collect();
        prop_assert!(dealt.keys().eq(written.iter().map(|(index, _)| index)));
        let version = table.version(all, written.clone()).unwrap();
        prop_assert_eq!(&version.manifest, &whole.manifest);
        if let Some((_, lost)) = written.split_last() {
            let error = table.version(all, lost.to_vec()).unwrap_err().to_string();
            prop_assert!(error.contains("changed while it was read"), "{}", error);
        }
    }

    #[test]
    fn what_take_takes_is_disjoint_and_covers(rows in rows(), seed: u64, parts in 1..5u32) {
        let (_directory, path, canonical) = parquet(&rows);
        let mut together = Vec::new();
        for part in 0..parts {
            let take = Some(HashRange::parts(seed, part, part + 1, parts));
            match run(&path, &IngestConfig { take, ..sequential() }, 2) {
                Ok(ingested) => together.push(ingested.rows()),
                Err(IngestError::NothingTaken { rows, .. }) => prop_assert_eq!(rows, canonical.len() as u64),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
        for (index, part) in together.iter().enumerate() {
            prop_assert!(together[..index].concat().iter().all(|row| !part.contains(row)));
        }
        prop_assert_eq!(sorted(together.concat()), sorted(canonical));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_files_are_refused_or_read_but_never_a_panic(rows in rows(), at: prop::sample::Index, bits in 1..=255u8, cut: bool) {
        let (_directory, path, _) = parquet(&rows);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= bits;
        bytes.truncate(if cut { at } else { bytes.len() });
        std::fs::write(&path, &bytes).unwrap();
        if let Err(error) = run(&path, &sequential(), 2) {
            prop_assert!(error.to_string().contains("all.parquet"));
        }
        let archive = path.with_file_name("all.tar.gz");
        let mut images = gzip(&tar(&[("a/1.png", png(1)), ("b/2.jpg", picture(ImageFormat::Jpeg, 2))]));
        let at = at % images.len();
        images[at] ^= bits;
        images.truncate(if cut { at } else { images.len() });
        std::fs::write(&archive, &images).unwrap();
        if let Err(error) = run(&archive, &sequential(), 2) {
            prop_assert!(error.to_string().contains("all.tar.gz"));
        }
    }
}

#[test]
fn random_order_is_another_order_for_every_seed() {
    let rows: Vec<Row> = (0..1000).map(|label| (label, Vec::new(), None)).collect();
    let (_directory, path, _) = parquet(&rows);
    let labels = |seed| run(&path, &config(Mix::Random, seed, 1 << 20), 2).unwrap().integers("label");
    let (first, second) = (labels(1), labels(2));
    assert_ne!(first, second);
    assert_eq!(first, labels(1));
    assert!(!first.is_sorted());
    let stayed = first.iter().enumerate().filter(|(index, label)| *index as i64 == **label).count();
    assert!(stayed < 10, "{stayed} of 1000 rows stayed where they were");
}

#[test]
fn the_size_used_is_recorded_and_gives_the_same_version_again() {
    let rows: Vec<Row> = (0..500).map(|label| (label, vec![7; 90], None)).collect();
    let (_directory, path, _) = parquet(&rows);
    let first = run(&path, &IngestConfig::default(), 2).unwrap().manifest;
    let recorded: IngestConfig = serde_json::from_value(first.config.clone()).unwrap();
    assert_eq!(recorded.shard_size, Some(ByteSize(1 << 20)));
    assert_eq!(run(&path, &recorded, 1).unwrap().manifest.id(), first.id());
}

#[test]
fn a_sink_that_fails_ends_the_ingest() {
    struct Full;
    impl Sink for Full {
        fn put_shard(&self, _: FinishedShard) -> io::Result<()> {
            Err(io::Error::new(io::ErrorKind::StorageFull, "no space"))
        }

        fn has_shard(&self, _: &ShardId) -> io::Result<bool> {
            Ok(false)
        }
    }
    let (_directory, path, _) = parquet(&[(1, vec![1], None)]);
    let config = IngestConfig::default();
    let failed =
        ingest(Source::open(&path, &config).unwrap(), &config, &Resources::threads(2), &Full, &NoProgress);
    assert!(matches!(failed, Err(IngestError::Sink { .. })));
}
