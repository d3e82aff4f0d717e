//! The labels of a plan's partitions, and plans by their version.

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use shardd_plan::{PlanDocument, PlanOptions, Shape};

use super::*;

const ROWS: usize = 256;

fn rows(shard: i64, labels: &[i64]) -> RecordBatch {
    let labels: ArrayRef = Arc::new(Int64Array::from_iter_values(labels.iter().copied().cycle().take(ROWS)));
    let numbers = (0..ROWS as i64).map(|row| 1000 * shard + row);
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
    RecordBatch::try_from_iter([("label", labels), ("n", numbers)]).expect("two columns")
}

/// A server with a version whose shards have these labels, and a plan of it.
fn filled(shards: &[&[i64]], partitions: u32) -> (Server, VersionId, Value) {
    planned(shards.iter().zip(0..).map(|(labels, shard)| rows(shard, labels)), partitions)
}

/// A server with a version of a shard of each batch, and a plan of it.
fn planned(batches: impl IntoIterator<Item = RecordBatch>, partitions: u32) -> (Server, VersionId, Value) {
    let server = Server::start();
    let catalog = server.catalog();
    let (version, manifest, shards) = version_of(&catalog, "kinds", batches, json!({}));
    let shape = Shape { shard_rows: vec![ROWS as u32; shards.len()], row_bytes: manifest.row_bytes() };
    let options = PlanOptions {
        q: "0.25".parse().expect("a share"),
        partitions: Some(partitions),
        grain_rows: Some(4),
        ..PlanOptions::default()
    };
    let document = PlanDocument::with_defaults(version, &shape, options).expect("it fits");
    let plan = catalog.put_plan(&document).expect("put");
    (server, version, json!(plan))
}

#[test]
fn the_labels_of_partitions_are_counts_in_the_first_epoch_and_estimates_after_exchanges() {
    let (server, version, plan) = filled(&[&[0, 1, 1, 1], &[0, 0, 2, 2], &[1], &[2]], 4);
    let path = format!("plans/{}/labels", plan.as_str().expect("a plan"));
    let begin = server.document(&path);
    assert_eq!(
        (&begin["version"], &begin["partitions"], &begin["epoch"]),
        (&json!(version), &json!(4), &json!(0))
    );
    // 0: 64 + 128, 1: 192 + 256, 2: 128 + 256, of 1,024.
    let labels = begin["labels"].as_array().expect("labels");
    let label = |of: &Value| json!([of["label"], of["samples"], of["share"]]);
    assert_eq!(
        labels.iter().map(label).collect::<Vec<_>>(),
        [json!(["1", 448, 0.4375]), json!(["2", 384, 0.375]), json!(["0", 192, 0.1875])]
    );
    // A shard each, in an order of the plan.
    let rows = |answer: &Value| answer["rows"].as_array().expect("rows").clone();
    let begin_rows = rows(&begin);
    assert!(begin_rows.iter().zip(0..).all(|(row, partition)| row["partition"] == partition), "{begin}");
    assert!(begin_rows.iter().all(|row| row["samples"] == 256 && row["is_exact"] == true), "{begin}");
    let mut counts: Vec<String> = begin_rows.iter().map(|row| row["counts"].to_string()).collect();
    counts.sort();
    assert_eq!(counts, ["[0,128,128]", "[0,256,0]", "[192,0,64]", "[256,0,0]"]);
    assert_eq!((&begin["is_exact"], begin.get("others")), (&json!(true), None));
    // Half of (192 - 112) + 96 + (64 - 48) of 256, and so on.
    let distances = [96.0, 112.0, 144.0, 160.0].map(|apart| apart / 256.0);
    let mean = distances.iter().sum::<f64>() / 4.0;
    assert!((begin["mean_distance"].as_f64().expect("a number") - mean).abs() < 1e-12, "{begin}");

    let later = server.document(&format!("{path}?epoch=4"));
    assert_eq!(later["is_exact"], false);
    assert!(later["mean_distance"].as_f64() < begin["mean_distance"].as_f64(), "{later}");
    for row in rows(&later) {
        let sum: u64 = row["counts"].as_array().expect("counts").iter().filter_map(Value::as_u64).sum();
        assert!((255..=257).contains(&sum), "{row}");
    }

    let part = server.document(&format!("{path}?first=2&partitions=9&labels=1"));
    assert_eq!((&part["others"]["labels"], &part["others"]["samples"]), (&json!(2), &json!(576)));
    assert_eq!(rows(&part).len(), 2);
    for (row, whole) in rows(&part).iter().zip(&begin_rows[2..]) {
        let others =
            whole["counts"][1].as_u64().zip(whole["counts"][2].as_u64()).map(|(one, other)| one + other);
        assert_eq!((&row["partition"], &row["counts"]), (&whole["partition"], &json!([whole["counts"][0]])));
        assert_eq!(
            (row["others"].as_u64(), &row["distance"]),
            (others, &whole["distance"]),
            "over all labels"
        );
    }
}

#[test]
fn labels_that_cannot_be_had_are_refused_with_the_way_out() {
    let (server, _, plan) = filled(&[&[0], &[1]], 2);
    let path = format!("plans/{}/labels", plan.as_str().expect("a plan"));
    for (query, status, words) in [
        ("first=2", 422, "first: 2 is not one of the 2 partitions, from 0"),
        ("partitions=0", 400, "partitions: 0 is not a number from 1 to 256"),
        ("partitions=257", 400, "partitions: 257 is not a number from 1 to 256"),
        ("labels=65", 400, "labels: 65 is not a number from 1 to 64"),
        ("epoch=4000000000", 422, "ask for fewer partitions, or an earlier epoch"),
        ("epoch=-1", 400, "epoch"),
        ("epochs=1", 400, "epochs"),
    ] {
        let (is, why) = server.refused(&format!("{path}?{query}"));
        assert!(is == status && why.contains(words), "{query}: {is} {why}");
    }
    assert_eq!(server.refused(&format!("plans/{}/labels", "ab".repeat(32))).0, 404);
}

#[test]
fn labels_that_are_nearly_numbers_of_samples_are_refused_before_they_are_read() {
    // More than 65,536 of them, which a manifest does not count.
    let labels: Vec<Vec<i64>> =
        (0..257).map(|shard| (shard * ROWS as i64..(shard + 1) * ROWS as i64).collect()).collect();
    let (server, _, plan) = filled(&labels.iter().map(Vec::as_slice).collect::<Vec<_>>(), 2);
    let (status, why) = server.refused(&format!("plans/{}/labels", plan.as_str().expect("a plan")));
    assert!(status == 422 && why.contains("too many different ones to count"), "{status} {why}");
}

#[test]
fn a_long_label_ends_with_an_ellipsis() {
    let shards = ["é".repeat(300), "short".to_owned()].map(|label| {
        let labels: ArrayRef = Arc::new(StringArray::from(vec![label; ROWS]));
        RecordBatch::try_from_iter([("label", labels)]).expect("a column")
    });
    let (server, _, plan) = planned(shards, 2);
    let found = server.document(&format!("plans/{}/labels", plan.as_str().expect("a plan")));
    let labels = found["labels"].as_array().expect("labels").iter();
    let labels: Vec<&str> = labels.filter_map(|label| label["label"].as_str()).collect();
    assert_eq!(labels, ["short".to_owned(), format!("{}…", "é".repeat(200))]);
}

#[test]
fn plans_are_listed_by_their_version() {
    let (server, version, plan) = filled(&[&[0], &[1]], 2);
    let ids = |path: &str| -> Vec<Value> {
        server.document(path).as_array().expect("a list").iter().map(|plan| plan["id"].clone()).collect()
    };
    assert_eq!(ids(&format!("plans?version={version}&limit=5")), std::slice::from_ref(&plan));
    assert_eq!(ids("plans"), [plan]);
    assert!(ids(&format!("plans?version={}", VersionId::of(b"nothing"))).is_empty());
    assert_eq!(server.refused("plans?version=x").0, 400);
}
