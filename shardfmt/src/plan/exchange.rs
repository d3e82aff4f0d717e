//! What moves after an epoch: how much, which slots, where to. Knows no contents, only slots.
//!
//! A chunk's exchange space numbers its departing slots 0..K, stratum after stratum and partition after partition. A keyed
//! permutation of each stratum's part says where each goes, so sends and receives of one partition come from its own
//! stretches, and balance.

use std::borrow::{Borrow, Cow};
use std::ops::Range;
use std::sync::OnceLock;

use super::homes::Cell;
use super::key::{Tag, stratum_key};
use super::split::Split;
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
    /// Of each stratum.
    turns: Vec<Turns>,
    /// Independent selections of this epoch; made when first needed.
    drawn: Vec<OnceLock<Box<Permutation>>>,
}

/// Whose turn it is to move, of one stratum. Two values each: partitions with one grain more, and the others.
#[derive(Clone, Copy, Debug)]
struct Turns {
    stratum: usize,
    /// Turns taken before, modulo the slots of the cell.
    first: [u64; 2],
    count: [u64; 2],
}

/// The departing slots of one chunk and stratum, numbered.
struct Part {
    first_turn: [u64; 2],
    split: Split,
}

impl Turns {
    /// The turns (from 0 in this epoch) that a chunk takes of each kind of partition. Each stratum's begin elsewhere, so
    /// that small ones do not all move in the last chunk.
    fn of_chunk(&self, chunk: u32, chunks: u32) -> [Range<u64>; 2] {
        let ahead = chunk_phase(self.stratum, chunks);
        let bound = |count: u64, chunk: u32| {
            ((u128::from(count) * u128::from(chunk.min(chunks)) + ahead) / u128::from(chunks)) as u64
        };
        self.count.map(|count| bound(count, chunk)..bound(count, chunk.saturating_add(1)))
    }

    /// The chunk that takes a turn.
    fn chunk_of(&self, class: usize, turn: u64, chunks: u32) -> u32 {
        let ahead = chunk_phase(self.stratum, chunks);
        let through = (u128::from(turn) + 1) * u128::from(chunks) - ahead;
        through.div_ceil(u128::from(self.count[class])) as u32 - 1
    }
}

/// By how much of a turn the turns of a stratum are ahead when an epoch begins, in units of 1 / `chunks`.
fn chunk_phase(stratum: usize, chunks: u32) -> u128 {
    stratum as u128 % u128::from(chunks)
}

/// By how much of a turn those of a stratum are ahead when epoch 0 begins, in units of 2^-32: the multiples of the golden
/// ratio lie evenly, so that in each epoch as many small strata have one turn more than others.
fn epoch_phase(stratum: usize) -> u32 {
    (stratum as u32).wrapping_mul(0x9E37_79B9)
}

impl Plan {
    /// What moves after `epoch`. Keep it while looking at several chunks or partitions of the epoch.
    pub fn exchange(&self, epoch: Epoch) -> Exchange<'_> {
        let drawn = match self.document.selection {
            Selection::Cyclic => 0,
            Selection::Independent => self.cycles.len(),
        };
        let turns = (0..self.homes.strata()).map(|stratum| self.turns(epoch, stratum)).collect();
        Exchange { plan: self, epoch, turns, drawn: vec![OnceLock::new(); drawn] }
    }

    /// The moves of a chunk after `epoch`, by entry.
    pub fn moves(&self, epoch: Epoch, chunk: u32) -> impl Iterator<Item = Move> + Send {
        Walk::new(self.exchange(epoch), chunk, None, Exchange::sent)
    }

    /// What `partition` sends in a chunk, by entry, computed from its own part: O(what it sends).
    pub fn sends(&self, epoch: Epoch, chunk: u32, partition: Partition) -> impl Iterator<Item = Move> + Send {
        Walk::new(self.exchange(epoch), chunk, Some(self.known(partition)), Exchange::sent)
    }

    /// What `partition` receives in a chunk, by slot filled, computed from its own part: O(what it receives).
    pub fn receives(
        &self,
        epoch: Epoch,
        chunk: u32,
        partition: Partition,
    ) -> impl Iterator<Item = Move> + Send {
        Walk::new(self.exchange(epoch), chunk, Some(self.known(partition)), Exchange::received)
    }

    /// How many grains `partition` exchanges after `epoch`, those that stay with it by chance included.
    pub fn exchange_count(&self, epoch: Epoch, partition: Partition) -> u64 {
        let partition = self.known(partition);
        let of_stratum = |stratum| {
            let class = self.homes.slots_of(stratum).class(partition);
            self.turns(epoch, stratum).count[class]
        };
        (0..self.homes.strata()).map(of_stratum).sum()
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
        let cell = self.homes.cell_of(partition, slot);
        let place = self.cycle(&cell).invert(slot - cell.start);
        let past = self.exchanged_before(&cell, from);
        let wait = (place + cell.size - (past % u128::from(cell.size)) as u64) % cell.size;
        self.turn(&cell, past + u128::from(wait))
    }

    /// The last epoch before `before` whose exchange took the slot, and its turn in it. Cyclic only.
    pub(super) fn last_turn(&self, partition: Partition, slot: u64, before: Epoch) -> Option<(Epoch, u64)> {
        let cell = self.homes.cell_of(partition, slot);
        let place = self.cycle(&cell).invert(slot - cell.start);
        let last = self.exchanged_before(&cell, before).checked_sub(1)?;
        let since = ((last % u128::from(cell.size)) as u64 + cell.size - place) % cell.size;
        self.turn(&cell, last.checked_sub(since.into())?)
    }

    fn turn(&self, cell: &Cell, turn: u128) -> Option<(Epoch, u64)> {
        let epoch = self.shares.epoch_of_turn(cell.size, epoch_phase(cell.stratum), turn)?;
        Some((epoch, (turn - self.exchanged_before(cell, epoch)) as u64))
    }

    fn exchanged_before(&self, cell: &Cell, epoch: Epoch) -> u128 {
        self.shares.exchanged_before(cell.size, epoch_phase(cell.stratum), epoch)
    }

    /// The turn that takes the slot after `epoch`, if any does. Independent only.
    pub(super) fn drawn_turn(&self, epoch: Epoch, partition: Partition, slot: u64) -> Option<u64> {
        let cell = self.homes.cell_of(partition, slot);
        let turn = self.draw(epoch, &cell).invert(slot - cell.start);
        let count = self.exchanged_before(&cell, epoch.next()) - self.exchanged_before(&cell, epoch);
        (u128::from(turn) < count).then_some(turn)
    }

    /// Where the grain in a slot goes whose turn it is after `epoch`.
    pub(super) fn destination(&self, epoch: Epoch, from: (Partition, u64), turn: u64) -> (Partition, u64) {
        self.follow(epoch, from, turn, Permutation::apply)
    }

    /// Where the grain comes from that fills a slot whose turn it is after `epoch`.
    pub(super) fn source(&self, epoch: Epoch, filled: (Partition, u64), turn: u64) -> (Partition, u64) {
        self.follow(epoch, filled, turn, Permutation::invert)
    }

    fn follow(
        &self,
        epoch: Epoch,
        (partition, slot): (Partition, u64),
        turn: u64,
        step: impl Fn(&Permutation, u64) -> u64,
    ) -> (Partition, u64) {
        let stratum = self.homes.cell_of(partition, slot).stratum;
        let turns = self.turns(epoch, stratum);
        let class = self.homes.slots_of(stratum).class(partition);
        let chunk = turns.chunk_of(class, turn, self.document.chunks);
        let part = self.part(&turns, chunk);
        let entry = part.split.start(partition) + (turn - part.first_turn[class]);
        let goes = self.goes(epoch, chunk, stratum, &part);
        let (partition, turn) = self.departing(stratum, &part, step(&goes, entry));
        let cell = self.homes.cell(stratum, partition);
        let selection = match self.document.selection {
            Selection::Cyclic => Cow::Borrowed(self.cycle(&cell)),
            Selection::Independent => Cow::Owned(self.draw(epoch, &cell)),
        };
        (partition, self.slot_of_turn(&selection, &turns, &cell, turn))
    }

    fn turns(&self, epoch: Epoch, stratum: usize) -> Turns {
        let (slots, phase) = (self.homes.slots_of(stratum), epoch_phase(stratum));
        let mut turns = Turns { stratum, first: [0; 2], count: [0; 2] };
        for (class, size) in [slots.large, slots.small].into_iter().enumerate() {
            let before = self.shares.exchanged_before(size, phase, epoch);
            turns.count[class] = (self.shares.exchanged_before(size, phase, epoch.next()) - before) as u64;
            turns.first[class] = (before % u128::from(size.max(1))) as u64;
        }
        turns
    }

    fn part(&self, turns: &Turns, chunk: u32) -> Part {
        let [large, small] = turns.of_chunk(chunk, self.document.chunks);
        let slots = *self.homes.slots_of(turns.stratum);
        let split = Split { large: large.end - large.start, small: small.end - small.start, ..slots };
        Part { first_turn: [large.start, small.start], split }
    }

    /// Which entry's slot the grain of each entry goes to.
    fn goes(&self, epoch: Epoch, chunk: u32, stratum: usize, part: &Part) -> Permutation {
        let key = stratum_key(self.document.seed, Tag::Exchange, epoch.0, chunk, stratum);
        Permutation::new(&key, part.split.total())
    }

    /// The partition, and its turn, of an entry.
    fn departing(&self, stratum: usize, part: &Part, entry: u64) -> (Partition, u64) {
        let (partition, turn) = part.split.find(entry);
        (partition, turn + part.first_turn[self.homes.slots_of(stratum).class(partition)])
    }

    fn slot_of_turn(&self, selection: &Permutation, turns: &Turns, cell: &Cell, turn: u64) -> u64 {
        let place = match self.document.selection {
            Selection::Independent => turn,
            Selection::Cyclic => {
                let first = turns.first[self.homes.slots_of(cell.stratum).class(cell.partition)];
                let place = first + turn; // of fewer turns than the cell has slots each
                if place >= cell.size { place - cell.size } else { place }
            }
        };
        cell.start + selection.apply(place)
    }

    fn cycle(&self, cell: &Cell) -> &Permutation {
        self.cycles[self.cell_no(cell)].get_or_init(|| Box::new(self.draw(Epoch(0), cell)))
    }

    fn draw(&self, epoch: Epoch, cell: &Cell) -> Permutation {
        let key = stratum_key(self.document.seed, Tag::Selection, epoch.0, cell.partition.0, cell.stratum);
        Permutation::new(&key, cell.size)
    }

    fn cell_no(&self, cell: &Cell) -> usize {
        cell.stratum * self.document.partitions as usize + cell.partition.0 as usize
    }
}

impl Exchange<'_> {
    /// The epoch after which this moves.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How many grains move in a chunk, those that stay by chance included.
    pub fn grain_count(&self, chunk: u32) -> u64 {
        self.turns.iter().map(|turns| self.plan.part(turns, chunk).split.total()).sum()
    }

    /// Whether nothing moves after this epoch.
    pub fn is_empty(&self) -> bool {
        let is_still = |turns: &Turns| {
            let larger = self.plan.homes.slots_of(turns.stratum).larger;
            turns.count[1] == 0 && (turns.count[0] == 0 || larger == 0)
        };
        self.turns.iter().all(is_still)
    }

    /// As [`Plan::moves`].
    pub fn moves(&self, chunk: u32) -> impl Iterator<Item = Move> + Send {
        Walk::new(self, chunk, None, Exchange::sent)
    }

    /// As [`Plan::sends`].
    pub fn sends(&self, chunk: u32, partition: Partition) -> impl Iterator<Item = Move> + Send {
        Walk::new(self, chunk, Some(self.plan.known(partition)), Exchange::sent)
    }

    /// As [`Plan::receives`].
    pub fn receives(&self, chunk: u32, partition: Partition) -> impl Iterator<Item = Move> + Send {
        Walk::new(self, chunk, Some(self.plan.known(partition)), Exchange::received)
    }

    fn sent(&self, space: &Space, entry: u64) -> Move {
        let to = self.slot(space, space.goes.apply(entry));
        Move { entry: space.first_entry + entry, from: self.slot(space, entry), to }
    }

    fn received(&self, space: &Space, filled: u64) -> Move {
        let entry = space.goes.invert(filled);
        let from = self.slot(space, entry);
        Move { entry: space.first_entry + entry, from, to: self.slot(space, filled) }
    }

    fn slot(&self, space: &Space, entry: u64) -> (Partition, u64) {
        let (plan, stratum) = (self.plan, space.stratum);
        let (partition, turn) = plan.departing(stratum, &space.part, entry);
        let cell = plan.homes.cell(stratum, partition);
        let selection = match plan.document.selection {
            Selection::Cyclic => plan.cycle(&cell),
            Selection::Independent => {
                self.drawn[plan.cell_no(&cell)].get_or_init(|| Box::new(plan.draw(self.epoch, &cell)))
            }
        };
        (partition, plan.slot_of_turn(selection, &self.turns[stratum], &cell, turn))
    }
}

/// One stratum's part of a chunk's exchange space.
struct Space {
    stratum: usize,
    /// What the numbers of its entries begin with.
    first_entry: u64,
    part: Part,
    goes: Permutation,
}

/// The moves of a chunk, or those of a partition in it, stratum after stratum.
struct Walk<E, F> {
    exchange: E,
    chunk: u32,
    partition: Option<Partition>,
    /// The stratum that comes next, and its first entry.
    next: usize,
    first_entry: u64,
    /// Where the walk is, and which entries are left there.
    now: Option<(Space, Range<u64>)>,
    look: F,
}

impl<E, F> Walk<E, F> {
    fn new(exchange: E, chunk: u32, partition: Option<Partition>, look: F) -> Self {
        Walk { exchange, chunk, partition, next: 0, first_entry: 0, now: None, look }
    }
}

impl<'p, E: Borrow<Exchange<'p>>, F: Fn(&Exchange<'p>, &Space, u64) -> Move> Iterator for Walk<E, F> {
    type Item = Move;

    fn next(&mut self) -> Option<Move> {
        let exchange = self.exchange.borrow();
        loop {
            if let Some((space, entries)) = &mut self.now
                && let Some(entry) = entries.next()
            {
                return Some((self.look)(exchange, space, entry));
            }
            let turns = exchange.turns.get(self.next)?;
            let (plan, stratum, first_entry) = (exchange.plan, self.next, self.first_entry);
            let part = plan.part(turns, self.chunk);
            let entries = match self.partition {
                Some(partition) => {
                    let start = part.split.start(partition);
                    start..start + part.split.of(partition)
                }
                None => 0..part.split.total(),
            };
            self.next += 1;
            self.first_entry += part.split.total();
            self.now = (!entries.is_empty()).then(|| {
                let goes = plan.goes(exchange.epoch, self.chunk, stratum, &part);
                (Space { stratum, first_entry, part, goes }, entries)
            });
        }
    }
}
