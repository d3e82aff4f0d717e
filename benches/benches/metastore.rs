//! What a commit costs: one compare-and-swap of a pointer in each metastore, one at a time and 32 at once.
//! `cargo bench -p shardd-benches --bench metastore` prints one table in a minute; with `--features cluster-etcd`
//! and etcd installed, with etcds of one member and of three.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use shardd::metastore::SledMetastore;
use shardd_store::metastore::{Expected, FilesMetastore, MemoryMetastore, Metastore};
use tempfile::TempDir;

/// How long each figure is measured.
const ROUND: Duration = Duration::from_secs(3);
/// How many commit at once in the second half of the table.
const AT_ONCE: usize = 32;
/// The bytes of a pointer: a commit's id, and what stands beside it.
const POINTER: usize = 200;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let directory = TempDir::new().expect("a temporary directory");
    println!(
        "{:<34} {:>9} {:>9} {:>10} {:>8}   {:>9} {:>9} {:>10}",
        "", "p50 µs", "p99 µs", "commits/s", "of sync", "p50 µs", "p99 µs", "commits/s"
    );
    let sync = row("overwrite 4 KiB and fdatasync", Figures::of(synced(directory.path())), None, None);

    let measure = |name: &str, store: Arc<dyn Metastore>| {
        let serial = Figures::of(runtime.block_on(commits(&store, 1)));
        let at_once = Figures::of(runtime.block_on(commits(&store, AT_ONCE)));
        row(name, serial, Some(sync), Some(at_once));
    };
    measure("memory", Arc::new(MemoryMetastore::new()));
    let files = FilesMetastore::open(directory.path().join("files")).expect("opens");
    measure("files, synced", Arc::new(files));
    // It needs tokio's clock.
    let sled = {
        let _entered = runtime.enter();
        SledMetastore::open(&directory.path().join("sled")).expect("opens")
    };
    measure("sled, synced", Arc::new(sled));
    etcd(measure);
}

#[cfg(feature = "cluster-etcd")]
fn etcd(measure: impl Fn(&str, Arc<dyn Metastore>)) {
    for (count, name) in [(1, "etcd, one member"), (3, "etcd, three members on one disk")] {
        let Some(etcd) = shardd_tests::Etcd::start_on_disk(count) else { return };
        let url = etcd.url("bench").parse().expect("a URL");
        measure(name, shardd::metastore::open_etcd(&url).expect("no files are named"));
    }
}

#[cfg(not(feature = "cluster-etcd"))]
fn etcd(_: impl Fn(&str, Arc<dyn Metastore>)) {
    println!("skipped: etcd, which needs --features cluster-etcd");
}

/// How long each of some commits took, and all of them together.
struct Figures {
    latencies: Vec<Duration>,
    per_second: f64,
}

impl Figures {
    fn of((mut latencies, all): (Vec<Duration>, Duration)) -> Self {
        latencies.sort_unstable();
        let per_second = latencies.len() as f64 / all.as_secs_f64();
        Self { latencies, per_second }
    }

    /// Microseconds within which this share of the commits was done.
    fn within(&self, share: f64) -> f64 {
        let at = (self.latencies.len() as f64 * share) as usize;
        self.latencies[at.min(self.latencies.len() - 1)].as_secs_f64() * 1e6
    }
}

/// Prints a line; returns the median of the serial half in microseconds.
fn row(name: &str, serial: Figures, sync: Option<f64>, at_once: Option<Figures>) -> f64 {
    let median = serial.within(0.5);
    let share = sync.map_or_else(String::new, |sync| format!("{:.2}", median / sync));
    print!("{name:<34} {median:>9.1} {:>9.1} {:>10.0} {share:>8}", serial.within(0.99), serial.per_second);
    if let Some(at_once) = at_once {
        let (p50, p99) = (at_once.within(0.5), at_once.within(0.99));
        print!("   {p50:>9.1} {p99:>9.1} {:>10.0}", at_once.per_second);
    }
    println!();
    median
}

/// The speed of the disk, without any metastore, for a file that does not grow.
fn synced(directory: &Path) -> (Vec<Duration>, Duration) {
    const BLOCKS: u64 = 128;
    let mut file = File::create(directory.join("synced")).expect("a file");
    file.write_all(&vec![0; BLOCKS as usize * 4096]).and_then(|()| file.sync_all()).expect("writes");
    let (began, mut latencies) = (Instant::now(), vec![]);
    while began.elapsed() < ROUND {
        let (at, offset) = (Instant::now(), latencies.len() as u64 % BLOCKS * 4096);
        file.write_all_at(&[1; 4096], offset).and_then(|()| file.sync_data()).expect("writes");
        latencies.push(at.elapsed());
    }
    (latencies, began.elapsed())
}

/// Commits, this many at once, each writer to a key of its own and on top of its last.
async fn commits(store: &Arc<dyn Metastore>, writers: usize) -> (Vec<Duration>, Duration) {
    let began = Instant::now();
    let write = |writer: usize| {
        let (store, key) = (Arc::clone(store), format!("refs/{writers}-{writer}"));
        tokio::spawn(async move {
            let (mut expected, mut latencies) = (Expected::Absent, vec![]);
            while began.elapsed() < ROUND {
                let at = Instant::now();
                let revision =
                    store.put(&key, vec![7; POINTER], expected, None).await.expect("no other client writes");
                latencies.push(at.elapsed());
                expected = Expected::At(revision);
            }
            latencies
        })
    };
    let written = join_all((0..writers).map(write)).await;
    let latencies = written.into_iter().flat_map(|latencies| latencies.expect("no panic")).collect();
    (latencies, began.elapsed())
}
