//! What `shardctl status` shows of nodes that are not there, of runs that have ended, and of drained nodes. Over real processes.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use shardd_tests::{Cluster, Delivered, Reading, ended, run, wait_until};

fn status(cluster: &Cluster, more: &[&str]) -> String {
    run(cluster.shardctl().arg("status").args(more))
}

fn names(list: &Value) -> Vec<String> {
    let names =
        list.as_array().expect("a list").iter().map(|of| of["id"].as_str().expect("a name").to_owned());
    names.collect()
}

fn with_digits(nodes: usize) -> (Cluster, Value) {
    let cluster = Cluster::start(nodes);
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/data/digits/train.parquet");
    run(cluster.shardctl().arg("ingest").arg(digits).args(["--name", "digits"]));
    let plan = run(cluster.shardctl().args(["--json", "partition", "digits", "--q", "0.1"]));
    (cluster, serde_json::from_str(&plan).expect("JSON"))
}

#[test]
fn a_node_that_hangs_or_dies_is_shown_as_not_ready_and_one_that_leaves_is_not() {
    let mut cluster = Cluster::start(3);
    let live = |cluster: &Cluster| names(&cluster.nodes[0].get("/v1/nodes"));
    let lost = |cluster: &Cluster| names(&cluster.nodes[0].get("/v1/lost-nodes"));
    wait_until("n1 knows all three", || live(&cluster).len() == 3);
    assert_eq!(lost(&cluster), [""; 0]);
    let process = Pid::from_raw(cluster.nodes[2].pid().try_into().expect("a pid")).expect("a pid");
    kill_process(process, Signal::STOP).expect("it runs");
    wait_until("its lease has ended", || live(&cluster).len() == 2);
    let shown = status(&cluster, &[]);
    let line = shown.lines().find(|line| line.starts_with("n3")).unwrap_or_else(|| panic!("no n3:\n{shown}"));
    assert!(line.contains("not ready, last seen 20"), "{shown}");
    kill_process(process, Signal::CONT).expect("it is there");
    wait_until("it is back", || live(&cluster).len() == 3);
    assert_eq!(lost(&cluster), [""; 0]);

    cluster.nodes[2].kill();
    wait_until("its lease has ended", || lost(&cluster) == ["n3"]);
    let noted = ended(cluster.shardctl().arg("status"));
    let noted = String::from_utf8_lossy(&noted.stderr).into_owned();
    assert!(
        noted.contains("node n3 does not answer since 20") && noted.contains("certs revoke n3"),
        "{noted}"
    );
    // Also by one that was not there when it died.
    cluster.nodes[1].stop();
    assert_eq!(lost(&cluster), ["n3"], "n2 has signed off");
    cluster.nodes[1].restart();
    wait_until("n2 has heard", || names(&cluster.nodes[1].get("/v1/lost-nodes")) == ["n3"]);
    cluster.nodes[2].restart();
    wait_until("it is back", || lost(&cluster).is_empty());
}

#[test]
fn runs_that_ended_are_not_all_shown_and_hold_no_drained_node() {
    let (cluster, plan) = with_digits(3);
    let reading = Reading::alone(&plan, 1);
    Delivered::collect(cluster.read(&reading), |_, _| ());
    let hosts = || -> Vec<String> {
        let placed = cluster.nodes[0].get("/v1/placement");
        let of_run =
            placed.as_array().expect("a list").iter().find(|of| of["run"] == "r").expect("it was placed");
        let hosts = of_run["placement"]["hosts"].as_array().expect("a list").iter();
        hosts.map(|host| host.as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(hosts(), ["n1", "n2", "n3"]);
    run(cluster.shardctl().args(["drain", "n2"]));
    wait_until("n2 is in no placement", || hosts() == ["n1", "n3"]);
    assert!(status(&cluster, &[]).contains("n2 (draining)"));

    for n in 0..7 {
        let create = json!({ "id": format!("other-{n}"), "plan": plan["plan"], "virtual_ranks": 2 });
        let url = format!("{}/v1/runs", cluster.nodes[0].http);
        let answer = ureq::post(&url).send_json(&create).expect("it is made known");
        assert_eq!(answer.status(), 201);
    }
    let few = status(&cluster, &[]);
    assert!(few.contains("other-6") && few.contains("3 more runs that ended earlier"), "{few}");
    let all = status(&cluster, &["--all"]);
    assert!((0..7).all(|n| all.contains(&format!("other-{n}"))) && !all.contains("more run"), "{all}");
}
