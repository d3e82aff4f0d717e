//! What holds for damaged files of every kind, and for large ones.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, ListArray};
use arrow::datatypes::UInt8Type;
use proptest::prelude::*;

use super::mds::golden;
use super::*;

/// A small file of each kind; of text, with and without a tokenizer.
fn files() -> Vec<(&'static str, Kind, Vec<u8>, IngestConfig)> {
    let read = |name| fs::read(theirs(name)).unwrap();
    let csv = b"x,y\n1,\"a\nb\"\n2,c\n3,\n".repeat(2);
    let json = b"{\"x\": 1, \"y\": [{\"z\": \"a\"}]}\n{\"x\": 2.5, \"y\": null}\n".to_vec();
    let text = b"one two\n\nthree four five\n".to_vec();
    let packed = IngestConfig {
        tokenizer: Some(theirs("tokenizer.json")),
        sequence_length: Some(3),
        documents: Documents::BlankLine,
        ..sequential()
    };
    let label: ArrayRef = Arc::new(Int64Array::from_iter_values(0..40));
    let lists =
        ListArray::from_iter_primitive::<UInt8Type, _, _>((0..40).map(|row| Some(vec![Some(row); 3])));
    let table =
        RecordBatch::try_from_iter([("label", label), ("list", Arc::new(lists) as ArrayRef)]).unwrap();
    let mut parquet = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut parquet, table.schema(), None).unwrap();
    writer.write(&table).unwrap();
    writer.close().unwrap();
    let images = tar(&[("cat/1.png", png(1)), ("dog/2.png", png(2)), ("cat/3.png", png(3))]);
    let samples =
        tar(&[("1.cls", b"1".to_vec()), ("1.png", png(1)), ("2.cls", b"2".to_vec()), ("2.png", png(2))]);
    vec![
        ("a.feather", Kind::Arrow, read("lz4.feather"), sequential()),
        ("b.feather", Kind::Arrow, read("zstd.feather"), sequential()),
        ("c.arrows", Kind::Arrow, read("dictionaries.arrows"), sequential()),
        ("d.csv", Kind::Csv, csv.clone(), sequential()),
        ("e.csv.gz", Kind::Csv, gzip(&csv), sequential()),
        ("f.csv.zst", Kind::Csv, zstd(&csv), typed(&[("x", "Int8")])),
        ("g.jsonl", Kind::JsonLines, json.clone(), sequential()),
        ("h.jsonl.gz", Kind::JsonLines, gzip(&json), sequential()),
        ("i.npy", Kind::Numpy, read("structured.npy"), sequential()),
        ("j.npy", Kind::Numpy, read("fortran.npy"), sequential()),
        ("k.npz", Kind::Numpy, read("plain.npz"), sequential()),
        ("l.npz", Kind::Numpy, read("compressed.npz"), sequential()),
        ("m.svm", Kind::Libsvm, b"1,2 qid:1 1:0.5 3:1 # x\n-1 2:1e3\n".to_vec(), sequential()),
        ("n.txt", Kind::Text, text.clone(), sequential()),
        ("o.txt.gz", Kind::Text, gzip(&text), packed),
        ("p.parquet", Kind::Parquet, parquet, sequential()),
        ("q.tar", Kind::Archive, images.clone(), sequential()),
        ("r.tar.gz", Kind::Archive, gzip(&images), sequential()),
        ("s.tar.zst", Kind::Archive, zstd(&images), sequential()),
        ("t.tar", Kind::WebDataset, samples.clone(), sequential()),
        ("u.tar.zst", Kind::WebDataset, zstd(&samples), sequential()),
    ]
}

/// Reads a file that has a bit flipped, or is cut off, with all that lies beside it.
fn check_damaged(
    name: &str,
    mut bytes: Vec<u8>,
    beside: &[(&str, Vec<u8>)],
    config: &IngestConfig,
    damage: (prop::sample::Index, u8, bool),
) -> Result<(), TestCaseError> {
    let (at, bits, is_cut) = (damage.0.index(bytes.len()), damage.1, damage.2);
    bytes[at] ^= bits;
    bytes.truncate(if is_cut { at } else { bytes.len() });
    let directory = directory(&[beside, &[(name, bytes)]].concat());
    let path = directory.path().join(if beside.is_empty() { name } else { "." });
    let failing = run(&path, config, 2);
    if let Err(error) = &failing {
        prop_assert!(error.to_string().contains(name), "{}", error);
    }
    // Only the failing parts are skipped.
    let config = IngestConfig { on_error: OnError::Skip, ..config.clone() };
    match (failing, run(&path, &config, 2)) {
        (Ok(failing), Ok(skipping)) => prop_assert_eq!(failing.rows(), skipping.rows()),
        (Err(error), Ok(skipping)) => {
            prop_assert!(!skipping.provenance.skipped.first.is_empty(), "{}", error)
        }
        (Ok(_), Err(error)) => prop_assert!(false, "{}", error),
        (Err(_), Err(error)) => prop_assert!(error.to_string().contains(name), "{}", error),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn damaged_files_are_refused_or_read_but_never_a_panic(at: prop::sample::Index, bits in 1..=255u8, cut: bool) {
        for (name, kind, bytes, config) in files() {
            let config = IngestConfig { format: Some(kind), ..config };
            check_damaged(name, bytes, &[], &config, (at, bits, cut))?;
        }
    }

    #[test]
    fn damaged_shards_of_mds_are_refused_or_read_but_never_a_panic(at: prop::sample::Index, bits in 1..=255u8, cut: bool) {
        for (folder, name, other) in [
            ("plain", "shard.00001.mds", "shard.00000.mds"),
            ("zstd", "shard.00001.mds.zstd", "shard.00000.mds.zstd"),
            ("gz", "shard.00000.mds.gz", "shard.00001.mds.gz"),
        ] {
            let read = |name| fs::read(golden(folder).join(name)).unwrap();
            let beside = [("index.json", read("index.json")), (other, read(other))];
            check_damaged(name, read(name), &beside, &sequential(), (at, bits, cut))?;
        }
    }
}

#[test]
fn large_files_give_the_same_rows_compressed_or_not_with_any_number_of_threads() {
    let rows = 0..150_000u64;
    let number = |row: u64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let line = |kind: &str, row: u64| match kind {
        "csv" => format!("{row},\"{}\n{}\"\n", number(row), row % 7),
        "jsonl" => format!("{{\"label\": {row}, \"list\": [{}, {}]}}\n", number(row), row % 7),
        "svm" => format!("{row} 1:{} 9:{}\n", number(row), row % 7),
        _ => format!("{row} {}\n\n", number(row)),
    };
    for kind in ["csv", "jsonl", "svm", "txt"] {
        let header = if kind == "csv" { "label,text\n" } else { "" };
        let text: String =
            std::iter::once(header.to_owned()).chain(rows.clone().map(|row| line(kind, row))).collect();
        assert!(text.len() > 2 << 20, "there is more than one block");
        let directory = directory(&[]);
        let config = IngestConfig {
            documents: if kind == "txt" { Documents::BlankLine } else { Documents::File },
            ..sequential()
        };
        let mut ids = Vec::new();
        let contents = [text.as_bytes().to_vec(), gzip(text.as_bytes()), zstd(text.as_bytes())];
        let mut of_plain = Vec::new();
        for (ending, bytes) in ["", ".gz", ".zst"].into_iter().zip(contents) {
            let path = directory.path().join(format!("all.{kind}{ending}"));
            fs::write(&path, bytes).unwrap();
            for threads in [1, 3] {
                let ingested = run(&path, &config, threads).unwrap();
                assert_eq!(ingested.manifest.sample_count(), 150_000);
                if kind != "txt" {
                    assert!(ingested.integers("label").into_iter().eq(rows.clone().map(|row| row as i64)));
                }
                ids.push(ingested.manifest.id());
                if of_plain.is_empty() {
                    of_plain = ingested.rows();
                }
                assert!(ingested.rows() == of_plain, "{kind}{ending}");
            }
        }
        for pair in ids.chunks(2) {
            assert_eq!(pair[0], pair[1], "{kind}");
        }
    }
}
