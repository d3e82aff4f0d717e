//! Two nodes over a link of a certain speed, and a rank at each that computes for a fixed time and reads a few samples from the
//! other node in every step: what the exchange costs the steps, as it is paced and as it would be without.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use shardd_api::exchange::{ExchangeRate, ExchangeSettings};
use shardd_benches::exchange::data::{self, Set};
use shardd_benches::exchange::node::Node;
use shardd_engine::peers::{FetchMode, FetchRequest, Peers};
use shardfmt::GrainKey;
use tokio::net::UdpSocket;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Bytes of a sample, which is a grain.
const SAMPLE: usize = 150_000;
/// Bytes a second that the link takes each way, and bytes that wait before it.
const LINK: f64 = 25e6;
const QUEUE: usize = 512 << 10;
/// Bytes of the smallest datagrams.
const SMALL: usize = 32;
/// How late the link may be.
const LATE: Duration = Duration::from_millis(4);
/// How long a step computes, and how many samples it reads from the other node.
const COMPUTE: Duration = Duration::from_millis(60);
const READS: usize = 4;
/// Steps of an epoch.
const STEPS: u64 = 60;

/// Prints the table.
pub(crate) async fn measure(rounds: usize) -> Result<()> {
    // The time of a step with nothing else on the link, and half of the bytes that the link carries in the
    // epoch's steps.
    let step = COMPUTE.as_secs_f64() + (READS * SAMPLE) as f64 / LINK;
    let each_way = LINK / 2.0 * step * STEPS as f64;
    println!(
        "link of {:.1} MB/s, {STEPS} steps of {:.0} ms, {:.0} MB exchanged each way",
        LINK / 1e6,
        step * 1e3,
        each_way / 1e6
    );
    let mut modes = [
        ("none", ExchangeSettings { rate: ExchangeRate::Auto, paused: true }),
        ("paced", ExchangeSettings { rate: ExchangeRate::Auto, paused: false }),
        ("not paced", ExchangeSettings { rate: ExchangeRate::Unlimited, paused: false }),
    ]
    .map(|(name, settings)| Mode { name, settings, steps: Vec::new(), sent: 0, unsent: 0 });
    // In turns, so that what else the machine does falls on all.
    for _ in 0..rounds {
        for mode in &mut modes {
            let (steps, sent, unsent) = run(mode.settings, (each_way * 4.0) as u64).await?;
            mode.steps.extend(steps);
            (mode.sent, mode.unsent) = (mode.sent + sent, mode.unsent + unsent);
        }
    }
    println!(
        "{:>12} {:>10} {:>8} {:>10} {:>8} {:>10} {:>8} {:>10}",
        "exchange", "median ms", "of none", "mean ms", "of none", "p95 ms", "MB sent", "not sent"
    );
    let (median_none, mean_none) = (modes[0].at(0.5), modes[0].mean());
    for mode in &mut modes {
        let (median, p95, mean) = (mode.at(0.5), mode.at(0.95), mode.mean());
        println!(
            "{:>12} {median:>10.1} {:>8.3} {mean:>10.1} {:>8.3} {p95:>10.1} {:>8.1} {:>10}",
            mode.name,
            median / median_none,
            mean / mean_none,
            mode.sent as f64 / 1e6,
            mode.unsent
        );
    }
    Ok(())
}

/// A pace of the exchange, and the time of steps beside it.
struct Mode {
    name: &'static str,
    settings: ExchangeSettings,
    steps: Vec<Duration>,
    sent: u64,
    unsent: u64,
}

impl Mode {
    /// Such a share of the steps took no longer, in milliseconds.
    fn at(&mut self, share: f64) -> f64 {
        self.steps.sort_unstable();
        self.steps[(self.steps.len() as f64 * share) as usize].as_secs_f64() * 1e3
    }

    fn mean(&self) -> f64 {
        self.steps.iter().sum::<Duration>().as_secs_f64() * 1e3 / self.steps.len() as f64
    }
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
    let sum = |count: fn(&shardd_api::exchange::EpochExchange) -> u64| counts.iter().map(count).sum();
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
            effort: FetchMode::Cached,
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

/// A way in: datagrams, while there are permits for their bytes.
#[derive(Clone)]
struct Wire {
    put: mpsc::Sender<Datagram>,
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

/// One way: datagrams leave at the link's speed. Those that do not fit into the queue are lost.
fn wire(relays: &mut JoinSet<()>) -> Wire {
    let (put, mut take) = mpsc::channel::<Datagram>(QUEUE / SMALL);
    relays.spawn(async move {
        let mut free = Instant::now();
        while let Some(datagram) = take.recv().await {
            // A task that is woken late makes up for it: on a busy machine the link would be slower than it
            // says.
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
                let _ = wire.put.try_send(Datagram { through, to, bytes, _place: place });
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
