//! A collective of threads that counts, for tests, where its bytes go.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Among, Collective, CollectiveError, Incoming, Link, Outgoing, Sink, ThreadCollective};

/// Counts the bytes that leave for each rank, and has its ranks on these machines.
pub(crate) struct Counted {
    inner: ThreadCollective,
    hosts: Vec<u32>,
    sent: Arc<Mutex<Vec<u64>>>,
    transfers: usize,
}

impl Counted {
    /// `hosts` are the machines of all ranks. The bytes sent so far, by rank, are shared.
    pub(crate) fn new(inner: ThreadCollective, hosts: &[u32]) -> (Counted, Arc<Mutex<Vec<u64>>>) {
        let sent = Arc::new(Mutex::new(vec![0; hosts.len()]));
        (Counted { inner, hosts: hosts.to_vec(), sent: Arc::clone(&sent), transfers: 0 }, sent)
    }

    /// The steps of algorithms so far.
    pub(crate) fn transfers(&self) -> usize {
        self.transfers
    }
}

impl Collective for Counted {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn world(&self) -> u32 {
        self.inner.world()
    }

    fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    fn link(&self) -> Link {
        self.inner.link()
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
        let mut sent = self.sent.lock().unwrap();
        outgoing.iter().for_each(|Outgoing { to, bytes }| sent[*to as usize] += bytes.len() as u64);
        drop(sent);
        self.transfers += 1;
        self.inner.transfer(outgoing, incoming, sink)
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
