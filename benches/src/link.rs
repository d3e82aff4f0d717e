//! A network link between ranks that are threads: messages are moved through memory as ever, and a transfer ends no sooner than such a link
//! would have carried them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use shardd_trainer::collective::{
    Among, Collective, CollectiveError, Incoming, Link, Outgoing, Place, Sink, ThreadCollective, threads,
};

/// How long a rank waits for another one: slow links are slow.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The speed and latency of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// Bytes per second that a rank can send, and as many that it can receive at the same time.
    pub bytes_per_s: f64,
    /// From the first byte's departure to its arrival.
    pub latency: Duration,
}

impl LinkSpeed {
    /// `gbit_per_s` Gbit/s, with the latency of a network within a room.
    pub fn gbit(gbit_per_s: f64) -> LinkSpeed {
        LinkSpeed { bytes_per_s: gbit_per_s * 1e9 / 8.0, latency: Duration::from_micros(50) }
    }

    /// How long a transfer takes that sends and receives these numbers of bytes.
    pub fn time(self, sent: usize, received: usize) -> Duration {
        self.latency + Duration::from_secs_f64(sent.max(received) as f64 / self.bytes_per_s)
    }
}

impl fmt::Display for LinkSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} Gbit/s", self.bytes_per_s * 8.0 / 1e9)
    }
}

/// The links of a world, which can be made faster and slower between steps; `None` is memory itself.
#[derive(Clone, Debug, Default)]
pub struct Links(Arc<Mutex<Option<LinkSpeed>>>);

impl Links {
    /// Has all messages from now on travel so fast.
    pub fn set(&self, speed: Option<LinkSpeed>) {
        *self.0.lock().expect("no panic while held") = speed;
    }

    fn speed(&self) -> Option<LinkSpeed> {
        *self.0.lock().expect("no panic while held")
    }
}

/// For how long a rank's link was in use.
#[derive(Clone, Debug, Default)]
pub struct Usage(Arc<AtomicU64>);

impl Usage {
    /// So far.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// A rank's end of its link.
pub struct Shaped {
    inner: ThreadCollective,
    links: Links,
    usage: Usage,
}

/// The members of a world on such links, in rank order, and for each how long its link was in use.
pub fn world(ranks: u32, links: &Links) -> Vec<(Shaped, Usage)> {
    let member = |inner| {
        let usage = Usage::default();
        (Shaped { inner, links: links.clone(), usage: usage.clone() }, usage)
    };
    threads::world(ranks, TIMEOUT).into_iter().map(member).collect()
}

impl Collective for Shaped {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn world(&self) -> u32 {
        self.inner.world()
    }

    fn hosts(&self) -> &[u32] {
        self.inner.hosts()
    }

    fn link(&self) -> Link {
        Link::Network
    }

    fn begin(&mut self, among: Among) {
        self.inner.begin(among);
    }

    fn transfer(
        &mut self,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        sink: Sink<'_>,
    ) -> Result<(), CollectiveError> {
        let Some(speed) = self.links.speed() else { return self.inner.transfer(outgoing, incoming, sink) };
        // The link carries something from when all are there who send and receive it.
        let there: Vec<Outgoing<'_>> = outgoing.iter().map(|it| Outgoing { to: it.to, bytes: &[] }).collect();
        let mut here: Vec<Incoming<'_>> =
            incoming.iter().map(|it| Incoming { from: it.from, into: Place::Slice(&mut []) }).collect();
        self.inner.transfer(&there, &mut here, &mut |_| {})?;
        let met = Instant::now();
        self.inner.transfer(outgoing, incoming, sink)?;
        let sent = outgoing.iter().map(|message| message.bytes.len()).sum();
        let received = incoming.iter().map(|message| match &message.into {
            Place::Slice(bytes) => bytes.len(),
            Place::Whole(bytes) => bytes.len(),
            Place::Sink(length) => *length,
        });
        let time = speed.time(sent, received.sum());
        self.usage.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        thread::sleep((met + time).saturating_duration_since(Instant::now()));
        Ok(())
    }

    fn abort(&mut self, reason: &str) {
        self.inner.abort(reason);
    }

    fn bytes_sent(&self) -> u64 {
        self.inner.bytes_sent()
    }

    fn waits(&self) -> &[Duration] {
        self.inner.waits()
    }

    fn waited(&self) -> Duration {
        self.inner.waited()
    }
}

#[cfg(test)]
mod tests {
    use shardd_trainer::collective::conformance;

    use super::*;

    fn on(speed: Option<LinkSpeed>) -> impl Fn(u32, Duration) -> Vec<Box<dyn Collective>> {
        move |ranks, timeout| {
            let links = Links::default();
            links.set(speed);
            let member = |inner| -> Box<dyn Collective> {
                Box::new(Shaped { inner, links: links.clone(), usage: Usage::default() })
            };
            threads::world(ranks, timeout).into_iter().map(member).collect()
        }
    }

    #[test]
    fn a_shaped_link_keeps_the_promises_of_a_collective() {
        conformance::run(&on(Some(LinkSpeed::gbit(100.0))));
        conformance::run(&on(None));
    }

    #[test]
    fn a_transfer_takes_as_long_as_its_longer_direction() {
        let speed = LinkSpeed { bytes_per_s: 1e6, latency: Duration::from_millis(1) };
        assert_eq!(speed.time(2_000, 1_000), Duration::from_millis(3));
        assert_eq!(speed.time(0, 5_000), Duration::from_millis(6));
    }
}
