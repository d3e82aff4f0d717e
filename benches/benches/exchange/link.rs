//! Two nodes over a link of a certain speed, and a rank at each that computes for a fixed time and reads a few samples from the
//! other node in every step: what the exchange costs the steps, as it is paced and as it would be without.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use shardd_client::engine::{ExchangeRate, ExchangeSettings};
use shardd_client::peers::{Effort, FetchRequest, Peers};
use shardfmt::GrainKey;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::data::{self, Set};
use super::node::Node;

/// Bytes of a sample, which is a grain.
const SAMPLE: usize = 150_000;
/// Bytes a second that the link takes each way, and bytes that wait before it.
const LINK: f64 = 12.5e6;
const QUEUE: usize = 1 << 20;
/// How long a step computes, and how many samples it reads from the other node.
const COMPUTE: Duration = Duration::from_millis(60);
const READS: usize = 2;
/// Steps of an epoch.
const STEPS: u64 = 80;

/// Prints the table.
pub(crate) async fn measure() -> Result<()> {
    // What a step takes with nothing else on the link, and half of what the link carries in the epoch's steps.
    let step = COMPUTE.as_secs_f64() + (READS * SAMPLE) as f64 / LINK;
    let each_way = LINK / 2.0 * step * STEPS as f64;
    println!(
        "link of {:.1} MB/s, {STEPS} steps of {:.0} ms, {:.0} MB exchanged each way",
        LINK / 1e6,
        step * 1e3,
        each_way / 1e6
    );
    println!(
        "{:>12} {:>10} {:>10} {:>10} {:>8} {:>12}",
        "exchange", "mean ms", "p95 ms", "of none", "MB sent", "not sent"
    );
    let mut none = None;
    for (name, settings) in [
        ("none", ExchangeSettings { rate: ExchangeRate::Auto, paused: true }),
        ("paced", ExchangeSettings { rate: ExchangeRate::Auto, paused: false }),
        ("not paced", ExchangeSettings { rate: ExchangeRate::Unlimited, paused: false }),
    ] {
        let (mut steps, sent, unsent) = run(settings, (each_way * 4.0) as u64).await?;
        steps.sort();
        let mean = steps.iter().sum::<Duration>().as_secs_f64() / steps.len() as f64;
        let p95 = steps[steps.len() * 95 / 100].as_secs_f64();
        let ratio = mean / *none.get_or_insert(mean);
        println!(
            "{name:>12} {:>10.1} {:>10.1} {ratio:>10.3} {:>8.1} {unsent:>12}",
            mean * 1e3,
            p95 * 1e3,
            sent as f64 / 1e6
        );
    }
    Ok(())
}

/// An epoch on two nodes: how long each step took, bytes sent, and grains that were not.
async fn run(settings: ExchangeSettings, bytes: u64) -> Result<(Vec<Duration>, u64, u64)> {
    let home = tempfile::tempdir()?;
    let path = home.path().to_owned();
    tokio::task::spawn_blocking(move || Set::make(&path, SAMPLE, bytes)).await??;
    let (a, b) = (Node::bind(home.path(), 0)?, Node::bind(home.path(), 1)?);
    let link = Link::between(a.address(), b.address()).await?;
    let nodes = tokio::try_join!(
        Node::start(home.path(), 0, a, link.to_b),
        Node::start(home.path(), 1, b, link.to_a)
    )?;
    let nodes = [Arc::new(nodes.0), Arc::new(nodes.1)];
    let mut ranks = JoinSet::new();
    for node in &nodes {
        node.engine.set_exchange(settings);
        ranks.spawn(epoch(Arc::clone(node), nodes[1 - node.number].keys()));
    }
    let mut steps = Vec::new();
    for took in ranks.join_all().await {
        steps.extend(took?);
    }
    let counts = nodes.each_ref().map(|node| node.exchanged());
    for node in nodes {
        Arc::into_inner(node).context("its rank has ended")?.end().await?;
    }
    let sum = |count: fn(&shardd_client::engine::EpochExchange) -> u64| counts.iter().map(count).sum();
    Ok((steps, sum(|counts| counts.sent_bytes), sum(|counts| counts.unsent_grains)))
}

async fn epoch(node: Arc<Node>, theirs: Vec<GrainKey>) -> Result<Vec<Duration>> {
    let samples = node.plan.sample_count();
    let mut steps = Vec::new();
    for step in 0..STEPS {
        let began = Instant::now();
        node.report(0, samples * step / STEPS).await?;
        let keys = theirs.iter().cycle().skip(step as usize * READS).take(READS).copied().collect();
        let request = FetchRequest {
            run: node.run.clone(),
            version: node.plan.document().version,
            epoch: 0,
            generation: 1,
            keys,
            effort: Effort::Cached,
        };
        let got = node.transport.fetch(&data::name(1 - node.number), request).await?;
        anyhow::ensure!(got.iter().all(Option::is_some), "the other node has these");
        sleep_until(Instant::now() + COMPUTE).await;
        steps.push(began.elapsed());
    }
    Ok(steps)
}

/// A link of a certain speed between two nodes: addresses to reach them at through it.
struct Link {
    to_a: SocketAddr,
    to_b: SocketAddr,
    _relays: JoinSet<()>,
}

type Wire = mpsc::Sender<(Arc<UdpSocket>, SocketAddr, Vec<u8>)>;

impl Link {
    async fn between(a: SocketAddr, b: SocketAddr) -> Result<Link> {
        let mut relays = JoinSet::new();
        let (towards_a, towards_b) = (wire(&mut relays), wire(&mut relays));
        // The connection that a makes, and the one that b makes: each has a socket towards either end.
        let to_b = relay(&mut relays, b, &towards_b, a, &towards_a).await?;
        let to_a = relay(&mut relays, a, &towards_a, b, &towards_b).await?;
        Ok(Link { to_a, to_b, _relays: relays })
    }
}

/// One way: what is put in comes out at the link's speed. What does not fit into the queue is lost.
fn wire(relays: &mut JoinSet<()>) -> Wire {
    let (put, mut take) = mpsc::channel::<(Arc<UdpSocket>, SocketAddr, Vec<u8>)>(QUEUE / 6500);
    relays.spawn(async move {
        let mut free = Instant::now();
        while let Some((socket, to, datagram)) = take.recv().await {
            free = free.max(Instant::now()) + Duration::from_secs_f64(datagram.len() as f64 / LINK);
            // Timers go by the millisecond: so much may pass early.
            sleep_until(free - Duration::from_millis(1)).await;
            let _ = socket.send_to(&datagram, to).await;
        }
    });
    put
}

/// Takes what `guest` sends to the address returned to `host`, and the answers back.
async fn relay(
    relays: &mut JoinSet<()>,
    host: SocketAddr,
    towards_host: &Wire,
    guest: SocketAddr,
    towards_guest: &Wire,
) -> Result<SocketAddr> {
    let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
    let back = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
    let address = front.local_addr()?;
    for (from, through, to, wire) in
        [(front.clone(), back.clone(), host, towards_host), (back, front, guest, towards_guest)]
    {
        let wire = wire.clone();
        relays.spawn(async move {
            let mut datagram = vec![0; 1 << 16];
            while let Ok((length, _)) = from.recv_from(&mut datagram).await {
                let _ = wire.try_send((through.clone(), to, datagram[..length].to_vec()));
            }
        });
    }
    Ok(address)
}
