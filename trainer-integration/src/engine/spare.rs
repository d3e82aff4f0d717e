//! Memory of the last step, for the next one: a system would first have to clear new memory.

use std::ops::Range;

use super::Zero;
use super::computed::Computed;
use crate::device::Precision;
use crate::ledger::{Held, Kind, Ledger, Numbers};

/// Unused memory.
#[derive(Debug)]
pub(super) struct Spare {
    ledger: Ledger,
    /// Whether the memory of a bucket's gradient becomes that of its sums, and stays.
    outlives: bool,
    /// Of gradients: by bucket, or, where buckets do not outlive their sums, of any two.
    gradients: Vec<Numbers<f32>>,
    gathered: Pool,
}

/// Buckets whose gradients exist at once where they do not outlive their sums: one is filled while another is added up.
const BUCKETS_AT_ONCE: usize = 2;

impl Spare {
    pub(super) fn new(zero: Zero, ledger: &Ledger) -> Spare {
        let outlives = zero <= Zero::Moments;
        Spare { ledger: ledger.clone(), outlives, gradients: Vec::new(), gathered: Pool::new(ledger) }
    }

    /// Whether the memory of a bucket's gradient becomes that of its sums.
    pub(super) fn outlive(&mut self, outlives: bool) {
        self.outlives = outlives;
        self.forget_gradients();
    }

    /// Room for the gradients of a bucket, of this number of numbers.
    pub(super) fn gradients(&mut self, bucket: usize, length: usize) -> Numbers<f32> {
        let found = match self.outlives {
            true => self.gradients.get_mut(bucket).map(std::mem::take),
            false => {
                let fits = |room: &Numbers<f32>| room.capacity() >= length;
                let place = self.gradients.iter().position(fits).or(self.gradients.len().checked_sub(1));
                place.map(|place| self.gradients.swap_remove(place))
            }
        };
        match found {
            Some(mut room) if room.capacity() >= length => {
                room.growing().clear();
                room
            }
            found => {
                drop(found);
                Numbers::with_capacity(&self.ledger, Kind::Gradients, length)
            }
        }
    }

    /// Keeps the memory of a bucket whose sums are elsewhere.
    pub(super) fn keep_gradient(&mut self, room: Numbers<f32>) {
        if self.gradients.len() < BUCKETS_AT_ONCE {
            self.gradients.push(room);
        }
    }

    /// Keeps the memory of a bucket whose gradient has been copied elsewhere.
    pub(super) fn return_gradient(&mut self, bucket: usize, room: Numbers<f32>) {
        if !self.outlives {
            return self.keep_gradient(room);
        }
        if self.gradients.len() <= bucket {
            self.gradients.resize_with(bucket + 1, Numbers::default);
        }
        self.gradients[bucket] = room;
    }

    /// Keeps the memory of all buckets, if it is that of whole ones.
    pub(super) fn keep_gradients(&mut self, gradients: Vec<Numbers<f32>>) {
        if self.outlives {
            self.gradients = gradients;
        }
    }

    /// Buckets have other sizes from now on.
    pub(super) fn forget_gradients(&mut self) {
        self.gradients.clear();
    }

    /// Memory for the gathered parameters of a block, with any numbers in it.
    pub(super) fn gathered(&mut self, precision: Precision, parameters: &[Range<usize>]) -> Computed {
        self.gathered.take(precision, parameters)
    }

    /// Takes it back.
    pub(super) fn keep_gathered(&mut self, memory: Computed) {
        self.gathered.free.push(memory);
    }

    /// Gives back what of it is not in use.
    pub(super) fn forget_gathered(&mut self) {
        let freed: usize = self.gathered.free.drain(..).map(|free| free.bytes()).sum();
        self.gathered.count(self.gathered.bytes - freed);
    }

    /// A number of taken bytes does not come back.
    pub(super) fn lose_gathered(&mut self, bytes: usize) {
        self.gathered.count(self.gathered.bytes - bytes);
    }
}

/// Memory of blocks. In use and not, it is no more than that of the two largest that were asked for, unless more is in use.
#[derive(Debug)]
struct Pool {
    /// Bytes of the largest.
    largest: usize,
    /// Bytes, in use and not.
    bytes: usize,
    /// The one that was kept last is at the end.
    free: Vec<Computed>,
    held: Held,
}

impl Pool {
    fn new(ledger: &Ledger) -> Pool {
        Pool { largest: 0, bytes: 0, free: Vec::new(), held: ledger.hold(Kind::Gathered, 0) }
    }

    fn take(&mut self, precision: Precision, parameters: &[Range<usize>]) -> Computed {
        let fits =
            |free: &Computed| free.lengths().into_iter().eq(parameters.iter().map(ExactSizeIterator::len));
        if let Some(place) = self.free.iter().rposition(fits) {
            return self.free.remove(place);
        }
        let bytes = parameters.iter().map(ExactSizeIterator::len).sum::<usize>() * precision.bytes();
        self.largest = self.largest.max(bytes);
        while self.bytes + bytes > 2 * self.largest && !self.free.is_empty() {
            let gone = self.free.remove(0).bytes();
            self.count(self.bytes - gone);
        }
        self.count(self.bytes + bytes);
        Computed::zeros(precision, parameters)
    }

    fn count(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.held.set(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_there_is_never_much_of_it() {
        let ledger = Ledger::default();
        let mut spare = Spare::new(Zero::Parameters, &ledger);
        let one = |length: usize| [0..length / 2, length / 2..length];
        let address = |computed: &Computed| match computed {
            Computed::F32(all) => all[0].as_ptr(),
            _ => unreachable!("asked for otherwise"),
        };
        let take = |spare: &mut Spare, length: usize| spare.gathered(Precision::F32, &one(length));
        let (first, second) = (take(&mut spare, 50), take(&mut spare, 50));
        let warm = address(&first);
        spare.keep_gathered(second);
        spare.keep_gathered(first);
        let again = take(&mut spare, 50);
        assert_eq!(address(&again), warm, "the one whose pages are warm");
        assert_eq!(ledger.now().gathered, 4 * 100);
        let larger = take(&mut spare, 70);
        assert_eq!(ledger.now().gathered, 4 * 120, "the free memory was used for it");
        let third = take(&mut spare, 60);
        assert_eq!(ledger.now().gathered, 4 * 180, "the needed memory is there");
        spare.lose_gathered(again.bytes() + third.bytes());
        spare.keep_gathered(larger);
        assert_eq!(ledger.now().gathered, 4 * 70);
    }

    #[test]
    fn gradients_have_the_memory_of_the_last_step() {
        for (zero, kept) in [(Zero::Moments, 3), (Zero::Parameters, 2)] {
            let ledger = Ledger::default();
            let mut spare = Spare::new(zero, &ledger);
            let rooms: Vec<Numbers<f32>> = (0..3).map(|bucket| spare.gradients(bucket, 100)).collect();
            match zero {
                Zero::Moments => spare.keep_gradients(rooms),
                _ => rooms.into_iter().for_each(|room| spare.keep_gradient(room)),
            }
            assert_eq!(ledger.now().gradients, kept * 400, "{zero:?}");
            let again = spare.gradients(1, 100);
            assert_eq!(ledger.now().gradients, kept * 400);
            let more = spare.gradients(2, 200);
            assert!(ledger.now().gradients > kept * 400 && more.capacity() >= 200 && again.is_empty());
            spare.forget_gradients();
            drop((again, more));
            // Memory copied elsewhere in the meantime is there for the next.
            let one = spare.gradients(1, 100);
            spare.return_gradient(1, one);
            assert_eq!(ledger.now().gradients, 400, "{zero:?}");
            let again = spare.gradients(1, 100);
            assert_eq!((again.capacity(), ledger.now().gradients), (100, 400), "{zero:?}");
        }
    }
}
