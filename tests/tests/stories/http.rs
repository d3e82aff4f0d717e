//! The HTTP API of real nodes, as others use it: curl, pyarrow and DuckDB read a version and a stream of
//! batches, schemathesis sends requests that the description allows and others.

use std::process::Command;

use serde_json::Value;
use shardd_tests::{Cluster, is_quick, python, run, wait_until};

/// A node with the digits, and the id of a plan over them.
fn served() -> (Cluster, String) {
    let cluster = Cluster::start(1);
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../client/data/digits/train.parquet");
    let ask = |args: &[&str]| -> Value {
        let text = run(cluster.shardctl().arg("--json").args(args));
        serde_json::from_str(text.lines().last().expect("a value")).expect("JSON")
    };
    ask(&["ingest", digits, "--name", "digits", "--shard-size", "16KiB"]);
    let plan = ask(&["partition", "--q", "0.1", "--partitions", "4", "digits"]);
    let plan = plan["plan"].as_str().expect("an id").to_owned();
    (cluster, plan)
}

/// The memory of a process that is no file's, in bytes.
fn anonymous_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs, on Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux says so");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
}

#[test]
fn memory_goes_back_after_load() {
    const ROWS: usize = 8192;
    const ROW: usize = 12 << 10;
    let cluster = Cluster::start(1);
    let pid = cluster.nodes[0].pid();
    let at_start = anonymous_bytes(pid);
    let rows = cluster.root().join("rows.npy");
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({ROWS}, {ROW}), }}");
    let header = format!("{header:<117}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend((0..ROWS * ROW).map(|at| (at * 31 + at / ROW) as u8));
    std::fs::write(&rows, bytes).expect("a file can be written");
    run(cluster.shardctl().args(["ingest", rows.to_str().expect("a plain path"), "--name", "rows"]));
    let plan = run(cluster.shardctl().args(["--json", "partition", "--q", "0.1", "rows"]));
    let plan: Value = serde_json::from_str(plan.lines().last().expect("a value")).expect("JSON");
    let url = format!(
        "{}/v1/plans/{}/batches?epoch=0&global_batch_size=1024",
        cluster.nodes[0].http,
        plan["plan"].as_str().expect("an id")
    );
    let stream = || {
        let mut body = ureq::get(&url).call().expect("answered").into_body().into_reader();
        std::io::copy(&mut body, &mut std::io::sink()).expect("a whole stream")
    };
    let read: u64 = std::thread::scope(|scope| {
        let streams: Vec<_> = (0..4).map(|_| scope.spawn(stream)).collect();
        streams.into_iter().map(|stream| stream.join().expect("no panic")).sum()
    });
    assert!(read > 4 * (ROWS * ROW) as u64);
    // Most of it was more than twice as much, for good.
    wait_until("memory has gone back", || anonymous_bytes(pid) < at_start + (32 << 20));
}

#[test]
fn other_programs_read_a_version_and_a_stream_of_batches() {
    let (cluster, plan) = served();
    let server = &cluster.nodes[0].http;
    let Some(python) = python() else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/over_http.py");
    let found = run(Command::new(python).args([script, server, "digits", &plan]));
    let found: Value = serde_json::from_str(&found).expect("JSON");
    // 1437 rows in steps of 64 positions: 23 steps, four micro-batches each.
    let expected = serde_json::json!({
        "rows": 1437, "epoch": 1437, "batches": 92, "differ": 0, "labels": 10, "tail": "ARROW1"
    });
    assert_eq!(found, expected);
}

#[test]
fn the_examples_of_the_documentation_are_answered() {
    let (cluster, plan) = served();
    let server = &cluster.nodes[0].http;
    if Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: no curl");
        return;
    }
    let info = run(cluster.shardctl().args(["--json", "info", "digits", "--shards"]));
    let info: Value = serde_json::from_str(&info).expect("JSON");
    let create = serde_json::json!({ "id": "mine", "plan": plan, "virtual_ranks": 4 });
    ureq::post(&format!("{server}/v1/runs")).send_json(&create).expect("a run");
    let page = include_str!("../../../docs/API.md").replace("\\\n", " ");
    let examples: Vec<&str> = page.lines().map(str::trim).filter(|line| line.starts_with("curl ")).collect();
    assert!(examples.len() >= 7, "{examples:?}");
    for example in examples {
        let example = example.replace("http://127.0.0.1:7700", server);
        // An endless stream is followed for a second.
        let example = example.replace("curl ", "curl --fail-with-body --max-time 10 ");
        let example = example.replace("--max-time 10 -sN", "--max-time 1 -sN");
        let output = Command::new("sh")
            .args(["-c", &example])
            .env("plan", &plan)
            .env("run", "mine")
            .env("version", info["version"].as_str().expect("an id"))
            .env("shard", info["entries"][0]["id"].as_str().expect("an id"))
            .output()
            .expect("sh");
        // 28: the second is over.
        let code = output.status.code();
        let ended = code == Some(0) || code == Some(28) && example.contains("/v1/events");
        assert!(ended, "{example}: {code:?} {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn a_node_is_ready_when_it_serves_and_not_any_more_when_it_is_told_to_stop() {
    let mut cluster = Cluster::start(1);
    let url = format!("{}/v1/ready", cluster.nodes[0].http);
    let status = || {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        agent.get(&url).call().map_or(0, |answer| answer.status().as_u16())
    };
    wait_until("the node is ready", || status() == 200);
    let (took, well) = cluster.nodes[0].stop();
    assert!(well && took.as_secs() < 5, "{took:?}");
}

#[test]
fn whatever_the_description_allows_is_answered_as_it_says() {
    if is_quick() {
        return;
    }
    let Some(python) = python() else { return };
    let schemathesis = python.with_file_name("schemathesis");
    if !schemathesis.exists() {
        println!("skipped: {} is not there (tests/run installs it)", schemathesis.display());
        return;
    }
    let (cluster, _) = served();
    let server = &cluster.nodes[0].http;
    let output = Command::new(schemathesis)
        .args(["--config-file", concat!(env!("CARGO_MANIFEST_DIR"), "/schemathesis.toml")])
        .args(["run", &format!("{server}/v1/openapi.json"), "--checks", "all", "--no-color"])
        .args(["--phases", "examples,coverage,fuzzing", "--continue-on-failure"])
        .current_dir(cluster.root())
        .output()
        .expect("schemathesis starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", said.lines().rev().take(12).collect::<Vec<_>>().join("\n"));
    assert_eq!(cluster.nodes[0].get("/v1/health")["status"], "ok");
}
