//! Merged sequences whose weights change at given turns. Each stretch of one set of weights is an [`Interleave`]; a source continues
//! in the next stretch behind the turns that it had before. Knows numbers only.

use super::interleave::{Interleave, Turns};

/// Turns dealt to sources by weights that hold for a stretch of turns each.
#[derive(Clone, Debug)]
pub(super) struct Phases {
    /// Ascending; the first begins at turn 0.
    phases: Vec<Phase>,
}

#[derive(Clone, Debug)]
struct Phase {
    from: u64,
    /// Turns that each source had before it.
    before: Vec<u64>,
    /// The sources that have turns in it.
    sources: Vec<usize>,
    interleave: Interleave,
}

impl Phases {
    /// Weights from turn 0 on; those of later phases are added with [`then`](Self::then).
    pub(super) fn new(weights: &[u64]) -> Self {
        Phases { phases: vec![Phase::new(0, vec![0; weights.len()], weights)] }
    }

    /// Other weights from a turn on, which is behind the begin of all phases so far.
    #[must_use]
    pub(super) fn then(mut self, from: u64, weights: &[u64]) -> Self {
        let before = self.before(from);
        self.phases.push(Phase::new(from, before, weights));
        self
    }

    /// Whose turn `turn` is, and which of its turns.
    pub(super) fn at(&self, turn: u64) -> (usize, u64) {
        let phase = self.phase_of(turn);
        phase.named(phase.interleave.at(turn - phase.from))
    }

    /// Which turn is turn `k` of a source; `None` past the last there is.
    pub(super) fn turn(&self, source: usize, k: u64) -> Option<u64> {
        let phase = &self.phases[self.phases.partition_point(|phase| phase.before[source] <= k) - 1];
        let own = phase.sources.binary_search(&source).ok()?;
        phase.interleave.turn(own, k - phase.before[source])?.checked_add(phase.from)
    }

    /// How many of the turns before `turn` are each source's.
    pub(super) fn before(&self, turn: u64) -> Vec<u64> {
        let phase = self.phase_of(turn);
        let mut before = phase.before.clone();
        for (source, turns) in phase.sources.iter().zip(phase.interleave.before(turn - phase.from)) {
            before[*source] += turns;
        }
        before
    }

    /// The turns from `turn` on, without a search and a division each.
    pub(super) fn walk(&self, turn: u64) -> PhasedTurns<'_> {
        let at = self.index_of(turn);
        let turns = self.phases[at].interleave.walk(turn - self.phases[at].from);
        PhasedTurns { phases: &self.phases, at, turns, left: self.end_of(at) - turn }
    }

    fn phase_of(&self, turn: u64) -> &Phase {
        &self.phases[self.index_of(turn)]
    }

    fn index_of(&self, turn: u64) -> usize {
        self.phases.partition_point(|phase| phase.from <= turn) - 1
    }

    fn end_of(&self, at: usize) -> u64 {
        self.phases.get(at + 1).map_or(u64::MAX, |next| next.from)
    }
}

impl Phase {
    fn new(from: u64, before: Vec<u64>, weights: &[u64]) -> Self {
        let of = weights.iter().enumerate().filter(|(_, weight)| **weight > 0);
        let (sources, weights): (Vec<usize>, Vec<u64>) = of.map(|(source, weight)| (source, *weight)).unzip();
        Phase { from, before, sources, interleave: Interleave::new(&weights) }
    }

    /// A turn of the phase as one of all sources and phases.
    fn named(&self, (own, k): (usize, u64)) -> (usize, u64) {
        let source = self.sources[own];
        (source, self.before[source] + k)
    }
}

/// Turns in their order, each with whose it is and which of its turns.
#[derive(Clone, Debug)]
pub(super) struct PhasedTurns<'a> {
    phases: &'a [Phase],
    at: usize,
    turns: Turns<'a>,
    /// Turns until the next phase.
    left: u64,
}

impl Iterator for PhasedTurns<'_> {
    type Item = (usize, u64);

    fn next(&mut self) -> Option<(usize, u64)> {
        if self.left == 0 {
            let next = self.phases.get(self.at + 1)?;
            let end = self.phases.get(self.at + 2).map_or(u64::MAX, |after| after.from);
            (self.at, self.turns, self.left) = (self.at + 1, next.interleave.walk(0), end - next.from);
        }
        self.left -= 1;
        self.turns.next().map(|turn| self.phases[self.at].named(turn))
    }
}
