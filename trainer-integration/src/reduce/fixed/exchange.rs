//! The sums over all ranks: each number is added up by the rank that owns it, and rounded there.
//!
//! A rank with one virtual rank sends its numbers in 32 bits, others send sums of 64 bits. Sums are added as they come.

use std::ops::Range;

use super::{Added, FixedSum, Scales, zeros};
use crate::collective::numbers::{numbers, slice_of};
use crate::collective::sums::{Team, gather_more, gather_slices};
use crate::collective::{Among, Collective, CollectiveError, Incoming, Outgoing, PIECE_BYTES, Place};
use crate::ledger::{Kind, Ledger, Numbers};
use crate::reduce::VirtualRanks;
use crate::reduce::exact::{split, without_empty};
use crate::reduce::grouped::{parts, places_of, with_owners};

const _: () = assert!(PIECE_BYTES.is_multiple_of(size_of::<i64>()), "a piece holds whole numbers");

/// Below this many numbers a second round trip costs more than sending everything to everyone.
const DIRECT: usize = 2 << 10;

/// The sum over all virtual ranks, bit for bit the same for every world size and on every rank. That of a single virtual rank is
/// itself.
///
/// # Errors
/// Names the rank that is gone, late, or brings another number of parameters.
///
/// # Panics
/// If virtual ranks of this rank are missing.
pub fn all_reduce(
    collective: &mut dyn Collective,
    ranks: VirtualRanks,
    mine: FixedSum,
) -> Result<Numbers<f32>, CollectiveError> {
    let world = collective.world();
    let length = mine.brought().len();
    let is_short = length <= DIRECT;
    let owned = |rank| vec![if is_short { 0..length } else { slice_of(length, rank, world) }];
    let mut total = reduce_scatter(collective, ranks, mine, &owned)?;
    if world > 1 && !is_short {
        gather_slices(collective, &mut total)?;
    }
    Ok(total)
}

/// The same for the numbers that this rank owns; the others are of no use afterwards. `owned` tells the ranges of every rank.
///
/// # Errors
/// As [`all_reduce`].
///
/// # Panics
/// As [`all_reduce`].
pub fn reduce_scatter(
    collective: &mut dyn Collective,
    ranks: VirtualRanks,
    mine: FixedSum,
    owned: &dyn Fn(u32) -> Vec<Range<usize>>,
) -> Result<Numbers<f32>, CollectiveError> {
    let (rank, world) = (collective.rank(), collective.world());
    assert_eq!(ranks.world, world, "the virtual ranks are shared by this world");
    assert_eq!(mine.missing, 0, "all virtual ranks of a rank are there");
    let FixedSum { scales, ledger, added, .. } = mine;
    if world == 1 {
        return Ok(match added {
            Added::One(numbers) => numbers,
            Added::Several(sums) => {
                let mut total = blank(&ledger, sums.len());
                scales.round(0, &sums, &mut total);
                total
            }
        });
    }
    let owned: Vec<Vec<Range<usize>>> = (0..world).map(owned).collect();
    let are_single: Vec<bool> = (0..world).map(|rank| ranks.of(rank).len() == 1).collect();
    collective.begin(Among::All);
    let team = &mut Team::of_all(collective);
    match added {
        Added::One(mut numbers) if are_single.iter().all(|is_single| *is_single) && are_apart(&owned) => {
            add_up_singles(team, &mut numbers, &owned, &scales)?;
            Ok(numbers)
        }
        added => {
            let sums = add_up(team, added.brought(), &are_single, &owned, &scales, &ledger)?;
            let mut total = added.into_room(&ledger);
            scales.round_ranges(&owned[rank as usize], &sums, &mut total);
            Ok(total)
        }
    }
}

/// Whether each number has one owner at most.
fn are_apart(owned: &[Vec<Range<usize>>]) -> bool {
    let mut all: Vec<&Range<usize>> = owned.iter().flatten().filter(|range| !range.is_empty()).collect();
    all.sort_unstable_by_key(|range| range.start);
    all.windows(2).all(|two| two[0].end <= two[1].start)
}

/// The same in two steps: inside groups of ranks first, and then across them, as [`reduce_scatter_by_groups`] of the tree
/// does.
///
/// [`reduce_scatter_by_groups`]: crate::reduce::grouped::reduce_scatter_by_groups
pub(crate) fn reduce_scatter_by_groups(
    collective: &mut dyn Collective,
    ranks: VirtualRanks,
    mine: FixedSum,
    size: u32,
    kept: &[Vec<Range<usize>>],
) -> Result<Numbers<f32>, CollectiveError> {
    let (rank, world) = (collective.rank(), collective.world());
    assert!(size > 1 && world.is_multiple_of(size), "{world} ranks in groups of {size}");
    assert_eq!(mine.missing, 0, "all virtual ranks of a rank are there");
    let (group, place, groups) = (rank / size, rank % size, world / size);
    let FixedSum { scales, ledger, added, .. } = mine;
    let own = &kept[place as usize];
    collective.begin(Among::All);

    let members: Vec<u32> = (group * size..(group + 1) * size).collect();
    let are_single: Vec<bool> = members.iter().map(|member| ranks.of(*member).len() == 1).collect();
    let team = &mut Team::of(collective, members);
    let of_group = add_up(team, added.brought(), &are_single, kept, &scales, &ledger)?;
    let mut total = added.into_room(&ledger);

    // Each of those that keep the same adds up a part of it.
    let replicas: Vec<u32> = (0..groups).map(|group| group * size + place).collect();
    let places: Vec<Range<usize>> = places_of(own).collect();
    let owned: Vec<Vec<Range<usize>>> = (0..groups).map(|group| parts(&places, group, groups)).collect();
    let team = &mut Team::of(collective, replicas.clone());
    let are_single = vec![false; groups as usize];
    let sums = add_up(team, Brought::Sums(&of_group), &are_single, &owned, &scales, &ledger)?;
    drop(of_group);
    let of_bucket: Vec<Vec<Range<usize>>> = (0..groups).map(|group| parts(own, group, groups)).collect();
    scales.round_ranges(&of_bucket[group as usize], &sums, &mut total);
    gather_more(collective, &replicas, with_owners(&mut total, of_bucket.iter()))?;
    Ok(total)
}

/// The numbers that a rank brings.
#[derive(Clone, Copy)]
enum Brought<'a> {
    One(&'a [f32]),
    Sums(&'a [i64]),
}

impl<'a> Brought<'a> {
    fn len(self) -> usize {
        match self {
            Brought::One(numbers) => numbers.len(),
            Brought::Sums(sums) => sums.len(),
        }
    }

    fn bytes(self, range: Range<usize>) -> &'a [u8] {
        match self {
            Brought::One(numbers) => bytemuck::cast_slice(&numbers[range]),
            Brought::Sums(sums) => bytemuck::cast_slice(&sums[range]),
        }
    }
}

impl FixedSum {
    fn brought(&self) -> Brought<'_> {
        self.added.brought()
    }
}

impl Added {
    fn brought(&self) -> Brought<'_> {
        match self {
            Added::One(numbers) => Brought::One(numbers),
            Added::Several(sums) => Brought::Sums(sums),
        }
    }

    /// Room for as many numbers of 32 bits. Sums give their memory back first.
    fn into_room(self, ledger: &Ledger) -> Numbers<f32> {
        match self {
            Added::One(numbers) => numbers,
            Added::Several(sums) => {
                let length = sums.len();
                drop(sums);
                blank(ledger, length)
            }
        }
    }
}

impl Scales {
    /// Rounds the sums of ranges of the bucket, which lie one after the other.
    fn round_ranges(&self, ranges: &[Range<usize>], sums: &[i64], numbers: &mut [f32]) {
        for (range, place) in ranges.iter().zip(places_of(ranges)) {
            self.round(range.start, &sums[place], &mut numbers[range.clone()]);
        }
    }
}

/// Every member of a team sends every other what that one owns, as a step of an operation that has begun. The sums of what this rank
/// owns, one range after the other. `are_single` says which members bring the numbers of one virtual rank; those have the places of the
/// scales.
fn add_up(
    team: &mut Team<'_>,
    mine: Brought<'_>,
    are_single: &[bool],
    owned: &[Vec<Range<usize>>],
    scales: &Scales,
    ledger: &Ledger,
) -> Result<Numbers<i64>, CollectiveError> {
    let rank = team.rank();
    let owned = without_empty(owned);
    let own = &owned[rank as usize];
    let mut sums = zeros(ledger, own.iter().map(ExactSizeIterator::len).sum());
    let places: Vec<Range<usize>> = places_of(own).collect();
    for (range, place) in own.iter().zip(&places) {
        match mine {
            Brought::One(numbers) => {
                scales.add(range.start, &mut sums[place.clone()], &numbers[range.clone()])
            }
            Brought::Sums(mine) => sums[place.clone()].copy_from_slice(&mine[range.clone()]),
        }
    }
    let mut outgoing = Vec::new();
    for to in team.others() {
        let ranges = owned[to as usize].iter();
        outgoing.extend(ranges.map(|range| Outgoing { to, bytes: mine.bytes(range.clone()) }));
    }
    let (mut incoming, mut received) = (Vec::new(), Vec::new());
    for (range, place) in own.iter().zip(&places) {
        for from in (0..team.world()).filter(|from| *from != rank) {
            let width = if are_single[from as usize] { size_of::<f32>() } else { size_of::<i64>() };
            incoming.push(Incoming { from, into: Place::Sink(width * range.len()) });
            received.push((are_single[from as usize], range.start, place.start));
        }
    }
    team.transfer(&mut outgoing, &mut incoming, &mut |piece| {
        let (is_single, start, place) = received[piece.incoming];
        if is_single {
            let (at, more) = (piece.offset / size_of::<f32>(), numbers::<f32>(piece.bytes));
            scales.add(start + at, &mut sums[place + at..][..more.len()], &more);
        } else {
            let (at, more) = (piece.offset / size_of::<i64>(), numbers::<i64>(piece.bytes));
            let sums = sums[place + at..].iter_mut();
            sums.zip(&more[..]).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
        }
    })?;
    Ok(sums)
}

/// As [`add_up`], where every member brings the numbers of one virtual rank and each number has one owner at most. The rounded sums of what
/// this rank owns are in place of what it brought: only those of a piece exist at once.
fn add_up_singles(
    team: &mut Team<'_>,
    mine: &mut [f32],
    owned: &[Vec<Range<usize>>],
    scales: &Scales,
) -> Result<(), CollectiveError> {
    let (rank, senders) = (team.rank(), team.world() as usize - 1);
    let owned = without_empty(owned);
    let (mut own, others) = split(mine, &owned, rank);
    let mut outgoing = Vec::new();
    for to in team.others() {
        let ranges = others[to as usize].iter();
        outgoing.extend(ranges.map(|numbers| Outgoing { to, bytes: bytemuck::cast_slice(numbers) }));
    }
    let mut incoming = Vec::new();
    for range in &own {
        let from = (0..team.world()).filter(|from| *from != rank);
        incoming.extend(from.map(|from| Incoming { from, into: Place::Sink(size_of_val(&range[..])) }));
    }
    let mut sums = Vec::new();
    team.transfer(&mut outgoing, &mut incoming, &mut |piece| {
        // The pieces of all senders for the same numbers follow each other.
        let (range, sender) = (piece.incoming / senders, piece.incoming % senders);
        let (at, more) = (piece.offset / size_of::<f32>(), numbers::<f32>(piece.bytes));
        let start = owned[rank as usize][range].start + at;
        let own = &mut own[range][at..][..more.len()];
        if sender == 0 {
            sums.clear();
            sums.resize(more.len(), 0);
            scales.add(start, &mut sums, own);
        }
        scales.add(start, &mut sums, &more);
        if sender + 1 == senders {
            scales.round(start, &sums, own);
        }
    })
}

fn blank(ledger: &Ledger, count: usize) -> Numbers<f32> {
    let mut numbers = Numbers::with_capacity(ledger, Kind::Gradients, count);
    numbers.growing().resize(count, 0.0);
    numbers
}
