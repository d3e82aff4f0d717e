//! Copies at a step what this rank writes of it, which is all that training waits for. What others have of its pieces is on its way meanwhile:
//! one operation, in which everyone sends a copy of what everyone else is to write.

use std::sync::Arc;

use rayon::prelude::*;

use super::layout::Kind;
use super::pieces::{Stretch, length};
use super::plan::{Plan, within};
use crate::collective::{CollectiveError, Message};
use crate::ledger::{self, Ledger, Numbers};
use crate::reduce::{Comm, Pending};

/// Numbers of a block that this rank has, from `start` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held<'a> {
    pub(crate) block: usize,
    pub(crate) kind: Kind,
    pub(crate) start: usize,
    pub(crate) numbers: &'a [f32],
}

/// A copy of what a rank writes.
#[derive(Debug)]
pub(super) struct Captured {
    rank: u32,
    plan: Arc<Plan>,
    /// By piece of this rank; what others have of it is not there yet.
    pieces: Vec<Numbers<f32>>,
    /// The messages by rank, if ranks send any.
    arriving: Option<Pending<Vec<Message>>>,
}

impl Captured {
    /// Copies, and begins the exchange. All ranks call it together, each with all that the plan's holding says it has.
    ///
    /// # Panics
    /// If this rank lacks a part that the plan says it has.
    pub(super) fn of(plan: &Arc<Plan>, mut held: Vec<Held<'_>>, comm: &Comm, ledger: &Ledger) -> Captured {
        held.retain(|held| !held.numbers.is_empty());
        held.sort_unstable_by_key(|held| (held.block, held.kind, held.start));
        let rank = comm.rank();
        let mine: Vec<usize> = plan.of_rank(rank).collect();
        let own = |&index: &usize| {
            let piece = &plan.pieces[index];
            let mut numbers = zeros(ledger, length(piece));
            for (_, run) in plan.turns[index].sources.iter().filter(|(source, _)| *source == rank) {
                copy_run(&held, piece, run.clone(), &mut numbers[run.clone()]);
            }
            numbers
        };
        let pieces = mine.par_iter().map(own).collect();
        let arriving = plan.is_exchanged().then(|| {
            let of = |to: u32| {
                let sent = || plan.sent(rank, to).filter(|_| to != rank);
                let mut numbers = zeros(ledger, sent().map(|(_, run)| run.len()).sum());
                let mut rest = &mut numbers[..];
                for (index, run) in sent() {
                    let (into, after) = rest.split_at_mut(run.len());
                    copy_run(&held, &plan.pieces[index], run.clone(), into);
                    rest = after;
                }
                numbers
            };
            let outgoing: Vec<Numbers<f32>> = (0..comm.world()).into_par_iter().map(of).collect();
            comm.submit(move |collective| {
                let outgoing: Vec<&[u8]> =
                    outgoing.iter().map(|numbers| bytemuck::cast_slice(numbers)).collect();
                collective.exchange(&outgoing)
            })
        });
        Captured { rank, plan: Arc::clone(plan), pieces, arriving }
    }

    /// Waits for what others have, and hands over the pieces with what lies in them.
    ///
    /// # Errors
    /// When another rank is gone or late.
    pub(super) fn complete(mut self) -> Result<Vec<(usize, Numbers<f32>)>, CollectiveError> {
        let mine: Vec<usize> = self.plan.of_rank(self.rank).collect();
        if let Some(arriving) = self.arriving.take() {
            for (from, message) in (0..).zip(arriving.wait()?).filter(|(from, _)| *from != self.rank) {
                let expected: usize = self.plan.sent(from, self.rank).map(|(_, run)| run.len()).sum();
                let numbers = message.numbers::<f32>().filter(|numbers| numbers.len() == expected);
                let numbers = numbers.ok_or_else(|| {
                    let found = message.bytes().len();
                    let what = format!("{found} bytes for {expected} numbers of a checkpoint");
                    CollectiveError::Malformed { rank: from, what }
                })?;
                let mut rest = &numbers[..];
                for (index, run) in self.plan.sent(from, self.rank) {
                    let place = mine.binary_search(&index).expect("it is sent for a piece of this rank");
                    let (taken, after) = rest.split_at(run.len());
                    self.pieces[place][run.clone()].copy_from_slice(taken);
                    rest = after;
                }
            }
        }
        Ok(mine.into_iter().zip(self.pieces).collect())
    }
}

fn zeros(ledger: &Ledger, count: usize) -> Numbers<f32> {
    Numbers::of(ledger, ledger::Kind::Copies, vec![0.0; count])
}

/// Copies a run of a piece from where this rank has it.
fn copy_run(held: &[Held<'_>], piece: &[Stretch], run: std::ops::Range<usize>, into: &mut [f32]) {
    for (at, Stretch { block, kind, range }) in within(piece, &run) {
        let first = held.partition_point(|it| {
            (it.block, it.kind) < (block, kind)
                || (it.block, it.kind) == (block, kind) && it.start + it.numbers.len() <= range.start
        });
        let mut copied = 0;
        for it in held[first..].iter().take_while(|it| (it.block, it.kind) == (block, kind)) {
            let (from, to) = (it.start.max(range.start), (it.start + it.numbers.len()).min(range.end));
            if from >= to {
                break;
            }
            let place = at + from - range.start;
            into[place..place + to - from].copy_from_slice(&it.numbers[from - it.start..to - it.start]);
            copied += to - from;
        }
        assert_eq!(copied, range.len(), "this rank has its part of {kind:?} of block {block}");
    }
}
