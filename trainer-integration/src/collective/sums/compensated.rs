//! Sums that carry their rounding errors along (Neumaier's improvement of Kahan's).

use super::team::Team;
use crate::collective::numbers::{Number, numbers, slice_of};
use crate::collective::{CollectiveError, Incoming, Outgoing, Place};

/// As [`direct::reduce_scatter`](super::direct::reduce_scatter) of all ranks.
pub(super) fn reduce_scatter<T: Number>(team: &mut Team<'_>, all: &mut [T]) -> Result<(), CollectiveError> {
    let (rank, world, length) = (team.rank(), team.world(), all.len());
    if world == 1 {
        return Ok(());
    }
    let own = slice_of(length, rank, world);
    let mut sums = all[own.clone()].to_vec();
    let mut outgoing: Vec<_> = team
        .others()
        .map(|to| Outgoing { to, bytes: bytemuck::cast_slice(&all[slice_of(length, to, world)]) })
        .collect();
    let mine = &all[own.clone()];
    let senders: Vec<u32> = (0..world).filter(|&from| from != rank).collect();
    let bytes = size_of_val(mine);
    let mut incoming: Vec<_> =
        senders.iter().map(|&from| Incoming { from, into: Place::Sink(bytes) }).collect();
    // Sum and error of the ranks so far, a piece of them.
    let mut partial: Vec<(T, T)> = Vec::new();
    team.transfer(&mut outgoing, &mut incoming, &mut |piece| {
        let theirs = numbers::<T>(piece.bytes);
        let start = piece.offset / size_of::<T>();
        let range = start..start + theirs.len();
        let from = senders[piece.incoming];
        if piece.incoming == 0 {
            partial.clear();
            partial.resize(range.len(), (T::zeroed(), T::zeroed()));
        }
        if from == rank + 1 {
            add(&mut partial, &mine[range.clone()]);
        }
        add(&mut partial, &theirs);
        if piece.incoming + 1 == senders.len() {
            if rank + 1 == world {
                add(&mut partial, &mine[range.clone()]);
            }
            for (total, &(sum, error)) in sums[range].iter_mut().zip(&partial) {
                *total = sum.plus(error);
            }
        }
    })?;
    all[own].copy_from_slice(&sums);
    Ok(())
}

fn add<T: Number>(partial: &mut [(T, T)], numbers: &[T]) {
    for ((sum, error), &number) in partial.iter_mut().zip(numbers) {
        let (next, rounded_off) = sum.two_sum(number);
        *sum = next;
        *error = error.plus(rounded_off);
    }
}
