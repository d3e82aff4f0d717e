//! The connections that ranks keep open to this node while their processes live.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// The connections of the ranks of a run to this node.
#[derive(Default)]
pub(crate) struct Connections {
    of_ranks: Mutex<BTreeMap<u32, OfRank>>,
    /// One rank at a time is attached by its connection, or lost.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone, Copy, Default)]
struct OfRank {
    open: u32,
    /// How many there have been.
    opened: u64,
}

/// A rank has no connection any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Disconnected {
    rank: u32,
    /// How many connections it had had by then.
    opened: u64,
}

impl Connections {
    /// Until it is dropped, no other rank of the run is attached by its connection, or lost.
    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    pub(crate) fn open(&self, rank: u32) {
        let mut ranks = self.of_ranks.lock().expect("no panic while held");
        let of_rank = ranks.entry(rank).or_default();
        of_rank.open += 1;
        of_rank.opened += 1;
    }

    /// One has ended; what is left to say if it was the last.
    pub(crate) fn close(&self, rank: u32) -> Option<Disconnected> {
        let mut ranks = self.of_ranks.lock().expect("no panic while held");
        let of_rank = ranks.get_mut(&rank).expect("it was opened");
        of_rank.open -= 1;
        (of_rank.open == 0).then_some(Disconnected { rank, opened: of_rank.opened })
    }

    /// Whether the rank has opened none since.
    pub(crate) fn is_still(&self, disconnected: Disconnected) -> bool {
        let ranks = self.of_ranks.lock().expect("no panic while held");
        ranks.get(&disconnected.rank).is_some_and(|of_rank| of_rank.opened == disconnected.opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_disconnected_from_its_last_connection_to_its_next() {
        let connections = Connections::default();
        connections.open(3);
        connections.open(3);
        connections.open(4);
        assert_eq!(connections.close(3), None);
        let first = connections.close(3).expect("the last of rank 3");
        assert!(connections.is_still(first));
        connections.open(3);
        assert!(!connections.is_still(first));
        let second = connections.close(3).expect("the last again");
        assert!(!connections.is_still(first), "it was there in between");
        assert!(connections.is_still(second));
    }
}
