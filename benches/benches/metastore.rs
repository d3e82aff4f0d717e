//! What a commit costs: one compare-and-swap of a pointer in each metastore, one at a time and 32 at once.
//! `cargo bench -p shardd-benches --bench metastore` prints one table in a minute; with `--features cluster-etcd`
//! and etcd installed, with etcds of one member and of three; with a Python that has moto (`SHARDD_PYTHON`),
//! with an object of a bucket that is 30 ms away, as one node and as 32 nodes change it.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use shardd::metastore::SledMetastore;
use shardd_store::metastore::{
    BucketMetastore, Expected, FilesMetastore, MemoryMetastore, MetaError, Metastore,
};
use shardd_store::origin::Origin;
use shardd_store::stores::StoreOptions;
use shardfmt::Digest;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

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

    let measure_nodes = |name: &str, nodes: Vec<Arc<dyn Metastore>>| {
        let serial = Figures::of(runtime.block_on(commits(&nodes, 1)));
        let at_once = Figures::of(runtime.block_on(commits(&nodes, AT_ONCE)));
        row(name, serial, Some(sync), Some(at_once));
    };
    let measure = |name: &str, store: Arc<dyn Metastore>| measure_nodes(name, vec![store]);
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
    if let Some(s3) = shardd_tests::s3::S3::empty_moto() {
        let endpoint = runtime.block_on(far(s3.endpoint.trim_start_matches("http://").to_owned()));
        for variable in s3.variables().into_iter().chain([("AWS_ENDPOINT_URL", endpoint.as_str())]) {
            // SAFETY: no other thread reads the environment: the runtime's forward bytes.
            unsafe { std::env::set_var(variable.0, variable.1) };
        }
        for (name, nodes) in [("in the store, one node", 1), ("in the store, 32 nodes", 32)] {
            let node = |_| -> Arc<dyn Metastore> {
                let origin = Origin::open_with(&format!("s3://data/{nodes}"), &StoreOptions::default());
                Arc::new(BucketMetastore::of_cluster(Arc::new(origin.expect("opens")), Digest::of(b"bench")))
            };
            measure_nodes(name, (0..nodes).map(node).collect());
        }
    }
}

/// An address that leads to another one, over a link on which each byte takes 15 ms.
async fn far(address: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let near = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(&address).await else { return };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let ((from_client, to_client), (from_server, to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(late(from_client, to_server));
            tokio::spawn(late(from_server, to_client));
        }
    });
    format!("http://{near}")
}

/// Forwards bytes 15 ms after they came.
async fn late(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin + Send + 'static) {
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<(tokio::time::Instant, Vec<u8>)>(1024);
    tokio::spawn(async move {
        while let Some((due, bytes)) = receiver.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let due = tokio::time::Instant::now() + Duration::from_millis(15);
        if sender.send((due, bytes[..count].to_vec())).await.is_err() {
            return;
        }
    }
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

/// Commits, this many at once, each writer to a key of its own and on top of its last, through the next node.
async fn commits(nodes: &[Arc<dyn Metastore>], writers: usize) -> (Vec<Duration>, Duration) {
    let began = Instant::now();
    let write = |writer: usize| {
        let (store, key) = (Arc::clone(&nodes[writer % nodes.len()]), format!("refs/{writers}-{writer}"));
        tokio::spawn(async move {
            let (mut expected, mut latencies) = (Expected::Absent, vec![]);
            while began.elapsed() < ROUND {
                let at = Instant::now();
                match store.put(&key, vec![7; POINTER], expected, None).await {
                    Ok(revision) => expected = Expected::At(revision),
                    // Too many change the same object.
                    Err(MetaError::Unavailable { .. }) => continue,
                    Err(error) => panic!("no other client writes this key: {error}"),
                }
                latencies.push(at.elapsed());
            }
            latencies
        })
    };
    let written = join_all((0..writers).map(write)).await;
    let latencies = written.into_iter().flat_map(|latencies| latencies.expect("no panic")).collect();
    (latencies, began.elapsed())
}
