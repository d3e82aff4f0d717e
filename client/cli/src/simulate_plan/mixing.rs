//! How well grains are mixed: the share of them that is in the partition it began in. Knows nothing of nodes.

use rayon::prelude::*;
use serde::Serialize;
use shardd_plan::{Epoch, GrainNo, Move, Partition, Permutation, Plan, Schedule, Selection, Share};

/// Grains that are all followed; of more, some are looked up. A followed one costs 4 bytes, and 16 while it moves.
const MOST_FOLLOWED: u64 = 1 << 24;
/// Grains that are looked up where not all can be followed.
const LOOKED_UP: u64 = 1 << 14;

/// The share of the grains that is, in an epoch, in the partition it was in in epoch 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Mixing {
    /// By the formula of `docs/PLAN.md`.
    pub predicted: f64,
    /// As counted...
    pub counted: f64,
    /// ...over this number of grains.
    pub of_grains: u64,
}

/// Where the grains that are observed began.
pub(super) struct Homes<'p> {
    plan: &'p Plan,
    observed: Observed,
}

enum Observed {
    /// For each slot, the first partition of the grain in it. Slots are numbered partition after partition.
    Every { start: Vec<u64>, of_slot: Vec<u32> },
    /// Some grains and their first partitions.
    Some(Vec<(GrainNo, Partition)>),
}

/// The grains that a chunk brings to the slots it fills; nothing if grains are not followed.
pub(super) struct Arrivals(Vec<(u64, u32)>);

impl<'p> Homes<'p> {
    /// Of all grains, if every exchange is played (`is_whole`) and there are not too many; else of some.
    pub(super) fn new(plan: &'p Plan, is_whole: bool) -> Self {
        Self::following(plan, if is_whole { MOST_FOLLOWED } else { 0 })
    }

    pub(super) fn following(plan: &'p Plan, most: u64) -> Self {
        let start: Vec<u64> = plan
            .partitions()
            .scan(0, |next, partition| {
                let start = *next;
                *next += plan.slot_count(partition);
                Some(start)
            })
            .collect();
        let observed = if plan.full_grain_count() <= most {
            let slots =
                |partition| std::iter::repeat_n(partition, plan.slot_count(Partition(partition)) as usize);
            let of_slot = (0..plan.document().partitions).flat_map(slots).collect();
            Observed::Every { start, of_slot }
        } else {
            let key =
                blake3::derive_key("shardd simulate 2026 v1 observed", &plan.document().seed.to_le_bytes());
            let chosen = Permutation::new(&key, plan.full_grain_count());
            let grain = |slot: u64| {
                let partition = start.partition_point(|first| *first <= slot) - 1;
                let home = Partition(partition as u32);
                (plan.grain_in_slot(Epoch(0), home, slot - start[partition]), home)
            };
            let count = LOOKED_UP.min(plan.full_grain_count());
            Observed::Some((0..count).map(|n| grain(chosen.apply(n))).collect())
        };
        Homes { plan, observed }
    }

    /// How it is in `epoch`, all exchanges before which were settled.
    pub(super) fn mixing(&self, epoch: Epoch) -> Mixing {
        let (home, of_grains) = match &self.observed {
            Observed::Every { start, of_slot } => {
                let ends = start.iter().skip(1).copied().chain([of_slot.len() as u64]);
                let stayed = |(partition, (start, end)): (u32, (&u64, u64))| {
                    of_slot[*start as usize..end as usize].iter().filter(|home| **home == partition).count()
                };
                ((0..).zip(start.iter().zip(ends)).map(stayed).sum::<usize>() as u64, of_slot.len() as u64)
            }
            Observed::Some(grains) => {
                let is_home = |(grain, home): &&(GrainNo, Partition)| {
                    self.plan.partition_of_grain_at(epoch, *grain).partition() == *home
                };
                (grains.par_iter().filter(is_home).count() as u64, grains.len() as u64)
            }
        };
        Mixing { predicted: predicted(self.plan, epoch), counted: home as f64 / of_grains as f64, of_grains }
    }

    pub(super) fn arrivals(&self, count: u64) -> Arrivals {
        Arrivals(match self.observed {
            Observed::Every { .. } => Vec::with_capacity(count as usize),
            Observed::Some(_) => vec![],
        })
    }

    /// Fills the slots: no slot is in two chunks of an exchange, so the chunks may come in any order.
    pub(super) fn settle(&mut self, chunks: Vec<Arrivals>) {
        if let Observed::Every { of_slot, .. } = &mut self.observed {
            for (slot, home) in chunks.into_iter().flat_map(|Arrivals(chunk)| chunk) {
                of_slot[slot as usize] = home;
            }
        }
    }
}

impl Arrivals {
    pub(super) fn push(&mut self, homes: &Homes, one: &Move) {
        if let Observed::Every { start, of_slot } = &homes.observed {
            let number = |(partition, slot): (Partition, u64)| start[partition.0 as usize] + slot;
            self.0.push((number(one.to), of_slot[number(one.from) as usize]));
        }
    }
}

/// Grains not exchanged before `epoch` are at home, and of the rest those that came back by chance.
pub(super) fn predicted(plan: &Plan, epoch: Epoch) -> f64 {
    let document = plan.document();
    let stayed = unexchanged(&document.schedule, document.selection, epoch);
    stayed + (1.0 - stayed) / f64::from(document.partitions)
}

/// The part of the grains that no exchange before `epoch` has taken.
fn unexchanged(schedule: &Schedule, selection: Selection, epoch: Epoch) -> f64 {
    let shares = (0..epoch.0).map(|past| fraction(schedule.after(Epoch(past))));
    match selection {
        Selection::Cyclic => (1.0 - shares.sum::<f64>()).max(0.0),
        Selection::Independent => shares.map(|share| 1.0 - share).product(),
    }
}

/// A share as a number from 0 to 1.
pub(crate) fn fraction(share: Share) -> f64 {
    share.units() as f64 / Share::ALL.units() as f64
}
