//! Ranks as threads of one process: a rank reads another's messages where they lie, and nothing is copied on the way.

mod lend;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::group_state::GroupState;
use super::pieces::Pieces;
use super::{
    Among, Collective, CollectiveError, DEFAULT_TIMEOUT, Incoming, Link, Outgoing, Piece, Place, Sink,
};
use lend::{Loan, Mailbox};

/// A [`Collective`] between threads; see [`world`] and [`spawn`].
#[derive(Debug)]
pub struct ThreadCollective {
    standing: GroupState,
    mailbox: Arc<Mailbox>,
}

/// The members of a world of `ranks`, in rank order; give each to a thread of its own.
pub fn world(ranks: u32, timeout: Duration) -> Vec<ThreadCollective> {
    world_on(&vec![0; ranks as usize], timeout)
}

/// A world with one rank per entry, which says what machine the rank takes itself to be on.
pub fn world_on(hosts: &[u32], timeout: Duration) -> Vec<ThreadCollective> {
    let mailbox = Arc::new(Mailbox::new(hosts.len()));
    let member = |rank| ThreadCollective {
        standing: GroupState::new(rank, hosts.to_vec(), timeout),
        mailbox: Arc::clone(&mailbox),
    };
    (0..hosts.len()).map(member).collect()
}

/// Runs `rank` once for every rank of a world of threads and returns their results, in rank order.
///
/// # Panics
/// If a rank panics, after all have ended: the others fail with [`CollectiveError::Gone`] instead of waiting for it.
///
/// ```
/// use shardd_trainer::collective::Collective;
/// use shardd_trainer::spawn;
///
/// assert_eq!(spawn(3, |collective| (collective.rank(), collective.world())), [(0, 3), (1, 3), (2, 3)]);
/// ```
pub fn spawn<R: Send>(ranks: u32, rank: impl Fn(ThreadCollective) -> R + Sync) -> Vec<R> {
    spawn_on(world(ranks, DEFAULT_TIMEOUT), rank)
}

/// As [`spawn`], with the members of a world that is already there.
///
/// # Panics
/// As [`spawn`].
pub fn spawn_on<R: Send>(
    members: Vec<ThreadCollective>,
    rank: impl Fn(ThreadCollective) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = members.into_iter().map(|member| scope.spawn(move || rank(member))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

impl Collective for ThreadCollective {
    fn rank(&self) -> u32 {
        self.standing.rank as u32
    }

    fn world(&self) -> u32 {
        self.standing.world as u32
    }

    fn hosts(&self) -> &[u32] {
        &self.standing.hosts
    }

    fn link(&self) -> Link {
        Link::Memory
    }

    fn begin(&mut self, among: Among) {
        self.standing.begin(among);
    }

    fn transfer(
        &mut self,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        sink: Sink<'_>,
    ) -> Result<(), CollectiveError> {
        if let Some(why) = &self.standing.failed {
            return Err(why.clone());
        }
        self.perform(outgoing, incoming, sink).inspect_err(|why| {
            let told = CollectiveError::Aborted { rank: why.rank(), reason: why.reason() };
            self.mailbox.end(self.standing.rank, told);
            self.standing.failed = Some(why.clone());
        })
    }

    fn abort(&mut self, reason: &str) {
        if self.standing.failed.is_none() {
            let why = CollectiveError::Aborted { rank: self.rank(), reason: reason.to_owned() };
            self.mailbox.end(self.standing.rank, why.clone());
            self.standing.failed = Some(why);
        }
    }

    fn bytes_sent(&self) -> u64 {
        self.standing.bytes_sent
    }

    fn waits(&self) -> &[Duration] {
        &self.standing.waits
    }

    fn waited(&self) -> Duration {
        self.standing.waited()
    }
}

impl ThreadCollective {
    fn perform(
        &mut self,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        sink: Sink<'_>,
    ) -> Result<(), CollectiveError> {
        let since = Instant::now();
        let standing = &mut self.standing;
        let mut messages: Vec<Vec<&[u8]>> = vec![Vec::new(); standing.world];
        for &Outgoing { to, bytes } in outgoing {
            standing.check_other(to);
            messages[to as usize].push(bytes);
            standing.bytes_sent += bytes.len() as u64;
        }
        let mut expected: Vec<Vec<usize>> = vec![Vec::new(); standing.world];
        for (index, Incoming { from, .. }) in incoming.iter().enumerate() {
            standing.check_other(*from);
            expected[*from as usize].push(index);
        }
        let has_sink =
            |from: usize| expected[from].iter().any(|&index| matches!(incoming[index].into, Place::Sink(_)));
        let senders = (0..standing.world).filter(|&from| !expected[from].is_empty());
        // The sink needs all of its messages at once, the others are taken as they come.
        let (at_sink, mut waiting): (Vec<usize>, Vec<usize>) = senders.partition(|&from| has_sink(from));
        let mailbox = &self.mailbox;
        mailbox.lending(standing, &messages, |standing| {
            while !waiting.is_empty() {
                let loan = mailbox.borrow_any(standing, &waiting, since)?;
                waiting.retain(|&rank| rank != loan.from());
                take(standing, &loan, &expected[loan.from()], incoming)?;
            }
            let loans = mailbox.borrow_all(standing, &at_sink, since)?;
            for loan in &loans {
                take(standing, loan, &expected[loan.from()], incoming)?;
            }
            feed(incoming, &expected, &loans, sink);
            Ok(())
        })
    }
}

/// Checks lent messages and copies those that are not for the sink.
fn take(
    standing: &GroupState,
    loan: &Loan<'_>,
    expected: &[usize],
    incoming: &mut [Incoming<'_>],
) -> Result<(), CollectiveError> {
    standing.check_step(loan.from(), loan.operation())?;
    let malformed = |what| CollectiveError::Malformed { rank: loan.from() as u32, what };
    if loan.messages().len() != expected.len() {
        return Err(malformed(format!("{} messages, {} expected", loan.messages().len(), expected.len())));
    }
    for (&index, bytes) in expected.iter().zip(loan.messages()) {
        let into = &mut incoming[index].into;
        let length = match into {
            Place::Slice(place) => place.len(),
            Place::Whole(_) => bytes.len(),
            Place::Sink(length) => *length,
        };
        if bytes.len() != length {
            return Err(malformed(format!("{} bytes, {length} expected", bytes.len())));
        }
        match into {
            Place::Slice(place) => place.copy_from_slice(bytes),
            Place::Whole(place) => {
                place.clear();
                place.extend_from_slice(bytes);
            }
            Place::Sink(_) => {}
        }
    }
    Ok(())
}

/// Gives the sink its messages, a piece of each at a time, each from where the sender has it.
fn feed(incoming: &[Incoming<'_>], expected: &[Vec<usize>], loans: &[Loan<'_>], sink: Sink<'_>) {
    let mut messages: Vec<&[u8]> = vec![&[]; incoming.len()];
    for loan in loans {
        for (&index, bytes) in expected[loan.from()].iter().zip(loan.messages()) {
            if matches!(incoming[index].into, Place::Sink(_)) {
                messages[index] = bytes;
            }
        }
    }
    for (incoming, range) in Pieces::of(messages.iter().map(|message| message.len())) {
        if !range.is_empty() {
            let offset = range.start;
            sink(Piece { incoming, offset, bytes: &messages[incoming][range] });
        }
    }
}

impl Drop for ThreadCollective {
    /// A rank that still waits for this one must not wait without end.
    fn drop(&mut self) {
        let how = if std::thread::panicking() { "its thread panicked" } else { "its thread ended" };
        let rank = self.standing.rank;
        self.mailbox.end(rank, CollectiveError::Gone { rank: rank as u32, how: how.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::collective::conformance;

    #[test]
    fn threads_keep_the_promises_of_a_collective() {
        conformance::run(&|ranks, timeout| {
            world(ranks, timeout).into_iter().map(|member| Box::new(member) as Box<dyn Collective>).collect()
        });
    }

    /// Two ranks: 0 lends 1 a message whose pieces `read` gets.
    fn lent(timeout: Duration, read: impl Fn() + Send) -> Result<(), CollectiveError> {
        let mut members = world(2, timeout);
        let (mut receiver, mut sender) = (members.remove(1), members.remove(0));
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut incoming = [Incoming { from: 0, into: Place::Sink(9) }];
                receiver.begin(Among::All);
                receiver.transfer(&[], &mut incoming, &mut |_| read())
            });
            sender.begin(Among::All);
            let outcome = sender.transfer(&[Outgoing { to: 1, bytes: &[7; 9] }], &mut [], &mut |_| {});
            drop(reader.join()); // it may have panicked
            outcome
        })
    }

    #[test]
    fn nothing_is_taken_back_while_it_is_read() {
        let is_reading = AtomicBool::new(false);
        let timeout = Duration::from_millis(50);
        let outcome = lent(timeout, || {
            is_reading.store(true, Ordering::SeqCst);
            let since = Instant::now();
            while since.elapsed() < 4 * timeout {
                std::thread::yield_now(); // an addition that takes its time
            }
            is_reading.store(false, Ordering::SeqCst);
        });
        // Whether it saw the time run out or the message read, the sender came back when no rank read any
        // more.
        assert!(!is_reading.load(Ordering::SeqCst));
        assert!(matches!(outcome, Ok(()) | Err(CollectiveError::Late { .. })), "{outcome:?}");
    }

    #[test]
    fn a_reader_that_panics_gives_back_what_it_was_lent() {
        let outcome = lent(Duration::from_secs(20), || panic!("out of numbers"));
        // The reader took the part of the message that it wanted; that the reader is gone shows when it is
        // next needed.
        assert!(matches!(outcome, Ok(()) | Err(CollectiveError::Gone { rank: 1, .. })), "{outcome:?}");
    }
}
