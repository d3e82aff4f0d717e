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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::data::{self, Set};
use super::node::Node;

/// Bytes of a sample, which is a grain.
const SAMPLE: usize = 150_000;
/// Bytes a second that the link takes each way, and bytes that wait before it.
const LINK: f64 = 12.5e6;
const QUEUE: usize = 512 << 10;
/// How late the link may be.
const LATE: Duration = Duration::from_millis(20);
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

/// A way in: datagrams, as far as there are permits for their bytes.
#[derive(Clone)]
struct Wire {
    put: mpsc::UnboundedSender<Datagram>,
    room: Arc<Semaphore>,
}

/// A datagram, where it goes, from which socket, and its place in the queue.
struct Datagram {
    through: Arc<UdpSocket>,
    to: SocketAddr,
    bytes: Vec<u8>,
    _place: OwnedSemaphorePermit,
}

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
    let (put, mut take) = mpsc::unbounded_channel::<Datagram>();
    relays.spawn(async move {
        let mut free = Instant::now();
        while let Some(datagram) = take.recv().await {
            // Whoever is woken late makes up for it: on a busy machine the link would be slower than it says.
            let now = Instant::now();
            free = free.max(now.checked_sub(LATE).unwrap_or(now));
            free += Duration::from_secs_f64(datagram.bytes.len() as f64 / LINK);
            sleep_until(free).await;
            let _ = datagram.through.send_to(&datagram.bytes, datagram.to).await;
        }
    });
    Wire { put, room: Arc::new(Semaphore::new(QUEUE)) }
}

/// Takes what `guest` sends to the address returned to `host`, and the answers back.
async fn relay(
    relays: &mut JoinSet<()>,
    host: SocketAddr,
    towards_host: &Wire,
    guest: SocketAddr,
    towards_guest: &Wire,
) -> Result<SocketAddr> {
    let (front, back) = (socket().await?, socket().await?);
    let address = front.local_addr()?;
    for (from, through, to, wire) in
        [(front.clone(), back.clone(), host, towards_host), (back, front, guest, towards_guest)]
    {
        let wire = wire.clone();
        relays.spawn(async move {
            let mut datagram = vec![0; 1 << 16];
            while let Ok((length, _)) = from.recv_from(&mut datagram).await {
                let Ok(place) = wire.room.clone().try_acquire_many_owned(length as u32) else { continue };
                let (through, bytes) = (through.clone(), datagram[..length].to_vec());
                let _ = wire.put.send(Datagram { through, to, bytes, _place: place });
            }
        });
    }
    Ok(address)
}

/// One that loses nothing before the queue does: a default buffer holds some twenty datagrams.
async fn socket() -> Result<Arc<UdpSocket>> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    let buffers = socket2::SockRef::from(&socket);
    buffers.set_recv_buffer_size(4 << 20)?;
    buffers.set_send_buffer_size(4 << 20)?;
    Ok(Arc::new(socket))
}
