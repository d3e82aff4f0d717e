//! What a training asks of its store: predicted by `shardctl cost`, counted by the nodes, and counted at a real S3 server. And a
//! store that refuses requests because there are too many.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;
use shardd_tests::metered::{Budget, MeteredProxy, Seen};
use shardd_tests::s3::S3;
use shardd_tests::{Cluster, binary, is_quick, run, wait_until};

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
        // A node polls now and then, also between two looks.
        wait_until("nodes and server agree", || {
            let (seen, counted) = now();
            (seen.class_a, seen.class_b, seen.deletes) == (counted.class_a, counted.class_b, counted.deletes)
        });
        let cost = self.shardctl(&["cost", "--run", "r"]);
        let epochs = cost["counted"].as_array().expect("a list");
        let sum = |field: &str| epochs.iter().map(|epoch| number(&epoch[field])).sum::<u64>();
        println!("the nodes counted {} requests of class B in {} epochs", sum("class_b"), epochs.len());
        assert_eq!(epochs.len(), 2, "{epochs:?}");
        assert_close("requests by epoch", sum("class_b"), seen.class_b);
        assert!(sum("hedged") <= hedged, "{} of {hedged}", sum("hedged"));
        assert!(epochs.iter().all(|epoch| epoch["price"].as_f64().is_some_and(|price| price > 0.0)));
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
fn the_requests_of_a_training_whose_caches_hold_all_are_predicted() {
    let Some(counted) = Counted::start("1GiB") else { return };
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/data/digits/train.parquet");
    let plan = counted.plan(&digits, "1KiB");
    counted.compare(&plan, "1GiB", 2, || {
        let mut train = Command::new(binary("shardtrain"));
        train.args(["run", "--nproc", "2", "--", "--plan", &plan, "--run", "r", "--epochs", "2"]);
        train.args(["--virtual-ranks", "4", "--batch-size", "8"]).env("RAYON_NUM_THREADS", "1");
        for node in &counted.cluster.nodes {
            train.args(["--server", &node.http]);
        }
        run(&mut train);
    });
}

#[test]
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

/// Clients of a bucket that takes too few requests, each behind a proxy of its own that counts.
#[test]
fn clients_of_a_store_that_refuses_requests_have_equal_shares_and_both_end() {
    const EACH: u64 = 300;
    let Some(s3) = S3::files() else { return };
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let rows = home.path().join("rows.npy");
    write_rows(&rows, EACH as usize * 4, 256);
    let shardctl = |endpoint: &str, name: &str| {
        let own = home.path().join(name);
        std::fs::create_dir_all(&own).expect("a directory can be made");
        let mut command = Command::new(binary("shardctl"));
        command.current_dir(&own).env("HOME", &own).env("TMPDIR", &own).envs(s3.variables());
        command.env("AWS_ENDPOINT_URL", endpoint).args(["--store", "s3://data/x", "--json"]);
        command
    };
    run(shardctl(&s3.endpoint, "writer")
        .args(["ingest", "--name", "rows", "--shard-size", "1KiB"])
        .arg(&rows));
    run(shardctl(&s3.endpoint, "writer").args(["partition", "--q", "0.1", "--partitions", "4"]));
    let budget = Budget::new(50.0);
    let proxies = [(); 2].map(|()| MeteredProxy::within(&s3.endpoint, Some(budget.clone())));
    let mut readers: Vec<Child> = ["one", "other"]
        .iter()
        .zip(&proxies)
        .map(|(name, proxy)| {
            let mut command = shardctl(&proxy.endpoint(), name);
            command.args(["read", "--quiet"]).stdout(Stdio::null()).spawn().expect("shardctl starts")
        })
        .collect();
    // As the first one ends, both have asked all the time.
    wait_until("a reader ends", || {
        readers.iter_mut().any(|reader| reader.try_wait().expect("a child can be asked").is_some())
    });
    let shares = [0, 1].map(|n| proxies[n].seen());
    for reader in &mut readers {
        assert!(reader.wait().expect("a child is reaped").success(), "{shares:?}");
    }
    let ends = [0, 1].map(|n| proxies[n].seen());
    println!("as the first ended {shares:?}; in the end {ends:?}");
    let [fewer, more] = {
        let mut admitted = shares.map(|seen| seen.admitted());
        admitted.sort_unstable();
        admitted
    };
    assert!(fewer >= EACH / 2, "{shares:?}");
    assert!(fewer as f64 >= 0.8 * more as f64, "{fewer} and {more} requests were admitted");
    let (admitted, refused): (u64, u64) =
        ends.iter().fold((0, 0), |(all, refused), seen| (all + seen.admitted(), refused + seen.refused));
    assert!(refused > 0 && refused * 2 <= admitted, "{refused} refused, {admitted} admitted");
}
