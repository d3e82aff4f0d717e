//! Stores that are a service elsewhere, with nodes and without: real servers that speak S3, and a network in front of them
//! that fails.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use serde_json::Value;
use shardd_store::catalog::{LocalCatalog, conformance as catalog_conformance};
use shardd_store::metastore::{BucketMetastore, Metastore, conformance as metastore_conformance};
use shardd_store::origin::{Origin, conformance};
use shardd_store::stores::StoreOptions;
use shardd_tests::faults::{FAULTS, FaultyProxy};
use shardd_tests::s3::{FOREIGN, S3};
use shardd_tests::{
    Cluster, Delivered, Node, Reading, binary, digits, error_line, is_quick, run, shared_data,
};

/// The bucket that the suite is run in, by this process started again.
const BUCKET: &str = "SHARDD_TESTS_BUCKET";

/// Runs a suite in a process that has the server's keys in its environment.
fn keeps_the_promises(s3: &S3, suite: &str) {
    let this = std::env::current_exe().expect("a test knows its own path");
    let mut command = Command::new(this);
    command.args(["--exact", &format!("stores::{suite}"), "--ignored", "--nocapture"]);
    FOREIGN.iter().for_each(|variable| _ = command.env_remove(variable));
    let printed = run(command.envs(s3.variables()).env(BUCKET, "s3://data"));
    assert!(printed.contains("1 passed"), "{printed}");
    print!("{printed}");
}

#[test]
#[ignore = "run by the tests below, with a server in the environment"]
fn the_bucket_of_the_environment_keeps_the_promises_of_a_store() {
    let bucket = std::env::var(BUCKET).expect("the bucket to use");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let count = std::cell::Cell::new(0);
    runtime.expect("a runtime").block_on(conformance::all(async || {
        count.set(count.get() + 1);
        println!("store {}", count.get());
        Origin::open_with(&format!("{bucket}/stores/{}", count.get()), &StoreOptions::default())
            .expect("opens")
    }));
}

#[test]
#[ignore = "run by the tests below, with a server in the environment"]
fn the_bucket_of_the_environment_keeps_the_promises_of_a_metastore_and_a_catalog() {
    let bucket = std::env::var(BUCKET).expect("the bucket to use");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let count = std::cell::Cell::new(0);
    runtime.expect("a runtime").block_on(metastore_conformance::all(async || {
        count.set(count.get() + 1);
        println!("metastore {}", count.get());
        let origin = Origin::open_with(&format!("{bucket}/names/{}", count.get()), &StoreOptions::default());
        Arc::new(BucketMetastore::new(Arc::new(origin.expect("opens")))) as Arc<dyn Metastore>
    }));
    println!("catalog");
    let url = format!("{bucket}/catalog");
    catalog_conformance(&LocalCatalog::open_url(&url, &StoreOptions::default()).expect("opens"));
}

const STORE: &str = "the_bucket_of_the_environment_keeps_the_promises_of_a_store";
const NAMES: &str = "the_bucket_of_the_environment_keeps_the_promises_of_a_metastore_and_a_catalog";

#[test]
fn moto_keeps_the_promises_of_a_store() {
    let Some(s3) = S3::empty_moto() else { return };
    keeps_the_promises(&s3, STORE);
}

#[test]
fn s3s_fs_keeps_the_promises_of_a_store() {
    let Some(s3) = S3::files() else { return };
    keeps_the_promises(&s3, STORE);
}

#[test]
fn moto_keeps_the_promises_of_a_metastore_and_a_catalog() {
    let Some(s3) = S3::empty_moto() else { return };
    keeps_the_promises(&s3, NAMES);
}

/// A person without nodes, whose home is a directory of its own.
struct Person<'a> {
    s3: &'a S3,
    home: tempfile::TempDir,
    store: &'a str,
}

impl<'a> Person<'a> {
    fn at(s3: &'a S3, store: &'a str) -> Self {
        Person { s3, home: tempfile::tempdir().expect("a temporary directory can be made"), store }
    }

    fn shardctl(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary("shardctl"));
        command.current_dir(self.home.path()).env("HOME", self.home.path()).env("TMPDIR", self.home.path());
        FOREIGN.iter().for_each(|variable| _ = command.env_remove(variable));
        command.envs(self.s3.variables()).args(["--store", self.store]).args(words);
        command
    }

    fn said(&self, words: &[&str]) -> String {
        run(&mut self.shardctl(words))
    }

    fn json(&self, words: &[&str]) -> Value {
        let printed = self.said(&[&["--json"], words].concat());
        serde_json::from_str(printed.lines().last().expect("a line")).expect("JSON")
    }

    fn refused(&self, words: &[&str]) -> String {
        let output = self.shardctl(words).output().expect("shardctl starts");
        let line = error_line(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {line}");
        assert_eq!(line.lines().count(), 1, "{words:?}: {line}");
        line
    }
}

#[test]
fn a_bucket_is_worked_on_without_any_node() {
    let Some(s3) = S3::empty_moto() else { return };
    let me = Person::at(&s3, "s3://data/lab");
    assert!(me.refused(&["ls"]).contains("no dataset that was put without a node in s3://data/lab"));
    let missing = Person::at(&s3, "s3://missing/lab");
    assert!(missing.refused(&["ls"]).contains("no such bucket"));
    assert!(missing.refused(&["ingest", &digits("test"), "--name", "digits"]).contains("no such bucket"));

    let here = Person::at(&s3, "here");
    for person in [&me, &here] {
        person.said(&["ingest", &digits("test"), "--name", "digits"]);
        person.said(&["tag", "digits", "first"]);
        person.said(&["append", "digits", &digits("train")]);
        person.said(&["partition", "digits", "--q", "0.1"]);
    }
    // Another one, who knows the bucket only, finds all of it.
    let other = Person::at(&s3, "s3://data/lab");
    let facts = |person: &Person, words: &[&str]| timeless(person.json(words));
    for words in [&["ls"][..], &["tag", "digits"], &["plan", "ls"]] {
        assert_eq!(facts(&other, words), facts(&here, words), "{words:?}");
    }
    assert_eq!(other.json(&["log", "digits"]).as_array().map(Vec::len), Some(2));
    let differs = other.shardctl(&["diff", "digits@first", "digits"]).output().expect("it starts");
    assert_eq!(differs.status.code(), Some(1), "{}", error_line(&differs));
    assert!(String::from_utf8_lossy(&differs.stdout).contains("digits"));
    let read = |person: &Person| {
        let lines = person.said(&["--json", "read"]);
        lines.lines().filter(|line| line.contains("digest")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(read(&other)[..8], read(&here)[..8]);
    other.said(&["verify", "digits"]);
    other.said(&["export", "digits@first", "out", "--format", "parquet"]);
    assert!(other.home.path().join("out").is_dir());
    assert_eq!(leftovers(other.home.path()), Vec::<String>::new(), "no read bytes stay");

    other.said(&["rm", "digits", "--yes"]);
    let gone = other.json(&["gc", "--delete", "--older-than", "0s"]);
    assert_eq!((&gone["dry_run"], &gone["unknown"]["objects"]), (&false.into(), &0.into()), "{gone}");
    assert_eq!(me.json(&["tag", "digits"]).as_array().map(Vec::len), Some(1), "names outlive a gc");
    me.said(&["restore", "digits@first"]);
    me.said(&["verify", "digits"]);

    // A node that has the same bucket keeps its own names, and neither takes the other's objects for garbage.
    let data = tempfile::tempdir().expect("a temporary directory can be made");
    let mut variables: Vec<(&str, String)> =
        s3.variables().map(|(name, value)| (name, value.to_owned())).to_vec();
    variables.push(("SHARDD_STORE", "s3://data/lab".to_owned()));
    let node = Node::start_with(data.path(), "n1", None, &variables);
    assert_eq!(node.get("/v1/datasets"), serde_json::json!([]));
    let to_node = |words: &[&str]| {
        let mut command = Command::new(binary("shardctl"));
        FOREIGN.iter().for_each(|variable| _ = command.env_remove(variable));
        command.args(["--server", &node.http]).args(words);
        command
    };
    run(&mut to_node(&["ingest", &digits("test"), "--name", "theirs"]));
    let output = to_node(&["gc", "--delete"]).output().expect("shardctl starts");
    let line = error_line(&output);
    assert!(!output.status.success() && line.contains("is also that of catalog"), "{line}");
    assert!(me.refused(&["gc", "--delete"]).contains("is also that of catalog"));
    assert!(!me.said(&["ls"]).contains("theirs"));
}

#[test]
fn a_web_server_that_shows_a_bucket_is_read_and_not_changed() {
    let empty = tempfile::tempdir().expect("a temporary directory can be made");
    let Some(s3) = S3::moto(empty.path(), &["--open"]) else { return };
    let owner = Person::at(&s3, "s3://data/lab");
    owner.said(&["ingest", &digits("test"), "--name", "digits"]);
    owner.said(&["partition", "digits", "--q", "0.1"]);
    let url = format!("{}/data/lab", s3.endpoint);
    let visitor = Person::at(&s3, &url);
    assert_eq!(visitor.json(&["ls"]), owner.json(&["ls"]));
    assert_eq!(
        visitor.said(&["--json", "read", "--rows"]).lines().next(),
        owner.said(&["--json", "read", "--rows"]).lines().next()
    );
    visitor.said(&["verify", "digits"]);
    for words in
        [&["ingest", &digits("train"), "--name", "other"][..], &["tag", "digits", "x"], &["gc", "--delete"]]
    {
        let line = visitor.refused(words);
        assert!(line.contains("a web server is only read"), "{words:?}: {line}");
    }
    let nothing = format!("{}/data/nothing", s3.endpoint);
    let line = Person::at(&s3, &nothing).refused(&["ls"]);
    assert!(line.ends_with("name another with --store"), "{line}");
    let mut train = Command::new(binary("shardtrain"));
    FOREIGN.iter().for_each(|variable| _ = train.env_remove(variable));
    train.envs(s3.variables()).env("TMPDIR", empty.path());
    train.args(["--store", "s3://data/lab", "--dataset", "digits", "--epochs", "1"]);
    run(&mut train);
    assert_eq!(leftovers(empty.path()), Vec::<String>::new());
}

#[test]
fn checkpoints_of_a_training_are_kept_in_a_bucket() {
    for s3 in [S3::files(), S3::empty_moto()].into_iter().flatten() {
        // The data is in a directory: not every server can keep names.
        let me = Person::at(&s3, "lab");
        me.said(&["ingest", &digits("train"), "--name", "digits"]);
        let trained = |name: &str, more: &[&str]| -> Value {
            let report = me.home.path().join(name);
            let mut train = Command::new(binary("shardtrain"));
            FOREIGN.iter().for_each(|variable| _ = train.env_remove(variable));
            train.envs(s3.variables()).env("TMPDIR", me.home.path()).env("HOME", me.home.path());
            train.arg("--store").arg(me.home.path().join("lab"));
            train.args(["--dataset", "digits", "--epochs", "1"]);
            run(train.args(["--virtual-ranks", "2", "--report"]).arg(&report).args(more));
            serde_json::from_slice(&std::fs::read(report).expect("it is written")).expect("JSON")
        };
        let whole = trained("whole", &[]);
        let kept = ["--checkpoints", "s3://data/kept", "--checkpoint-every", "8", "--keep-checkpoints", "2"];
        assert_eq!(trained("first", &kept)["resumed_from"], Value::Null);
        let last = whole["steps"].as_u64().expect("a number") / 8 * 8;
        let step = last.to_string();
        let back = trained("back", &[&kept[..], &["--resume", &step]].concat());
        assert_eq!(back["resumed_from"].as_u64(), Some(last), "not the one of the end");
        let again = trained("again", &kept);
        assert_eq!(again["resumed_from"], whole["steps"], "nothing is left to do");
        for report in [back, again] {
            assert_eq!(report["weights_digest"], whole["weights_digest"]);
            assert_eq!(report["loss_per_epoch"], whole["loss_per_epoch"]);
        }
    }
}

/// Without times, which differ, and commits, which name theirs.
fn timeless(mut value: Value) -> Value {
    match &mut value {
        Value::Array(list) => list.iter_mut().for_each(|one| *one = timeless(one.take())),
        Value::Object(members) => {
            ["committed_at", "commit", "tagged_at", "created"]
                .iter()
                .for_each(|name| _ = members.remove(*name));
            members.values_mut().for_each(|one| *one = timeless(one.take()));
        }
        _ => {}
    }
    value
}

/// What begins as temporary files of shardd do.
fn leftovers(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("readable").map(|entry| entry.expect("readable").file_name());
    let names = entries.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("shardd-") && !name.starts_with("shardd-ingest-")).collect()
}

#[test]
fn of_ingests_of_one_name_at_the_same_time_those_that_come_late_are_told() {
    let Some(s3) = S3::empty_moto() else { return };
    let me = Person::at(&s3, "s3://data/race");
    let parts = ["0..1/4", "1..2/4", "2..3/4", "3..4/4"];
    let start = |part: &&str| {
        let mut command = me.shardctl(&["ingest", &digits("test"), "--name", "digits", "--take", part]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().expect("shardctl starts")
    };
    let running: Vec<_> = parts.iter().map(start).collect();
    let ended: Vec<Output> =
        running.into_iter().map(|process| process.wait_with_output().expect("it ends")).collect();
    let (done, late): (Vec<_>, Vec<_>) = ended.into_iter().partition(|output| output.status.success());
    for output in &late {
        let line = error_line(output);
        println!("{line}");
        assert!(
            line.contains("digits was expected at") && line.contains("someone else changed it"),
            "{line}"
        );
    }
    println!("{} of {} ingests were done", done.len(), parts.len());
    assert!(!done.is_empty(), "one comes first");
    assert_eq!(
        me.json(&["log", "digits"]).as_array().map(Vec::len),
        Some(done.len()),
        "none was overwritten"
    );
}

#[test]
fn over_a_network_that_fails_each_change_of_names_is_made_once() {
    let Some(s3) = S3::empty_moto() else { return };
    let me = Person::at(&s3, "s3://data/lab");
    me.said(&["ingest", &digits("test"), "--name", "digits"]);
    me.said(&["append", "digits", &digits("train")]);
    let proxy = FaultyProxy::start(&s3.endpoint, 20, 2);
    const CHANGES: usize = 8;
    for _ in 0..CHANGES {
        run(me.shardctl(&["restore", "digits@~1"]).env("AWS_ENDPOINT_URL", proxy.endpoint()));
    }
    let (requests, faults) = proxy.seen();
    println!("the proxy saw {requests} requests; of them failed {faults:?}");
    assert!(!faults.is_empty(), "some failed");
    assert_eq!(me.json(&["log", "digits"]).as_array().map(Vec::len), Some(2 + CHANGES));
    assert_eq!(me.json(&["gc"])["young"]["objects"], 0, "no commit was made twice");
}

#[test]
fn a_server_whose_conditions_do_not_hold_is_given_no_names() {
    let Some(s3) = S3::files() else { return };
    let me = Person::at(&s3, "s3://data/lab");
    let line = me.refused(&["ingest", &digits("test"), "--name", "digits"]);
    println!("{line}");
    assert!(line.contains("its conditional puts do not hold"), "{line}");
    assert!(line.contains("`shardd serve --store`"), "{line}");
    assert!(me.refused(&["ls"]).contains("no dataset that was put without a node"));
}

/// What a node says that ends at once.
fn refused(s3: &S3, replaced: (&str, &str), more: &[&str]) -> String {
    let data = tempfile::tempdir().expect("a temporary directory can be made");
    let mut command = Command::new(binary("shardd"));
    command.args(["serve", "--http", "127.0.0.1:0", "--data"]).arg(data.path().join("n1")).args(more);
    FOREIGN.iter().for_each(|variable| _ = command.env_remove(variable));
    let output = command.envs(s3.variables()).envs([replaced]).output().expect("shardd starts");
    let line = error_line(&output);
    assert_eq!(output.status.code(), Some(1), "{line}");
    line.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn a_store_that_does_not_let_a_node_in_is_refused_when_it_starts() {
    let Some(s3) = S3::empty_moto() else { return };
    let nothing = ("AWS_UNUSED", "");
    let cases = [
        ("s3://data/x", ("AWS_SECRET_ACCESS_KEY", "wrong"), "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
        ("s3://missing/x", nothing, "no such bucket", "AWS_ENDPOINT_URL"),
        ("s3://closed/x", nothing, "AccessDenied", "AWS_PROFILE"),
        ("s3://data/x", ("AWS_PROFILE", "nobody"), "profile \"nobody\" is not in", "check AWS_PROFILE"),
        ("s3://data/x?versionId=1", nothing, "is not a store", "s3://BUCKET/FOLDER"),
    ];
    for (url, variable, said, way_out) in cases {
        let line = refused(&s3, variable, &["--store", url]);
        assert!(line.contains(url) && line.contains(said) && line.contains(way_out), "{line}");
    }
    let line = refused(&s3, nothing, &["--store", "s3://data", "--store-ca", "/not/there.pem"]);
    assert!(line.contains("/not/there.pem: cannot be trusted"), "{line}");
}

#[test]
fn a_node_without_credentials_says_so_at_once_and_again_when_the_store_does_not_answer() {
    let root = tempfile::tempdir().expect("a temporary directory can be made");
    let mut command = Command::new(binary("shardd"));
    command.args(["serve", "--http", "127.0.0.1:0", "--data"]).arg(root.path().join("n1"));
    command.args(["--store", "s3://data/x", "--store-endpoint", "http://127.0.0.1:1"]);
    for variable in std::env::vars_os().map(|(name, _)| name) {
        if variable.to_string_lossy().starts_with("AWS_") {
            command.env_remove(variable);
        }
    }
    FOREIGN.iter().for_each(|variable| _ = command.env_remove(variable));
    let mut node = command
        .env("HOME", root.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("shardd starts");
    let lines = BufReader::new(node.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let mut said: Vec<String> = Vec::new();
    for line in lines {
        said.push(line);
        if said.last().is_some_and(|line| line.contains("starting without it")) {
            break;
        }
    }
    node.kill().expect("a child can be killed");
    node.wait().expect("a killed child is reaped");
    assert!(said.iter().any(|line| line.contains("no AWS_ACCESS_KEY_ID in the environment")), "{said:?}");
    // In a cloud the metadata service may answer; then it is the store that cannot be reached.
    let last = said.last().map_or("", String::as_str);
    assert!(
        !last.contains("does not answer; starting") || last.contains("set AWS_ACCESS_KEY_ID and AWS_SECRET"),
        "{said:?}"
    );
}

/// The inputs, and the options.
type Input = (PathBuf, &'static [&'static str]);

/// CIFAR-10, or the digits if it is not here or time is short.
fn input() -> Input {
    match (is_quick(), shared_data("cifar10-jpeg.tar.gz")) {
        (false, Some(cifar)) => (cifar, &["--under", "train"]),
        _ => (
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../client/data/digits/train.parquet"),
            &["--shard-size", "64KiB"],
        ),
    }
}

/// Ingests into a cluster and reads one epoch of it; the version, the deliveries, and the samples.
fn ingest_and_read(cluster: &Cluster, (input, options): &Input) -> (String, Delivered, u64) {
    let printed =
        run(cluster.shardctl().args(["--json", "ingest", "--name", "set"]).arg(input).args(*options));
    let done: Value = serde_json::from_str(printed.lines().last().expect("a line")).expect("JSON");
    let made = run(cluster.shardctl().args(["--json", "partition", "--q", "0.1", "--partitions", "12"]));
    let plan: Value = serde_json::from_str(&made).expect("JSON");
    let read = Reading {
        plan: plan["plan"].as_str().expect("an id").to_owned(),
        run: "read".to_owned(),
        world: 3,
        virtual_ranks: 3,
        batch_size: 32,
        start_epoch: 0,
        end_epoch: 1,
    };
    let delivered = Delivered::collect(cluster.read(&read), |_, _| {});
    (
        done["version"].as_str().expect("an id").to_owned(),
        delivered,
        done["samples"].as_u64().expect("a number"),
    )
}

#[test]
fn with_a_fifth_of_all_requests_failing_nothing_is_lost() {
    let Some(s3) = S3::empty_moto() else { return };
    let input = input();
    let (version, undisturbed, samples) = ingest_and_read(&Cluster::start(3), &input);
    let proxy = FaultyProxy::start(&s3.endpoint, 20, 1);
    let mut variables: Vec<(&str, String)> =
        s3.variables().map(|(name, value)| (name, value.to_owned())).to_vec();
    variables[0].1 = proxy.endpoint();
    variables.push(("SHARDD_STORE", "s3://data/shardd".to_owned()));
    let cluster = Cluster::start_with(3, &variables);
    let (faulty, delivered, _) = ingest_and_read(&cluster, &input);
    assert_eq!(faulty, version);
    assert_eq!(delivered, undisturbed);
    assert_eq!(delivered.epochs[&0].0, samples);

    let (requests, faults) = proxy.seen();
    println!("the proxy saw {requests} requests; of them failed {faults:?}");
    let (mut bytes, mut failed, mut reread) = (0, 0, 0);
    for node in &cluster.nodes {
        let status = node.get("/v1/status");
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{status}"));
        bytes += number(&status["origin_bytes"]);
        failed += number(&status["origin_wire"]["failed"]);
        reread += number(&status["origin_reread"]);
        println!("{}: {}", node.id, status["origin_wire"]);
    }
    let info: Value =
        serde_json::from_str(&run(cluster.shardctl().args(["--json", "info", "set"]))).expect("JSON");
    let dataset = info["bytes"].as_u64().expect("a number");
    println!(
        "{bytes} bytes of shards were read from the store, {:.3} x the dataset; {failed} requests failed, {reread} objects were read again",
        bytes as f64 / dataset as f64
    );
    assert!(failed > 0, "faults are counted");
    // With a handful of shards and requests, chance decides.
    if dataset > 1 << 20 {
        assert!(FAULTS.iter().all(|fault| faults.contains_key(fault)), "{faults:?}");
        // Once, and again for grains that a delayed reader did not forward in time: single ones, by the ranks
        // that wanted them.
        assert!((bytes as f64) < 3.0 * dataset as f64, "{bytes} of {dataset}");
    }
}
