//! A training on CIFAR-10 over five machines, and everything that goes wrong meanwhile: a node is killed, one
//! is cut off, one is drained, one joins, a segment's bytes flip, a disk is full. The weights do not change by a
//! bit. No disk has more on it than its node computes, and the store is read no more often than faults explain.
//!
//! Each fault has epochs of its own: the next begins an epoch after the one before has been seen.
//!
//! The machines are network namespaces (`shardd_tests::machines`), the store is s3s-fs. By default the ten thousand test images
//! are trained on, at 16 x 16; with SHARDD_WHOLE=1 the fifty thousand training images as they are.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use shardd_tests::machines::{Asking, Lan, is_listening};
use shardd_tests::{Repeated, binary, hex128, is_quick, look_until, run, shared_data, wait_until};
use shardfmt::ByteSize;

const EPOCHS: u64 = 18;
/// What fits on the one disk that gets full.
const SMALL_DISK: u64 = 48 << 20;

#[test]
fn whatever_happens_to_nodes_the_weights_are_the_same() {
    if is_quick() {
        return;
    }
    let Some(tar) = shared_data("cifar10-jpeg.tar.gz") else { return };
    let Some(s3s) = std::env::var_os("SHARDD_S3S_FS").filter(|path| Path::new(path).exists()) else {
        println!("skipped: SHARDD_S3S_FS is not the path of s3s-fs (tests/run installs it and sets this)");
        return;
    };
    let Some(mut lan) = Lan::new() else { return };
    let part = if std::env::var_os("SHARDD_WHOLE").is_some() { ("train", "32") } else { ("test", "16") };
    let expected = undisturbed(&tar, part);
    println!("undisturbed, one process without any node: {expected}");

    let disk = SmallDisk::mount(&lan.srv("n4").join("node/cache"));
    serve_bucket(&mut lan, Path::new(&s3s));
    let credentials = [
        ("AWS_ACCESS_KEY_ID", "the-key"),
        ("AWS_SECRET_ACCESS_KEY", "the-secret"),
        ("AWS_REGION", "us-east-1"),
    ];
    for n in 1..=6 {
        lan.add(&format!("n{n}"), n, &credentials);
    }
    wait_until("the bucket answers", || is_listening(&mut lan, "n1", "10.77.0.9:9000"));
    start(&mut lan, 1);
    for n in 2..=5 {
        start(&mut lan, n);
    }
    fs::copy(&tar, lan.srv("n1").join("cifar.tar.gz")).expect("the data are there");
    let begin = format!(
        "shardctl ingest cifar.tar.gz --under {} --name cifar10
         shardctl --json partition cifar10 --q 0.1 > plan
         shardctl --json info cifar10 > info",
        part.0
    );
    lan.machine("n1").run(&format!("export SHARDD_SERVER={}\n{begin}", http(1)));
    let plan: Value =
        serde_json::from_str(&read(&lan.srv("n1").join("plan"))).expect("partition prints JSON");
    let plan = plan["plan"].as_str().expect("the plan's id").to_owned();
    let watch = Watch::begin(&lan, &disk.path);

    for rank in 0..2 {
        let own = rank + 1;
        let others = (1..=5).filter(|n| *n != own).map(http).collect::<Vec<_>>().join(",");
        lan.machine(&format!("n{own}")).run(&format!(
            "export SHARDD_SERVER={},{others} RANK={rank} WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500
             shardtrain --plan {plan} --run cifar {} --progress /srv/progress --report /srv/report > /srv/said 2>&1 &",
            http(own),
            settings(part.1),
        ));
    }
    let mut story = Story { lan, disk, done: 0, epochs: Vec::new() };
    let report = story.tell();
    let watched = watch.end();
    assert_eq!(
        story.done,
        FAULTS.len(),
        "the training was over before everything had happened: {EPOCHS} epochs are too few here"
    );

    assert_eq!(report["weights_digest"], expected.as_str(), "the faults of nodes changed the trained model");
    println!("the same weights after all of it: {expected}");
    exactly_once(&story, &plan);
    watched.judge(&story);
}

type Fault = (&'static str, fn(&mut Story));

/// What happens, each from the first third of an epoch on.
const FAULTS: [Fault; 10] = [
    ("n3 is killed", |story| drop(story.lan.machine("n3").run("kill -9 $(cat /srv/pid)"))),
    ("bytes flip in segments of n2", Story::flip),
    ("n3 is back, with its old disk", |story| start(&mut story.lan, 3)),
    ("n4 hears no node", |story| story.lan.deafen("n4")),
    ("no node hears n4", |story| story.lan.silence("n4")),
    ("n4 is back", |story| story.lan.reconnect("n4")),
    ("the disk of n4 is full", Story::fill_disk),
    ("n5 is drained and leaves", |story| {
        let said =
            story.lan.machine("n1").run(&format!("shardctl --server {} leave n5 --timeout 50s", http(1)));
        println!("    {}", said.replace('\n', "\n    "));
    }),
    ("n6 joins", |story| start(&mut story.lan, 6)),
    ("there is space again on the disk of n4", |story| story.disk.empty()),
];

/// A training that takes no step for this time hangs.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(180);

struct Story {
    lan: Lan,
    disk: SmallDisk,
    done: usize,
    /// The epoch of each fault that has happened.
    epochs: Vec<u64>,
}

impl Story {
    /// Lets faults happen during the training; its report.
    fn tell(&mut self) -> Value {
        let (progress, report) = (self.lan.srv("n1").join("progress"), self.lan.srv("n1").join("report"));
        let began = Instant::now();
        let steps_taken = || fs::metadata(&progress).map_or(0, |file| file.len());
        let mut epoch = 1;
        loop {
            let next = FAULTS.get(self.done);
            let (lan, progress) = (&self.lan, &progress);
            let happens = look_until(
                || {
                    let at = last_line(progress);
                    if let (Some(at), Some((what, happens))) = (at, next) {
                        let (now, step, steps) =
                            (number(&at["epoch"]), number(&at["step"]), number(&at["steps"]));
                        if (now, step) >= (epoch, steps / 3) {
                            let seconds = began.elapsed().as_secs_f64();
                            println!("{seconds:6.1} s, epoch {now}, step {step} of {steps}: {what}");
                            return Some(Some((now, *happens)));
                        }
                    }
                    report.exists().then_some(None)
                },
                steps_taken,
                |waited| {
                    assert!(waited < PROGRESS_TIMEOUT, "no step for {PROGRESS_TIMEOUT:?}\n{}", said(lan))
                },
            );
            let Some((now, happens)) = happens else { break };
            happens(self);
            self.done += 1;
            self.epochs.push(now);
            // Each has an epoch of its own, also where the one before took some.
            let reached = last_line(progress).map_or(now, |at| number(&at["epoch"]));
            epoch = reached.max(now) + 1;
        }
        println!("{:6.1} s: trained", began.elapsed().as_secs_f64());
        serde_json::from_str(&read(&report)).expect("a report is JSON")
    }

    /// One byte in each segment of n2, where rank 1 reads.
    fn flip(&mut self) {
        let segments = self.lan.srv("n2").join("node/cache/segments");
        let mut flipped = 0;
        for path in files(&segments) {
            let Ok(mut bytes) = fs::read(&path) else { continue };
            let at = bytes.len() / 2;
            // Written in place, as a failing disk would: the file keeps its name and its length.
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 0x20;
                flipped += usize::from(write_at(&path, &bytes[at..=at], at));
            }
        }
        println!("    in {flipped} of them");
        assert!(flipped > 0, "n2 has segments");
    }

    /// How often the faults explain that the data set was read from the store. Four nodes host what the fifth has
    /// lost, a quarter of the data at most. It is read once when a node dies, once and what moves meanwhile when a
    /// node is cut off, and in each epoch by a node that cannot keep it.
    fn most_read(&self) -> f64 {
        let epochs = |from: &str, to: &str| {
            let epoch = |fault: &str| {
                let number = FAULTS.iter().position(|(name, _)| *name == fault).expect("one of the faults");
                self.epochs[number]
            };
            (epoch(to) - epoch(from)) as f64
        };
        let cut_off = 1.0 + 0.1 * (epochs("n4 hears no node", "n4 is back") + 1.0);
        let full = epochs("the disk of n4 is full", "there is space again on the disk of n4") + 1.0;
        1.0 + 0.25 * (1.0 + cut_off + full)
    }

    fn fill_disk(&mut self) {
        let filler = self.disk.path.join("filler");
        let full = (0..).find_map(|mebibytes: u64| {
            let mut file = fs::File::options().create(true).append(true).open(&filler).expect("a file");
            std::io::Write::write_all(&mut file, &[0; 1 << 16]).err().map(|error| (mebibytes >> 4, error))
        });
        let (mebibytes, error) = full.expect("a disk ends");
        println!("    after {mebibytes} MiB more: {error}");
    }
}

/// The last line of the training's progress that is whole.
fn last_line(progress: &Path) -> Option<Value> {
    let text = fs::read_to_string(progress).unwrap_or_default();
    text.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

/// The output of the trainers.
fn said(lan: &Lan) -> String {
    let said = [1, 2].map(|n| fs::read_to_string(lan.srv(&format!("n{n}")).join("said")).unwrap_or_default());
    said.concat()
}

/// All audits of all ranks: every epoch's samples are those of the data set, each once.
fn exactly_once(story: &Story, plan: &str) {
    let asking = story.lan.asking();
    let audits = asking.get(&format!("{}/v1/runs/cifar/audit", http(1))).expect("n1 answers");
    let info: Value =
        serde_json::from_str(&read(&story.lan.srv("n1").join("info"))).expect("info prints JSON");
    let (samples, sum) = (number(&info["samples"]), hex128(&info["digest_sum"]));
    let mut epochs = BTreeMap::<u64, (u64, u128)>::new();
    for audit in audits.as_array().expect("a list") {
        let epoch = epochs.entry(number(&audit["epoch"])).or_default();
        *epoch = (epoch.0 + number(&audit["samples"]), epoch.1.wrapping_add(hex128(&audit["digest_sum"])));
    }
    let expected = (0..EPOCHS).map(|epoch| (epoch, (samples, sum))).collect::<BTreeMap<_, _>>();
    assert_eq!(epochs, expected, "plan {plan}");
    println!("in each of {EPOCHS} epochs {samples} samples, digest sum {sum:032x}: each exactly once");
}

/// The checks during the training: disks ten times a second, nodes three times.
struct Watch {
    seen: Arc<Mutex<Watched>>,
    _looking: [Repeated; 2],
}

#[derive(Clone, Default)]
struct Watched {
    /// The most bytes that each node's segments took at any look...
    looked: BTreeMap<String, u64>,
    /// ...and at those before it last answered: what it computed after that, while it stopped, is not known.
    peak: BTreeMap<String, u64>,
    /// The most that each node computed for its runs at any time.
    computed: BTreeMap<String, u64>,
    /// Bytes read from the store before the training: the ingest checks the shards that it has put there.
    read_before: u64,
    /// What each process had counted when it last answered, by node and start.
    counted: BTreeMap<(String, u64), Value>,
    looks: u64,
}

impl Watch {
    fn begin(lan: &Lan, small: &Path) -> Watch {
        let seen = Arc::new(Mutex::new(Watched::default()));
        let segments = |n| {
            let cache = if n == 4 { small.to_owned() } else { lan.srv(&format!("n{n}")).join("node/cache") };
            (format!("n{n}"), cache.join("segments"))
        };
        let segments: Vec<(String, PathBuf)> = (1..=6).map(segments).collect();
        let disks = Arc::clone(&seen);
        let look = move || {
            let mut seen = disks.lock().expect("no panic while held");
            seen.looks += 1;
            for (node, dir) in &segments {
                let lengths = files(dir).into_iter().filter_map(|path| Some(fs::metadata(path).ok()?.len()));
                let looked = seen.looked.entry(node.clone()).or_default();
                *looked = (*looked).max(lengths.sum());
            }
        };
        let (asked, asking) = (Arc::clone(&seen), lan.asking());
        ask_all(&asking, &asked);
        {
            let mut seen = seen.lock().expect("no panic while held");
            seen.read_before = seen.sum("origin_bytes");
        }
        let looking = [
            Repeated::every(Duration::from_millis(100), look),
            Repeated::every(Duration::from_millis(300), move || ask_all(&asking, &asked)),
        ];
        Watch { seen, _looking: looking }
    }

    fn end(self) -> Watched {
        let seen = Arc::clone(&self.seen);
        drop(self);
        seen.lock().expect("no panic while held").clone()
    }
}

fn ask_all(asking: &Asking, seen: &Mutex<Watched>) {
    let nodes = asking.get(&format!("{}/v1/nodes", http(1)));
    for node in nodes.iter().flat_map(|nodes| nodes.as_array()).flatten() {
        let name = node["id"].as_str().expect("a name").to_owned();
        let looked = seen.lock().expect("no panic while held").looked.get(&name).copied();
        let Some(status) = asking.get(&format!("{}/v1/status", node["http"].as_str().expect("a URL"))) else {
            continue;
        };
        let mut seen = seen.lock().expect("no panic while held");
        let key = (name.clone(), number(&node["started_at"]));
        if seen.counted.contains_key(&key) {
            let peak = seen.peak.entry(name.clone()).or_default();
            *peak = (*peak).max(looked.unwrap_or(0));
        } else {
            // What the process before had at its end, this one may have dropped when it opened its cache.
            seen.looked.remove(&name);
        }
        let computed = seen.computed.entry(name.clone()).or_default();
        *computed = (*computed).max(number(&status["cache_peak_bytes"]));
        seen.counted.insert(key, status);
    }
}

impl Watched {
    fn sum(&self, field: &str) -> u64 {
        self.counted.values().map(|status| number(&status[field])).sum()
    }

    fn judge(&self, story: &Story) {
        let dataset =
            story.lan.asking().get(&format!("{}/v1/datasets/cifar10", http(1))).expect("n1 answers");
        let bytes = number(&dataset["bytes"]);
        let read = self.sum("origin_bytes") - self.read_before;
        let (times, most) = (read as f64 / bytes as f64, story.most_read());
        println!(
            "read from the store: {} of a data set of {}: {times:.2} x, at most {most:.2} x by the faults; grains missed and had from peers {}, from the store {}; corrupt on disk {}",
            ByteSize(read),
            ByteSize(bytes),
            self.sum("misses_from_peers"),
            self.sum("misses_from_origin"),
            self.sum("corrupt_on_disk"),
        );
        assert!(self.sum("corrupt_on_disk") > 0, "the flipped bytes were found");
        assert!(times <= most, "the store was read {times:.2} x, and the faults explain {most:.2} x");
        println!("the most on disk, looked at {} times:", self.looks);
        for (node, peak) in &self.peak {
            let computed = self.computed.get(node).copied().unwrap_or(0);
            let share = *peak as f64 / computed.max(1) as f64;
            println!("    {node} {} of {} computed: {share:.2}", ByteSize(*peak), ByteSize(computed));
        }
        assert_eq!(self.peak.len(), 6, "all have answered while they had something");
        for (node, peak) in &self.peak {
            assert!(*peak > 0, "{node} has kept nothing");
            assert!(Some(peak) <= self.computed.get(node), "{node} has more on its disk than it computed");
        }
    }
}

/// The same training by one process, over a store in a directory.
fn undisturbed(tar: &Path, (under, size): (&str, &str)) -> String {
    let root = tempfile::TempDir::new().expect("a temporary directory can be made");
    let store = root.path().join("store");
    let shardctl = || {
        let mut command = Command::new(binary("shardctl"));
        command.arg("--store").arg(&store);
        command
    };
    run(shardctl().arg("ingest").arg(tar).args(["--under", under, "--name", "cifar10"]));
    run(shardctl().args(["partition", "cifar10", "--q", "0.1"]));
    let report = root.path().join("report");
    let mut train = Command::new(binary("shardtrain"));
    train.arg("--store").arg(&store).args(["--dataset", "cifar10", "--report"]).arg(&report);
    run(train.args(settings(size).split(' ')));
    let report: Value = serde_json::from_str(&read(&report)).expect("a report is JSON");
    report["weights_digest"].as_str().expect("text").to_owned()
}

/// V = 4, B = 256.
fn settings(size: &str) -> String {
    format!("--virtual-ranks 4 --batch-size 64 --epochs {EPOCHS} --image-size {size}")
}

fn serve_bucket(lan: &mut Lan, s3s: &Path) {
    let bucket = lan.srv("bucket");
    fs::create_dir_all(bucket.join("training")).expect("a bucket is a directory");
    let (s3s, bucket) = (s3s.to_str().expect("UTF-8"), bucket.to_str().expect("UTF-8"));
    let keys = ["--access-key", "the-key", "--secret-key", "the-secret"];
    lan.serve(&[&[s3s, "--host", "10.77.0.9", "--port", "9000"][..], &keys, &[bucket]].concat());
}

fn http(n: u64) -> String {
    format!("http://10.77.0.{n}:7700")
}

/// Starts a node, or starts it again.
fn start(lan: &mut Lan, n: u64) {
    let name = format!("n{n}");
    let store = "--store s3://training/shardd --store-endpoint http://10.77.0.9:9000";
    let rest = match n {
        1 => store.to_owned(),
        _ if lan.srv(&name).join("node/tls").exists() => store.to_owned(),
        _ => {
            let join = lan.srv(&name).join("join");
            let said = lan.machine("n1").run(&format!("shardctl --server {} token create --join", http(1)));
            fs::write(&join, said).expect("written");
            format!("{store} --join @/srv/join")
        }
    };
    let serve = format!(
        "shardd serve --data /srv/node --id {name} --http 10.77.0.{n}:7700 --quic 10.77.0.{n}:7701 --allow-insecure-http --cache-size 64MiB {rest}"
    );
    // The line that says that it is ready is waited for: not that of the process before.
    lan.machine(&name).run("rm -f /srv/terminal");
    lan.machine(&name).start(&format!("bash -c 'echo $$ > /srv/pid; exec {serve}'"));
}

/// A disk of its own for a cache, in memory.
struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    fn mount(path: &Path) -> SmallDisk {
        fs::create_dir_all(path).expect("a directory can be made");
        let size = format!("size={SMALL_DISK}");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(path));
        SmallDisk { path: path.to_owned() }
    }

    fn empty(&self) {
        fs::remove_file(self.path.join("filler")).expect("it was there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn write_at(path: &Path, bytes: &[u8], at: usize) -> bool {
    use std::os::unix::fs::FileExt;
    let file = fs::File::options().write(true).open(path);
    file.is_ok_and(|file| file.write_all_at(bytes, at as u64).is_ok())
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}
