//! Parallel work in order: one producer, many workers, results handed on in the order produced, and never more than
//! a few items in flight. Knows nothing of what the items are.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use rayon::{Scope, Yield};

/// Runs `work` on every item that `produce` pushes, on the threads of the current rayon pool, and gives the results
/// to `consume` in the order of the items. At most `in_flight` items exist at a time, whatever their pace.
///
/// The producer stays on the calling thread and lends a hand when it has to wait.
///
/// # Errors
/// The error of the earliest item that failed, whichever thread noticed first.
///
/// # Panics
/// When `produce` continues after an error of its sink: items would be missing from its end.
pub(super) fn in_order<I, O, T, E>(
    in_flight: usize,
    produce: impl FnOnce(&mut dyn FnMut(I) -> Result<(), E>) -> Result<T, E>,
    work: impl Fn(I) -> Result<O, E> + Sync,
    consume: impl FnMut(O) -> Result<(), E>,
) -> Result<T, E>
where
    I: Send,
    O: Send,
    E: Send,
{
    let work = &work;
    rayon::in_place_scope(|scope| {
        let mut line = Line::new(consume);
        let produced = produce(&mut |item| {
            assert!(!line.failed, "nothing can follow an item that failed");
            line.start(scope, item, work);
            line.settle(in_flight)
        });
        // Items before the point where the producer failed come first, and so do their errors.
        if line.failed {
            assert!(produced.is_err(), "a producer cannot end well when an item failed");
        } else {
            line.settle(1)?;
        }
        produced
    })
}

/// The items under way: numbered when started, settled in that order.
struct Line<O, E, C> {
    sender: Sender<(u64, thread::Result<Result<O, E>>)>,
    receiver: Receiver<(u64, thread::Result<Result<O, E>>)>,
    early: BTreeMap<u64, thread::Result<Result<O, E>>>,
    started: u64,
    settled: u64,
    failed: bool,
    consume: C,
}

impl<O: Send, E: Send, C: FnMut(O) -> Result<(), E>> Line<O, E, C> {
    fn new(consume: C) -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "as many at most as are under way, which `settle` limits"
        )]
        let (sender, receiver) = channel();
        Line { sender, receiver, early: BTreeMap::new(), started: 0, settled: 0, failed: false, consume }
    }

    fn start<'s, I: Send + 's>(
        &mut self,
        scope: &Scope<'s>,
        item: I,
        work: &'s (impl Fn(I) -> Result<O, E> + Sync),
    ) where
        O: 's,
        E: 's,
    {
        let (number, sender) = (self.started, self.sender.clone());
        self.started += 1;
        scope.spawn(move |_| {
            let done = catch_unwind(AssertUnwindSafe(|| work(item)));
            // The receiver is gone when an earlier item has failed.
            let _ = sender.send((number, done));
        });
    }

    /// Consumes the ready items, and waits until fewer than `limit` items are unsettled.
    fn settle(&mut self, limit: usize) -> Result<(), E> {
        let limit = limit.max(1) as u64;
        loop {
            while let Some(done) = self.early.remove(&self.settled) {
                self.settled += 1;
                let result = done.unwrap_or_else(|panic| resume_unwind(panic));
                if let Err(error) = result.and_then(&mut self.consume) {
                    self.failed = true;
                    return Err(error);
                }
            }
            match self.receiver.try_recv() {
                Ok((number, done)) => _ = self.early.insert(number, done),
                Err(TryRecvError::Disconnected) => unreachable!("the line keeps a sender"),
                Err(TryRecvError::Empty) if self.started - self.settled < limit => return Ok(()),
                Err(TryRecvError::Empty) => self.lend_a_hand(),
            }
        }
    }

    /// Does one queued job, or, when all are being done by others, sleeps until one of them reports.
    fn lend_a_hand(&mut self) {
        if rayon::yield_now() == Some(Yield::Executed) {
            return;
        }
        if let Ok((number, done)) = self.receiver.recv() {
            self.early.insert(number, done);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;

    fn run(
        threads: usize,
        items: usize,
        in_flight: usize,
        fail: &(dyn Fn(usize) -> bool + Sync),
    ) -> (Vec<usize>, Result<(), usize>, usize) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let (alive, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mut seen = Vec::new();
        let done = pool.install(|| {
            in_order(
                in_flight,
                |push| {
                    (0..items).try_for_each(|item| {
                        most.fetch_max(alive.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        push(item)
                    })
                },
                |item| if fail(item) { Err(item) } else { Ok(item) },
                |item| {
                    alive.fetch_sub(1, Ordering::SeqCst);
                    seen.push(item);
                    Ok(())
                },
            )
        });
        (seen, done, most.into_inner())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn results_keep_the_order_and_memory_its_bound(threads in 1..4usize, items in 0..200usize, in_flight in 1..9usize) {
            let (seen, done, most) = run(threads, items, in_flight, &|_| false);
            prop_assert_eq!(seen, (0..items).collect::<Vec<_>>());
            prop_assert!(done.is_ok());
            prop_assert!(most <= in_flight);
        }

        #[test]
        fn the_earliest_failure_is_the_one_reported(threads in 1..4usize, first in 0..100usize) {
            let (seen, done, _) = run(threads, 150, 6, &|item| item >= first);
            prop_assert_eq!(done, Err(first));
            prop_assert_eq!(seen, (0..first).collect::<Vec<_>>());
        }
    }

    #[test]
    #[should_panic(expected = "cannot end well")]
    fn a_producer_that_passes_over_a_failure_is_found_out() {
        let swallow = |push: &mut dyn FnMut(u32) -> Result<(), u32>| {
            let _ = push(1);
            Ok(())
        };
        let _ = in_order(1, swallow, Err::<u32, u32>, |_| Ok(()));
    }
}
