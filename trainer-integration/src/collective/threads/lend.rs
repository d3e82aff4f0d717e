//! Where the ranks of a process lend each other the data they send. A receiver reads the sender's own memory,
//! so a message of 64 MiB is added to another without being copied first; safe code would need a copy, or
//! shared ownership of the caller's memory.
//!
//! Memory outlives its readers: a lot is on the mailbox only while [`Mailbox::lending`] runs, which borrows the
//! lent memory. It does not return, nor unwind, before each of its lots has been taken or withdrawn, and a
//! lot that is being read is not withdrawn but waited for. Readers hold a [`Loan`] while they read, and
//! giving it back takes the lot off the mailbox.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::collective::CollectiveError;
use crate::collective::group_state::GroupState;

#[derive(Debug)]
pub(super) struct Mailbox {
    world: usize,
    state: Mutex<State>,
    /// One for each rank, woken by its own changes.
    changed: Vec<Condvar>,
}

#[derive(Debug)]
struct State {
    /// From rank a to rank b: at a · world + b.
    lots: Vec<Option<Lot>>,
    /// The last operation of all that each rank has reached.
    reached: Vec<Option<u64>>,
    /// Why nothing more will come of a rank.
    ended: Vec<Option<CollectiveError>>,
}

/// All that one rank sends another in a transfer.
#[derive(Debug)]
struct Lot {
    operation: u64,
    messages: Vec<Lent>,
    is_on_loan: bool,
}

#[derive(Clone, Copy, Debug)]
struct Lent(*const [u8]);

// SAFETY: it is only an address. It is followed by `Loan::messages` alone, which says why that is sound on any thread.
unsafe impl Send for Lent {}

impl Mailbox {
    pub(super) fn new(world: usize) -> Mailbox {
        let state = State {
            lots: (0..world * world).map(|_| None).collect(),
            reached: vec![None; world],
            ended: vec![None; world],
        };
        Mailbox { world, state: Mutex::new(state), changed: (0..world).map(|_| Condvar::new()).collect() }
    }

    /// Lends `messages[to]` to each rank while `act` runs, and waits until all have read their messages. When
    /// `act` fails or a receiver will not come, nothing is lent any more.
    pub(super) fn lending<R>(
        &self,
        standing: &mut GroupState,
        messages: &[Vec<&[u8]>],
        act: impl FnOnce(&mut GroupState) -> Result<R, CollectiveError>,
    ) -> Result<R, CollectiveError> {
        let (rank, operation) = (standing.rank, standing.operation());
        // However this ends, its drop withdraws the rest before the borrow of `messages` does.
        let lending = Lending { mailbox: self, rank };
        let mut state = self.state();
        if !standing.is_of_two() {
            state.reached[rank] = Some(operation);
        }
        for (to, messages) in messages.iter().enumerate().filter(|(_, messages)| !messages.is_empty()) {
            let messages = messages.iter().map(|&message| Lent(message)).collect();
            let lot = &mut state.lots[rank * self.world + to];
            debug_assert!(lot.is_none(), "the transfer before ended with nothing lent");
            *lot = Some(Lot { operation, messages, is_on_loan: false });
            self.changed[to].notify_one();
        }
        drop(state);
        let outcome = act(standing)?;
        lending.wait(standing)?;
        Ok(outcome)
    }

    /// Waits for what one of these ranks lends, whichever does first.
    pub(super) fn borrow_any(
        &self,
        standing: &mut GroupState,
        from: &[usize],
        since: Instant,
    ) -> Result<Loan<'_>, CollectiveError> {
        let mut state = self.state();
        loop {
            if let Some(&from) = from.iter().find(|&&from| state.lot(from, standing.rank).is_some()) {
                standing.hear(from, since);
                return Ok(self.take(&mut state, from, standing.rank));
            }
            state = self.wait(state, standing, from)?;
        }
    }

    /// Waits until all of these ranks lend something. Nothing is on loan while it waits, so that a rank that gives up can.
    pub(super) fn borrow_all(
        &self,
        standing: &mut GroupState,
        from: &[usize],
        since: Instant,
    ) -> Result<Vec<Loan<'_>>, CollectiveError> {
        let mut state = self.state();
        loop {
            let (there, missing): (Vec<usize>, Vec<usize>) =
                from.iter().partition(|&&from| state.lot(from, standing.rank).is_some());
            there.into_iter().for_each(|from| standing.hear(from, since));
            if missing.is_empty() {
                return Ok(from.iter().map(|&from| self.take(&mut state, from, standing.rank)).collect());
            }
            state = self.wait(state, standing, &missing)?;
        }
    }

    /// Nothing more comes of `rank`; the first reason given stays.
    pub(super) fn end(&self, rank: usize, why: CollectiveError) {
        self.state().ended[rank].get_or_insert(why);
        self.changed.iter().for_each(Condvar::notify_one);
    }

    fn take(&self, state: &mut State, from: usize, to: usize) -> Loan<'_> {
        let lot = state.lots[from * self.world + to].as_mut().expect("the caller has seen it");
        lot.is_on_loan = true;
        Loan { from, to, operation: lot.operation, messages: lot.messages.clone(), mailbox: self }
    }

    fn wait<'s>(
        &self,
        state: MutexGuard<'s, State>,
        standing: &GroupState,
        missing: &[usize],
    ) -> Result<MutexGuard<'s, State>, CollectiveError> {
        if let Some(why) = state.first_cause(missing) {
            return Err(why);
        }
        let Some(left) = standing.remaining() else {
            let operation = Some(standing.operation());
            return Err(standing.late(missing, |rank| state.reached[rank] >= operation));
        };
        let waited = self.changed[standing.rank].wait_timeout(state, left);
        Ok(waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn lot(&self, from: usize, to: usize) -> Option<&Lot> {
        self.lots[from * self.ended.len() + to].as_ref()
    }

    /// Why the missing will not come: any rank's abort says more than that a missing one has ended.
    fn first_cause(&self, missing: &[usize]) -> Option<CollectiveError> {
        let mut reasons = self.ended.iter().flatten();
        let abort = reasons.find(|why| matches!(why, CollectiveError::Aborted { .. }));
        abort.or_else(|| missing.iter().find_map(|&rank| self.ended[rank].as_ref())).cloned()
    }
}

/// Lots of one rank that may still be on the mailbox.
struct Lending<'d> {
    mailbox: &'d Mailbox,
    rank: usize,
}

impl Lending<'_> {
    fn left(&self, state: &State) -> Vec<usize> {
        (0..self.mailbox.world).filter(|&to| state.lot(self.rank, to).is_some()).collect()
    }

    /// Waits until every rank has read its message.
    fn wait(&self, standing: &GroupState) -> Result<(), CollectiveError> {
        let mut state = self.mailbox.state();
        loop {
            let left = self.left(&state);
            if left.is_empty() {
                return Ok(());
            }
            state = self.mailbox.wait(state, standing, &left)?;
        }
    }
}

impl Drop for Lending<'_> {
    /// Withdraws unread messages, and waits for readers: that ends with a copy or an addition, or with the
    /// reader's panic.
    fn drop(&mut self) {
        let mut state = self.mailbox.state();
        loop {
            for to in self.left(&state) {
                let lot = &mut state.lots[self.rank * self.mailbox.world + to];
                lot.take_if(|lot| !lot.is_on_loan);
            }
            if self.left(&state).is_empty() {
                return;
            }
            state = self.mailbox.changed[self.rank].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The message that another rank lends to this one, until it is dropped.
#[derive(Debug)]
pub(super) struct Loan<'d> {
    from: usize,
    to: usize,
    operation: u64,
    messages: Vec<Lent>,
    mailbox: &'d Mailbox,
}

impl Loan<'_> {
    pub(super) fn from(&self) -> usize {
        self.from
    }

    pub(super) fn operation(&self) -> u64 {
        self.operation
    }

    pub(super) fn messages(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.messages.iter().map(|&Lent(message)| {
            // SAFETY: `Mailbox::lending` borrows the message and ends only when the lot is off the mailbox, which the drop of this loan sees
            // to; the reference lives no longer than the borrow of the loan. No code writes to a lent
            // message, as it is borrowed.
            unsafe { &*message }
        })
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.mailbox.state().lots[self.from * self.mailbox.world + self.to] = None;
        self.mailbox.changed[self.from].notify_one();
    }
}
