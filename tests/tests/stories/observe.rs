//! What nodes say of a cluster that is being read, to the console and to `shardctl top`.

use serde_json::{Value, json};
use shardd_tests::{Cluster, RankProcess, Reading, run, wait_until};

/// A cluster of three nodes, read by two ranks for as long as their lines are taken.
fn being_read() -> (Cluster, Vec<RankProcess>) {
    let cluster = Cluster::start(3);
    let data = format!("{}/../client/data/digits/train.parquet", env!("CARGO_MANIFEST_DIR"));
    run(cluster.shardctl().args(["ingest", &data, "--name", "digits"]));
    let plan =
        run(cluster.shardctl().args(["--json", "partition", "digits", "--q", "0.25", "--partitions", "12"]));
    let plan: Value = serde_json::from_str(&plan).expect("one line of JSON");
    let reading = Reading { world: 2, ..Reading::alone(&plan, 1000) };
    let ranks = cluster.read(&reading);
    (cluster, ranks)
}

/// Takes a few steps of every rank.
fn take_steps(ranks: &mut [RankProcess]) {
    for rank in ranks {
        (0..20).for_each(|_| drop(rank.next_line().expect("it reads for long")));
    }
}

fn overview(cluster: &Cluster, node: usize) -> Value {
    cluster.nodes[node].get("/v1/overview")
}

#[test]
fn every_node_shows_the_run_its_rate_and_what_its_loop_waits_for() {
    let (cluster, mut ranks) = being_read();
    // The time since the last step is not reported yet: after some steps it is a small part.
    let is_spent = |reader: &Value| {
        let waits = reader["wait_shares"].as_object().expect("by stage").values();
        let spent: f64 =
            waits.filter_map(Value::as_f64).sum::<f64>() + reader["compute_share"].as_f64().expect("a part");
        (0.5..1.5).contains(&spent)
    };
    wait_until("both ranks report where their time goes, all of it", || {
        take_steps(&mut ranks);
        let seen = overview(&cluster, 2);
        seen["runs"][0]["readers"]
            .as_array()
            .is_some_and(|readers| readers.len() == 2 && readers.iter().all(is_spent))
    });
    for node in 0..3 {
        let seen = overview(&cluster, node);
        assert_eq!((&seen["nodes"]["live"], &seen["nodes"]["unanswered"]), (&3.into(), &0.into()), "{seen}");
        let run = &seen["runs"][0];
        assert_eq!((&run["run"], &run["ranks"]), (&"r".into(), &2.into()), "{run}");
        assert!(
            run["position"].as_u64() <= run["epoch_samples"].as_u64() && run["epoch_samples"] != 0,
            "{run}"
        );
        assert!(run["samples_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{run}");
        let ends = &run["epoch_ends"];
        assert!(
            ends["earliest_s"].as_f64() <= ends["in_s"].as_f64()
                && ends["in_s"].as_f64() <= ends["latest_s"].as_f64(),
            "{run}"
        );
    }
    let hot = cluster.nodes[0].get("/v1/hot?limit=3");
    let shards = hot["shards"].as_array().expect("a list");
    assert!(
        !shards.is_empty() && shards[0]["reads"].as_f64() >= shards.last().expect("one")["reads"].as_f64(),
        "{hot}"
    );
    let shard = shards[0]["shard"].as_str().expect("a digest");
    wait_until("the caches have each grain of a shard once or more, and each is hosted once", || {
        take_steps(&mut ranks);
        let copies = cluster.nodes[1].get(&format!("/v1/shards/{shard}/copies"));
        let run = &copies["runs"][0];
        assert_eq!((&run["run"], copies.get("unanswered")), (&"r".into(), None), "{copies}");
        let nodes = copies["nodes"].as_array().expect("a list");
        let sum = |of: &str| nodes.iter().filter_map(|at| at[of].as_u64()).sum::<u64>();
        assert_eq!(Some(sum("cached")), run["cached"].as_u64(), "{copies}");
        let grains = run["grains"].as_u64().expect("a number");
        sum("cached") >= grains && sum("hosted") == grains && sum("bytes") > 0
    });
    assert!(!hot["grains"][0]["nodes"].as_array().expect("a list").is_empty(), "{hot}");
    let metrics = cluster.nodes.iter().map(|node| node.text("/metrics")).collect::<String>();
    for rank in 0..2 {
        let labels = format!("{{run=\"r\",rank=\"{rank}\"");
        for name in
            ["shardd_rank_samples_per_second", "shardd_rank_wait_seconds_total", "shardd_rank_steps_total"]
        {
            assert!(metrics.contains(&format!("{name}{labels}")), "{name}{labels} is missing");
        }
    }
    wait_until("hosts have sent grains to each other, and any node says how much", || {
        take_steps(&mut ranks);
        let traffic = cluster.nodes[1].get("/v1/runs/r/traffic");
        let sum = |of: &str| -> u64 {
            let rows = traffic[of].as_array().into_iter().flatten();
            rows.flat_map(|row| row.as_array().into_iter().flatten()).filter_map(Value::as_u64).sum()
        };
        // The bytes are spread over pairs, and each pair is rounded down.
        let (sent, predicted) = (sum("exchange"), sum("predicted"));
        assert!(predicted <= sent && sent - predicted <= 6, "{traffic}");
        sent > 0 && traffic["nodes"] == json!(["n1", "n2", "n3"]) && traffic.get("unanswered").is_none()
    });
    wait_until("a trace of the run has what all hosts did, and how its ranks read", || {
        take_steps(&mut ranks);
        let trace = cluster.nodes[2].get("/v1/runs/r/trace");
        let facts = json!({ "run": "r", "hosts": 3, "nodes": ["n1", "n2", "n3"] });
        assert_eq!(trace["otherData"], facts, "all answer");
        let events = trace["traceEvents"].as_array().expect("a list");
        let has = |phase: &str, name: &str| {
            events.iter().any(|event| event["ph"] == phase && event["name"].as_str() == Some(name))
        };
        let named = |name: &str| events.iter().any(|event| event["args"]["name"] == name);
        has("C", "rank 0 reads")
            && has("C", "rank 1 waits")
            && ["node n1", "node n3", "exchange, out", "exchange, in", "fill"].into_iter().all(named)
    });
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("run.json");
    let saved = run(cluster.shardctl().args(["--json", "runs", "trace", "r", "--out"]).arg(&file));
    let saved: Value = serde_json::from_str(&saved).expect("one line of JSON");
    let written = std::fs::read(&file).expect("the trace");
    let trace: Value = serde_json::from_slice(&written).expect("JSON");
    assert_eq!((&saved["trace"], &saved["bytes"]), (&trace["otherData"], &json!(written.len())));
    let shown = run(cluster.shardctl().args(["runs", "trace", "r", "--out"]).arg(&file));
    assert!(shown.contains("has the trace of 3 nodes") && !shown.contains("without"), "{shown}");
    wait_until("the series have a second point", || {
        let series = cluster.nodes[0].get("/v1/nodes/n1/series?names=served,cache_used&points=720");
        let of = |name: &str| {
            series["series"].as_array().into_iter().flatten().find(|one| one["name"] == name).cloned()
        };
        let points = |name: &str| of(name).map_or(0, |one| one["points"].as_array().map_or(0, Vec::len));
        points("cache_used_bytes") >= 2 && points("served_bytes_per_second") >= 2
    });
}

#[test]
fn a_node_that_dies_while_it_is_watched_is_named_with_what_to_do() {
    let (mut cluster, mut ranks) = being_read();
    wait_until("a rank reads", || {
        take_steps(&mut ranks);
        overview(&cluster, 0)["runs"][0]["ranks"].as_u64().is_some_and(|ranks| ranks >= 1)
    });
    assert_eq!(cluster.nodes[0].get("/v1/nodes/n3/status")["node"], "n3", "a node passes questions on");
    cluster.nodes[2].kill();
    let kinds = || {
        let seen = overview(&cluster, 0);
        let findings = seen["findings"].as_array().expect("a list").iter();
        findings
            .filter(|finding| finding["node"] == "n3")
            .filter_map(|finding| finding["kind"].as_str().map(str::to_owned))
            .collect::<Vec<_>>()
    };
    wait_until("it does not answer, or is lost", || {
        kinds().iter().any(|kind| kind == "node_unanswered" || kind == "node_lost")
    });
    wait_until("a trace of the run comes without it", || {
        let facts = &cluster.nodes[0].get("/v1/runs/r/trace")["otherData"];
        facts["nodes"] == json!(["n1", "n2"]) && (facts["unanswered"] == json!(["n3"]) || facts["hosts"] == 2)
    });
    wait_until("it is lost", || kinds().contains(&"node_lost".to_owned()));
    let rows = cluster.nodes[0].get("/v1/cluster/nodes?order=state&limit=1");
    assert_eq!(
        (&rows["total"], &rows["rows"][0]["id"], &rows["rows"][0]["state"]),
        (&3.into(), &"n3".into(), &"lost".into())
    );
}
