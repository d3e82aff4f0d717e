//! Some ranks of a world, counted from 0: what an algorithm is written against, so that it also runs within a host or across hosts.

use crate::collective::{Collective, CollectiveError, Incoming, Outgoing, Sink};

pub(crate) struct Team<'a> {
    collective: &'a mut dyn Collective,
    members: Vec<u32>,
    place: u32,
}

impl<'a> Team<'a> {
    pub(crate) fn of_all(collective: &'a mut dyn Collective) -> Team<'a> {
        let members = (0..collective.world()).collect();
        let place = collective.rank();
        Team { collective, members, place }
    }

    /// The team of these ranks, this one among them.
    pub(crate) fn of(collective: &'a mut dyn Collective, members: Vec<u32>) -> Team<'a> {
        let place = members.iter().position(|&member| member == collective.rank());
        let place = place.expect("a rank works in a team of its own") as u32;
        Team { collective, members, place }
    }

    /// This rank's place in the team.
    pub(crate) fn rank(&self) -> u32 {
        self.place
    }

    pub(crate) fn world(&self) -> u32 {
        self.members.len() as u32
    }

    /// The other places, the next one first: when every rank follows this order, no two begin with the same one.
    pub(crate) fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (rank, world) = (self.rank(), self.world());
        (1..world).map(move |distance| (rank + distance) % world)
    }

    /// As [`Collective::transfer`], by places in the team.
    pub(crate) fn transfer(
        &mut self,
        outgoing: &mut [Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        sink: Sink<'_>,
    ) -> Result<(), CollectiveError> {
        for outgoing in &mut *outgoing {
            outgoing.to = self.members[outgoing.to as usize];
        }
        for incoming in &mut *incoming {
            incoming.from = self.members[incoming.from as usize];
        }
        self.collective.transfer(outgoing, incoming, sink)
    }
}
