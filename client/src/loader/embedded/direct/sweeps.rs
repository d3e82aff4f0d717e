//! In which order shards have their turns, and which rows are kept of each. Pure: rows in, turns out.
//!
//! Shards have turns in a circle, at even distances in the order that is read, so that some are always about to be refreshed:
//! of a shard with k turns behind it all rows are kept up to a horizon of k windows, less a part for its place in the
//! circle. A circle of turns thus gives a window of rows, of which half are in memory at a time. It is the elevator of disk
//! scheduling (Denning, "Effects of scheduling on file memory operations", 1967) with memory in place of deadlines.

use std::collections::VecDeque;

/// A row that will be read: its place in the order in which rows are, and its number in its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pick {
    pub(super) seq: u64,
    pub(super) row: u32,
}

/// The turn of a shard.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) shard: u32,
    /// In the order in which they are read.
    pub(super) picks: Vec<Pick>,
}

#[derive(Debug)]
pub(super) struct Sweeps {
    window: u64,
    /// How many turns there were.
    turns: u64,
    /// From the shard of a turn to that of the next. Neighbours may be read by one rank, which would have all turns at once.
    stride: u64,
    /// Of each shard the row before which its last turn picked; that of the next turn first, so they ascend.
    ends: VecDeque<u64>,
    /// Of each shard the rows known of that no turn has picked, in the order in which they are read.
    pending: Vec<VecDeque<Pick>>,
}

impl Sweeps {
    /// Of this many shards, at least 1, and windows of at least one row, for the rows from `start` on.
    pub(super) fn new(shards: usize, window: u64, start: u64) -> Self {
        Self {
            window: window.max(1),
            turns: 0,
            stride: stride(shards as u64),
            ends: VecDeque::from(vec![start; shards]),
            pending: vec![VecDeque::new(); shards],
        }
    }

    /// How many rows beyond those before `read` have to be known of for the next turn, and for some more that pick up to `ahead`
    /// rows further on.
    pub(super) fn horizon(&self, read: u64, ahead: u64) -> u64 {
        let for_next = self.next_end(read).saturating_sub(read);
        for_next.saturating_add(ahead.min(self.window / 4)).saturating_add(self.between())
    }

    /// A row will be read, after all that were announced before.
    pub(super) fn expect(&mut self, shard: u32, pick: Pick) {
        self.pending[shard as usize].push_back(pick);
    }

    /// Whether a turn will pick the row at this place, which is one of this shard.
    pub(super) fn is_pending(&self, shard: u32, seq: u64) -> bool {
        let pending = &self.pending[shard as usize];
        pending.get(pending.partition_point(|pick| pick.seq < seq)).is_some_and(|pick| pick.seq == seq)
    }

    /// Whether each shard has had a turn.
    pub(super) fn are_round(&self) -> bool {
        self.turns >= self.pending.len() as u64
    }

    /// How many rows the next turn picks, if it can be had. Rows before `read` are not wanted any more; those before `known`
    /// were announced, and these are `all` that come if that is so.
    pub(super) fn next_count(&mut self, read: u64, known: u64, all: bool) -> Option<usize> {
        let shard = self.next_shard();
        let end = self.next_end(read);
        if end > known && !all {
            return None;
        }
        let pending = &mut self.pending[shard];
        while pending.front().is_some_and(|pick| pick.seq < read) {
            pending.pop_front();
        }
        // Turns would go on for ever at the end.
        match all && self.pending.iter().all(VecDeque::is_empty) {
            true => None,
            false => Some(self.pending[shard].partition_point(|pick| pick.seq < end)),
        }
    }

    /// That turn, which picks as many rows.
    pub(super) fn next(&mut self, read: u64, count: usize) -> Turn {
        let (shard, end) = (self.next_shard(), self.next_end(read));
        self.turns += 1;
        self.ends.pop_front();
        self.ends.push_back(end);
        Turn { shard: shard as u32, picks: self.pending[shard].drain(..count).collect() }
    }

    fn next_shard(&self) -> usize {
        let shards = self.pending.len() as u64;
        (self.turns % shards * self.stride % shards) as usize
    }

    /// The row before which the next turn picks. Turns follow each other at even distances, which keeps the fewest rows; of a
    /// reader who is further on than they bring rows, the last turn that it waits for has all its window before it.
    fn next_end(&self, read: u64) -> u64 {
        let waited_for = self.ends.partition_point(|end| *end <= read) as u64;
        let behind = waited_for.saturating_sub(1).saturating_mul(self.between());
        let last = self.ends.back().expect("there is a shard");
        let regular = last.saturating_add(self.between());
        match waited_for {
            0 => regular,
            _ => regular.max(read.saturating_add(self.window.saturating_sub(behind))),
        }
    }

    /// How many rows lie between the ends of two turns.
    fn between(&self) -> u64 {
        self.window.div_ceil(self.pending.len() as u64)
    }
}

/// A step that visits each of `count` things once before it comes back, and spreads those visited so far evenly: near the golden
/// section.
pub(super) fn stride(count: u64) -> u64 {
    let golden = (count as f64 * 0.618_033_988_749_895) as u64;
    (golden.max(1)..)
        .find(|stride| divisor(*stride, count) == 1)
        .expect("a number after each multiple is none")
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A reader who takes rows in order finds each, having kept about half a window, and every circle of turns gives a
        /// window of rows; also if it reads some by itself now and then.
        #[test]
        fn each_row_is_picked_once_in_time_and_half_a_window_is_kept(
            shards in 2usize..40, window in 400u64..3000, seed in any::<u64>(),
            ahead in any::<u64>(), alone in prop::collection::vec((any::<prop::sample::Index>(), 1u64..3000), 0..4),
        ) {
            let all = 4 * window;
            let shard_of = |seq: u64| (seq ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) % shards as u64;
            let by_itself: Vec<_> = alone.iter().map(|(at, count)| (at.index(all as usize) as u64, *count)).collect();
            let mut sweeps = Sweeps::new(shards, window, 0);
            let (mut known, mut turns, mut most) = (0, 0u64, 0u64);
            let (mut kept, mut picked) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
            for read in 0..all {
                let is_read_alone = by_itself.iter().any(|(at, count)| (*at..at + count).contains(&read));
                while !is_read_alone && !kept.contains(&read) {
                    while known < all.min(read + sweeps.horizon(read, ahead)) {
                        sweeps.expect(shard_of(known) as u32, Pick { seq: known, row: known as u32 });
                        known += 1;
                    }
                    let count = sweeps.next_count(read, known, known == all).expect("a turn finds it");
                    let turn = sweeps.next(read, count);
                    turns += 1;
                    prop_assert!(turn.picks.windows(2).all(|two| two[0].seq < two[1].seq));
                    for pick in turn.picks {
                        prop_assert_eq!(shard_of(pick.seq), u64::from(turn.shard));
                        prop_assert!(picked.insert(pick.seq) && kept.insert(pick.seq), "once");
                    }
                }
                most = most.max(kept.len() as u64);
                kept.remove(&read);
            }
            prop_assert!(kept.is_empty());
            prop_assert!(most <= window * 5 / 8 + 2 * window / shards as u64, "{} of {}", most, window);
            let most_turns = (5 + by_itself.len() as u64) * shards as u64 + 1;
            prop_assert!(turns <= most_turns, "{} turns", turns);
        }
    }

    proptest! {
        #[test]
        fn a_stride_visits_all(count in 1u64..2000) {
            let step = stride(count);
            let visited: std::collections::BTreeSet<u64> = (0..count).map(|turn| turn * step % count).collect();
            prop_assert_eq!(visited.len() as u64, count);
        }
    }

    #[test]
    fn rows_that_were_read_meanwhile_are_not_picked_and_the_end_is_reached() {
        let mut sweeps = Sweeps::new(2, 8, 0);
        (0..4).for_each(|seq| sweeps.expect(0, Pick { seq, row: 9 }));
        assert_eq!(sweeps.next_count(2, 5, false), None, "more rows may come before 6");
        assert_eq!(sweeps.next_count(2, 6, false), Some(2), "not before 2");
        assert_eq!(sweeps.next(2, 2).picks.len(), 2);
        assert!(!sweeps.are_round());
        assert!(!sweeps.is_pending(0, 3), "picked, or read");
        sweeps.expect(1, Pick { seq: 6, row: 3 });
        assert!(sweeps.is_pending(1, 6) && !sweeps.is_pending(1, 5) && !sweeps.is_pending(0, 6));
        assert_eq!(sweeps.next_count(5, 13, false), Some(1), "before 13");
        assert_eq!(sweeps.next_count(7, 15, false), Some(0), "read meanwhile");
        sweeps.next(7, 0);
        assert!(sweeps.are_round());
        assert_eq!(sweeps.next_count(7, 8, false), None, "more rows may come");
        assert_eq!(sweeps.next_count(7, 8, true), None, "there are no more");
    }
}
