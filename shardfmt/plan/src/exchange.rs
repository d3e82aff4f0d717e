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
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
/// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// # let version = VersionId::of(b"a manifest");
/// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
/// # let plan = Plan::new(document, &shape.shard_rows)?;
/// use shardd_plan::{Epoch, SlotTable};
///
/// let (now, next) = (SlotTable::initial(&plan), SlotTable::at(&plan, Epoch(1)));
/// for moved in plan.moves(Epoch(0), 0) {
///     let grain = now.grain(&plan, moved.from.0, moved.from.1);
///     assert_eq!(next.grain(&plan, moved.to.0, moved.to.1), grain);
/// }
/// assert!(plan.moves(Epoch(0), 0).next().is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// The grain's number in the chunk's exchange space: both ends derive it.
    pub entry: u64,
    /// The partition and slot it leaves.
    pub from: (Partition, u64),
    /// The partition and slot it is in from the next epoch on.
    pub to: (Partition, u64),
}

/// When the grain in a slot moves next, and where to.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
/// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// # let version = VersionId::of(b"a manifest");
/// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
/// # let plan = Plan::new(document, &shape.shard_rows)?;
/// use shardd_plan::{Epoch, Partition, SlotTable};
///
/// let grain = SlotTable::initial(&plan).grain(&plan, Partition(0), 0);
/// let next = plan.next_move(Partition(0), 0, Epoch(0)).ok_or("the grain never moves")?;
/// let after = SlotTable::at(&plan, next.epoch.next());
/// assert_eq!(after.grain(&plan, next.to.0, next.to.1), grain);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NextMove {
    /// The epoch after which it moves.
    pub epoch: Epoch,
    /// The chunk that takes it.
    pub chunk: u32,
    /// The partition and slot it is in from the next epoch on.
    pub to: (Partition, u64),
}

/// The exchange after one epoch.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape};
/// # let shape = Shape { shard_rows: vec![600, 600, 300], row_bytes: 1_500 * 784 };
/// # let version = VersionId::of(b"a manifest");
/// # let document = PlanDocument::with_defaults(version, &shape, PlanOptions::default())?;
/// # let plan = Plan::new(document, &shape.shard_rows)?;
/// use shardd_plan::{Epoch, Partition};
///
/// let exchange = plan.exchange(Epoch(0));
/// let chunks = 0..plan.document().chunks;
/// let sent: usize = chunks.map(|chunk| exchange.sends(chunk, Partition(0)).count()).sum();
/// assert_eq!(sent as u64, plan.exchange_count(Epoch(0), Partition(0)));
/// assert!(!exchange.is_empty());
/// # Ok(())
/// # }
/// ```
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
            let through = u128::from(count) * u128::from(chunk.min(chunks)) + ahead;
            divide(through, chunks.into(), |a, b| a / b, |a, b| a / b)
        };
        self.count.map(|count| bound(count, chunk)..bound(count, chunk.saturating_add(1)))
    }

    /// The chunk that takes a turn.
    fn chunk_of(&self, class: usize, turn: u64, chunks: u32) -> u32 {
        let ahead = chunk_phase(self.stratum, chunks);
        let through = (u128::from(turn) + 1) * u128::from(chunks) - ahead;
        divide(through, self.count[class], u64::div_ceil, u128::div_ceil) as u32 - 1
    }
}

/// A quotient or a remainder that fits 64 bits, as of most numbers the dividend does too: far sooner done.
fn divide(dividend: u128, divisor: u64, short: fn(u64, u64) -> u64, long: fn(u128, u128) -> u128) -> u64 {
    match u64::try_from(dividend) {
        Ok(dividend) => short(dividend, divisor),
        Err(_) => long(dividend, divisor.into()) as u64,
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
    /// The moves after `epoch`. Keep it while looking at several chunks or partitions of the epoch.
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
        Walk::new(self.exchange(epoch), chunk, None, End::Sending)
    }

    /// The grains that `partition` sends in a chunk, by entry, computed from its own part: O(sent grains).
    pub fn sends(&self, epoch: Epoch, chunk: u32, partition: Partition) -> impl Iterator<Item = Move> + Send {
        Walk::new(self.exchange(epoch), chunk, Some(self.known(partition)), End::Sending)
    }

    /// The grains that `partition` receives in a chunk, by slot filled, computed from its own part:
    /// O(received grains).
    pub fn receives(
        &self,
        epoch: Epoch,
        chunk: u32,
        partition: Partition,
    ) -> impl Iterator<Item = Move> + Send {
        Walk::new(self.exchange(epoch), chunk, Some(self.known(partition)), End::Receiving)
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

    /// The position at which a run sends chunk `chunk`: as [`chunk_due`](Self::chunk_due), but not before a sample of the
    /// epoch was read, so that a run that ends with an epoch moves nothing more.
    pub fn chunk_trigger(&self, chunk: u32) -> u64 {
        self.chunk_due(chunk).max(1)
    }

    /// The first epoch from `from` on after which the grain that is in the slot in epoch `from` is exchanged.
    /// `None` if it never is, or if selection is independent and so knows no future.
    pub fn departure(&self, partition: Partition, slot: u64, from: Epoch) -> Option<Epoch> {
        match self.document.selection {
            Selection::Cyclic => self.next_turn(partition, slot, from).map(|(epoch, _)| epoch),
            Selection::Independent => None,
        }
    }

    /// How the grain that is in the slot in epoch `from` moves next. `None` if it never does, or if selection is independent and so
    /// knows no future.
    pub fn next_move(&self, partition: Partition, slot: u64, from: Epoch) -> Option<NextMove> {
        if self.document.selection != Selection::Cyclic {
            return None;
        }
        let (epoch, turn) = self.next_turn(partition, slot, from)?;
        let stratum = self.homes.cell_of(partition, slot).stratum;
        let class = self.homes.slots_of(stratum).class(partition);
        let chunk = self.turns(epoch, stratum).chunk_of(class, turn, self.document.chunks);
        Some(NextMove { epoch, chunk, to: self.destination(epoch, (partition, slot), turn) })
    }

    /// The first epoch from `from` on whose exchange takes the slot, and its turn in it. Cyclic only.
    pub(super) fn next_turn(&self, partition: Partition, slot: u64, from: Epoch) -> Option<(Epoch, u64)> {
        let cell = self.homes.cell_of(partition, slot);
        let place = self.cycle(&cell).invert(slot - cell.start);
        let past = self.exchanged_before(&cell, from);
        let wait = (place + cell.size - divide(past, cell.size, |a, b| a % b, |a, b| a % b)) % cell.size;
        self.turn(&cell, past + u128::from(wait))
    }

    /// The last epoch before `before` whose exchange took the slot, and its turn in it. Cyclic only.
    pub(super) fn last_turn(&self, partition: Partition, slot: u64, before: Epoch) -> Option<(Epoch, u64)> {
        let cell = self.homes.cell_of(partition, slot);
        let place = self.cycle(&cell).invert(slot - cell.start);
        let last = self.exchanged_before(&cell, before).checked_sub(1)?;
        let since = (divide(last, cell.size, |a, b| a % b, |a, b| a % b) + cell.size - place) % cell.size;
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
        (partition, cell.start + selection.apply(self.place_of_turn(&turns, &cell, turn)))
    }

    fn turns(&self, epoch: Epoch, stratum: usize) -> Turns {
        let (slots, phase) = (self.homes.slots_of(stratum), epoch_phase(stratum));
        let mut turns = Turns { stratum, first: [0; 2], count: [0; 2] };
        for (class, size) in [slots.large, slots.small].into_iter().enumerate() {
            let before = self.shares.exchanged_before(size, phase, epoch);
            turns.count[class] = (self.shares.exchanged_before(size, phase, epoch.next()) - before) as u64;
            turns.first[class] = divide(before, size.max(1), |a, b| a % b, |a, b| a % b);
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

    /// Where in the selection of a cell a turn is.
    fn place_of_turn(&self, turns: &Turns, cell: &Cell, turn: u64) -> u64 {
        match self.document.selection {
            Selection::Independent => turn,
            Selection::Cyclic => {
                let first = turns.first[self.homes.slots_of(cell.stratum).class(cell.partition)];
                let place = first + turn; // both less than the cell has slots
                if place >= cell.size { place - cell.size } else { place }
            }
        }
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
        Walk::new(self, chunk, None, End::Sending)
    }

    /// As [`Plan::sends`].
    pub fn sends(&self, chunk: u32, partition: Partition) -> impl Iterator<Item = Move> + Send {
        Walk::new(self, chunk, Some(self.plan.known(partition)), End::Sending)
    }

    /// As [`Plan::receives`].
    pub fn receives(&self, chunk: u32, partition: Partition) -> impl Iterator<Item = Move> + Send {
        Walk::new(self, chunk, Some(self.plan.known(partition)), End::Receiving)
    }

    /// The moves of the entries, or those into their slots.
    fn look<const N: usize>(&self, space: &Space, entries: [u64; N], end: End) -> [Move; N] {
        let goes = entries.map(|entry| (&space.goes, entry));
        let (from, to) = match end {
            End::Sending => (entries, Permutation::apply_each(goes)),
            End::Receiving => (Permutation::invert_each(goes), entries),
        };
        let (left, filled) = (self.slots(space, from), self.slots(space, to));
        std::array::from_fn(|n| Move { entry: space.first_entry + from[n], from: left[n], to: filled[n] })
    }

    fn slots<const N: usize>(&self, space: &Space, entries: [u64; N]) -> [(Partition, u64); N] {
        let (plan, turns) = (self.plan, &self.turns[space.stratum]);
        let taken = entries.map(|entry| {
            let (partition, turn) = plan.departing(space.stratum, &space.part, entry);
            let cell = plan.homes.cell(space.stratum, partition);
            let selection = match plan.document.selection {
                Selection::Cyclic => plan.cycle(&cell),
                Selection::Independent => {
                    self.drawn[plan.cell_no(&cell)].get_or_init(|| Box::new(plan.draw(self.epoch, &cell)))
                }
            };
            (cell, selection, plan.place_of_turn(turns, &cell, turn))
        });
        let slots = Permutation::apply_each(taken.map(|(_, selection, place)| (selection, place)));
        std::array::from_fn(|n| (taken[n].0.partition, taken[n].0.start + slots[n]))
    }
}

/// At which end of its moves a partition is looked at.
#[derive(Clone, Copy)]
enum End {
    Sending,
    Receiving,
}

/// How many moves are worked out side by side.
const ABREAST: usize = 4;

/// One stratum's part of a chunk's exchange space.
struct Space {
    stratum: usize,
    /// The first number of its entries.
    first_entry: u64,
    part: Part,
    goes: Permutation,
}

/// The moves of a chunk, or those of a partition in it, stratum after stratum.
struct Walk<E> {
    exchange: E,
    chunk: u32,
    partition: Option<Partition>,
    end: End,
    /// The stratum that comes next, and its first entry.
    next: usize,
    first_entry: u64,
    /// Where the walk is, and which entries are left there.
    now: Option<(Space, Range<u64>)>,
    /// The moves computed with the one before.
    ready: Option<std::array::IntoIter<Move, ABREAST>>,
}

impl<'p, E: Borrow<Exchange<'p>>> Walk<E> {
    fn new(exchange: E, chunk: u32, partition: Option<Partition>, end: End) -> Self {
        Walk { exchange, chunk, partition, end, next: 0, first_entry: 0, now: None, ready: None }
    }

    /// Advances to the next stratum with moves; nothing, if there is none.
    fn enter(&mut self) -> Option<()> {
        let exchange = self.exchange.borrow();
        loop {
            let (plan, stratum, first_entry) = (exchange.plan, self.next, self.first_entry);
            let part = plan.part(exchange.turns.get(stratum)?, self.chunk);
            let entries = match self.partition {
                Some(partition) => {
                    let start = part.split.start(partition);
                    start..start + part.split.of(partition)
                }
                None => 0..part.split.total(),
            };
            self.next += 1;
            self.first_entry += part.split.total();
            if !entries.is_empty() {
                let goes = plan.goes(exchange.epoch, self.chunk, stratum, &part);
                self.now = Some((Space { stratum, first_entry, part, goes }, entries));
                return Some(());
            }
        }
    }
}

impl<'p, E: Borrow<Exchange<'p>>> Iterator for Walk<E> {
    type Item = Move;

    fn next(&mut self) -> Option<Move> {
        loop {
            if let Some(ready) = self.ready.as_mut().and_then(Iterator::next) {
                return Some(ready);
            }
            match &mut self.now {
                Some((space, entries)) if !entries.is_empty() => {
                    let (exchange, first) = (self.exchange.borrow(), entries.start);
                    if entries.end - first < ABREAST as u64 {
                        entries.start += 1;
                        let [one] = exchange.look(space, [first], self.end);
                        return Some(one);
                    }
                    entries.start += ABREAST as u64;
                    let abreast = std::array::from_fn(|n| first + n as u64);
                    self.ready = Some(exchange.look(space, abreast, self.end).into_iter());
                }
                _ => self.enter()?,
            }
        }
    }
}
