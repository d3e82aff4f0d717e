//! Text that lies in tables, as tokens; and documents packed into sequences as wholes.

use arrow::datatypes::UInt32Type;
use proptest::prelude::*;
use serde_json::json;
use shardd_packing::{Long, Strategy};

use super::*;

fn of_column(column: &str) -> IngestConfig {
    let tokenizer = Some(theirs("tokenizer.json"));
    IngestConfig { tokenizer, text_column: Some(column.to_owned()), ..sequential() }
}

fn packed(strategy: Strategy, length: u32) -> IngestConfig {
    IngestConfig {
        packing: Some(strategy),
        sequence_length: Some(length),
        documents: Documents::Line,
        ..sequential()
    }
}

/// The documents of packed rows of bytes, and the share of their places that is padding.
fn unpacked(ingested: &Ingested) -> (Vec<String>, f64) {
    let (mut documents, mut used, mut places) = (Vec::new(), 0, 0);
    for batch in ingested.batches() {
        let tokens = batch.column(0).as_fixed_size_list();
        let starts = batch.column(1).as_list::<i32>();
        let lengths = batch.column(2).as_primitive::<UInt32Type>();
        for row in 0..batch.num_rows() {
            let tokens = tokens.value(row);
            let tokens = tokens.as_primitive::<arrow::datatypes::UInt8Type>().values().to_vec();
            let mut ends = starts.value(row).as_primitive::<UInt32Type>().values().to_vec();
            ends.push(lengths.value(row));
            documents.extend(ends.windows(2).map(|ends| {
                String::from_utf8(tokens[ends[0] as usize..ends[1] as usize].to_vec()).expect("ASCII")
            }));
            used += lengths.value(row) as usize;
            places += tokens.len();
        }
    }
    (documents, 1.0 - used as f64 / places as f64)
}

#[test]
fn a_column_of_text_becomes_tokens_beside_the_others() {
    let expected: Vec<(String, Vec<u32>)> =
        serde_json::from_slice(&fs::read(theirs("tokens.json")).unwrap()).unwrap();
    let rows: String = expected
        .iter()
        .enumerate()
        .map(|(id, (text, _))| format!("{}\n", json!({"id": id, "text": text})))
        .collect();
    let directory = directory(&[("a.jsonl", rows.into_bytes())]);
    let ingested = run(directory.path(), &of_column("text"), 2).unwrap();
    let rows: Vec<Value> =
        expected.iter().enumerate().map(|(id, (_, tokens))| json!({"id": id, "text": tokens})).collect();
    assert_eq!(ingested.json(), rows);
    assert_eq!(ingested.provenance.inputs.last().unwrap().name, "tokenizer.json");
    let sequences = IngestConfig { sequence_length: Some(5), ..of_column("text") };
    let ingested = run(directory.path(), &sequences, 2).unwrap();
    let all: Vec<u32> = expected.iter().flat_map(|(_, tokens)| tokens.clone()).collect();
    let found: Vec<Value> = ingested.json().iter().map(|row| row["tokens"].clone()).collect();
    let expected: Vec<Value> = all.chunks_exact(5).map(|tokens| json!(tokens)).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_table_and_a_text_file_make_the_same_sequences() {
    let lines: Vec<String> = (0..500).map(|line| "word ".repeat(line % 23)).collect();
    let text = directory(&[("a.txt", (lines.join("\n") + "\n").into_bytes())]);
    let rows: String = lines.iter().map(|line| format!("{}\n", json!({"text": line, "n": 1}))).collect();
    let table = directory(&[("a.jsonl", rows.into_bytes())]);
    let config = packed(Strategy::BestFitDecreasing, 64);
    let of_table =
        IngestConfig { documents: Documents::File, text_column: Some("text".into()), ..config.clone() };
    let (of_text, of_table) =
        (run(text.path(), &config, 2).unwrap(), run(table.path(), &of_table, 3).unwrap());
    assert_eq!(of_text.json(), of_table.json());
}

#[test]
fn whole_documents_fill_sequences_almost_without_padding() {
    let lines: Vec<String> = (0..4000usize).map(|line| "x".repeat(1 + line * line % 97)).collect();
    let directory = directory(&[("a.txt", (lines.join("\n") + "\n").into_bytes())]);
    for (strategy, most) in [
        (Strategy::BestFitDecreasing, 0.005),
        (Strategy::BestFit, 0.02),
        (Strategy::FirstFitDecreasing, 0.005),
    ] {
        let ingested = run(directory.path(), &packed(strategy, 512), 2).unwrap();
        let (mut found, padding) = unpacked(&ingested);
        let mut expected = lines.clone();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        assert!(padding <= most, "{strategy:?}: {padding}");
        let again = run(directory.path(), &packed(strategy, 512), 1).unwrap();
        assert_eq!(again.manifest.id(), ingested.manifest.id());
    }
}

#[test]
fn documents_longer_than_a_sequence_are_cut_truncated_left_out_or_refused() {
    let directory = directory(&[("a.txt", b"one\nfour five six\ntwo\n".to_vec())]);
    let path = directory.path().join("a.txt");
    let with = |long| IngestConfig { long_documents: Some(long), ..packed(Strategy::BestFit, 6) };
    let found = |long| {
        let mut documents = unpacked(&run(&path, &with(long), 1).unwrap()).0;
        documents.sort();
        documents
    };
    assert_eq!(found(Long::Split), ["four f", "ive si", "one", "two", "x"]);
    assert_eq!(found(Long::Truncate), ["four f", "one", "two"]);
    assert_eq!(found(Long::Drop), ["one", "two"]);
    let dropped = run(&path, &with(Long::Drop), 1).unwrap();
    assert!(
        dropped.provenance.skipped.first[0].reason.contains("1 documents of 13 tokens"),
        "{:?}",
        dropped.provenance.skipped.first
    );
    let refused = refusal(&path, &with(Long::Raise));
    assert!(refused.contains("line 2: the document has 13 tokens, and a sequence 6"), "{refused}");
    let skipped = run(&path, &IngestConfig { on_error: OnError::Skip, ..with(Long::Raise) }, 1).unwrap();
    assert_eq!(unpacked(&skipped).0.len(), 2);
}

#[test]
fn mistakes_name_the_way_out() {
    let directory = directory(&[("a.csv", b"n,text\n1,a\n".to_vec())]);
    let refused = |config: IngestConfig, words: &str| {
        let text = refusal(directory.path(), &config);
        assert!(text.contains(words), "{words:?} not in {text}");
    };
    refused(of_column("n"), "column \"n\" is Int64, not text");
    refused(of_column("words"), "words");
    refused(IngestConfig { tokenizer: None, ..of_column("text") }, "no tokenizer makes them");
    refused(IngestConfig { packing: Some(Strategy::BestFit), ..sequential() }, "give `sequence_length`");
    let joined = IngestConfig { long_documents: Some(Long::Drop), ..packed(Strategy::ConcatThenSplit, 5) };
    refused(IngestConfig { documents: Documents::File, ..joined }, "other than concat_then_split");
    let text = super::directory(&[("a.txt", b"one".to_vec())]);
    assert!(refusal(text.path(), &of_column("text")).contains("means nothing for"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn packed_sequences_have_each_document_once_for_any_threads(texts in prop::collection::vec("[a-c]{0,30}", 1..60), length in 8..40u32) {
        let lines: String = texts.iter().map(|text| format!("{text}\n")).collect();
        let directory = directory(&[("a.txt", lines.into_bytes())]);
        let config = packed(Strategy::BestFitDecreasing, length);
        let whole: usize = texts.iter().map(String::len).sum();
        if whole == 0 {
            return Ok(());
        }
        let ingested = run(directory.path(), &config, 3).unwrap();
        let (documents, _) = unpacked(&ingested);
        prop_assert_eq!(documents.iter().map(String::len).sum::<usize>(), whole);
        prop_assert!(documents.iter().all(|document| document.len() <= length as usize));
        prop_assert_eq!(run(directory.path(), &config, 1).unwrap().manifest.id(), ingested.manifest.id());
    }
}
