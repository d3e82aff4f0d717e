//! JSON Lines.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn ingest_lines(lines: &str, config: &IngestConfig) -> Result<Ingested, IngestError> {
    let directory = directory(&[("all.jsonl", lines.as_bytes().to_vec())]);
    run(&directory.path().join("all.jsonl"), config, 2)
}

#[test]
fn columns_are_the_fields_of_all_objects_in_order_of_appearance() {
    let lines = concat!(
        "{\"z\": 1, \"a\": {\"q\": [1, 2.5], \"p\": null}}\n\n",
        "  {\"a\": {\"p\": \"x\", \"r\": [{\"s\": true}]}, \"m\": 18446744073709551615, \"z\": -2}\r\n",
        "{\"z\": null, \"empty\": null, \"list\": [], \"mixed\": 1}\n{\"mixed\": \"two\", \"m\": 3, \"z\": 9}",
    );
    let ingested = ingest_lines(lines, &sequential()).unwrap();
    let types: Vec<(String, String)> = ingested.types();
    let names: Vec<&str> = types.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["z", "a", "m", "empty", "list", "mixed"]);
    assert_eq!((&*types[0].1, &*types[2].1, &*types[3].1, &*types[5].1), ("Int64", "UInt64", "Utf8", "Utf8"));
    let rest = |row: Value| {
        let mut full = json!({"z": null, "a": null, "m": null, "empty": null, "list": null, "mixed": null});
        full.as_object_mut().unwrap().extend(row.as_object().unwrap().clone());
        full
    };
    assert_eq!(
        ingested.json(),
        [
            rest(json!({"z": 1, "a": {"q": [1.0, 2.5], "p": null, "r": null}})),
            rest(json!({"z": -2, "a": {"q": null, "p": "x", "r": [{"s": true}]}, "m": u64::MAX})),
            rest(json!({"list": [], "mixed": "1"})),
            rest(json!({"z": 9, "m": 3, "mixed": "two"})),
        ]
    );
}

#[test]
fn a_line_that_is_too_long_for_memory_is_refused_with_its_number() {
    let list = |items: usize| format!("{{\"a\": [0{}]}}\n", ",0".repeat(items));
    let lines = list(1) + &list(3 << 20) + &list(2);
    let text = ingest_lines(&lines, &sequential()).err().unwrap().to_string();
    assert!(text.contains("line 2: has more than 4194304 bytes"), "{text}");
    let ingested = ingest_lines(&(list(1) + &list(1 << 20)), &sequential()).unwrap();
    assert_eq!(ingested.json()[0], json!({"a": [0, 0]}));
}

#[test]
fn types_and_columns_can_be_chosen() {
    let lines = "{\"id\": 1, \"when\": \"2020-01-02T03:04:05Z\", \"none\": {}}\n{\"id\": 2}\n";
    assert!(ingest_lines(lines, &sequential()).err().unwrap().to_string().contains("column \"none\""));
    let config = IngestConfig {
        columns: Some(vec!["when".to_owned(), "id".to_owned()]),
        ..typed(&[("id", "Float32"), ("when", "Timestamp(ms, \"+00:00\")")])
    };
    let ingested = ingest_lines(lines, &config).unwrap();
    let types: Vec<String> = ingested.types().into_iter().map(|(_, text)| text).collect();
    assert_eq!(types, ["Timestamp(ms, \"+00:00\")", "Float32"]);
    assert_eq!(ingested.json()[0]["when"], "2020-01-02T03:04:05Z");
    let refused = |config: &IngestConfig, words: &str| {
        let text = ingest_lines("{\"id\": 1, \"x\": \"a\"}\n", config).err().unwrap().to_string();
        assert!(text.contains(words), "{words:?} not in {text}");
    };
    refused(&typed(&[("nosuch", "Int8")]), "no column \"nosuch\"; its columns are id, x");
    let columns = |names: &[&str]| {
        let columns = names.iter().map(|name| (*name).to_owned()).collect();
        IngestConfig { columns: Some(columns), ..sequential() }
    };
    refused(&columns(&["y"]), "no column \"y\"");
    refused(&columns(&["id", "x", "id"]), "\"id\" is there twice; name each column once");
    refused(&typed(&[("x", "Int8")]), "line 1");
}

#[test]
fn lines_that_are_no_rows_are_named_or_left_out() {
    let lines = concat!(
        "{\"x\": 1, \"y\": [1]}\n", // 1
        "{\"x\": 2\n",
        "{\"x\": 3} {\"x\": 4}\n",
        "[5]\n",
        "{\"x\": 6, \"y\": 6}\n",
        "{\"x\": 7, \"y\": [[7]], \"new\": 7}\n",
        "{\"x\": 8,}\n",
        "{\"x\": 9, \"y\": [1, [2]]}\n",
        "{\"x\": 10, \"y\": []}\n",
    );
    let ingested = ingest_lines(lines, &skipping()).unwrap();
    assert_eq!(ingested.json(), [json!({"x": 1, "y": [1]}), json!({"x": 10, "y": []})]);
    let names: Vec<String> = (2..=8).map(|line| format!("all.jsonl, line {line}")).collect();
    assert_eq!(ingested.skipped_names(), names);
    let wrong = [
        ("{\"x\": 2\n", "EOF"),
        ("{\"x\": 3} {\"x\": 4}\n", "trailing characters at byte 10"),
        ("[5]\n", "no object"),
        ("{\"y\": 6}\n", "\"y\" is a single value, and a list in lines before"),
        ("{\"y\": [1, {}]}\n", "items of a list"),
        ("{\"x\": \u{7f}}\n", "expected value"),
    ];
    for (line, words) in wrong {
        let text = ingest_lines(&format!("{{\"y\": [1]}}\n{line}"), &sequential()).err().unwrap().to_string();
        assert!(text.contains("all.jsonl: line 2: ") && text.contains(words), "{words:?} not in {text}");
    }
    assert!(ingest_lines("\n \n", &sequential()).err().unwrap().to_string().contains("no line with a row"));
}

#[test]
fn values_that_are_not_there_take_no_room_without_end() {
    // A row with many columns, and one with as many objects: together, more than memory.
    let wide: Vec<String> = (0..20_000).map(|column| format!("\"c{column}\": 1")).collect();
    let lines = format!("{{\"x\": [{{{}}}]}}\n{{\"x\": [{}{{}}]}}\n", wide.join(", "), "{},".repeat(30_000));
    let text = ingest_lines(&lines, &sequential()).err().unwrap().to_string();
    assert!(text.contains("line 2") && text.contains("too many"), "{text}");
}

fn value() -> impl Strategy<Value = Value> {
    (
        any::<i64>(),
        -1000..1000i32,
        any::<bool>(),
        "\\PC{0,12}",
        prop::collection::vec(0..9u8, 0..4),
        any::<u8>(),
    )
        .prop_map(|(integer, number, flag, text, list, absent)| {
            let mut row = json!({
                "integer": integer, "float": f64::from(number) + 0.5, "flag": flag, "text": text,
                "object": {"list": list, "objects": [{"a": flag}, {"b": text}]},
            });
            let fields = row.as_object_mut().unwrap();
            let names: Vec<String> = fields.keys().cloned().collect();
            names.iter().enumerate().filter(|(bit, _)| absent >> bit & 1 == 1).for_each(|(_, name)| {
                fields.insert(name.clone(), Value::Null);
            });
            row
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn rows_out_are_the_rows_in(rows in prop::collection::vec(value(), 1..40), is_zipped: bool) {
        // The first row shows all types.
        let first = json!({
            "integer": 0, "float": 0.5, "flag": true, "text": "", "object": {"list": [1], "objects": [{"a": true, "b": "x"}]},
        });
        let rows: Vec<Value> = std::iter::once(first).chain(rows).collect();
        let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
        let bytes = if is_zipped { zstd(text.as_bytes()) } else { text.into_bytes() };
        let directory = directory(&[("all.ndjson", bytes)]);
        let ingested = run(directory.path(), &sequential(), 2).unwrap();
        let full = |mut row: Value| {
            for item in row.pointer_mut("/object/objects").and_then(Value::as_array_mut).into_iter().flatten() {
                for name in ["a", "b"] {
                    item.as_object_mut().unwrap().entry(name).or_insert(Value::Null);
                }
            }
            row
        };
        prop_assert_eq!(ingested.json(), rows.into_iter().map(full).collect::<Vec<_>>());
    }
}

#[test]
fn no_integer_is_rounded_and_no_field_dropped_in_silence() {
    let good = "{\"id\": 1, \"x\": {\"y\": [1]}}\n";
    for (bad, words) in [
        (
            "{\"id\": 18446744073709551616}\n",
            "\"id\" has the integer 18446744073709551616, which 64 bits do not hold",
        ),
        ("{\"id\": -9223372036854775809}\n", "\"id\" has the integer -9223372036854775809"),
        ("{\"x\": {\"y\": [1, 100000000000000000000]}}\n", "\"x\" has the integer 100000000000000000000"),
        ("{\"id\": 1, \"id\": 2}\n", "key \"id\" is there twice in one object"),
        ("{\"x\": {\"y\": [1], \"y\": [2]}}\n", "key \"y\" is there twice in one object"),
    ] {
        let lines = format!("{good}{bad}{good}");
        let text = ingest_lines(&lines, &sequential()).err().unwrap().to_string();
        assert!(text.contains("line 2: ") && text.contains(words), "{text}");
        let skipped = ingest_lines(&lines, &skipping()).unwrap();
        assert_eq!(
            (skipped.manifest.sample_count(), skipped.left_out()),
            (2, vec!["all.jsonl, line 2".to_owned()])
        );
    }
    // Each fits, and no type holds both.
    let text = ingest_lines("{\"id\": -1}\n{\"id\": 18446744073709551615}\n", &sequential());
    let text = text.err().unwrap().to_string();
    assert!(text.contains("column \"id\"") && text.contains("which no type of 64 bits holds"), "{text}");
    // A user who chooses a type knows the result; and as text they stay unchanged.
    let wide = "{\"id\": 18446744073709551616, \"n\": 1}\n{\"id\": -1, \"n\": 2}\n";
    let texts = ingest_lines(wide, &typed(&[("id", "Utf8")])).unwrap();
    assert_eq!(texts.texts("id"), ["18446744073709551616", "-1"]);
    let config = IngestConfig { columns: Some(vec!["n".to_owned()]), ..sequential() };
    assert_eq!(ingest_lines(wide, &config).unwrap().integers("n"), [1, 2]);
    // Numbers that are written as floats stay unchanged.
    assert_eq!(ingest_lines("{\"x\": 1e300}\n", &sequential()).unwrap().json(), [json!({"x": 1e300})]);
}
