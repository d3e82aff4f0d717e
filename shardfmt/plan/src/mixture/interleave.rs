//! Several endless sequences merged into one, by weight, in closed form. Knows numbers only: no plans, epochs or ranks.
//!
//! A binary tree stands over the sources, made as Huffman (1952) makes a code: again and again the two lightest become one.
//! Each inner node deals the turns it is given to its two children as Bresenham (1965) draws a line: of its first k turns,
//! the heavier child has k times its weight over that of both, to the nearest integer, a half upwards. So who has turn n is
//! found on one way down the tree, a source's k-th turn on one way up, and frequent sources are near the root: log2(1/share)
//! nodes, or a few more.
//!
//! How far from its exact share a source can be after any number of turns: each node on its way adds at most 1/2, and what
//! a node is off by reaches a child in proportion to its weight. So it is at most half the sum of the source's weight over the
//! weight of each node from the source up to below the root. That is below 1 for up to three sources. In a Huffman tree each
//! sibling is no lighter than what the other is made of, so these weights grow like Fibonacci's numbers, and it is below 1.69
//! for any. (No rule keeps all of many sources within 1 - 1/(2(n-1)), Tijdeman 1980; his reaches that, but has to be
//! played from the start.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The sum of all weights may be this at most, so that products stay within 128 bits.
pub(super) const HEAVIEST: u64 = 1 << 62;

/// Turns dealt to sources by weight; after as many turns as the weights are together, it begins again.
#[derive(Clone, Debug)]
pub(super) struct Interleave {
    sources: usize,
    /// The sources, then the inner nodes in the order they were made; the last is the root.
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    weight: u64,
    /// Itself, if it is the root.
    parent: usize,
    /// The heavier child and the other; of no meaning in a source.
    children: [usize; 2],
}

impl Interleave {
    /// Sources of these weights: at least one, none of them 0, at most [`HEAVIEST`] together.
    pub(super) fn new(weights: &[u64]) -> Self {
        let leaf = |(at, weight): (usize, &u64)| Node { weight: *weight, parent: at, children: [at; 2] };
        let mut nodes: Vec<Node> = weights.iter().enumerate().map(leaf).collect();
        let mut heap: BinaryHeap<Reverse<(u64, usize)>> =
            nodes.iter().enumerate().map(|(at, node)| Reverse((node.weight, at))).collect();
        while let (Some(Reverse(light)), Some(Reverse(heavy))) = (heap.pop(), heap.pop()) {
            let at = nodes.len();
            // Of equals, the one that came first.
            let children = if light.0 == heavy.0 { [light.1, heavy.1] } else { [heavy.1, light.1] };
            let weight = light.0 + heavy.0;
            children.iter().for_each(|child| nodes[*child].parent = at);
            nodes.push(Node { weight, parent: at, children });
            heap.push(Reverse((weight, at)));
        }
        Interleave { sources: weights.len(), nodes }
    }

    pub(super) fn weight(&self, source: usize) -> u64 {
        self.nodes[source].weight
    }

    /// Turns until it begins again.
    pub(super) fn period(&self) -> u64 {
        self.nodes[self.root()].weight
    }

    /// Whose turn `turn` is, and which of its turns.
    pub(super) fn at(&self, turn: u64) -> (usize, u64) {
        let (period, mut at, mut k) = (turn / self.period(), self.root(), turn % self.period());
        while let Some([heavy, light]) = self.children(at) {
            let before = self.to_heavy(at, k);
            (at, k) = if self.to_heavy(at, k + 1) > before { (heavy, before) } else { (light, k - before) };
        }
        (at, period * self.weight(at) + k)
    }

    /// Which turn is turn `k` of a source; `None` past the last number there is.
    pub(super) fn turn(&self, source: usize, k: u64) -> Option<u64> {
        let (period, mut at, mut k) = (k / self.weight(source), source, k % self.weight(source));
        while at != self.root() {
            let (weight, parent) = (self.nodes[at].weight, self.nodes[at].parent);
            let Node { weight: both, children, .. } = self.nodes[parent];
            // The first turn by whose end the child has had k + 1, of the rounding in `to_heavy`.
            let (shares, unit) = ((2 * u128::from(k) + 1) * u128::from(both), 2 * u128::from(weight));
            k = if at == children[0] { shares.div_ceil(unit) - 1 } else { shares / unit } as u64;
            at = parent;
        }
        period.checked_mul(self.period())?.checked_add(k)
    }

    /// How many of the turns before `turn` are each source's.
    pub(super) fn before(&self, turn: u64) -> Vec<u64> {
        let mut turns = self.within_period(turn % self.period());
        turns.truncate(self.sources);
        let period = turn / self.period();
        turns.iter_mut().enumerate().for_each(|(source, turns)| *turns += period * self.weight(source));
        turns
    }

    /// The turns from `turn` on, without a division each.
    pub(super) fn walk(&self, turn: u64) -> Turns<'_> {
        let within = self.within_period(turn % self.period());
        let rest = |at: usize| {
            let [heavy, _] = self.nodes[at].children;
            let (weight, both) = (u128::from(self.nodes[heavy].weight), u128::from(self.nodes[at].weight));
            ((2 * u128::from(within[at]) * weight + both) % (2 * both)) as u64
        };
        let rests = (self.sources..self.nodes.len()).map(rest).collect();
        Turns { interleave: self, rests, next: self.before(turn) }
    }

    /// How many of the first `turns` turns of a period each node has.
    fn within_period(&self, turns: u64) -> Vec<u64> {
        let mut within = vec![turns; self.nodes.len()];
        for at in (self.sources..self.nodes.len()).rev() {
            let [heavy, light] = self.nodes[at].children;
            within[heavy] = self.to_heavy(at, within[at]);
            within[light] = within[at] - within[heavy];
        }
        within
    }

    /// How many of its first `k` turns, at most a period's, a node deals to its heavier child.
    fn to_heavy(&self, at: usize, k: u64) -> u64 {
        let Node { weight: both, children: [heavy, _], .. } = self.nodes[at];
        let weight = self.nodes[heavy].weight;
        // Most mixtures are small enough for half as many bits, and a division many times as fast.
        if both < 1 << 31 {
            return (2 * k * weight + both) / (2 * both);
        }
        ((2 * u128::from(k) * u128::from(weight) + u128::from(both)) / (2 * u128::from(both))) as u64
    }

    fn root(&self) -> usize {
        self.nodes.len() - 1
    }

    fn children(&self, at: usize) -> Option<[usize; 2]> {
        (at >= self.sources).then(|| self.nodes[at].children)
    }
}

/// Turns in their order, each with whose it is and which of its turns.
#[derive(Clone, Debug)]
pub(super) struct Turns<'a> {
    interleave: &'a Interleave,
    /// The rounding error of each inner node, in units of half a turn over its weight.
    rests: Vec<u64>,
    next: Vec<u64>,
}

impl Iterator for Turns<'_> {
    type Item = (usize, u64);

    fn next(&mut self) -> Option<(usize, u64)> {
        let nodes = &self.interleave.nodes;
        let mut at = self.interleave.root();
        while let Some([heavy, light]) = self.interleave.children(at) {
            let (rest, unit) = (&mut self.rests[at - self.interleave.sources], 2 * nodes[at].weight);
            *rest += 2 * nodes[heavy].weight;
            at = if *rest < unit {
                light
            } else {
                *rest -= unit;
                heavy
            };
        }
        let k = self.next[at];
        self.next[at] += 1;
        Some((at, k))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Twice the most that a source can be off its share, times 2^64, rounded up.
    fn bound(interleave: &Interleave, source: usize) -> u128 {
        let (mut at, mut sum) = (source, 0);
        while at != interleave.root() {
            sum += (u128::from(interleave.weight(source)) << 64)
                .div_ceil(u128::from(interleave.nodes[at].weight));
            at = interleave.nodes[at].parent;
        }
        sum
    }

    fn weights() -> impl Strategy<Value = Vec<u64>> {
        let weight = prop_oneof![
            3 => 1..20_u64,
            1 => Just(1),
            2 => 1..100_000_u64,
            2 => (0..55_u32, 1..9_u64).prop_map(|(log, times)| times << log),
        ];
        prop::collection::vec(weight, 1..20)
    }

    #[test]
    fn a_mixture_of_three_is_dealt_evenly() {
        let interleave = Interleave::new(&[7, 2, 1]);
        let turns: Vec<usize> = interleave.walk(0).take(20).map(|(source, _)| source).collect();
        assert_eq!(turns[..10], [0, 1, 0, 0, 0, 2, 0, 0, 1, 0]);
        assert_eq!(turns[..10], turns[10..]);
    }

    #[test]
    fn the_heaviest_weights_stay_within_their_bits() {
        let interleave = Interleave::new(&[HEAVIEST - 1, 1]);
        for turn in [0, 1, HEAVIEST / 2, HEAVIEST - 1, HEAVIEST, u64::MAX - 1] {
            let (source, k) = interleave.at(turn);
            assert_eq!(interleave.turn(source, k), Some(turn));
            assert_eq!(interleave.walk(turn).next(), Some((source, k)));
        }
        assert_eq!(interleave.turn(1, u64::MAX), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(10_000) })]

        #[test]
        fn both_directions_agree_and_each_source_goes_on_where_it_was(weights in weights(), start: u64, len in 0..300_usize) {
            let start = start >> (start % 63);
            let interleave = Interleave::new(&weights);
            let mut before = interleave.before(start);
            prop_assert_eq!(before.iter().sum::<u64>(), start);
            for (turn, (source, k)) in (start..).zip(interleave.walk(start)).take(len) {
                prop_assert_eq!(interleave.at(turn), (source, k));
                prop_assert_eq!(interleave.turn(source, k), Some(turn));
                prop_assert_eq!(before[source], k);
                before[source] += 1;
            }
            prop_assert_eq!(before, interleave.before(start + len as u64));
        }

        #[test]
        fn after_any_turns_each_source_is_near_its_share(weights in weights(), turns: u64) {
            let interleave = Interleave::new(&weights);
            let period = u128::from(interleave.period());
            let turns = turns % interleave.period();
            for (source, had) in interleave.before(turns).into_iter().enumerate() {
                let exact = u128::from(turns) * u128::from(weights[source]);
                let off = (u128::from(had) * period).abs_diff(exact);
                let bound = bound(&interleave, source);
                prop_assert!(off << 65 <= period * bound);
                prop_assert!(bound < 338 * (1 << 64) / 100);
                if weights.len() <= 3 {
                    prop_assert!(off < period);
                }
            }
            // A period holds each as often as its weight says, and then it begins again.
            prop_assert_eq!(interleave.before(interleave.period()), weights);
        }
    }
}
