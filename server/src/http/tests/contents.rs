//! What versions hold: summaries, shards, samples, and their values as files.

use arrow::array::{ArrayRef, BinaryArray, FixedSizeListArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Float32Type, Schema};
use shardfmt::manifest::CLASSES_KEY;
use shardfmt::{RowCodec, RowDigest};

use super::*;

const PICTURE: &[u8] = b"\x89PNG\r\n\x1a\nthe rest of a picture";

/// Three samples from number `first` on: a picture, a name, a label and three numbers each.
pub(super) fn rows(first: i64) -> RecordBatch {
    let classes = (CLASSES_KEY.to_owned(), r#"["cat","<script>dog</script>"]"#.to_owned());
    let label = Field::new("label", DataType::Int64, true);
    let label = label.with_metadata(std::collections::HashMap::from([classes]));
    let list = DataType::FixedSizeList(Arc::new(Field::new_list_field(DataType::Float32, true)), 3);
    let schema = Schema::new(vec![
        Field::new("picture", DataType::Binary, true),
        Field::new("a/b ?", DataType::Utf8, false),
        label,
        Field::new("numbers", list, true),
    ]);
    let names: Vec<String> = (first..first + 3).map(|number| format!("name {number}")).collect();
    let numbers = (first..first + 3).map(|number| Some(vec![Some(number as f32), None, Some(0.5)]));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(BinaryArray::from_opt_vec(vec![Some(PICTURE), None, Some(b"\x00\x01")])),
        Arc::new(StringArray::from(names)),
        Arc::new(Int64Array::from(vec![Some(first % 2), Some(1), None])),
        Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(numbers, 3)),
    ];
    RecordBatch::try_new(Arc::new(schema), columns).expect("four columns")
}

/// A server with a version of two shards of three samples.
fn filled() -> (Server, VersionId, Vec<FinishedShard>) {
    let server = Server::start();
    let (version, _, shards) = version_of(&server.catalog(), "pets", [0, 3].map(rows), json!({ "seed": 1 }));
    (server, version, shards)
}

#[test]
fn a_summary_has_columns_with_statistics_and_labels_with_classes() {
    let (server, version, _) = filled();
    let summary = server.document(&format!("versions/{version}/summary"));
    assert_eq!(
        (&summary["samples"], &summary["shards"], &summary["config"]),
        (&json!(6), &json!(2), &json!({ "seed": 1 }))
    );
    let names: Vec<&Value> =
        summary["columns"].as_array().expect("columns").iter().map(|column| &column["name"]).collect();
    assert_eq!(names, ["picture", "a/b ?", "label", "numbers"]);
    assert_eq!(
        (&summary["columns"][0]["present"], &summary["columns"][0]["spread"]["of"]),
        (&json!(4), &json!("lengths"))
    );
    assert_eq!(summary["label_column"], "label");
    let most = json!([
        { "label": "1", "class": "<script>dog</script>", "samples": 3 },
        { "label": "0", "class": "cat", "samples": 1 },
    ]);
    assert_eq!(summary["labels"], json!({ "distinct": 2, "most": most }));
}

#[test]
fn shards_come_in_windows_with_the_number_of_their_first_sample() {
    let (server, version, shards) = filled();
    let path = format!("versions/{version}/shards");
    let all = server.document(&path);
    assert_eq!(all["total"], 2);
    for (at, shard) in shards.iter().enumerate() {
        let row = &all["rows"][at];
        let wanted = json!([at, shard.id, 3 * at, 3, shard.entry.bytes]);
        assert_eq!(json!([row["index"], row["id"], row["first"], row["samples"], row["bytes"]]), wanted);
    }
    assert_eq!(server.document(&format!("{path}?offset=1&limit=1"))["rows"], json!([all["rows"][1]]));
    assert_eq!(server.document(&format!("{path}?offset=18446744073709551615"))["rows"], json!([]));
    assert_eq!(
        server.refused(&format!("{path}?limit=0")),
        (400, "limit: 0 is not a number from 1 to 1000".to_owned())
    );
}

#[test]
fn samples_are_read_in_the_order_asked_for_and_equal_their_digests() {
    let (server, version, shards) = filled();
    let path = format!("versions/{version}/samples");
    let all = server.document(&path);
    assert_eq!((&all["total"], all["rows"].as_array().map(Vec::len)), (&json!(6), Some(6)));
    assert_eq!(
        all["rows"][0]["values"],
        json!([
            { "kind": "media", "media_type": "image/png", "length": PICTURE.len() },
            { "kind": "text", "text": "name 0", "length": 6 },
            { "kind": "number", "value": 0, "class": "cat" },
            { "kind": "list", "type": "Float32", "length": 3, "values": [0.0, null, 0.5] },
        ])
    );
    let codec = RowCodec::new(rows(3).schema()).expect("a schema");
    let mut canonical = Vec::new();
    codec.encode(&rows(3), 1, &mut canonical).expect("a row");
    let last = &all["rows"][4];
    let wanted = json!([4, shards[1].id, 1, RowDigest::of(&canonical)]);
    assert_eq!(json!([last["sample"], last["shard"], last["row"], last["digest"]]), wanted);
    assert_eq!(
        (&last["values"][0], &last["values"][2]["class"]),
        (&Value::Null, &json!("<script>dog</script>"))
    );

    let picked = server.document(&format!("{path}?numbers=5,0,5"));
    assert_eq!(picked["rows"], json!([all["rows"][5], all["rows"][0], all["rows"][5]]));
    assert_eq!(
        server.document(&format!("{path}?from=4&limit=100"))["rows"].as_array().map(Vec::len),
        Some(2)
    );
    assert_eq!(server.document(&format!("{path}?from=6"))["rows"], json!([]));

    let (status, why) = server.refused(&format!("{path}?numbers=1,6"));
    assert_eq!((status, why.as_str()), (422, "numbers: the version has no sample 6, but 6"));
    for query in
        ["numbers=", "numbers=1,", "numbers=-1", "numbers=1&from=0", "limit=101", "limit=0", "number=1"]
    {
        assert_eq!(server.refused(&format!("{path}?{query}")).0, 400, "{query}");
    }
    assert_eq!(server.refused(&format!("{path}?numbers={}", ["1"; 101].join(","))).0, 400);
}

#[test]
fn a_value_is_a_file_that_no_browser_runs() {
    let (server, version, _) = filled();
    let path = format!("versions/{version}/samples");
    let (status, reply) = server.get(&format!("{path}/0/picture"), &[]);
    let known = ["content-type", "content-security-policy", "x-content-type-options"]
        .map(|name| header(&reply, name).to_owned());
    assert_eq!(
        (status.as_u16(), known),
        (200, ["image/png", "sandbox; default-src 'none'", "nosniff"].map(str::to_owned))
    );
    assert_eq!(bytes(reply), PICTURE);
    let (_, reply) = server.get(&format!("{path}/4/a%2Fb%20%3F"), &[]);
    assert_eq!(header(&reply, "content-type"), "text/plain; charset=utf-8");
    assert_eq!(bytes(reply), b"name 4");
    let (_, reply) = server.get(&format!("{path}/2/picture"), &[]);
    assert_eq!(header(&reply, "content-type"), "application/octet-stream");

    let (status, why) = server.refused(&format!("{path}/0/pictures"));
    assert!(status == 404 && why.contains("picture"), "{why}");
    assert_eq!(server.refused(&format!("{path}/1/picture")).0, 404);
    assert_eq!(server.refused(&format!("{path}/6/picture")).0, 404);
    let (status, why) = server.refused(&format!("{path}/0/label"));
    assert!(status == 422 && why.contains("Int64"), "{why}");
}

#[test]
fn a_damaged_row_is_refused_and_others_are_shown() {
    let (server, version, shards) = filled();
    let file = server.directory.path().join("store").join(shards[0].id.object_key());
    let mut content = std::fs::read(&file).expect("the shard");
    let at = content.windows(6).position(|text| text == b"name 1").expect("a name");
    content[at] = b'N';
    let mut permissions = std::fs::metadata(&file).expect("the shard").permissions();
    #[expect(clippy::permissions_set_readonly_false, reason = "the file is of this test")]
    permissions.set_readonly(false);
    std::fs::set_permissions(&file, permissions).expect("writable");
    std::fs::write(&file, content).expect("written");
    let path = format!("versions/{version}/samples");
    let (status, why) = server.refused(&format!("{path}?from=1&limit=1"));
    assert!(status == 500 && why.contains("row 1 of shard"), "{status}: {why}");
    assert_eq!(server.document(&format!("{path}?numbers=0,4"))["rows"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_version_is_compared_with_an_earlier_one_by_the_code_of_shardctl() {
    let server = Server::start();
    let catalog = server.catalog();
    let (old, _, _) = version_of(&catalog, "pets", [0, 3].map(rows), json!({}));
    let (new, ..) = version_of(&catalog, "later", [0, 6].map(rows), json!({}));
    let answer = server.document(&format!("versions/{new}/diff?from={old}&stats=true"));
    let side = |at: &str| json!([answer[at]["version"], answer[at]["samples"], answer[at]["shards"]]);
    assert_eq!((side("old"), side("new")), (json!([old, 6, 2]), json!([new, 6, 2])));
    let expected = json!({
        "schema": [],
        "shards": { "kept": 1, "added": 1, "removed": 1 },
        "samples": { "kept": 3, "added": 3, "removed": 3 },
        "same_order": false,
    });
    assert_eq!((&answer["diff"], &answer["same"]), (&expected, &json!(false)));
    // Of 0, 1 and none, and 1, 1 and none; and of 0, 1 and none, twice.
    let label = |label: &str, class: &str, old, new| json!({ "label": label, "class": class, "old": old, "new": new });
    assert_eq!(
        answer["stats"]["labels"],
        json!([label("0", "cat", 1, 2), label("1", "<script>dog</script>", 3, 2)])
    );
    assert_eq!(answer["stats"]["label_distance"], 0.25);
    let columns = answer["stats"]["columns"].as_array().expect("numbers");
    assert!(columns.iter().any(|column| column["column"] == "a/b ?" && column["measured"] == "lengths"));

    let same = server.document(&format!("versions/{new}/diff?from={new}"));
    assert_eq!((&same["same"], same["diff"]["samples"]["kept"].as_u64()), (&json!(true), Some(6)));
    assert!(same.get("stats").is_none());

    let (other, ..) =
        version_of(&catalog, "narrow", [rows(0).project(&[1, 2]).expect("two columns")], json!({}));
    let narrow = server.document(&format!("versions/{other}/diff?from={old}"));
    let removed = |column: &str, data_type: &str| json!({ "change": "removed", "column": column, "data_type": data_type });
    assert_eq!(narrow["diff"]["schema"][0], removed("picture", "Binary"));
    assert_eq!(narrow["diff"]["samples"], json!({ "kept": 0, "added": 3, "removed": 6 }));

    let nothing = VersionId::of(b"nothing");
    assert_eq!(server.refused(&format!("versions/{new}/diff?from={nothing}")).0, 404);
    for query in ["", "?from=x", "?from=", "?stats=true", "?from=x&version=y"] {
        assert_eq!(server.refused(&format!("versions/{new}/diff{query}")).0, 400, "{query}");
    }
}
