//! Nodes whose store is a service elsewhere: real servers that speak S3, and a network in front of them that fails.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use shardd_client::origin::{Origin, conformance};
use shardd_client::stores::StoreOptions;
use shardd_tests::faults::{FAULTS, FaultyProxy};
use shardd_tests::s3::{FOREIGN, S3};
use shardd_tests::{Cluster, Delivered, Reading, binary, error_line, is_quick, run, shared_data};

/// The bucket that the suite is run in, by this process started anew.
const BUCKET: &str = "SHARDD_TESTS_BUCKET";

/// Runs the suite of stores in a process that has the server's keys in its environment.
fn keeps_the_promises(s3: &S3) {
    let this = std::env::current_exe().expect("a test knows its own path");
    let mut command = Command::new(this);
    command.args([
        "--exact",
        "the_bucket_of_the_environment_keeps_the_promises_of_a_store",
        "--ignored",
        "--nocapture",
    ]);
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
fn moto_keeps_the_promises_of_a_store() {
    let Some(s3) = S3::empty_moto() else { return };
    keeps_the_promises(&s3);
}

#[test]
fn s3s_fs_keeps_the_promises_of_a_store() {
    let Some(s3) = S3::files() else { return };
    keeps_the_promises(&s3);
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
        ("s3://data/x?versionId=1", nothing, "is no store", "s3://BUCKET/FOLDER"),
    ];
    for (url, variable, said, way_out) in cases {
        let line = refused(&s3, variable, &["--store", url]);
        assert!(line.contains(url) && line.contains(said) && line.contains(way_out), "{line}");
    }
    let line = refused(&s3, nothing, &["--store", "s3://data", "--store-ca", "/not/there.pem"]);
    assert!(line.contains("/not/there.pem: cannot be trusted"), "{line}");
}

/// What is ingested, and how.
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

/// Ingests into a cluster and reads one epoch of it; the version, what was delivered, and the samples.
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
        // Once, and again for what a reader that was held up did not forward in time: single grains, by whoever wanted them.
        assert!((bytes as f64) < 3.0 * dataset as f64, "{bytes} of {dataset}");
    }
}
