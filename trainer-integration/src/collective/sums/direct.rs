//! Everyone to everyone: the fewest steps, and sums in rank order.

use bytemuck::Pod;

use super::team::Team;
use crate::collective::numbers::{Number, numbers, slice_of};
use crate::collective::{CollectiveError, Incoming, Outgoing, Place};

/// The slice of the first `owners` ranks that each of them owns; the others own nothing.
pub(super) fn owned(length: usize, rank: u32, owners: u32) -> std::ops::Range<usize> {
    if rank < owners { slice_of(length, rank, owners) } else { length..length }
}

/// Rank r of the first `owners` adds up slice r of all ranks, in rank order.
pub(super) fn reduce_scatter<T: Number>(
    team: &mut Team<'_>,
    all: &mut [T],
    owners: u32,
) -> Result<(), CollectiveError> {
    let (rank, world, length) = (team.rank(), team.world(), all.len());
    let own = owned(length, rank, owners);
    let (before, rest) = all.split_at_mut(own.start);
    let (mine, after) = rest.split_at_mut(own.len());
    let mut outgoing: Vec<_> = team
        .others()
        .filter(|&to| to < owners)
        .map(|to| {
            let slice = owned(length, to, owners);
            let slice =
                if to < rank { &before[slice] } else { &after[slice.start - own.end..slice.end - own.end] };
            Outgoing { to, bytes: bytemuck::cast_slice(slice) }
        })
        .collect();
    let is_owner = rank < owners;
    let others = (0..world).filter(|&from| from != rank && is_owner);
    let senders: Vec<u32> = others.collect();
    let bytes = size_of_val(mine);
    let mut incoming: Vec<_> =
        senders.iter().map(|&from| Incoming { from, into: Place::Sink(bytes) }).collect();
    // The sum of the ranks before this one, a piece of it.
    let mut sum: Vec<T> = Vec::new();
    team.transfer(&mut outgoing, &mut incoming, &mut |piece| {
        let theirs: &[T] = &numbers(piece.bytes);
        let start = piece.offset / size_of::<T>();
        let mine = &mut mine[start..start + theirs.len()];
        match senders[piece.incoming] {
            from if from > rank => add(mine, theirs, T::plus),
            from if from + 1 < rank && from == 0 => {
                sum.clear();
                sum.extend_from_slice(theirs);
            }
            from if from + 1 < rank => add(&mut sum, theirs, T::plus),
            0 => add(mine, theirs, |mine, theirs| theirs.plus(mine)),
            _ => {
                for ((mine, &theirs), &sum) in mine.iter_mut().zip(theirs).zip(&sum) {
                    *mine = sum.plus(theirs).plus(*mine);
                }
            }
        }
    })
}

/// Every rank gets the slices of the first `owners` ranks.
pub(super) fn all_gather<T: Pod>(
    team: &mut Team<'_>,
    all: &mut [T],
    owners: u32,
) -> Result<(), CollectiveError> {
    let (rank, length) = (team.rank(), all.len());
    let (mut rest, mut incoming, mut own) = (all, Vec::new(), &mut [][..]);
    for from in 0..owners {
        let (slice, after) = rest.split_at_mut(slice_of(length, from, owners).len());
        rest = after;
        if from == rank {
            own = slice;
        } else {
            incoming.push(Incoming { from, into: Place::Slice(bytemuck::cast_slice_mut(slice)) });
        }
    }
    let own: &[u8] = bytemuck::cast_slice(own);
    let to = team.others().filter(|_| rank < owners);
    let mut outgoing: Vec<_> = to.map(|to| Outgoing { to, bytes: own }).collect();
    team.transfer(&mut outgoing, &mut incoming, &mut |_| {})
}

fn add<T: Number>(left: &mut [T], right: &[T], sum: impl Fn(T, T) -> T) {
    for (left, &right) in left.iter_mut().zip(right) {
        *left = sum(*left, right);
    }
}
