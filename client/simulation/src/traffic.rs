//! Counts an exchange, move by move: between which nodes, and how much. Knows nothing of bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use shardd_api::protocol::Placement;
use shardd_plan::{Epoch, Partition, Plan};

use super::mixing::Homes;

/// The moves of one exchange. Vectors have an entry for each host of the placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Traffic {
    /// Grains whose turn it was.
    pub(super) exchanged: u64,
    /// Those that moved to another partition.
    pub(super) moved: u64,
    /// Those that left each node for another...
    pub(super) sent: Vec<u64>,
    /// ...and those that arrived from another.
    pub(super) received: Vec<u64>,
    /// How many other nodes each one sends to or receives from.
    pub(super) peers: Vec<u32>,
}

impl Traffic {
    /// Plays the exchange after `epoch`, and lets `homes` follow it. Chunks are counted side by side.
    pub(super) fn count(
        plan: &Plan,
        epoch: Epoch,
        placement: &Placement,
        homes: &mut Homes,
        advance: &(impl Fn(u64) + Sync),
    ) -> Traffic {
        let host_of = |partition: Partition| usize::from(placement.of_partition[partition.0 as usize]);
        let hosts = placement.hosts.len();
        let zeros = || (0..hosts).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let (moved, sent, received) = (AtomicU64::new(0), zeros(), zeros());
        let met = Met::new(hosts);
        let exchange = plan.exchange(epoch);
        let seen: &Homes = homes;
        let arrivals: Vec<_> = (0..plan.document().chunks)
            .into_par_iter()
            .map(|chunk| {
                let (mut changed, mut arrivals) = (0, seen.arrivals(exchange.grain_count(chunk)));
                for one in exchange.moves(chunk) {
                    arrivals.push(seen, &one);
                    if one.from.0 == one.to.0 {
                        continue;
                    }
                    changed += 1;
                    let (from, to) = (host_of(one.from.0), host_of(one.to.0));
                    if from != to {
                        sent[from].fetch_add(1, Ordering::Relaxed);
                        received[to].fetch_add(1, Ordering::Relaxed);
                        met.meet(from, to);
                    }
                }
                moved.fetch_add(changed, Ordering::Relaxed);
                advance(exchange.grain_count(chunk));
                arrivals
            })
            .collect();
        homes.settle(arrivals);
        let values = |counts: Vec<AtomicU64>| counts.into_iter().map(AtomicU64::into_inner).collect();
        Traffic {
            exchanged: (0..plan.document().chunks).map(|chunk| exchange.grain_count(chunk)).sum(),
            moved: moved.into_inner(),
            sent: values(sent),
            received: values(received),
            peers: met.peers(),
        }
    }
}

/// Who has met whom: a bit for each pair, both ways round.
struct Met {
    words: usize,
    bits: Vec<AtomicU64>,
}

impl Met {
    fn new(hosts: usize) -> Met {
        let words = hosts.div_ceil(64);
        Met { words, bits: (0..hosts * words).map(|_| AtomicU64::new(0)).collect() }
    }

    fn meet(&self, one: usize, other: usize) {
        for (row, column) in [(one, other), (other, one)] {
            let (word, bit) = (&self.bits[row * self.words + column / 64], 1 << (column % 64));
            // Most pairs have met before, and looking is cheaper than writing.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    fn peers(self) -> Vec<u32> {
        let row = |row: &[AtomicU64]| row.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum();
        self.bits.chunks(self.words).map(row).collect()
    }
}
