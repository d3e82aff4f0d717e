//! What moves after an epoch: how much, which slots, where to. Knows no contents, only slots.
//!
//! A chunk's exchange space numbers its departing slots 0..K, partition after partition. A keyed permutation of the
//! space says where each goes, so sends and receives of one partition come from its own stretch, and balance.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use super::homes::Split;
use super::key::{Tag, key};
use super::{Epoch, Partition, Permutation, Plan, Selection};

/// The grain in one slot moves to another slot (which may be the same).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// The grain's number in the chunk's exchange space: both ends derive it.
    pub entry: u64,
    /// The partition and slot it leaves.
    pub from: (Partition, u64),
    /// The partition and slot it is in from the next epoch on.
    pub to: (Partition, u64),
}

/// The exchange after one epoch.
pub struct Exchange<'p> {
    plan: &'p Plan,
    epoch: Epoch,
    turns: Turns,
    /// Independent selections of this epoch; made when first needed.
    drawn: Vec<OnceLock<Permutation>>,
}

/// Whose turn it is to move. Two values each: partitions with one grain more, and the others.
#[derive(Clone, Copy, Debug)]
struct Turns {
    /// Turns taken before, modulo the slots of the partition.
    first: [u64; 2],
    count: [u64; 2],
}

impl Turns {
    /// The turns (from 0 in this epoch) that a chunk takes of each kind of partition.
    fn of_chunk(&self, chunk: u32, chunks: u32) -> [Range<u64>; 2] {
        let bound = |count: u64, chunk: u32| {
            (u128::from(count) * u128::from(chunk.min(chunks)) / u128::from(chunks)) as u64
        };
        self.count.map(|count| bound(count, chunk)..bound(count, chunk.saturating_add(1)))
    }
}

/// The departing slots of one chunk, numbered.
struct Space {
    first_turn: [u64; 2],
    split: Split,
    permutation: Permutation,
}

impl Plan {
    /// What moves after `epoch`. Keep it while looking at several chunks or partitions of the epoch.
    pub fn exchange(&self, epoch: Epoch) -> Exchange<'_> {
        let drawn = match self.document.selection {
            Selection::Cyclic => 0,
            Selection::Independent => self.document.partitions as usize,
        };
        Exchange { plan: self, epoch, turns: self.turns(epoch), drawn: vec![OnceLock::new(); drawn] }
    }

    /// The moves of a chunk after `epoch`, by entry.
    pub fn moves(&self, epoch: Epoch, chunk: u32) -> impl Iterator<Item = Move> + Send {
        let (exchange, space) = (self.exchange(epoch), self.space(epoch, chunk));
        (0..space.split.total()).map(move |entry| exchange.sent(&space, entry))
    }

    /// What `partition` sends in a chunk, by entry, computed from its own part: O(what it sends).
    pub fn sends(&self, epoch: Epoch, chunk: u32, partition: Partition) -> impl Iterator<Item = Move> + Send {
        let (exchange, space) = (self.exchange(epoch), self.space(epoch, chunk));
        space.entries(self.known(partition)).map(move |entry| exchange.sent(&space, entry))
    }

    /// What `partition` receives in a chunk, by slot filled, computed from its own part: O(what it receives).
    pub fn receives(
        &self,
        epoch: Epoch,
        chunk: u32,
        partition: Partition,
    ) -> impl Iterator<Item = Move> + Send {
        let (exchange, space) = (self.exchange(epoch), self.space(epoch, chunk));
        space.entries(self.known(partition)).map(move |entry| exchange.received(&space, entry))
    }

    /// How many grains `partition` exchanges after `epoch`, those that stay with it by chance included.
    pub fn exchange_count(&self, epoch: Epoch, partition: Partition) -> u64 {
        self.turns(epoch).count[self.homes.slots().class(self.known(partition))]
    }

    /// The position from which chunk `chunk` is sent: chunks start evenly over the first nine tenths of the epoch,
    /// so `chunk_due(chunk + 1)` is where it should be through.
    pub fn chunk_due(&self, chunk: u32) -> u64 {
        let chunks = self.document.chunks;
        let tenths = u128::from(self.sample_count()) * 9 * u128::from(chunk.min(chunks));
        (tenths / (10 * u128::from(chunks))) as u64
    }

    /// The first epoch from `from` on after which the grain that is in the slot in epoch `from` is exchanged.
    /// `None` if it never is, or if selection is independent and so knows no future.
    pub fn departure(&self, partition: Partition, slot: u64, from: Epoch) -> Option<Epoch> {
        match self.document.selection {
            Selection::Cyclic => self.next_turn(partition, slot, from).map(|(epoch, _)| epoch),
            Selection::Independent => None,
        }
    }

    /// The first epoch from `from` on whose exchange takes the slot, and its turn in it. Cyclic only.
    pub(super) fn next_turn(&self, partition: Partition, slot: u64, from: Epoch) -> Option<(Epoch, u64)> {
        let size = self.slot_count(partition);
        let place = self.cycle(partition).invert(slot);
        let past = self.shares.exchanged_before(size, from);
        let wait = (place + size - (past % u128::from(size)) as u64) % size;
        self.turn(size, past + u128::from(wait))
    }

    /// The last epoch before `before` whose exchange took the slot, and its turn in it. Cyclic only.
    pub(super) fn last_turn(&self, partition: Partition, slot: u64, before: Epoch) -> Option<(Epoch, u64)> {
        let size = self.slot_count(partition);
        let place = self.cycle(partition).invert(slot);
        let last = self.shares.exchanged_before(size, before).checked_sub(1)?;
        let since = ((last % u128::from(size)) as u64 + size - place) % size;
        self.turn(size, last.checked_sub(since.into())?)
    }

    fn turn(&self, size: u64, turn: u128) -> Option<(Epoch, u64)> {
        let epoch = self.shares.epoch_of_turn(size, turn)?;
        Some((epoch, (turn - self.shares.exchanged_before(size, epoch)) as u64))
    }

    /// The turn that takes the slot after `epoch`, if any does. Independent only.
    pub(super) fn drawn_turn(&self, epoch: Epoch, partition: Partition, slot: u64) -> Option<u64> {
        let turn = self.selection(epoch, partition).invert(slot);
        (turn < self.exchange_count(epoch, partition)).then_some(turn)
    }

    /// Where the grain whose turn it is after `epoch` goes.
    pub(super) fn destination(&self, epoch: Epoch, partition: Partition, turn: u64) -> (Partition, u64) {
        self.follow(epoch, partition, turn, |permutation, entry| permutation.apply(entry))
    }

    /// Where the grain that fills the slot of that turn after `epoch` comes from.
    pub(super) fn source(&self, epoch: Epoch, partition: Partition, turn: u64) -> (Partition, u64) {
        self.follow(epoch, partition, turn, |permutation, entry| permutation.invert(entry))
    }

    fn follow(
        &self,
        epoch: Epoch,
        partition: Partition,
        turn: u64,
        step: impl Fn(&Permutation, u64) -> u64,
    ) -> (Partition, u64) {
        let turns = self.turns(epoch);
        let class = self.homes.slots().class(partition);
        let chunks = self.document.chunks;
        // The chunk whose range floor(count c / T) .. floor(count (c + 1) / T) has the turn.
        let count = u128::from(turns.count[class]);
        let chunk = ((u128::from(turn) + 1) * u128::from(chunks)).div_ceil(count) as u32 - 1;
        let space = self.space(epoch, chunk);
        let entry = space.split.start(partition) + (turn - space.first_turn[class]);
        let (partition, turn) = self.departing(&space, step(&space.permutation, entry));
        let slot = match self.document.selection {
            Selection::Cyclic => self.slot_of_turn(self.cycle(partition), &turns, partition, turn),
            Selection::Independent => {
                self.slot_of_turn(&self.selection(epoch, partition), &turns, partition, turn)
            }
        };
        (partition, slot)
    }

    fn turns(&self, epoch: Epoch) -> Turns {
        let slots = self.homes.slots();
        let mut turns = Turns { first: [0; 2], count: [0; 2] };
        for (class, size) in [slots.large, slots.small].into_iter().enumerate() {
            let before = self.shares.exchanged_before(size, epoch);
            turns.count[class] = (self.shares.exchanged_before(size, epoch.next()) - before) as u64;
            turns.first[class] = (before % u128::from(size)) as u64;
        }
        turns
    }

    fn space(&self, epoch: Epoch, chunk: u32) -> Space {
        let [large, small] = self.turns(epoch).of_chunk(chunk, self.document.chunks);
        let split =
            Split { large: large.end - large.start, small: small.end - small.start, ..*self.homes.slots() };
        let key = key(self.document.seed, Tag::Exchange, epoch.0, chunk);
        let permutation = Permutation::new(&key, split.total());
        Space { first_turn: [large.start, small.start], split, permutation }
    }

    /// The partition, and its turn, of an entry.
    fn departing(&self, space: &Space, entry: u64) -> (Partition, u64) {
        let (partition, turn) = space.split.find(entry);
        (partition, turn + space.first_turn[space.split.class(partition)])
    }

    fn slot_of_turn(&self, selection: &Permutation, turns: &Turns, partition: Partition, turn: u64) -> u64 {
        match self.document.selection {
            Selection::Independent => selection.apply(turn),
            Selection::Cyclic => {
                let first = turns.first[self.homes.slots().class(partition)];
                selection.apply((first + turn) % selection.len())
            }
        }
    }

    fn selection(&self, epoch: Epoch, partition: Partition) -> Cow<'_, Permutation> {
        match self.document.selection {
            Selection::Cyclic => Cow::Borrowed(self.cycle(partition)),
            Selection::Independent => Cow::Owned(self.draw(epoch, partition)),
        }
    }

    fn cycle(&self, partition: Partition) -> &Permutation {
        self.cycles[partition.0 as usize].get_or_init(|| self.draw(Epoch(0), partition))
    }

    fn draw(&self, epoch: Epoch, partition: Partition) -> Permutation {
        let key = key(self.document.seed, Tag::Selection, epoch.0, partition.0);
        Permutation::new(&key, self.slot_count(partition))
    }
}

impl Space {
    fn entries(&self, partition: Partition) -> Range<u64> {
        let start = self.split.start(partition);
        start..start + self.split.of(partition)
    }
}

impl Exchange<'_> {
    /// The epoch after which this moves.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How many grains move in a chunk, those that stay by chance included.
    pub fn grain_count(&self, chunk: u32) -> u64 {
        self.plan.space(self.epoch, chunk).split.total()
    }

    /// Whether nothing moves after this epoch.
    pub fn is_empty(&self) -> bool {
        self.turns.count[1] == 0 && (self.turns.count[0] == 0 || self.plan.homes.slots().larger == 0)
    }

    /// As [`Plan::moves`].
    pub fn moves(&self, chunk: u32) -> impl Iterator<Item = Move> + Send {
        let space = self.plan.space(self.epoch, chunk);
        (0..space.split.total()).map(move |entry| self.sent(&space, entry))
    }

    /// As [`Plan::sends`].
    pub fn sends(&self, chunk: u32, partition: Partition) -> impl Iterator<Item = Move> + Send {
        let space = self.plan.space(self.epoch, chunk);
        space.entries(self.plan.known(partition)).map(move |entry| self.sent(&space, entry))
    }

    /// As [`Plan::receives`].
    pub fn receives(&self, chunk: u32, partition: Partition) -> impl Iterator<Item = Move> + Send {
        let space = self.plan.space(self.epoch, chunk);
        space.entries(self.plan.known(partition)).map(move |entry| self.received(&space, entry))
    }

    fn sent(&self, space: &Space, entry: u64) -> Move {
        let to = self.slot(space, space.permutation.apply(entry));
        Move { entry, from: self.slot(space, entry), to }
    }

    fn received(&self, space: &Space, filled: u64) -> Move {
        let entry = space.permutation.invert(filled);
        Move { entry, from: self.slot(space, entry), to: self.slot(space, filled) }
    }

    fn slot(&self, space: &Space, entry: u64) -> (Partition, u64) {
        let (partition, turn) = self.plan.departing(space, entry);
        let selection = match self.drawn.get(partition.0 as usize) {
            Some(drawn) => drawn.get_or_init(|| self.plan.draw(self.epoch, partition)),
            None => self.plan.cycle(partition),
        };
        (partition, self.plan.slot_of_turn(selection, &self.turns, partition, turn))
    }
}
