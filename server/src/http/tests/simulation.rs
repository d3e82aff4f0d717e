//! Simulations of plans that are not stored.

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
use shardd_simulation::{Scenario, simulate};

use super::*;

const SHARDS: i64 = 8;
const ROWS: usize = 256;

fn rows(shard: i64) -> RecordBatch {
    let labels: ArrayRef = Arc::new(Int64Array::from(vec![shard; ROWS]));
    let numbers = (0..ROWS as i64).map(|row| 1000 * shard + row);
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
    RecordBatch::try_from_iter([("label", labels), ("n", numbers)]).expect("two columns")
}

/// A server with a version whose shards have a label each.
fn filled() -> (Server, VersionId, u64) {
    let server = Server::start();
    let (version, manifest, _) = version_of(&server.catalog(), "kinds", (0..SHARDS).map(rows), json!({}));
    (server, version, manifest.row_bytes())
}

#[test]
fn a_plan_is_simulated_before_it_is_made_by_the_code_of_shardctl() {
    let (server, version, row_bytes) = filled();
    let path = format!("versions/{version}/simulation");
    let cluster = "q=0.25&partitions=8&grain_rows=1&nodes=4&epochs=5&link=8bit/s&step_ms=1000&matrix=4";
    let answer = server.document(&format!("{path}?{cluster}&seed=7"));

    let shape = Shape { shard_rows: vec![ROWS as u32; SHARDS as usize], row_bytes };
    let options = PlanOptions {
        q: "0.25".parse().expect("a share"),
        partitions: Some(8),
        grain_rows: Some(1),
        seed: 7,
        ..PlanOptions::default()
    };
    let document = PlanDocument::with_defaults(version, &shape, options).expect("it fits");
    let plan = Plan::new(document, &shape.shard_rows).expect("it fits");
    let scenario = Scenario {
        step: Some(Duration::from_secs(1)),
        ..Scenario::healthy(4, 5, "8bit/s".parse().expect("a rate"))
    };
    let report = simulate(&plan, row_bytes, &scenario, &|_, _| {}).expect("it fits");
    assert_eq!(answer["report"], serde_json::to_value(&report).expect("plain data"));

    let rows = answer["matrix"]["rows"].as_array().expect("rows");
    assert_eq!((rows.len(), &answer["matrix"]["of_grains"]), (8, &json!(2048)));
    // Four virtual ranks have two partitions each, so they begin with two labels of eight. After four exchanges of a quarter,
    // cyclic, each has what was drawn at random.
    let labels = &answer["labels"];
    let number = |value: &Value| value.as_f64().expect("a number");
    let skew: Vec<f64> = labels["skew"].as_array().expect("epochs").iter().map(number).collect();
    let floor = number(&labels["floor"]);
    let above = [0.75, 0.5625, 0.375, 0.1875, 0.0];
    let expected = above.map(|left| floor + left / 0.75 * (0.75 - floor));
    assert!(skew.iter().zip(expected).all(|(skew, is)| (skew - is).abs() < 1e-6), "{labels}");
    assert_eq!((&labels["kinds"], &labels["begins_with"]), (&json!(8), &json!(2.0)));

    let usual = server.document(&path);
    assert!(usual.get("matrix").is_none());
    assert_eq!(usual["report"]["epochs"].as_array().map(Vec::len), Some(10));
}

#[test]
fn what_cannot_be_simulated_is_refused_with_the_way_out() {
    let (server, version, _) = filled();
    let refused = |query: &str| server.refused(&format!("versions/{version}/simulation?{query}"));
    for (query, status, words) in [
        ("q=2", 422, "q: "),
        ("link=fast", 422, "link: use a number and a unit per second"),
        ("nodes=0", 400, "nodes: 0 is not a number from 1 to 4096"),
        ("epochs=201", 400, "epochs: 201 is not a number from 1 to 200"),
        ("partitions=65537", 400, "partitions: 65537 is not a number from 1 to 65536"),
        ("partitions=60000", 422, "partitions"),
        ("nodes=9&partitions=4", 422, "9 nodes cannot share 4 partitions: make the plan with 9 partitions"),
        ("epochs=3&matrix=3", 422, "epoch 3 is not played: there are 3 epochs, from 0"),
        ("grain_rows=3", 422, "grain"),
        ("global_batch_size=0", 400, "a step needs at least 1 sample"),
        ("selection=some", 400, "selection"),
        ("round_trip_ms=60001", 400, "round_trip_ms: give at most 60000"),
    ] {
        let (is, why) = refused(query);
        assert!(is == status && why.contains(words), "{query}: {is} {why}");
    }
    let nothing = "ab".repeat(32);
    assert_eq!(server.refused(&format!("versions/{nothing}/simulation")).0, 404);
}

#[test]
fn the_description_names_the_choices_and_requires_none() {
    let (server, ..) = filled();
    let described = server.document("openapi.json");
    let parameters = described["paths"]["/v1/versions/{id}/simulation"]["get"]["parameters"].as_array();
    let of =
        |name: &str| parameters.expect("a list").iter().find(|one| one["name"] == name).expect("described");
    for (name, choices) in [("selection", ["cyclic", "independent"]), ("placement", ["shards", "random"])] {
        assert_eq!(of(name)["schema"]["enum"], json!(choices), "{}", of(name));
        assert_ne!(of(name)["required"], json!(true), "{}", of(name));
    }
}
