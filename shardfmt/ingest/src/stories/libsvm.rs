//! libsvm and SVMlight.

use serde_json::json;

use super::*;

fn ingest_lines(lines: &str, config: &IngestConfig) -> Result<Ingested, IngestError> {
    let directory = directory(&[("all.svm", lines.as_bytes().to_vec())]);
    run(&directory.path().join("all.svm"), config, 2)
}

#[test]
fn labels_queries_and_features_become_columns() {
    let lines = "# made by hand\n+1 qid:3 1:0.5 7:-2 # a comment\n\n-1 2:1e-3\n";
    let ingested = ingest_lines(lines, &sequential()).unwrap();
    let types: Vec<String> = ingested.types().into_iter().map(|(_, text)| text).collect();
    assert_eq!(types[..2], ["Int64", "Int64"]);
    assert!(types[2].contains("UInt32") && types[2].contains("Float32"), "{types:?}");
    let feature = |index: u32, value: f64| json!({"index": index, "value": value});
    assert_eq!(
        ingested.json(),
        [
            json!({"label": 1, "qid": 3, "features": [feature(1, 0.5), feature(7, -2.0)]}),
            json!({"label": -1, "qid": null, "features": [feature(2, 0.001)]}),
        ]
    );
}

#[test]
fn labels_are_fractions_or_lists_when_some_are() {
    let labels = |lines: &str| {
        let ingested = ingest_lines(lines, &sequential()).unwrap();
        let labels: Vec<Value> = ingested.json().into_iter().map(|row| row["label"].clone()).collect();
        Value::from(labels)
    };
    assert_eq!(labels("1 1:1\n0.5 1:1\n"), json!([1.0, 0.5]));
    assert_eq!(labels("1 1:1\n2,3 1:1\n 1:1\n"), json!([[1], [2, 3], []]));
    assert_eq!(labels("1:1\n2:1\n"), json!([null, null]), "there is no such column");
    let text = ingest_lines("1 1:1\n1:1\n", &sequential()).err().unwrap().to_string();
    assert!(text.contains("line 2: has no label"), "{text}");
}

#[test]
fn lines_that_are_no_rows_are_named_or_left_out() {
    let lines = "1 1:1\n1 2:1 1:1\n2 nonsense\n1:1\n3 1:1";
    let text = ingest_lines(lines, &sequential()).err().unwrap().to_string();
    assert!(text.contains("line 2: feature 1 follows 2"), "{text}");
    let ingested = ingest_lines(lines, &skipping()).unwrap();
    assert_eq!(ingested.integers("label"), [1, 3]);
    assert_eq!(ingested.skipped_names(), ["all.svm, line 2", "all.svm, line 3", "all.svm, line 4"]);
    assert!(
        ingest_lines("# nothing\n", &sequential()).err().unwrap().to_string().contains("no line with a row")
    );
}

#[test]
fn a_text_file_is_libsvm_when_the_user_says_so() {
    let directory = directory(&[("a.txt", b"1 1:1\n".to_vec()), ("b.txt", b"2 1:1\n".to_vec())]);
    let config = IngestConfig { format: Some(Kind::Libsvm), ..sequential() };
    assert_eq!(run(directory.path(), &config, 2).unwrap().integers("label"), [1, 2]);
    assert_eq!(run(&directory.path().join("b.txt"), &config, 2).unwrap().integers("label"), [2]);
}
