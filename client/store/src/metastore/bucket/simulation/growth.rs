//! The requests of nodes at rest to the store that keeps their metadata, for growing numbers of nodes.

use std::sync::atomic::{AtomicU64, AtomicUsize};

use super::*;

/// How long is counted, after the nodes have come.
const COUNTED: Duration = Duration::from_secs(60);
/// Most of the bytes of a node's own keys: its name, its record twice, and its lease.
const RECORD_BYTES: usize = 300;

/// What a node holds and renews.
struct Resting {
    link: Link,
    store: Arc<BucketMetastore>,
}

/// Holds three keys by a lease, as a node does; counts lost leases and failed renewals.
async fn rest(number: usize, store: Arc<BucketMetastore>, here: Arc<AtomicUsize>, missed: Arc<AtomicU64>) {
    loop {
        let Ok(lease) = store.grant(TTL).await else { continue };
        let mut is_here = true;
        for kind in ["names", "members", "nodes"] {
            let key = format!("{kind}/n{number}");
            let lease = (kind != "members").then_some(lease);
            is_here &= store.put(&key, vec![b'x'; RECORD_BYTES / 2], Expected::Any, lease).await.is_ok();
        }
        if !is_here {
            continue;
        }
        here.fetch_add(1, Relaxed);
        loop {
            sleep(HEARTBEAT_INTERVAL).await;
            match store.renew(lease).await {
                Ok(()) => {}
                Err(MetaError::LeaseLost { .. }) => break,
                Err(_) => drop(missed.fetch_add(1, Relaxed)),
            }
        }
        missed.fetch_add(1, Relaxed);
        here.fetch_sub(1, Relaxed);
    }
}

async fn at_rest(count: usize) -> String {
    CHANCE.set(Dice::new(7));
    let inner = Arc::new(InMemory::new());
    let nodes = (0..count).map(|number| {
        let link = Link::new(&inner, Dice::new(number as u64));
        Resting { store: open(&link, Clock::new().of(), Pace::CLUSTER), link }
    });
    let nodes: Vec<Resting> = nodes.collect();
    let (here, missed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let began = Instant::now();
    let mut tasks = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        tasks.push(tokio::spawn(rest(
            number,
            Arc::clone(&node.store),
            Arc::clone(&here),
            Arc::clone(&missed),
        )));
        // Machines do not start in the same instant.
        sleep(Duration::from_millis(200)).await;
    }
    while here.load(Relaxed) < count && began.elapsed() < Duration::from_secs(900) {
        sleep(HEARTBEAT_INTERVAL).await;
    }
    let came = began.elapsed();
    sleep(Duration::from_secs(30)).await;
    let traffic = || {
        nodes
            .iter()
            .map(|node| node.link.traffic())
            .fold((0, 0, 0), |sum, it| (sum.0 + it.gets, sum.1 + it.puts, sum.2 + it.bytes))
    };
    let (before, missed_before) = (traffic(), missed.load(Relaxed));
    sleep(COUNTED).await;
    let after = traffic();
    tasks.iter().for_each(|task| task.abort());
    let rate = |after: u64, before: u64| (after - before) as f64 / COUNTED.as_secs_f64() / count as f64;
    format!(
        "| {count} | {:.2} | {:.3} | {:.0} | {} of {count} after {:.0} s | {} |",
        rate(after.0, before.0),
        rate(after.1, before.1),
        rate(after.2, before.2),
        here.load(Relaxed),
        came.as_secs_f64(),
        missed.load(Relaxed) - missed_before,
    )
}

/// The sizes that every run of the tests counts; `SHARDD_SIM_NODES=4,16,…` counts others.
fn sizes() -> Vec<usize> {
    let text = std::env::var("SHARDD_SIM_NODES").unwrap_or_else(|_| "4,16".to_owned());
    text.split(',').map(|size| size.parse().expect("SHARDD_SIM_NODES=NUMBER,..")).collect()
}

#[test]
fn nodes_at_rest_read_more_the_more_they_are() {
    println!(
        "| nodes | GETs/s of a node | PUTs/s of a node | bytes/s of a node | registered | renewals that failed |"
    );
    for count in sizes() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let row = runtime.expect("a runtime").block_on(at_rest(count));
        println!("{row}");
    }
}
