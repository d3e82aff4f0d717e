//! From neighbour to neighbour (Patarasuk and Yuan, 2009): every rank sends 2 (N - 1) / N of the bytes, the least possible, over one
//! connection, and each piece is added as it comes.

use std::ops::Range;

use super::team::Team;
use crate::collective::numbers::{Number, numbers, slice_of};
use crate::collective::{CollectiveError, Incoming, Outgoing, Place};

/// Slice r goes around from rank r + 1 to rank r, each adding its own to it.
pub(super) fn reduce_scatter<T: Number>(team: &mut Team<'_>, all: &mut [T]) -> Result<(), CollectiveError> {
    let (rank, world, length) = (team.rank(), team.world(), all.len());
    for step in 0..world - 1 {
        let slice = |back: u32| slice_of(length, (rank + 2 * world - back) % world, world);
        let (sent, received) = two(all, slice(step + 1), slice(step + 2));
        let mut to = [Outgoing { to: (rank + 1) % world, bytes: bytemuck::cast_slice(sent) }];
        let into = Place::Sink(size_of_val(received));
        let mut from = [Incoming { from: (rank + world - 1) % world, into }];
        team.transfer(&mut to, &mut from, &mut |piece| {
            let theirs = numbers::<T>(piece.bytes);
            let start = piece.offset / size_of::<T>();
            for (mine, theirs) in received[start..].iter_mut().zip(theirs.iter()) {
                *mine = theirs.plus(*mine);
            }
        })?;
    }
    Ok(())
}

/// Slice r goes around from rank r to rank r - 1.
pub(super) fn all_gather<T: Number>(team: &mut Team<'_>, all: &mut [T]) -> Result<(), CollectiveError> {
    let (rank, world, length) = (team.rank(), team.world(), all.len());
    for step in 0..world - 1 {
        let slice = |back: u32| slice_of(length, (rank + world - back) % world, world);
        let (sent, received) = two(all, slice(step), slice(step + 1));
        let mut to = [Outgoing { to: (rank + 1) % world, bytes: bytemuck::cast_slice(sent) }];
        let into = Place::Slice(bytemuck::cast_slice_mut(received));
        let mut from = [Incoming { from: (rank + world - 1) % world, into }];
        team.transfer(&mut to, &mut from, &mut |_| {})?;
    }
    Ok(())
}

/// Two ranges that do not overlap, the second to be written.
fn two<T>(all: &mut [T], read: Range<usize>, written: Range<usize>) -> (&[T], &mut [T]) {
    if read.end <= written.start {
        let (left, right) = all.split_at_mut(written.start);
        (&left[read], &mut right[..written.len()])
    } else {
        debug_assert!(written.end <= read.start, "two slices of different ranks");
        let (left, right) = all.split_at_mut(read.start);
        (&right[..read.len()], &mut left[written])
    }
}
