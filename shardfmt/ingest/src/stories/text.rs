//! Plain text: documents, tokens, sequences.

use std::env;

use arrow::array::Array;
use arrow::compute::concat_batches;
use arrow::datatypes::{UInt8Type, UInt16Type, UInt32Type};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn documents(documents: Documents) -> IngestConfig {
    IngestConfig { documents, ..sequential() }
}

fn packed(config: IngestConfig, length: u32) -> IngestConfig {
    IngestConfig { sequence_length: Some(length), ..config }
}

fn tokenized(config: IngestConfig) -> IngestConfig {
    IngestConfig { tokenizer: Some(theirs("tokenizer.json")), ..config }
}

/// The tokens of all sequences, and where documents begin among them.
fn unpack(ingested: &Ingested, length: usize) -> (Vec<u8>, Vec<usize>) {
    let schema = ingested.manifest.schema.clone();
    let all = concat_batches(&schema, &ingested.batches()).unwrap();
    let tokens = all.column(0).as_fixed_size_list().values().as_primitive::<UInt8Type>().values().to_vec();
    let starts = all.column(1).as_list::<i32>();
    let starts = (0..starts.len()).flat_map(|row| {
        let starts = starts.value(row).as_primitive::<UInt32Type>().values().to_vec();
        starts.into_iter().map(move |start| row * length + start as usize)
    });
    (tokens, starts.collect())
}

#[test]
fn documents_are_files_lines_or_paragraphs() {
    let directory = directory(&[
        ("b.txt.gz", gzip(b"last\n")),
        ("a.txt", b"\xef\xbb\xbfone\r\ntwo\n\n \nthree\n".to_vec()),
        ("c.txt", Vec::new()),
    ]);
    let texts = |kind| run(directory.path(), &documents(kind), 2).unwrap().texts("text");
    assert_eq!(texts(Documents::File), ["one\r\ntwo\n\n \nthree\n", "last\n", ""]);
    assert_eq!(texts(Documents::Line), ["one", "two", "", " ", "three", "last"]);
    assert_eq!(texts(Documents::BlankLine), ["one\r\ntwo", "three", "last"]);
}

#[test]
fn the_tokens_are_those_of_hugging_face() {
    let expected: Vec<(String, Vec<u32>)> =
        serde_json::from_slice(&fs::read(theirs("tokens.json")).unwrap()).unwrap();
    let directory = directory(&[]);
    for (index, (text, _)) in expected.iter().enumerate() {
        fs::write(directory.path().join(format!("{index}.txt")), text).unwrap();
    }
    let ingested = run(directory.path(), &tokenized(sequential()), 2).unwrap();
    let rows: Vec<Value> = expected.iter().map(|(_, tokens)| json!({"tokens": tokens})).collect();
    assert_eq!(ingested.json(), rows);
    assert_eq!(ingested.types()[0].1, "List(non-null UInt16)");
    assert_eq!(ingested.provenance.inputs.last().unwrap().name, "tokenizer.json");
    assert_eq!(ingested.provenance.settings["tokenizer"], "tokenizer.json");
    let sequences = run(directory.path(), &packed(tokenized(sequential()), 5), 2).unwrap();
    let all: Vec<u32> = expected.iter().flat_map(|(_, tokens)| tokens.clone()).collect();
    let rows: Vec<Value> = sequences.json();
    for (row, tokens) in rows.iter().zip(all.chunks(5)) {
        assert_eq!(row["tokens"], json!(tokens));
    }
    assert_eq!(rows.len(), all.len() / 5);
    let begins: Vec<usize> = rows
        .iter()
        .enumerate()
        .flat_map(|(row, sequence)| {
            let starts = sequence["documents"].as_array().unwrap().clone();
            starts.into_iter().map(move |start| 5 * row + start.as_u64().unwrap() as usize)
        })
        .collect();
    assert_eq!(begins, [0, 2, 13]);
    let left_out = &sequences.provenance.skipped.first[0];
    assert_eq!(left_out.name, "2.txt");
    assert!(left_out.reason.contains(&format!("its last {} tokens", all.len() % 5)), "{}", left_out.reason);
}

#[test]
fn where_the_tokenizer_lies_does_not_matter_but_what_it_says_does() {
    let directory = directory(&[("a.txt", b"the quick brown fox".to_vec())]);
    let other = super::directory(&[("tokenizer.json", fs::read(theirs("tokenizer.json")).unwrap())]);
    let id = |tokenizer: PathBuf| {
        let config = IngestConfig { tokenizer: Some(tokenizer), ..sequential() };
        let source = Source::open(&directory.path().join("a.txt"), &config).unwrap();
        let stamp = source.stamp();
        let made = ingest(source, &config, &Resources::threads(1), &Kept::default(), &NoProgress).unwrap();
        (made.provenance.digest(), stamp)
    };
    let copy = other.path().join("tokenizer.json");
    let (here, there) = (id(theirs("tokenizer.json")), id(copy.clone()));
    assert_eq!(here.0, there.0);
    let changed = fs::read_to_string(&copy).unwrap().replace("\"single\":[", "\"single\": [");
    fs::write(&copy, changed).unwrap();
    let changed = id(copy);
    assert_ne!(changed.0, there.0, "its digest is recorded");
    assert_ne!(changed.1, there.1, "an interrupted ingest does not continue with another");
}

#[test]
fn what_cannot_be_read_is_named_or_left_out() {
    let directory = directory(&[
        ("a.txt", b"one\ntwo \xff\nthree\n".to_vec()),
        ("b.txt", b"four".to_vec()),
        ("c.txt.gz", gzip(b"five")[..12].to_vec()),
    ]);
    assert!(refusal(directory.path(), &sequential()).contains("a.txt: line 2: is not UTF-8"));
    let ingested = run(directory.path(), &skipping(), 2).unwrap();
    assert_eq!(ingested.texts("text"), ["four"]);
    assert_eq!(ingested.skipped_names(), ["a.txt, line 1", "c.txt.gz"]);
    let lines = IngestConfig { documents: Documents::Line, ..skipping() };
    let ingested = run(directory.path(), &lines, 2).unwrap();
    assert_eq!(ingested.texts("text"), ["one", "three", "four"]);
    assert_eq!(ingested.skipped_names()[0], "a.txt, line 2");
    let a = directory.path().join("a.txt");
    assert_eq!(unpack(&run(&a, &packed(sequential(), 5), 2).unwrap(), 5).0, b"one\ntwo \xff\nthree");
    let refused = |config: &IngestConfig, words: &str| {
        let text = refusal(&a, config);
        assert!(text.contains(words), "{words:?} not in {text}");
    };
    refused(&packed(sequential(), 100), "16 tokens, fewer than a sequence of 100");
    refused(&packed(sequential(), 0), "no length");
    refused(&IngestConfig { tokenizer: Some(a.clone()), ..sequential() }, "a tokenizer.json of Hugging Face");
    refused(&IngestConfig { tokenizer: Some(theirs("nosuch.json")), ..sequential() }, "no such file");
    let csv = super::directory(&[("a.csv", b"x\n1\n".to_vec())]);
    assert!(refusal(csv.path(), &packed(sequential(), 5)).contains("means nothing for CSV"));
}

#[test]
fn a_long_document_is_tokenized_in_stretches() {
    let line = "the quick brown fox jumps over the lazy dog\n";
    let directory = directory(&[("a.txt", line.repeat(30_000).into_bytes())]);
    let path = directory.path().join("a.txt");
    let ingested = run(&path, &tokenized(sequential()), 2).unwrap();
    let tokens = concat_batches(&ingested.manifest.schema, &ingested.batches()).unwrap();
    let tokens = tokens.column(0).as_list::<i32>().value(0);
    let tokens = tokens.as_primitive::<UInt16Type>().values().to_vec();
    // As the tokenizer makes them of the whole: what lies between the marks of a document is that of each line.
    let of_line =
        run(super::directory(&[("a.txt", line.as_bytes().to_vec())]).path(), &tokenized(sequential()), 1);
    let of_line = of_line.unwrap().json()[0]["tokens"].as_array().unwrap().len() - 2;
    assert_eq!((tokens[0], tokens[tokens.len() - 1], tokens.len()), (0, 1, 30_000 * of_line + 2));
    assert!(tokens[1..tokens.len() - 1].chunks(of_line).all(|line| line == &tokens[1..=of_line]));
}

#[test]
fn shakespeare_is_packed_without_a_gap() {
    let shared = env::var_os("SHARDD_SHARED").map(PathBuf::from);
    let root = shared.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"));
    let path = root.join("data/tinyshakespeare.txt");
    if !path.is_file() {
        eprintln!("skipped: {} is not there (SHARDD_SHARED names the directory)", path.display());
        return;
    }
    let text = fs::read(&path).unwrap();
    let ingested = run(&path, &packed(documents(Documents::BlankLine), 256), 2).unwrap();
    let (tokens, starts) = unpack(&ingested, 256);
    let paragraphs = std::str::from_utf8(&text).unwrap().split("\n\n");
    let paragraphs: Vec<&str> = paragraphs.map(|part| part.trim_matches('\n')).collect();
    let whole: String = paragraphs.concat();
    assert_eq!(tokens, whole.as_bytes()[..tokens.len()]);
    let mut at = 0;
    let begin = |part: &&str| {
        at += part.len();
        at - part.len()
    };
    let expected: Vec<usize> = paragraphs.iter().map(begin).collect();
    assert_eq!(starts, expected[..starts.len()]);
    assert!(starts.len() + 2 > paragraphs.len(), "{} of {}", starts.len(), paragraphs.len());
    let words = run(&path, &packed(tokenized(sequential()), 128), 2).unwrap();
    assert_eq!(
        run(&path, &packed(tokenized(sequential()), 128), 1).unwrap().manifest.id(),
        words.manifest.id()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn sequences_hold_all_documents_and_where_they_begin(texts in prop::collection::vec("[a-c ]{0,30}", 1..40), length in 1..20u32) {
        let lines: String = texts.iter().map(|text| format!("{text}\n")).collect();
        let directory = directory(&[("a.txt", lines.into_bytes())]);
        let whole = texts.concat();
        let config = packed(documents(Documents::Line), length);
        match run(&directory.path().join("a.txt"), &config, 2) {
            Ok(ingested) => {
                let (tokens, starts) = unpack(&ingested, length as usize);
                prop_assert_eq!(tokens.len(), whole.len() - whole.len() % length as usize);
                prop_assert_eq!(&tokens, &whole.as_bytes()[..tokens.len()]);
                let mut at = 0;
                let begins: Vec<usize> = texts.iter().filter(|text| !text.is_empty()).map(|text| {
                    at += text.len();
                    at - text.len()
                }).filter(|&at| at < tokens.len()).collect();
                prop_assert_eq!(starts, begins);
            }
            Err(error) => prop_assert!(whole.len() < length as usize, "{}", error),
        }
    }
}
