//! A node that hangs is no worse than one that died: a frozen process keeps its sockets open, and answers nothing.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use shardd_tests::{Cluster, Reading, run, wait_until};

const EPOCHS: u32 = 6;

#[test]
fn a_frozen_node_is_waited_for_once_and_each_sample_is_read_all_the_same() {
    let cluster = Cluster::start(3);
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/data/digits/train.parquet");
    run(cluster.shardctl().arg("ingest").arg(digits).args(["--name", "digits"]));
    let plan = run(cluster.shardctl().args(["--json", "partition", "digits", "--q", "0.1"]));
    let plan: Value = serde_json::from_str(&plan).expect("JSON");
    let mut rank = cluster.read(&Reading::alone(&plan, EPOCHS)).remove(0);
    let frozen = &cluster.nodes[2];
    let process = Pid::from_raw(frozen.pid().try_into().expect("a pid")).expect("a pid");
    let mut is_frozen = false;
    let done = loop {
        let line = rank.next_line().expect("it says when it is done");
        if line["event"] == "done" {
            break line;
        }
        if line["epoch"] == 1 && !is_frozen {
            is_frozen = true;
            kill_process(process, Signal::STOP).expect("it runs");
        }
    };
    let samples = done["audits"].as_array().expect("audits").iter().map(|audit| audit["samples"].clone());
    assert_eq!(samples.collect::<Vec<_>>(), vec![Value::from(1437); EPOCHS as usize], "{done}");
    let asked = |server: &str| done["asked"][server].clone();
    let (of_frozen, of_own) = (asked(&frozen.http), asked(&cluster.nodes[0].http));
    let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or_else(|| panic!("no {name}: {done}"));
    assert!(number(&of_frozen, "questions") > 0, "it was asked before: {done}");
    let waited_for = number(&of_frozen, "late") + number(&of_frozen, "unanswered");
    assert!(waited_for <= 1, "a node that has not answered once is not asked first again: {done}");
    assert!(number(&of_own, "questions") > number(&of_frozen, "questions"), "{done}");

    // It is asked again once it answers.
    kill_process(process, Signal::CONT).expect("it is there");
    let live = || cluster.nodes[0].get("/v1/nodes").as_array().map(Vec::len);
    wait_until("it is back", || live() == Some(3));
    let mut again = Reading::alone(&plan, 2);
    let mut runs = 0;
    wait_until("a run asks it again", || {
        runs += 1;
        again.run = format!("again-{runs}");
        let mut rank = cluster.read(&again).remove(0);
        let done = loop {
            let line = rank.next_line().expect("it says when it is done");
            if line["event"] == "done" {
                break line;
            }
        };
        done["asked"][&frozen.http]["questions"].as_u64() > Some(0)
    });
}
