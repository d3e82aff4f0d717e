//! What a training asks of its store: predicted by `shardctl cost`, counted by the nodes, and counted at a real S3 server. And a
//! store that refuses requests because there are too many.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::Value;
use shardd_store::origin::{ObjectKind, Origin, StoredObject};
use shardd_store::stores::StoreOptions;
use shardd_tests::metered::{Budget, MeteredProxy, Seen};
use shardd_tests::s3::{FOREIGN, S3};
use shardd_tests::{Cluster, binary, digits, is_quick, look_until, run, wait_until};
use shardfmt::ShardWriter;

use super::in_store::in_bucket;

/// Two nodes over a bucket behind a proxy that counts.
struct Counted {
    cluster: Cluster,
    proxy: MeteredProxy,
    _s3: S3,
}

impl Counted {
    /// `None`, and a line that says so, where there is no S3 server.
    fn start(cache: &str) -> Option<Counted> {
        let s3 = S3::files()?;
        let proxy = MeteredProxy::start(&s3.endpoint);
        let mut variables: Vec<(&str, String)> =
            s3.variables().map(|(name, value)| (name, value.to_owned())).to_vec();
        variables[0].1 = proxy.endpoint();
        variables.push(("SHARDD_STORE", "s3://data/shardd".to_owned()));
        variables.push(("SHARDD_CACHE_SIZE", cache.to_owned()));
        let cluster = Cluster::start_with(2, &variables);
        Some(Counted { cluster, proxy, _s3: s3 })
    }

    fn shardctl(&self, words: &[&str]) -> Value {
        let printed = run(self.cluster.shardctl().arg("--json").args(words));
        serde_json::from_str(printed.lines().last().expect("a line")).expect("JSON")
    }

    /// The dataset `rows` in shards of this size, and the id of a plan for it.
    fn plan(&self, input: &Path, shard_size: &str) -> String {
        let input = input.to_str().expect("UTF-8");
        self.shardctl(&["ingest", input, "--name", "rows", "--shard-size", shard_size]);
        let plan = self.shardctl(&["partition", "rows", "--q", "0.1", "--partitions", "24"]);
        plan["plan"].as_str().expect("an id").to_owned()
    }

    /// Requests of nodes that are of no use to a prediction: reads that were asked twice because an answer was late.
    fn hedged(&self) -> u64 {
        let of = |node: &shardd_tests::Node| number(&node.get("/v1/status")["origin_wire"]["hedged"]);
        self.cluster.nodes.iter().map(of).sum()
    }

    /// Holds what `cost` says of a plan against the requests that the server sees of `training`, which reads it in run `r`.
    fn compare(&self, plan: &str, cache: &str, epochs: u64, training: impl FnOnce()) {
        let told = epochs.to_string();
        let predicted =
            self.shardctl(&["cost", "--plan", plan, "--nodes", "2", "--cache", cache, "--epochs", &told]);
        let (before, hedged) = (self.proxy.seen(), self.hedged());
        training();
        let (seen, hedged) = (self.proxy.seen().since(&before), self.hedged() - hedged);
        let parts = &predicted["predicted"];
        let all = |field: &str| {
            let epochs = parts["epochs"].as_array().expect("a list");
            epochs.iter().chain([&parts["run"]]).map(|asked| number(&asked[field])).sum::<u64>()
        };
        let (class_b, bytes) = (all("class_b"), all("read_bytes"));
        println!(
            "predicted {} of class A, {class_b} of class B, {bytes} bytes; the server saw {seen:?}, {hedged} of them hedged",
            all("class_a")
        );
        // Hedged reads are chance, and the nodes count them apart.
        assert_close("requests of class B", class_b, seen.class_b - hedged);
        assert_close("requests", all("class_a") + class_b, seen.requests() - hedged);
        let received = self.counts_are_the_servers(&seen, hedged);
        // Of hedged reads the server may have sent more than was taken.
        assert!(received <= seen.sent_bytes, "{received} bytes of {}", seen.sent_bytes);
        assert_close("bytes", bytes, received);
    }

    /// What the nodes counted, as a whole and by epoch, is what the server saw; the bytes of the run that the nodes received.
    fn counts_are_the_servers(&self, seen: &Seen, hedged: u64) -> u64 {
        let now = || {
            let before = self.proxy.seen();
            let mut counted = Seen::default();
            for node in &self.cluster.nodes {
                let wire = &node.get("/v1/status")["origin_wire"];
                counted.class_a += number(&wire["class_a"]);
                counted.class_b += number(&wire["class_b"]);
                counted.deletes += number(&wire["deletes"]);
                assert_eq!(
                    number(&wire["requests"]),
                    ["class_a", "class_b", "deletes"].map(|of| number(&wire[of])).iter().sum::<u64>()
                );
            }
            (before, counted)
        };
        // A node polls now and then, also between two looks; a hedged read may be given up before it reaches the server.
        let given_up = self.hedged() + 2;
        wait_until("nodes and server agree", || {
            let (seen, counted) = now();
            (seen.class_a, seen.deletes) == (counted.class_a, counted.deletes)
                && seen.class_b.abs_diff(counted.class_b) <= given_up
        });
        let cost = self.shardctl(&["cost", "--run", "r"]);
        let epochs = cost["counted"].as_array().expect("a list");
        let sum = |field: &str| epochs.iter().map(|epoch| number(&epoch[field])).sum::<u64>();
        println!("the nodes counted {} requests of class B in {} epochs", sum("class_b"), epochs.len());
        assert_eq!(epochs.len(), 2, "{epochs:?}");
        assert_close("requests by epoch", sum("class_b"), seen.class_b);
        assert!(sum("hedged") <= hedged, "{} of {hedged}", sum("hedged"));
        let price: f64 = epochs.iter().map(|epoch| epoch["price"].as_f64().expect("a price")).sum();
        let list_price = sum("class_a") as f64 * 5e-6 + sum("class_b") as f64 * 4e-7;
        assert!((price / list_price - 1.0).abs() < 1e-9, "{price} for {list_price}");
        let printed = run(self.cluster.shardctl().args(["cost", "--run", "r"]));
        println!("{printed}");
        assert!(printed.contains("counted") && printed.contains("storage of"), "{printed}");
        sum("received")
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Within five per cent.
fn assert_close(what: &str, predicted: u64, counted: u64) {
    let ratio = predicted as f64 / counted.max(1) as f64;
    println!("{what}: {predicted} predicted, {counted} counted, {ratio:.3}");
    assert!((ratio - 1.0).abs() <= 0.05, "{what}: {predicted} predicted, {counted} counted");
}

/// An .npy of rows of bytes that are all different.
fn write_rows(path: &Path, rows: usize, row_bytes: usize) {
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({rows}, {row_bytes}), }}");
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 11;
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend_from_slice(&(padded as u16 + 1).to_le_bytes());
    file.extend_from_slice(format!("{header:padded$}\n").as_bytes());
    let begin = file.len();
    file.resize(begin + rows * row_bytes, 0);
    blake3::Hasher::new().finalize_xof().fill(&mut file[begin..]);
    std::fs::write(path, file).expect("the rows can be written");
}

/// Ranks of `shardctl read`, in step as a training keeps them: each line has the digests of the rows of a step, so that few fit
/// into a pipe.
fn read_in_step(cluster: &Cluster, plan: &str, epochs: u64) {
    let start = |rank: usize| -> (Child, Lines<BufReader<ChildStdout>>) {
        let mut servers: Vec<&str> = cluster.nodes.iter().map(|node| node.http.as_str()).collect();
        servers.rotate_left(rank);
        let mut command = Command::new(binary("shardctl"));
        command.args([
            "--server",
            &servers.join(","),
            "--json",
            "read",
            "--plan",
            plan,
            "--run",
            "r",
            "--rows",
        ]);
        command.args(["--rank", &rank.to_string(), "--world", "2", "--virtual-ranks", "4"]);
        command.args(["--batch-size", "16", "--epochs", &epochs.to_string()]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("shardctl starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        (child, lines)
    };
    let (mut first, mut one) = start(0);
    let (mut second, mut other) = start(1);
    while let (Some(line), Some(_)) = (one.next(), other.next()) {
        line.expect("output is text");
    }
    for rank in [&mut first, &mut second] {
        assert!(rank.wait().expect("a child is reaped").success());
    }
}

#[test]
#[ignore = "it counts the requests of a machine that keeps up: run it alone (`--ignored costs`)"]
fn the_requests_of_a_training_whose_caches_hold_all_are_predicted() {
    let Some(counted) = Counted::start("1GiB") else { return };
    let rows = counted.cluster.root().join("rows.npy");
    write_rows(&rows, 24_000, 2048);
    let plan = counted.plan(&rows, "128KiB");
    counted.compare(&plan, "1GiB", 2, || read_in_step(&counted.cluster, &plan, 2));
}

#[test]
#[ignore = "it counts the requests of a machine that keeps up: run it alone (`--ignored costs`)"]
fn the_requests_of_a_training_whose_caches_are_too_small_are_predicted() {
    if is_quick() {
        return;
    }
    let Some(counted) = Counted::start("64MiB") else { return };
    let rows = counted.cluster.root().join("rows.npy");
    write_rows(&rows, 16_000, 12_288);
    let plan = counted.plan(&rows, "3MiB");
    counted.compare(&plan, "64MiB", 2, || read_in_step(&counted.cluster, &plan, 2));
}

#[test]
#[ignore = "it counts the requests of a machine that keeps up: run it alone (`--ignored costs`)"]
fn the_requests_of_nodes_at_rest_with_their_metadata_in_the_store_are_predicted() {
    let Some(s3) = S3::empty_moto() else { return };
    let proxy = MeteredProxy::start(&s3.endpoint);
    let mut variables = in_bucket(&s3);
    variables[0].1 = proxy.endpoint();
    let cluster = Cluster::start_with(2, &variables);
    run(cluster.shardctl().args(["ingest", &digits("train"), "--name", "digits"]));
    run(cluster.shardctl().args(["partition", "digits", "--q", "0.1", "--partitions", "24"]));
    let printed = run(cluster.shardctl().args(["--json", "cost", "--plan", "digits", "--nodes", "2"]));
    let predicted: Value = serde_json::from_str(&printed).expect("JSON");
    let per_hour = &predicted["predicted"]["per_hour"];

    let (before, began) = (proxy.seen(), Instant::now());
    let standstill =
        |time: Duration| assert!(time < Duration::from_secs(30), "nothing is asked: {:?}", proxy.seen());
    look_until(|| (proxy.seen().class_b - before.class_b >= 240).then_some(()), || proxy.seen(), standstill);
    let (seen, hours) = (proxy.seen().since(&before), began.elapsed().as_secs_f64() / 3600.0);
    println!("predicted for an hour {per_hour}; in {:.0} s the server saw {seen:?}", hours * 3600.0);
    let of = |field: &str| (number(&per_hour[field]) as f64 * hours).round() as u64;
    assert_close("requests of class B at rest", of("class_b"), seen.class_b);
    // A lease more or less is in that time.
    assert!(of("class_a").abs_diff(seen.class_a) <= 2, "{} predicted, {} seen", of("class_a"), seen.class_a);
}

/// The bucket of the tests below, in processes of their own.
const BUCKET: &str = "s3://data/shards";
/// Its shards, each a request.
const SHARDS: u64 = 300;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

fn bucket() -> Origin {
    Origin::open_with(BUCKET, &StoreOptions::default()).expect("opens")
}

#[test]
#[ignore = "run by the test below, with a server in the environment"]
fn the_bucket_of_the_environment_is_filled() {
    runtime().block_on(async {
        let origin = bucket();
        for number in 0..SHARDS as i64 {
            let column: ArrayRef = Arc::new(Int64Array::from(vec![number]));
            let rows = RecordBatch::try_from_iter([("number", column)]).expect("a column");
            let mut writer = ShardWriter::new(rows.schema()).expect("a plain schema");
            writer.push(&rows).expect("a row");
            origin.put_shard(&writer.finish().expect("a shard")).await.expect("stored");
        }
    });
}

#[test]
#[ignore = "run by the test below, with a server in the environment"]
fn the_bucket_of_the_environment_is_read() {
    runtime().block_on(async {
        let origin = bucket();
        let objects: Vec<StoredObject> = origin.objects().try_collect().await.expect("listed");
        let shards = objects.into_iter().filter_map(|object| match object.kind {
            ObjectKind::Shard(id) => Some(id),
            _ => None,
        });
        let reads = shards.map(|id| origin.shard_bytes(id));
        let read: Vec<_> = stream::iter(reads).buffer_unordered(8).try_collect().await.expect("read");
        assert_eq!(read.len() as u64, SHARDS);
        let wire = origin.wire().expect("a service elsewhere");
        assert_eq!(wire.requests, wire.class_a + wire.class_b);
        assert!(wire.throttled > 0 && wire.throttled == wire.failed && wire.hedged == 0, "{wire:?}");
    });
}

/// Runs one of the two above in a process that has the server's keys in its environment.
fn in_a_process(s3: &S3, endpoint: &str, test: &str) -> Child {
    let this = std::env::current_exe().expect("a test knows its own path");
    let mut command = Command::new(this);
    command.args(["--exact", &format!("costs::{test}"), "--ignored", "--nocapture"]);
    FOREIGN.iter().for_each(|variable| _ = command.env_remove(variable));
    command.envs(s3.variables()).env("AWS_ENDPOINT_URL", endpoint);
    command.stdout(Stdio::null()).spawn().expect("it starts")
}

#[test]
#[ignore = "it counts the requests of a machine that keeps up: run it alone (`--ignored costs`)"]
fn clients_of_a_store_that_refuses_requests_have_equal_shares_and_both_end() {
    let Some(s3) = S3::files() else { return };
    let mut writer = in_a_process(&s3, &s3.endpoint, "the_bucket_of_the_environment_is_filled");
    assert!(writer.wait().expect("a child is reaped").success());
    let budget = Budget::new(30.0);
    let proxies = [(); 2].map(|()| MeteredProxy::within(&s3.endpoint, Some(budget.clone())));
    let read =
        |proxy: &MeteredProxy| in_a_process(&s3, &proxy.endpoint(), "the_bucket_of_the_environment_is_read");
    let mut readers = [read(&proxies[0]), read(&proxies[1])];
    let seen = || [0, 1].map(|n| proxies[n].seen());
    // From when both know that there are too many requests until the first one ends, both ask all the time.
    wait_until("both are refused", || seen().iter().all(|seen| seen.refused > 2));
    let both = seen();
    let has_ended = |reader: &mut Child| reader.try_wait().expect("a child can be asked");
    let standstill =
        |time: Duration| assert!(time < Duration::from_secs(30), "nothing is read: {:?}", seen());
    look_until(|| readers.iter_mut().find_map(has_ended), seen, standstill);
    let shares = [0, 1].map(|n| proxies[n].seen().since(&both[n]));
    for reader in &mut readers {
        assert!(reader.wait().expect("a child is reaped").success(), "{shares:?}");
    }
    let ends = seen();
    println!("until the first ended {shares:?}; in the end {ends:?}");
    let [fewer, more] = {
        let mut admitted = shares.map(|seen| seen.admitted());
        admitted.sort_unstable();
        admitted
    };
    assert!(
        more > SHARDS / 4 && fewer as f64 >= 0.8 * more as f64,
        "{fewer} and {more} requests were admitted"
    );
    let (admitted, refused): (u64, u64) =
        ends.iter().fold((0, 0), |(all, refused), seen| (all + seen.admitted(), refused + seen.refused));
    assert!(refused > 0 && refused * 2 <= admitted, "{refused} refused, {admitted} admitted");
}
