//! Restores a training from the memory of surviving ranks instead of a checkpoint: the ranks of the previous
//! group send each rank of the next group the state that it keeps.
//!
//! Ranks of a group that has lost one may be a step apart: some had heard all of the last one, and some not.
//! Training resumes from the newest step of which the ranks together have the whole state; ranks at other
//! steps move there, too. If there is none, that is for the newest checkpoint.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::checkpoint_store::CheckpointStore;
use super::layout::Kind;
use super::load::{Checkpoint, say};
use super::manifest::Manifest;
use super::peer_checkpoint::PeerCheckpoint;
use super::pieces::Stretch;
use super::plan::{Holding, split};
use super::state::{Numbers, State};
use super::{CheckpointError, CheckpointId};
use crate::collective::{Among, Collective, CollectiveError, Incoming, Outgoing, Place as Destination};
use crate::reduce::VirtualRanks;
use crate::zero::Slicing;

/// The state that a rank declares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Has {
    manifest: Manifest,
    /// Block, kind, and which numbers; none overlap.
    numbers: Vec<(usize, Kind, Range<usize>)>,
    /// Of which virtual ranks.
    statistics: Vec<u32>,
}

impl Has {
    fn of(PeerCheckpoint { manifest, state }: &PeerCheckpoint) -> Has {
        let numbers = state.numbers.iter().map(|it| (it.block, it.kind, it.range()));
        let statistics = state.statistics.iter().map(|(of, _)| *of).collect();
        Has { manifest: manifest.clone(), numbers: numbers.collect(), statistics }
    }

    /// In order.
    fn ranges(&self, block: usize, kind: Kind) -> Vec<Range<usize>> {
        let of_block = self.numbers.iter().filter(|(b, k, _)| (*b, *k) == (block, kind));
        let mut ranges: Vec<Range<usize>> = of_block.map(|(_, _, range)| range.clone()).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }
}

/// The transfer from one rank to another, or itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gift {
    from: u32,
    to: u32,
    what: Stretch,
}

/// Who gives what to whom, and whose running statistics, by virtual rank: the same on all ranks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Gifts {
    numbers: Vec<Gift>,
    statistics: Vec<(u32, u32)>,
}

/// Ranks that have numbers of the same step.
struct Holders<'a> {
    manifest: &'a Manifest,
    ranks: BTreeMap<u32, &'a Has>,
}

impl<'a> Holders<'a> {
    /// Of each step of which anybody has anything, the newest first.
    fn by_step(all: &'a [Option<Has>]) -> Vec<Holders<'a>> {
        let mut found: Vec<Holders<'a>> = Vec::new();
        for (rank, has) in (0..).zip(all) {
            let Some(has) = has else { continue };
            match found.iter_mut().find(|it| *it.manifest == has.manifest) {
                Some(holders) => drop(holders.ranks.insert(rank, has)),
                None => found.push(Holders { manifest: &has.manifest, ranks: BTreeMap::from([(rank, has)]) }),
            }
        }
        found.sort_by_key(|holders| std::cmp::Reverse(holders.manifest.step));
        found
    }

    /// The transfers that give every rank its part, together everything; `None` if a part has no owner.
    fn gifts(&self, holding: &Holding, ranks: VirtualRanks) -> Option<Gifts> {
        let layout = &self.manifest.layout;
        let mut gifts = Gifts::default();
        for to in 0..ranks.world {
            for Stretch { block, kind, range } in holding.all_of(layout, to) {
                let mut left = vec![range];
                for (from, has) in self.nearest(to) {
                    let (found, rest) = split(left, &has.ranges(block, kind));
                    let gift = |range| Gift { from, to, what: Stretch { block, kind, range } };
                    gifts.numbers.extend(found.into_iter().map(gift));
                    left = rest;
                }
                if !left.is_empty() {
                    return None;
                }
            }
        }
        if layout.statistics() > 0 {
            for of in 0..ranks.count {
                let holder = self.nearest(host(ranks, of)).find(|(_, has)| has.statistics.contains(&of));
                gifts.statistics.push((of, holder?.0));
            }
        }
        Some(gifts)
    }

    /// Itself first; of the others not everybody the same one.
    fn nearest(&self, to: u32) -> impl Iterator<Item = (u32, &'a Has)> {
        let own = self.ranks.get(&to).map(|has| (to, *has));
        let turned = self.ranks.range(to + 1..).chain(self.ranks.range(..to));
        own.into_iter().chain(turned.map(|(rank, has)| (*rank, *has)).collect::<Vec<_>>())
    }
}

/// The state from which a group of ranks continues that have `remains` of the group before, or nothing: the
/// newest step of which the ranks together have every number, unless there is a newer checkpoint. `None` if there is
/// none. All ranks call this together; each gets its part where ranks keep such slices. What a rank gives
/// itself whole is moved, and what remains is gone with it; after an error it is all there.
///
/// `every` is given if the training may go back to the last step that is a multiple of it, so that a checkpoint of that has to be there.
///
/// # Errors
/// When another rank is gone or late; when the training may go back and the store of the checkpoints cannot be asked.
pub fn hand_over(
    collective: &mut dyn Collective,
    shelf: Option<&CheckpointStore>,
    remains: &mut Option<PeerCheckpoint>,
    slicing: impl Into<Slicing>,
    every: Option<u64>,
) -> Result<Option<Checkpoint>, CheckpointError> {
    let bytes = serde_json::to_vec(&remains.as_ref().map(Has::of)).expect("numbers and text serialize");
    let mut all: Vec<Option<Has>> = Vec::new();
    for (rank, message) in (0..).zip(&collective.all_gather(&bytes)?) {
        let malformed =
            |error: serde_json::Error| CollectiveError::Malformed { rank, what: error.to_string() };
        all.push(serde_json::from_slice(message.bytes()).map_err(malformed)?);
    }
    if all.iter().all(Option::is_none) {
        return Ok(None);
    }
    let listed = shelf.map(|shelf| {
        say(collective, || {
            Ok(shelf.list()?.into_iter().map(|CheckpointId { step, .. }| step).collect::<Vec<u64>>())
        })
    });
    let kept = match listed.transpose()? {
        None => Vec::new(),
        Some(Ok(kept)) => kept,
        // The training can continue without the stored checkpoint, but not go back.
        Some(Err(error)) if every.is_none() => {
            if collective.rank() == 0 {
                warn!(%error, "the checkpoints cannot be listed; the training continues from the state of \
                    its ranks");
            }
            Vec::new()
        }
        Some(Err(error)) => return Err(error),
    };
    let is_good = |step: u64| {
        let is_newest = kept.iter().all(|kept| *kept <= step);
        is_newest && every.is_none_or(|every| kept.contains(&(step - step % every)))
    };
    let (rank, world) = (collective.rank(), collective.world());
    let holding = Holding::needed(slicing.into(), collective.hosts(), rank);
    for holders in Holders::by_step(&all).iter().filter(|it| is_good(it.manifest.step)) {
        let ranks = VirtualRanks { count: holders.manifest.virtual_ranks, world };
        if world > ranks.count {
            continue;
        }
        let Some(gifts) = holders.gifts(&holding, ranks) else { continue };
        let manifest = holders.manifest.clone();
        let mut nothing = State::default();
        let own = remains.as_mut().filter(|it| it.manifest == manifest).map(|it| &mut it.state);
        let needed = holding.all_of(&manifest.layout, rank);
        let own = own.unwrap_or(&mut nothing);
        let state = give(collective, &gifts, ranks, manifest.layout.statistics(), own, needed)?;
        *remains = None;
        return Ok(Some(Checkpoint::unstored(manifest, state)));
    }
    Ok(None)
}

/// Who hosts a virtual rank.
fn host(ranks: VirtualRanks, of: u32) -> u32 {
    (0..ranks.world).find(|rank| ranks.of(*rank).contains(&of)).expect("every virtual rank has a host")
}

/// Exchanges parts: this rank's state afterwards. Its own parts are moved, and those of others arrive in
/// their places.
fn give(
    collective: &mut dyn Collective,
    gifts: &Gifts,
    ranks: VirtualRanks,
    statistics: usize,
    own: &mut State,
    needed: Vec<Stretch>,
) -> Result<State, CollectiveError> {
    let rank = collective.rank();
    let mut state = State::default();
    for Stretch { block, kind, range } in needed {
        let is_own = own.numbers.iter().any(|it| (it.block, it.kind) == (block, kind) && it.range() == range);
        let values = vec![0.0; if is_own { 0 } else { range.len() }];
        state.numbers.push(Numbers { block, kind, start: range.start, values });
    }
    let numbers_of =
        |of: u32| own.statistics.iter().find(|(it, _)| *it == of).map(|(_, numbers)| &numbers[..]);
    let hosts = |of: u32| host(ranks, of);
    let mut outgoing = Vec::new();
    for Gift { from, to, what } in gifts.numbers.iter().filter(|gift| gift.to != rank) {
        if *from == rank {
            let numbers = own.stretch(what).expect("it is one of its own");
            outgoing.push(Outgoing { to: *to, bytes: bytemuck::cast_slice(numbers) });
        }
    }
    for (of, from) in gifts.statistics.iter().filter(|(of, _)| hosts(*of) != rank) {
        if *from == rank {
            let numbers = numbers_of(*of).expect("it is one of its own");
            outgoing.push(Outgoing { to: hosts(*of), bytes: bytemuck::cast_slice(numbers) });
        }
    }
    let arrives = |gift: &&Gift| gift.to == rank && gift.from != rank;
    let arriving: Vec<&Gift> = gifts.numbers.iter().filter(arrives).collect();
    let mut places = state.places(arriving.iter().map(|gift| &gift.what));
    let mut incoming = Vec::with_capacity(arriving.len());
    for Gift { from, what, .. } in arriving {
        let place = places
            .remove(&(what.block, what.kind, what.range.start))
            .expect("it is needed, and no other rank gives it");
        incoming.push(Incoming { from: *from, into: Destination::Slice(bytemuck::cast_slice_mut(place)) });
    }
    let arrives = |(of, from): &&(u32, u32)| hosts(*of) == rank && *from != rank;
    let statistics_of = |(of, from): &(u32, u32)| (*of, *from, vec![0f32; statistics]);
    let mut arriving: Vec<_> = gifts.statistics.iter().filter(arrives).map(statistics_of).collect();
    for (_, from, numbers) in &mut arriving {
        let into = Destination::Slice(bytemuck::cast_slice_mut(numbers));
        incoming.push(Incoming { from: *from, into });
    }
    collective.begin(Among::All);
    collective.transfer(&outgoing, &mut incoming, &mut |_| {})?;
    drop((incoming, places));
    // A rank keeps the gradients that it has not sent; no other rank has them. After an error they are where they were.
    state.residuals = std::mem::take(&mut own.residuals);
    let mut found: BTreeMap<u32, Vec<f32>> =
        arriving.into_iter().map(|(of, _, numbers)| (of, numbers)).collect();
    for (of, _) in gifts.statistics.iter().filter(|(of, from)| *from == rank && hosts(*of) == rank) {
        found.insert(*of, numbers_of(*of).expect("it is one of its own").to_vec());
    }
    state.statistics = match statistics {
        0 => ranks.of(rank).map(|of| (of, Vec::new())).collect(),
        _ => found.into_iter().collect(),
    };
    for Gift { what, .. } in gifts.numbers.iter().filter(|gift| (gift.from, gift.to) == (rank, rank)) {
        let is_whole = |it: &&mut Numbers| {
            it.values.is_empty() && (it.block, it.kind, it.start) == (what.block, what.kind, what.range.start)
        };
        match state.numbers.iter_mut().find(is_whole) {
            Some(whole) => {
                whole.values =
                    own.take(what.block, what.kind, &what.range).expect("it has it as it is needed");
            }
            None => {
                let numbers = own.stretch(what).expect("it is one of its own");
                state.place(std::slice::from_ref(what), &(0..what.range.len()), numbers);
            }
        }
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::layout::Kind;
    use crate::collective::threads::spawn;
    use crate::compress::{RankResidual, Residual};

    #[test]
    fn after_a_rank_is_gone_the_unsent_gradients_are_still_there() {
        let unsent = RankResidual {
            rank: 0,
            world: 2,
            residual: Residual { gradients: vec![1.0, -2.0], ..Residual::default() },
        };
        spawn(2, |mut collective| {
            if collective.rank() == 1 {
                collective.abort("it is gone");
                return;
            }
            let what = Stretch { block: 0, kind: Kind::Weights, range: 0..4 };
            let numbers = vec![Gift { from: 1, to: 0, what: what.clone() }];
            let gifts = Gifts { numbers, statistics: Vec::new() };
            let mut own = State { residuals: vec![unsent.clone()], ..State::default() };
            let ranks = VirtualRanks { count: 2, world: 2 };
            give(&mut collective, &gifts, ranks, 0, &mut own, vec![what]).unwrap_err();
            assert_eq!(own.residuals, std::slice::from_ref(&unsent));
        });
    }
}
