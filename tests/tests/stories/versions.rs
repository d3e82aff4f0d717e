//! Versions in a running cluster: listed by any node, readable while their names change, garbage-collected
//! beside a run that needs them.

use shardd_tests::{Cluster, Delivered, Reading, digits, error_line, run, wait_until};

/// Enough that the first rank cannot have ended when its second epoch is seen: its lines fill a pipe (64 KiB)
/// several times.
const EPOCHS: u32 = 60;

#[test]
fn a_run_goes_on_over_a_version_whose_name_is_gone() {
    let cluster = Cluster::start(2);
    cluster.ask(0, &["ingest", &digits("train"), "--name", "digits", "--shard-size", "16KiB", "-m", "first"]);
    let plan = cluster.ask(1, &["partition", "--q", "0.1", "--partitions", "4", "digits"]);
    let second = cluster.ask(1, &["ingest", &digits("test"), "--name", "digits", "-m", "second"]);
    let log = cluster.ask(0, &["log", "digits"]);
    assert_eq!((&log[0]["version"], &log[0]["message"]), (&second["version"], &"second".into()));
    assert_eq!((&log[1]["version"], &log[1]["number"]), (&plan["version"], &1.into()));

    let reading = Reading {
        plan: plan["plan"].as_str().expect("an id").to_owned(),
        run: "r".to_owned(),
        world: 2,
        virtual_ranks: 4,
        batch_size: 50,
        start_epoch: 0,
        end_epoch: EPOCHS,
    };
    let mut collected = None;
    let delivered = Delivered::collect(cluster.read(&reading), |epoch, step| {
        if (epoch, step) != (1, 0) {
            return;
        }
        // The name goes, and all that only it reached; the run keeps its samples.
        cluster.ask(1, &["rm", "digits", "--yes"]);
        let listed =
            cluster.shardctl().args(["plan", "rm", "--plan", &reading.plan]).output().expect("starts");
        assert!(error_line(&listed).contains("is that of run r"), "{}", error_line(&listed));
        let running = cluster.shardctl().args(["runs", "rm", "r", "--yes"]).output().expect("starts");
        assert!(
            error_line(&running).contains("run r is running: stop its ranks"),
            "{}",
            error_line(&running)
        );
        collected = Some(cluster.ask(1, &["gc", "--older-than", "0s", "--delete"]));
    });
    let collected = collected.expect("epoch 1 began");
    assert_eq!(collected["versions"][0]["version"], second["version"]);
    assert_eq!((&collected["manifests"]["objects"], &collected["plans"]["objects"]), (&1.into(), &0.into()));
    assert!(delivered.epochs.values().all(|(samples, _)| *samples == 1437), "{:?}", delivered.epochs);
    assert_eq!(delivered.epochs.len(), EPOCHS as usize);

    let version = plan["version"].as_str().expect("an id");
    let gone = cluster.shardctl().args(["info", &format!("digits@{version}")]).output().expect("starts");
    assert!(error_line(&gone).contains("there is no dataset digits"), "{}", error_line(&gone));
    cluster.ask(0, &["ingest", &digits("train"), "--name", "digits", "--shard-size", "16KiB"]);
    assert_eq!(
        cluster.ask(1, &["info", "digits"])["version"],
        plan["version"],
        "nothing else of it had changed"
    );

    // The data of a training can be deleted, one holder after the other.
    let the_run = || cluster.ask(1, &["runs", "ls"])[0].clone();
    wait_until("the ranks have left", || the_run()["state"] == "finished");
    let told = the_run();
    assert_eq!(
        (&told["id"], &told["dataset"], &told["plan"]),
        (&"r".into(), &"digits".into(), &plan["plan"])
    );
    assert_eq!(told["details"]["epochs"], EPOCHS);
    cluster.ask(1, &["rm", "digits", "--yes"]);
    let kept = cluster.ask(0, &["gc", "--older-than", "0s"]);
    assert_eq!(kept["shards"]["objects"], 0, "the run keeps them");
    let asked = cluster.shardctl().args(["runs", "rm", "r"]).output().expect("starts");
    let audits = format!("{} audits of {EPOCHS} epochs", 2 * EPOCHS);
    assert!(error_line(&asked).contains(&audits), "{}", error_line(&asked));
    cluster.ask(0, &["runs", "rm", "r", "--yes"]);
    let caches_are_empty = || {
        let picture = cluster.ask(0, &["status"]);
        let nodes = picture["nodes"].as_array().expect("nodes").clone();
        nodes.iter().all(|node| node["status"]["cache_grains"] == 0)
    };
    wait_until("the nodes have dropped their grains for it", caches_are_empty);
    cluster.ask(1, &["plan", "rm", "--plan", &reading.plan]);
    let freed = cluster.ask(0, &["gc", "--older-than", "0s", "--delete"]);
    assert_eq!(
        (&freed["versions"][0]["version"], &freed["reached"]["objects"]),
        (&plan["version"], &0.into())
    );
    assert!(cluster.ask(0, &["runs", "ls"]).as_array().is_some_and(Vec::is_empty));
}

#[test]
fn of_two_ingests_of_one_name_one_wins_and_the_other_is_told() {
    let cluster = Cluster::start(1);
    let ingest = |part: &str| {
        let mut command = cluster.shardctl();
        command.args(["ingest", &digits(part), "--name", "digits"]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().expect("shardctl starts")
    };
    let running = [ingest("train"), ingest("test")];
    let outcomes = running.map(|process| process.wait_with_output().expect("it ends"));
    let log = cluster.ask(0, &["log", "digits"]);
    let won = outcomes.iter().filter(|outcome| outcome.status.success()).count();
    // One may have ended before the other looked at the files; then both have, one after the other.
    assert_eq!(log.as_array().expect("commits").len(), won);
    for lost in outcomes.iter().filter(|outcome| !outcome.status.success()) {
        let line = error_line(lost);
        let expected = "dataset digits was expected at no version, but is at version ";
        assert!(line.contains(expected) && !line.contains('\n'), "{line}");
    }
    assert!(won > 0, "{}", error_line(&outcomes[0]));
    run(cluster.shardctl().args(["verify", "digits"]));
}
