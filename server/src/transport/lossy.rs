//! A network in memory for quinn: datagrams arrive late, in another order, or not at all, as a seed says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::time::{Instant, Sleep, sleep_until};

/// Random numbers that are the same for a seed everywhere (splitmix64; Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// True so often.
    pub(crate) fn happens(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64 / (1u64 << 53) as f64) < probability
    }
}

/// All sockets, and the faults of their packets.
#[derive(Clone)]
pub(crate) struct Net(Arc<Mutex<State>>);

struct State {
    dice: Dice,
    inboxes: BTreeMap<SocketAddr, Inbox>,
    /// Share of datagrams that are lost.
    loss: f64,
    /// The longest that one is on its way.
    delay: Duration,
    /// The extra delay of packets from there and to there.
    slow: BTreeMap<SocketAddr, Duration>,
    /// Longer ones do not fit.
    mtu: usize,
    /// Lost links, by sender and receiver.
    cuts: BTreeSet<(SocketAddr, SocketAddr)>,
    counts: Counts,
}

/// The fate of the datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
}

#[derive(Default)]
struct Inbox {
    datagrams: BTreeMap<(Instant, u64), (SocketAddr, Vec<u8>)>,
    waker: Option<Waker>,
}

impl Net {
    pub(crate) fn new(mut dice: Dice) -> Net {
        let mtu = [1252, 1452, 9000][dice.below(3)];
        let delay = Duration::from_millis([1, 5, 15, 60][dice.below(4)]);
        let state = State {
            dice,
            inboxes: BTreeMap::new(),
            loss: 0.0,
            delay,
            slow: BTreeMap::new(),
            mtu,
            cuts: BTreeSet::new(),
            counts: Counts::default(),
        };
        Net(Arc::new(Mutex::new(state)))
    }

    /// A socket at an address; whatever waited there for the one before is gone.
    pub(crate) fn socket(&self, address: SocketAddr) -> Arc<dyn AsyncUdpSocket> {
        self.state().inboxes.insert(address, Inbox::default());
        Arc::new(Socket { net: self.clone(), address, timer: Mutex::default() })
    }

    pub(crate) fn set_loss(&self, share: f64) {
        self.state().loss = share;
    }

    /// Nothing gets from the one to the other.
    pub(crate) fn cut(&self, from: SocketAddr, to: SocketAddr) {
        self.state().cuts.insert((from, to));
    }

    /// From now on all packets from there and to there have this extra delay.
    pub(crate) fn slow_down(&self, address: SocketAddr, longer: Duration) {
        self.state().slow.insert(address, longer);
    }

    /// All ways are open and fast, and little is lost.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        state.slow.clear();
        state.cuts.clear();
        state.loss = 0.0;
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state().counts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic while held")
    }
}

impl State {
    fn send(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        self.counts.sent += 1;
        let is_cut = self.cuts.contains(&(from, to)) || bytes.len() > self.mtu;
        let is_lost = is_cut || self.dice.happens(self.loss);
        let wait = self.dice.next() % u64::try_from(self.delay.as_micros()).unwrap_or(1).max(1);
        let slow = [from, to].iter().filter_map(|end| self.slow.get(end)).sum::<Duration>();
        let at = Instant::now() + Duration::from_micros(50 + wait) + slow;
        let (Some(inbox), false) = (self.inboxes.get_mut(&to), is_lost) else {
            self.counts.lost += 1;
            return;
        };
        inbox.datagrams.insert((at, self.counts.sent), (from, bytes.to_vec()));
        if let Some(waker) = inbox.waker.take() {
            waker.wake();
        }
    }
}

struct Socket {
    net: Net,
    address: SocketAddr,
    /// Runs until the next datagram arrives.
    timer: Mutex<Option<Pin<Box<Sleep>>>>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({})", self.address)
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Always)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        let mut state = self.net.state();
        for datagram in transmit.contents.chunks(size) {
            state.send(self.address, transmit.destination, datagram);
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.net.state();
        let Some(inbox) = state.inboxes.get_mut(&self.address) else { return Poll::Pending };
        let now = Instant::now();
        let mut taken = 0;
        while taken < buffers.len().min(meta.len()) {
            let Some(next) = inbox.datagrams.first_entry().filter(|next| next.key().0 <= now) else { break };
            let (from, bytes) = next.remove();
            let length = bytes.len().min(buffers[taken].len());
            buffers[taken][..length].copy_from_slice(&bytes[..length]);
            meta[taken] = RecvMeta { addr: from, len: length, stride: length, ecn: None, dst_ip: None };
            taken += 1;
        }
        if taken > 0 {
            return Poll::Ready(Ok(taken));
        }
        inbox.waker = Some(context.waker().clone());
        let next = inbox.datagrams.keys().next().map(|(at, _)| *at);
        drop(state);
        let mut timer = self.timer.lock().expect("no panic while held");
        *timer = next.map(|at| Box::pin(sleep_until(at)));
        if timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready()) {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn max_transmit_segments(&self) -> usize {
        4
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct Always;

impl UdpPoller for Always {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
