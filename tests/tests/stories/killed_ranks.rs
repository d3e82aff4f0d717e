//! Ranks that are killed: their nodes notice within seconds, and nothing has to be forced afterwards.

use serde_json::Value;
use shardd_tests::{Cluster, RankProcess, Reading, digits, run, wait_until};

/// A run of two ranks at two nodes, which have taken a step, and read no further until they are asked.
fn begin(cluster: &Cluster) -> Vec<RankProcess> {
    run(cluster.shardctl().args(["ingest", &digits("train"), "--name", "digits"]));
    let plan = cluster.ask(0, &["partition", "digits", "--q", "0.1", "--partitions", "4"]);
    let read = Reading { world: 2, virtual_ranks: 4, ..Reading::alone(&plan, 100_000) };
    let mut ranks = cluster.read(&read);
    for rank in &mut ranks {
        rank.next_line().expect("a step");
    }
    ranks
}

fn attached(cluster: &Cluster, node: usize) -> Option<u64> {
    cluster.nodes[node].get("/v1/runs/r")["attached"].as_u64()
}

fn state(cluster: &Cluster, node: usize) -> Value {
    cluster.nodes[node].get("/v1/runs")[0]["state"].clone()
}

#[test]
fn killed_ranks_leave_their_run_within_seconds() {
    let cluster = Cluster::start(2);
    let mut ranks = begin(&cluster);
    assert_eq!((attached(&cluster, 0), state(&cluster, 0)), (Some(2), "running".into()));

    drop(ranks.pop()); // by SIGKILL
    wait_until("the second rank has left", || attached(&cluster, 0) == Some(1));
    assert_eq!(state(&cluster, 0), "running");

    drop(ranks.pop());
    wait_until("the run is interrupted", || state(&cluster, 0) == "interrupted");
    assert!(cluster.nodes[1].log().contains("ended without detaching"));
    // Without --force.
    run(cluster.shardctl().args(["runs", "rm", "r", "--yes"]));
}

#[test]
fn a_rank_whose_node_was_killed_is_watched_by_another() {
    let mut cluster = Cluster::start(3);
    let mut ranks = begin(&cluster);
    wait_until("both are attached", || attached(&cluster, 0) == Some(2));
    cluster.nodes[1].kill();
    // For ten seconds its loader waits for its node to come back.
    wait_until("another node has the rank", || {
        [0, 2].iter().any(|node| cluster.nodes[*node].log().contains("a rank is attached to this node now"))
    });
    assert_eq!(attached(&cluster, 0), Some(2));
    drop(ranks.pop());
    wait_until("the second rank has left", || attached(&cluster, 0) == Some(1));
}
