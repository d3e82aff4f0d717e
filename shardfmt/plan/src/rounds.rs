//! The global order of positions over partitions, in closed form. Knows how many samples each partition has, not which.
//!
//! Round j visits every partition with more than j samples, in the order sigma(0), sigma(1), …: until the smallest
//! partition is exhausted, a position is a division away from its partition. After that the rounds shrink, and a tree
//! of sorted sizes counts the partitions that are left in O(log² P).

use super::Partition;

/// Positions of an epoch, dealt to partitions round by round.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    sizes: Vec<u64>,
    total: u64,
    /// The partition visited at each place of a round, and the inverse.
    sigma: Vec<u32>,
    place: Vec<u32>,
    /// Stretches of rounds that visit the same partitions.
    stretches: Vec<Stretch>,
    /// Level l: the sizes in order of visit, sorted within aligned blocks of 2^l. Empty if all sizes are equal.
    sorted: Vec<Vec<u64>>,
}

#[derive(Clone, Copy, Debug)]
struct Stretch {
    first_round: u64,
    first_position: u64,
    visited: u64,
}

impl Rounds {
    /// Rounds over partitions of these sizes, none of them 0.
    pub(crate) fn new(sizes: &[u64]) -> Self {
        let partitions = sizes.len() as u32;
        let factors = factors(partitions);
        let sigma: Vec<u32> = (0..partitions).map(|i| reverse_digits(i, &factors)).collect();
        let mut place = vec![0; sigma.len()];
        for (i, m) in sigma.iter().enumerate() {
            place[*m as usize] = i as u32;
        }
        let mut ascending = sizes.to_vec();
        ascending.sort_unstable();
        let stretches = stretches(&ascending);
        let sorted = if stretches.len() > 1 { sorted_levels(&sigma, sizes) } else { vec![] };
        Rounds { sizes: sizes.to_vec(), total: sizes.iter().sum(), sigma, place, stretches, sorted }
    }

    pub(crate) fn size(&self, partition: Partition) -> u64 {
        self.sizes[partition.0 as usize]
    }

    /// The partition visited at a position, and which of its visits that is.
    pub(crate) fn at(&self, position: u64) -> (Partition, u64) {
        assert!(position < self.total, "position {position} is past the {} of an epoch", self.total);
        let stretch = self.stretch(|stretch| stretch.first_position <= position);
        let since = position - stretch.first_position;
        let (round, nth) = (stretch.first_round + since / stretch.visited, since % stretch.visited);
        let place = if stretch.first_round == 0 { nth } else { self.nth_left(nth, round) };
        (Partition(self.sigma[place as usize]), round)
    }

    /// The position of visit `j` of a partition.
    pub(crate) fn position(&self, partition: Partition, j: u64) -> u64 {
        assert!(
            j < self.size(partition),
            "partition {partition} has {} samples, no {j}",
            self.size(partition)
        );
        let stretch = self.stretch(|stretch| stretch.first_round <= j);
        let place = u64::from(self.place[partition.0 as usize]);
        let nth = if stretch.first_round == 0 { place } else { self.left_before(place, j) };
        stretch.first_position + (j - stretch.first_round) * stretch.visited + nth
    }

    /// How many visits of a partition lie before `position`, at most the end of the epoch.
    pub(crate) fn visits_before(&self, partition: Partition, position: u64) -> u64 {
        let stretch = self.stretch(|stretch| stretch.first_position <= position);
        let since = position - stretch.first_position;
        let (round, nth) = (stretch.first_round + since / stretch.visited, since % stretch.visited);
        if self.size(partition) <= round {
            return self.size(partition);
        }
        let place = u64::from(self.place[partition.0 as usize]);
        let own = if stretch.first_round == 0 { place } else { self.left_before(place, round) };
        round + u64::from(own < nth)
    }

    fn stretch(&self, is_begun: impl Fn(&Stretch) -> bool) -> Stretch {
        match self.stretches.get(1) {
            Some(second) if is_begun(second) => self.stretches[self.stretches.partition_point(is_begun) - 1],
            _ => self.stretches[0],
        }
    }

    /// How many of the first `places` places of a round have more than `round` samples.
    fn left_before(&self, places: u64, round: u64) -> u64 {
        let mut left = 0;
        for (level, sizes) in self.sorted.iter().enumerate() {
            if places >> level & 1 == 1 {
                let start = (places >> (level + 1) << (level + 1)) as usize;
                left += above(&sizes[start..start + (1 << level)], round);
            }
        }
        left
    }

    /// The place of the `nth` (from 0) partition in visiting order that has more than `round` samples.
    fn nth_left(&self, mut nth: u64, round: u64) -> u64 {
        let mut start = 0;
        for (level, sizes) in self.sorted.iter().enumerate().rev() {
            let end = (start + (1 << level)).min(sizes.len());
            let left = above(&sizes[start..end], round);
            if nth >= left {
                nth -= left;
                start = end;
            }
        }
        start as u64
    }
}

/// How many of the ascending `sizes` are above `round`.
fn above(sizes: &[u64], round: u64) -> u64 {
    (sizes.len() - sizes.partition_point(|size| *size <= round)) as u64
}

fn stretches(ascending: &[u64]) -> Vec<Stretch> {
    let mut next = Stretch { first_round: 0, first_position: 0, visited: ascending.len() as u64 };
    let mut stretches = vec![];
    for equal in ascending.chunk_by(|a, b| a == b) {
        stretches.push(next);
        next.first_position += (equal[0] - next.first_round) * next.visited;
        next.first_round = equal[0];
        next.visited -= equal.len() as u64;
    }
    stretches
}

fn sorted_levels(sigma: &[u32], sizes: &[u64]) -> Vec<Vec<u64>> {
    let mut level: Vec<u64> = sigma.iter().map(|m| sizes[*m as usize]).collect();
    let mut levels = vec![];
    let mut width = 1;
    while width < sigma.len() {
        levels.push(level.clone());
        width *= 2;
        level.chunks_mut(width).for_each(<[u64]>::sort_unstable);
    }
    levels.push(level);
    levels
}

/// The prime factors of `n`, ascending, so the twos first.
fn factors(mut n: u32) -> Vec<u32> {
    let mut factors = vec![];
    let mut factor = 2;
    while n > 1 {
        if u64::from(factor) * u64::from(factor) > u64::from(n) {
            factor = n;
        }
        while n.is_multiple_of(factor) {
            factors.push(factor);
            n /= factor;
        }
        factor += 1;
    }
    factors
}

/// Reads `i` as digits in the mixed radix of `factors`, lowest first, and writes them back highest first.
fn reverse_digits(mut i: u32, factors: &[u32]) -> u32 {
    factors.iter().fold(0, |reversed, factor| {
        let digit = i % factor;
        i /= factor;
        reversed * factor + digit
    })
}
