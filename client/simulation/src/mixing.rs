//! How well grains are mixed: the share of them that is in the partition it began in. Knows nothing of nodes.

use rayon::prelude::*;
use serde::Serialize;
use shardd_plan::{Epoch, GrainNo, Move, Partition, Permutation, Plan, Schedule, Selection, Share};

use super::matrix::{MixingMatrix, Pairs};

/// Grains that are looked up where not all can be followed.
const LOOKED_UP: u64 = 1 << 14;
/// Fewer than this say nothing.
const FEWEST: u64 = 64;

/// The share of the grains that is, in an epoch, in the partition it was in in epoch 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Mixing {
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
    /// Of all grains, if there are no more than `most`; else of some, about `looked_up`. All are followed only if every exchange is
    /// played.
    pub(super) fn following(plan: &'p Plan, most: u64, looked_up: u64) -> Self {
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
            let count = looked_up.clamp(FEWEST, LOOKED_UP).min(plan.full_grain_count());
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

    /// From which partitions each one has its grains in `epoch`, all exchanges before which were settled.
    pub(super) fn matrix(&self, epoch: Epoch) -> MixingMatrix {
        let mut pairs = Pairs::new(epoch.0, self.plan.document().partitions);
        match &self.observed {
            Observed::Every { start, of_slot } => {
                for (slot, home) in of_slot.iter().enumerate() {
                    let partition = start.partition_point(|first| *first <= slot as u64) - 1;
                    pairs.count(partition as u32, *home);
                }
            }
            Observed::Some(grains) => {
                let now = |(grain, home): &(GrainNo, Partition)| {
                    (self.plan.partition_of_grain_at(epoch, *grain).partition().0, home.0)
                };
                let found: Vec<(u32, u32)> = grains.par_iter().map(now).collect();
                found.into_iter().for_each(|(now, first)| pairs.count(now, first));
            }
        }
        pairs.matrix()
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
    let mut parts = unexchanged(&document.schedule, document.selection);
    let stayed = parts.nth(epoch.0 as usize).expect("one for each epoch");
    stayed + (1.0 - stayed) / f64::from(document.partitions)
}

/// The part of the grains that no exchange has taken, before each epoch from 0 on: what a plan begins with, such as the skew of
/// its labels, shrinks with it.
pub fn unexchanged(schedule: &Schedule, selection: Selection) -> impl Iterator<Item = f64> {
    (0..).map(Epoch).scan((0.0, 1.0), move |(taken, left), epoch| {
        let now = match selection {
            Selection::Cyclic => f64::max(1.0 - *taken, 0.0),
            Selection::Independent => *left,
        };
        let share = fraction(schedule.after(epoch));
        (*taken, *left) = (*taken + share, *left * (1.0 - share));
        Some(now)
    })
}

/// A share as a number from 0 to 1.
pub fn fraction(share: Share) -> f64 {
    share.units() as f64 / Share::ALL.units() as f64
}
