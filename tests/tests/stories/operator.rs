//! What an operator does before, during and after a training: fills caches, looks who hosts what and why, pauses the exchange, and
//! clears the caches. By the command line, over real processes.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use shardd_tests::{Cluster, Delivered, Node, Reading, ended, error_line, is_quick, run, wait_until};

const EPOCHS: u32 = 20;

/// What a command with `--json` says, line by line.
fn says(cluster: &Cluster, command: &str) -> Vec<Value> {
    let said = run(cluster.shardctl().arg("--json").args(command.split(' ')));
    said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn refused(command: &mut Command, wants: &str, exit: i32) {
    let output = ended(command);
    let said = error_line(&output);
    assert!(output.status.code() == Some(exit) && said.contains(wants), "{command:?}: {said}");
}

/// What each node says of itself.
fn of_nodes<T>(cluster: &Cluster, what: impl Fn(&Value) -> T) -> Vec<T> {
    cluster.nodes.iter().map(|node| what(&node.get("/v1/status"))).collect()
}

fn cache_bytes(cluster: &Cluster) -> Vec<u64> {
    of_nodes(cluster, |status| status["cache_used_bytes"].as_u64().expect("a number"))
}

fn paused(cluster: &Cluster) -> Vec<bool> {
    of_nodes(cluster, |status| status["exchange_now"]["paused"] == true)
}

fn waits(cluster: &Cluster) -> bool {
    let waiting =
        |status: &Value| status["exchange_now"]["waiting"].as_array().is_some_and(|all| !all.is_empty());
    of_nodes(cluster, waiting).contains(&true)
}

#[test]
fn caches_are_filled_looked_at_and_cleared_and_the_exchange_is_paused_while_a_run_is_read() {
    if is_quick() {
        return;
    }
    let mut cluster = Cluster::start(3);
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/data/digits/train.parquet");
    run(cluster.shardctl().arg("ingest").arg(digits).args(["--name", "digits"]));
    let plan = says(&cluster, "partition digits --q 0.1").remove(0);

    says(&cluster, "exchange pause");
    says(&cluster, "exchange rate 50MiB --node n3");
    cluster.nodes[2].stop();
    cluster.nodes[2].restart();
    wait_until("it holds at all nodes, also at one that has started again", || paused(&cluster) == [true; 3]);
    let rates = of_nodes(&cluster, |status| status["exchange_now"]["rate"].clone());
    assert_eq!(rates, ["auto", "auto", "50MiB"]);
    let shown = run(cluster.shardctl().args(["exchange", "show"]));
    assert!(
        shown.lines().any(|line| line.contains("n3") && line.contains("50MiB") && line.contains("this node")),
        "{shown}"
    );
    says(&cluster, "exchange resume");
    says(&cluster, "exchange rate default");
    assert_eq!(cluster.nodes[0].get("/v1/exchange")["nodes"], Value::Null);
    refused(cluster.shardctl().args(["exchange", "pause", "--node", "n9"]), "n9 is not among", 1);
    refused(cluster.shardctl().args(["exchange", "rate", "0"]), "`unlimited`", 2);

    the_balancer_is_set(&cluster);

    let warmed = says(&cluster, "warm digits");
    println!("warm: {warmed:?}");
    let last = warmed.last().expect("it ends");
    assert_eq!((&last["done"], &last["lacking_grains"]), (&true.into(), &0.into()));
    let (filled, from_store) = (cache_bytes(&cluster), cluster.origin_bytes());
    assert!(filled.iter().all(|bytes| *bytes > 0), "{filled:?}");
    let would_go = || -> u64 {
        let nodes = says(&cluster, "evict digits --dry-run").remove(0);
        let bytes = |node: &Value| node["evicted"]["bytes"].as_u64().expect("a number");
        nodes.as_array().expect("a list").iter().map(bytes).sum()
    };
    let all: u64 = filled.iter().sum();
    wait_until("all of it would go, as no rank reads it", || would_go() == all);
    assert_eq!(cache_bytes(&cluster), filled, "and nothing went");
    refused(cluster.shardctl().arg("evict"), "--all", 2);

    let reading = Reading::alone(&plan, EPOCHS);
    let ranks = cluster.read(&reading);
    let mut told = false;
    let delivered = Delivered::collect(ranks, |epoch, _| {
        if epoch == 1 && !told {
            told = true;
            assert_eq!(cluster.origin_bytes(), from_store, "warm grains were read from the store again");
            while_it_is_read(&cluster);
        }
    });
    assert!(told);
    let first = delivered.epochs[&0];
    assert_eq!(delivered.epochs.len(), EPOCHS as usize);
    assert!(delivered.epochs.values().all(|epoch| *epoch == first), "each sample once, in every epoch");

    let shown = run(cluster.shardctl().args(["exchange", "show", "r"]));
    assert!(shown.contains("exchange of r") && shown.contains("after epoch"), "{shown}");
    wait_until("nothing is left in the caches when no rank reads", || {
        says(&cluster, "evict --all");
        cache_bytes(&cluster) == [0; 3]
    });
}

fn the_balancer_is_set(cluster: &Cluster) {
    assert_eq!(says(cluster, "balancer show")[0]["settings"]["mode"], "observe");
    let on = says(cluster, "balancer on --per-minute 2GiB").remove(0);
    assert_eq!(on["settings"]["bytes_per_minute"], 2_u64 << 30);
    let modes = || -> Vec<Value> {
        let mode = |node: &Node| node.get("/v1/balancer")["settings"]["mode"].clone();
        cluster.nodes.iter().map(mode).collect()
    };
    wait_until("all nodes know", || modes() == ["on"; 3]);
    let shown = run(cluster.shardctl().args(["balancer", "show"]));
    assert!(
        shown.contains("mode on: decisions are carried out, 2.0 GiB a minute for each node at most"),
        "{shown}"
    );
    assert!(shown.contains("all nodes have full shares"), "{shown}");
    says(cluster, "balancer off");
    let again = says(cluster, "balancer observe").remove(0);
    assert_eq!(again["settings"]["bytes_per_minute"], 2_u64 << 30, "the budget stays");
    refused(cluster.shardctl().args(["balancer", "on", "--per-minute", "much"]), "much", 2);
}

fn while_it_is_read(cluster: &Cluster) {
    says(cluster, "exchange pause");
    wait_until("chunks wait", || waits(cluster));
    let shown = says(cluster, "exchange show r").remove(0);
    assert!(
        shown["nodes"].as_array().expect("a list").iter().all(|node| node["now"]["paused"] == true),
        "{shown}"
    );
    says(cluster, "exchange resume --node n2");
    wait_until("one continues and the others do not", || paused(cluster) == [true, false, true]);
    says(cluster, "exchange resume");
    wait_until("nothing waits any more", || !waits(cluster) && paused(cluster) == [false; 3]);

    let placed = says(cluster, "explain placement r").remove(0);
    let whys: Vec<&Value> =
        placed["partitions"].as_array().expect("a list").iter().map(|partition| &partition["why"]).collect();
    assert!(whys.contains(&&"its_rank".into()) && whys.contains(&&"rank_share".into()), "{whys:?}");
    assert!(placed["remote_bytes_per_epoch"].as_u64() > Some(0), "two thirds are read elsewhere");
    let shown = run(cluster.shardctl().args(["explain", "placement", "r"]));
    assert!(shown.contains("its rank reads there") && shown.contains("nothing is to move"), "{shown}");

    let moves = |command: &str| says(cluster, command).remove(0)["moves"].as_array().expect("a list").clone();
    assert_eq!(moves("rebalance r --dry-run"), [] as [Value; 0]);
    let without = moves("rebalance r --dry-run --without n3");
    let away = without.iter().filter(|step| step["from"] == "n3" && step["because"] == "host_drains");
    assert!(away.count() >= whys.len() / 3, "{without:?}");
    assert!(without.iter().all(|step| step["to"] != "n3"), "{without:?}");
    says(cluster, "drain n3 --no-wait");
    let rebalanced = says(cluster, "rebalance r");
    println!("rebalance: {rebalanced:?}");
    assert_eq!(rebalanced.last().expect("it ends")["done"], true);
    let placed = says(cluster, "explain placement r").remove(0);
    assert!(
        placed["partitions"].as_array().expect("a list").iter().all(|partition| partition["node"] != "n3")
    );
    says(cluster, "join n3");

    let told = says(cluster, "explain move r 7 --from 0 --epochs 12").remove(0);
    let stops = told.as_array().expect("a list");
    for pair in stops.windows(2) {
        let next = match &pair[0]["leaves"] {
            Value::Null => &pair[0]["partition"],
            leaves => &leaves["to"],
        };
        assert_eq!(&pair[1]["partition"], next);
    }
    assert_eq!(stops.len(), 12);
    let misses = says(cluster, "explain misses r").remove(0);
    println!("misses: {misses}");
    assert_eq!(misses.as_array().map(Vec::len), Some(3));
    assert!(!run(cluster.shardctl().args(["explain", "misses", "r"])).is_empty());

    says(cluster, "evict --all");
    refused(cluster.shardctl().args(["warm", "r"]), "ranks of run r are attached", 1);
    refused(cluster.shardctl().args(["rebalance", "s"]), "run s does not exist", 1);
    refused(cluster.shardctl().args(["warm", "nothing"]), "there is no plan nothing", 1);
}
