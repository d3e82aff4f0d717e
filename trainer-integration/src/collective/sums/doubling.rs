//! Recursive doubling (Thakur, Rabenseifner and Gropp, 2005): few steps, for numbers so few that their bytes do not matter.

use super::team::Team;
use crate::collective::numbers::Number;
use crate::collective::{CollectiveError, Incoming, Outgoing, Place};

/// Ranks beyond the largest power of two add theirs to a partner's first, and get its sums in the end.
pub(super) fn all_reduce<T: Number>(team: &mut Team<'_>, mine: &mut [T]) -> Result<(), CollectiveError> {
    let (rank, world) = (team.rank(), team.world());
    let power = 1 << world.ilog2();
    if rank >= power {
        let partner = rank - power;
        team.transfer(
            &mut [Outgoing { to: partner, bytes: bytemuck::cast_slice(mine) }],
            &mut [],
            &mut |_| {},
        )?;
        let into = Place::Slice(bytemuck::cast_slice_mut(mine));
        return team.transfer(&mut [], &mut [Incoming { from: partner, into }], &mut |_| {});
    }
    let extra = rank + power;
    let mut theirs = vec![T::zeroed(); mine.len()];
    if extra < world {
        let into = Place::Slice(bytemuck::cast_slice_mut(&mut theirs));
        team.transfer(&mut [], &mut [Incoming { from: extra, into }], &mut |_| {})?;
        add(mine, &theirs, true);
    }
    let mut distance = 1;
    while distance < power {
        let partner = rank ^ distance;
        let into = Place::Slice(bytemuck::cast_slice_mut(&mut theirs));
        let mut outgoing = [Outgoing { to: partner, bytes: bytemuck::cast_slice(mine) }];
        team.transfer(&mut outgoing, &mut [Incoming { from: partner, into }], &mut |_| {})?;
        add(mine, &theirs, rank < partner);
        distance *= 2;
    }
    if extra < world {
        team.transfer(
            &mut [Outgoing { to: extra, bytes: bytemuck::cast_slice(mine) }],
            &mut [],
            &mut |_| {},
        )?;
    }
    Ok(())
}

/// The lower rank's numbers are the left ones on both sides: which of two payloads of a NaN survives depends on it.
fn add<T: Number>(mine: &mut [T], theirs: &[T], is_left: bool) {
    for (mine, &theirs) in mine.iter_mut().zip(theirs) {
        *mine = if is_left { mine.plus(theirs) } else { theirs.plus(*mine) };
    }
}
