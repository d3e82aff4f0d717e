//! Nodes that are drained, host again and leave, while a run is being read: by the command line, over real processes.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use shardd_tests::{Cluster, Delivered, Reading, binary, ended, error_line, is_quick, run, wait_until};

const EPOCHS: u32 = 40;

/// What a command with `--json` says, line by line.
fn says(command: &mut Command) -> Vec<Value> {
    run(command).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn hosted(cluster: &Cluster, node: &str) -> u64 {
    let nodes = cluster.nodes[0].get("/v1/nodes");
    let of = nodes.as_array().expect("a list").iter().find(|of| of["id"] == node);
    of.and_then(|of| of["hosted"].as_u64()).unwrap_or(0)
}

#[test]
fn a_node_is_drained_hosts_again_and_leaves_while_a_run_is_read() {
    if is_quick() {
        return;
    }
    let cluster = Cluster::start(3);
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/data/digits/train.parquet");
    run(cluster.shardctl().arg("ingest").arg(digits).args(["--name", "digits"]));
    let plan = says(cluster.shardctl().args(["--json", "partition", "digits", "--q", "0.1"])).remove(0);
    let reading = Reading::alone(&plan, EPOCHS);
    let ranks = cluster.read(&reading);
    let story = || {
        wait_until("n3 hosts partitions", || hosted(&cluster, "n3") > 0);
        let drained = says(cluster.shardctl().args(["--json", "drain", "n3"]));
        println!("drain: {drained:?}");
        assert_eq!(drained.last().expect("it ends")["done"], "hosts nothing any more");
        assert_eq!(hosted(&cluster, "n3"), 0);
        let status = run(cluster.shardctl().arg("status"));
        assert!(status.contains("n3 (draining)"), "{status}");

        says(cluster.shardctl().args(["--json", "join", "n3"]));
        wait_until("n3 hosts again", || hosted(&cluster, "n3") > 0);

        let left = says(cluster.shardctl().args(["--json", "leave", "n3"]));
        assert_eq!(left.last().expect("it ends")["done"], "has left");
        let nodes = cluster.nodes[0].get("/v1/nodes");
        assert_eq!(nodes.as_array().map(Vec::len), Some(2), "{nodes}");

        says(cluster.shardctl().args(["--json", "drain", "n2"]));
        for (command, wants) in [("drain n1", "n1 is the only host"), ("drain n9", "n9 is not among")] {
            let refused = ended(cluster.shardctl().args(command.split(' ')));
            assert_eq!(refused.status.code(), Some(1), "{command}");
            let said = error_line(&refused);
            assert!(said.contains(wants), "{command}: {said}");
        }
    };
    let mut told = false;
    let delivered = Delivered::collect(ranks, |epoch, _| {
        if epoch == 1 && !told {
            told = true;
            story();
        }
    });
    assert!(told);
    let first = delivered.epochs[&0];
    assert_eq!(delivered.epochs.len(), EPOCHS as usize);
    assert!(delivered.epochs.values().all(|epoch| *epoch == first), "each sample once, in every epoch");
}

#[test]
fn status_says_which_node_cannot_be_asked_and_what_goes_on_without_the_first() {
    let mut cluster = Cluster::start(2);
    let both = cluster.nodes.iter().map(|node| node.http.clone()).collect::<Vec<_>>().join(",");
    let known = || cluster.nodes[1].get("/v1/nodes").as_array().map(Vec::len);
    wait_until("n2 knows both", || known() == Some(2));
    cluster.nodes[0].kill();
    let status = |words: &[&str]| {
        let output =
            ended(Command::new(binary("shardctl")).args(["--server", &both]).args(words).arg("status"));
        assert!(output.status.success(), "{output:?}");
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"))
    };
    let [shown, notes] = status(&[]);
    assert!(shown.lines().any(|line| line.starts_with("n1") && line.contains("no answer")), "{shown}");
    let notes: Vec<&str> = notes.lines().collect();
    assert!(notes.len() == 2 && notes[0].contains("node n1 cannot be asked"), "{notes:?}");
    assert!(notes[1].contains("metadata is unavailable") && notes[1].contains("continue"), "{notes:?}");
    let [shown, _] = status(&["--json"]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert!(shown["nodes"][0]["silent"].is_string() && shown["metadata"].is_string(), "{shown}");
}
