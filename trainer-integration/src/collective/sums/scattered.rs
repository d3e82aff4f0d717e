//! Everyone to everyone, of numbers whose owners lie in any order.

use bytemuck::Pod;

use super::team::Team;
use crate::collective::{CollectiveError, Incoming, Outgoing, Place};

/// Every rank gets the pieces of every other. All ranks list the same pieces with their owners; each rank's own are those it begins with.
pub(super) fn all_gather<T: Pod>(
    team: &mut Team<'_>,
    pieces: Vec<(u32, &mut [T])>,
) -> Result<(), CollectiveError> {
    let (mut incoming, mut own) = (Vec::new(), Vec::new());
    for (owner, piece) in pieces.into_iter().filter(|(_, piece)| !piece.is_empty()) {
        let bytes = bytemuck::cast_slice_mut(piece);
        if owner == team.rank() {
            own.push(&*bytes);
        } else {
            incoming.push(Incoming { from: owner, into: Place::Slice(bytes) });
        }
    }
    let own = &own;
    let to_one = |to| own.iter().map(move |bytes| Outgoing { to, bytes });
    let mut outgoing: Vec<_> = team.others().flat_map(to_one).collect();
    team.transfer(&mut outgoing, &mut incoming, &mut |_| {})
}
