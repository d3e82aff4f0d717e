//! What a node does for the exchange of a run, and in which order. Pure: events in, commands out; `exchange` carries the
//! commands out.
//!
//! A chunk is due when the rank that is ahead has read past the chunk's position. Grains that have left are forgotten when the
//! rank that is behind has passed their epoch, and they have arrived.

use std::sync::Arc;
use std::time::Duration;

use shardd_plan::Plan;

use super::pace::Tempo;

/// A chunk of an epoch's exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    pub(super) epoch: u32,
    pub(super) chunk: u32,
}

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Event {
    /// The rank that is ahead is at this place, and the placement of this generation holds.
    Read { at: Duration, epoch: u32, position: u64, generation: u64 },
    /// The outbox holds all due chunks, with a backlog in bytes. `is_overdue`: ranks already read the epoch of some.
    /// `is_limited`: the exchange may not take the whole link.
    Queued { at: Duration, backlog: u64, is_overdue: bool, is_limited: bool },
    /// Of the grains on their way the oldest are of this epoch; the rank that is behind is in the epoch `slowest`.
    Sent { oldest: Option<u32>, slowest: Option<u32> },
    /// No rank reads any more: the next epoch's grains are sent, and that is all.
    Ended,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Command {
    /// Work out which grains are kept here in `epoch`, fetch those that are hosted here, and let the metastore know of the
    /// epoch if it `is_new`.
    Fill { epoch: u32, generation: u64, is_new: bool },
    /// Do not send the chunks from `from` up to `epoch`. Their next hosts miss the grains, and request them.
    GiveUp { from: Due, epoch: u32 },
    /// Drop grains of epochs before this one from the outbox.
    DropBefore { epoch: u32 },
    /// Put a chunk into the outbox.
    Queue(Due),
    /// Set the rate, in bytes per second. It falls only if `may_fall`.
    Pace { rate: f64, may_fall: bool },
    /// Drop the grains that left with the epochs up to this one.
    Forget { through: u32 },
    /// Do not send again what a node refuses from now on.
    EndSoon,
}

/// Where a node is in the exchange of a run.
#[derive(Debug)]
pub(super) struct Schedule {
    plan: Arc<Plan>,
    tempo: Tempo,
    /// The epoch of the rank that is ahead.
    epoch: u32,
    /// The first chunk that is not in the outbox, once a rank has read.
    due: Option<Due>,
    /// More chunks have become due since the last command about the pace.
    has_more: bool,
    /// The epoch and the generation of the last fill.
    filled: Option<(u32, u64)>,
    /// The last epoch that is forgotten.
    forgotten: Option<u32>,
    is_last: bool,
}

impl Schedule {
    pub(super) fn new(plan: Arc<Plan>) -> Self {
        Self {
            plan,
            tempo: Tempo::default(),
            epoch: 0,
            due: None,
            has_more: false,
            filled: None,
            forgotten: None,
            is_last: false,
        }
    }

    /// Whether the run has ended: what follows is the last.
    pub(super) fn is_last(&self) -> bool {
        self.is_last
    }

    /// The commands for an event, to be carried out in order.
    pub(super) fn step(&mut self, event: Event) -> Vec<Command> {
        match event {
            Event::Read { at, epoch, position, generation } => self.read(at, (epoch, position), generation),
            Event::Queued { at, backlog, is_overdue, is_limited } => {
                // A missing grain of the present epoch is requested as a miss: no pace would spare the link anything.
                let is_paced = is_limited && !is_overdue && !self.is_last;
                self.pace(at, backlog, is_paced)
            }
            Event::Sent { oldest, slowest } => self.forget(oldest, slowest),
            Event::Ended => {
                self.is_last = true;
                vec![Command::EndSoon]
            }
        }
    }

    fn read(&mut self, at: Duration, (epoch, position): (u32, u64), generation: u64) -> Vec<Command> {
        let mut commands = Vec::new();
        self.tempo.note(at, place(&self.plan, Due { epoch, chunk: 0 }, position));
        self.epoch = epoch;
        if self.filled != Some((epoch, generation)) {
            let is_new = self.filled.is_none_or(|(before, _)| before != epoch);
            self.filled = Some((epoch, generation));
            commands.push(Command::Fill { epoch, generation, is_new });
        }
        let mut next = match self.due {
            Some(due) if due.epoch <= epoch && epoch - due.epoch <= 1 => due,
            Some(from) if from.epoch < epoch => {
                // Training is faster than the exchange.
                commands.push(Command::GiveUp { from, epoch });
                Due { epoch, chunk: 0 }
            }
            // The first report, or a launch that starts again at an earlier epoch.
            _ => Due { epoch, chunk: 0 },
        };
        commands.push(Command::DropBefore { epoch: epoch.saturating_sub(1) });
        let chunks = self.plan.document().chunks;
        loop {
            if next.chunk == chunks && next.epoch < epoch {
                next = Due { epoch: next.epoch + 1, chunk: 0 };
            } else if next.chunk < chunks
                && (next.epoch < epoch || position >= self.plan.chunk_trigger(next.chunk))
            {
                commands.push(Command::Queue(next));
                next.chunk += 1;
            } else {
                break;
            }
        }
        self.has_more = self.due != Some(next);
        self.due = Some(next);
        commands
    }

    fn pace(&mut self, at: Duration, backlog: u64, is_paced: bool) -> Vec<Command> {
        let Some(next) = self.due else { return Vec::new() };
        let rate = match is_paced {
            true => {
                let due = place(&self.plan, next, self.plan.chunk_due(next.chunk));
                self.tempo.rate_for(at, backlog, due, self.plan.chunk_due(1))
            }
            // No reader is slowed, or one waits for it, or none reads any more.
            false => f64::INFINITY,
        };
        vec![Command::Pace { rate, may_fall: std::mem::take(&mut self.has_more) }]
    }

    fn forget(&mut self, oldest: Option<u32>, slowest: Option<u32>) -> Vec<Command> {
        let Some(next) = self.due else { return Vec::new() };
        let mut through = slowest.unwrap_or(self.epoch).min(next.epoch).checked_sub(1);
        // Grains on their way stay here until they arrive, if that does not take an epoch.
        if let Some(oldest) = oldest
            && self.epoch <= oldest + 1
        {
            through = through.min(oldest.checked_sub(1));
        }
        let leaves = through.filter(|_| through > self.forgotten);
        self.forgotten = through;
        leaves.map(|through| Command::Forget { through }).into_iter().collect()
    }
}

/// A place in the run, in positions since its first epoch.
fn place(plan: &Plan, due: Due, position: u64) -> u64 {
    u64::from(due.epoch).saturating_mul(plan.sample_count()).saturating_add(position)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shardd_plan::{PlanDocument, PlanOptions, Shape};
    use shardfmt::VersionId;

    use super::*;

    const SAMPLES: u64 = 400;

    fn schedule(chunks: u32) -> Schedule {
        let shape = Shape { shard_rows: vec![100; 4], row_bytes: 1000 };
        let options = PlanOptions {
            q: "0.5".parse().expect("a share"),
            partitions: Some(4),
            grain_rows: Some(4),
            chunks: Some(chunks),
            ..PlanOptions::default()
        };
        let document = PlanDocument::with_defaults(VersionId::of(b"some"), &shape, options).expect("a plan");
        Schedule::new(Arc::new(Plan::new(document, &shape.shard_rows).expect("a plan")))
    }

    fn read(schedule: &mut Schedule, epoch: u32, position: u64) -> Vec<Command> {
        let at = Duration::from_secs(u64::from(epoch) * SAMPLES + position);
        schedule.step(Event::Read { at, epoch, position, generation: 1 })
    }

    fn queued(commands: &[Command]) -> Vec<Due> {
        let queued = |command: &Command| if let Command::Queue(due) = command { Some(*due) } else { None };
        commands.iter().filter_map(queued).collect()
    }

    #[test]
    fn a_run_is_filled_sent_and_forgotten() {
        let mut schedule = schedule(2);
        let begins = read(&mut schedule, 0, 0);
        let fill = Command::Fill { epoch: 0, generation: 1, is_new: true };
        assert_eq!(
            begins,
            [fill, Command::DropBefore { epoch: 0 }],
            "nothing is due before a sample is read"
        );
        assert_eq!(queued(&read(&mut schedule, 0, 1)), [Due { epoch: 0, chunk: 0 }]);
        let at = Duration::from_secs(1);
        let paced = schedule.step(Event::Queued { at, backlog: 1, is_overdue: false, is_limited: true });
        assert!(
            matches!(paced[..], [Command::Pace { rate, may_fall: true }] if rate.is_finite()),
            "{paced:?}"
        );
        assert_eq!(queued(&read(&mut schedule, 0, SAMPLES)), [Due { epoch: 0, chunk: 1 }]);
        read(&mut schedule, 1, 0);
        let on_its_way = Event::Sent { oldest: Some(0), slowest: Some(1) };
        assert_eq!(schedule.step(on_its_way), [], "they have not arrived");
        let arrived = Event::Sent { oldest: None, slowest: Some(1) };
        assert_eq!(schedule.step(arrived), [Command::Forget { through: 0 }]);
        assert_eq!(schedule.step(arrived), [], "once");
        assert_eq!(schedule.step(Event::Ended), [Command::EndSoon]);
        let unlimited = schedule.step(Event::Queued { at, backlog: 1, is_overdue: false, is_limited: true });
        assert_eq!(unlimited, [Command::Pace { rate: f64::INFINITY, may_fall: true }]);
    }

    #[test]
    fn a_launch_that_begins_again_at_an_earlier_epoch_exchanges_from_there() {
        let mut schedule = schedule(2);
        read(&mut schedule, 7, SAMPLES);
        let again = read(&mut schedule, 3, SAMPLES);
        assert_eq!(queued(&again), [Due { epoch: 3, chunk: 0 }, Due { epoch: 3, chunk: 1 }]);
        assert!(!again.iter().any(|command| matches!(command, Command::GiveUp { .. })), "{again:?}");
    }

    proptest! {
        /// In whatever strides ranks read: a chunk is queued once, when it is due, in order, or given up.
        #[test]
        fn every_chunk_is_queued_when_it_is_due_or_given_up(
            chunks in 1..9u32, strides in prop::collection::vec(prop_oneof![0..200u64, 0..2000u64], 1..40),
        ) {
            let mut schedule = schedule(chunks);
            let (mut place, mut expected) = (0, Due { epoch: 0, chunk: 0 });
            read(&mut schedule, 0, 0);
            for stride in strides {
                place += stride;
                let (epoch, position) = ((place / SAMPLES) as u32, place % SAMPLES);
                for command in read(&mut schedule, epoch, position) {
                    match command {
                        Command::GiveUp { from, epoch: until } => {
                            let is_done = from.chunk == chunks;
                            let next = Due { epoch: from.epoch + 1, chunk: 0 };
                            prop_assert_eq!(if is_done { next } else { from }, expected);
                            prop_assert!(until == epoch && from.epoch + 1 < epoch, "an epoch later is early enough");
                            expected = Due { epoch, chunk: 0 };
                        }
                        Command::Queue(due) => {
                            prop_assert_eq!(due, expected);
                            let trigger = schedule.plan.chunk_trigger(due.chunk);
                            prop_assert!(due.epoch < epoch || trigger <= position);
                            expected.chunk += 1;
                        }
                        _ => {}
                    }
                    if expected.chunk == chunks {
                        expected = Due { epoch: expected.epoch + 1, chunk: 0 };
                    }
                }
                let is_due = expected.epoch == epoch && position >= schedule.plan.chunk_trigger(expected.chunk);
                prop_assert!(expected.epoch >= epoch && !is_due, "all that was due was queued");
            }
        }

        /// Nothing is forgotten that a rank may read, that is not yet queued, or that is on its way for less than an epoch.
        #[test]
        fn what_is_forgotten_is_needed_by_none(
            turns in prop::collection::vec((0..900u64, 0..3u32, prop::option::of(0..3u32)), 1..40),
        ) {
            let mut schedule = schedule(4);
            let mut place = 0;
            for (stride, behind, on_its_way) in turns {
                place += stride;
                let epoch = (place / SAMPLES) as u32;
                read(&mut schedule, epoch, place % SAMPLES);
                let slowest = epoch.saturating_sub(behind);
                let oldest = on_its_way.map(|ago| epoch.saturating_sub(ago));
                for command in schedule.step(Event::Sent { oldest, slowest: Some(slowest) }) {
                    let Command::Forget { through } = command else { panic!("{command:?}") };
                    prop_assert!(through < slowest);
                    prop_assert!(oldest.is_none_or(|oldest| through < oldest || oldest + 1 < epoch));
                }
            }
        }
    }
}
